"""The record of a run: everything that the report shows, in a form that JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np

import secateur
from secateur.averaging import Average
from secateur.report.network import (
    describe_inputs,
    describe_weights,
    find_dense_graph,
    find_weight_arrays,
)
from secateur.report.performance import describe_performance
from secateur.report.record_file import (
    FORMAT,
    VERSION,
    round_number,
    round_numbers,
    shorten_text,
    to_plain,
)
from secateur.trained import Trained

__all__ = ["make_record"]

TASKS = ("regression", "classification")
# A chart cannot show more points than it has pixels.
_MAX_POINTS = 1_200


def make_record(
    *,
    fitted: Trained,
    pruned: Trained,
    average: Average | None = None,
    candidates: list[dict[str, Any]] | None = None,
    caveats: Sequence[str] = (),
    inputs: list[dict[str, Any]],
    targets: list[dict[str, Any]],
    task: str,
    settings: dict[str, Any],
    command: str,
    data: dict[str, Any],
    held_out: tuple[Any, Any] | None,
    seconds: float,
    seed: int = 0,
) -> dict[str, Any]:
    """Collect everything that is reported about a run.

    Args:
        fitted: The model before pruning.
        pruned: The model after pruning.
        average: Pruned restarts that predict together, if the run averages them.
        candidates: Structures among which the model was chosen; see `secateur.selection`.
        caveats: Warnings about the model, in sentences.
        inputs: For every input of the network, in order, its `name`, the `column` of the table from
            which it was made, and its `kind`: "number", "boolean" or "category".
        targets: For every target its `name` and, if it is a class, its `classes`.
        task: "regression" or "classification".
        settings: Settings of the run, shown as a table.
        command: Command that repeats the run.
        data: `name`, `rows`, `train_rows` and `held_out_rows`.
        held_out: Inputs and targets of held-out rows, in the form that `fit` takes, or None.
        seconds: Duration of the run.
        seed: Seed of the shuffling that shows which inputs matter.

    Returns:
        A dictionary that JSON can hold, of at most a few MB. Numbers that are not finite are None.
        For networks of up to 20 000 weights it contains all weights before and after pruning; for
        larger ones, the remaining weights.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r}. Supported: {', '.join(TASKS)}.")
    if task == "classification" and (len(targets) != 1 or not targets[0].get("classes")):
        raise ValueError("classification needs one target, with its classes.")
    before, after = find_weight_arrays(fitted), find_weight_arrays(pruned)
    first_graph, graph = find_dense_graph(fitted.beliefs), find_dense_graph(pruned.beliefs)
    performance = None
    if held_out is not None:
        performance = describe_performance(
            fitted, pruned, held_out, task=task, targets=targets, average=average
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "secateur": secateur.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "settings": to_plain(settings),
        "data": to_plain(data) | {"name": shorten_text(data["name"])},
        "task": task,
        "seconds": round_number(seconds),
        "targets": [
            {
                "name": shorten_text(t["name"]),
                "classes": t.get("classes") and [*map(shorten_text, t["classes"])],
            }
            for t in targets
        ],
        "model": {
            "network": repr(fitted.model.f) if first_graph is not None else None,
            "likelihood": type(fitted.model.likelihood).__name__.removesuffix("Likelihood"),
            "inference": fitted.model.inference,
        },
        "weights": {
            "before": fitted.live_weights,
            "after": pruned.live_weights,
            "pruned_fraction": round_number(pruned.pruned_fraction),
            "hidden_before": first_graph and first_graph.hidden_used,
            "hidden_after": graph and graph.hidden_used,
        },
        "average": average
        and {
            "models": len(average.models),
            "weighting": average.weighting,
            "weights": sum(model.live_weights for model in average.models),
        },
        "energy": {"before": _describe_energy(fitted), "after": _describe_energy(pruned)},
        "history": describe_history(pruned),
        "rounds": _describe_rounds(pruned),
        "candidates": to_plain(candidates or []),
        "caveats": list(caveats),
        "leaves": describe_weights(before, after),
        "network": graph
        and {"sizes": graph.sizes, "used": [layer.astype(int).tolist() for layer in graph.used]},
        "inputs": describe_inputs(
            inputs, pruned, before, after, graph=graph, held_out=held_out, seed=seed
        ),
        "held_out": performance,
    }


def _describe_energy(trained: Trained) -> dict[str, Any]:
    return {
        "free_energy": round_number(trained.free_energy),
        "complexity": round_number(trained.parts.complexity),
        "accuracy": round_number(trained.parts.accuracy),
        "standard_error": round_number(trained.standard_error),
        "epochs": trained.epochs,
        "stop_reason": trained.stop_reason,
    }


def _describe_rounds(pruned: Trained) -> list[dict[str, Any]]:
    """Return the rounds with their free energies, in nats."""
    return [
        {
            "move": r.move,
            "before": r.before,
            "changed": r.changed,
            "left": r.left,
            "kept": r.kept,
            "estimated": round_number(r.estimated),
            "at_once": round_number(r.at_once),
            "trained": round_number(r.trained),
            "divergence": round_number(r.divergence),
            "free_energy": round_number(r.free_energy),
            "complexity": round_number(r.complexity),
            "accuracy": round_number(r.accuracy),
            "standard_error": round_number(r.standard_error),
            "seconds": round_number(r.seconds),
        }
        for r in pruned.rounds
    ]


def describe_history(pruned: Trained) -> dict[str, Any]:
    """Return the parts of the free energy by epoch, thinned, and the start of each training.

    Neighbouring epochs are averaged, but only within one training.

    Args:
        pruned: A model with its history and its rounds.
    """
    history = pruned.history
    total = len(history)
    lengths = [0 if r.history is None else len(r.history) for r in pruned.rounds]
    # Rounds are at the end of the history; what precedes them is the first training.
    starts = (total - np.cumsum(lengths[::-1], dtype=int)[::-1]).tolist()
    per_epoch = max(1.0, total / max(1, pruned.epochs))
    edges = _find_edges([0, *starts, total])
    complexity, accuracy = (
        np.add.reduceat(part, edges[:-1]) / np.diff(edges) if total else part
        for part in (np.asarray(history.complexity), np.asarray(history.accuracy))
    )
    return {
        "epochs": pruned.epochs,
        "epoch": round_numbers((edges[:-1] + edges[1:] + 1) / 2 / per_epoch),
        "complexity": round_numbers(complexity),
        "accuracy": round_numbers(accuracy),
        "starts": round_numbers(np.asarray(starts) / per_epoch),
    }


def _find_edges(trainings: list[int]) -> np.ndarray:
    """Return the first epochs of the points, given the first epochs of the trainings."""
    total = trainings[-1]
    width = max(1, -(-total // _MAX_POINTS))
    edges = {total}
    for begin, end in pairwise(trainings):
        edges.update(range(begin, end, width))
    return np.array(sorted(edges))
