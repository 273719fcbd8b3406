"""Covariance between positions that share weights: neighbouring pixels, samples, time steps.

A dense or convolutional layer uses the same weights at every position, so its outputs there are
correlated: for a product of a certain signal s with weights W,

    Cov(y_p, y_{p−δ}) = (s ∘ s shifted by δ)·Var[W].

Such a covariance is needed only where positions meet again (pooling, a scan over time). So a value
carries it as a function of the shift, made from those of its operands and called when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

Shift = Mapping[int, int]  # axis → how many elements back
Neighbours = Callable[[Shift], Array]


def shifted(array: Array, shift: Shift) -> Array:
    """The element δ places before, zero where there is none."""
    for axis, places in shift.items():
        widths = [(0, 0, 0)] * array.ndim
        widths[axis] = (places, -places, 0)
        array = lax.pad(array, jnp.zeros((), array.dtype), widths)
    return array


def spread(
    neighbours: Neighbours | None, variance: Array, before: tuple[int, ...], after: tuple[int, ...]
) -> Neighbours:
    """Of copies of a value along new or widened axes (a bias for every position)."""
    copied = {a for a, n in enumerate(after) if n > 1 and (not before or before[a] != n)}

    def result(shift: Shift) -> Array:
        own = {a: n for a, n in shift.items() if a not in copied and n}
        if not own:
            array = jnp.broadcast_to(variance, after)
        elif neighbours is not None:
            array = jnp.broadcast_to(neighbours(own), after)
        else:
            array = jnp.zeros(after, variance.dtype)
        return array * shifted(jnp.ones(after, variance.dtype), shift)

    return result


def scaled(neighbours: Neighbours | None, slope: Callable[[], Array]) -> Neighbours | None:
    """Of an elementwise function with E[f'] = ``slope()``, to first order."""
    if neighbours is None:
        return None

    def result(shift: Shift) -> Array:
        factor = slope()
        return factor * shifted(factor, shift) * neighbours(shift)

    return result


def added(x: Any, y: Any) -> Neighbours | None:
    """Of a sum; what is not known of one operand counts as zero."""
    parts = [v.neighbours for v in (x, y) if v.neighbours is not None]
    if not parts:
        return None
    return lambda shift: sum((p(shift) for p in parts[1:]), start=parts[0](shift))


def moved(
    neighbours: Neighbours | None,
    move: Callable[[Array], Array],
    new_axis: Mapping[int, int] | None,
) -> Neighbours | None:
    """After a rearrangement that takes axis a to ``new_axis[a]`` with its order unchanged."""
    if neighbours is None or new_axis is None:
        return None
    old_axis = {new: old for old, new in new_axis.items()}

    def result(shift: Shift) -> Array:
        unknown = [a for a in shift if a not in old_axis and shift[a]]
        moved_back = {old_axis[a]: n for a, n in shift.items() if a in old_axis}
        array = move(neighbours(moved_back))
        return jnp.zeros_like(array) if unknown else array

    return result


def of_product(
    product: Callable[[Array], Array],
    signal: Array,
    signal_axis: Mapping[int, tuple[int, int]],
) -> Neighbours:
    """Of a product with weights; ``signal_axis`` takes a result's axis to (axis, stride)."""

    def result(shift: Shift) -> Array:
        if any(a not in signal_axis and n for a, n in shift.items()):
            return jnp.zeros_like(product(signal))
        places = {signal_axis[a][0]: n * signal_axis[a][1] for a, n in shift.items()}
        raw = product(signal * shifted(signal, places))
        return raw * shifted(jnp.ones_like(raw), shift)

    return result
