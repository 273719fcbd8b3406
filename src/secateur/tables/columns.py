"""A column of a table: what kind of values it has, and these as numbers or texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from secateur.remedies import Remedy, UsageError

__all__ = ["MAX_CATEGORIES", "Column", "TableError"]

# Default of the number of different texts that a column of categories may have.
MAX_CATEGORIES = 50
# Squares of larger numbers, which standardising needs, come near the end of float64.
_LARGEST = 1e100
_NUMBERS = {"integer", "floating", "mixed-integer-float", "decimal"}
_DATES = {"datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period"}
_TRUTHS = {"true": 1.0, "false": 0.0}
_DATE = re.compile(
    r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?"  # 2024-01-31, 31.1.2024, 1/31/24 10:15
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"  # 10:15
    r"|(\d{1,2}[-. ]+)?(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[-,. ]+\d[\d, ]*",
    re.IGNORECASE,
)


class TableError(UsageError):
    """A table cannot be used as it is; the message names the column and says what would help."""


# --- words for messages ---------------------------------------------------------------------------


def quote_names(names: Sequence[Any], limit: int = 5) -> str:
    """Return names for a sentence, the first few of them."""
    shown = ", ".join(repr(_shorten(str(name))) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def number_rows(positions: Any, limit: int = 5) -> str:
    """Return row numbers for a sentence: from 1, the header not counted."""
    shown = ", ".join(str(int(p) + 1) for p in positions[:limit])
    more = "" if len(positions) <= limit else f" and {len(positions) - limit} more"
    return f"row{'s' if len(positions) > 1 else ''} {shown}{more}"


def make_column_error(name: str, role: str, problem: str, *remedies: Remedy) -> TableError:
    """Return the error for a column that cannot be used.

    Args:
        name: Name of the column.
        role: "column" or "target".
        problem: What is wrong with it, as the rest of a sentence, and further sentences.
        remedies: Arguments that would help, beside leaving the column out.
    """
    if role == "target":
        return TableError(f"target {name!r} {problem} Or choose another target.", *remedies)
    drop = Remedy("drop", [name], "leaves the column out")
    return TableError(f"column {name!r} {problem}", drop, *remedies)


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- values ---------------------------------------------------------------------------------------


def find_missing(values: pd.Series) -> np.ndarray:
    """Return where there is no value: empty, blank or one of the words pandas knows for that."""
    is_missing = values.isna().to_numpy(bool)
    if _has_texts(values):
        is_blank = values[~is_missing].astype(str).str.strip() == ""
        is_missing = is_missing.copy()
        is_missing[np.flatnonzero(~is_missing)] = is_blank.to_numpy(bool)
    return is_missing


def to_numbers(name: str, values: pd.Series, *, role: str = "column") -> np.ndarray:
    """Return a column as float64, with nan where a value is missing.

    Args:
        name: Name of the column, for messages.
        values: The column.
        role: "column" or "target", for messages.

    Raises:
        TableError: A value is not a number, is infinite, or is too large to compute with.
    """
    numbers, is_strange = try_numbers(values)
    places = values.index[is_strange]
    if len(places):
        raise make_column_error(
            name,
            role,
            f"holds numbers, but not in {number_rows(places)}: {quote_names([values[places[0]]])}. "
            "Correct that, or leave it empty.",
        )
    places = values.index[np.isinf(numbers)]
    if len(places):
        problem = f"is infinite in {number_rows(places)}. Correct that, or leave it empty."
        raise make_column_error(name, role, problem)
    places = values.index[np.abs(numbers) > _LARGEST]
    if len(places):
        problem = (
            f"is beyond ±{_LARGEST:g} in {number_rows(places)}, which is too large to compute "
            "with. Use larger units."
        )
        raise make_column_error(name, role, problem)
    return numbers


def try_numbers(values: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return a column as float64, and where there is a value that is not a number."""
    is_missing = find_missing(values)
    if _has_texts(values):
        values = values.where(~is_missing, None)
    try:
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError):  # lists and other things that are not single values
        numbers = np.full(len(values), np.nan)
    return numbers, np.isnan(numbers) & ~is_missing


