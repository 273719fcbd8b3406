"""Covariance within units: how the elements of a value depend on the noise of their unit.

The weights of a unit are `mean + Σ_k factor_k ξ_k` with standard Normal ξ of that unit alone (see
`UnitNormal`). What is linear in them keeps factors: a sum of products a·w has Σ_i a_i factor_i, and
the bias of the same unit adds its own. So the variance of what a unit sums is exact,

    Var[Σ_i a_i w_i + b] = Σ_k (Σ_i a_i factor_ik + factor_bk)²

whichever way the sum is written. Factors of a precision of low rank lower a diagonal instead of
making up the covariance: then it is `rest − Σ_k (…)²`. Which unit an element belongs to is known
while tracing: its labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import UnitNormal
from secateur.distributions.low_rank import LowRank
from secateur.distributions.unit_normal import from_units, to_units
from secateur.equations import primitives
from secateur.propagation.covariances import Neighbours, shift_array

if TYPE_CHECKING:
    from secateur.propagation.uncertain_values import Uncertain

DROPPED = "covariance dropped"


@dataclass(frozen=True)
class UnitLabels:
    """Which unit every element of a value belongs to (static).

    Attributes:
        axes: For each axis, the number of each of its indices, or None where indices along it do
            not tell units apart. The unit of an element is what all its numbers say together.
        fixed: Numbers of axes of length one that were removed.
    """

    axes: tuple[tuple[int, ...] | None, ...]
    fixed: frozenset[int] = frozenset()

    def labelled(self) -> set[int]:
        """Return the axes that tell units apart."""
        return {a for a, numbers in enumerate(self.axes) if numbers is not None}

    def numbers(self) -> set[int]:
        """Return all numbers."""
        return {n for numbers in self.axes for n in numbers or ()} | self.fixed


@dataclass(frozen=True)
class UnitFactor:
    """The part of a value that comes from the noise of its units.

    Attributes:
        array: Factors, with an axis for the noise behind those of the value.
        labels: Which units the elements belong to.
        mean: The mean that they belong to. A value with another mean is a different value, and its
            factors are lost.
        is_raw: Whether the elements are weights that nothing has summed yet.
        rest: Variance that the factors do not explain; None if they explain all of it.
        is_steady: Whether the weights are the same in all steps of a loop.
        lowers: Whether the factors are taken off `rest` instead of being added.
    """

    array: Array
    labels: UnitLabels
    mean: Array
    is_raw: bool
    rest: Array | None = None
    is_steady: bool = False
    lowers: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the factors explain the whole variance."""
        return self.rest is None or self.lowers

    @property
    def variance(self) -> Array:
        """The variance that the factors explain."""
        return jnp.sum(jnp.square(self.array), axis=-1)

    def total(self, array: Array, rest: Array | None) -> Array:
        """Return the variance of something with such factors and such a rest."""
        squares = jnp.sum(jnp.square(array), axis=-1)
        if rest is None:
            return squares
        if not self.lowers:
            return squares + rest
        # (Positive despite rounding.)
        return jnp.maximum(rest - squares, jnp.finfo(rest.dtype).eps * rest)

    @property
    def neighbours(self) -> Neighbours:
        """The covariance with the element some places before, through the weights they share."""

        def result(shift: Any) -> Array:
            if any(n and self.labels.axes[a] is not None for a, n in shift.items()):
                return jnp.zeros_like(self.mean)
            return jnp.sum(self.array * shift_array(self.array, shift), axis=-1)

        return result


