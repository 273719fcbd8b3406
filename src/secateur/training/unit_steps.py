"""Steps of training for beliefs with covariance, in the coordinates of each unit's own belief.

A unit's weights are θ = m + Lξ. The optimiser sees its mean through t = L⁻¹(θ − m): the gradient is
Lᵀ∂F/∂m, and a step is

    m ← m + L u / s        s² = Σ L²/size

so that steps are small in directions that the data determine well, and large in the others.

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

# Number of optimiser steps per step of the shapes, whose gradients dominate the cost.
SHAPE_INTERVAL = 20
# Fraction of the way to the stationary point that a step of the shapes takes at the full rate.
SHAPE_SHARE = 0.2


class Shapes(NamedTuple):
    """The shapes of all units, and derived quantities; constant between two of their steps.

    Attributes:
        factors: L of every unit, by vector; None where there is no covariance.
        variances: Variances of single weights, likewise.
        scales: s of every unit, likewise.
    """

    factors: Vectors
    variances: Vectors
    scales: Vectors

    @classmethod
    def of(cls, weights: Coordinates, alive: Vectors) -> Shapes:
        """Return those of some weights."""
        mixing = weights.mixing or (None,) * len(alive)
        columns = zip(weights.log_deviations, mixing, alive, strict=True)
        return cls.of_factors(
            tuple(None if o is None else make_factor(s, o, a) for s, o, a in columns)
        )

    @classmethod
    def of_factors(cls, factors: Vectors) -> Shapes:
        """Return those of some factors."""
        squares = [None if f is None else jnp.sum(jnp.square(f), axis=2) for f in factors]
        return cls(
            factors,
            tuple(None if v is None else v.reshape(-1) for v in squares),
            tuple(None if v is None else _find_scale(v) for v in squares),
        )

    def join(self, part: Coordinates) -> Coordinates:
        """Return all coordinates; `part` is what the optimiser moves."""
        pairs = list(zip(part.log_deviations, self.factors, strict=True))
        if all(f is None for _, f in pairs):
            return part
        logs = tuple(s if f is None else _find_logs(f) for s, f in pairs)
        mixing = tuple(None if f is None else jnp.tril(f, -1) for f in self.factors)
        return Coordinates(part.means, logs, mixing)

    def beliefs(self, part: Coordinates, alive: Vectors) -> tuple[Normal, ...]:
        """Return the flat beliefs; `part` is what the optimiser moves."""
        columns = zip(part.means, part.log_deviations, alive, strict=True)
        held = [(jnp.where(a, m, 0), s, a) for m, s, a in columns]
        shapes = zip(held, self.variances, self.factors, strict=True)
        return tuple(
            Normal(m, jnp.where(a, jnp.exp(2 * s), 0))
            if f is None
            else UnitNormal(m, v, f.reshape(-1, f.shape[-1]))
            for (m, s, a), v, f in shapes
        )

    def pull_gradient(self, gradient: Coordinates) -> Coordinates:
        """Return a gradient in the coordinates of each unit (unchanged for independent weights)."""
        columns = zip(self.factors, self.scales, gradient.means, strict=True)
        return gradient._replace(means=tuple(_pull(*column) for column in columns))

    def push_update(self, update: Coordinates) -> Coordinates:
        """Return a step in the coordinates of each unit as one of the weights."""
        columns = zip(self.factors, self.scales, update.means, strict=True)
        return update._replace(means=tuple(_push(*column) for column in columns))

    def move(self, slopes: Vectors, cooling: Any) -> Shapes:
        """Return the shapes after a natural-gradient step.

        Args:
            slopes: Derivatives of the free energy, in nats, by the factors.
            cooling: Current learning rate, as a fraction of the full one.
        """
        share = SHAPE_SHARE * cooling
        pairs = zip(self.factors, slopes, strict=True)
        return Shapes.of_factors(
            tuple(None if f is None else _move_factor(f, g, share) for f, g in pairs)
        )


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


def _find_scale(variance: Array) -> Array:
    """The root-mean-square deviation of the weights of each unit; 1 where none is alive."""
    count = jnp.sum(variance > 0, axis=1)
    square = jnp.sum(variance, axis=1) / jnp.maximum(count, 1)
    return jnp.sqrt(jnp.where(square > 0, square, 1))[:, None]


def _find_logs(factor: Array) -> Array:
    """Logarithms of the diagonals; 0 where a weight is not alive."""
    own = jnp.diagonal(factor, axis1=1, axis2=2)
    return jnp.log(jnp.where(own > 0, own, 1)).reshape(-1)


def _move_factor(factor: Array, slope: Array, share: Any) -> Array:
    live = jnp.diagonal(factor, axis1=1, axis2=2) > 0
    excess = jnp.einsum("uki,ukj->uij", factor, slope)
    excess = jnp.where(live[:, :, None] & live[:, None, :], excess, 0)
    ahead = jnp.tril(excess, -1)
    level = jnp.diagonal(excess, axis1=1, axis2=2)
    square = 2 * jnp.sum(jnp.square(ahead), axis=(1, 2)) + jnp.sum(jnp.square(level), axis=1)
    rho = (share / (1 + share * jnp.sqrt(square)))[:, None]
    eye = jnp.eye(factor.shape[1], dtype=factor.dtype)[None]
    change = jnp.exp(-0.5 * rho * level)[:, :, None] * eye - rho[:, :, None] * ahead
    return jnp.tril(jnp.einsum("uik,ukj->uij", factor, change))
