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

import jax
import jax.numpy as jnp
from jax import Array

from secateur.distributions import Normal, UnitNormal
from secateur.distributions.low_rank import LowRank
from secateur.training.coordinates import (
    Coordinates,
    LowRankMixing,
    Vectors,
    flat_shape,
    make_shape,
)
from secateur.training.low_rank_steps import add_probes, move_low_rank

# Number of optimiser steps per step of the shapes, whose gradients dominate the cost.
SHAPE_INTERVAL = 20
# Fraction of the way to the stationary point that a step of the shapes takes at the full rate.
SHAPE_SHARE = 0.2


class Shapes(NamedTuple):
    """The shapes of all units, and derived quantities; constant between two of their steps.

    Attributes:
        factors: L of every unit, or covariances of low rank, by vector; None where there is no
            covariance.
        rows: The factors as they stand in flat beliefs, likewise.
        variances: Variances of single weights, likewise.
        scales: s of every unit, likewise.
        roots: T of the symmetric root of covariances of low rank; None for others.
        log_determinants: Σ ln |Σ| over their units, likewise.
    """

    factors: Vectors
    rows: Vectors
    variances: Vectors
    scales: Vectors
    roots: Vectors
    log_determinants: Vectors

    @classmethod
    def of(cls, weights: Coordinates, alive: Vectors) -> Shapes:
        """Return those of some weights."""
        mixing = weights.mixing or (None,) * len(alive)
        columns = zip(weights.log_deviations, mixing, alive, strict=True)
        return cls.of_factors(
            tuple(None if o is None else make_shape(s, o, a) for s, o, a in columns)
        )

    @classmethod
    def of_factors(cls, factors: Vectors) -> Shapes:
        """Return those of some factors."""
        known = [f.spectrum() if isinstance(f, LowRank) else None for f in factors]
        roots = tuple(None if s is None else s.root() for s in known)
        pairs = zip(factors, known, strict=True)
        logs = tuple(None if s is None else jnp.sum(s.log_determinant(f.own)) for f, s in pairs)
        return cls((), (), (), (), roots, logs).with_factors(factors)

    def with_factors(self, factors: Vectors) -> Shapes:
        """Return these shapes with other factors, and the variances that follow from those."""
        squares = [None if f is None else _find_variance(f) for f in factors]
        variances = tuple(None if v is None else v.reshape(-1) for v in squares)
        scales = tuple(None if v is None else _find_scale(v) for v in squares)
        rows = tuple(None if f is None else _find_rows(f) for f in factors)
        return self._replace(factors=factors, rows=rows, variances=variances, scales=scales)

    def join(self, part: Coordinates) -> Coordinates:
        """Return all coordinates; `part` is what the optimiser moves."""
        pairs = list(zip(part.log_deviations, self.factors, strict=True))
        if all(f is None for _, f in pairs):
            return part
        logs = tuple(s if f is None else _find_logs(f) for s, f in pairs)
        mixing = tuple(None if f is None else _find_mixing(f) for f in self.factors)
        return Coordinates(part.means, logs, mixing)

    def beliefs(self, part: Coordinates, alive: Vectors) -> tuple[Normal, ...]:
        """Return the flat beliefs; `part` is what the optimiser moves."""
        columns = zip(part.means, part.log_deviations, alive, strict=True)
        held = [(jnp.where(a, m, 0), s, a) for m, s, a in columns]
        low = [isinstance(f, LowRank) for f in self.factors]
        shapes = zip(held, self.variances, self.rows, low, strict=True)
        return tuple(
            Normal(m, jnp.where(a, jnp.exp(2 * s), 0))
            if f is None
            else UnitNormal(m, v, f, lowers=low)
            for (m, s, a), v, f, low in shapes
        )

    def pull_gradient(self, gradient: Coordinates) -> Coordinates:
        """Return a gradient in the coordinates of each unit (unchanged for independent weights)."""
        columns = zip(self.factors, self.roots, self.scales, gradient.means, strict=True)
        return gradient._replace(means=tuple(_pull(*column) for column in columns))

    def push_update(self, update: Coordinates) -> Coordinates:
        """Return a step in the coordinates of each unit as one of the weights."""
        columns = zip(self.factors, self.roots, self.scales, update.means, strict=True)
        return update._replace(means=tuple(_push(*column) for column in columns))

    def probe(self, key: Array) -> Vectors:
        """Return the factors by which the free energy is derived for a step of the shapes."""
        return tuple(
            add_probes(f, jax.random.fold_in(key, number)) if isinstance(f, LowRank) else f
            for number, f in enumerate(self.factors)
        )

    def move(
        self, probed: Vectors, slopes: Vectors, cooling: Any, priors: tuple[Any, ...], warmth: Any
    ) -> Shapes:
        """Return the shapes after a natural-gradient step.

        Args:
            probed: The factors with probes.
            slopes: Derivatives of the free energy, in nats, by these.
            cooling: Current learning rate, as a fraction of the full one.
            priors: Priors by vector.
            warmth: Weight of the complexity.
        """
        share = SHAPE_SHARE * cooling

        def move_one(factor: Any, root: Any, probed: Any, slope: Any, prior: Any) -> Any:
            if isinstance(factor, LowRank):
                precision = warmth * _find_prior_precision(prior, factor)
                return move_low_rank(factor, root, probed, slope, share, precision)
            return None if factor is None else _move_factor(factor, slope, share)

        columns = zip(self.factors, self.roots, probed, slopes, priors, strict=True)
        return Shapes.of_factors(tuple(move_one(*column) for column in columns))


