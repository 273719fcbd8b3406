"""Normals whose precision is a diagonal and a few directions, for units with many weights.

    Λ = D + V Vᵀ        Σ = Λ⁻¹ = diag(own) − F Fᵀ = S (I − K Kᵀ) S        own = 1/D = S²,  F = S K

Data determine few directions of the precision. All that is needed costs as many operations as there
are numbers in V, times its rank. Arrays have the shapes (units, size) and (units, size, rank); a
weight that is certain has `own` 0 and a row of zeros in F.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions.jacobi import decompose_symmetric

# Largest share of the variance of a direction that the data may take away, for float32.
_LARGEST_SHARE = 1 - 1e-6


class Spectrum(NamedTuple):
    """Eigenvalues and eigenvectors of KᵀK, by unit.

    Attributes:
        shares: Which share of the variance of a direction is gone.
        basis: Eigenvectors.
    """

    shares: Array
    basis: Array

    def root(self) -> Array:
        """T of the symmetric root (I − K Kᵀ)^½ = I − K T Kᵀ."""
        values = 1 / (1 + jnp.sqrt(1 - self.shares))
        return (self.basis * values[..., None, :]) @ jnp.swapaxes(self.basis, -1, -2)

    def log_determinant(self, own: Array) -> Array:
        """ln |Σ| of the weights that are not certain."""
        return jnp.sum(jnp.log(_or_one(own)), axis=-1) + jnp.sum(jnp.log1p(-self.shares), axis=-1)


class LowRank(NamedTuple):
    """Covariances of units, from precisions of low rank.

    Attributes:
        own: Variances that single weights would have without the directions: 1/D.
        factor: F, what the directions take off: Σ = diag(own) − F Fᵀ.
    """

    own: Any
    factor: Any

    @property
    def variance(self) -> Array:
        """Variances of single weights; positive wherever `own` is, despite rounding."""
        floor = jnp.finfo(self.own.dtype).eps * self.own
        return jnp.maximum(self.own - jnp.sum(jnp.square(self.factor), axis=-1), floor)

    @property
    def directions(self) -> Array:
        """K: the factor in units of the weights' own deviations."""
        return self.factor / jnp.sqrt(_or_one(self.own))[..., None]

    def spectrum(self) -> Spectrum:
        """Eigenvalues and eigenvectors of KᵀK."""
        shares, basis = decompose_symmetric(_gram(self.directions))
        return Spectrum(jnp.clip(shares, 0, _LARGEST_SHARE), basis)

    def log_determinant(self) -> Array:
        """ln |Σ| of the weights that are not certain, by unit."""
        return self.spectrum().log_determinant(self.own)

    def draw(self, noise: Array) -> Array:
        """Return deviations from the mean: S (I − K T Kᵀ) ξ for standard Normal noise ξ."""
        directions = self.directions
        inside = self.spectrum().root() @ (jnp.swapaxes(directions, -1, -2) @ noise[..., None])
        return jnp.sqrt(self.own) * (noise - (directions @ inside)[..., 0])

    def columns(self) -> Array:
        """V of the precision diag(1/own) + V Vᵀ."""
        shares, basis = self.spectrum()
        turned = self.directions @ (basis / jnp.sqrt(1 - shares)[..., None, :])
        return turned / jnp.sqrt(_or_one(self.own))[..., None]


def from_precision(diagonal: Array, columns: Array, live: Array) -> LowRank:
    """Return the covariances of precisions diag(diagonal) + V Vᵀ of the live weights."""
    own = jnp.where(live, 1 / jnp.where(live, diagonal, 1), 0)
    scaled = jnp.sqrt(own)[..., None] * columns
    values, basis = decompose_symmetric(_gram(scaled))
    values = jnp.maximum(values, 0)
    values = jnp.minimum(values, _LARGEST_SHARE / (1 - _LARGEST_SHARE))
    turned = scaled @ (basis / jnp.sqrt(1 + values)[..., None, :])
    return LowRank(own, jnp.sqrt(own)[..., None] * turned)


