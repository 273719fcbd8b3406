"""Whole units scored and cut: a unit is removed where the sum over its weights is ≤ 0."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.pruning.conditioning import score_joint
from secateur.pruning.moves import (
    Change,
    Move,
    expect_savings,
    find_excess,
    find_limits,
    remove_weights,
    score_weights,
)
from secateur.structure import Units
from secateur.training.coordinates import Vectors
from secateur.training.layout import Layout, Place
from secateur.training.program import ProgramSpec, TrainingState, map_runs


class Grouping:
    """The units of the weights in a layout; hashable, so that compiled programs are reused.

    Args:
        units: Units of the model's function.
        layout: Layout of its uncertain leaves.
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

    def sum_units(self, vectors: Vectors) -> Array:
        """Sum over each unit; a weight that belongs to a unit by two axes counts once."""
        total = jnp.zeros(self.count, self.layout.dtype)
        for place, axes in zip(self.layout.places, self.axes, strict=True):
            leaf = place.take(vectors).astype(self.layout.dtype)
            grouped = [a for a, labels in enumerate(axes) if np.any(labels >= 0)]
            for a in grouped:
                others = tuple(i for i in range(leaf.ndim) if i != a)
                total = _add(total, axes[a], jnp.sum(leaf, axis=others))
            for a, b in combinations(grouped, 2):
                others = tuple(i for i in range(leaf.ndim) if i not in (a, b))
                same = axes[a][:, None] == axes[b][None, :]
                if np.any(same & (axes[a] >= 0)[:, None]):
                    twice = jnp.sum(jnp.where(same, jnp.sum(leaf, axis=others), 0), axis=1)
                    total = _add(total, axes[a], -twice)
        return total

    def mark_members(self, chosen: Array) -> Vectors:
        """Return which weights belong to a chosen unit."""
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


def _add(total: Array, labels: np.ndarray, values: Array) -> Array:
    return total.at[np.where(labels >= 0, labels, len(total))].add(values, mode="drop")


@partial(jax.jit, static_argnames=("grouping",))
def score_units(
    state: TrainingState, delta_f: Vectors, *, grouping: Grouping, prior: Any = None
) -> Array:
    """Score each unit for removal as a whole; +inf where none of its weights is alive.

    The score is the sum of delta_f over its live weights; of those that have a covariance, it is
    the joint ln p(0) − ln q(0).
    """

    def score(state: TrainingState, delta_f: Vectors) -> Array:
        mixing = state.weights.mixing or (None,) * len(delta_f)
        live = tuple(
            jnp.where(a, d, 0) if o is None else jnp.zeros_like(d)
            for a, d, o in zip(state.alive, delta_f, mixing, strict=True)
        )
        sums = grouping.sum_units(live)
        if state.weights.mixing:
            priors = state.prior if prior is None else prior

            def score_one(number: Array) -> Array:
                members = grouping.mark_members(jnp.arange(grouping.count) == number)
                return score_joint(state, members, priors)

            sums = sums + jax.lax.map(score_one, jnp.arange(grouping.count))
        return jnp.where(_count_units(grouping, state.alive) > 0.5, sums, jnp.inf)

    return map_runs(score, state, delta_f)


@partial(jax.jit, static_argnames=("grouping",))
def count_units(state: TrainingState, *, grouping: Grouping) -> Array:
    """Return the number of live weights of each unit; +inf where there are none."""

    def count(alive: Vectors) -> Array:
        counts = _count_units(grouping, alive)
        return jnp.where(counts > 0.5, counts, jnp.inf)

    return map_runs(count, state.alive)


def _count_units(grouping: Grouping, alive: Vectors) -> Array:
    return grouping.sum_units(tuple(a.astype(grouping.layout.dtype) for a in alive))


@partial(jax.jit, static_argnames=("grouping",))
def _cut_units(
    state: TrainingState, scores: Array, delta_f: Vectors, limits: Array, *, grouping: Grouping,
    prior: Any = None,
) -> Change:  # fmt: skip
    def cut(state: TrainingState, scores: Array, delta_f: Vectors, limit: Array) -> Change:
        members = grouping.mark_members(scores <= limit)
        gone = tuple(a & m for a, m in zip(state.alive, members, strict=True))
        return remove_weights(state, gone, delta_f, prior=prior)

    return map_runs(cut, state, scores, delta_f, limits)


def make_unit_cut(spec: ProgramSpec, grouping: Grouping, prior: Any = None) -> Move:
    """Return the move that cuts all units with a sum of delta_f ≤ 0, or the lowest of them.

    Args:
        spec: What the programs are compiled for.
        grouping: The units.
        prior: Prior by vector to score with. Defaults to the state's own.
    """

    def cut_units(state: TrainingState, share: np.ndarray) -> Change:
        delta_f = score_weights(state, "bmr", prior=prior)
        scores = score_units(state, delta_f, grouping=grouping, prior=prior)
        rows = np.asarray(scores)
        counts = np.ceil(share * np.sum(rows <= 0, axis=1)).astype(int)
        limits = np.minimum(find_limits(rows, counts), 0.0)
        limits = jnp.asarray(limits, scores.dtype)
        change = _cut_units(state, scores, delta_f, limits, grouping=grouping, prior=prior)
        return expect_savings(spec, state, change)

    return cut_units


def make_unit_budget_cut(grouping: Grouping, most_weights: int, prior: Any = None) -> Move:
    """Return the move that cuts the lowest units, a few at a time, down to a number of weights.

    Args:
        grouping: The units.
        most_weights: Number of weights that may stay.
        prior: Prior by vector to score with. Defaults to the state's own.
    """

    def cut_towards(state: TrainingState, share: np.ndarray) -> Change:
        delta_f = score_weights(state, "bmr", prior=prior)
        scores = score_units(state, delta_f, grouping=grouping, prior=prior)
        sizes = np.asarray(count_units(state, grouping=grouping))
        rows, excess = np.asarray(scores), find_excess(state, most_weights)
        # Units that share weights remove fewer than the sum of their sizes; the next round
        # continues.
        counts = [_count_lowest(*one) for one in zip(rows, sizes, excess, strict=True)]
        limits = jnp.asarray(find_limits(rows, np.array(counts)), scores.dtype)
        return _cut_units(state, scores, delta_f, limits, grouping=grouping, prior=prior)

    return cut_towards


def _count_lowest(scores: np.ndarray, sizes: np.ndarray, excess: int) -> int:
    """Return the number of lowest units that have enough weights together, at most all units."""
    order = np.argsort(scores, kind="stable")[: int(np.isfinite(scores).sum())]
    totals = np.cumsum(sizes[order])
    return min(len(order), int(np.searchsorted(totals, excess)) + 1) if excess else 0
