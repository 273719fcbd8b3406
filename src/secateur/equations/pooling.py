"""Maxima and sums over windows, element by element over the places of a window.

On a CPU, the gradient of XLA's maximum over windows takes ten times as long.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from secateur.equations.window_views import WindowViews

# Windows with more positions than this are not written out.
_MOST_PLACES = 32


def _take_larger(first: Array, second: Array) -> Array:
    """The maximum, with its gradient to the first of equal ones as in XLA's; NaN if either is."""
    return lax.select((second > first) | (second != second), second, first)


def _take_smaller(first: Array, second: Array) -> Array:
    return lax.select((second < first) | (second != second), second, first)


_STEPS: dict[str, tuple[Callable[[Array, Array], Array], float]] = {
    "reduce_window_max": (_take_larger, -math.inf),
    "reduce_window_min": (_take_smaller, math.inf),
    "reduce_window_sum": (lax.add, 0.0),
}


def reduce_windows(name: str, params: dict[str, Any], x: Array) -> Array | None:
    """Return the maximum, minimum or sum over windows, or None if XLA's own is to be used.

    Args:
        name: The primitive.
        params: Its parameters.
        x: Its operand.
    """
    sizes = params["window_dimensions"]
    if math.prod(sizes) > _MOST_PLACES or not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    geometry = (name, sizes, params["window_strides"], params["window_dilation"],
                params["padding"], params["base_dilation"])  # fmt: skip
    return _reduce(tuple(tuple(p) if isinstance(p, list) else p for p in geometry), x)


@functools.partial(jax.jit, static_argnums=0)  # for calls outside of a compiled program
def _reduce(geometry: tuple[Any, ...], x: Array) -> Array:
    name, sizes, strides, dilations, padding, base_dilation = geometry
    step, neutral = _STEPS[name]
    edges = [(low, high, d - 1) for (low, high), d in zip(padding, base_dilation, strict=True)]
    if any(map(any, edges)):
        x = lax.pad(x, jnp.asarray(neutral, x.dtype), edges)
    views = WindowViews(x, sizes, strides, dilations)
    return functools.reduce(step, map(views.view, itertools.product(*map(range, sizes))))
