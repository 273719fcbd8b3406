"""From a table to inputs, targets and the encoding that new rows will get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from secateur.tables.encoding import (
    MISSING,
    Column,
    Encoding,
    missing_by_column,
    missing_values,
)
from secateur.tables.errors import TableError, quoted
from secateur.tables.kinds import MOST_CATEGORIES, kind_of
from secateur.tables.targets import TASKS, decided
from secateur.tables.values import as_option, numbers, texts, truths, way_out

__all__ = ["TASKS", "Prepared", "prepare"]

_FEWEST_ROWS = 10


class Prepared(NamedTuple):
    """A table as a network sees it.

    Attributes:
        x: inputs, of shape (rows, inputs), float64.
        y: numbers of shape (rows, targets), or class numbers of shape (rows,).
        encoding: how inputs were made, to be kept with the model.
        rows: positions in the table of the rows that are there.
        notes: what was decided, in sentences; the first is the task and why.
    """

    x: np.ndarray
    y: np.ndarray
    encoding: Encoding
    rows: np.ndarray
    notes: list[str]


def prepare(
    frame: pd.DataFrame,
    targets: Sequence[str],
    *,
    task: str | None = None,
    missing: str = "error",
    drop: Sequence[str] = (),
    most_categories: int = MOST_CATEGORIES,
) -> Prepared:
    """Decide what every column is, and encode the table.

    Args:
        frame: from `read`.
        targets: columns to predict; several of them for regression only.
        task: "regression" or "classification"; by default decided by the target.
        missing: "error"; "drop" leaves rows out in which something is missing; "mean" fills in the
            mean or the most frequent category. A missing target always drops its row, or is an
            error.
        drop: columns not to use.
        most_categories: how many different texts a column of categories may have.

    Raises:
        TableError: with the column and the way out.

    Example:
        >>> table = pd.DataFrame({"size": range(12), "kind": list("abcabcabcabc"), "y": 12 * [0.5]})
        >>> table.loc[0, "y"] = 1.5
        >>> prepared = prepare(table, ["y"], task="regression")
        >>> [i["name"] for i in prepared.encoding.inputs]
        ['size', 'kind=a', 'kind=b', 'kind=c']
    """
    if task is not None and task not in TASKS:
        raise TableError(f"--task {task} is not known. Supported: {', '.join(TASKS)}.")
    if missing not in MISSING:
        raise TableError(f"--missing {missing} is not known. Supported: {', '.join(MISSING)}.")
    used = _used_columns(frame, targets, drop)
    frame, rows, notes = _without_missing(frame, used, list(targets), missing)
    if len(rows) < _FEWEST_ROWS:
        raise TableError(
            f"{len(rows)} rows {'are left' if notes else 'are there'}, which is too few to learn "
            f"from: give at least {_FEWEST_ROWS}."
        )
    task, found, y, why = decided(frame, targets, task, most_categories)
    found_columns = {name: _column(name, frame[name], most_categories) for name in used}
    columns = [column for column in found_columns.values() if column is not None]
    constant = [name for name, column in found_columns.items() if column is None]
    if constant:
        notes.append(f"columns with one value only are not used: {quoted(constant)}")
    if not columns:
        raise TableError(
            "no column is left to predict from: beside the target, columns are dropped or have one "
            "value only."
        )
    unused = tuple(name for name in frame.columns if name in {*drop, *constant})
    encoding = Encoding(tuple(columns), tuple(found), task, missing, unused)
    encoded = encoding.encode(frame)
    return Prepared(encoded.x, y, encoding, rows, [why, *notes, *encoded.notes])


def _used_columns(frame: pd.DataFrame, targets: Sequence[str], drop: Sequence[str]) -> list[str]:
    if not targets:
        raise TableError("there is no target. Say which column to predict with --target COLUMN.")
    for option, names in (("--target", targets), ("--drop", drop)):
        unknown = [name for name in names if name not in frame]
        if unknown:
            raise TableError(
                f"{option} {as_option(unknown[0])}: there is no such column. The table has "
                f"{quoted(list(frame.columns), 20)}."
            )
    twice = [name for name, count in Counter(targets).items() if count > 1]
    if twice:
        raise TableError(f"--target {as_option(twice[0])} is given more than once.")
    both = [name for name in targets if name in drop]
    if both:
        raise TableError(f"column {both[0]!r} is both --target and --drop. Choose one.")
    used = [name for name in frame.columns if name not in {*targets, *drop}]
    if not used:
        raise TableError("no column is left to predict from: all are targets or dropped.")
    return used


def _without_missing(
    frame: pd.DataFrame, used: list[str], targets: list[str], how: str
) -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    """Leave out the rows that lack what cannot be filled in."""
    notes = []
    rows = np.arange(len(frame))
    for role, names in (("target", targets), ("column", used)):
        empty = missing_by_column(frame[names])
        if not empty:
            continue
        if how == "error":
            raise missing_values(empty, role)
        hopeless = [name for name, where in empty.items() if where.all()]
        if hopeless:
            raise TableError(
                f"{role} {hopeless[0]!r} has no value in any row. " + way_out(hopeless[0], role)
            )
        if role == "target" or how == "drop":
            gone = np.any(list(empty.values()), axis=0)
            frame, rows = frame[~gone], rows[~gone]
            notes.append(
                f"{int(gone.sum())} rows are left out, because {quoted(list(empty))} "
                f"{'has' if len(empty) == 1 else 'have'} no value there"
            )
    return frame, rows, notes


def _column(name: str, values: pd.Series, most_categories: int) -> Column | None:
    """Return what a column is; None if it has one value only."""
    kind = kind_of(name, values, most_categories=most_categories)
    if kind == "category":
        counts = Counter(text for text in texts(values) if text is not None)
        if len(counts) == 1:
            return None
        return Column(name, kind, tuple(sorted(counts)), counts.most_common(1)[0][0])
    found = numbers(name, values) if kind == "number" else truths(name, values)
    if np.nanmin(found) == np.nanmax(found):
        return None
    return Column(name, kind, fill=float(np.nanmean(found)))
