"""Encoding of a table as inputs and targets of a network: decided once, repeated for new rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from secateur.tables.cells import (
    UNNAMED,
    TableError,
    make_column_error,
    quote_names,
    to_texts,
    try_numbers,
)
from secateur.tables.columns import DATES, MAX_CATEGORIES, Column
from secateur.tables.dates import are_dates, describe_format
from secateur.tables.gaps import MISSING, choose_indicators, find_gaps, make_missing_error
from secateur.tables.targets import TASKS, Target, encode_targets

__all__ = ["EncodedRows", "EncodedTable", "Encoding", "encode_table"]

_MIN_ROWS = 10


class EncodedRows(NamedTuple):
    """Inputs of a network.

    Attributes:
        x: Inputs, of shape (rows, inputs), float64.
        rows: Positions of these rows in the table; missing="drop" leaves some out.
        notes: Messages for the user.
    """

    x: np.ndarray
    rows: np.ndarray
    notes: list[str]


@dataclass(frozen=True)
class Encoding:
    """Everything needed to encode new rows like the training data.

    Attributes:
        columns: Columns in the order of the inputs.
        targets: Targets in the order of the outputs.
        task: "regression" or "classification".
        missing: Treatment of missing values: "error", "drop" or "mean".
        unused: Columns of the table that are not used.
    """

    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    task: str
    missing: str = "error"
    unused: tuple[str, ...] = ()

    @property
    def text_columns(self) -> list[str]:
        """Return the columns that are to be read as text: categories and classes."""
        categories = [c.name for c in self.columns if c.kind == "category"]
        return categories + [t.name for t in self.targets if t.classes is not None]

    @property
    def inputs(self) -> list[dict[str, str]]:
        """Return name, column and kind of every input."""
        return [
            {"name": name, "column": column.name, "kind": kind}
            for column in self.columns
            for name, kind in zip(column.inputs, column.input_kinds, strict=True)
        ]

    @property
    def outputs(self) -> int:
        """Return the number of outputs that a network needs."""
        classes = self.targets[0].classes
        return len(self.targets) if classes is None else len(classes)

    def encode(self, frame: pd.DataFrame, *, missing: str | None = None) -> EncodedRows:
        """Encode the inputs of a table's rows; columns are matched by name, in any order.

        Args:
            frame: A table from `read_table`, with `text_columns` as text.
            missing: "error", "drop" or "mean". Defaults to the setting of the encoding.

        Raises:
            TableError: A column is missing, or its values are of a different kind.
        """
        missing = self.missing if missing is None else missing
        absent = [c.name for c in self.columns if c.name not in frame]
        if absent:
            raise TableError(
                f"the table has no column {quote_names(absent)}, which the model needs. It has "
                f"{quote_names(list(frame.columns), 20)}. Add the column, or correct its name."
            )
        rows = np.arange(len(frame))
        notes = self._note_unknown_columns(frame)
        used = frame[[c.name for c in self.columns]]
        gaps = find_gaps(used)
        if missing == "error" and gaps:
            raise make_missing_error(gaps, "column", can_drop_columns=False)
        if missing == "drop" and gaps:
            is_incomplete = np.any(list(gaps.values()), axis=0)
            rows, used = rows[~is_incomplete], used[~is_incomplete]
            notes.append(f"{int(is_incomplete.sum())} rows with missing values are left out")
        if missing == "mean" and gaps:
            notes.append(f"missing values of {quote_names(list(gaps))} are filled in")
        x = np.empty((len(rows), len(self.inputs)))
        start = 0
        for column in self.columns:
            try:
                part = column.encode(used[column.name], fill=missing == "mean")
            except TableError as error:  # a column that the model needs cannot be left out
                others = [r for r in error.remedies if r.argument != "drop"]
                raise TableError(error.message, *others) from error
            x[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return EncodedRows(x, rows, notes)

    def encode_targets(self, frame: pd.DataFrame) -> np.ndarray | None:
        """Return the targets of a table's rows in the form for `fit`, or None if it has none.

        Args:
            frame: A table from `read_table`, with `text_columns` as text.

        Raises:
            TableError: A value is missing, not a number, or not a class of the model.
        """
        if any(target.name not in frame for target in self.targets):
            return None
        y = [target.encode(frame[target.name]) for target in self.targets]
        return y[0] if self.task == "classification" else np.stack(y, axis=1)

    def _note_unknown_columns(self, frame: pd.DataFrame) -> list[str]:
        known = {c.name for c in self.columns} | {t.name for t in self.targets} | {*self.unused}
        extra = [name for name in frame.columns if name not in known]
        return (
            [f"columns the model does not know are ignored: {quote_names(extra)}"] if extra else []
        )

    def to_json(self) -> dict[str, Any]:
        """Return the argument of `from_json`: dicts, lists, strings and numbers."""
        return json.loads(json.dumps(asdict(self)))  # tuples become lists

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Encoding:
        """Return the encoding from the result of `to_json`."""
        try:
            columns = tuple(map(Column.from_json, value["columns"]))
            targets = tuple(
                Target(**t | {"classes": None if t["classes"] is None else tuple(t["classes"])})
                for t in value["targets"]
            )
            return cls(columns, targets, value["task"], value["missing"], tuple(value["unused"]))
        except (AttributeError, KeyError, TypeError) as error:
            raise TableError(
                f"the model's description of its columns cannot be read ({error!r}). The model was "
                "not made from a table, or by another version of secateur."
            ) from error


class EncodedTable(NamedTuple):
    """A table as a network sees it.

    Attributes:
        x: Inputs, of shape (rows, inputs), float64.
        y: Numbers of shape (rows, targets), or numbers of classes of shape (rows,).
        encoding: Encoding of inputs and targets, to be stored with the model.
        rows: Positions of these rows in the table.
        notes: Messages about the decisions made; the first is about the task.
    """

    x: np.ndarray
    y: np.ndarray
    encoding: Encoding
    rows: np.ndarray
    notes: list[str]


def encode_table(
    frame: pd.DataFrame,
    targets: Sequence[str],
    *,
    task: str | None = None,
    missing: str = "error",
    drop: Sequence[str] = (),
    max_categories: int = MAX_CATEGORIES,
    dates: str = "error",
    texts: pd.DataFrame | None = None,
) -> EncodedTable:
    """Decide the kind of every column, and encode the table.

    A first column without a name that holds row numbers or row names is left out.

    Args:
        frame: A table from `read_table`.
        targets: Columns to predict; several of them for regression only.
        task: "regression" or "classification". By default the target decides.
        missing: "error"; "drop", to leave out rows with missing values; or "mean", to impute the
            mean or the most frequent category. A row without a target is an error, or is left out.
            With "mean", a column with at least five missing and five present values also gets an
            indicator input, which is 1 where the value is missing and 0 elsewhere; pruning removes
            it if it does not help. Columns that are missing in the same rows share the indicator of
            the first of them.
        drop: Columns not to use.
        max_categories: Maximum number of different text values in a column of categories.
        dates: "error", or "parts", to turn dates into their year, day of the year (sine and
            cosine), weekday (an input for each) and time of day (sine and cosine), as far as these
            differ between rows.
        texts: The targets of the same table read as text, from which the classes get their names.
            Defaults to the values in `frame`, in which a reader has turned the text 01 into the
            number 1.

    Raises:
        TableError: The message names the column and suggests what to do.

    Example:
        >>> table = pd.DataFrame({"size": range(12), "kind": list("abcabcabcabc"), "y": 12 * [0.5]})
        >>> table.loc[0, "y"] = 1.5
        >>> encoded = encode_table(table, ["y"], task="regression")
        >>> [i["name"] for i in encoded.encoding.inputs]
        ['size', 'kind=a', 'kind=b', 'kind=c']
    """
    for name, value, supported in (
        ("task", task, (None, *TASKS)),
        ("missing", missing, MISSING),
        ("dates", dates, DATES),
    ):
        if value not in supported:
            known = ", ".join(s for s in supported if s is not None)
            raise TableError(f"{name}={value!r} is not known. Supported: {known}.")
    used = _choose_columns(frame, targets, drop)
    used, index_notes = _leave_out_index(frame, used)
    frame, rows, notes = _drop_incomplete_rows(frame, used, list(targets), missing)
    if len(rows) < _MIN_ROWS:
        raise TableError(
            f"{len(rows)} rows {'are left' if notes else 'are given'}, which are too few for "
            f"training: give at least {_MIN_ROWS}."
        )
    encoded_targets = encode_targets(
        frame, targets, task=task, max_categories=max_categories, texts=texts
    )
    candidates = {n: Column.from_values(n, frame[n], max_categories, dates) for n in used}
    indicators = choose_indicators(frame[used]) if missing == "mean" else []
    columns = _gather_columns(candidates, indicators)
    if not columns:
        raise TableError(
            "no column is left to predict from: all others are dropped or have only one value."
        )
    names = {column.name for column in columns}
    notes = [*index_notes, *notes, *_describe_columns(columns)]
    constant = [name for name in used if name not in names]
    if constant:
        notes.append(f"columns with only one value are not used: {quote_names(constant)}")
    unused = tuple(name for name in frame.columns if name not in {*names, *targets})
    encoding = Encoding(columns, encoded_targets.targets, encoded_targets.task, missing, unused)
    inputs = encoding.encode(frame)
    notes = [encoded_targets.note, *notes, *inputs.notes]
    return EncodedTable(inputs.x, encoded_targets.y, encoding, rows, notes)


def _choose_columns(frame: pd.DataFrame, targets: Sequence[str], drop: Sequence[str]) -> list[str]:
    if not targets:
        raise TableError("there is no target. Give the name of the column to predict.")
    for role, names in (("target", targets), ("column to drop", drop)):
        unknown = [name for name in names if name not in frame]
        if unknown:
            raise TableError(
                f"there is no {role} {unknown[0]!r} in the table. It has the columns "
                f"{quote_names(list(frame.columns), 20)}."
            )
    repeated = [name for name, count in Counter(targets).items() if count > 1]
    if repeated:
        raise TableError(f"target {repeated[0]!r} is given more than once.")
    both = [name for name in targets if name in drop]
    if both:
        raise TableError(f"column {both[0]!r} is both a target and a column to drop. Choose one.")
    used = [name for name in frame.columns if name not in {*targets, *drop}]
    if not used:
        raise TableError("no column is left to predict from: all are targets or dropped.")
    return used


def _leave_out_index(frame: pd.DataFrame, used: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns without one that merely numbers or names the rows, and a note on it.

    Such a column is the first, has no name, and contains a different integer in every row (not
    necessarily consecutive, in a subset of a table), or a different text that is not a date.

    Raises:
        TableError: The first column has no name and is something else.
    """
    if UNNAMED not in used or frame.columns[0] != UNNAMED or not len(frame):
        return used, []
    values = frame[UNNAMED]
    numbers, is_strange = try_numbers(values)
    texts = {text for text in to_texts(values) if text is not None}
    is_dated = pd.api.types.is_datetime64_any_dtype(values)
    if is_dated or (is_strange.all() and are_dates(sorted(texts)[:1000])):
        return used, []
    is_number = bool(np.all(numbers == np.round(numbers)))
    if len(texts) < len(values) or not (is_number or is_strange.all()):
        problem = (
            "has no name in the header, but does not number or name the rows. Give it a name to "
            "use it."
        )
        raise make_column_error(UNNAMED, "column", problem, advise_drop=True)
    note = (
        f"the first column has no name and only {'numbers' if is_number else 'names'} the rows: it "
        "is not used (name it in the header to use it)"
    )
    return [name for name in used if name != UNNAMED], [note]


