"""Beliefs whose units have a covariance: operations on all leaves of a group together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal, UnitNormal
from secateur.distributions.low_rank import LowRank, condition, divergence
from secateur.distributions.special import cholesky_of_live
from secateur.distributions.unit_normal import condition_factors, from_units, to_units

__all__ = ["condition_units", "find_groups", "join_leaves", "sample_units", "shared_information"]


def find_groups(leaves: list[Any]) -> list[list[int]]:
    """Return the numbers of the leaves that share units, for each group of them.

    Example:
        >>> from secateur.distributions import Normal
        >>> matrix = UnitNormal(jnp.zeros(2), jnp.ones(2), jnp.eye(3)[:2], group="layer")
        >>> bias = UnitNormal(jnp.zeros(()), jnp.ones(()), jnp.eye(3)[2], group="layer")
        >>> find_groups([Normal(0.0, 1.0), matrix, bias])
        [[1, 2]]
    """
    groups: dict[str, list[int]] = {}
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, UnitNormal):
            groups.setdefault(leaf.group, []).append(number)
    return list(groups.values())


def join_leaves(leaves: list[UnitNormal]) -> tuple[Any, Any]:
    """Return means (units, size) and factors (units, size, sources) of the leaves of a group."""
    size = np.shape(leaves[0].factor)[-1]
    count = int(np.prod(leaves[0].unit_shape))
    xp: Any = np if all(isinstance(q.factor, np.ndarray) for q in leaves) else jnp
    means = [to_units(q.mean, q.unit_axes).reshape(count, -1) for q in leaves]
    rows = [to_units(q.factor, q.unit_axes, extra=1).reshape(count, -1, size) for q in leaves]
    return xp.concatenate(means, axis=1), xp.concatenate(rows, axis=1)


def join_low_rank(leaves: list[UnitNormal]) -> tuple[Any, LowRank]:
    """Return means (units, size) and covariances of leaves whose factors lower a diagonal."""
    mean, factor = join_leaves(leaves)
    count = int(np.prod(leaves[0].unit_shape))
    own = [to_units(q.own, q.unit_axes).reshape(count, -1) for q in leaves]
    xp: Any = np if isinstance(factor, np.ndarray) else jnp
    return mean, LowRank(xp.concatenate(own, axis=1), factor)


def split_leaves(leaves: list[UnitNormal], array: Any) -> list[Any]:
    """Undo `join_leaves` for one array, (units, size, …)."""
    pieces, start = [], 0
    for q in leaves:
        shape = np.shape(q.mean)
        width = int(np.prod(shape)) // int(np.prod(q.unit_shape))
        own = array[:, start : start + width]
        extra = own.shape[2:]
        pieces.append(from_units(own.reshape(*q.unit_shape, width, *extra), shape, q.unit_axes))
        start += width
    return pieces


def shared_information(leaves: list[Any], priors: list[Any]) -> Array:
    """Return the excess of KL[q ‖ p] over the sum of single weights' divergences, in nats.

        Σ_units ½ (Σ_i ln Σ_ii − ln |Σ|)        and, where the prior has covariance, its own part

    Args:
        leaves: All leaves of some beliefs.
        priors: Their priors.
    """
    total = jnp.zeros((), jnp.float32)
    for members in find_groups(leaves):
        if leaves[members[0]].lowers:
            total = total + _shared_of_low_rank(
                [leaves[i] for i in members], [priors[i] for i in members]
            )
            continue
        mean, factor = join_leaves([leaves[i] for i in members])
        root, certain = _root_of_live(factor)
        variance = jnp.where(certain, 1, jnp.sum(jnp.square(factor), axis=2))
        diagonal = jnp.diagonal(root, axis1=1, axis2=2)
        total = total + jnp.sum(0.5 * jnp.log(variance) - jnp.log(diagonal))
        if not isinstance(priors[members[0]], UnitNormal):
            continue
        centre, rows = join_leaves([priors[i] for i in members])
        rows = jnp.where(certain[:, :, None], 0, rows)
        prior_root, _ = _root_of_live(rows)
        offset = jnp.where(certain, 0, mean - centre)[:, :, None]
        both = jnp.concatenate([factor, offset], axis=2)
        whitened = jax.scipy.linalg.solve_triangular(prior_root, both, lower=True)
        prior_variance = jnp.where(certain, 1, jnp.sum(jnp.square(rows), axis=2))
        alone = jnp.sum(jnp.square(both), axis=2) / prior_variance
        own = jnp.log(jnp.diagonal(prior_root, axis1=1, axis2=2)) - 0.5 * jnp.log(prior_variance)
        total = total + 0.5 * (jnp.sum(jnp.square(whitened)) - jnp.sum(alone)) + jnp.sum(own)
    return total


def _shared_of_low_rank(leaves: list[UnitNormal], priors: list[Any]) -> Array:
    mean, shape = join_low_rank(leaves)
    live = shape.own > 0
    variance = jnp.where(live, shape.variance, 1)
    if not isinstance(priors[0], UnitNormal):
        return 0.5 * (jnp.sum(jnp.log(variance)) - jnp.sum(shape.log_determinant()))
    centre, own = join_low_rank(priors)
    alone = Normal(mean, variance).kl(Normal(centre, jnp.where(live, own.variance, 1)))
    return divergence(mean, shape, centre, own) - jnp.sum(jnp.where(live, alone, 0))


def _root_of_live(factor: Array) -> tuple[Array, Array]:
    """Return Cholesky factors of the units (identity for certain weights), and a mask of those."""
    root, certain = cholesky_of_live(factor @ jnp.swapaxes(factor, 1, 2))
    eye = jnp.eye(factor.shape[1], dtype=root.dtype)[None]
    return jnp.where(certain[:, :, None] | certain[:, None, :], eye, root), certain


def condition_units(leaves: list[Any], keep: list[Any], cut: list[Any]) -> list[Any]:
    """Return cut leaves whose units have their remaining weights conditioned on the removed ones.

    Args:
        leaves: Leaves before.
        keep: Masks of the weights that stay, or None.
        cut: Leaves with exact zeros where weights were removed.
    """
    new = list(cut)
    for members in find_groups(leaves):
        own = [leaves[i] for i in members]
        if own[0].lowers:
            mean, shape = join_low_rank(own)
            factor = shape.factor
        else:
            mean, factor = join_leaves(own)
        masks = [True if keep[i] is None else keep[i] for i in members]
        wide = [jnp.broadcast_to(m, q.mean.shape) for m, q in zip(masks, own, strict=True)]
        rows = [to_units(m, q.unit_axes) for m, q in zip(wide, own, strict=True)]
        kept = jnp.concatenate([m.reshape(mean.shape[0], -1) for m in rows], axis=1)
        if own[0].lowers:
            live = shape.own > 0
            left = condition(jnp.where(live, mean, 0), shape, live & ~kept)
            means = split_leaves(own, jnp.where(kept & ~live, mean, left.mean))
            owns, factors = split_leaves(own, left.shape.own), split_leaves(own, left.shape.factor)
            for i, q, m, o, f in zip(members, own, means, owns, factors, strict=True):
                names = {"group": q.group, "unit_axes": q.unit_axes}
                new[i] = UnitNormal.of_low_rank(m, LowRank(o, f), **names)
            continue
        live = jnp.any(factor != 0, axis=2)
        moved, rest, _ = condition_factors(jnp.where(live, mean, 0), factor, live & ~kept)
        means = split_leaves(own, jnp.where(kept & ~live, mean, moved))  # what is certain stays
        factors = split_leaves(own, rest)
        for i, q, m, f in zip(members, own, means, factors, strict=True):
            new[i] = UnitNormal.of(m, f, group=q.group, unit_axes=q.unit_axes)
    return new


def sample_units(keys: Iterator[Array], leaves: list[Any]) -> list[Any]:
    """Return the leaves, with draws in place of those whose units have a covariance."""
    new = list(leaves)
    for members in find_groups(leaves):
        first = leaves[members[0]]
        if first.lowers:
            own = [leaves[i] for i in members]
            mean, shape = join_low_rank(own)
            noise = jax.random.normal(next(keys), mean.shape, mean.dtype)
            for i, drawn in zip(members, split_leaves(own, mean + shape.draw(noise)), strict=True):
                new[i] = drawn
            continue
        noise = jax.random.normal(next(keys), first.noise_shape, jnp.result_type(first.mean))
        for i in members:
            new[i] = leaves[i].at_noise(noise)
    return new
