"""The variables of the optimiser, in a few flat vectors, and the beliefs that they represent."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal, UnitNormal
from secateur.distributions.low_rank import LowRank, condition, divergence
from secateur.distributions.unit_normal import condition_factors

Vectors = tuple[Any, ...]  # JAX arrays, or NumPy arrays before training


class LowRankMixing(NamedTuple):
    """What has the place of the rest of L where a unit's precision is of low rank.

    Attributes:
        array: K, shape (units, size, rank). The standard deviations are S; see `low_rank`.
    """

    array: Any

    def shape_of(self, log_deviation: Array, alive: Array) -> LowRank:
        """Return the covariances; weights that are not alive are certain."""
        units, size, _ = self.array.shape
        live = alive.reshape(units, size)
        deviation = jnp.where(live, jnp.exp(log_deviation.reshape(units, size)), 0)
        return LowRank(jnp.square(deviation), deviation[:, :, None] * self.array)


class Coordinates(NamedTuple):
    """The variables of an optimiser: means, and logarithms of standard deviations.

    Where the weights of units are correlated, θ = mean + Lξ with a triangular L for each unit, the
    standard deviations are the diagonal of L: those of a weight given the ones before it.

    Attributes:
        means: Means, by vector.
        log_deviations: Logarithms of standard deviations, by vector.
        mixing: The rest of L, by vector: shape (units, size, size), a `LowRankMixing`, or None for
            independent weights. Empty where there is no covariance at all.
    """

    means: Vectors
    log_deviations: Vectors
    mixing: Vectors = ()

    @classmethod
    def from_beliefs(cls, flat: tuple[Normal, ...]) -> Coordinates:
        """Return the coordinates of flat beliefs; those of a pruned weight are 0."""
        mixing: Vectors = ()
        if any(isinstance(q, UnitNormal) for q in flat):
            mixing = tuple(_mixing_of(q) if isinstance(q, UnitNormal) else None for q in flat)
        own = [_own_variance(q) if isinstance(q, UnitNormal) else q.variance for q in flat]
        logs = [np.log(np.where(v > 0, v, 1)) for v in map(np.asarray, own)]
        return cls(
            tuple(np.asarray(q.mean) for q in flat),
            tuple((0.5 * s).astype(q.mean.dtype) for s, q in zip(logs, flat, strict=True)),
            mixing,
        )

    def optimised(self) -> Coordinates:
        """Return the variables of the optimiser; the shapes of units take separate steps."""
        if not self.mixing:
            return self
        columns = zip(self.log_deviations, self.mixing, strict=True)
        return Coordinates(self.means, tuple(s if o is None else None for s, o in columns))

    def beliefs(self, alive: Vectors) -> tuple[Normal, ...]:
        """Return the flat beliefs; weights that are not alive are exactly 0 and certain."""
        if not self.mixing:
            return tuple(
                Normal(jnp.where(a, m, 0), jnp.where(a, jnp.exp(2 * s), 0))
                for m, s, a in zip(self.means, self.log_deviations, alive, strict=True)
            )
        return tuple(
            Normal(jnp.where(a, m, 0), jnp.where(a, jnp.exp(2 * s), 0))
            if o is None
            else _flat_units(jnp.where(a, m, 0), make_shape(s, o, a))
            for m, s, o, a in zip(*self, alive, strict=True)
        )


def make_factor(log_deviation: Array, mixing: Array, alive: Array) -> Array:
    """Return L of every unit; rows and columns of weights that are not alive are 0."""
    units, size, _ = mixing.shape
    live = alive.reshape(units, size)
    diagonal = jnp.where(live, jnp.exp(log_deviation.reshape(units, size)), 0)
    both = live[:, :, None] & live[:, None, :] & np.tri(size, k=-1, dtype=bool)[None]
    eye = np.eye(size, dtype=mixing.dtype)[None]
    return jnp.where(both, mixing, 0) + diagonal[:, :, None] * eye


def make_shape(log_deviation: Array, mixing: Any, alive: Array) -> Any:
    """Return L of every unit, or the covariances of low rank."""
    if isinstance(mixing, LowRankMixing):
        return mixing.shape_of(log_deviation, alive)
    return make_factor(log_deviation, mixing, alive)


def _flat_units(mean: Array, factor: Any) -> UnitNormal:
    """Return the flat belief about all units of a vector."""
    if isinstance(factor, LowRank):
        return flatten_low_rank(mean, factor)
    return UnitNormal.of(mean, factor.reshape(mean.shape[0], factor.shape[-1]))


def flatten_low_rank(mean: Any, shape: LowRank) -> UnitNormal:
    """Return a flat belief; its factors keep the axes of weights and units, in this order.

    (That of a matrix whose columns are units, so that no step of training has to transpose them.)
    """
    return UnitNormal(mean, shape.variance.reshape(-1), shape.factor.swapaxes(0, 1), lowers=True)


def flat_shape(q: UnitNormal) -> LowRank:
    """Return the covariances of such a flat belief."""
    factor = q.factor.swapaxes(0, 1)
    variance = q.variance.reshape(factor.shape[:2])
    return LowRank(variance + (factor * factor).sum(axis=2), factor)


def _own_variance(q: UnitNormal) -> np.ndarray:
    if q.lowers:
        return np.asarray(flat_shape(q).own).reshape(-1)
    size = np.shape(q.factor)[-1]
    factor = np.asarray(q.factor).reshape(-1, size, size)
    return np.square(np.diagonal(factor, axis1=1, axis2=2)).reshape(-1)


def _mixing_of(q: UnitNormal) -> Any:
    if q.lowers:
        shape = LowRank(*map(np.asarray, flat_shape(q)))
        deviation = np.sqrt(np.where(shape.own > 0, shape.own, 1))
        return LowRankMixing(shape.factor / deviation[:, :, None])
    size = np.shape(q.factor)[-1]
    return np.tril(np.asarray(q.factor).reshape(-1, size, size), -1)


def make_triangular(factor: np.ndarray) -> np.ndarray:
    """Return square, triangular factors of the same covariances; rows of zeros stay.

    Args:
        factor: Factors of shape (units, size, sources).
    """
    units, size, sources = factor.shape
    certain = ~factor.any(axis=2)
    if size == sources and not np.triu(factor, 1).any():
        diagonal = np.diagonal(factor, axis1=1, axis2=2)
        if np.all((diagonal > 0) | certain):
            return factor
    order = np.argsort(certain, axis=1, kind="stable")
    rows = np.zeros((units, size, max(size, sources)))
    rows[:, :, :sources] = np.take_along_axis(factor, order[:, :, None], axis=1)
    upper = np.linalg.qr(np.swapaxes(rows, 1, 2), mode="r")
    sign = np.where(np.diagonal(upper, axis1=1, axis2=2) < 0, -1, 1)
    lower = np.swapaxes(upper * sign[:, :, None], 1, 2)
    back = np.argsort(order, axis=1)
    lower = np.take_along_axis(lower, back[:, :, None], axis=1)
    lower = np.tril(np.take_along_axis(lower, back[:, None, :], axis=2))
    lower[certain] = 0
    return lower.astype(factor.dtype)


def divergence_of_units(
    q: Normal,
    mean: Array,
    log_deviation: Array,
    alive: Array,
    prior: UnitNormal,
    log_determinant: Array | None = None,
) -> Array:
    """KL[q ‖ p] over the live weights of a vector of units, where the prior has covariance too.

    In the prior, weights that are not alive are independent of the rest; see `condition_prior`.
    """
    assert isinstance(q, UnitNormal)
    if q.lowers:
        own, before = flat_shape(q), flat_shape(prior)
        rows = own.own.shape
        return divergence(
            mean.reshape(rows), own, prior.mean.reshape(rows), before, log_determinant
        )
    size = prior.factor.shape[-1]
    root = jnp.reshape(prior.factor, (-1, size, size))
    offset = jnp.where(alive, mean - prior.mean, 0).reshape(-1, size, 1)
    both = jnp.concatenate([q.factor.reshape(-1, size, size), offset], axis=2)
    whitened = jax.scipy.linalg.solve_triangular(root, both, lower=True)
    own = jnp.diagonal(root, axis1=1, axis2=2).reshape(-1)
    logarithms = jnp.where(alive, jnp.log(own) - log_deviation - 0.5, 0)
    return 0.5 * jnp.sum(jnp.square(whitened)) + jnp.sum(logarithms)


def condition_prior(prior: UnitNormal, gone: Array) -> tuple[UnitNormal, Array]:
    """Return the prior of the remaining weights, and −ln p_S(0) of the removed ones, by unit.

    Removed weights keep their own mean and variance, independent of all others, in case they grow
    back.
    """
    if prior.lowers:
        return _condition_low_rank(prior, gone)
    size = prior.factor.shape[-1]
    mean, root = prior.mean.reshape(-1, size), prior.factor.reshape(-1, size, size)
    out = gone.reshape(-1, size)
    moved, rest, surprise = condition_factors(mean, root, out)
    own = jnp.where(out, jnp.sqrt(jnp.sum(jnp.square(root), axis=2)), 0)
    factor = rest + own[:, :, None] * jnp.eye(size, dtype=rest.dtype)[None]
    means = jnp.where(out, mean, moved).reshape(-1)
    return UnitNormal.of(means, factor.reshape(-1, size)), surprise


def _condition_low_rank(prior: UnitNormal, gone: Array) -> tuple[UnitNormal, Array]:
    shape = flat_shape(prior)
    out = gone.reshape(shape.own.shape)
    mean = prior.mean.reshape(shape.own.shape)
    rest = condition(mean, shape, out)
    own = jnp.where(out, shape.variance, rest.shape.own)
    means = jnp.where(out, mean, rest.mean).reshape(-1)
    return flatten_low_rank(means, LowRank(own, rest.shape.factor)), rest.surprise
