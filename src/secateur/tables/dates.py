"""Dates and times of day: read in one format per column, and turned into numbers.

A date becomes its year, its day of the year as a point on a circle (sine and cosine), and its
weekday; a time of day becomes a point on a circle. The order of day, month and year is decided once
per column and stored, so that new rows are read in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from secateur.tables.cells import (
    find_missing,
    make_column_error,
    number_rows,
    quote_names,
    to_texts,
)

__all__ = ["ISO_FORMAT", "compute_parts", "find_date_format", "find_weekdays", "read_dates"]

ISO_FORMAT = "%Y-%m-%d"
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SAMPLE = 200  # number of distinct texts on which formats are tried before all are read
_TEXT = re.compile(
    r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?"  # 2024-01-31, 31.1.2024, 1/31/24 10:15
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[ap]m)?"  # 10:15
    r"|(\d{1,2}[-. ]+)?(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[-,. ]+"
    r"\d[\d, ]*( \d{1,2}:\d{2}.*)?",  # 31 Jan 2024, January 31, 2024 10:15
    re.IGNORECASE,
)
# Dates with dots are never written month first.
_ORDERS = {"-": ("dmY", "mdY", "dmy", "mdy", "ymd"), "/": ("dmY", "mdY", "dmy", "mdy", "ymd"),
           ".": ("dmY", "dmy")}  # fmt: skip
_DATE_FORMATS = (
    *(f"%Y{mark}%m{mark}%d" for mark in "-/."),
    *(mark.join(f"%{field}" for field in order) for mark in _ORDERS for order in _ORDERS[mark]),
    *(f"%d{mark}%{month}{mark}%{year}" for mark in "- " for month in "bB" for year in "Yy"),
    *(f"%{month} %d{comma} %Y" for month in "bB" for comma in (",", "")),
    *(f"%{month}{mark}%{year}" for mark in "- " for month in "bB" for year in "Yy"),
    "",  # a time of day alone
)
_TIME_FORMATS = ("", "%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p")
_FIELDS = {"%Y": "year", "%y": "year", "%m": "month", "%d": "day", "%b": "month", "%B": "month"}


def are_dates(texts: Sequence[str]) -> bool:
    """Whether most of some texts are dates or times of day."""
    return sum(_TEXT.fullmatch(text) is not None for text in texts) > 0.8 * len(texts)


def find_date_format(name: str, values: pd.Series) -> str:
    """Return the format of a column's dates, without that of the time: `%d.%m.%Y`.

    Args:
        name: Name of the column, for messages.
        values: The column: texts, or dates of any class. It is the empty text for times of day.

    Raises:
        TableError: No format, or formats that give different dates, can read the column.
    """
    if pd.api.types.is_datetime64_any_dtype(values):
        return ISO_FORMAT
    texts = sorted({_normalise(text) for text in to_texts(values) if text is not None})
    sample = texts[:: -(-len(texts) // _SAMPLE)]
    candidates = [f for f in _DATE_FORMATS if not np.isnat(_parse(sample, f)).any()]
    readings: dict[bytes, str] = {}
    for candidate in candidates:
        dates = _parse(texts, candidate)
        if not np.isnat(dates).any():
            readings.setdefault(dates.tobytes(), candidate)
    formats = list(readings.values())
    if len(formats) == 1:
        return formats[0]
    if formats:
        orders = " or as ".join(map(describe_format, formats))
        raise make_column_error(
            name,
            "column",
            f"holds dates such as {quote_names(texts, 1)} that can be read as {orders}. Write them "
            "as 2024-01-31.",
        )
    # The format that reads most of the sample shows which values are not dates.
    counts = [int(np.sum(~np.isnat(_parse(sample, f)))) for f in _DATE_FORMATS]
    nearest = _DATE_FORMATS[int(np.argmax(counts))]
    read_dates(name, values, nearest)
    raise AssertionError("a format reads all values of a column that it does not read")


def read_dates(name: str, values: pd.Series, date_format: str) -> pd.DatetimeIndex:
    """Return a column as dates and wall-clock times, with NaT where one is missing.

    Args:
        name: Name of the column, for messages.
        values: The column.
        date_format: Format of the date; a time of day may follow.

    Raises:
        TableError: A value is not a date in this format.
    """
    if pd.api.types.is_datetime64_any_dtype(values):
        return pd.DatetimeIndex(values.dt.tz_localize(None))
    is_missing = find_missing(values)
    texts = to_texts(values)
    texts[~is_missing] = [_normalise(text) for text in texts[~is_missing]]
    distinct, codes = np.unique(texts[~is_missing].astype(str), return_inverse=True)
    dates = np.full(len(values), np.datetime64("NaT"), "datetime64[us]")
    dates[~is_missing] = _parse(distinct.tolist(), date_format)[codes]
    strange = np.flatnonzero(np.isnat(dates) & ~is_missing)
    if len(strange):
        kind = f"dates ({describe_format(date_format)})" if date_format else "times of day"
        raise make_column_error(
            name,
            "column",
            f"holds {kind}, but not in {number_rows(values.index[strange])}: "
            f"{quote_names([values.iloc[strange[0]]])}. Correct that, or leave it empty.",
        )
    return pd.DatetimeIndex(dates)


def _normalise(text: str) -> str:
    """Return a date or time without fractions of a second and without a time zone."""
    text = " ".join(re.sub(r"(?<=\d)T(?=\d)", " ", text).split())
    text = re.sub(r"(:\d{2}[.\d]*) ?(Z|UTC|[+-]\d{2}(:?\d{2})?)$", r"\1", text)
    return re.sub(r"(:\d{2}:\d{2})\.\d+", r"\1", text)


def _parse(texts: Sequence[str], date_format: str) -> np.ndarray:
    """Return texts as datetime64, with NaT where one is not in the format."""
    dates = np.full(len(texts), np.datetime64("NaT"), "datetime64[us]")
    series = pd.Series(texts, dtype=object)
    for time_format in _TIME_FORMATS:
        whole = f"{date_format} {time_format}".strip()
        is_open = np.isnat(dates)
        if whole and is_open.any():
            parsed = pd.to_datetime(series[is_open], format=whole, errors="coerce")
            dates[is_open] = parsed.to_numpy("datetime64[us]")
    return dates


def describe_format(date_format: str) -> str:
    """Return a format in readable form.

    Example:
        >>> describe_format("%d.%m.%Y")
        'day.month.year'
    """
    return re.sub(r"%\w", lambda match: _FIELDS[match[0]], date_format)


def compute_parts(dates: pd.DatetimeIndex) -> dict[str, np.ndarray]:
    """Return the parts of dates that are numbers, by name, with nan where a date is missing.

    The angle of a day is 2π (day of the year − 1) / (days in that year), that of a time is
    2π (seconds since midnight) / 86 400.

    Example:
        >>> parts = compute_parts(pd.DatetimeIndex(["2023-01-01 06:00"]))
        >>> [round(float(parts[name][0]), 3) for name in ("year", "sin(time of day)")]
        [2023.0, 1.0]
    """
    days = np.where(dates.is_leap_year, 366, 365)
    day_angle = 2 * np.pi * (np.asarray(dates.day_of_year, np.float64) - 1) / days
    seconds = np.asarray((dates - dates.normalize()).total_seconds(), np.float64)
    time_angle = 2 * np.pi * seconds / 86_400
    return {
        "year": np.asarray(dates.year, np.float64),
        "sin(day of year)": np.sin(day_angle),
        "cos(day of year)": np.cos(day_angle),
        "sin(time of day)": np.sin(time_angle),
        "cos(time of day)": np.cos(time_angle),
    }


def find_weekdays(dates: pd.DatetimeIndex) -> np.ndarray:
    """Return the names of weekdays, with None where a date is missing."""
    names = np.full(len(dates), None, object)
    is_present = ~np.asarray(dates.isna(), bool)
    numbers = np.asarray(dates.day_of_week[is_present], int)
    names[is_present] = np.asarray(WEEKDAYS, object)[numbers]
    return names
