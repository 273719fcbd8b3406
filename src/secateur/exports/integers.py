"""Integer functions of quantised graphs, which match the C functions bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["INTEGER_FUNCTIONS", "multiplier_and_shift", "requantise", "sigmoid_q15", "tanh_q15"]


def multiplier_and_shift(scale: float) -> tuple[int, int]:
    """Return the multiplier and the shift by which `sc_requantise` multiplies by this scale.

    multiplier / 2^shift equals the scale to a relative 2^-31. Below 2^-32, where the result of any
    int32 is close to 0, the multiplier has fewer digits.

    Args:
        scale: Positive number of at most 2^29.

    Example:
        >>> multiplier_and_shift(0.75)
        (1610612736, 31)
    """
    if not 0.0 < scale <= 2.0**29:
        raise ValueError(f"a scale is positive and at most 2^29, not {scale}")
    fraction, exponent = math.frexp(scale)
    multiplier, shift = round(fraction * 2**31), 31 - exponent
    if multiplier == 2**31:
        multiplier, shift = 2**30, shift - 1
    if shift > 62:
        multiplier, shift = multiplier >> min(shift - 62, 31), 62
    return multiplier, shift


def requantise(value: Any, multiplier: int, shift: int, low: int, high: int) -> np.ndarray:
    """Return what `sc_requantise` does: value · multiplier / 2^shift, halves up, clamped."""
    product = np.asarray(value, np.int64) * np.int64(multiplier) + (np.int64(1) << (shift - 1))
    return np.clip(product >> shift, low, high).astype(np.int32)


_NODES = np.minimum(np.rint(32768 * np.tanh(np.arange(65) / 8)), 32767).astype(np.int64)


def tanh_q15(x: np.ndarray) -> np.ndarray:
    """Return what `sc_tanh_q15` does: tanh from 4096ths to 32768ths."""
    x = np.asarray(x, np.int64)
    size = np.abs(x)
    node = (size + 256) >> 9
    d = (size - (node << 9)) * 8
    t = _NODES[node]
    tt = (t * t + 16384) >> 15
    slope = 32768 - ((d * (t + ((d * (10923 - tt)) >> 15))) >> 15)
    value = t + (((((32768 - tt) * d) >> 11) * slope + (1 << 18)) >> 19)
    return np.where(x < 0, -value, np.minimum(value, 32767)).astype(np.int16)


def sigmoid_q15(x: np.ndarray) -> np.ndarray:
    """Return what `sc_sigmoid_q15` does: the logistic function from 2048ths to 32768ths."""
    return ((tanh_q15(x).astype(np.int64) + 32768) >> 1).astype(np.int16)


def _quantise(x: Any, *, inverse: float, low: int, high: int) -> Any:
    scaled = np.asarray(x, np.float32) * np.float32(inverse)
    inside = np.where(
        scaled > np.float32(low), np.minimum(scaled, np.float32(high)), np.float32(low)
    )
    whole = inside.astype(np.int32)
    rest = inside - whole.astype(np.float32)
    return whole + (rest >= np.float32(0.5)) - (rest <= np.float32(-0.5))


def _dequantise(x: Any, *, scale: float) -> Any:
    return np.asarray(x, np.float32) * np.float32(scale)


def _lookup(x: Any, *, table: tuple[int, ...]) -> Any:
    """Interpolate linearly in a table with 257 entries for −32768, −32512 … 32768."""
    entries = np.array(table, np.int64)
    place = np.asarray(x, np.int64) + 32768
    node, rest = place >> 8, place & 255
    return (entries[node] + (((entries[node + 1] - entries[node]) * rest + 128) >> 8)).astype(
        np.int32
    )


INTEGER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantise": _quantise,
    "requantise": requantise,
    "dequantise": _dequantise,
    "lookup": _lookup,
    "tanh_q15": lambda x: tanh_q15(x).astype(np.int32),
    "sigmoid_q15": lambda x: sigmoid_q15(x).astype(np.int32),
}
