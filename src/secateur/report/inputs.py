"""Which inputs matter: what removing them would cost, and what shuffling them does."""

from __future__ import annotations

from typing import Any

import numpy as np

from secateur.fitting.result import Fitted
from secateur.report.plain import number, text
from secateur.report.predicting import log_densities
from secateur.report.weights import Dense, Leaf

__all__ = ["describe_inputs"]

MOST_ROWS = 2_000
MOST_COLUMNS = 300  # beyond, shuffling one after the other takes too long
SHUFFLES = 3


def describe_inputs(
    inputs: list[dict[str, Any]],
    pruned: Fitted,
    before: list[Leaf],
    after: list[Leaf],
    network: Dense | None,
    held_out: tuple[Any, Any] | None,
    seed: int,
) -> list[dict[str, Any]]:
    """Return every input with the weights it has left and what it is worth.

    `delta_f` is the sum over its live weights, the estimated cost in nats of removing the input;
    `effect` is what shuffling its column among held-out rows takes from their log-likelihood, in
    nats per row, for inputs that still have an influence.
    """
    described = [
        {"name": text(i["name"]), "column": text(i["column"]), "kind": i["kind"]} for i in inputs
    ]
    cut = [False] * len(inputs)
    if network is not None:
        first, last = _input_leaf(before), _input_leaf(after)
        costs = np.where(last.live, last.delta_f, 0).sum(axis=1)
        cut = (~network.leads[0]).tolist()
        for index, entry in enumerate(described):
            entry["before"] = int(first.live[index].sum())
            entry["after"] = int(last.live[index].sum())
            entry["delta_f"] = number(costs[index])
            entry["cut"] = cut[index]
    for index, effect in _effects(inputs, cut, pruned, held_out, seed).items():
        described[index]["effect"] = number(effect)
    return described


def _input_leaf(leaves: list[Leaf]) -> Leaf:
    """The first matrix: it is the one that the inputs feed."""
    return next(leaf for leaf in leaves if leaf.mean.ndim == 2)


def _effects(inputs, cut, pruned, held_out, seed) -> dict[int, float]:
    """By input, for the inputs of columns that have an influence; those of a column share it."""
    columns: dict[str, list[int]] = {}
    for index, entry in enumerate(inputs):
        columns.setdefault(entry["column"], []).append(index)
    alive = {name: own for name, own in columns.items() if not all(cut[i] for i in own)}
    if held_out is None or len(alive) > MOST_COLUMNS or np.ndim(held_out[0]) < 2:
        return {}
    rng = np.random.default_rng(seed)
    x, y = np.asarray(held_out[0]), np.asarray(held_out[1])
    if len(y) > MOST_ROWS:
        rows = np.sort(rng.choice(len(y), MOST_ROWS, replace=False))
        x, y = x[rows], y[rows]
    undisturbed = log_densities(pruned, x, y, seed).mean()
    orders = [rng.permutation(len(y)) for _ in range(SHUFFLES)]
    effects = {}
    for own in alive.values():
        losses = []
        for order in orders:
            shuffled = x.copy()
            shuffled[..., own] = x[order][..., own]
            losses.append(undisturbed - log_densities(pruned, shuffled, y, seed).mean())
        effects.update(dict.fromkeys(own, float(np.mean(losses))))
    return effects