class UnitNumbering:
    """Numbers for the units of all leaves of a function, so that each has its own."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], int] = {}
        self._next = 0

    def label(self, leaf: UnitNormal) -> UnitLabels:
        """Return the labels of a leaf."""
        axes: list[tuple[int, ...] | None] = [None] * np.ndim(leaf.mean)
        for number, axis in enumerate(leaf.unit_axes):
            size = np.shape(leaf.mean)[axis]
            first = self._start(leaf.group, number, size)
            axes[axis] = tuple(range(first, first + size))
        fixed = () if leaf.unit_axes else (self._start(leaf.group, -1, 1),)
        return UnitLabels(tuple(axes), frozenset(fixed))

    def _start(self, group: str, number: int, size: int) -> int:
        key = (group, number)
        if key not in self._first:
            self._first[key] = self._next
            self._next += size
        return self._first[key]


def factor_of(value: Any) -> UnitFactor | None:
    """Return the factors of a value, if it has any and they are about its mean."""
    factor = getattr(value, "factor", None)
    return factor if factor is not None and factor.mean is value.mean else None


def with_factor(
    value: Uncertain,
    array: Array,
    labels: UnitLabels | None,
    like: UnitFactor,
    *,
    rest: Array | None,
    is_raw: bool | None = None,
) -> Uncertain:
    """Return a value with factors; without them where its labels are not known."""
    if labels is None:
        return value
    raw = like.is_raw if is_raw is None else is_raw
    factor = UnitFactor(array, labels, value.mean, raw, rest, like.is_steady, like.lowers)
    near = factor.neighbours if rest is None and not raw else value.neighbours
    return replace(value, factor=factor, neighbours=near)


def is_torn(operands: list[Any], results: list[Any]) -> bool:
    """Whether weights of a unit entered an equation none of whose results has their covariance."""
    raw = [f for f in map(factor_of, operands) if f is not None and f.is_raw]
    raw = [f for f in raw if f.array.shape[-1] > 1]
    if not raw:
        return False
    known = [f.labels.numbers() for f in map(factor_of, results) if f is not None]
    return any(not any(f.labels.numbers() & numbers for numbers in known) for f in raw)


def over_sources(function: Callable[[Array], Any], array: Array) -> Any:
    """Apply a linear function of a value to its factors."""
    return jax.vmap(function, in_axes=-1, out_axes=-1)(array)


def scale_factor(value: Uncertain, result: Uncertain, scale: Array) -> Uncertain:
    """Return `result`, which is scale·value plus a constant, with its factors."""
    factor = factor_of(value)
    if factor is None:
        return result
    scale = jnp.asarray(scale)
    rest = None if factor.rest is None else scale * scale * factor.rest
    return with_factor(result, scale[..., None] * factor.array, factor.labels, factor, rest=rest)


def add_factors(x: Uncertain, y: Uncertain, sign: float) -> tuple[Array, Callable]:
    """Return the variance of x ± y, and a function that gives the sum its factors."""
    one, other = factor_of(x), factor_of(y)
    variance = x.variance + y.variance
    if one is None and other is None:
        return variance, lambda value: value
    fits = one is not None and other is not None and one.lowers == other.lowers
    if fits and one is not None and other is not None and one.labels == other.labels:
        first, second = pad_sources(one.array, other.array)
        total = first + sign * second
        rests = [f.rest for f in (one, other) if f.rest is not None]
        rest = sum(rests[1:], start=rests[0]) if rests else None
        if x.loads or y.loads:  # the variances include what they share
            within = 2.0 * sign * jnp.sum(first * second, axis=-1)
            variance = jnp.maximum(variance + (-within if one.lowers else within), 0.0)
        else:
            variance = one.total(total, rest)
        like = replace(one, is_steady=one.is_steady and other.is_steady)
        raw = one.is_raw and other.is_raw
        return variance, lambda value: with_factor(
            value, total, one.labels, like, rest=rest, is_raw=raw
        )
    # Weights that have not been summed lose it if they are combined with another unit.
    if one is None or (other is not None and one.is_raw and not other.is_raw):
        assert other is not None
        kept, factor, more = sign * other.array, other, x.variance
    else:
        kept, factor, more = one.array, one, y.variance
    rest = more if factor.rest is None else factor.rest + more
    return variance, lambda value: with_factor(value, kept, factor.labels, factor, rest=rest)


def pad_sources(*arrays: Array) -> list[Array]:
    """Return factors padded to the same number of sources."""
    most = max(a.shape[-1] for a in arrays)
    return [jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, most - a.shape[-1])]) for a in arrays]


def sample_units(value: Uncertain, noise: Any) -> Array:
    """Draw weights with the covariance of their units."""
    factor = factor_of(value)
    assert factor is not None
    shape = [1 if n is None else len(n) for n in factor.labels.axes]
    dtype = value.mean.dtype
    if factor.lowers:
        assert factor.rest is not None
        others = [a for a, n in enumerate(shape) if n == 1]
        return value.mean + _draw_low_rank(factor, others, noise.normal(value.shape, dtype))
    drawn = noise.normal((*shape, factor.array.shape[-1]), dtype)
    weights = value.mean + jnp.sum(factor.array * drawn, axis=-1)
    if factor.rest is None:
        return weights
    rest = jnp.maximum(factor.rest, jnp.finfo(dtype).tiny)
    return weights + jnp.sqrt(rest) * noise.normal(value.shape, dtype)


def _draw_low_rank(factor: UnitFactor, others: list[int], noise: Array) -> Array:
    """Draw what a precision of low rank allows; `others` are the axes within units."""
    axes = tuple(a for a in range(noise.ndim) if a not in others)
    rows = LowRank(to_units(factor.rest, axes), to_units(factor.array, axes, extra=1))
    return from_units(rows.draw(to_units(noise, axes)), noise.shape, axes)


# --- labels through rearrangements ----------------------------------------------------------------


def move_labels(
    name: str, params: dict, before: tuple[int, ...], after: tuple[int, ...], labels: UnitLabels,
    index: int = 0,
) -> UnitLabels | None:  # fmt: skip
    """Return the labels after a rearrangement of one operand; None where they are not known."""
    axes = labels.axes
    if name in primitives.STAYS_IN_PLACE | primitives.IDENTITIES | {"sharding_constraint"}:
        return labels
    if name == "transpose":
        return replace(labels, axes=tuple(axes[a] for a in params["permutation"]))
    if name == "squeeze":
        return _without(labels, params["dimensions"])
    if name == "broadcast_in_dim":
        spread: list[tuple[int, ...] | None] = [None] * len(after)
        for axis, place in enumerate(params["broadcast_dimensions"]):
            numbers = axes[axis]
            if numbers is not None:
                spread[place] = numbers * (after[place] if len(numbers) == 1 else 1)
        return replace(labels, axes=tuple(spread))
    if name in ("reshape", "expand_dims"):
        return _reshaped(labels, before, after)
    if name == "slice":
        strides = params["strides"] or (1,) * len(axes)
        cuts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        pieces = [slice(*cut) for cut in cuts]
        return replace(labels, axes=tuple(_cut(n, p) for n, p in zip(axes, pieces, strict=True)))
    if name == "split":
        ends = np.cumsum((0, *params["sizes"]))
        piece, axis = slice(int(ends[index]), int(ends[index + 1])), params["axis"]
        kept = [_cut(n, piece) if a == axis else n for a, n in enumerate(axes)]
        return replace(labels, axes=tuple(kept))
    if name == "rev":
        turned = params["dimensions"]
        order = [None if n is None else n[::-1] if a in turned else n for a, n in enumerate(axes)]
        return replace(labels, axes=tuple(order))
    return None


def spread_labels(labels: UnitLabels, shape: tuple[int, ...]) -> UnitLabels:
    """Return the labels after axes of length one have been widened."""
    axes = [
        None if numbers is None else numbers * (n if len(numbers) == 1 else 1)
        for numbers, n in zip(labels.axes, shape, strict=True)
    ]
    return replace(labels, axes=tuple(axes))


def join_labels(labels: list[UnitLabels], axis: int) -> UnitLabels | None:
    """Return the labels of values side by side along an axis; None where they do not fit."""
    first = labels[0]
    along = [one.axes[axis] for one in labels]
    others = [[n for a, n in enumerate(one.axes) if a != axis] for one in labels]
    if any(one.fixed != first.fixed for one in labels) or any(o != others[0] for o in others):
        return None
    if all(n is None for n in along):
        return first
    if any(n is None for n in along):
        return None
    joined = tuple(number for n in along if n is not None for number in n)
    return replace(first, axes=(*first.axes[:axis], joined, *first.axes[axis + 1 :]))


def _cut(numbers: tuple[int, ...] | None, piece: slice) -> tuple[int, ...] | None:
    return None if numbers is None else numbers[piece]


def _without(labels: UnitLabels, gone: Any) -> UnitLabels:
    """Labels without some axes of length one."""
    fixed = {n for a in gone for n in labels.axes[a] or ()}
    kept = tuple(n for a, n in enumerate(labels.axes) if a not in gone)
    return UnitLabels(kept, labels.fixed | fixed)


def _reshaped(
    labels: UnitLabels, before: tuple[int, ...], after: tuple[int, ...]
) -> UnitLabels | None:
    """Labels after a reshape that moves no labelled axis but inserts or drops those of length 1."""
    ones = [a for a, n in enumerate(before) if n == 1]
    labels = _without(labels, ones)
    sizes = [n for n in before if n != 1]

    def starts(shape: Any) -> list[int]:
        return [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]

    places = {(n, s): a for a, (n, s) in enumerate(zip(after, starts(after), strict=True)) if n > 1}
    spread: list[tuple[int, ...] | None] = [None] * len(after)
    for numbers, size, start in zip(labels.axes, sizes, starts(sizes), strict=True):
        if numbers is None:
            continue
        if (size, start) not in places:
            return None
        spread[places[size, start]] = numbers
    return replace(labels, axes=tuple(spread))
