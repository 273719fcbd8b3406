"""Dependencies in a model function, given which of its weights are cut.

The function is evaluated on indicators instead of numbers: 1 for values that may differ from 0,
else 0. A sum is then "any", a product "all", and a function with f(0) ≠ 0 is always 1. Reverse-mode
differentiation of this (JAX's own, with every cotangent made an indicator too) finds what the
outputs depend on; forward mode finds what depends on the data. Only whether a number is 0 is used,
so no dependency is missed because an activation happens to be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import Equation, RuleTable, Slot, compat, primitives
from secateur.equations.control_flow import Scan, WhileLoop
from secateur.equations.primitives import Kind, Policy
from secateur.structure.place_rules import update_axes
from secateur.structure.unit_search import LabelledInterpreter, UnitSearch

# Linear with coefficients 0 and 1, or products of two operands: JAX evaluates them on indicators.
_MOVES = primitives.FIXED_MOVES | primitives.JOINS
_AS_IT_IS = _MOVES | primitives.PRODUCTS | primitives.ADDITIONS
_PARTS = {"complex", "real", "imag", "conj"}
# A loop of unknown length that carries more elements mixes all of them.
_LONGEST_LOOP = 256
# They want their indices as they are.
_BY_PLACES = primitives.LOOKUPS | primitives.UPDATES | primitives.SEGMENT_EXTREMA


@jax.custom_vjp
def _backward(x: Array) -> Array:
    """Make an indicator of a count, and of its cotangent."""
    return (x > 0).astype(x.dtype)


_backward.defvjp(
    lambda x: (_backward(x), None), lambda _, cotangent: ((cotangent > 0).astype(cotangent.dtype),)
)


@jax.custom_jvp
def _forward(x: Array) -> Array:
    """Make an indicator of a count, and of its tangent."""
    return (x > 0).astype(x.dtype)


@_forward.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    return _forward(x), (tangent > 0).astype(x.dtype)


@jax.custom_jvp
def _differs_by_step(x: Array) -> Array:
    return x


@_differs_by_step.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    return x, jnp.maximum(tangent, x)


class Influence:
    """Dependencies in one function; compiled once for all sets of cut weights.

    Args:
        search: The walk that labelled the function's axes.
        weights: Number of inputs that are weights; the others are data.
        watched: Intermediate values to examine in `find_varying`.
    """

    def __init__(self, search: UnitSearch, weights: int, watched: Sequence[Slot]) -> None:
        self._slots, self._weights = search.program.inputs, weights

        def cotangents(weights: list[Array], data: list[Array], *, never_zero: bool) -> list[Array]:
            def results(weights: list[Array]) -> list[Array]:
                walk = IndicatorWalk(search, _backward, never_zero=never_zero)
                return [walk.indicator(value) for value in walk.run([*weights, *data])]

            outputs, pullback = jax.vjp(results, weights)
            return pullback([jnp.ones_like(y) for y in outputs])[0]

        def with_tangents(weights: list[Array], data: list[Array]) -> tuple[list, list]:
            def values(weights: list[Array], data: list[Array]) -> list[Array]:
                walk = IndicatorWalk(search, _forward)
                walk.run([*weights, *data])
                return [walk.indicator(walk.value(slot)) for slot in watched]

            still = [jnp.zeros_like(w) for w in weights]
            return jax.jvp(values, (weights, data), (still, [jnp.ones_like(d) for d in data]))

        self._cotangents = jax.jit(cotangents, static_argnames="never_zero")
        self._with_tangents = jax.jit(with_tangents)

    def influential(self, alive: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Find the elements of the weights on which the function's results depend.

        Args:
            alive: For every array of the params, where it may differ from 0.

        Returns:
            Masks like `alive`: False for weights that are cut, multiply only zeros, or are unread.
        """
        return self._dependence(alive, never_zero=False)

    def read(self, alive: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Find the elements on which the results would depend if no unit were always 0."""
        return self._dependence(alive, never_zero=True)

    def _dependence(self, alive: Sequence[np.ndarray], *, never_zero: bool) -> list[np.ndarray]:
        cotangents = self._cotangents(*self._indicators(alive), never_zero=never_zero)
        return [np.asarray(c) * a > 0 for c, a in zip(cotangents, alive, strict=True)]

    def find_varying(
        self, alive: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Find the elements of the watched values that may differ from 0, and those that vary.

        A loop's state counts as varying unless it stays 0: it depends on the number of steps.
        """
        values, tangents = self._with_tangents(*self._indicators(alive))
        return [np.asarray(v) > 0 for v in values], [np.asarray(t) > 0 for t in tangents]

    def _indicators(self, alive: Sequence[np.ndarray]) -> tuple[list[Array], list[Array]]:
        weights = [
            jnp.asarray(a, _dtype(s.dtype))
            for a, s in zip(alive, self._slots[: self._weights], strict=True)
        ]
        data = [jnp.ones(s.shape, _dtype(s.dtype)) for s in self._slots[self._weights :]]
        return weights, data


def _dtype(dtype: Any) -> Any:
    """Dtype of a value's indicator: the value's own, if that is a real number."""
    if dtype is not None and jnp.issubdtype(dtype, jnp.floating):
        return dtype
    return jnp.float32


@dataclass(frozen=True, eq=False)
class _Known:
    """A value that depends on neither weights nor data, such as an index into an array."""

    value: Any


class IndicatorWalk(LabelledInterpreter):
    """The walk that evaluates equations on indicators.

    Args:
        search: The walk that labelled the function's axes.
        squash: Function that converts counts to indicators.
        never_zero: Whether all computed values count as nonzero.
    """

    rules = RuleTable()
    policies = primitives.policies(
        Kind.CONTROL_FLOW, Kind.COPY, Kind.CONVERSION, Kind.ARITHMETIC, Kind.SMOOTH, Kind.KINKED,
        Kind.STEP, Kind.COMPARISON, Kind.LOGIC, Kind.CHOICE, Kind.SPECIAL, Kind.MOVE, Kind.JOIN,
        Kind.LOOKUP, Kind.UPDATE, Kind.SEGMENT, Kind.CONTRACTION, Kind.ADDITION, Kind.REDUCTION,
        Kind.LOGICAL_REDUCTION, Kind.ARGUMENT, Kind.WINDOW, Kind.CUMULATIVE, Kind.ORDER,
        Kind.COMPLEX, otherwise=Policy.MIX,
    )  # fmt: skip

    def __init__(self, search: UnitSearch, squash: Any, *, never_zero: bool = False) -> None:
        super().__init__(search)
        self.squash, self.never_zero = squash, never_zero

    def nested(self, body: UnitSearch) -> IndicatorWalk:
        """Return a walk of the same kind over a loop body, branch or recomputed part."""
        return IndicatorWalk(body, self.squash, never_zero=self.never_zero)

    def run_nested(self, body: UnitSearch, inputs: Sequence[Any]) -> list[Array]:
        """Return the indicators of a nested walk's results."""
        walk = self.nested(body)
        return [walk.indicator(value) for value in walk.run(inputs)]

    def constant(self, value: Any) -> _Known:
        """Return a constant as it is."""
        return _Known(value)

    def indicator(self, value: Any) -> Array:
        """Return the indicator of a value."""
        return _of_constant(value.value) if isinstance(value, _Known) else value

    def is_known(self, operands: list[Any]) -> bool:
        """Whether all operands are known values."""
        return all(isinstance(operand, _Known) for operand in operands)

    def evaluate_known(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Evaluate an equation immediately, although the walk itself is compiled."""
        with jax.ensure_compile_time_eval():
            return [_Known(r) for r in compat.bind(equation.eqn, *(o.value for o in operands))]

    def evaluate(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the indicators of an equation's results."""
        results = super().evaluate(equation, operands)
        if self.never_zero and equation.name not in _MOVES:
            results = [1 + result for result in results]
        return [
            self.squash(result.astype(_dtype(slot.dtype)))
            for slot, result in zip(equation.outputs, results, strict=True)
        ]

    def apply(self, equation: Equation, operands: list[Any]) -> list[Array]:
        """Return counts for an equation's results; lookups need their indices as they are."""
        if equation.name not in _BY_PLACES:
            operands = [self.indicator(operand) for operand in operands]
        return super().apply(equation, operands)

    def apply_default(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Let every result of an equation without a rule depend on every operand."""
        operands = [self.indicator(operand) for operand in operands]
        whatever = self.squash(1 + sum((jnp.sum(i) for i in operands), start=jnp.zeros(())))
        return [jnp.broadcast_to(whatever, slot.shape) for slot in equation.outputs]

    @rules.declare(*_AS_IT_IS)
    def evaluate_as_it_is(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Evaluate the equation itself: a sum of indicators, or of their products."""
        widest = jnp.result_type(*operands)
        return compat.bind(equation.eqn, *(value.astype(widest) for value in operands))

    @rules.declare(*primitives.SIDE_BY_SIDE)
    def side_by_side(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Each result is its operand."""
        return operands

    @rules.declare(*(primitives.REDUCTIONS.keys() - {"reduce_sum"}), *primitives.ARGUMENTS)
    def reduce(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Any of the elements."""
        return [jnp.sum(operands[0], axis=tuple(equation.params["axes"]))]

    @rules.declare(*(primitives.WINDOWS.keys() - {"reduce_window_sum"}))
    def reduce_window(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Any of the elements in the window."""
        (x,) = operands[:1]
        names = (
            "window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation",
        )  # fmt: skip
        sizes, strides, padding, base, dilation = (equation.params[name] for name in names)
        zero = np.zeros((), x.dtype)
        return [
            jax.lax.reduce_window(x, zero, jax.lax.add, sizes, strides, padding, base, dilation)
        ]

    @rules.declare(*(primitives.CUMULATIVE - primitives.ADDITIONS))
    def accumulate(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Any of the elements so far; what is 0 so far need not be 0 afterwards."""
        reverse = equation.params["reverse"]
        return [1 + jax.lax.cumsum(operands[0], equation.params["axis"], reverse=reverse)]

    @rules.declare("sort")
    def sort(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Any of the elements along the axis, of any operand."""
        some = sum(operands[1:], start=operands[0])
        along = jnp.sum(some, axis=equation.params["dimension"], keepdims=True)
        return [jnp.broadcast_to(along, slot.shape) for slot in equation.outputs]

    @rules.declare("top_k")
    def find_largest(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Any of the elements along the axis."""
        axis = equation.params.get("axis", operands[0].ndim - 1)
        along = jnp.sum(operands[0], axis=axis, keepdims=True)
        values, places = equation.outputs
        return [jnp.broadcast_to(along, values.shape), jnp.broadcast_to(1 + along, places.shape)]

    @rules.declare("fft")
    def transform(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """Any of the elements along the axes."""
        count, shape = len(equation.params["fft_lengths"]), equation.outputs[0].shape
        axes = tuple(range(len(shape) - count, len(shape)))
        return [jnp.broadcast_to(jnp.sum(operands[0], axis=axes, keepdims=True), shape)]

    @rules.declare(*primitives.UPDATES, *primitives.SEGMENT_EXTREMA)
    def update(self, equation: Equation, operands: list[Any]) -> list[Array]:
        """Either the old element or the update; at unknown positions, any may have been updated."""
        x, new = (self.indicator(operands[i]) for i in _data_of(equation))
        pairs = update_axes(equation)
        gone = tuple(a for a in range(new.ndim) if a not in pairs.values())
        rest = sorted(pairs.items(), key=lambda pair: pair[1])
        column = [1] * x.ndim
        for axis, _ in rest:
            column[axis] = x.shape[axis]
        order = np.argsort(np.argsort([a for a, _ in rest])).tolist()
        spread = jnp.transpose(jnp.sum(new, axis=gone), order)
        anywhere = jnp.broadcast_to(spread.reshape(column), x.shape)
        return [x + anywhere.astype(x.dtype)]

    @rules.declare(
        *(primitives.ELEMENTWISE - primitives.SIDE_BY_SIDE), "complex", "real", "imag", "conj"
    )
    def combine(self, equation: Equation, operands: list[Array]) -> list[Array]:
        """A product is "all", a sum is "any"; a function with f(0) ≠ 0 is always 1."""
        name = equation.name
        if name == "mul":
            return [operands[0] * operands[1]]
        if name == "div":
            return [operands[0] * self.squash(1 + operands[1])]
        if name == "select_n":
            return [self.squash(1 + operands[0]) * sum(operands[1:])]
        total = sum(operands[1:], start=operands[0])
        keeps_zero = name in primitives.ZERO_IF_ALL_ARE | primitives.KEEPS_ZERO | _PARTS
        return [total if keeps_zero else 1 + total]

    @rules.declare(*primitives.LOOKUPS)
    def look_up(self, equation: Equation, operands: list[Any]) -> list[Array]:
        """Axes taken as a whole keep their elements; along other axes any element may be read."""
        x, indices = self.indicator(operands[0]), operands[1:]
        if self.is_known(indices):
            return compat.bind(equation.eqn, x, *(i.value for i in indices))
        shape, sizes = equation.outputs[0].shape, equation.params["slice_sizes"]
        partly = tuple(a for a, n in enumerate(sizes) if n != x.shape[a])
        if equation.name == "dynamic_slice":
            return [jnp.broadcast_to(jnp.sum(x, axis=partly, keepdims=True), shape)]
        numbers = equation.params["dimension_numbers"]
        dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        kept = [a for a in range(x.ndim) if a not in dropped]
        x = jnp.sum(x, axis=tuple({*partly, *dropped}), keepdims=True)
        x = jnp.squeeze(x, tuple(dropped))
        places = dict(zip(numbers.offset_dims, range(len(kept)), strict=True))
        column = [x.shape[places[i]] if i in places else 1 for i in range(len(shape))]
        return [jnp.broadcast_to(x.reshape(column), shape)]

    def remat(self, equation: Equation, operands: list[Any]) -> list[Array]:
        """Evaluate a recomputed part inline."""
        return self.run_nested(self.bodies(equation)[0], operands)

    def cond(self, equation: Equation, operands: list[Any]) -> list[Array]:
        """A result may depend on any of the branches, and on the condition."""
        results = [self.run_nested(body, operands[1:]) for body in self.bodies(equation)]
        which = self.squash(1 + self.indicator(operands[0]))
        return [which * sum(alternatives) for alternatives in zip(*results, strict=True)]

    def while_loop(self, equation: Equation, operands: list[Any]) -> list[Array]:
        """A loop of unknown length: what any number of its steps may depend on."""
        loop, (_, body) = WhileLoop.of(equation), self.bodies(equation)
        _, consts, carry = loop.split([self.indicator(operand) for operand in operands])
        slots = body.program.inputs[len(consts) :]
        carry = [v.astype(_dtype(s.dtype)) for v, s in zip(carry, slots, strict=True)]

        def step(carry: list[Array], _: None) -> tuple[list[Array], None]:
            after = self.run_nested(body, [*consts, *carry])
            pairs = zip(carry, after, strict=True)
            return [self.squash(c + v.astype(c.dtype)) for c, v in pairs], None

        # Dependencies have spread as far as they can after as many steps as there are elements.
        length = sum(int(np.prod(v.shape, dtype=int)) for v in carry)
        if length > _LONGEST_LOOP:
            return self.apply_default(equation, operands)
        return jax.lax.scan(step, carry, None, length=length)[0]

    def scan(self, equation: Equation, operands: list[Any]) -> list[Array]:
        """A loop over indicators."""
        parts, (body,) = Scan.of(equation), self.bodies(equation)
        consts, start, xs = parts.split([self.indicator(operand) for operand in operands])
        _, slots, _ = parts.split(body.program.inputs)
        start = [v.astype(_dtype(s.dtype)) for v, s in zip(start, slots, strict=True)]
        by_data = self.squash is _forward

        def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
            state = [_differs_by_step(c) for c in carry] if by_data else carry
            after, stacked = parts.split_results(self.run_nested(body, [*consts, *state, *x]))
            return [v.astype(c.dtype) for v, c in zip(after, carry, strict=True)], stacked

        last, stacked = jax.lax.scan(step, start, xs, length=parts.length, reverse=parts.reverse)
        return [*([_differs_by_step(c) for c in last] if by_data else last), *stacked]


def _data_of(equation: Equation) -> tuple[int, int]:
    """Return which operands of an update are data."""
    return (0, 1) if equation.name == "dynamic_update_slice" else (0, 2)


def _of_constant(value: Any) -> Array:
    if jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended):  # random keys
        return jnp.ones(np.shape(value), jnp.float32)
    return jnp.asarray(np.asarray(value) != 0, _dtype(jnp.result_type(value)))