def to_truths(name: str, values: pd.Series) -> np.ndarray:
    """Return a column of booleans (or of 0 and 1) as float64, with nan where a value is missing.

    Raises:
        TableError: A value is neither true nor false.
    """
    is_missing = find_missing(values)
    words = _TRUTHS | {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
    truths = np.full(len(values), np.nan)
    present = values[~is_missing].map(lambda v: words.get(str(v).strip().lower(), np.nan))
    truths[~is_missing] = present.to_numpy(np.float64)
    strange = np.flatnonzero(np.isnan(truths) & ~is_missing)
    if len(strange):
        raise TableError(
            f"column {name!r} holds true and false, but {quote_names([values.iloc[strange[0]]])} "
            f"in {number_rows(values.index[strange])}. Correct that, or leave it empty."
        )
    return truths


def to_texts(values: pd.Series) -> np.ndarray:
    """Return a column as texts without blanks around them, with None where a value is missing."""
    is_missing = find_missing(values)
    texts = np.full(len(values), None, object)
    texts[~is_missing] = values[~is_missing].map(write_value).to_numpy(object)
    return texts


def write_value(value: Any) -> str:
    """Return a value as text: a text without blanks around it, a whole number without decimals."""
    if isinstance(value, float | np.floating):
        number = float(value)
        if number.is_integer() and abs(number) < 1e15:
            return str(int(number))
    return str(value).strip()


def _has_texts(values: pd.Series) -> bool:
    return values.dtype == object or isinstance(values.dtype, pd.StringDtype | pd.CategoricalDtype)


# --- kinds ----------------------------------------------------------------------------------------


def find_kind(
    name: str, values: pd.Series, *, max_categories: int = MAX_CATEGORIES, role: str = "column"
) -> str:
    """Return "number", "boolean" or "category".

    Args:
        name: Name of the column, for messages.
        values: The column; some value must be there.
        max_categories: Maximum number of different texts in a column of categories.
        role: "column" or "target", for messages.

    Raises:
        TableError: The column holds dates, free text, or something else that cannot be used.

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
    if dtype in _DATES:
        raise _make_date_error(name, role, str(values.dropna().iloc[0]))
    if dtype not in ("string", "categorical", "mixed-integer", "mixed", "empty"):
        problem = f"holds values of the kind {dtype!r}. Supported: numbers, booleans and texts."
        raise make_column_error(name, role, problem)
    if not values.dropna().map(lambda v: isinstance(v, str | int | float | bool)).all():
        raise make_column_error(name, role, "holds values that are neither numbers nor texts.")
    return _find_kind_of_texts(name, values, max_categories, role)


def _find_kind_of_texts(name: str, values: pd.Series, max_categories: int, role: str) -> str:
    _, is_strange = try_numbers(values)
    if not is_strange.any():
        to_numbers(name, values, role=role)
        return "number"
    is_present = ~find_missing(values)
    distinct = sorted(set(to_texts(values)[is_present]))
    if all(text.lower() in _TRUTHS for text in distinct):
        return "boolean"
    if _are_dates(distinct[:1000]):
        raise _make_date_error(name, role, distinct[0])
    if is_strange.sum() < 0.5 * is_present.sum() and len(distinct) > 10:
        to_numbers(name, values, role=role)  # raises an error that says what is not a number
    rows = int(np.sum(is_present))
    examples = f"such as {quote_names(distinct, 2)}"
    if len(distinct) > max_categories:
        raise make_column_error(
            name,
            role,
            f"holds {len(distinct)} different texts, {examples}; that is free text, or too many "
            f"categories (at most {max_categories}).",
            Remedy("max_categories", len(distinct), "allows as many"),
        )
    if len(distinct) > max(2, rows // 2):
        problem = (
            f"holds {len(distinct)} different texts in {rows} rows, {examples}; these are names or "
            "free text rather than categories."
        )
        raise make_column_error(name, role, problem)
    return "category"


def _are_dates(distinct: list[str]) -> bool:
    """Whether most of some texts are dates or times of day."""
    return sum(_DATE.fullmatch(text) is not None for text in distinct) > 0.8 * len(distinct)


def _make_date_error(name: str, role: str, example: str) -> TableError:
    problem = (
        f"holds dates or times, such as {example!r}. Turn them into numbers that mean something "
        "here, such as days since an event or the month."
    )
    return make_column_error(name, role, problem)


# --- inputs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of inputs.

    Attributes:
        name: Name in the header.
        kind: "number", "boolean" or "category".
        categories: Texts of a category, sorted. Two of them make one input, more one input each.
        fill: Mean of the numbers, or the most frequent category, of the rows it was made from.
        limits: Least and largest number of these rows, or None where there are no numbers.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    fill: float | str | None = None
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.limits is not None:  # a list, where it comes from JSON
            object.__setattr__(self, "limits", tuple(self.limits))

    @classmethod
    def from_values(cls, name: str, values: pd.Series, max_categories: int) -> Column | None:
        """Return what a column is, or None if it has only one value."""
        kind = find_kind(name, values, max_categories=max_categories)
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

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs that it makes."""
        if self.kind != "category":
            return [self.name]
        shown = self.categories[1:] if len(self.categories) == 2 else self.categories
        return [f"{self.name}={category}" for category in shown]

    def encode(self, values: pd.Series, *, fill: bool) -> np.ndarray:
        """Return the inputs, of shape (rows, inputs), with nan where a value is missing.

        Args:
            values: The column.
            fill: Whether missing values are replaced.

        Raises:
            TableError: Values are not of the kind that they were when the encoding was made.
        """
        if self.kind == "category":
            codes = self._find_codes(values, fill)
            hot = np.full((len(codes), len(self.categories)), np.nan)
            hot[codes >= 0] = np.eye(len(self.categories))[codes[codes >= 0]]
            return hot[:, 1:] if len(self.categories) == 2 else hot
        convert = to_numbers if self.kind == "number" else to_truths
        numbers = convert(self.name, values)
        if fill and np.isnan(numbers).any():
            if not isinstance(self.fill, int | float):
                raise TableError(
                    f"column {self.name!r} has missing values, and the model does not know its "
                    "mean. Fill them in.",
                    Remedy("missing", "drop", "leaves such rows out"),
                )
            numbers = np.where(np.isnan(numbers), float(self.fill), numbers)
        return numbers[:, None]

    def _find_codes(self, values: pd.Series, fill: bool) -> np.ndarray:
        labels = to_texts(values)
        is_missing = np.array([label is None for label in labels], bool)
        if fill:
            labels[is_missing] = self.fill
        codes = pd.Index(self.categories, dtype=object).get_indexer(labels)
        unseen = np.flatnonzero((codes < 0) & ~(is_missing & (not fill)))
        if len(unseen):
            raise TableError(
                f"column {self.name!r} holds {quote_names(sorted(set(labels[unseen])))} in "
                f"{number_rows(values.index[unseen])}, which the model has not seen. Known: "
                f"{quote_names(self.categories, 20)}. Correct or remove these rows, or fit again "
                "with data that hold them."
            )
        return codes
