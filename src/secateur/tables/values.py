"""A column's values as numbers or as texts, with the place of what is neither."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from secateur.tables.errors import TableError, quoted, rows_of

# Squares of larger numbers, which standardising needs, come near the end of float64.
_LARGEST = 1e100

_DATE = re.compile(
    r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?"  # 2024-01-31, 31.1.2024, 1/31/24 10:15
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"  # 10:15
    r"|(\d{1,2}[-. ]+)?(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[-,. ]+\d[\d, ]*",
    re.IGNORECASE,
)


def missing(values: pd.Series) -> np.ndarray:
    """Return where there is no value: empty, blank or one of the words pandas knows for that."""
    empty = values.isna().to_numpy(bool)
    if _is_text(values):
        blank = values[~empty].astype(str).str.strip() == ""
        empty = empty.copy()
        empty[np.flatnonzero(~empty)] = blank.to_numpy(bool)
    return empty


def numbers(name: str, values: pd.Series) -> np.ndarray:
    """Return a column as float64 with nan where there is none.

    Raises:
        TableError: a value is no number, or infinite, or too large to compute with.
    """
    found, strange = attempted_numbers(values)
    if strange.any():
        places = values.index[strange]
        raise TableError(
            f"column {name!r} holds numbers, but not in {rows_of(places)}: "
            f"{quoted([values[places[0]]])}. Correct that, leave it empty (see --missing), or "
            f"leave the column out with --drop {as_option(name)}."
        )
    infinite = values.index[np.isinf(found)]
    if len(infinite):
        raise TableError(
            f"column {name!r} is infinite in {rows_of(infinite)}. Correct that, leave it empty "
            f"(see --missing), or leave the column out with --drop {as_option(name)}."
        )
    large = values.index[np.abs(found) > _LARGEST]
    if len(large):
        raise TableError(
            f"column {name!r} is beyond ±{_LARGEST:g} in {rows_of(large)}, which is too large to "
            f"compute with. Use larger units, or --drop {as_option(name)}."
        )
    return found


def attempted_numbers(values: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return a column as float64, and where there was something that is no number."""
    empty = missing(values)
    if values.dtype == object or _is_text(values):
        values = values.where(~empty, None)
    try:
        found = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError):  # lists and other things that are no single values
        found = np.full(len(values), np.nan)
    return found, np.isnan(found) & ~empty


def truths(name: str, values: pd.Series) -> np.ndarray:
    """Return a column of booleans (or of 0 and 1) as float64 with nan where there is none.

    Raises:
        TableError: a value is neither true nor false.
    """
    empty = missing(values)
    words = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
    found = np.full(len(values), np.nan)
    given = values[~empty].map(lambda v: words.get(str(v).strip().lower(), np.nan))
    found[~empty] = given.to_numpy(np.float64)
    strange = np.flatnonzero(np.isnan(found) & ~empty)
    if len(strange):
        raise TableError(
            f"column {name!r} holds true and false, but {quoted([values.iloc[strange[0]]])} in "
            f"{rows_of(values.index[strange])}. Correct that, or leave it empty (see --missing)."
        )
    return found


def texts(values: pd.Series) -> np.ndarray:
    """Return a column as texts without blanks around them, None where there is none."""
    empty = missing(values)
    found = np.full(len(values), None, object)
    found[~empty] = values[~empty].map(lambda v: str(v).strip()).to_numpy(object)
    return found


def looks_like_dates(distinct: list[str]) -> bool:
    """Whether most of some texts are dates or times of day."""
    return sum(_DATE.fullmatch(text) is not None for text in distinct) > 0.8 * len(distinct)


def _is_text(values: pd.Series) -> bool:
    return values.dtype == object or isinstance(values.dtype, pd.StringDtype | pd.CategoricalDtype)


def as_option(name: str) -> str:
    """Return a column's name as one would type it."""
    return name if re.fullmatch(r"[\w.-]+", name) else f"'{name}'"


def way_out(name: str, role: str) -> str:
    """Return what to do about a column that cannot be used."""
    if role == "target":
        return "Choose another --target."
    return f"Leave it out with --drop {as_option(name)}."
