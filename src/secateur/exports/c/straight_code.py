"""Straight-line code: each number is computed by a line of its own.

Every element of every array becomes an expression. Products with 0 are omitted, values that do not
depend on the input become constants, equal expressions are shared, and unread units are not
computed, which leaves the smallest possible straight-line program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secateur.exports.c.expressions import (
    COMPARISONS,
    WHOLE,
    ExpressionWriter,
    format_number,
)
from secateur.exports.evaluator import FloatArithmetic, evaluate_graph
from secateur.exports.graph import Graph

__all__ = ["Scalar", "ScalarArithmetic", "StraightProgram", "straighten_graph", "write_straight"]

_NUMBERS = FloatArithmetic()


@dataclass(frozen=True)
class Scalar:
    """One number that the program computes.

    Attributes:
        op: An elementwise function; `x` (an input), `s` (a state), `number`, or `sum`: of products
            with weights and a constant.
        args: Operands.
        detail: Index of an input or state; the number; for a sum its weights and constant; for a
            function its attributes.
    """

    op: str
    args: tuple[Scalar, ...] = ()
    detail: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.args, self.detail)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

    @property
    def known(self) -> float | None:
        """Return the value, if it is a constant."""
        return self.detail if self.op == "number" else None


class ScalarArithmetic:
    """Arithmetic for `evaluate_graph` on arrays of `Scalar`."""

    def __init__(self) -> None:
        self._made: dict[Scalar, Scalar] = {}

    def make(self, op: str, args: tuple[Scalar, ...] = (), detail: Any = None) -> Scalar:
        """Return the expression; equal ones are the same object."""
        scalar = Scalar(op, args, detail)
        return self._made.setdefault(scalar, scalar)

    def number(self, value: Any) -> Scalar:
        """Return a number."""
        return self.make("number", (), float(value) + 0.0)

    def places(self, op: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of numbered inputs or states."""
        flat = [self.make(op, (), i) for i in range(int(np.prod(shape, dtype=int)))]
        return _array(flat, shape)

    def constant(self, array: np.ndarray) -> np.ndarray:
        """Convert a known array."""
        return _array([self.number(v) for v in array.ravel()], array.shape)

    def elementwise(self, op: str, attributes: dict[str, Any], *arrays: Any) -> Any:
        """Apply a function to every element."""
        wide = np.broadcast_arrays(*arrays)
        detail = tuple(sorted(attributes.items())) or None
        columns = zip(*(a.ravel() for a in wide), strict=True)
        return _array([self.apply(op, detail, args) for args in columns], wide[0].shape)

    def apply(self, op: str, detail: Any, args: tuple[Scalar, ...]) -> Scalar:
        """Apply a function to numbers, simplifying where that is exact."""
        known = [a.known for a in args]
        if all(k is not None for k in known):
            numbers = map(np.float64, known)
            return self.number(_NUMBERS.elementwise(op, dict(detail or ()), *numbers))
        if op == "select_n" and known[0] is not None:
            return args[2] if known[0] else args[1]
        if op in ("add", "sub", "mul"):
            return self._arithmetic(op, args, known)
        if op == "div" and known[0] == 0:
            return self.number(0)
        if op == "div" and known[1] is not None:
            return self._sum([(args[0], 1 / known[1])], 0.0)
        if op == "neg":
            return self._sum([(args[0], -1.0)], 0.0)
        if op == "integer_pow" and detail == (("y", 2),):
            return self.make("square", args)
        return self.make(op, args, detail)

    def _arithmetic(self, op: str, args: tuple[Scalar, ...], known: list) -> Scalar:
        a, b = args
        if op == "mul":
            if 0 in known:
                return self.number(0)
            for factor, other in ((known[0], b), (known[1], a)):
                if factor is not None:
                    return self._sum([(other, factor)], 0.0)
            return self.make("mul", args)
        sign = 1.0 if op == "add" else -1.0
        return self._sum([(a, 1.0), (b, sign)], 0.0)

    def _sum(self, terms: Iterable[tuple[Scalar, float]], constant: float) -> Scalar:
        """Return Σ weight × value + constant, with similar sums inside it expanded."""
        weights: dict[Scalar, float] = {}
        for value, weight in terms:
            number = value.known
            if number is not None:
                constant += number * weight
            elif weight != 0:
                weights[value] = weights.get(value, 0.0) + weight
        weights = {value: weight for value, weight in weights.items() if weight != 0}
        if not weights:
            return self.number(constant)
        ((first, weight),) = list(weights.items())[:1]
        if len(weights) == 1 and weight == 1 and constant == 0:
            return first
        # A sum with a factor, a sign or a shift is one sum; but x − m is exact if x is close to
        # m, which multiplying out would lose.
        if len(weights) == 1 and first.op == "sum" and not _is_shifted_input(first):
            inner, shift = first.detail
            return self._sum(
                zip(first.args, (weight * w for w in inner), strict=True),
                constant + weight * shift,
            )
        detail = (tuple(weights.values()), constant)
        return self.make("sum", tuple(weights), detail)

    def linear(self, x: Any, weights: np.ndarray, bias: np.ndarray | None) -> Any:
        """Return x Wᵀ + b; x has two axes."""
        bias = np.zeros(len(weights)) if bias is None else bias
        rows = []
        for row in x:
            for w, b in zip(weights, bias, strict=True):
                used = np.flatnonzero(w)
                rows.append(self._sum(((row[i], float(w[i])) for i in used), float(b)))
        return _array(rows, (len(x), len(weights)))

    def reduce(self, kind: str, array: Any, axis: int) -> Any:
        """Reduce over one axis."""
        moved = np.moveaxis(array, axis, -1)
        flat = moved.reshape(-1, moved.shape[-1])
        if kind == "sum":
            scalars = [self._sum(((v, 1.0) for v in row), 0.0) for row in flat]
        else:
            op = "mul" if kind == "prod" else kind
            scalars = [self._chain(op, list(row)) for row in flat]
        return _array(scalars, moved.shape[:-1])

    def _chain(self, op: str, values: list[Scalar]) -> Scalar:
        values = [v for v in values if not (op == "max" and v.known == -np.inf)]
        result = values[0]
        for value in values[1:]:
            result = self.apply(op, None, (result, value))
        return result


