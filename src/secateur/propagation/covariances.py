"""The covariances that are tracked: with other values, and between positions of one value.

*Loads* are the first-order dependence of a value on sources of noise that it shares with other
values. All loads of one value are in one array with an axis for the sources in front: a recurrent
network has dozens of them, and an equation for each would be a kernel for each.

*Neighbours* are positions that share weights: pixels, samples, time steps. A dense or convolutional
layer uses the same weights at every position, so its outputs there are correlated: for a product of
a certain signal s with weights W,

    Cov(y_p, y_{p−δ}) = (s ∘ s shifted by δ)·Var[W].

Such a covariance is needed only where positions meet again (pooling, a scan over time). So a value
carries it as a function of the shift, which is called when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Key = Hashable
# A value depends on this many sources at most. A source that occurs in ever new layouts (slices of
# slices, step after step) would otherwise count once per layout, and their number grows as 2ⁿ.
MOST_SOURCES = 32


@dataclass(frozen=True)
class Loads:
    """The value is ``mean + Σ_k stack[k]·ξ_k + rest``, ξ_k the standard Normal called ``keys[k]``.

    Attributes:
        keys: Names of the sources (static).
        stack: Loads, the source's axis first; None where there are no sources.
    """

    keys: tuple[Key, ...] = ()
    stack: Array | None = None

    @staticmethod
    def of(arrays: Mapping[Key, Array]) -> Loads:
        if not arrays:
            return Loads()
        return Loads(tuple(arrays), jnp.stack(list(arrays.values())))

    def __bool__(self) -> bool:
        return bool(self.keys)

    def scaled(self, factor: Array | float) -> Loads:
        if jnp.ndim(factor):
            factor = jnp.asarray(factor)[None]
        return self.mapped(lambda stack: factor * stack)

    def mapped(
        self, change: Callable[[Array], Array], keys: tuple[Key, ...] | None = None
    ) -> Loads:
        """Apply a function to the array of all sources, which may get new names."""
        if self.stack is None:
            return self
        return Loads(self.keys if keys is None else keys, change(self.stack))

    def moved(self, name: Key, move: Callable[[Array], Array]) -> Loads:
        """Apply a rearrangement to the loads of each source, and record it in the source's name.

        Two values keep their covariance if both were rearranged in the same way.
        """
        return self.mapped(jax.vmap(move), tuple((key, name) for key in self.keys))

    def nearest(self, most: int = MOST_SOURCES) -> Loads:
        """Drop the sources that were rearranged most often, if there are too many."""
        if len(self.keys) <= most:
            return self
        by_layouts = sorted(range(len(self.keys)), key=lambda i: count_layouts(self.keys[i]))
        keys = tuple(self.keys[i] for i in sorted(by_layouts[:most]))
        return Loads(keys, self.rows(keys))

    def explained(self) -> Array | float:
        """The variance due to these sources."""
        return 0.0 if self.stack is None else jnp.sum(self.stack * self.stack, axis=0)

    def rows(self, keys: Sequence[Key], like: Array | None = None) -> Array:
        """Return the loads on given sources, in that order; zeros ``like`` this for absent ones."""
        if tuple(keys) == self.keys and self.stack is not None:
            return self.stack
        place = {key: i for i, key in enumerate(self.keys)}
        pieces = []
        # Slices rather than a gather, whose derivative would be a scatter: runs of neighbours.
        offset = [place[key] - n if key in place else None for n, key in enumerate(keys)]
        end = 0
        for shift, run in groupby(offset):
            start, end = end, end + len(list(run))
            if shift is not None:
                pieces.append(self.stack[start + shift : end + shift])  # type: ignore[index]
            else:
                assert like is not None
                pieces.append(jnp.zeros((end - start, *like.shape), like.dtype))
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)


NO_LOADS = Loads()


def count_layouts(key: Key) -> int:
    """Return how often the value that a source is named after was rearranged."""
    count = 0
    while isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], tuple):
        key, count = key[0], count + 1
    return count


def compute_covariance(x: Loads, y: Loads) -> Array | None:
    """Return Σ_k x_k·y_k over the common sources; None if there are none."""
    shared = [key for key in x.keys if key in set(y.keys)]
    if not shared:
        return None
    return jnp.sum(x.rows(shared) * y.rows(shared), axis=0)


def combine_loads(x: Loads, y: Loads, x_scale: Array | float, y_scale: Array | float) -> Loads:
    """Loads of  x_scale·x + y_scale·y."""
    if x.stack is None:
        return y.scaled(y_scale)
    if y.stack is None:
        return x.scaled(x_scale)
    keys = tuple(dict.fromkeys((*x.keys, *y.keys)))
    like = x.stack[0]
    scaled_x = x.scaled(x_scale).rows(keys, like)
    return Loads(keys, scaled_x + y.scaled(y_scale).rows(keys, like))


def merge_equal_sources(keys: Sequence[Key], stack: Array) -> tuple[Loads, Array | None]:
    """Merge loads on sources with equal names; also return the change of the variance."""
    if len(set(keys)) == len(keys):
        return Loads(tuple(keys), stack), None
    before = jnp.sum(stack * stack, axis=0)
    names = tuple(dict.fromkeys(keys))
    same = jnp.array([[key == name for key in keys] for name in names], stack.dtype)
    loads = Loads(names, jnp.tensordot(same, stack, 1))
    return loads, loads.explained() - before


Shift = Mapping[int, int]  # axis → how many elements back
Neighbours = Callable[[Shift], Array]


def shift_array(array: Array, shift: Shift) -> Array:
    """Shift an array so that each place holds the element δ places before, or zero."""
    for axis, places in shift.items():
        widths = [(0, 0, 0)] * array.ndim
        widths[axis] = (places, -places, 0)
        array = lax.pad(array, jnp.zeros((), array.dtype), widths)
    return array


def spread_neighbours(
    neighbours: Neighbours | None, variance: Array, before: tuple[int, ...], after: tuple[int, ...]
) -> Neighbours:
    """Neighbours of copies of a value along new or widened axes (a bias for every position)."""
    copied = {a for a, n in enumerate(after) if n > 1 and (not before or before[a] != n)}

    def result(shift: Shift) -> Array:
        own = {a: n for a, n in shift.items() if a not in copied and n}
        if not own:
            array = jnp.broadcast_to(variance, after)
        elif neighbours is not None:
            array = jnp.broadcast_to(neighbours(own), after)
        else:
            array = jnp.zeros(after, variance.dtype)
        return array * shift_array(jnp.ones(after, variance.dtype), shift)

    return result


def scale_neighbours(
    neighbours: Neighbours | None, slope: Callable[[], Array]
) -> Neighbours | None:
    """Neighbours of an elementwise function with E[f'] = ``slope()``, to first order."""
    if neighbours is None:
        return None

    def result(shift: Shift) -> Array:
        factor = slope()
        return factor * shift_array(factor, shift) * neighbours(shift)

    return result


def add_neighbours(x: Any, y: Any) -> Neighbours | None:
    """Neighbours of a sum; an unknown operand counts as zero."""
    parts = [v.neighbours for v in (x, y) if v.neighbours is not None]
    if not parts:
        return None
    return lambda shift: sum((p(shift) for p in parts[1:]), start=parts[0](shift))


def move_neighbours(
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


def product_neighbours(
    product: Callable[[Array], Array],
    signal: Array,
    signal_axis: Mapping[int, tuple[int, int]],
) -> Neighbours:
    """Neighbours of a product; ``signal_axis`` takes a result's axis to (axis, stride)."""

    def result(shift: Shift) -> Array:
        if any(a not in signal_axis and n for a, n in shift.items()):
            return jnp.zeros_like(product(signal))
        places = {signal_axis[a][0]: n * signal_axis[a][1] for a, n in shift.items()}
        raw = product(signal * shift_array(signal, places))
        return raw * shift_array(jnp.ones_like(raw), shift)

    return result
