"""Moments of functions of one uncertain value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur import quadrature
from secateur.equations import (
    Atom,
    Equation,
    Interpreter,
    Slot,
    primitives,
    uniform_value,
)
from secateur.propagation import domains, logistic, piecewise
from secateur.propagation.groups import UnivariateGroup, split_affine

OUTSIDE = "where it is undefined, its value at the mean is used"


@dataclass(frozen=True)
class UnivariateMoments:
    """Moments and E[f'] of a function of a Gaussian; ``how`` names the means, for coverage."""

    mean: Array
    variance: Array
    slope: Callable[[], Array]
    how: str
    remark: str = ""


class GroupEvaluation(Interpreter):
    """Evaluates the function of a group on plain values; other operands come from outside."""

    def __init__(self, group: UnivariateGroup, read: Callable[[Atom], Any]) -> None:
        super().__init__(group.program)
        self.read = read

    def value(self, atom: Any) -> Any:
        """Return a value of the group, or one from outside."""
        return self.values[atom] if atom in self.values else self.read(atom)

    def is_known(self, operands: list[Any]) -> bool:
        """Whether to evaluate an equation as it is: always."""
        return True


def evaluate_group(group: UnivariateGroup, x: Array, read: Callable[[Atom], Any]) -> Array:
    """Return the group's function at plain values ``x`` of its root."""
    return GroupEvaluation(group, read).run([x])[0]


def compare_surely(
    group: UnivariateGroup, mean: Array, variance: Array, read: Callable[[Atom], Any]
) -> Array | None:
    """Return the truth of a comparison that a Gaussian root leaves no doubt of, else None.

    It is never infinite, and is equal to a number with probability 0.
    """
    last = group.equations[-1]
    if last.name not in primitives.DECIDED_BY_GAUSSIANS:
        return None
    inside = {group.root, *(slot for n in group.equations for slot in n.outputs)}
    operand, *others = sorted(last.inputs, key=lambda a: a not in inside)
    at_mean = evaluate_group(group, mean, read)
    numbers = [uniform_value(a) for a in others]
    if last.name == "is_finite" or (numbers[0] is not None and np.isinf(numbers[0])):
        return at_mean
    assert isinstance(operand, Slot)
    if others[0] in inside or split_affine(replace(group, result=operand))[0] is not operand:
        return None
    return jnp.where(variance > 0.0, last.name == "ne", at_mean)


_KINKED = primitives.WITH_KINKS | primitives.STEPS | primitives.LOOKUPS | {"scan"}


class PieceSearch(Interpreter):
    """Finds the pieces of every value of a group; None where it is not piecewise linear.

    Attributes:
        kinks: Places of the kinks.
        all_known: Whether all kinks are known.
    """

    def __init__(self, group: UnivariateGroup) -> None:
        super().__init__(group.program)
        self.kinks: set[float] = set()
        self.all_known = True

    def value(self, atom: Any) -> piecewise.Pieces | None:
        """Return the pieces of an operand."""
        if atom in self.values:
            return self.values[atom]
        number = uniform_value(atom)
        return None if number is None else piecewise.constant(number)

    def apply_default(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the pieces of a result, and note its kinks."""
        pieces = None
        if all(operand is not None for operand in operands):
            kind = np.dtype(equation.outputs[0].dtype).kind
            pieces = piecewise.apply(equation.name, operands, kind)
        if pieces is not None:
            if not equation.smooth:
                self.kinks.update(b for b in pieces.breaks if np.isfinite(b))
        elif equation.name in _KINKED:
            self.all_known = self.all_known and equation.smooth
        return [pieces] * len(equation.outputs)


def moments(
    group: UnivariateGroup,
    mean: Array,
    variance: Array,
    read: Callable[[Atom], Any],
    *,
    closed_sigmoids: bool = True,
) -> UnivariateMoments:
    """Moments of a whole group of elementwise equations as one function of its root.

    Args:
        group: The equations.
        mean: Means of the root.
        variance: Variances of the root.
        read: Returns the value of an operand from outside the group.
        closed_sigmoids: Whether to use the closed moments of σ and tanh where they are accurate.
    """
    is_plain = group.root.shape == group.result.shape
    closed = _closed_form(group, mean, variance, read, closed_sigmoids) if is_plain else None
    if closed is not None:
        return closed
    search = PieceSearch(group)
    (pieces,) = search.run([piecewise.IDENTITY])
    if (
        is_plain
        and pieces is not None
        and isinstance(pieces.values[0], tuple)
        and not _any_smooth(group)
    ):
        m, v, slope = piecewise.moments(pieces, mean, variance)
        return UnivariateMoments(m, v, lambda: slope, "exact", "piecewise linear")

    function: Callable[[Array], Array] = lambda x: evaluate_group(group, x, read)  # noqa: E731

    if _needs_positive(group):
        return _log_normal(function, group, mean, variance)

    outside = ""
    if not domains.is_total(group.program):
        function, outside = domains.within_domain(function, mean), OUTSIDE
    m, v, slope = quadrature.moments_and_slope(
        function, mean, variance, kinks=tuple(sorted(search.kinks))
    )
    kinks = "" if search.all_known else "has a kink at a place that is unknown while tracing"
    remark = "; ".join(filter(None, (kinks, outside)))
    return UnivariateMoments(m, v, lambda: slope, "quadrature", remark)


def _any_smooth(group: UnivariateGroup) -> bool:
    return any(equation.smooth for equation in group.equations)


def _slope(integrate: Callable[[Array], tuple[Array, Array]], mean: Array) -> Array:
    """E[f'] = ∂E[f]/∂mean (Stein)."""
    return jax.jvp(lambda m: integrate(m)[0], (mean,), (jnp.ones_like(mean),))[1]


def _needs_positive(group: UnivariateGroup) -> bool:
    """Whether a logarithm, root or reciprocal acts on the root, or on its positive part."""
    inside = {group.root, *(slot for n in group.equations for slot in n.outputs)}
    direct = {group.root}
    for equation in group.equations:
        uncertain = [a in direct for a in equation.inputs]
        if any(uncertain) and primitives.needs_positive(equation.eqn, uncertain):
            return True
        if any(uncertain) and inside.isdisjoint(set(equation.inputs) - direct):
            is_affine = primitives.is_affine(equation.eqn, uncertain)
            if is_affine or equation.name in ("max", "abs"):
                direct.add(equation.outputs[0])
    return False


def _log_normal(
    function: Callable, group: UnivariateGroup, mean: Array, variance: Array
) -> UnivariateMoments:
    """Moments through a log-normal with the same two moments: a Gaussian would reach below 0.

    y = ±exp(t),   t ~ N(ln|m| − s²/2, s²),   s² = ln(1 + v/m²)
    """
    shift = 1.0 if group.equations[0].name == "log1p" else 0.0
    remark = "as a function of a log-normal"
    if not domains.is_total(group.program, (-shift, np.inf)):
        function, remark = domains.within_domain(function, mean), f"{remark}; {OUTSIDE}"

    def integrate(mean: Array) -> tuple[Array, Array]:
        size = jnp.maximum(jnp.abs(mean + shift), jnp.finfo(mean.dtype).tiny ** 0.25)
        spread = jnp.log1p(variance / (size * size))
        centre = jnp.log(size) - 0.5 * spread
        sign = jnp.where(mean + shift < 0, -1.0, 1.0).astype(mean.dtype)
        return quadrature.moments(lambda t: function(sign * jnp.exp(t) - shift), centre, spread)

    m, v = integrate(mean)
    return UnivariateMoments(m, v, lambda: _slope(integrate, mean), "moment-matched", remark)


def _closed_form(
    group: UnivariateGroup,
    mean: Array,
    variance: Array,
    read: Callable[[Atom], Any],
    closed_sigmoids: bool,
) -> UnivariateMoments | None:
    if len(group.equations) != 1:
        return None
    equation = group.equations[0]
    name = equation.name
    if name in _LOGISTIC and mean.dtype == jnp.float32 and closed_sigmoids:
        m, v, slope = _LOGISTIC[name](mean, variance)
        return UnivariateMoments(
            m, v, lambda: slope, "exact", "mixture of Normal distribution functions"
        )
    if name == "exp":
        return _exponential(mean, variance, 0.0)
    if name == "expm1":
        return _exponential(mean, variance, 1.0)
    if name in ("max", "min") and equation.inputs.count(group.root) == 1:
        return _bounded(equation, group.root, mean, variance, read)
    squares = name == "mul" and equation.inputs[0] is equation.inputs[1]
    if name == "square" or squares or (name == "integer_pow" and equation.params["y"] == 2):
        second = 2.0 * variance * (2.0 * mean * mean + variance)
        return UnivariateMoments(
            mean * mean + variance, second, lambda: 2.0 * mean, "exact", "square"
        )
    if name in ("sin", "cos"):
        damping = jnp.exp(-0.5 * variance)
        value, other = (jnp.sin, jnp.cos) if name == "sin" else (jnp.cos, jnp.sin)
        sign = 1.0 if name == "sin" else -1.0
        # Var = ½(1 − e^{−v})(1 ± cos 2m·e^{−v}), in a form that does not cancel.
        peak = other(mean) ** 2
        small = -jnp.expm1(-variance)
        second = 0.5 * small * (2.0 * peak * (1.0 - small) + small)
        return UnivariateMoments(
            value(mean) * damping, second, lambda: sign * other(mean) * damping, "exact", name
        )
    return None


_LOGISTIC = {"logistic": logistic.logistic_moments, "tanh": logistic.tanh_moments}
_RECTIFIER = piecewise.Pieces((0.0,), ((0.0, 0.0), (1.0, 0.0)))


def _bounded(
    equation: Equation, root: Slot, mean: Array, variance: Array, read: Callable[[Any], Any]
) -> UnivariateMoments:
    """max(x, c) = c + relu(x − c) and min(x, c) = c − relu(c − x), c any certain array."""
    other = equation.inputs[1] if equation.inputs[0] is root else equation.inputs[0]
    bound = jnp.broadcast_to(jnp.asarray(read(other), mean.dtype), mean.shape)
    sign = 1.0 if equation.name == "max" else -1.0
    never = jnp.isinf(bound)  # a bound at infinity, as in numerically robust reductions
    place = jnp.where(never, -sign * 1e15, bound)
    m, v, slope = piecewise.moments(_RECTIFIER, sign * (mean - place), variance)
    value = jnp.where(never, mean, place + sign * m)
    return UnivariateMoments(value, v, lambda: slope, "exact", "piecewise linear")


def _exponential(mean: Array, variance: Array, minus: float) -> UnivariateMoments:
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
    return UnivariateMoments(value, second, lambda: first, "exact", "log-normal")
