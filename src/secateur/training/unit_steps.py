"""Steps of training for beliefs with covariance, in the coordinates of each unit's own belief.

A unit's weights are θ = m + Lξ. The optimiser sees its mean through t = L⁻¹(θ − m): the gradient is
Lᵀ∂F/∂m, and a step is

    m ← m + L u / s        s² = Σ L²/size

so that directions that the data determine well take small steps, the others large ones.

The shape L takes natural-gradient steps of its own, once in `SHAPE_INTERVAL` steps. In these
coordinates the precision of the unit is I, and E = Lᵀ∂F/∂L is what it should be minus I:

    L ← L (exp(−½ρ diag E) − ρ (lower triangle of E))        ρ = share / (1 + share·‖E‖)

To first order, this is the step by ρ towards the stationary point Λ = Λ_prior + 2 Σ_n g_n x_n x_nᵀ
(Opper and Archambeau 2009), and L always remains the factor of a covariance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from secateur.distributions import Normal, UnitNormal
from secateur.training.coordinates import Coordinates, Vectors, make_factor
from secateur.training.layout import Layout

# Number of steps of the optimiser for one of the shapes, whose gradients cost more than all else.
SHAPE_INTERVAL = 20
# Share of the way to the stationary point that a step of the shapes takes at the full rate.
SHAPE_SHARE = 0.2


class Shapes(NamedTuple):
    """What follows from the shapes of all units, and stays the same between two of their steps.

    Attributes:
        factors: L of every unit, by vector; None where there is no covariance.
        variances: Variances of single weights, likewise.
        scales: s of every unit, likewise.
        leaves: Factors of the leaves.
    """

    factors: Vectors
    variances: Vectors
    scales: Vectors
    leaves: list[Any]

    @classmethod
    def of(cls, layout: Layout, weights: Coordinates, alive: Vectors) -> Shapes:
        """Return those of some weights."""
        flat = weights.beliefs(alive)
        mixing = weights.mixing or (None,) * len(flat)
        pairs = list(zip(flat, mixing, strict=True))
        factors = [None if o is None else _take_factor(q).reshape(o.shape) for q, o in pairs]
        return cls(
            tuple(factors),
            tuple(None if o is None else q.variance for q, o in pairs),
            tuple(None if f is None else _find_scale(f) for f in factors),
            layout.split_factors(flat),
        )

    def beliefs(self, weights: Coordinates, alive: Vectors) -> tuple[Normal, ...]:
        """Return the flat beliefs about weights of these shapes."""
        independent = Coordinates(weights.means, weights.log_deviations).beliefs(alive)
        columns = zip(independent, self.variances, self.factors, strict=True)
        return tuple(
            q if f is None else UnitNormal(q.mean, v, f.reshape(-1, f.shape[-1]))
            for q, v, f in columns
        )

    def pull_gradient(self, gradient: Coordinates) -> Coordinates:
        """Return a gradient in the coordinates of each unit; of independent weights, as it is."""
        columns = zip(self.factors, self.scales, gradient.means, strict=True)
        return gradient._replace(means=tuple(_pull(*column) for column in columns))

    def push_update(self, weights: Coordinates, update: Coordinates, rate: Any) -> Coordinates:
        """Return the coordinates after a step in the coordinates of each unit.

        Args:
            weights: Coordinates before.
            update: What the optimiser adds to `weights.optimised()`, in these coordinates.
            rate: What to multiply it by.
        """
        pairs = zip(weights.log_deviations, update.log_deviations, strict=True)
        logs = tuple(s if u is None else s + rate * u for s, u in pairs)
        columns = zip(weights.means, self.factors, self.scales, update.means, strict=True)
        means = tuple(m + rate * _push(*column) for m, *column in columns)
        return Coordinates(means, logs, weights.mixing)


def _take_factor(q: Normal) -> Array:
    assert isinstance(q, UnitNormal)
    return q.factor


def _pull(factor: Any, scale: Any, slope: Array) -> Array:
    if factor is None:
        return slope
    moved = jnp.einsum("uki,uk->ui", factor, slope.reshape(factor.shape[:2]))
    return (moved / scale).reshape(-1)


def _push(factor: Any, scale: Any, step: Array) -> Array:
    if factor is None:
        return step
    moved = jnp.einsum("uij,uj->ui", factor, step.reshape(factor.shape[:2]))
    return (moved / scale).reshape(-1)


def _find_scale(factor: Array) -> Array:
    """The deviation of a weight of each unit, in the mean square; 1 where none is alive."""
    count = jnp.sum(jnp.any(factor != 0, axis=2), axis=1)
    square = jnp.sum(jnp.square(factor), axis=(1, 2)) / jnp.maximum(count, 1)
    return jnp.sqrt(jnp.where(square > 0, square, 1))[:, None]


def move_shapes(
    weights: Coordinates, gradient: tuple[Vectors, Vectors], cooling: Any, alive: Vectors
) -> Coordinates:
    """Return the coordinates after a natural-gradient step of the shapes of all units.

    Args:
        weights: Coordinates before.
        gradient: Derivatives of the free energy, in nats, by `weights.shapes()`.
        cooling: Learning rate now as a share of the full one.
        alive: Which weights are alive.
    """
    columns = zip(*weights[1:], *gradient, alive, strict=True)
    shapes = [_move_shape(*column, share=SHAPE_SHARE * cooling) for column in columns]
    logs, mixing = map(tuple, zip(*shapes, strict=True))
    return weights.replace_shapes((logs, mixing))


def _move_shape(
    log: Array, mixing: Any, log_slope: Any, mixing_slope: Any, alive: Array, *, share: Any
) -> Any:
    if mixing is None:
        return None, None
    factor = make_factor(log, mixing, alive)
    units, size, _ = factor.shape
    own = jnp.diagonal(factor, axis1=1, axis2=2)
    # exp(log) is the diagonal of L.
    diagonal = jnp.where(own > 0, log_slope.reshape(units, size) / jnp.where(own > 0, own, 1), 0)
    eye = jnp.eye(size, dtype=log.dtype)[None]
    by_factor = jnp.tril(mixing_slope, -1) + diagonal[:, :, None] * eye
    excess = jnp.einsum("uki,ukj->uij", factor, by_factor)
    ahead = jnp.tril(excess, -1)
    level = jnp.diagonal(excess, axis1=1, axis2=2)
    square = 2 * jnp.sum(jnp.square(ahead), axis=(1, 2)) + jnp.sum(jnp.square(level), axis=1)
    rho = (share / (1 + share * jnp.sqrt(square)))[:, None]
    shrink = -0.5 * rho * level
    change = jnp.exp(shrink)[:, :, None] * eye - rho[:, :, None] * ahead
    after = jnp.einsum("uik,ukj->uij", factor, change)
    return log + jnp.where(alive, shrink.reshape(-1), 0), jnp.tril(after, -1)
