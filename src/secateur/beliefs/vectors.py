"""Beliefs as two flat vectors, in which a pruned weight has no entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs.trees import PyTree, flatten, is_belief
from secateur.distributions import Normal


def ravel(beliefs: PyTree) -> tuple[Array, Array, Callable[[Array, Array], PyTree]]:
    """Gather the live weights, and only them, in one vector of means and one of variances.

    Which weights are live decides the vectors' length, so this is not for use under `jit`; the
    function it returns is.

    Args:
        beliefs: see `believe`.

    Returns:
        means, variances, and `unravel(means, variances)`, which puts such vectors back into beliefs
        whose certain leaves and elements are what they were, pruned weights exactly 0.

    Example:
        >>> q = Normal(jnp.array([2.0, 0.0, 3.0]), jnp.array([0.5, 0.0, 0.7]))
        >>> means, variances, unravel = ravel({"w": q})
        >>> means.tolist()
        [2.0, 3.0]
        >>> unravel(2 * means, variances)["w"].mean.tolist()
        [4.0, 0.0, 6.0]
    """
    leaves, _, treedef = flatten(beliefs)
    slots = [_Slot.of(leaf) if is_belief(leaf) else None for leaf in leaves]
    uncertain = [(q, s) for q, s in zip(leaves, slots, strict=True) if s is not None]
    dtype = jnp.result_type(*(q.mean for q, _ in uncertain)) if uncertain else float
    means = [jnp.ravel(q.mean)[s.indices].astype(dtype) for q, s in uncertain]
    variances = [jnp.ravel(q.variance)[s.indices].astype(dtype) for q, s in uncertain]
    length = sum(s.indices.size for _, s in uncertain)

    def unravel(means: Array, variances: Array) -> PyTree:
        if jnp.shape(means) != (length,) or jnp.shape(variances) != (length,):
            raise ValueError(
                f"unravel wants two vectors of length {length}, one entry per live weight; got "
                f"shapes {jnp.shape(means)} and {jnp.shape(variances)}. After pruning, call "
                "`ravel` again."
            )
        new, start = [], 0
        for leaf, slot in zip(leaves, slots, strict=True):
            if slot is None:
                new.append(leaf)
                continue
            stop = start + slot.indices.size
            new.append(
                Normal(
                    slot.put_back(means[start:stop], slot.certain),
                    slot.put_back(variances[start:stop], None),
                )
            )
            start = stop
        return treedef.unflatten(new)

    if not uncertain:
        return jnp.zeros(0), jnp.zeros(0), unravel
    return jnp.concatenate(means), jnp.concatenate(variances), unravel


class _Slot(NamedTuple):
    """Where the live weights of one leaf are, and what the leaf holds elsewhere."""

    indices: np.ndarray  # of the live elements in the ravelled leaf
    shape: tuple[int, ...]
    dtype: Any
    certain: Array | None  # ravelled means of elements that are certain but not 0, else None

    @classmethod
    def of(cls, q: Normal) -> _Slot:
        alive = np.ravel(np.asarray(q.variance) > 0)
        means = np.ravel(np.asarray(q.mean))
        certain = np.where(alive, 0, means) if np.any(means[~alive]) else None
        return cls(
            np.flatnonzero(alive),
            np.shape(q.mean),
            jnp.result_type(q.mean),
            None if certain is None else jnp.asarray(certain),
        )

    def put_back(self, values: Array, elsewhere: Array | None) -> Array:
        size = math.prod(self.shape)
        values = values.astype(self.dtype)
        if self.indices.size < size:
            base = jnp.zeros(size, self.dtype) if elsewhere is None else elsewhere
            values = base.at[self.indices].set(values, unique_indices=True, indices_are_sorted=True)
        return jnp.reshape(values, self.shape)
