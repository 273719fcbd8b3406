"""Scores of all weights on the device, and the cut itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.fitting.program import State
from secateur.fitting.weights import Vectors, Weights
from secateur.reduction import prune_scores


class Change(NamedTuple):
    """A state after a move, and by run: how many weights changed, and what that should bring."""

    state: State
    changed: Any
    estimated: Any


def each_run(function: Callable, many: bool) -> Callable:
    """Apply to every run of a state that holds several."""
    return jax.vmap(function) if many else function


@partial(jax.jit, static_argnames=("criterion", "many"))
def weight_scores(state: State, criterion: str, *, many: bool, prior: Any = None) -> Vectors:
    """Score every weight for removal, lowest first; +inf where it is not alive.

    Args:
        state: whose beliefs to score.
        criterion: see `prune_scores`.
        many: whether the state holds several runs.
        prior: by vector; by default the state's own.
    """

    def one(state: State) -> Vectors:
        priors = state.prior if prior is None else prior
        pairs = zip(state.weights.beliefs(state.alive), priors, strict=True)
        return tuple(prune_scores(q, p, criterion) for q, p in pairs)

    return each_run(one, many)(state)


@partial(jax.jit, static_argnames=("many",))
def cut(state: State, scores: Vectors, delta_f: Vectors, limit: Array, *, many: bool) -> Change:
    """Remove the live weights whose score does not exceed the limit (one for each run)."""

    def one(state: State, scores: Vectors, delta_f: Vectors, limit: Array) -> Change:
        gone = tuple(a & (s <= limit) for a, s in zip(state.alive, scores, strict=True))
        return without(state, gone, delta_f)

    return each_run(one, many)(state, scores, delta_f, limit)


def without(state: State, gone: Vectors, delta_f: Vectors) -> Change:
    """Remove weights: their places hold exactly 0 from now on."""
    alive = tuple(a & ~g for a, g in zip(state.alive, gone, strict=True))

    def held(values: Vectors) -> Vectors:
        return tuple(jnp.where(a, v, 0) for a, v in zip(alive, values, strict=True))

    weights = Weights(held(state.weights.means), held(state.weights.log_deviations))
    pairs = list(zip(gone, delta_f, strict=True))
    return Change(
        state._replace(weights=weights, alive=alive),
        sum(jnp.sum(g) for g, _ in pairs),
        sum(jnp.sum(jnp.where(g, d, 0)) for g, d in pairs),
    )


def by_run(vectors: Vectors, many: bool) -> np.ndarray:
    """Return the vectors side by side on the host, one row for each run."""
    rows = [np.asarray(v) for v in vectors]
    return np.concatenate([r if many else r[None] for r in rows], axis=1)


def limits(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return, by run, the limit that removes so many weights (more where scores are equal)."""
    return np.array(
        [
            -np.inf if not count else np.partition(row, count - 1)[count - 1]
            for row, count in zip(scores, counts, strict=True)
        ]
    )
