"""What is to be predicted: numbers or classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from secateur.tables.encoding import Target
from secateur.tables.errors import TableError, quoted
from secateur.tables.kinds import kind_of
from secateur.tables.values import numbers, texts, truths

__all__ = ["TASKS", "decided"]

TASKS = ("regression", "classification")
# Whole numbers from 0 or 1 on, and no more of them than this, are classes unless told otherwise.
_MOST_NUMBERED_CLASSES = 10


def decided(
    frame: pd.DataFrame, names: Sequence[str], task: str | None, most_categories: int
) -> tuple[str, list[Target], np.ndarray, str]:
    """Return the task, the targets, their values, and a sentence on the task.

    Values are numbers of shape (rows, targets), or class numbers of shape (rows,). None of them
    may be missing.

    Raises:
        TableError: with the target and the way out.
    """
    kinds = {
        name: kind_of(name, frame[name], most_categories=most_categories, role="target")
        for name in names
    }
    values = {name: _values(name, frame[name], kinds[name]) for name in names}
    distinct = {name: sorted(set(values[name].tolist())) for name in names}
    for name, found in distinct.items():
        if len(found) < 2:
            raise TableError(
                f"target {name!r} has the same value in all rows, {_shown(found[0], kinds[name])}: "
                "there is nothing to learn. Choose another --target, or give rows in which it "
                "differs."
            )
    if task is not None:
        sentence = f"task: {task}, as --task says"
    else:
        task, why = _decision({name: (kinds[name], distinct[name]) for name in names})
        sentence = f"task: {task}, since {quoted(names)} {why}"
        if len(names) == 1:
            sentence += f"; otherwise give --task {TASKS[1 - TASKS.index(task)]}"
    if task == "regression":
        for name in names:
            if kinds[name] == "category":
                raise TableError(
                    f"target {name!r} holds texts, which regression cannot predict. Give numbers, "
                    "or use --task classification."
                )
        return task, [Target(n) for n in names], np.stack(list(values.values()), axis=1), sentence
    if len(names) > 1:
        raise TableError(
            f"classification has one target, and {len(names)} are given ({quoted(names)}). Fit "
            "each of them alone, or use --task regression if they are numbers."
        )
    (name,) = names
    if len(distinct[name]) > most_categories:
        raise TableError(
            f"target {name!r} holds {len(distinct[name])} different values, and at most "
            f"{most_categories} classes are allowed (see --max-categories). Use --task regression "
            "if they are numbers."
        )
    numbered = {value: number for number, value in enumerate(distinct[name])}
    labels = np.array([numbered[value] for value in values[name].tolist()], np.int32)
    classes = tuple(_shown(value, kinds[name]) for value in distinct[name])
    return task, [Target(name, classes)], labels, sentence


def _decision(found: dict[str, tuple[str, list]]) -> tuple[str, str]:
    """Return a task and why, from every target's kind and distinct values."""
    each = {name: _task_of(*facts) for name, facts in found.items()}
    tasks = {task for task, _ in each.values()}
    if len(found) > 1 and all(kind != "category" for kind, _ in found.values()):
        return "regression", "are several targets, all of them numbers"
    if len(tasks) > 1:
        classes = [name for name, (task, _) in each.items() if task == "classification"]
        raise TableError(
            f"targets {quoted(classes)} hold classes and the others numbers. Give them to separate "
            "fits."
        )
    return next(iter(each.values()))


def _task_of(kind: str, distinct: list) -> tuple[str, str]:
    if kind == "category":
        return "classification", "holds texts"
    if kind == "boolean":
        return "classification", "holds true and false"
    if len(distinct) == 2:
        return "classification", "holds two values only"
    numbered = [float(distinct[0]) + step for step in range(len(distinct))]
    if distinct == numbered and distinct[0] in (0, 1) and len(distinct) <= _MOST_NUMBERED_CLASSES:
        return "classification", f"holds the whole numbers {distinct[0]:g} to {distinct[-1]:g}"
    return "regression", "holds numbers"


def _values(name: str, values: pd.Series, kind: str) -> np.ndarray:
    if kind == "category":
        return texts(values)
    return numbers(name, values) if kind == "number" else truths(name, values)


def _shown(value: object, kind: str) -> str:
    """Return a class as it stands in the table."""
    if kind == "boolean":
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)
