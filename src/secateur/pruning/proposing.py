"""Which single weights to cut next."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.fitting.program import State
from secateur.fitting.trainer import Trainer
from secateur.fitting.weights import Vectors
from secateur.pruning.process import Process, Proposer
from secateur.pruning.scoring import Change, by_run, cut, limits, weight_scores
from secateur.pruning.sweep import curve


def worthless_weights(many: bool, prior: Any = None) -> Proposer:
    """Propose all weights with delta_f ≤ 0, or the lowest of them."""

    def propose(state: State, share: np.ndarray) -> Change:
        delta_f = weight_scores(state, "bmr", many=many, prior=prior)
        if (share < 1).any():
            rows = by_run(delta_f, many)
            counts = np.ceil(share * np.sum(rows <= 0, axis=1)).astype(int)
            limit = np.minimum(limits(rows, counts), 0.0)
        else:
            limit = np.zeros(len(share))
        return _cut_to(state, delta_f, delta_f, limit, many)

    return propose


def share_of_weights(process: Process, criterion: str, rate: float) -> Proposer:
    """Propose the lowest weights, so many that a share of all is gone: once only."""
    many = process.many
    wanted = np.round(rate * process.live_weights(process.current)).astype(int)
    left = process.live_weights(process.current) - wanted

    def propose(state: State, share: np.ndarray) -> Change:
        counts = np.maximum(process.live_weights(state) - left, 0)
        return _cut_lowest(state, criterion, counts, many)

    return propose


def best_share(trainer: Trainer, criterion: str) -> Proposer:
    """Propose as many of the lowest weights as a sweep finds best."""

    def propose(state: State, share: np.ndarray) -> Change:
        live = sum(int(jnp.sum(a)) for a in state.alive)
        found = curve(trainer, state, criterion, np.arange(100) / 100)
        count = np.ceil(share * round(found.rates[found.best] * live)).astype(int)
        return _cut_lowest(state, criterion, count, False)

    return propose


def _cut_lowest(state: State, criterion: str, counts: np.ndarray, many: bool) -> Change:
    delta_f = weight_scores(state, "bmr", many=many)
    scores = weight_scores(state, criterion, many=many)
    return _cut_to(state, scores, delta_f, limits(by_run(scores, many), counts), many)


def _cut_to(
    state: State, scores: Vectors, delta_f: Vectors, limit: np.ndarray, many: bool
) -> Change:
    given = jnp.asarray(limit if many else limit[0], scores[0].dtype)
    return cut(state, scores, delta_f, given, many=many)
