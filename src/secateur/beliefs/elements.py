"""Single weights within beliefs: drawn, counted, cut, held at zero."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs.trees import PyTree, aligned, beliefs_in, flatten, is_belief, map_beliefs
from secateur.distributions import Normal


def sample(key: Array, beliefs: PyTree) -> PyTree:
    """Draw parameters from beliefs, every element on its own.

        θ = mean + √variance · noise

    Differentiable in both; where the variance is 0, θ is the mean and the variance has gradient 0.

    Args:
        key: a JAX random key.
        beliefs: see `believe`.

    Returns:
        Parameters: the beliefs with an array in the place of each Normal.

    Example:
        >>> sample(jax.random.key(0), {"w": Normal(jnp.ones(2), jnp.zeros(2))})["w"].tolist()
        [1.0, 1.0]
    """
    leaves, _, treedef = flatten(beliefs)
    keys = iter(jax.random.split(key, max(1, sum(map(is_belief, leaves)))))
    return treedef.unflatten(
        [leaf.sample(next(keys)) if is_belief(leaf) else leaf for leaf in leaves]
    )


def mean(beliefs: PyTree) -> PyTree:
    """Return the parameters at the mean of the beliefs.

    Example:
        >>> mean({"w": Normal(2.0, 1.0), "steps": 7})
        {'steps': 7, 'w': 2.0}
    """
    return map_beliefs(lambda q: q.mean, beliefs)


def live(beliefs: PyTree) -> PyTree:
    """Which elements of the uncertain leaves are uncertain, i.e. not pruned; None in other places.

        live = (variance > 0)

    Example:
        >>> live([Normal(jnp.zeros(2), jnp.array([1.0, 0.0]))])[0].tolist()
        [True, False]
    """
    return map_beliefs(lambda q: q.variance > 0, beliefs, otherwise=lambda leaf: None)


def cut(beliefs: PyTree, keep: PyTree) -> PyTree:
    """Prune every element that is not kept: its mean and its variance become exactly 0.

    Args:
        beliefs: see `believe`.
        keep: a pytree with the structure of `beliefs` and in each uncertain leaf's place booleans
            that broadcast to its shape, or None to keep it all. True keeps.

    Returns:
        The beliefs, with their structure and shapes unchanged.

    Example:
        >>> q = Normal(jnp.array([2.0, 0.1]), jnp.ones(2))
        >>> cut({"w": q}, {"w": jnp.array([True, False])})["w"].mean.tolist()
        [2.0, 0.0]
    """
    leaves, paths, treedef = flatten(beliefs)
    masks = aligned(keep, treedef, "keep")
    new = [
        leaf if mask is None else _cut_leaf(leaf, mask, path)
        for leaf, mask, path in zip(leaves, masks, paths, strict=True)
    ]
    return treedef.unflatten(new)


class Count(NamedTuple):
    """How many weights are live, of how many that were ever uncertain."""

    live: int
    total: int


def count(beliefs: PyTree) -> Count:
    """Count live weights and all weights of the uncertain leaves; not under `jit`.

    Example:
        >>> count([Normal(jnp.zeros(3), jnp.array([1.0, 0.0, 2.0])), jnp.zeros(9)])
        Count(live=2, total=3)
    """
    uncertain = list(beliefs_in(beliefs))
    return Count(
        live=sum(_positive(q.variance) for q in uncertain),
        total=sum(jnp.size(q.mean) for q in uncertain),
    )


def _positive(values: Any) -> int:
    """How many are; by NumPy, which has nothing to compile, where it can see them all."""
    if isinstance(values, jax.Array) and not values.is_fully_addressable:
        return int(jnp.count_nonzero(values > 0))
    return int(np.count_nonzero(np.asarray(values) > 0))


def hold_pruned(beliefs: PyTree) -> PyTree:
    """Return the same beliefs, but let no gradient reach an element whose variance is 0.

    A model's output does depend on the mean of a pruned weight; an optimiser that followed that
    gradient would move it away from 0, unseen by the complexity.

    Example:
        >>> q = Normal(jnp.array([2.0, 0.0]), jnp.array([1.0, 0.0]))
        >>> jax.grad(lambda q: hold_pruned(q).mean.sum())(q).mean.tolist()
        [1.0, 0.0]
    """

    def hold(q: Normal) -> Normal:
        # XLA folds select(p, x, x) to x: only the backward pass does any work.
        alive = q.variance > 0
        return Normal(
            jnp.where(alive, q.mean, jax.lax.stop_gradient(q.mean)),
            jnp.where(alive, q.variance, jax.lax.stop_gradient(q.variance)),
        )

    return map_beliefs(hold, beliefs)


def _cut_leaf(leaf: Any, mask: Any, path: str) -> Normal:
    if not is_belief(leaf):
        raise ValueError(
            f"`keep` has a mask for {path or 'the root'}, which is certain. Only uncertain leaves "
            "can be cut; put None in its place."
        )
    if jnp.result_type(mask) != jnp.bool_:
        raise ValueError(
            f"`keep` for {path or 'the root'} has dtype {jnp.result_type(mask)}. Masks are "
            "booleans, True where a weight is kept: delta_f > 0, say."
        )
    mask = jnp.broadcast_to(jnp.asarray(mask), jnp.shape(leaf.mean))
    return Normal(jnp.where(mask, leaf.mean, 0), jnp.where(mask, leaf.variance, 0))