def _find_prior_precision(prior: Any, factor: LowRank) -> Array:
    own = flat_shape(prior).own if isinstance(prior, UnitNormal) else prior.variance
    precision = jnp.broadcast_to(1 / own.reshape(-1), factor.own.size)
    return precision.reshape(factor.own.shape)


def _find_variance(factor: Any) -> Array:
    if isinstance(factor, LowRank):
        return factor.variance
    return jnp.sum(jnp.square(factor), axis=2)


def _find_rows(factor: Any) -> Array:
    if isinstance(factor, LowRank):
        return factor.factor.swapaxes(0, 1)
    return factor.reshape(-1, factor.shape[-1])


def _find_mixing(factor: Any) -> Any:
    if isinstance(factor, LowRank):
        return LowRankMixing(factor.directions)
    return jnp.tril(factor, -1)


def _pull(factor: Any, root: Any, scale: Any, slope: Array) -> Array:
    if factor is None:
        return slope
    if isinstance(factor, LowRank):
        rows, deviation = slope.reshape(factor.own.shape), jnp.sqrt(factor.own)
        lowered = _through_factor(factor, root, rows) / jnp.where(deviation > 0, deviation, 1)
        return ((deviation * rows - lowered) / scale).reshape(-1)
    moved = jnp.einsum("uki,uk->ui", factor, slope.reshape(factor.shape[:2]))
    return (moved / scale).reshape(-1)


def _push(factor: Any, root: Any, scale: Any, step: Array) -> Array:
    if factor is None:
        return step
    if isinstance(factor, LowRank):
        rows, deviation = step.reshape(factor.own.shape), jnp.sqrt(factor.own)
        lowered = _through_factor(factor, root, rows / jnp.where(deviation > 0, deviation, 1))
        return ((deviation * rows - lowered) / scale).reshape(-1)
    moved = jnp.einsum("uij,uj->ui", factor, step.reshape(factor.shape[:2]))
    return (moved / scale).reshape(-1)


def _through_factor(factor: LowRank, root: Array, rows: Array) -> Array:
    """F T Fᵀ applied to each row."""
    inside = jnp.einsum("urq,uq->ur", root, jnp.einsum("ukq,uk->uq", factor.factor, rows))
    return jnp.einsum("ukr,ur->uk", factor.factor, inside)


def _find_scale(variance: Array) -> Array:
    """The root-mean-square deviation of the weights of each unit; 1 where none is alive."""
    count = jnp.sum(variance > 0, axis=1)
    square = jnp.sum(variance, axis=1) / jnp.maximum(count, 1)
    return jnp.sqrt(jnp.where(square > 0, square, 1))[:, None]


def _find_logs(factor: Any) -> Array:
    """Logarithms of the diagonals; 0 where a weight is not alive."""
    if isinstance(factor, LowRank):
        return 0.5 * jnp.log(jnp.where(factor.own > 0, factor.own, 1)).reshape(-1)
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
