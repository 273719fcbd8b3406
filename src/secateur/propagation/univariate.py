"""Elementwise equations that make one function of one uncertain value, and its moments."""

from __future__ import annotations

from collections.abc import Callable, Container
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
    Program,
    Slot,
    compat,
    primitives,
    read_program,
    uniform_value,
)
from secateur.propagation import domains, logistic, piecewise
from secateur.propagation.lookups import find_rounding, is_lookup, is_place, keeps_columns


@dataclass(frozen=True)
class UnivariateGroup:
    """Elementwise equations that make one function of one uncertain value, in order."""

    root: Slot
    equations: tuple[Equation, ...]
    result: Slot

    @property
    def program(self) -> Program:
        """Return its equations as a function of the root."""
        return Program([self.root], [self.result], list(self.equations))


def extend_group(
    equation: Equation,
    groups: dict[Slot, UnivariateGroup],
    is_uncertain: Callable[[Any], bool],
    rounding: frozenset[int] = frozenset(),
    spread: Container[Slot] = frozenset(),
) -> UnivariateGroup | None:
    """The group that ``equation`` extends, or None where it is not a function of one value only.

    Args:
        equation: The next equation.
        groups: The groups that end in earlier slots.
        is_uncertain: Whether an atom is uncertain.
        rounding: Numbers of the equations of steps that are part of a look-up.
        spread: Roots of groups that may have several results for each element; see `find_spread`.

    Returns:
        The group that ends in the first result; those of others differ by that only.
    """
    elementwise = equation.name in primitives.UNIVARIATE or equation.index in rounding
    moves = equation.name in primitives.FIXED_MOVES | primitives.JOINS
    if not elementwise and not moves and not is_lookup(equation, is_uncertain):
        return None
    operands = [a for a in equation.inputs if isinstance(a, Slot) and is_uncertain(a)]
    parts = [groups.get(slot) or UnivariateGroup(slot, (), slot) for slot in operands]
    roots = {part.root for part in parts}
    if len(roots) != 1:
        return None
    root = parts[0].root
    if is_place(root):
        return None
    result = equation.outputs[0]
    if not (root in spread and (elementwise or moves) and keeps_columns(equation, root)):
        if elementwise and any(slot.shape != result.shape for slot in operands):
            return None
        if moves and not is_lookup(equation, is_uncertain):
            return None
        wide = is_place(result) and result.shape == (*root.shape, 1)  # an index into a table
        if root.shape != result.shape and not wide:
            return None
    members = {n.index: n for part in parts for n in part.equations}
    members[equation.index] = equation
    return UnivariateGroup(root, tuple(members[i] for i in sorted(members)), result)


def find_spread(program: Program, rounding: frozenset[int]) -> set[Slot]:
    """Return the roots of functions with several results for each element of their root.

    An example is the basis of a B-spline: x is compared with all knots along an axis on which it
    has length one, and there the results are put together. Only comparisons need this. What other
    functions make along such an axis are values of their own, one for each place.
    """
    groups: dict[Slot, UnivariateGroup] = {}
    roots: set[Slot] = set()
    if not any(_widens(n) for n in program.equations if n.name in primitives.COMPARISONS):
        return roots
    for equation in program.equations:
        group = extend_group(equation, groups, _is_tracked, rounding, _Everything())
        if group is None:
            continue
        groups.update((slot, replace(group, result=slot)) for slot in equation.outputs)
        if equation.name in primitives.COMPARISONS and group.result.shape != group.root.shape:
            roots.add(group.root)
    return roots


def _widens(equation: Equation) -> bool:
    tracked = [a for a in equation.inputs if isinstance(a, Slot) and a.tracked]
    return any(slot.shape != equation.outputs[0].shape for slot in tracked)


class _Everything:
    def __contains__(self, item: object) -> bool:
        return True


def _is_tracked(atom: Atom) -> bool:
    return isinstance(atom, Slot) and atom.tracked


def split_affine(group: UnivariateGroup) -> tuple[Slot, Slot]:
    """The ends of a group's nonlinear core: everything before and after is affine.

    Returns:
        ``(start, end)``; ``start is end`` where the whole group is affine up to there.
    """
    inside = {group.root, *(s for n in group.equations for s in n.outputs)}

    def is_affine(equation: Equation) -> bool:
        return primitives.is_affine(equation.eqn, [a in inside for a in equation.inputs])

    start = group.root
    while start is not group.result:
        consumers = [n for n in group.equations if start in n.inputs]
        if len(consumers) != 1 or not is_affine(consumers[0]):
            break
        if consumers[0].outputs[0].shape != start.shape:
            break
        start = consumers[0].outputs[0]
    end = group.result
    producers = {s: n for n in group.equations for s in n.outputs}
    while end is not start:
        equation = producers[end]
        operands = {a for a in equation.inputs if a in inside}
        if len(operands) != 1 or not is_affine(equation):
            break
        if {slot.shape for slot in operands} != {end.shape}:
            break
        end = operands.pop()
    return start, end


def restrict_group(group: UnivariateGroup, start: Slot, end: Slot) -> UnivariateGroup:
    """The equations of ``group`` that lead from ``start`` to ``end``."""
    needed, kept = {end}, []
    for equation in reversed(group.equations):
        if needed.intersection(equation.outputs) and equation.outputs[0] is not start:
            kept.append(equation)
            needed.update(a for a in equation.inputs if isinstance(a, Slot))
    return UnivariateGroup(start, tuple(reversed(kept)), end)


