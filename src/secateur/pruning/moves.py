"""Moves that cut single weights: the choice of weights, and the cut.

A move takes a state and, by run, the share of its candidates to change. States have a leading axis
of runs throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.pruning.conditioning import (
    order_weights,
    reduce_priors,
    remove_from_vectors,
)
from secateur.reduction import prune_scores
from secateur.training.coordinates import Vectors
from secateur.training.hierarchy import credit_groups, sum_savings
from secateur.training.program import ProgramSpec, TrainingState, map_runs


class Change(NamedTuple):
    """A state after a move and, by run, the number of weights changed and the expected change."""

    state: TrainingState
    changed: Any
    estimated: Any


Move = Callable[[TrainingState, np.ndarray], Change]


def make_weight_cut(spec: ProgramSpec, prior: Any = None) -> Move:
    """Return the move that cuts all weights with delta_f ≤ 0, or the lowest of them.

    Args:
        spec: What the programs are compiled for. Where prior variances are learnt, a group of
            weights is also cut where the complexity of its precision outweighs the sum.
        prior: Prior by vector to score with. Defaults to the state's own.
    """

    def cut_weights(state: TrainingState, share: np.ndarray) -> Change:
        delta_f = order_weights(state, score_weights(state, "bmr", prior=prior), prior=prior)
        scores = delta_f
        if spec.prior_groups is not None:
            scores = _credit_groups(spec, state, delta_f)
        limit = np.zeros(len(share))
        if (share < 1).any():
            rows = join_by_run(scores)
            counts = np.ceil(share * np.sum(rows <= 0, axis=1)).astype(int)
            limit = np.minimum(find_limits(rows, counts), 0.0)
        return expect_savings(spec, state, cut_below(state, scores, delta_f, limit, prior=prior))

    return cut_weights


def join_moves(moves: list[Move]) -> Move:
    """Return the move that makes several, one after the other."""

    def make_all(state: TrainingState, share: np.ndarray) -> Change:
        changes = []
        for move in moves:
            changes.append(move(state, share))
            state = changes[-1].state
        columns = [np.asarray([c.changed for c in changes]), [c.estimated for c in changes]]
        return Change(state, *(np.sum(np.asarray(c), axis=0) for c in columns))

    return make_all


def make_ranked_cut(live_weights: np.ndarray, criterion: str, rate: float) -> Move:
    """Return the move that cuts the lowest weights until a given fraction of all is removed.

    Args:
        live_weights: Number of live weights, by run.
        criterion: Criterion that orders them; see `prune_scores`.
        rate: Fraction of them to cut.
    """
    left = live_weights - np.round(rate * live_weights).astype(int)

    def cut_share(state: TrainingState, share: np.ndarray) -> Change:
        return cut_lowest(state, criterion, np.maximum(count_live(state) - left, 0))

    return cut_share


@partial(jax.jit, static_argnames=("criterion",))
def score_weights(state: TrainingState, criterion: str, *, prior: Any = None) -> Vectors:
    """Score every weight for removal, lowest first; +inf where it is not alive.

    Args:
        state: State whose beliefs to score.
        criterion: See `prune_scores`.
        prior: Prior by vector, the same for all runs. Defaults to the state's own.
    """

    def score(state: TrainingState) -> Vectors:
        priors = state.prior if prior is None else prior
        pairs = zip(state.weights.beliefs(state.alive), priors, strict=True)
        return tuple(prune_scores(q, p, criterion) for q, p in pairs)

    return map_runs(score, state)


@partial(jax.jit, static_argnames=("spec",))
def _credit_groups(spec: ProgramSpec, state: TrainingState, delta_f: Vectors) -> Vectors:
    groups = spec.prior_groups
    assert groups is not None

    def credit(alive: Vectors, prior: Any, delta_f: Vectors) -> Vectors:
        return credit_groups(spec.layout, groups, alive, prior, delta_f)

    return map_runs(credit, state.alive, state.prior, delta_f)


def expect_savings(spec: ProgramSpec, before: TrainingState, change: Change) -> Change:
    """Add to the expected change the complexity of learnt precisions that are no longer needed."""
    if spec.prior_groups is None:
        return change
    savings = _sum_savings(spec, before, change.state.alive)
    return change._replace(estimated=change.estimated + savings)


@partial(jax.jit, static_argnames=("spec",))
def _sum_savings(spec: ProgramSpec, before: TrainingState, after: Vectors) -> Array:
    groups = spec.prior_groups
    assert groups is not None

    def compute(alive: Vectors, left: Vectors, prior: Any) -> Array:
        return sum_savings(spec.layout, groups, alive, left, prior)

    return map_runs(compute, before.alive, after, before.prior)


def make_budget_cut(most_weights: int, criterion: str, prior: Any = None) -> Move:
    """Return the move that cuts the lowest weights, at most a quarter of them, down to a number.

    Args:
        most_weights: Number of weights that may stay.
        criterion: Criterion that orders them; see `prune_scores`.
        prior: Prior by vector to score with. Defaults to the state's own.
    """

    def cut_towards(state: TrainingState, share: np.ndarray) -> Change:
        return cut_lowest(state, criterion, find_excess(state, most_weights), prior=prior)

    return cut_towards


def find_excess(state: TrainingState, most_weights: int) -> np.ndarray:
    """Return, by run, the number of weights to cut next on the way to a given number."""
    live = count_live(state)
    return np.minimum(np.maximum(live - most_weights, 0), np.maximum(live // 4, 1))


def cut_lowest(
    state: TrainingState, criterion: str, counts: np.ndarray, *, prior: Any = None
) -> Change:
    """Cut a number of weights of each run, the lowest by a criterion."""
    delta_f = score_weights(state, "bmr", prior=prior)
    scores = rank_weights(state, criterion, prior=prior)
    return cut_below(state, scores, delta_f, find_limits(join_by_run(scores), counts), prior=prior)


def rank_weights(state: TrainingState, criterion: str, *, prior: Any = None) -> Vectors:
    """Return scores that order all weights; by "bmr", those of a unit greedily."""
    scores = score_weights(state, criterion, prior=prior)
    return (
        order_weights(state, scores, prior=prior, to_the_end=True) if criterion == "bmr" else scores
    )


def cut_below(
    state: TrainingState,
    scores: Vectors,
    delta_f: Vectors,
    limits: np.ndarray,
    *,
    prior: Any = None,
) -> Change:
    """Cut the live weights whose score does not exceed the limit of their run."""
    return _cut_below(state, scores, delta_f, np.asarray(limits, scores[0].dtype), prior=prior)


@jax.jit
def _cut_below(
    state: TrainingState, scores: Vectors, delta_f: Vectors, limits: Array, *, prior: Any = None
) -> Change:
    def cut(state: TrainingState, scores: Vectors, delta_f: Vectors, limit: Array) -> Change:
        gone = tuple(a & (s <= limit) for a, s in zip(state.alive, scores, strict=True))
        return remove_weights(state, gone, delta_f, prior=prior)

    return map_runs(cut, state, scores, delta_f, limits)


def remove_weights(
    state: TrainingState, gone: Vectors, delta_f: Vectors, *, prior: Any = None
) -> Change:
    """Remove weights of one run: they are exactly 0 from now on.

    Weights of units with covariance are conditioned on that, and the expected change is exact for
    the removed set; otherwise it is the sum of delta_f.
    """
    priors = state.prior if prior is None else prior
    weights, alive, estimated = remove_from_vectors(state, gone, delta_f, priors)
    changed = sum(jnp.sum(g) for g in gone)
    new = state._replace(weights=weights, alive=alive, prior=reduce_priors(state, gone))
    return Change(new, changed, estimated)


def count_live(state: TrainingState) -> np.ndarray:
    """Return the number of live weights, by run."""
    return sum(np.sum(np.asarray(a), axis=-1) for a in state.alive)


def join_by_run(vectors: Vectors) -> np.ndarray:
    """Return the vectors side by side on the host, one row for each run."""
    return np.concatenate([np.asarray(v) for v in vectors], axis=1)


def find_limits(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return, by run, the limit that removes a number of weights (more where scores are equal)."""
    return np.array(
        [
            -np.inf if not count else np.partition(row, count - 1)[count - 1]
            for row, count in zip(scores, counts, strict=True)
        ]
    )
