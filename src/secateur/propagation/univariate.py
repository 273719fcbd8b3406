"""Moments of one univariate function of one Gaussian value, by the best means at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur import compat, quadrature
from secateur.propagation import elementwise, logistic, piecewise
from secateur.propagation.program import Group, Node, Slot, uniform_value


@dataclass(frozen=True)
class Result:
    """Moments and E[f'] of a function of a Gaussian; ``how`` names the means, for coverage."""

    mean: Array
    variance: Array
    slope: Callable[[], Array]
    how: str
    remark: str = ""


def evaluate(group: Group, x: Array, read: Callable[[Any], Any]) -> Array:
    """The group's function at plain values ``x`` of its root."""
    values = {group.root: x}
    for node in group.nodes:
        operands = [values[a] if a in values else read(a) for a in node.inputs]
        (values[node.outputs[0]],) = compat.bind(node.eqn, *operands)
    return values[group.result]


def analyse(group: Group) -> tuple[piecewise.Pieces | None, tuple[float, ...], bool]:
    """Find what a group is made of.

    Returns:
        Its pieces if the whole is piecewise linear, its kinks, and whether all kinks are known.
    """
    pieces: dict[Slot, piecewise.Pieces | None] = {group.root: piecewise.IDENTITY}
    kinks: set[float] = set()
    known = True
    for node in group.nodes:
        operands = []
        for atom in node.inputs:
            if atom in pieces:
                operands.append(pieces[atom])
            else:
                number = uniform_value(atom)
                operands.append(None if number is None else piecewise.constant(number))
        out = node.outputs[0]
        kind = np.dtype(out.dtype).kind
        given = [p for p in operands if p is not None]
        made = piecewise.apply(node.name, given, kind) if len(given) == len(operands) else None
        pieces[out] = made
        if made is not None:
            if not node.smooth:
                kinks.update(b for b in made.breaks if np.isfinite(b))
        elif node.name in ("max", "min", "abs", "sign", "clamp", *piecewise._COMPARE):
            known = known and node.smooth
    return pieces[group.result], tuple(sorted(kinks)), known


def moments(group: Group, mean: Array, variance: Array, read: Callable[[Any], Any]) -> Result:
    """Moments of a whole group of elementwise equations as one function of its root."""
    closed = _closed_form(group, mean, variance, read)
    if closed is not None:
        return closed
    pieces, kinks, known = analyse(group)
    if pieces is not None and isinstance(pieces.values[0], tuple) and not _any_smooth(group):
        m, v, slope = piecewise.moments(pieces, mean, variance)
        return Result(m, v, lambda: slope, "exact", "piecewise linear")

    def function(x: Array) -> Array:
        return evaluate(group, x, read)

    if _needs_positive(group):
        return _log_normal(function, group, mean, variance)

    m, v, slope = quadrature.moments_and_slope(function, mean, variance, kinks=kinks)
    remark = "" if known else "has a kink at a place not known while tracing"
    return Result(m, v, lambda: slope, "quadrature", remark)


def _any_smooth(group: Group) -> bool:
    return any(node.smooth for node in group.nodes)


def _slope(integrate: Callable[[Array], tuple[Array, Array]], mean: Array) -> Array:
    """E[f'] = ∂E[f]/∂mean (Stein)."""
    return jax.jvp(lambda m: integrate(m)[0], (mean,), (jnp.ones_like(mean),))[1]


def _needs_positive(group: Group) -> bool:
    """Whether a logarithm, root or reciprocal acts on the root, or on its positive part."""
    direct = {group.root}
    for node in group.nodes:
        uncertain = [a in direct for a in node.inputs]
        if any(uncertain) and elementwise.needs_positive(node.eqn, uncertain):
            return True
        if any(uncertain) and (node.name == "max" or elementwise.is_affine(node.eqn, uncertain)):
            direct.add(node.outputs[0])
    return False


def _log_normal(function: Callable, group: Group, mean: Array, variance: Array) -> Result:
    """Moments through a log-normal with the same two moments: a Gaussian would reach below 0.

    y = ±exp(t),   t ~ N(ln|m| − s²/2, s²),   s² = ln(1 + v/m²)
    """
    shift = 1.0 if group.nodes[0].name == "log1p" else 0.0

    def integrate(mean: Array) -> tuple[Array, Array]:
        size = jnp.maximum(jnp.abs(mean + shift), jnp.finfo(mean.dtype).tiny ** 0.25)
        spread = jnp.log1p(variance / (size * size))
        centre = jnp.log(size) - 0.5 * spread
        sign = jnp.where(mean + shift < 0, -1.0, 1.0).astype(mean.dtype)
        return quadrature.moments(lambda t: function(sign * jnp.exp(t) - shift), centre, spread)

    m, v = integrate(mean)
    return Result(
        m, v, lambda: _slope(integrate, mean), "moment-matched", "as a function of a log-normal"
    )


def _closed_form(
    group: Group, mean: Array, variance: Array, read: Callable[[Any], Any]
) -> Result | None:
    if len(group.nodes) != 1:
        return None
    node = group.nodes[0]
    name = node.name
    if name in _LOGISTIC and mean.dtype == jnp.float32 and not _written_down.get():
        m, v, slope = _LOGISTIC[name](mean, variance)
        return Result(m, v, lambda: slope, "exact", "mixture of Normal distribution functions")
    if name == "exp":
        return _exponential(mean, variance, 0.0)
    if name == "expm1":
        return _exponential(mean, variance, 1.0)
    if name in ("max", "min"):
        return _bounded(node, group.root, mean, variance, read)
    squares = name == "mul" and node.inputs[0] is node.inputs[1]
    if name == "square" or squares or (name == "integer_pow" and node.eqn.params["y"] == 2):
        second = 2.0 * variance * (2.0 * mean * mean + variance)
        return Result(mean * mean + variance, second, lambda: 2.0 * mean, "exact", "square")
    if name in ("sin", "cos"):
        damping = jnp.exp(-0.5 * variance)
        value, other = (jnp.sin, jnp.cos) if name == "sin" else (jnp.cos, jnp.sin)
        sign = 1.0 if name == "sin" else -1.0
        # Var = ½(1 − e^{−v})(1 ± cos 2m·e^{−v}), in a form that does not cancel.
        peak = other(mean) ** 2
        small = -jnp.expm1(-variance)
        second = 0.5 * small * (2.0 * peak * (1.0 - small) + small)
        return Result(
            value(mean) * damping, second, lambda: sign * other(mean) * damping, "exact", name
        )
    return None


_written_down: ContextVar[bool] = ContextVar("_written_down", default=False)


@contextmanager
def to_be_written_down() -> Iterator[None]:
    """Make moments of few plain operations, for a graph in another language.

    The closed moments of σ and tanh are shaped for XLA: loops over long vectors of all rows.
    """
    token = _written_down.set(True)
    try:
        yield
    finally:
        _written_down.reset(token)


_LOGISTIC = {"logistic": logistic.logistic, "tanh": logistic.tanh}
_RECTIFIER = piecewise.Pieces((0.0,), ((0.0, 0.0), (1.0, 0.0)))


def _bounded(
    node: Node, root: Slot, mean: Array, variance: Array, read: Callable[[Any], Any]
) -> Result:
    """max(x, c) = c + relu(x − c) and min(x, c) = c − relu(c − x), c any certain array."""
    other = node.inputs[1] if node.inputs[0] is root else node.inputs[0]
    bound = jnp.broadcast_to(jnp.asarray(read(other), mean.dtype), mean.shape)
    sign = 1.0 if node.name == "max" else -1.0
    never = jnp.isinf(bound)  # a bound at infinity, as in numerically careful reductions
    place = jnp.where(never, -sign * 1e15, bound)
    m, v, slope = piecewise.moments(_RECTIFIER, sign * (mean - place), variance)
    value = jnp.where(never, mean, place + sign * m)
    return Result(value, v, lambda: slope, "exact", "piecewise linear")


def _exponential(mean: Array, variance: Array, minus: float) -> Result:
    """exp(x) is log-normal; it saturates near the largest finite number instead of overflowing."""
    largest = float(np.log(np.finfo(mean.dtype).max)) - 1.0
    exponent = jnp.minimum(mean + 0.5 * variance, largest)
    first = jnp.exp(exponent)
    # Var = expm1(v)·e^{2m+v} = (1 − e^{−v})·e^{2(m+v)}: the first for small v, where it is precise
    # and has its derivative at 0; the second, in logarithms, where the factors would overflow.
    narrow = jnp.where(variance < 1.0, variance, 1.0)
    small = jnp.expm1(narrow) * jnp.exp(jnp.minimum(2.0 * mean + narrow, largest - 1.0))
    wide = jnp.where(variance < 1.0, 1.0, variance)
    large = jnp.exp(jnp.minimum(2.0 * (mean + wide) + jnp.log(-jnp.expm1(-wide)), largest))
    second = jnp.where(variance < 1.0, small, large)
    value = jnp.expm1(exponent) if minus else first
    return Result(value, second, lambda: first, "exact", "log-normal")
