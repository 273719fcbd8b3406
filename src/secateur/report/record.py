"""From a fitted and a pruned model to everything that the report shows, as JSON can hold it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import secateur
from secateur.beliefs import count
from secateur.fitting.result import Fitted
from secateur.pruning import Pruned
from secateur.report.files import FORMAT, VERSION
from secateur.report.held_out import describe_held_out
from secateur.report.inputs import describe_inputs
from secateur.report.plain import number, plain, text
from secateur.report.story import describe_history, describe_rounds
from secateur.report.weights import dense, describe_leaves, leaves_of

__all__ = ["make_record"]

TASKS = ("regression", "classification")


def make_record(
    *,
    fitted: Fitted,
    pruned: Pruned,
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
    """Gather the story of a run.

    Args:
        fitted: the model before pruning.
        pruned: what `prune` made of it.
        inputs: for every input of the network, in order, its `name`, the `column` of the table that
            it was made from, and its `kind`: "number", "boolean" or "category".
        targets: for every target its `name` and, if it is a class, its `classes`.
        task: "regression" or "classification".
        settings: what the run was told, shown as a table.
        command: what repeats it.
        data: `name`, `rows`, `train_rows` and `held_out_rows`.
        held_out: inputs and targets, as `fit` takes them, that neither model has seen; or None.
        seconds: that the run took.
        seed: of the shuffling that shows which inputs matter, and of the draws of a model that
            samples.

    Returns:
        A dictionary that JSON can hold, at most a few MB. Numbers that are not finite are None.
        Networks of up to 20 000 weights have all of them in it, before and after; larger ones the
        weights that are left.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r}. Supported: {', '.join(TASKS)}.")
    if task == "classification" and (len(targets) != 1 or not targets[0].get("classes")):
        raise ValueError("classification needs one target, with its classes.")
    before, after = leaves_of(fitted), leaves_of(pruned)
    network, first = dense(pruned), dense(fitted)
    counts = count(fitted.beliefs)
    return {
        "format": FORMAT,
        "version": VERSION,
        "secateur": secateur.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "settings": plain(settings),
        "data": plain(data) | {"name": text(data["name"])},
        "task": task,
        "seconds": number(seconds),
        "targets": [
            {"name": text(t["name"]), "classes": t.get("classes") and [*map(text, t["classes"])]}
            for t in targets
        ],
        "model": {
            "network": repr(fitted.model.f) if first is not None else None,
            "likelihood": type(fitted.model.likelihood).__name__.removesuffix("Likelihood"),
            "inference": fitted.model.inference,
        },
        "weights": {
            "before": counts.live,
            "after": pruned.live_weights,
            "pruned_fraction": number(pruned.pruned_fraction),
            "hidden_before": first and first.hidden_used,
            "hidden_after": network and network.hidden_used,
        },
        "energy": {"before": _energy(fitted), "after": _energy(pruned)},
        "history": describe_history(pruned),
        "rounds": describe_rounds(pruned),
        "leaves": describe_leaves(before, after),
        "network": network
        and {
            "sizes": network.sizes,
            "used": [layer.astype(int).tolist() for layer in network.used],
        },
        "inputs": describe_inputs(inputs, pruned, before, after, network, held_out, seed),
        "held_out": held_out
        and describe_held_out(fitted, pruned, held_out, task, targets, seed),
    }  # fmt: skip


def _energy(model: Fitted) -> dict[str, Any]:
    return {
        "free_energy": number(model.free_energy),
        "complexity": number(model.parts.complexity),
        "accuracy": number(model.parts.accuracy),
        "standard_error": number(model.standard_error),
        "epochs": model.epochs,
        "stop_reason": model.stop_reason,
    }