class Rest(NamedTuple):
    """What is left of units after weights have been fixed at 0.

    Attributes:
        mean: Means; 0 where a weight is gone.
        shape: Covariances.
        surprise: −ln q_S(0) of the weights that went, by unit.
    """

    mean: Array
    shape: LowRank
    surprise: Array


def condition(mean: Array, shape: LowRank, gone: Array) -> Rest:
    """Fix some weights of units at exactly 0: rows and columns of the precision go.

        m ← m + Σ_R V_R (V_Sᵀ m_S)        Λ ← Λ_RR = D_R + V_R V_Rᵀ        S gone, R the rest

    Args:
        mean: Means, 0 where a weight is certain.
        shape: Covariances.
        gone: Which weights go, all of them uncertain.
    """
    live = shape.own > 0
    precision = 1 / _or_one(shape.own)
    columns = shape.columns()
    left = live & ~gone
    kept = jnp.where(left[..., None], columns, 0)
    rest = from_precision(precision, kept, left)
    pull = jnp.einsum("...ir,...i->...r", jnp.where(gone[..., None], columns, 0), mean)
    # (I + Vᵀ D⁻¹ V) of all weights and of those that stay.
    before, _ = decompose_symmetric(_gram(_scale(columns, shape.own)))
    after, basis = decompose_symmetric(_gram(_scale(kept, shape.own)))
    before, after = 1 + jnp.maximum(before, 0), 1 + jnp.maximum(after, 0)
    solved = jnp.einsum("...rq,...q,...sq,...s->...r", basis, 1 / after, basis, pull)
    shift = shape.own * jnp.einsum("...ir,...r->...i", kept, solved)
    distance = jnp.sum(jnp.where(gone, precision * jnp.square(mean), 0), axis=-1)
    distance = distance + jnp.sum(pull * solved, axis=-1)
    logs = jnp.where(gone, jnp.log(_or_one(shape.own)) + np.log(2 * np.pi), 0)
    change = jnp.sum(jnp.log(after) - jnp.log(before), axis=-1)
    surprise = 0.5 * (jnp.sum(logs, axis=-1) + change + distance)
    return Rest(jnp.where(left, mean + shift, jnp.where(gone, 0, mean)), rest, surprise)


def divergence(
    mean: Array, q: LowRank, centre: Array, p: LowRank, log_determinant: Array | None = None
) -> Array:
    """KL[q ‖ p] over the weights that are uncertain in q, summed over all units.

    Args:
        mean: Means of q.
        q: Its covariances.
        centre: Means of p.
        p: Its covariances. Weights that are certain in q are independent of the rest here.
        log_determinant: Σ ln |Σ_q| over the units, if it is known.
    """
    if log_determinant is None:
        log_determinant = jnp.sum(q.log_determinant())
    live = q.own > 0
    columns = jnp.where(live[..., None], p.columns(), 0)
    precision = jnp.where(live, 1 / _or_one(p.own), 0)
    offset = jnp.where(live, mean - centre, 0)
    trace = jnp.sum(precision * (q.variance + jnp.square(offset)))
    across = jnp.einsum("...ir,...ik->...rk", columns, q.factor)
    trace += jnp.sum(q.own[..., None] * jnp.square(columns)) - jnp.sum(jnp.square(across))
    trace += jnp.sum(jnp.square(jnp.einsum("...ir,...i->...r", columns, offset)))
    own = LowRank(jnp.where(live, p.own, 0), jnp.where(live[..., None], p.factor, 0))
    logs = jnp.sum(own.log_determinant()) - log_determinant
    return 0.5 * (trace - jnp.sum(live) + logs)


def _or_one(own: Array) -> Array:
    return jnp.where(own > 0, own, 1)


def _scale(columns: Array, own: Array) -> Array:
    return jnp.sqrt(own)[..., None] * columns


def _gram(columns: Array) -> Array:
    return jnp.einsum("...ir,...iq->...rq", columns, columns)
