"""Training and pruning over time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from secateur.pruning import Pruned
from secateur.report.plain import number, numbers

__all__ = ["describe_history", "describe_rounds"]

# More points than a chart has pixels show nothing more.
_MOST_POINTS = 1_200
_NUMBERS = ("estimated", "at_once", "trained", "divergence", "free_energy", "complexity",
            "accuracy", "standard_error", "seconds")  # fmt: skip


def describe_rounds(pruned: Pruned) -> list[dict[str, Any]]:
    """Return the rounds with their figures, in nats."""
    return [
        {
            "move": r.move,
            "before": r.before,
            "changed": r.changed,
            "left": r.left,
            "kept": r.kept,
            **{name: number(getattr(r, name)) for name in _NUMBERS},
        }
        for r in pruned.rounds
    ]


def describe_history(pruned: Pruned) -> dict[str, Any]:
    """Return free energy parts by epoch, thinned, with where each round's training began.

    Neighbouring epochs are averaged, never those of two trainings.
    """
    history = pruned.history
    total = len(history.complexity)
    lengths = [0 if r.history is None else len(r.history.complexity) for r in pruned.rounds]
    # Rounds stand at the end of the history; what is before them is the first training.
    starts = (total - np.cumsum(lengths[::-1], dtype=int)[::-1]).tolist()
    per_epoch = max(1.0, total / max(1, pruned.epochs))
    edges = _edges([0, *starts, total])
    complexity, accuracy = (
        np.add.reduceat(part, edges[:-1]) / np.diff(edges) if total else part
        for part in (np.asarray(history.complexity), np.asarray(history.accuracy))
    )
    return {
        "epochs": pruned.epochs,
        "epoch": numbers((edges[:-1] + edges[1:] + 1) / 2 / per_epoch),
        "complexity": numbers(complexity),
        "accuracy": numbers(accuracy),
        "starts": numbers(np.asarray(starts) / per_epoch),
    }


def _edges(trainings: list[int]) -> np.ndarray:
    total = trainings[-1]
    width = max(1, -(-total // _MOST_POINTS))
    edges = {total}
    for begin, end in pairwise(trainings):
        edges.update(range(begin, end, width))
    return np.array(sorted(edges))
