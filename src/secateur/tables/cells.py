"""Values of a column as numbers, booleans or text, and messages that name columns and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from secateur.remedies import Remedy, UsageError

__all__ = ["UNNAMED", "TableError"]

# The name that pandas gives to a first column without a name; we use it, too.
UNNAMED = "Unnamed: 0"

# Squares of larger numbers, which standardising needs, come near the end of float64.
_LARGEST = 1e100
TRUTHS = {"true": 1.0, "false": 0.0}


class TableError(UsageError):
    """A table cannot be used as it is; the message names the column and suggests what to do."""


# --- words for messages ---------------------------------------------------------------------------


def quote_names(names: Sequence[Any], limit: int = 5) -> str:
    """Return names for a sentence, the first few of them."""
    shown = ", ".join(repr(_shorten(str(name))) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def number_rows(positions: Any, limit: int = 5) -> str:
    """Return row numbers for a sentence, counted from 1 without the header."""
    shown = ", ".join(str(int(p) + 1) for p in positions[:limit])
    more = "" if len(positions) <= limit else f" and {len(positions) - limit} more"
    return f"row{'s' if len(positions) > 1 else ''} {shown}{more}"


def make_column_error(
    name: str, role: str, problem: str, *remedies: Remedy, advise_drop: bool = False
) -> TableError:
    """Return the error for a column that cannot be used.

    Args:
        name: Name of the column.
        role: "column" or "target".
        problem: What is wrong with it, as the rest of a sentence, and further sentences.
        remedies: Arguments that would help, beside leaving the column out.
        advise_drop: Whether leaving the column out is what most users want.
    """
    if role == "target":
        return TableError(f"target {name!r} {problem} Or choose another target.", *remedies)
    drop = Remedy("drop", [name], "leaves the column out", advise_drop)
    return TableError(f"column {name!r} {problem}", drop, *remedies)


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- values ---------------------------------------------------------------------------------------


def find_missing(values: pd.Series) -> np.ndarray:
    """Return which cells are missing: empty, blank or a word that pandas treats as missing."""
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
    words = TRUTHS | {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
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
    """Return a column as stripped strings, with None where a value is missing."""
    is_missing = find_missing(values)
    texts = np.full(len(values), None, object)
    texts[~is_missing] = values[~is_missing].map(write_value).to_numpy(object)
    return texts


def write_value(value: Any) -> str:
    """Return a value as text, without surrounding blanks; integers are written without decimals."""
    if isinstance(value, float | np.floating):
        number = float(value)
        if number.is_integer() and abs(number) < 1e15:
            return str(int(number))
    return str(value).strip()


def _has_texts(values: pd.Series) -> bool:
    return values.dtype == object or isinstance(values.dtype, pd.StringDtype | pd.CategoricalDtype)
