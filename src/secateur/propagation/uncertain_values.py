"""The values of the walk: plain arrays, or uncertain values with what is known about them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal
from secateur.equations import primitives
from secateur.propagation.covariances import (
    NO_LOADS,
    Loads,
    Neighbours,
    scale_neighbours,
    spread_neighbours,
)
from secateur.propagation.unit_factors import UnitFactor, factor_of, spread_labels, with_factor


@dataclass(frozen=True)
class Uncertain:
    """A Gaussian belief about an intermediate array, and its dependence on others.

    Attributes:
        mean: Means.
        variance: Variances, same shape.
        loads: First-order dependence on sources it shares with other values, element by element.
        entangled: Axes along which elements may be correlated (static).
        ancestors: The uncertain inputs this value depends on (static).
        steady: Inside a loop body, True for what does not change from step to step.
        sums_to_one: Axis along which the elements sum to one (a softmax), if any.
        neighbours: Covariance with the element some places before, where known.
        factor: Dependence on the noise of the units that it was made of; see `factor_of`.
    """

    mean: Array
    variance: Array
    loads: Loads = NO_LOADS
    entangled: frozenset[int] = frozenset()
    ancestors: frozenset[int] = frozenset()
    steady: bool = False
    sums_to_one: int | None = None
    neighbours: Neighbours | None = None
    factor: UnitFactor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mean.shape

    def with_moments(self, mean: Array, variance: Array, slope: Callable[[], Array]) -> Uncertain:
        """An elementwise function of this value; ``slope()`` is E[f'], called only if needed."""
        return replace(
            self,
            mean=mean,
            variance=variance,
            loads=self.loads.scaled(slope()) if self.loads else self.loads,
            neighbours=scale_neighbours(self.neighbours, slope),
            sums_to_one=None,
        )


def deviation(variance: Array) -> Array:
    """Standard deviation with a finite derivative at variance 0."""
    return jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).tiny))


def to_normal(value: Uncertain | Array) -> Normal | Array:
    return Normal(value.mean, value.variance) if isinstance(value, Uncertain) else value


def as_uncertain(value: Uncertain | Array) -> Uncertain:
    """Return a plain array as a value of variance 0."""
    if isinstance(value, Uncertain):
        return value
    value = jnp.asarray(value)
    return Uncertain(value, jnp.zeros_like(value))


def entangle(value: Uncertain) -> Uncertain:
    """Return the same value, of which only the moments are known."""
    every = frozenset(range(np.ndim(value.mean)))
    return replace(
        value, loads=NO_LOADS, entangled=every, steady=False, sums_to_one=None, neighbours=None
    )


def spread_to(value: Uncertain, shape: tuple[int, ...]) -> Uncertain:
    """Broadcast as lax's elementwise operations do: scalars, and axes of length one."""
    if value.shape == shape:
        return value
    grown = frozenset(
        axis
        for axis, size in enumerate(shape)
        if size > 1 and (not value.shape or value.shape[axis] != size)
    )
    # The elements of the wide value are copies: their loads refer to another layout of the source.
    wide = replace(
        value,
        mean=jnp.broadcast_to(value.mean, shape),
        variance=jnp.broadcast_to(value.variance, shape),
        loads=value.loads.moved(
            ("spread", value.shape, shape), lambda a: jnp.broadcast_to(a, shape)
        ),
        entangled=value.entangled | grown,
        sums_to_one=None,
        neighbours=spread_neighbours(value.neighbours, value.variance, value.shape, shape),
    )
    factor = factor_of(value)
    if factor is None or not value.shape:
        return wide
    array = jnp.broadcast_to(factor.array, (*shape, factor.array.shape[-1]))
    rest = None if factor.rest is None else jnp.broadcast_to(factor.rest, shape)
    return with_factor(wide, array, spread_labels(factor.labels, shape), factor, rest=rest)


def merge_static(values: Sequence[Uncertain]) -> Uncertain:
    """Return what is known, beside the moments, about a function of all these values."""
    first = values[0]
    return replace(
        first,
        loads=NO_LOADS,
        entangled=frozenset().union(*(v.entangled for v in values)),
        ancestors=frozenset().union(*(v.ancestors for v in values)),
        steady=all(v.steady for v in values),
        sums_to_one=None,
        neighbours=None,
    )