def find_logarithm(group: UnivariateGroup) -> Equation | None:
    """Return the logarithm of the root, or of its size, if all of a group is a function of it."""
    for equation in group.equations:
        users = [n for n in group.equations if equation.inputs[0] in n.inputs]
        if equation.name not in ("abs", "log") or len(users) != 1:
            return None
        if equation.name == "log":
            rest = restrict_group(group, equation.outputs[0], group.result)
            return None if any(group.root in n.inputs for n in rest.equations) else equation
    return None


def as_number(group: UnivariateGroup, dtype: Any) -> UnivariateGroup:
    """Return a group that ends in truth values, with their conversion to numbers at its end."""
    last = group.equations[-1]
    truth = jax.ShapeDtypeStruct(group.result.shape, bool)
    jaxpr, _ = compat.trace(lambda b: b.astype(dtype), truth)
    (equation,) = read_program(jaxpr, [], [True]).equations
    equation = replace(equation, index=last.index + 1, inputs=(group.result,), where=last.where)
    return UnivariateGroup(group.root, (*group.equations, equation), equation.outputs[0])


def compare_surely(
    group: UnivariateGroup, mean: Array, variance: Array, read: Callable[[Atom], Any]
) -> Array | None:
    """Return the truth of a comparison that a Gaussian root leaves no doubt of, else None.

    It is never infinite, and is equal to a number with probability 0.
    """
    last = group.equations[-1]
    if last.name not in ("eq", "ne", "is_finite"):
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


def shared_slots(program: Program, *, elementwise_only: bool = False) -> set[Slot]:
    """Slots whose uncertainty reaches several places, so that those are correlated.

    Args:
        program: Flat equations.
        elementwise_only: Leave out what is used by anything that is not element by element.
    """
    groups: dict[Slot, UnivariateGroup] = {}
    uses: dict[Slot, set] = {}
    cores: dict[Slot, set[Slot]] = {}

    def use(atom: Atom, user: Any) -> None:
        if not isinstance(atom, Slot) or not atom.tracked:
            return
        group = groups.get(atom)
        root, core = (atom, atom) if group is None else (group.root, split_affine(group)[1])
        uses.setdefault(core, set()).add((atom, user))
        cores.setdefault(root, set()).add(core)

    mixing: set[Slot] = set()
    rounding = find_rounding(program)
    spread = find_spread(program, rounding)
    for equation in program.equations:
        group = extend_group(equation, groups, _is_tracked, rounding, spread)
        if group is not None:
            groups.update((slot, replace(group, result=slot)) for slot in equation.outputs)
            continue
        for position, atom in enumerate(equation.inputs):
            use(atom, (equation.index, position))
        if elementwise_only and equation.name not in primitives.UNIVARIATE:
            roots = [groups[a].root if a in groups else a for a in equation.inputs]
            mixing |= {slot for slot in (*equation.inputs, *roots) if isinstance(slot, Slot)}
    for position, atom in enumerate(program.outputs):
        use(atom, ("output", position))
    several = {s for s, users in uses.items() if len(users) > 1}
    return (several | {root for root, reached in cores.items() if len(reached) > 1}) - mixing


OUTSIDE = "where it is not defined, it counts as its value at the mean"


@dataclass(frozen=True)
class UnivariateMoments:
    """Moments and E[f'] of a function of a Gaussian; ``how`` names the means, for coverage."""

    mean: Array
    variance: Array
    slope: Callable[[], Array]
    how: str
    remark: str = ""


class GroupEvaluation(Interpreter):
    """A group's function on plain values; other operands are read from elsewhere."""

    def __init__(self, group: UnivariateGroup, read: Callable[[Atom], Any]) -> None:
        super().__init__(group.program)
        self.read = read

    def value(self, atom: Any) -> Any:
        """Return a value of the group's own, or from elsewhere."""
        return self.values[atom] if atom in self.values else self.read(atom)

    def is_known(self, operands: list[Any]) -> bool:
        """Whether to evaluate an equation as it is: always."""
        return True


def evaluate_group(group: UnivariateGroup, x: Array, read: Callable[[Atom], Any]) -> Array:
    """Return the group's function at plain values ``x`` of its root."""
    return GroupEvaluation(group, read).run([x])[0]


_KINKED = primitives.WITH_KINKS | primitives.STEPS | primitives.LOOKUPS | {"scan"}


class PieceSearch(Interpreter):
    """What a group is made of: the pieces of every value, None where it is not piecewise linear.

    Attributes:
        kinks: Places of the kinks.
        all_known: Whether those are all kinks.
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
    kinks = "" if search.all_known else "has a kink at a place not known while tracing"
    remark = "; ".join(filter(None, (kinks, outside)))
    return UnivariateMoments(m, v, lambda: slope, "quadrature", remark)


def _any_smooth(group: UnivariateGroup) -> bool:
    return any(equation.smooth for equation in group.equations)


def _slope(integrate: Callable[[Array], tuple[Array, Array]], mean: Array) -> Array:
    """E[f'] = ∂E[f]/∂mean (Stein)."""
    return jax.jvp(lambda m: integrate(m)[0], (mean,), (jnp.ones_like(mean),))[1]


def _needs_positive(group: UnivariateGroup) -> bool:
    """Whether a logarithm, root or reciprocal acts on the root, or on its positive part."""
    direct = {group.root}
    for equation in group.equations:
        uncertain = [a in direct for a in equation.inputs]
        if any(uncertain) and primitives.needs_positive(equation.eqn, uncertain):
            return True
        if any(uncertain) and (
            equation.name in ("max", "abs") or primitives.is_affine(equation.eqn, uncertain)
        ):
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
    never = jnp.isinf(bound)  # a bound at infinity, as in numerically careful reductions
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
