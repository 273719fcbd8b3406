"""Steps of an optimiser for beliefs with covariance, in the coordinates of each unit's own belief.

A unit's weights are θ = m + Lξ. The optimiser sees a unit through t = L⁻¹(θ − m): its gradient is
Lᵀ∂F/∂m for the mean and the lower triangle of Lᵀ∂F/∂L for the shape, and its steps are

    m ← m + L u / s        L ← L (exp(diagonal of U) + lower triangle of U)        s² = Σ L²/size

In these coordinates the Fisher information is that of a standard Normal: directions that the data
determine well take small steps, the others large ones, and the logarithm of a deviation moves as it
does without covariance. (For a unit of one weight, they are the usual steps.)
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from secateur.training.coordinates import Coordinates, Vectors, make_factor


def pull_gradient(weights: Coordinates, gradient: Coordinates, alive: Vectors) -> Coordinates:
    """Return a gradient in the coordinates of each unit; of independent weights, as it is."""
    if not weights.mixing:
        return gradient
    columns = zip(*weights, *gradient, alive, strict=True)
    return _join([_pull(*column) for column in columns])


def push_update(
    weights: Coordinates, update: Coordinates, rate: Any, alive: Vectors
) -> Coordinates:
    """Return the coordinates after a step in the coordinates of each unit.

    Args:
        weights: Coordinates before.
        update: What the optimiser adds, in the coordinates of the units.
        rate: What to multiply it by.
        alive: Which weights are alive.
    """
    columns = zip(*weights, *update, alive, strict=True)
    return _join([_push(*column, rate=rate) for column in columns])


def _join(columns: list[Any]) -> Coordinates:
    return Coordinates(*map(tuple, zip(*columns, strict=True)))


def _pull(mean: Array, log: Array, mixing: Any, slope: Array, log_slope: Array, mixing_slope: Any,
          alive: Array) -> Any:  # fmt: skip
    if mixing is None:
        return slope, log_slope, None
    factor = make_factor(log, mixing, alive)
    units, size, _ = factor.shape
    own = jnp.diagonal(factor, axis1=1, axis2=2)
    # exp(log) is the diagonal of L.
    diagonal = jnp.where(own > 0, log_slope.reshape(units, size) / jnp.where(own > 0, own, 1), 0)
    eye = jnp.eye(size, dtype=log.dtype)[None]
    by_factor = jnp.tril(mixing_slope, -1) + diagonal[:, :, None] * eye
    local = jnp.einsum("uki,ukj->uij", factor, by_factor)
    moved = jnp.einsum("uki,uk->ui", factor, slope.reshape(units, size)) / _scale(factor)
    shape_slope = jnp.diagonal(local, axis1=1, axis2=2).reshape(-1)
    return moved.reshape(-1), shape_slope, jnp.tril(local, -1)


def _push(mean: Array, log: Array, mixing: Any, step: Array, log_step: Array, mixing_step: Any,
          alive: Array, *, rate: Any) -> Any:  # fmt: skip
    if mixing is None:
        return mean + rate * step, log + rate * log_step, None
    factor = make_factor(log, mixing, alive)
    units, size, _ = factor.shape
    moved = jnp.einsum("uij,uj->ui", factor, step.reshape(units, size)) / _scale(factor)
    growth = jnp.exp(rate * log_step).reshape(units, size)
    eye = jnp.eye(size, dtype=log.dtype)[None]
    change = growth[:, :, None] * eye + rate * jnp.tril(mixing_step, -1)
    after = jnp.einsum("uik,ukj->uij", factor, change)
    return mean + rate * moved.reshape(-1), log + rate * log_step, jnp.tril(after, -1)


def _scale(factor: Array) -> Array:
    """The deviation of a weight of each unit, in the mean square; 1 where none is alive."""
    count = jnp.sum(jnp.any(factor != 0, axis=2), axis=1)
    square = jnp.sum(jnp.square(factor), axis=(1, 2)) / jnp.maximum(count, 1)
    return jnp.sqrt(jnp.where(square > 0, square, 1))[:, None]