def _gather_columns(
    candidates: dict[str, Column | None], indicators: list[str]
) -> tuple[Column, ...]:
    """Return the columns that are used; one with a single value is used if it is often missing."""
    columns = []
    for name, column in candidates.items():
        if name in indicators:
            columns.append(replace(column or Column(name, "presence"), has_indicator=True))
        elif column is not None:
            columns.append(column)
    return tuple(columns)


def _describe_columns(columns: tuple[Column, ...]) -> list[str]:
    notes = []
    for column in columns:
        if column.kind == "date":
            reading = f" ({describe_format(column.date_format)})" if column.date_format else ""
            parts = [*column.parts, *(["weekday"] if column.categories else [])]
            notes.append(f"dates of {column.name!r}{reading} become {', '.join(parts)}")
    indicators = [column.name for column in columns if column.has_indicator]
    if indicators:
        notes.append(
            f"inputs that say whether a value is missing are added for {quote_names(indicators)}"
        )
    return notes


def _drop_incomplete_rows(
    frame: pd.DataFrame, used: list[str], targets: list[str], missing: str
) -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    """Leave out the rows whose gaps cannot be filled in; return the other rows, and notes."""
    notes = []
    rows = np.arange(len(frame))
    for role, names in (("target", targets), ("column", used)):
        gaps = find_gaps(frame[names])
        if not gaps:
            continue
        if missing == "error":
            others_have_gaps = role == "target" and bool(find_gaps(frame[used]))
            raise make_missing_error(gaps, role, others_have_gaps=others_have_gaps)
        empty = [name for name, is_missing in gaps.items() if is_missing.all()]
        if empty:
            raise make_column_error(empty[0], role, "has no value in any row.")
        if role == "target" or missing == "drop":
            is_incomplete = np.any(list(gaps.values()), axis=0)
            frame, rows = frame[~is_incomplete], rows[~is_incomplete]
            notes.append(
                f"{int(is_incomplete.sum())} rows are left out, because {quote_names(list(gaps))} "
                f"{'has' if len(gaps) == 1 else 'have'} no value there"
            )
    return frame, rows, notes
