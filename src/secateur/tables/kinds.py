"""What a column is: numbers, booleans or categories; or why it is none of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from secateur.tables.errors import TableError, quoted
from secateur.tables.values import (
    attempted_numbers,
    looks_like_dates,
    missing,
    numbers,
    texts,
    way_out,
)

__all__ = ["MOST_CATEGORIES", "kind_of"]

MOST_CATEGORIES = 50
_NUMBERS = {"integer", "floating", "mixed-integer-float", "decimal"}
_DATES = {"datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period"}


def kind_of(
    name: str, values: pd.Series, *, most_categories: int = MOST_CATEGORIES, role: str = "column"
) -> str:
    """Return "number", "boolean" or "category".

    Args:
        name: for messages.
        values: the column, not all of it missing.
        most_categories: how many different texts a column of categories may have.
        role: "column" or "target", for messages.

    Raises:
        TableError: the column holds dates, free text, or something else that is no input.

    Example:
        >>> kind_of("age", pd.Series([31, 45])), kind_of("fed", pd.Series([True, False]))
        ('number', 'boolean')
    """
    out = way_out(name, role)
    found = pd.api.types.infer_dtype(values, skipna=True)
    if found == "boolean":
        return "boolean"
    if found in _NUMBERS:
        numbers(name, values)
        return "number"
    if found in _DATES:
        raise _dates(name, role, str(values.dropna().iloc[0]), out)
    if found not in ("string", "categorical", "mixed-integer", "mixed", "empty"):
        raise TableError(
            f"{role} {name!r} holds values of the kind {found!r}. Supported: numbers, booleans and "
            f"texts. {out}"
        )
    if not values.dropna().map(lambda v: isinstance(v, str | int | float | bool)).all():
        raise TableError(f"{role} {name!r} holds values that are neither numbers nor texts. {out}")
    return _kind_of_texts(name, values, most_categories, role, out)


def _kind_of_texts(name: str, values: pd.Series, most_categories: int, role: str, out: str) -> str:
    _, strange = attempted_numbers(values)
    if not strange.any():
        numbers(name, values)
        return "number"
    filled = ~missing(values)
    distinct = sorted(set(texts(values)[filled]))
    if looks_like_dates(distinct[:1000]):
        raise _dates(name, role, distinct[0], out)
    if strange.sum() < 0.5 * filled.sum() and len(distinct) > 10:
        numbers(name, values)  # which says what is not one
    rows = int(np.sum(filled))
    if len(distinct) > most_categories:
        raise TableError(
            f"{role} {name!r} holds {len(distinct)} different texts, such as "
            f"{quoted(distinct, 2)}; that is free text or too many categories (at most "
            f"{most_categories}; see --max-categories). {out}"
        )
    if len(distinct) > max(2, rows // 2):
        raise TableError(
            f"{role} {name!r} holds {len(distinct)} different texts in {rows} rows, such as "
            f"{quoted(distinct, 2)}; these are names or free text rather than categories. {out}"
        )
    return "category"


def _dates(name: str, role: str, example: str, out: str) -> TableError:
    return TableError(
        f"{role} {name!r} holds dates or times, such as {example!r}. Turn them into numbers that "
        f"mean something here, such as days since an event or the month. {out}"
    )
