"""The C functions that exported networks call, and references in NumPy for those on integers.

The C text is in `floats.c` and `integers.c`: C99 that needs only `<stdint.h>`, with no library and
no undefined behaviour. `functions` takes from there what a network needs.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable
from importlib import resources

import numpy as np

__all__ = ["clamp", "functions", "lookup_int8", "multiplier_and_shift", "names", "requantise",
           "sigmoid_q15", "table_int8", "tanh_q15"]  # fmt: skip

_PREFIX = "sc_"
# What a block defines: the name before the parameters of a function or the size of an array.
_DEFINES = re.compile(rf"^static [^(\[={{]*?\b{_PREFIX}(\w+)[(\[]", re.MULTILINE)
_USES = re.compile(rf"\b{_PREFIX}(\w+)\b")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


@functools.cache
def _blocks() -> dict[str, str]:
    """Return the text of each function by its name without `sc_`, callees first."""
    found = {}
    for file in ("floats.c", "integers.c"):
        text = (resources.files(__package__) / file).read_text(encoding="utf-8")
        for block in text.split("\n\n"):
            defined = _DEFINES.search(block)
            if defined:
                found[defined[1]] = block.strip("\n")
    return found


def names() -> list[str]:
    """Return the functions there are, without the `sc_` that each has in C."""
    return list(_blocks())


def functions(needed: Iterable[str]) -> str:
    """Return the C text of these functions and of those they call, in an order that compiles.

    All are `static`, so what is not needed is best not asked for. The text expects
    `#include <stdint.h>` before it.

    Args:
        needed: names without `sc_`, such as `"tanh"`; `names()` has all.

    Example:
        >>> from secateur.exports.c import runtime
        >>> print(runtime.functions(["max"]))
        /* The greater one: exact; a nan if either is. */
        static inline float sc_max(float a, float b)
        {
            return a > b || a != a ? a : b;
        }
        <BLANKLINE>
    """
    blocks = _blocks()
    wanted: set[str] = set()
    waiting = list(needed)
    while waiting:
        name = waiting.pop()
        if name not in blocks:
            raise ValueError(f"there is no C function {name!r}; there are {', '.join(blocks)}")
        if name not in wanted:
            wanted.add(name)
            code = _COMMENT.sub("", blocks[name])
            waiting += [used for used in _USES.findall(code) if used in blocks]
    return "\n\n".join(text for name, text in blocks.items() if name in wanted) + "\n"


def clamp(value: np.ndarray, lowest: int, highest: int) -> np.ndarray:
    """Return what `sc_clamp` does."""
    return np.clip(value, lowest, highest)


def multiplier_and_shift(scale: float) -> tuple[int, int]:
    """Return the multiplier and the shift by which `sc_requantise` multiplies by this scale.

    multiplier / 2^shift is the scale to a relative 2^-31. Below 2^-32, where every int32 becomes
    0 or nearly, the multiplier has fewer digits.

    Args:
        scale: positive, at most 2^29.

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


def requantise(
    value: np.ndarray, multiplier: int, shift: int, lowest: int, highest: int
) -> np.ndarray:
    """Return what `sc_requantise` does: value · multiplier / 2^shift, halves up, clamped."""
    product = np.asarray(value, np.int64) * np.int64(multiplier) + (np.int64(1) << (shift - 1))
    return np.clip(product >> shift, lowest, highest).astype(np.int32)


def table_int8(
    function: Callable[[np.ndarray], np.ndarray],
    *,
    input_scale: float,
    output_scale: float,
    input_zero: int = 0,
    output_zero: int = 0,
) -> np.ndarray:
    """Return the 256 values for `sc_lookup_int8` of a function of real numbers.

    An integer i stands for scale · (i − zero). Values are rounded to the nearest, halves to even.
    """
    x = input_scale * (np.arange(-128, 128) - input_zero)
    return np.clip(np.rint(function(x) / output_scale) + output_zero, -128, 127).astype(np.int8)


def lookup_int8(table: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return what `sc_lookup_int8` does."""
    return table[np.asarray(x, np.int64) + 128]


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
