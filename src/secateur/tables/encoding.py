"""How columns become inputs of a network: decided once, written down, and repeated for new rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from secateur.tables.errors import TableError, quoted, rows_of
from secateur.tables.values import missing, numbers, texts, truths

__all__ = ["MISSING", "Column", "Encoded", "Encoding", "Target"]

MISSING = ("error", "drop", "mean")


@dataclass(frozen=True)
class Column:
    """A column of inputs.

    Attributes:
        name: in the header.
        kind: "number", "boolean" or "category".
        categories: of a category, sorted. Two make one input, more one each.
        fill: the mean of the numbers, or the most frequent category, of the rows it was made from.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    fill: float | str | None = None

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs it makes."""
        if self.kind != "category":
            return [self.name]
        shown = self.categories[1:] if len(self.categories) == 2 else self.categories
        return [f"{self.name}={category}" for category in shown]

    def encode(self, values: pd.Series, *, fill: bool) -> np.ndarray:
        """Return the inputs, of shape (rows, inputs); nan where a value is missing.

        Args:
            values: the column.
            fill: whether missing values are replaced.

        Raises:
            TableError: values are not what they were when the encoding was made.
        """
        if self.kind == "category":
            codes = self._codes(values, fill)
            hot = np.full((len(codes), len(self.categories)), np.nan)
            hot[codes >= 0] = np.eye(len(self.categories))[codes[codes >= 0]]
            return hot[:, 1:] if len(self.categories) == 2 else hot
        convert = numbers if self.kind == "number" else truths
        found = convert(self.name, values)
        if fill and np.isnan(found).any():
            if not isinstance(self.fill, int | float):
                raise TableError(
                    f"column {self.name!r} has missing values, and the model knows no mean of it. "
                    "Fill them in or remove these rows (--missing drop)."
                )
            found = np.where(np.isnan(found), float(self.fill), found)
        return found[:, None]

    def _codes(self, values: pd.Series, fill: bool) -> np.ndarray:
        labels = texts(values)
        empty = np.array([label is None for label in labels], bool)
        if fill:
            labels[empty] = self.fill
        codes = pd.Index(self.categories, dtype=object).get_indexer(labels)
        unseen = np.flatnonzero((codes < 0) & ~(empty & (not fill)))
        if len(unseen):
            raise TableError(
                f"column {self.name!r} holds {quoted(sorted(set(labels[unseen])))} in "
                f"{rows_of(values.index[unseen])}, which the model has not seen. Known: "
                f"{quoted(self.categories, 20)}. Correct or remove these rows, or fit again with "
                "data that hold them."
            )
        return codes


@dataclass(frozen=True)
class Target:
    """A column to predict.

    Attributes:
        name: in the header.
        classes: in the order of the network's outputs, or None for numbers.
    """

    name: str
    classes: tuple[str, ...] | None = None


class Encoded(NamedTuple):
    """Inputs of a network.

    Attributes:
        x: of shape (rows, inputs), float64.
        rows: positions in the table of the rows that are there; fewer with missing="drop".
        notes: what a user should know, in sentences.
    """

    x: np.ndarray
    rows: np.ndarray
    notes: list[str]


@dataclass(frozen=True)
class Encoding:
    """All that is needed to encode new rows as those that a model was made from.

    Attributes:
        columns: in the order of the inputs.
        targets: in the order of the outputs.
        task: "regression" or "classification".
        missing: what is done with missing values: "error", "drop" or "mean".
        unused: columns that were there and are not used.
    """

    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    task: str
    missing: str = "error"
    unused: tuple[str, ...] = ()

    @property
    def text_columns(self) -> list[str]:
        """Return the columns that a reader must not take for numbers."""
        return [c.name for c in self.columns if c.kind == "category"]

    @property
    def inputs(self) -> list[dict[str, str]]:
        """Return name, column and kind of every input."""
        return [
            {"name": name, "column": column.name, "kind": column.kind}
            for column in self.columns
            for name in column.inputs
        ]

    @property
    def outputs(self) -> int:
        """Return how many outputs a network needs."""
        classes = self.targets[0].classes
        return len(self.targets) if classes is None else len(classes)

    def encode(self, frame: pd.DataFrame, *, missing: str | None = None) -> Encoded:
        """Encode a table's rows; columns are found by name, in whatever order.

        Args:
            frame: from `read`, with `text_columns` as text.
            missing: "error", "drop" or "mean", by default as the encoding was made.

        Raises:
            TableError: a column is not there, or its values are not what they were.
        """
        missing = self.missing if missing is None else missing
        lacking = [c.name for c in self.columns if c.name not in frame]
        if lacking:
            raise TableError(
                f"the table has no column {quoted(lacking)}, which the model needs. It has "
                f"{quoted(list(frame.columns), 20)}. Add what is lacking, or name it so."
            )
        rows = np.arange(len(frame))
        notes = self._notes(frame)
        used = frame[[c.name for c in self.columns]]
        empty = missing_by_column(used)
        if missing == "error" and empty:
            raise missing_values(empty, "column")
        if missing == "drop" and empty:
            gone = np.any(list(empty.values()), axis=0)
            rows, used = rows[~gone], used[~gone]
            notes.append(f"{int(gone.sum())} rows with missing values are left out")
        if missing == "mean" and empty:
            notes.append(f"missing values of {quoted(list(empty))} are filled in")
        x = np.empty((len(rows), len(self.inputs)))
        start = 0
        for column in self.columns:
            part = column.encode(used[column.name], fill=missing == "mean")
            x[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return Encoded(x, rows, notes)

    def _notes(self, frame: pd.DataFrame) -> list[str]:
        known = {c.name for c in self.columns} | {t.name for t in self.targets} | {*self.unused}
        extra = [name for name in frame.columns if name not in known]
        return [f"columns the model does not know are ignored: {quoted(extra)}"] if extra else []

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes: dicts, lists, texts and numbers."""
        return json.loads(json.dumps(asdict(self)))  # tuples become lists

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Encoding:
        """Return the encoding that `to_json` wrote down."""
        try:
            columns = tuple(
                Column(**c | {"categories": tuple(c["categories"])}) for c in value["columns"]
            )
            targets = tuple(
                Target(t["name"], None if t["classes"] is None else tuple(t["classes"]))
                for t in value["targets"]
            )
            return cls(columns, targets, value["task"], value["missing"], tuple(value["unused"]))
        except (KeyError, TypeError) as error:
            raise TableError(
                f"the model's description of its columns cannot be read ({error!r}). It was not "
                "made by `secateur fit`, or by another version of it."
            ) from error


def missing_by_column(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return where values are missing, for the columns in which some are."""
    found = {str(name): missing(frame[name]) for name in frame.columns}
    return {name: empty for name, empty in found.items() if empty.any()}


def missing_values(empty: dict[str, np.ndarray], role: str) -> TableError:
    """Return the error for values that must not be missing and are."""
    name, where = max(empty.items(), key=lambda pair: pair[1].sum())
    others = [other for other in empty if other != name]
    also = f" (and {quoted(others)} in some)" if others else ""
    return TableError(
        f"{role} {name!r} has no value in {rows_of(np.flatnonzero(where))}{also}. Use --missing "
        "drop (leave such rows out), --missing mean (fill in the mean, or the most frequent "
        "category), or --drop COLUMN."
    )