def _is_shifted_input(scalar: Scalar) -> bool:
    """Whether this is x + constant."""
    weights, constant = scalar.detail
    return (
        len(scalar.args) == 1 and scalar.args[0].op == "x" and weights == (1.0,) and constant != 0
    )


def _array(values: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


@dataclass(frozen=True, eq=False)
class StraightProgram:
    """A program of single numbers.

    Attributes:
        outputs: One expression for each output.
        states: Expressions of the required states after the call, by index.
        initial: Initial values of those states, by index.
        steps: All expressions that must be computed, operands first.
    """

    outputs: tuple[Scalar, ...]
    states: dict[int, Scalar]
    initial: dict[int, float]
    steps: tuple[Scalar, ...]


def straighten_graph(graph: Graph) -> StraightProgram:
    """Convert a graph to single numbers; only its first output is used."""
    arithmetic = ScalarArithmetic()
    initial = [float(v) for state in graph.states for v in state.initial.ravel()]
    fixed = set(range(len(initial)))  # states assumed to be constant until shown otherwise
    (source,) = graph.inputs
    while True:
        named = arithmetic.places("s", (len(initial),))
        for index in fixed:
            named[index] = arithmetic.number(initial[index])
        states, start = [], 0
        for state in graph.states:
            size = int(np.prod(state.before.shape, dtype=int))
            states.append(named[start : start + size].reshape(state.before.shape))
            start += size
        inputs = arithmetic.places("x", source.shape)
        outputs, after = evaluate_graph(graph, [inputs], states, arithmetic)
        flat = [v for a in after for v in np.asarray(a).ravel()]
        changing = {i for i in fixed if flat[i].known != initial[i]}
        if not changing:
            break
        fixed -= changing
    results = tuple(np.asarray(outputs[0]).ravel())
    kept = _needed_states(results, flat)
    steps = _ordered([*results, *(flat[i] for i in kept)])
    return StraightProgram(
        results, {i: flat[i] for i in kept}, {i: initial[i] for i in kept}, tuple(steps)
    )


def _needed_states(outputs: Iterable[Scalar], after: list[Scalar]) -> list[int]:
    needed: set[int] = set()
    frontier = list(outputs)
    while frontier:
        states = {s.detail for s in _ordered(frontier) if s.op == "s"} - needed
        needed |= states
        frontier = [after[i] for i in states]
    return sorted(needed)


def _ordered(roots: Iterable[Scalar]) -> Iterator[Scalar]:
    """Return all subexpressions once each, operands first."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        scalar, ready = stack.pop()
        if ready:
            yield scalar
        elif id(scalar) not in seen:
            seen.add(id(scalar))
            stack.append((scalar, True))
            stack.extend((a, False) for a in reversed(scalar.args))


def write_straight(
    program: StraightProgram,
    writer: ExpressionWriter,
    states: dict[int, str],
    state_kind: str = "float",
) -> list[str]:
    """Return the statements that compute the outputs and the states.

    Args:
        program: Program to write.
        writer: Writer of expressions, which collects the functions that are called.
        states: C expression of each state, for reading and writing.
        state_kind: The C type of a state.
    """
    names: dict[Scalar, str] = {}
    whole = _whole_numbers(program, state_kind)
    lines: list[str] = []
    temporaries = 0
    for scalar in program.steps:
        if scalar.op == "x":
            names[scalar] = f"x[{scalar.detail}]"
        elif scalar.op == "s":
            names[scalar] = states[scalar.detail]
        elif scalar.op == "number":
            names[scalar] = format_number(scalar.detail)
        else:
            name = f"t{temporaries}"
            temporaries += 1
            kind = "int32_t" if scalar in whole else "float"
            text = _expression(scalar, names, whole, writer)
            lines.append(f"const {kind} {name} = {text};")
            names[scalar] = name
    results = [f"y[{i}] = {names[scalar]};" for i, scalar in enumerate(program.outputs)]
    # Written last, because all code above reads the previous state.
    cast = "" if state_kind == "float" else f"({state_kind})"
    kept = [
        f"{states[i]} = {cast}{names[after]};"
        for i, after in program.states.items()
        if names[after] != states[i]
    ]
    return [*lines, *results, *_in_safe_order(kept, state_kind)]


def _in_safe_order(assignments: list[str], kind: str) -> list[str]:
    """Copy states through temporaries where one copy would overwrite another's source."""
    targets = {line.split(" = ")[0] for line in assignments}
    reads = [line.split(" = ")[1].rstrip(";") for line in assignments]
    if not targets.intersection(reads):
        return assignments
    saved = [f"const {kind} old{i} = {source};" for i, source in enumerate(reads)]
    stored = [f"{line.split(' = ')[0]} = old{i};" for i, line in enumerate(assignments)]
    return [*saved, *stored]


def _whole_numbers(program: StraightProgram, state_kind: str) -> set[Scalar]:
    """Return the integer expressions: functions with integer results, and arithmetic of these."""
    whole: set[Scalar] = set()
    for scalar in program.steps:
        if scalar.op == "s":
            is_whole = state_kind != "float"
        elif scalar.op in COMPARISONS or scalar.op in WHOLE:
            is_whole = True
        elif scalar.op in ("x", "number", "dequantise"):
            is_whole = False
        else:
            values = [a for a in scalar.args if a.known is None]
            is_whole = all(a in whole for a in values)
            if scalar.op == "select_n":
                values = [a for a in scalar.args[1:] if a.known is None]
                is_whole = bool(values) and all(a in whole for a in values)
        if is_whole:
            whole.add(scalar)
    return whole


def _expression(
    scalar: Scalar, names: dict[Scalar, str], whole: set[Scalar], writer: ExpressionWriter
) -> str:
    compared = scalar.op in COMPARISONS and all(a in whole for a in scalar.args if a.known is None)
    integral = compared or (scalar in whole and scalar.op not in COMPARISONS)
    number = _integer if integral else format_number
    operands = [names[a] if a.known is None else number(a.known) for a in scalar.args]
    if scalar.op in ("max", "min") and integral:
        a, b = operands
        return f"{a} {'>' if scalar.op == 'max' else '<'} {b} ? {a} : {b}"
    if scalar.op != "sum":
        return writer.apply(
            scalar.op, operands, dict(scalar.detail or ()), [a.known for a in scalar.args]
        )
    weights, constant = scalar.detail
    text = number(constant) if constant else ""
    for weight, operand in zip(weights, operands, strict=True):
        size = "" if abs(weight) == 1 else f"{number(abs(weight))} * "
        sign = "-" if weight < 0 else "+"
        text += (
            f" {sign} {size}{operand}" if text else f"{'-' if weight < 0 else ''}{size}{operand}"
        )
    return text


def _integer(value: float) -> str:
    return str(round(value))
