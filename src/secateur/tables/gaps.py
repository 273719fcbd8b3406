"""Missing values: their location, indicator inputs, and messages about them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from secateur.remedies import Remedy
from secateur.tables.cells import TableError, find_missing, number_rows, quote_names

__all__ = ["MISSING", "choose_indicators", "find_gaps", "make_missing_error"]

# Treatments of missing values.
MISSING = ("error", "drop", "mean")
# An indicator of missing values needs at least this number of rows of either kind.
_MIN_INDICATOR_ROWS = 5


def find_gaps(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return masks of the missing values, for columns that have some."""
    gaps = {str(name): find_missing(frame[name]) for name in frame.columns}
    return {name: is_missing for name, is_missing in gaps.items() if is_missing.any()}


def make_missing_error(
    gaps: dict[str, np.ndarray],
    role: str,
    *,
    can_drop_columns: bool = True,
    others_have_gaps: bool = False,
) -> TableError:
    """Return the error for missing values; the recommended argument resolves it."""
    name, is_missing = max(gaps.items(), key=lambda pair: pair[1].sum())
    others = [other for other in gaps if other != name]
    also = f" (and {quote_names(others)} in some)" if others else ""
    leave_out = Remedy("missing", "drop", "leaves such rows out", is_advised=True)
    effect = "fills in the mean, or the most frequent category, and adds an input where values are "
    effect += "often missing"
    fill = Remedy("missing", "mean", effect, is_advised=True)
    if role == "column":
        drop_column = Remedy("drop", [name], "leaves the column out")
        remedies = [fill, leave_out, *([drop_column] if can_drop_columns else [])]
    elif others_have_gaps:
        effect = "leaves such rows out, and fills in what is missing in other columns"
        every = Remedy("missing", "drop", "leaves out all rows in which something is missing")
        remedies = [Remedy("missing", "mean", effect, is_advised=True), every]
    else:
        remedies = [leave_out]
    return TableError(
        f"{role} {name!r} has no value in {number_rows(np.flatnonzero(is_missing))}{also}.",
        *remedies,
    )


def choose_indicators(frame: pd.DataFrame) -> list[str]:
    """Return the columns that get an indicator of missing values.

    Pruning decides whether it helps. Columns that are missing in the same rows, or exactly where
    another one is present, share one indicator.
    """
    chosen: list[str] = []
    patterns = set()
    for name, is_missing in find_gaps(frame).items():
        count = int(is_missing.sum())
        pattern = (is_missing ^ is_missing[0]).tobytes()
        if _MIN_INDICATOR_ROWS <= count <= len(frame) - _MIN_INDICATOR_ROWS:
            if pattern not in patterns:
                chosen.append(name)
            patterns.add(pattern)
    return chosen
