"""A column of a table: its kind, and its values as numbers or text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from secateur.remedies import Remedy
from secateur.tables.cells import (
    TRUTHS,
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
from secateur.tables.dates import (
    WEEKDAYS,
    are_dates,
    compute_parts,
    find_date_format,
    find_weekdays,
    read_dates,
)

__all__ = ["DATES", "MAX_CATEGORIES", "Column"]

# Treatments of dates.
DATES = ("error", "parts")

# Default maximum number of different text values in a column of categories.
MAX_CATEGORIES = 50
_NUMBERS = {"integer", "floating", "mixed-integer-float", "decimal"}
_DATES = {"datetime64", "datetime", "date", "time"}
_DURATIONS = {"timedelta64", "timedelta", "period"}
# Parts of dates that differ by less than this are the same; sines have rounding errors.
_SAME = 1e-9


# --- kinds ----------------------------------------------------------------------------------------


def find_kind(
    name: str,
    values: pd.Series,
    *,
    max_categories: int = MAX_CATEGORIES,
    role: str = "column",
    dates: str = "error",
) -> str:
    """Return "number", "boolean", "category" or "date".

    Args:
        name: Name of the column, for messages.
        values: The column; at least one value must be present.
        max_categories: Maximum number of different text values in a column of categories.
        role: "column" or "target", for messages.
        dates: "error", or "parts" if dates are allowed.

    Raises:
        TableError: The column contains dates, free text, or something else that cannot be used.

    Example:
        >>> find_kind("age", pd.Series([31, 45])), find_kind("fed", pd.Series([True, False]))
        ('number', 'boolean')
    """
    dtype = pd.api.types.infer_dtype(values, skipna=True)
    if dtype == "boolean":
        return "boolean"
    if dtype in _NUMBERS:
        to_numbers(name, values, role=role)
        return "number"
    if dtype in _DATES and dates == "parts":
        return "date"
    if dtype in _DATES | _DURATIONS:
        example = str(values.dropna().iloc[0])
        raise _make_date_error(name, role, example, is_duration=dtype in _DURATIONS)
    if dtype not in ("string", "categorical", "mixed-integer", "mixed", "empty"):
        problem = f"holds values of the kind {dtype!r}. Supported: numbers, booleans and text."
        raise make_column_error(name, role, problem)
    if not values.dropna().map(lambda v: isinstance(v, str | int | float | bool)).all():
        raise make_column_error(name, role, "holds values that are neither numbers nor text.")
    return _find_kind_of_texts(name, values, max_categories, role, dates)


def _find_kind_of_texts(
    name: str, values: pd.Series, max_categories: int, role: str, dates: str
) -> str:
    _, is_strange = try_numbers(values)
    if not is_strange.any():
        to_numbers(name, values, role=role)
        return "number"
    is_present = ~find_missing(values)
    distinct = sorted(set(to_texts(values)[is_present]))
    if all(text.lower() in TRUTHS for text in distinct):
        return "boolean"
    if are_dates(distinct[:1000]):
        if dates == "parts":
            return "date"
        raise _make_date_error(name, role, distinct[0])
    if is_strange.sum() < 0.5 * is_present.sum() and len(distinct) > 10:
        to_numbers(
            name, values, role=role
        )  # raises an error that names the value that is not a number
    rows = int(np.sum(is_present))
    examples = f"such as {quote_names(distinct, 2)}"
    if len(distinct) > max_categories:
        raise make_column_error(
            name,
            role,
            f"holds {len(distinct)} different text values, {examples}; this is free text, or too "
            f"many categories (at most {max_categories}).",
            Remedy("max_categories", len(distinct), "allows as many"),
            advise_drop=True,
        )
    if len(distinct) > max(2, rows // 2):
        problem = (
            f"holds {len(distinct)} different text values in {rows} rows, {examples}; these are "
            "names or free text rather than categories."
        )
        raise make_column_error(name, role, problem, advise_drop=True)
    return "category"


def _make_date_error(
    name: str, role: str, example: str, *, is_duration: bool = False
) -> TableError:
    kind = "durations or periods" if is_duration else "dates or times"
    problem = (
        f"holds {kind}, such as {example!r}. Convert them to meaningful numbers, such as days "
        "since an event."
    )
    if is_duration or role == "target":
        return make_column_error(name, role, problem)
    effect = "turns them into year, day of the year, weekday and time"
    parts = Remedy("dates", "parts", effect, is_advised=True)
    drop = Remedy("drop", [name], "leaves the column out")
    return TableError(f"column {name!r} {problem}", parts, drop)


# --- inputs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of inputs.

    Attributes:
        name: Name in the header.
        kind: "number", "boolean", "category", "date", or "presence" for a column with a single
            value, of which only the presence matters.
        categories: Sorted names of the categories, or the weekdays of a date. Two of them become
            one input, more become one input each.
        fill: Replacement for missing values: the mean of the numbers, the most frequent category,
            or the means of a date's inputs, of the rows that the column was made from.
        limits: Smallest and largest number in these rows, or None if they are not numbers.
        has_indicator: Whether the last input is an indicator of missing values, 1 or 0.
        date_format: Format of the date for `strptime`, without the time.
        parts: Numbers that a date becomes; see `secateur.tables.dates.compute_parts`.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    fill: float | str | tuple[float, ...] | None = None
    limits: tuple[float, float] | None = None
    has_indicator: bool = False
    date_format: str = ""
    parts: tuple[str, ...] = ()

    @classmethod
    def from_values(
        cls, name: str, values: pd.Series, max_categories: int, dates: str = "error"
    ) -> Column | None:
        """Return the encoding of a column, or None if it has only one value."""
        kind = find_kind(name, values, max_categories=max_categories, dates=dates)
        if kind == "date":
            return cls._from_dates(name, values)
        if kind == "category":
            counts = Counter(text for text in to_texts(values) if text is not None)
            if len(counts) == 1:
                return None
            return cls(name, kind, tuple(sorted(counts)), counts.most_common(1)[0][0])
        numbers = to_numbers(name, values) if kind == "number" else to_truths(name, values)
        limits = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        if limits[0] == limits[1]:
            return None
        return cls(name, kind, fill=float(np.nanmean(numbers)), limits=limits)

    @classmethod
    def _from_dates(cls, name: str, values: pd.Series) -> Column | None:
        """Return a column with the parts of its dates that differ between rows."""
        date_format = find_date_format(name, values)
        dates = read_dates(name, values, date_format)
        present = dates[~dates.isna()]
        parts = tuple(part for part, v in compute_parts(present).items() if np.ptp(v) > _SAME)
        # Weekdays are meaningless for dates that are weeks or months apart.
        gaps = np.diff(np.unique(present.normalize().to_numpy()))
        is_daily = bool(np.any(gaps < np.timedelta64(7, "D")))
        weekdays = set(find_weekdays(present)) if is_daily else set()
        categories = tuple(day for day in WEEKDAYS if day in weekdays)
        if not parts and not categories:
            return None
        column = cls(name, "date", categories, date_format=date_format, parts=parts)
        means = np.nanmean(column.encode(values, fill=False), axis=0)
        return replace(column, fill=tuple(means.tolist()))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Column:
        """Return a column from a dict of its fields, with lists in place of tuples."""
        fields: dict[str, Any] = {
            name: tuple(field) if isinstance(field, list) else field
            for name, field in value.items()
        }
        return cls(**fields)

    @property
    def _shown_categories(self) -> tuple[str, ...]:
        return self.categories[1:] if len(self.categories) == 2 else self.categories

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs that it becomes."""
        if self.kind == "category":
            names = [f"{self.name}={category}" for category in self._shown_categories]
        elif self.kind == "date":
            names = [f"{self.name} {part}" for part in self.parts]
            names += [f"{self.name} weekday={day}" for day in self._shown_categories]
        else:
            names = [] if self.kind == "presence" else [self.name]
        return [*names, f"{self.name} is missing"] if self.has_indicator else names

    @property
    def input_kinds(self) -> list[str]:
        """Return the kind of each input: "number", "boolean" or "category"."""
        if self.kind == "date":
            kinds = len(self.parts) * ["number"] + len(self._shown_categories) * ["category"]
        else:
            kinds = (len(self.inputs) - self.has_indicator) * [self.kind]
        return [*kinds, "boolean"] if self.has_indicator else kinds

    def encode(self, values: pd.Series, *, fill: bool) -> np.ndarray:
        """Return the inputs, of shape (rows, inputs), with nan where a value is missing.

        Args:
            values: The column.
            fill: Whether missing values are replaced.

        Raises:
            TableError: Values are of a different kind than in the training data.
        """
        inputs = self._encode_values(values, fill)
        if self.has_indicator:
            inputs = np.column_stack([inputs, find_missing(values).astype(np.float64)])
        return inputs

    def _encode_values(self, values: pd.Series, fill: bool) -> np.ndarray:
        if self.kind == "presence":
            return np.empty((len(values), 0))
        if self.kind == "category":
            labels = to_texts(values)
            if fill:
                labels[find_missing(values)] = self.fill
            return self._encode_labels(labels, values)
        if self.kind == "date":
            dates = read_dates(self.name, values, self.date_format)
            parts = compute_parts(dates)
            numbers = np.array([parts[part] for part in self.parts], np.float64)
            numbers = numbers.reshape(len(self.parts), len(values)).T
            if self.categories:
                days = self._encode_labels(find_weekdays(dates), values, "dates on ")
                numbers = np.column_stack([numbers, days])
        else:
            convert = to_numbers if self.kind == "number" else to_truths
            numbers = convert(self.name, values)[:, None]
        return self._replace_missing(numbers) if fill else numbers

    def _replace_missing(self, numbers: np.ndarray) -> np.ndarray:
        if not np.isnan(numbers).any():
            return numbers
        if self.fill is None or isinstance(self.fill, str):
            raise TableError(
                f"column {self.name!r} has missing values, and the model does not know its "
                "mean. Fill them in.",
                Remedy("missing", "drop", "leaves such rows out"),
            )
        return np.where(np.isnan(numbers), np.asarray(self.fill, np.float64), numbers)

    def _encode_labels(self, labels: np.ndarray, values: pd.Series, kind: str = "") -> np.ndarray:
        """Return one input for each category that is shown, with nan where a label is None."""
        is_missing = np.array([label is None for label in labels], bool)
        codes = pd.Index(self.categories, dtype=object).get_indexer(labels)
        unseen = np.flatnonzero((codes < 0) & ~is_missing)
        if len(unseen):
            raise TableError(
                f"column {self.name!r} holds {kind}{quote_names(sorted(set(labels[unseen])))} in "
                f"{number_rows(values.index[unseen])}, which the model has not seen. Known: "
                f"{quote_names(self.categories, 20)}. Correct or remove these rows, or fit again "
                "with data that contain them."
            )
        hot = np.full((len(codes), len(self.categories)), np.nan)
        hot[codes >= 0] = np.eye(len(self.categories))[codes[codes >= 0]]
        return hot[:, 1:] if len(self.categories) == 2 else hot
