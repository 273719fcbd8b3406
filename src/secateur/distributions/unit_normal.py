"""Normal beliefs about a leaf whose units have covariance within them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions.low_rank import LowRank
from secateur.distributions.normal import Normal
from secateur.registration import register_dataclass

__all__ = ["UnitNormal"]


@partial(
    register_dataclass,
    data_fields=["mean", "variance", "factor"],
    meta_fields=["group", "unit_axes", "is_whole", "lowers"],
)
@dataclass(frozen=True, eq=False)
class UnitNormal(Normal):
    """Normal belief about a leaf in which the weights that one unit sums over are correlated.

        θ = mean + Σ_k factor_k ξ_k        Cov(θ_a, θ_b) = Σ_k factor_ak factor_bk   in one unit

    The ξ are standard Normal; each unit has as many of them as weights. Leaves of one group (a
    matrix and the bias that is added to its product) share the ξ of their units; different units
    are independent. As a `Normal`, it is the marginal belief about each weight, with its own
    `variance`.

    Units with many weights have a precision of low rank instead, and few factors, which lower a
    diagonal (see `low_rank`):

        Cov(θ_a, θ_b) = own_a 1[a = b] − Σ_k factor_ak factor_bk      own = variance + Σ_k factor_k²

    Attributes:
        mean: Means.
        variance: Variance of every weight, the sum of its squared factors.
        factor: Factors, with an axis for the unit's ξ behind those of the leaf. A row of zeros is
            a weight that is certain.
        group: Name that is the same for all leaves that share the ξ of their units.
        unit_axes: Axes of the leaf that count units, in the same order for all leaves of a group.
        is_whole: False if `variance` exceeds what the factors explain; the rest is independent.
        lowers: Whether the factors lower a diagonal instead of making up the covariance.

    Example:
        >>> q = UnitNormal.of(jnp.zeros(2), jnp.array([[1.0, 0.0], [0.6, 0.8]]))
        >>> np.asarray(unit_covariance(q)).round(3).astype(str).tolist()
        [['1.0', '0.6'], ['0.6', '1.0']]
    """

    factor: Any = None
    group: str = ""
    unit_axes: tuple[int, ...] = ()
    is_whole: bool = True
    lowers: bool = False

    @classmethod
    def of(
        cls, mean: Any, factor: Any, *, group: str = "", unit_axes: tuple[int, ...] = ()
    ) -> UnitNormal:
        """Return the belief with these factors."""
        xp = np if isinstance(factor, np.ndarray) else jnp
        return cls(mean, xp.sum(xp.square(factor), axis=-1), factor, group, tuple(unit_axes))

    @classmethod
    def of_low_rank(
        cls, mean: Any, shape: LowRank, *, group: str = "", unit_axes: tuple[int, ...] = ()
    ) -> UnitNormal:
        """Return the belief with a precision of low rank; arrays have the leaf's shape."""
        return cls(mean, shape.variance, shape.factor, group, tuple(unit_axes), lowers=True)

    @property
    def own(self) -> Any:
        """Variances that the factors of a precision of low rank lower."""
        return self.variance + (self.factor * self.factor).sum(axis=-1)

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """Shape of the units."""
        return tuple(np.shape(self.mean)[axis] for axis in self.unit_axes)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the noise ξ that the leaves of this group share."""
        return (*self.unit_shape, np.shape(self.factor)[-1])

    def at_noise(self, noise: Array, own: Array | None = None) -> Array:
        """Return the weights for some noise.

        Args:
            noise: ξ, of shape `noise_shape`.
            own: Noise of every weight alone, where the factors are not the whole variance.
        """
        assert not self.lowers, "what they share is known for whole groups only: `sample_units`"
        order = np.argsort(self.unit_axes)
        moved = jnp.transpose(noise, (*order, len(order)))
        sizes = [n if a in self.unit_axes else 1 for a, n in enumerate(np.shape(self.mean))]
        moved = moved.reshape(*sizes, noise.shape[-1])
        weights = self.mean + jnp.sum(self.factor * moved, axis=-1)
        if self.is_whole or own is None:
            return weights
        rest = jnp.maximum(self.variance - jnp.sum(jnp.square(self.factor), -1), 0)
        return weights + jnp.sqrt(jnp.maximum(rest, jnp.finfo(rest.dtype).tiny)) * own

    def sample(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """Draw weights of this leaf; separate draws of leaves of one group are independent."""
        if shape:
            keys = jax.random.split(key, int(np.prod(shape)))
            return jax.vmap(self.sample)(keys).reshape(*shape, *np.shape(self.mean))
        shared, alone = jax.random.split(key)
        dtype = jnp.result_type(self.mean)
        if self.lowers:
            noise = jax.random.normal(alone, np.shape(self.mean), dtype)
            rows = to_low_rank([self]).draw(to_units(noise, self.unit_axes))
            return self.mean + from_units(rows, np.shape(self.mean), self.unit_axes)
        noise = jax.random.normal(shared, self.noise_shape, dtype)
        own = None
        if not self.is_whole:
            own = jax.random.normal(alone, np.shape(self.mean), dtype)
        return self.at_noise(noise, own)


def unit_covariance(*leaves: UnitNormal) -> Any:
    """Return means' order and covariance of all units of a group, shape (*units, size, size).

    Args:
        leaves: All leaves of the group, or some of them, for their marginal covariance.
    """
    rows = jnp.concatenate([to_units(q.factor, q.unit_axes, extra=1) for q in leaves], axis=-2)
    product = rows @ jnp.swapaxes(rows, -1, -2)
    if not leaves[0].lowers:
        return product
    own = to_low_rank(leaves).own
    return own[..., None] * jnp.eye(own.shape[-1], dtype=own.dtype) - product


def to_low_rank(leaves: Sequence[UnitNormal]) -> LowRank:
    """Return the covariances of the units of a group whose factors lower a diagonal."""
    rows = jnp.concatenate([to_units(q.factor, q.unit_axes, extra=1) for q in leaves], axis=-2)
    return LowRank(jnp.concatenate([to_units(q.own, q.unit_axes) for q in leaves], axis=-1), rows)


def to_units(array: Any, unit_axes: tuple[int, ...], *, extra: int = 0) -> Any:
    """Return an array of a leaf as (*units, weights of a unit, *extra axes)."""
    xp: Any = np if isinstance(array, np.ndarray) else jnp
    rank = np.ndim(array) - extra
    others = [a for a in range(rank) if a not in unit_axes]
    moved = xp.transpose(array, (*unit_axes, *others, *range(rank, rank + extra)))
    shape = np.shape(moved)
    return moved.reshape(*shape[: len(unit_axes)], -1, *shape[rank:])


def from_units(array: Any, shape: tuple[int, ...], unit_axes: tuple[int, ...]) -> Any:
    """Undo `to_units` for a leaf of this shape; axes behind the weights of a unit stay behind."""
    xp: Any = np if isinstance(array, np.ndarray) else jnp
    rank = len(shape)
    others = [a for a in range(rank) if a not in unit_axes]
    order = [*unit_axes, *others]
    extra = np.shape(array)[len(unit_axes) + 1 :]
    whole = array.reshape(*(shape[a] for a in order), *extra)
    back = [order.index(a) for a in range(rank)]
    return xp.transpose(whole, (*back, *range(rank, rank + len(extra))))


def condition_factors(mean: Array, factor: Array, gone: Array) -> tuple[Array, Array, Array]:
    """Fix some weights of units at exactly 0, and update the belief about the others.

        m ← m − Σ_RS Σ_SS⁻¹ m_S        Σ ← Σ_RR − Σ_RS Σ_SS⁻¹ Σ_SR        S removed, R the rest

    The factors are rotated so that the removed weights come first, which avoids squaring them.

    Args:
        mean: Means, shape (units, size).
        factor: Triangular factors, shape (units, size, size); rows of zeros are certain weights.
        gone: Mask of the weights to remove, all of them uncertain, shape (units, size).

    Returns:
        Means, triangular factors, and −ln q_S(0) for every unit.
    """
    certain = ~jnp.any(factor != 0, axis=2)
    # (A column of zeros in the middle would cost the rotation a direction.)
    order = jnp.argsort(jnp.where(gone, 0, jnp.where(certain, 2, 1)), axis=1, stable=True)
    rows = jnp.take_along_axis(factor, order[:, :, None], axis=1)
    upper = jnp.linalg.qr(jnp.swapaxes(rows, 1, 2), mode="r")
    sign = jnp.where(jnp.diagonal(upper, axis1=1, axis2=2) < 0, -1, 1).astype(factor.dtype)
    lower = jnp.swapaxes(upper * sign[:, :, None], 1, 2)
    first = jnp.take_along_axis(gone, order, axis=1)
    both = first[:, :, None] & first[:, None, :]
    of_gone = jnp.where(both, lower, jnp.eye(factor.shape[-1], dtype=factor.dtype)[None])
    means = jnp.take_along_axis(mean, order, axis=1)
    source = jnp.where(first, means, 0)[:, :, None]
    whitened = jax.scipy.linalg.solve_triangular(of_gone, source, lower=True)
    shift = (jnp.where(first[:, None, :], lower, 0) @ whitened)[:, :, 0]
    deviations = jnp.diagonal(of_gone, axis1=1, axis2=2)
    logs = jnp.where(first, jnp.log(deviations) + 0.5 * np.log(2 * np.pi), 0)
    surprise = jnp.sum(logs + 0.5 * jnp.square(whitened[:, :, 0]), axis=1)
    back = jnp.argsort(order, axis=1)
    # Weights that stay keep their order, so that their factors are triangular where they were.
    kept = ~gone & ~certain
    new = jnp.take_along_axis(lower, back[:, :, None], axis=1)
    new = jnp.take_along_axis(new, back[:, None, :], axis=2)
    new = jnp.where(kept[:, :, None] & kept[:, None, :], jnp.tril(new), 0)
    moved = jnp.where(kept, mean - jnp.take_along_axis(shift, back, axis=1), 0)
    return moved, new, surprise
