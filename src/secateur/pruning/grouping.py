"""Whole units scored and cut: a unit goes where the sum over its weights is ≤ 0."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.fitting.program import State
from secateur.fitting.weights import Layout, Place, Vectors
from secateur.pruning.process import Proposer
from secateur.pruning.scoring import Change, each_run, limits, weight_scores, without
from secateur.structure import Units


class Grouping:
    """The units of the weights in a layout; hashable, so that compiled programs can be found again.

    Args:
        units: of the model's function.
        layout: of its uncertain leaves.
    """

    def __init__(self, units: Units, layout: Layout) -> None:
        axes = layout.treedef.flatten_up_to(units.axes)
        pairs = zip(layout.leaves, axes, strict=True)
        self.axes = [a for leaf, a in pairs if isinstance(leaf, Place)]
        self.layout, self.count = layout, len(units)
        numbers = tuple(tuple(tuple(np.asarray(a).tolist()) for a in leaf) for leaf in self.axes)
        self._content = (layout, self.count, numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grouping) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def sums(self, vectors: Vectors) -> Array:
        """Sum over each unit; a weight that two axes of a leaf give to one unit counts once."""
        total = jnp.zeros(self.count, self.layout.dtype)
        for place, axes in zip(self.layout.places, self.axes, strict=True):
            leaf = place.of(vectors).astype(self.layout.dtype)
            telling = [a for a, labels in enumerate(axes) if np.any(labels >= 0)]
            for a in telling:
                others = tuple(i for i in range(leaf.ndim) if i != a)
                total = _added(total, axes[a], jnp.sum(leaf, axis=others))
            for a, b in combinations(telling, 2):
                others = tuple(i for i in range(leaf.ndim) if i not in (a, b))
                same = axes[a][:, None] == axes[b][None, :]
                if np.any(same & (axes[a] >= 0)[:, None]):
                    twice = jnp.sum(jnp.where(same, jnp.sum(leaf, axis=others), 0), axis=1)
                    total = _added(total, axes[a], -twice)
        return total

    def members(self, chosen: Array) -> Vectors:
        """Which weights belong to a chosen unit."""
        padded = jnp.append(chosen, False)
        masks = []
        for place, axes in zip(self.layout.places, self.axes, strict=True):
            mask = jnp.zeros(place.shape, bool)
            for a, labels in enumerate(axes):
                column = [1] * len(place.shape)
                column[a] = -1
                mask = mask | padded[labels].reshape(column)
            masks.append(mask)
        return tuple(v > 0.5 for v in self.layout.vectors(masks))


def _added(total: Array, labels: np.ndarray, values: Array) -> Array:
    return total.at[np.where(labels >= 0, labels, len(total))].add(values, mode="drop")


@partial(jax.jit, static_argnames=("grouping", "many"))
def unit_scores(state: State, delta_f: Vectors, *, grouping: Grouping, many: bool) -> Array:
    """Sum delta_f over the live weights of each unit; +inf where none is alive."""

    def one(alive: Vectors, delta_f: Vectors) -> Array:
        live = tuple(jnp.where(a, d, 0) for a, d in zip(alive, delta_f, strict=True))
        sums = grouping.sums(live)
        counts = grouping.sums(tuple(a.astype(d.dtype) for a, d in zip(alive, live, strict=True)))
        return jnp.where(counts > 0.5, sums, jnp.inf)

    return each_run(one, many)(state.alive, delta_f)


@partial(jax.jit, static_argnames=("grouping", "many"))
def _cut_units(
    state: State, scores: Array, delta_f: Vectors, limit: Array, *, grouping: Grouping, many: bool
) -> Change:
    def one(state: State, scores: Array, delta_f: Vectors, limit: Array) -> Change:
        members = grouping.members(scores <= limit)
        gone = tuple(a & m for a, m in zip(state.alive, members, strict=True))
        return without(state, gone, delta_f)

    return each_run(one, many)(state, scores, delta_f, limit)


def worthless_units(grouping: Grouping, many: bool, prior: Any = None) -> Proposer:
    """Propose all units whose weights have a sum of delta_f ≤ 0, or the lowest of them."""

    def propose(state: State, share: np.ndarray) -> Change:
        delta_f = weight_scores(state, "bmr", many=many, prior=prior)
        scores = unit_scores(state, delta_f, grouping=grouping, many=many)
        rows: Any = np.atleast_2d(np.asarray(scores))
        counts = np.ceil(share * np.sum(rows <= 0, axis=1)).astype(int)
        limit = np.minimum(limits(rows, counts), 0.0)
        given = jnp.asarray(limit if many else limit[0], scores.dtype)
        return _cut_units(state, scores, delta_f, given, grouping=grouping, many=many)

    return propose
