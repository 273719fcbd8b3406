"""Targets: numbers or classes, decided once and encoded consistently.

A class has exactly its name in the training data: `v2.0`, `01` or `True`. Rows of other tables have
that class if they have that text or, where all classes are numbers or all are booleans, the same
value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from secateur.remedies import Remedy
from secateur.tables.cells import (
    TableError,
    find_missing,
    make_column_error,
    number_rows,
    quote_names,
    to_numbers,
    to_texts,
    to_truths,
    try_numbers,
)
from secateur.tables.columns import find_kind

__all__ = ["TASKS", "Target", "TargetTable", "encode_targets"]

TASKS = ("regression", "classification")
# Whole numbers from 0 or 1 on, and no more of them than this, are classes unless the task is given
# or the rows are too few: every class needs two rows, and three on average. Counts and ranks that
# look like the numbers of classes have values that occur only once, or few rows for many values.
_MAX_NUMBERED_CLASSES = 30
_MIN_CLASS_ROWS, _MIN_MEAN_CLASS_ROWS = 2, 3


@dataclass(frozen=True)
class Target:
    """A column to predict.

    Attributes:
        name: Name in the header.
        classes: Classes in the order of the network's outputs, or None for numbers.
        kind: Kind of the classes: "number", "boolean" or "category".
    """

    name: str
    classes: tuple[str, ...] | None = None
    kind: str = "category"

    def encode(self, values: pd.Series) -> np.ndarray:
        """Return the numbers, or the numbers of the classes, of other rows.

        Args:
            values: The column, with classes as texts (see `Encoding.text_columns`).

        Raises:
            TableError: A value is missing, is not a number, or is a class that the model does not
                know.
        """
        is_missing = find_missing(values)
        if is_missing.any():
            raise TableError(
                f"target {self.name!r} has no value in {number_rows(values.index[is_missing])}. "
                "Fill it in, or leave such rows out."
            )
        if self.classes is None:
            return to_numbers(self.name, values, role="target")
        texts = to_texts(values)
        codes = pd.Index(self.classes, dtype=object).get_indexer(texts)
        if self.kind != "category":  # 3.0 is the class 3, and TRUE is True
            by_value = {value: code for code, value in enumerate(_read_values(self.classes))}
            for row in np.flatnonzero(codes < 0):
                codes[row] = by_value.get(_read_values([texts[row]])[0], -1)
        unknown = np.flatnonzero(codes < 0)
        if len(unknown):
            raise TableError(
                f"target {self.name!r} holds {quote_names(sorted(set(texts[unknown])))} in "
                f"{number_rows(values.index[unknown])}, which is not a class of the model. Its "
                f"classes: {quote_names(self.classes, 20)}."
            )
        return codes.astype(np.int32)


def _read_values(texts: Sequence[str]) -> list[Any]:
    """Return texts as numbers (booleans are 0 and 1); any other text stays as it is."""
    words = [{"true": "1", "false": "0"}.get(text.lower(), text) for text in texts]
    numbers, is_strange = try_numbers(pd.Series(words, dtype=object))
    columns = zip(words, numbers.tolist(), is_strange, strict=True)
    return [word if strange else number for word, number, strange in columns]


class TargetTable(NamedTuple):
    """The targets of a table.

    Attributes:
        task: "regression" or "classification".
        targets: The targets.
        y: Numbers of shape (rows, targets), or numbers of classes of shape (rows,).
        note: A sentence about the task.
    """

    task: str
    targets: tuple[Target, ...]
    y: np.ndarray
    note: str


def encode_targets(
    frame: pd.DataFrame,
    names: Sequence[str],
    *,
    task: str | None,
    max_categories: int,
    texts: pd.DataFrame | None = None,
) -> TargetTable:
    """Decide the kind of the targets, and encode them.

    Args:
        frame: A table; no target may be missing in it.
        names: Columns to predict.
        task: "regression" or "classification", or None to infer it from the targets.
        max_categories: Maximum number of classes.
        texts: The same rows of the targets as text, from which the classes get their names.

    Raises:
        TableError: The message names the target.
    """
    kinds = {
        name: find_kind(name, frame[name], max_categories=max_categories, role="target")
        for name in names
    }
    values = {name: _find_values(name, frame[name], kinds[name]) for name in names}
    for name in names:
        if len(set(values[name].tolist())) < 2:
            problem = (
                f"has the same value in all rows, {to_texts(frame[name][:1])[0]}: there is nothing "
                "to learn. Give rows in which it differs."
            )
            raise make_column_error(name, "target", problem)
    if task is None:
        task, note = _decide_task(names, kinds, values)
    else:
        note = f"task: {task}, as requested"
    if task == "regression":
        for name in names:
            if kinds[name] == "category":
                raise TableError(
                    f"target {name!r} holds text, which regression cannot predict. Give numbers.",
                    Remedy("task", "classification", "predicts classes"),
                )
        y = np.stack(list(values.values()), axis=1)
        return TargetTable(task, tuple(map(Target, names)), y, note)
    if len(names) > 1:
        raise TableError(
            f"classification needs a single target, but {len(names)} are given "
            f"({quote_names(names)}). "
            "Fit each of them separately.",
            Remedy("task", "regression", "predicts several numbers"),
        )
    (name,) = names
    spelling = frame[name] if texts is None else texts.loc[frame.index, name]
    target, y = _make_classes(name, kinds[name], values[name], to_texts(spelling), max_categories)
    return TargetTable(task, (target,), y, note)


def _make_classes(
    name: str, kind: str, values: np.ndarray, texts: np.ndarray, max_categories: int
) -> tuple[Target, np.ndarray]:
    distinct = sorted(set(values.tolist()))
    if len(distinct) > max_categories:
        raise TableError(
            f"target {name!r} holds {len(distinct)} different values, and at most {max_categories} "
            "classes are allowed.",
            Remedy("max_categories", len(distinct), "allows as many"),
            Remedy("task", "regression", "predicts numbers"),
        )
    # If a value has several spellings (1 and 1.0), the shortest is used.
    spellings: dict[Any, str] = {}
    for value, text in set(zip(values.tolist(), texts.tolist(), strict=True)):
        spellings[value] = min(spellings.get(value, text), text, key=lambda t: (len(t), t))
    codes = {value: code for code, value in enumerate(distinct)}
    y = np.array([codes[value] for value in values.tolist()], np.int32)
    return Target(name, tuple(spellings[value] for value in distinct), kind), y


def _decide_task(
    names: Sequence[str], kinds: dict[str, str], values: dict[str, np.ndarray]
) -> tuple[str, str]:
    """Return a task, and a sentence with the reason."""
    decisions = {n: _decide_one(kinds[n], Counter(values[n].tolist())) for n in names}
    tasks = {task for task, _ in decisions.values()}
    if len(names) > 1 and all(kind != "category" for kind in kinds.values()):
        return "regression", (
            f"task: regression, since {quote_names(names)} are several targets, all of them numbers"
        )
    if len(tasks) > 1:
        classes = [name for name, (task, _) in decisions.items() if task == "classification"]
        raise TableError(
            f"targets {quote_names(classes)} hold classes and the others numbers. Fit them "
            "separately."
        )
    task, reason = next(iter(decisions.values()))
    return task, f"task: {task}, since {quote_names(names)} {reason}"


def _decide_one(kind: str, counts: Counter) -> tuple[str, str]:
    """Return the task for one target, and the reason, as the rest of a sentence.

    Args:
        kind: Kind of the target's values.
        counts: Number of rows of every value.
    """
    if kind == "category":
        return "classification", "holds texts"
    if kind == "boolean":
        return "classification", "holds true and false"
    if len(counts) == 2:
        return "classification", "holds only two values"
    low, high = min(counts), max(counts)
    is_numbered = low in (0, 1) and set(counts) == {low + step for step in range(len(counts))}
    if not is_numbered or len(counts) > _MAX_NUMBERED_CLASSES:
        return "regression", "holds numbers"
    labels = f"holds the whole numbers {low:g} to {high:g}"
    rare = [value for value, count in sorted(counts.items()) if count < _MIN_CLASS_ROWS]
    if rare:
        return "regression", f"{labels}, but {rare[0]:g} in one row only"
    if counts.total() < _MIN_MEAN_CLASS_ROWS * len(counts):
        return "regression", f"{labels} in {counts.total()} rows only"
    return "classification", f"{labels}, and no others"


def _find_values(name: str, values: pd.Series, kind: str) -> np.ndarray:
    if kind == "category":
        return to_texts(values)
    if kind == "number":
        return to_numbers(name, values, role="target")
    return to_truths(name, values)
