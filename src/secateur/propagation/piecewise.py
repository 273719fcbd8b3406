"""Piecewise linear functions in a group of equations, and their moments in closed form."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions.special import normal_tail
from secateur.equations import primitives

_DENSITY_AT_0 = float(1.0 / np.sqrt(2.0 * np.pi))


@dataclass(frozen=True)
class Pieces:
    """Values (lines ``slope·x + offset``, or booleans) between sorted breaks."""

    breaks: tuple[float, ...]
    values: tuple

    def on(self, breaks: tuple[float, ...]) -> tuple:
        """The value on each piece of a finer partition."""
        inner = _inner_points(breaks)
        return tuple(self.values[int(np.searchsorted(self.breaks, x))] for x in inner)


IDENTITY = Pieces((), ((1.0, 0.0),))


def constant(value: float) -> Pieces:
    return Pieces((), ((0.0, float(value)),))


def _inner_points(breaks: tuple[float, ...]) -> list[float]:
    if not breaks:
        return [0.0]
    middle = [0.5 * (a + b) for a, b in itertools.pairwise(breaks)]
    return [breaks[0] - 1.0, *middle, breaks[-1] + 1.0]


def _combine(function: Callable, *operands: Pieces, breaks: tuple[float, ...] = ()) -> Pieces:
    every = tuple(sorted({*breaks, *(b for p in operands for b in p.breaks)}))
    values = zip(*(p.on(every) for p in operands), strict=True)
    return Pieces(every, tuple(function(*v) for v in values))


def _crossings(x: Pieces, y: Pieces) -> tuple[float, ...]:
    """Where two piecewise lines meet (even outside of their pieces: harmless for breaks)."""
    difference = _combine(lambda a, b: (a[0] - b[0], a[1] - b[1]), x, y)
    places = (-c / a for a, c in difference.values if a != 0.0)
    return tuple(x for x in places if np.isfinite(x))


def _at_points(x: Pieces, y: Pieces, decide: Callable[[float, float], object]) -> Pieces:
    every = tuple(sorted({*x.breaks, *y.breaks, *_crossings(x, y)}))
    points = _inner_points(every)
    lines = zip(x.on(every), y.on(every), points, strict=True)
    return Pieces(every, tuple(decide(a[0] * p + a[1], b[0] * p + b[1]) for a, b, p in lines))


def _choose(where: Pieces, when_true: Pieces, when_false: Pieces) -> Pieces:
    return _combine(lambda w, t, f: t if w else f, where, when_true, when_false)


def _maximum(x: Pieces, y: Pieces) -> Pieces:
    return _choose(_at_points(x, y, lambda a, b: a > b), x, y)


def _negative(x: Pieces) -> Pieces:
    return Pieces(x.breaks, tuple((-a, -c) for a, c in x.values))


def _product(x: Pieces, y: Pieces) -> Pieces | None:
    if any(a for a, _ in y.values):
        x, y = y, x
    if any(a for a, _ in y.values):
        return None  # a parabola
    return _combine(lambda a, b: (a[0] * b[1], a[1] * b[1]), x, y)


def _quotient(x: Pieces, y: Pieces) -> Pieces | None:
    if any(a or not c for a, c in y.values):
        return None
    return _combine(lambda a, b: (a[0] / b[1], a[1] / b[1]), x, y)


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt_to": lambda a, b: a < b,
    "le_to": lambda a, b: a <= b,
    "eq_to": lambda a, b: a == b,
    "is_finite": lambda a, _: True,
}
_LOGIC: dict[str, Callable[..., bool]] = {
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a != b,
    "not": lambda a: not a,
}


def apply(name: str, operands: list[Pieces], dtype_kind: str) -> Pieces | None:
    """The pieces of one primitive's result; None where it is not piecewise linear."""
    if name in ("add", "add_any"):
        return _combine(lambda a, b: (a[0] + b[0], a[1] + b[1]), *operands)
    if name == "sub":
        return _combine(lambda a, b: (a[0] - b[0], a[1] - b[1]), *operands)
    if name == "neg":
        return _negative(operands[0])
    if name == "mul":
        return _product(*operands)
    if name == "div":
        return _quotient(*operands)
    if name == "max":
        return _maximum(*operands)
    if name == "min":
        return _negative(_maximum(*(_negative(p) for p in operands)))
    if name == "abs":
        return _maximum(operands[0], _negative(operands[0]))
    if name == "sign":
        return _at_points(operands[0], constant(0.0), lambda a, _: (0.0, float(np.sign(a))))
    if name == "clamp":
        low, x, high = operands
        return apply("min", [_maximum(x, low), high], dtype_kind)
    if name in _COMPARE:
        return _at_points(operands[0], operands[-1], _COMPARE[name])
    if name in _LOGIC:
        return _combine(_LOGIC[name], *operands)
    if name == "select_n" and len(operands) == 3:
        where, when_false, when_true = operands
        return _choose(where, when_true, when_false)
    if name == "convert_element_type" and dtype_kind == "f":
        source = operands[0]
        if isinstance(source.values[0], bool):
            return Pieces(source.breaks, tuple((0.0, float(v)) for v in source.values))
        return source
    if name in primitives.COPIES:
        return operands[0]
    return None