def move_entangled(
    name: str,
    params: dict,
    before: tuple[int, ...],
    after: tuple[int, ...],
    entangled: frozenset[int],
) -> frozenset[int]:
    """Return the entangled axes after a rearrangement; all axes if that is not known."""
    if name == "broadcast_in_dim":
        places = params["broadcast_dimensions"]
        kept = {places[axis] for axis in entangled}
        copied = {
            axis
            for axis, size in enumerate(after)
            if size > 1 and (axis not in places or before[places.index(axis)] != size)
        }
        return frozenset(kept | copied)
    if name == "transpose":
        return frozenset(i for i, axis in enumerate(params["permutation"]) if axis in entangled)
    if name == "squeeze":
        kept_axes = [a for a in range(len(before)) if a not in params["dimensions"]]
        return frozenset(i for i, axis in enumerate(kept_axes) if axis in entangled)
    if name == "reshape":
        return _reshape_entangled(before, after, entangled)
    if name == "gather":  # the same element may be looked up several times
        offsets = params["dimension_numbers"].offset_dims
        looked_up = frozenset(axis for axis in range(len(after)) if axis not in offsets)
        return frozenset(range(len(after))) if entangled else looked_up
    if len(before) == len(after):
        return entangled
    return frozenset(range(len(after))) if entangled else frozenset()


def map_axes(
    name: str, params: dict, before: tuple[int, ...], after: tuple[int, ...]
) -> dict[int, int] | None:
    """Return the new place of each axis, for rearrangements that preserve neighbours."""
    if name in primitives.STAYS_IN_PLACE:
        return {a: a for a in range(len(before))}
    if name == "transpose":
        return {old: new for new, old in enumerate(params["permutation"])}
    if name == "squeeze":
        kept = [a for a in range(len(before)) if a not in params["dimensions"]]
        return {old: new for new, old in enumerate(kept)}
    if name == "split":
        return {a: a for a in range(len(before)) if a != params["axis"]}
    if name == "broadcast_in_dim":
        places = params["broadcast_dimensions"]
        return {a: places[a] for a, n in enumerate(before) if after[places[a]] == n}
    return None


def _reshape_entangled(
    before: tuple[int, ...], after: tuple[int, ...], entangled: frozenset[int]
) -> frozenset[int]:
    """Axes that hold part of an entangled axis: compare the strides' ranges."""

    def ranges(shape: tuple[int, ...]) -> list[tuple[int, int]]:
        ends = [int(np.prod(shape[i:], dtype=np.int64)) for i in range(len(shape) + 1)]
        return [(ends[i + 1], ends[i]) for i in range(len(shape))]

    old = [r for i, r in enumerate(ranges(before)) if i in entangled and r[0] != r[1]]
    return frozenset(
        i
        for i, (low, high) in enumerate(ranges(after))
        if any(low < end and start < high for start, end in old)
    )


def rename_source(
    key: Hashable, name: str, params: dict, index: int, shape: tuple[int, ...]
) -> Hashable:
    """Return the name of a source in another layout.

    Permutations are composed, and taking one tile of a tiled source gives the source itself, so
    that values that return to the same layout in different ways stay correlated.
    """
    if name in primitives.STAYS_IN_PLACE:
        return key
    inner, last = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
    if name == "transpose":
        order = tuple(params["permutation"])
        if isinstance(last, tuple) and last[0] == "order":
            order, key = tuple(last[1][i] for i in order), inner
        return key if order == tuple(range(len(order))) else (key, ("order", order))
    if isinstance(last, tuple) and last[0] == "tile":
        axis, width = last[1:]
        if name == "split" and params["axis"] == axis and set(params["sizes"]) == {width}:
            return inner
        if name == "slice" and _is_one_tile(params, axis, width, shape):
            return inner
    return (key, (name, index, _freeze_params(params), shape))


def _is_one_tile(params: dict, axis: int, width: int, shape: tuple[int, ...]) -> bool:
    start, limit = params["start_indices"], params["limit_indices"]
    others = all(start[i] == 0 and limit[i] == shape[i] for i in range(len(shape)) if i != axis)
    whole = start[axis] % width == 0 and limit[axis] - start[axis] == width
    return others and whole and params["strides"] is None


def _freeze_params(params: dict) -> str:
    return repr(sorted((k, v) for k, v in params.items() if "sharding" not in k))
