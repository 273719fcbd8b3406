"""Records of runs as JSON: conversion of values, and files that are checked when read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FORMAT", "VERSION", "RecordError", "read_record"]

FORMAT = "secateur run"
VERSION = 3
# Significant digits of numbers, and of weights, which are many.
DIGITS, WEIGHT_DIGITS = 7, 5
MAX_TEXT = 200

_PARTS: dict[str, Any] = {
    "candidates": list, "caveats": list, "command": str, "created": str, "data": dict,
    "energy": dict, "history": dict, "inputs": list, "leaves": list, "model": dict, "rounds": list,
    "seconds": (int, float, type(None)), "settings": dict, "targets": list, "task": str,
    "weights": dict,
}  # fmt: skip


class RecordError(ValueError):
    """A file that is damaged or is not the record of a run."""


def read_record(path: str | os.PathLike) -> dict[str, Any]:
    """Read a record that was saved as JSON (a run's `run.json`).

    Raises:
        RecordError: The file is damaged, is not a record, or has another version.
        FileNotFoundError: The file does not exist.
    """
    path = Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{path} is damaged or not the record of a run ({error}). Run the fit again to make a "
            "new one."
        ) from error
    check_record(record, str(path))
    return record


def check_record(record: Any, name: str = "the record") -> None:
    """Raise a RecordError unless this is a record that this version can show."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RecordError(
            f"{name} is not the record of a run: its format is not {FORMAT!r}. Give the folder of "
            "a finished run."
        )
    version = record.get("version")
    if version != VERSION:
        author = record.get("secateur", "another version")
        raise RecordError(
            f"{name} has version {version!r}, written by secateur {author}. This one reads version "
            f"{VERSION}: install the other, or run the fit again."
        )
    for part, kind in _PARTS.items():
        if not isinstance(record.get(part), kind):
            raise RecordError(
                f"{name} is damaged: its part {part!r} is missing or of the wrong kind. Run the "
                "fit again to make a new one."
            )


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# --- values ---------------------------------------------------------------------------------------


def round_number(value: Any, digits: int = DIGITS) -> float | int | None:
    """Round a number to a few significant digits; None if it is not finite.

    >>> round_number(3.14159265, 3), round_number(float("nan")), round_number(120_000_000)
    (3.14, None, 120000000)
    """
    if isinstance(value, int | np.integer):
        return int(value)
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def round_numbers(values: Any, digits: int = DIGITS) -> list[float | int | None]:
    """Return a flattened array as numbers with a few significant digits."""
    return [round_number(v, digits) for v in np.asarray(values).ravel().tolist()]


def shorten_text(value: Any) -> str:
    """Return a name from the user's data, shortened if it is very long."""
    text = str(value)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def to_plain(value: Any) -> Any:
    """Convert a value, such as a setting, for JSON; unknown types become strings.

    >>> to_plain({"hidden": (20, 10), "rate": np.float32(0.5), "minutes": float("inf")})
    {'hidden': [20, 10], 'rate': 0.5, 'minutes': 'inf'}
    """
    if value is None or isinstance(value, bool | np.bool_):
        return value if value is None else bool(value)
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return round_number(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [to_plain(entry) for entry in value]
    return str(value)