def moments(pieces: Pieces, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """Mean, variance and E[f'] of a piecewise linear f(x), x ~ N(mean, variance), exactly.

    Written around the mean m, with s the slope there and the terms r_k = (distance beyond break k)
    and i_k = 1[beyond break k] of the breaks on either side,

        f(x) = f(m) + s (x − m) + Σ_k Δslope_k r_k ± Σ_k jump_k i_k

    every term is small where it is irrelevant, which avoids cancellation: relu has a relative
    precision of a few units in the last place from saturation to saturation.
    """
    # Spurious breaks (equal lines on both sides, no jump) come from how a function is written.
    lines, breaks = list(pieces.values), list(pieces.breaks)
    for k in reversed(range(len(breaks))):
        if lines[k] == lines[k + 1]:
            del lines[k + 1], breaks[k]
    if len(breaks) == 1 and _jump(breaks[0], *lines) == 0.0:
        return _bent(breaks[0], lines[0], lines[1], mean, variance)
    dtype = mean.dtype
    floor = _certain_below(dtype)
    sigma = jnp.sqrt(jnp.maximum(variance, floor))
    slope = jnp.full_like(mean, lines[0][0])
    offset = jnp.full_like(mean, lines[0][1])
    for place, line in zip(breaks, lines[1:], strict=True):
        beyond = mean >= place
        slope = jnp.where(beyond, line[0], slope)
        offset = jnp.where(beyond, line[1], offset)

    terms = []
    first = jnp.zeros_like(mean)  # E of the terms beyond the breaks, in units of sigma
    tilt = slope  # E[f'] = Cov(z, f)/sigma
    for place, left, right in zip(breaks, lines, lines[1:], strict=False):
        side = jnp.where(mean >= place, -1.0, 1.0).astype(dtype)
        a = jnp.minimum(side * (place - mean) / sigma, 40.0)
        density = _DENSITY_AT_0 * jnp.exp(-0.5 * a * a)
        tail = normal_tail(a, density)
        bend = right[0] - left[0]
        jump = _jump(place, left, right)
        step = side * jump / sigma if jump else None
        first = first + bend * (density - a * tail)
        tilt = tilt + side * bend * tail
        if step is not None:
            first = first + step * tail
            tilt = tilt + side * step * density
        terms.append((side, a, density, tail, bend, step))

    second = slope * (2.0 * tilt - slope) - first * first
    for k, x in enumerate(terms):
        for y in terms[k:]:
            product = _product_of_terms(x, y)
            if product is not None:
                second = second + (product if y is x else 2.0 * product)
    value = slope * mean + offset
    # Below the floor the beliefs are certain: exactly the plain function, as for pruned weights.
    excess = jnp.where(variance > floor, sigma * first, 0.0)
    return value + excess, variance * jnp.maximum(second, 0.0), tilt


def _certain_below(dtype: jnp.dtype) -> float:
    """The variance below which a belief is treated as certain."""
    return 1e-60 if dtype == jnp.float64 else 1e-20


def _jump(place: float, left: tuple[float, float], right: tuple[float, float]) -> float:
    """How far a function jumps at a break; exactly 0 except for rounding."""
    jump = (right[0] * place + right[1]) - (left[0] * place + left[1])
    return jump if abs(jump) > 1e-6 * max(1.0, abs(left[1]), abs(right[1])) else 0.0


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _bent(
    place: float,
    left: tuple[float, float],
    right: tuple[float, float],
    mean: Array,
    variance: Array,
) -> tuple[Array, Array, Array]:
    """`moments` of two lines that meet: relu, leaky relu, abs.

    Most networks spend most of their elementwise time here, so the derivatives are closed too.
    """
    return _Bend.of(place, left, right, mean, variance).moments()


@_bent.defjvp
def _bent_jvp(place, left, right, primals, tangents):
    bend = _Bend.of(place, left, right, *primals)
    by_mean, by_variance = bend.derivatives()
    mean_dot, variance_dot = tangents
    dots = tuple(a * mean_dot + b * variance_dot for a, b in zip(by_mean, by_variance, strict=True))
    return bend.moments(), dots


class _Bend(NamedTuple):
    """A bend between two lines, seen from the mean; the notation of `moments`."""

    mean: Array
    variance: Array
    sigma: Array
    certain: Array
    slope: Array  # of the line that the mean is on
    offset: Array
    bend: float  # slope on the right minus slope on the left
    side: Array
    a: Array
    density: Array
    tail: Array
    beyond: Array  # E[distance beyond the break] / sigma

    @classmethod
    def of(cls, place, left, right, mean: Array, variance: Array) -> _Bend:
        floor = _certain_below(mean.dtype)
        sigma = jnp.sqrt(jnp.maximum(variance, floor))
        on_right = mean >= place
        slope = jnp.where(on_right, right[0], left[0]).astype(mean.dtype)
        offset = jnp.where(on_right, right[1], left[1]).astype(mean.dtype)
        side = jnp.where(on_right, -1.0, 1.0).astype(mean.dtype)
        a = jnp.minimum(jnp.abs(place - mean) / sigma, 40.0)
        density = _DENSITY_AT_0 * jnp.exp(-0.5 * a * a)
        tail = normal_tail(a, density)
        return cls(
            mean, variance, sigma, variance <= floor, slope, offset, right[0] - left[0], side, a,
            density, tail, density - a * tail,
        )  # fmt: skip

    def moments(self) -> tuple[Array, Array, Array]:
        excess = jnp.where(self.certain, 0.0, self.sigma * self.bend * self.beyond)
        square = (1.0 + self.a * self.a) * self.tail - self.a * self.density
        tilt = self.slope + self.side * self.bend * self.tail
        second = self.slope * (2.0 * tilt - self.slope)
        second = second + self.bend**2 * (square - self.beyond * self.beyond)
        value = self.slope * self.mean + self.offset
        return value + excess, self.variance * jnp.maximum(second, 0.0), tilt

    def derivatives(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Derivatives of mean, variance and E[f'] by mean and variance of x (Price's theorem).

        ∂E[f]/∂m = E[f']             ∂E[f]/∂v = E[f'']/2
        ∂Var[f]/∂m = 2 Cov(f, f')    ∂Var[f]/∂v = E[f'²] + Cov(f, f'')
        """
        bend, side, slope = self.bend, self.side, self.slope
        curvature = jnp.where(self.certain, 0.0, bend * self.density / self.sigma)
        tilt = slope + side * bend * jnp.where(self.certain, 0.0, self.tail)
        beyond = slope * self.density + side * bend * self.beyond * (1.0 - self.tail)
        covariance = jnp.where(self.certain, 0.0, bend * self.sigma * beyond)
        other = slope + side * bend
        square = slope**2 + (other**2 - slope**2) * self.tail
        square = square + bend * self.density * (slope * side * self.a - bend * self.beyond)
        return (
            (tilt, 2.0 * covariance, curvature),
            (0.5 * curvature, square, 0.5 * side * self.a * curvature / self.sigma),
        )


def _product_of_terms(x: tuple, y: tuple) -> Array | None:
    """E[(Δslope_k r_k + step_k i_k)(Δslope_l r_l + step_l i_l)], zero on opposite sides."""
    side_x, a_x, density_x, tail_x, bend_x, step_x = x
    side_y, a_y, density_y, tail_y, bend_y, step_y = y
    farther = a_y >= a_x
    a, near = jnp.where(farther, a_y, a_x), jnp.where(farther, a_x, a_y)
    density = jnp.where(farther, density_y, density_x)
    tail = jnp.where(farther, tail_y, tail_x)
    total = bend_x * bend_y * ((1.0 + a * near) * tail - near * density)
    if step_x is not None:
        total = total + step_x * bend_y * (density - a_y * tail)
    if step_y is not None:
        total = total + step_y * bend_x * (density - a_x * tail)
    if step_x is not None and step_y is not None:
        total = total + step_x * step_y * tail
    if x is y:
        return total
    return jnp.where(side_x == side_y, total, 0.0)
