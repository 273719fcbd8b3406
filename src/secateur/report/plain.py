"""Values as JSON can hold them: plain Python, few digits, nothing that is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["DIGITS", "LONGEST_TEXT", "number", "numbers", "plain", "text"]

DIGITS = 6
LONGEST_TEXT = 200


def number(value: Any, digits: int = DIGITS) -> float | int | None:
    """Return a number with so many significant digits; None if it is not finite.

    >>> number(3.14159265, 3), number(float("nan")), number(120_000_000)
    (3.14, None, 120000000)
    """
    if isinstance(value, int | np.integer):
        return int(value)
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def numbers(values: Any, digits: int = DIGITS) -> list[float | int | None]:
    """Return an array, flattened, as numbers."""
    return [number(v, digits) for v in np.asarray(values).ravel().tolist()]


def text(value: Any) -> str:
    """Return a name from the user's data, shortened if it is very long."""
    value = str(value)
    return value if len(value) <= LONGEST_TEXT else value[: LONGEST_TEXT - 1] + "…"


def plain(value: Any) -> Any:
    """Return any value (settings, say) as JSON can hold it; what is unknown as its text.

    >>> plain({"hidden": (20, 10), "rate": np.float32(0.5), "minutes": float("inf")})
    {'hidden': [20, 10], 'rate': 0.5, 'minutes': 'inf'}
    """
    if value is None or isinstance(value, bool | np.bool_):
        return value if value is None else bool(value)
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return number(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [plain(entry) for entry in value]
    return str(value)
