"""Functions on integers, as graphs have them once quantised, and what they do to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from secateur.exports.c import runtime

__all__ = ["INTEGER"]


def _quantise(x: Any, *, inverse: float, low: int, high: int) -> Any:
    scaled = np.asarray(x, np.float32) * np.float32(inverse)
    inside = np.where(
        scaled > np.float32(low), np.minimum(scaled, np.float32(high)), np.float32(low)
    )
    whole = inside.astype(np.int32)
    rest = inside - whole.astype(np.float32)
    return whole + (rest >= np.float32(0.5)) - (rest <= np.float32(-0.5))


def _requantise(x: Any, *, multiplier: int, shift: int, low: int, high: int) -> Any:
    return runtime.requantise(x, multiplier, shift, low, high)


def _dequantise(x: Any, *, scale: float) -> Any:
    return np.asarray(x, np.float32) * np.float32(scale)


def _lookup(x: Any, *, table: tuple[int, ...]) -> Any:
    """The table has 257 entries for −32768, −32512 … 32768; between them it is straight."""
    entries = np.array(table, np.int64)
    place = np.asarray(x, np.int64) + 32768
    node, rest = place >> 8, place & 255
    return (entries[node] + (((entries[node + 1] - entries[node]) * rest + 128) >> 8)).astype(
        np.int32
    )


INTEGER: dict[str, Callable[..., Any]] = {
    "quantise": _quantise,
    "requantise": _requantise,
    "dequantise": _dequantise,
    "lookup": _lookup,
    "tanh_q15": lambda x: runtime.tanh_q15(x).astype(np.int32),
    "sigmoid_q15": lambda x: runtime.sigmoid_q15(x).astype(np.int32),
}
