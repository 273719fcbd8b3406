"""Normals whose precision is a diagonal and a few directions, for units with many weights.

    Λ = D + V Vᵀ        Σ = Λ⁻¹ = diag(own) − F Fᵀ = S (I − K Kᵀ) S        own = 1/D = S²,  F = S K

Data determine few directions of the precision. All that is needed costs as many operations as there
are numbers in V, times its rank. Arrays have the shapes (units, size) and (units, size, rank); a
weight that is certain has `own` 0 and a row of zeros in F.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# Largest share of the variance of a direction that the data may take away, for float32.
_LARGEST_SHARE = 1 - 1e-6


class LowRank(NamedTuple):
    """Covariances of units, from precisions of low rank.

    Attributes:
        own: Variances that single weights would have without the directions: 1/D.
        factor: F, what the directions take off: Σ = diag(own) − F Fᵀ.
    """

    own: Array
    factor: Array

    @property
    def variance(self) -> Array:
        """Variances of single weights; positive wherever `own` is, despite rounding."""
        floor = jnp.finfo(self.own.dtype).eps * self.own
        return jnp.maximum(self.own - jnp.sum(jnp.square(self.factor), axis=-1), floor)

    @property
    def directions(self) -> Array:
        """K: the factor in units of the weights' own deviations."""
        return self.factor / jnp.sqrt(_or_one(self.own))[..., None]

    def log_determinant(self) -> Array:
        """ln |Σ| of the weights that are not certain, by unit."""
        shares = _find_shares(self.directions)[0]
        logs = jnp.log(_or_one(self.own))
        return jnp.sum(logs, axis=-1) + jnp.sum(jnp.log1p(-shares), axis=-1)

    def root(self) -> Array:
        """T of the symmetric root (I − K Kᵀ)^½ = I − K T Kᵀ, by unit."""
        shares, basis = _find_shares(self.directions)
        return _compose(basis, 1 / (1 + jnp.sqrt(1 - shares)))

    def draw(self, noise: Array) -> Array:
        """Return deviations from the mean: S (I − K T Kᵀ) ξ for standard Normal noise ξ."""
        directions = self.directions
        inside = self.root() @ (jnp.swapaxes(directions, -1, -2) @ noise[..., None])
        return jnp.sqrt(self.own) * (noise - (directions @ inside)[..., 0])

    def columns(self) -> Array:
        """V of the precision diag(1/own) + V Vᵀ."""
        shares, basis = _find_shares(self.directions)
        turned = self.directions @ (basis / jnp.sqrt(1 - shares)[..., None, :])
        return turned / jnp.sqrt(_or_one(self.own))[..., None]


def from_precision(diagonal: Array, columns: Array, live: Array) -> LowRank:
    """Return the covariances of precisions diag(diagonal) + V Vᵀ of the live weights."""
    own = jnp.where(live, 1 / jnp.where(live, diagonal, 1), 0)
    scaled = jnp.sqrt(own)[..., None] * columns
    values, basis = jnp.linalg.eigh(_gram(scaled))
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
    inner = jnp.eye(columns.shape[-1], dtype=columns.dtype)
    before, after = (inner + _gram(_scale(c, shape.own)) for c in (columns, kept))
    lower = jnp.linalg.cholesky(after)
    solved = jax.scipy.linalg.cho_solve((lower, True), pull[..., None])[..., 0]
    shift = shape.own * jnp.einsum("...ir,...r->...i", kept, solved)
    distance = jnp.sum(jnp.where(gone, precision * jnp.square(mean), 0), axis=-1)
    distance = distance + jnp.sum(pull * solved, axis=-1)
    logs = jnp.where(gone, jnp.log(_or_one(shape.own)) + np.log(2 * np.pi), 0)
    change = jnp.linalg.slogdet(after)[1] - jnp.linalg.slogdet(before)[1]
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


def _find_shares(directions: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of KᵀK: which share of a direction's variance is gone."""
    shares, basis = jnp.linalg.eigh(_gram(directions))
    return jnp.clip(shares, 0, _LARGEST_SHARE), basis


def _compose(basis: Array, values: Array) -> Array:
    return (basis * values[..., None, :]) @ jnp.swapaxes(basis, -1, -2)
