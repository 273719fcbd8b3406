"""What depends on what in a model function, given which of its weights are cut.

The function is evaluated on indicators instead of numbers: 1 for what may differ from 0, else 0.
A sum is then "any of them", a product "all of them", and a function with f(0) ≠ 0 is always 1. The
reverse derivative of that (JAX's own, with every cotangent made an indicator too) says what the
outputs depend on; the forward derivative, what depends on the data. No number of the model enters
but whether it is 0, so nothing is missed because an activation happens to be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur import compat
from secateur.propagation import elementwise
from secateur.propagation.program import Constant, Slot
from secateur.structure.find import Walked
from secateur.structure.rules import KEEPS_ZERO

# Linear with coefficients 0 and 1, or products of two operands: JAX evaluates them on indicators.
_AS_IT_IS = {
    "dot_general", "conv_general_dilated", "transpose", "reshape", "squeeze", "expand_dims",
    "broadcast_in_dim", "slice", "split", "rev", "concatenate", "pad", "reduce_sum", "cumsum",
    "reduce_window_sum",
}  # fmt: skip
# Of these, what only moves elements: of weights, it makes the same weights in other places.
_MOVES = _AS_IT_IS - {
    "dot_general", "conv_general_dilated", "reduce_sum", "cumsum", "reduce_window_sum",
}  # fmt: skip
_SUMS = {"add", "sub", "add_any", "max", "min", "clamp"}
_REDUCTIONS = {"reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}
_WINDOWS = {"reduce_window_max", "reduce_window_min"}


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
    """What depends on what in one function; compiled once for all sets of weights that are cut.

    Args:
        walked: the function.
        weights: how many of its inputs are weights; the others are data.
        watched: intermediate values, for `steady`.
    """

    def __init__(self, walked: Walked, weights: int, watched: Sequence[Slot]) -> None:
        self._slots, self._weights = walked.program.inputs, weights

        def cotangents(weights: list[Array], data: list[Array], *, never_zero: bool) -> list[Array]:
            def results(weights: list[Array]) -> list[Array]:
                return _Walk(_backward, never_zero).run(walked, [*weights, *data])[0]

            outputs, pullback = jax.vjp(results, weights)
            (found,) = pullback([jnp.ones_like(y) for y in outputs])
            return found

        def with_tangents(weights: list[Array], data: list[Array]) -> tuple[list, list]:
            def values(weights: list[Array], data: list[Array]) -> list[Array]:
                known = _Walk(_forward).run(walked, [*weights, *data])[1]
                return [known[slot] for slot in watched]

            still = [jnp.zeros_like(w) for w in weights]
            return jax.jvp(values, (weights, data), (still, [jnp.ones_like(d) for d in data]))

        self._cotangents = jax.jit(cotangents, static_argnames="never_zero")
        self._with_tangents = jax.jit(with_tangents)

    def influential(self, alive: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Which elements of the weights the function's results depend on.

        Args:
            alive: for every array of the params, where it may differ from 0.

        Returns:
            Bools like `alive`: False for what is cut, what meets only zeros, what nothing reads.
        """
        return self._found(alive, never_zero=False)

    def read(self, alive: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Which elements of the weights the results would depend on if no unit were always 0."""
        return self._found(alive, never_zero=True)

    def _found(self, alive: Sequence[np.ndarray], *, never_zero: bool) -> list[np.ndarray]:
        found = self._cotangents(*self._indicators(alive), never_zero=never_zero)
        return [np.asarray(c) * a > 0 for c, a in zip(found, alive, strict=True)]

    def steady(self, alive: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Which elements of the watched values may differ from 0, and which change with the data.

        A loop's state counts as changing unless it stays 0: it depends on the number of steps.
        """
        found, moving = self._with_tangents(*self._indicators(alive))
        return [np.asarray(v) > 0 for v in found], [np.asarray(t) > 0 for t in moving]

    def _indicators(self, alive: Sequence[np.ndarray]) -> tuple[list[Array], list[Array]]:
        weights = [
            jnp.asarray(a, _dtype(s.dtype))
            for a, s in zip(alive, self._slots[: self._weights], strict=True)
        ]
        data = [jnp.ones(s.shape, _dtype(s.dtype)) for s in self._slots[self._weights :]]
        return weights, data


def _dtype(dtype: Any) -> Any:
    """The dtype of a value's indicator: its own, if it is of real numbers."""
    if dtype is not None and jnp.issubdtype(dtype, jnp.floating):
        return dtype
    return jnp.float32


@dataclass(frozen=True)
class _Walk:
    """Evaluates equations on indicators.

    Attributes:
        squash: makes indicators of counts.
        never_zero: whether all that is computed counts as other than 0.
    """

    squash: Any
    never_zero: bool = False

    def run(self, walked: Walked, inputs: Sequence[Any]) -> tuple[list[Array], dict[Slot, Array]]:
        program = walked.program
        values: dict[Slot, Array] = dict(zip(program.inputs, inputs, strict=True))
        # What depends on neither weights nor data is known: an index into an array, say.
        known: dict[Slot, Any] = {}

        def read(atom: Any) -> Array:
            if isinstance(atom, Constant):
                return _of_constant(atom.value)
            return values[atom]

        for node in program.nodes:
            exact = [a.value if isinstance(a, Constant) else known.get(a) for a in node.inputs]
            if all(value is not None for value in exact):
                with jax.ensure_compile_time_eval():
                    known.update(zip(node.outputs, compat.bind(node.eqn, *exact), strict=True))
                values.update((s, _of_constant(known[s])) for s in node.outputs)
                continue
            operands = [read(a) for a in node.inputs]
            results = self.results(node, operands, exact, walked.inner[node.index])
            if self.never_zero and node.name not in _MOVES:
                results = [1 + result for result in results]
            for slot, result in zip(node.outputs, results, strict=True):
                values[slot] = self.squash(result.astype(_dtype(slot.dtype)))
        return [read(a) for a in program.outputs], values

    def results(
        self, node: Any, operands: list[Array], exact: list[Any], inner: list[Walked]
    ) -> list[Array]:
        name, eqn = node.name, node.eqn
        if name in _AS_IT_IS:
            return compat.bind(eqn, *_of_one_dtype(operands))
        if name == "scan":
            return self.scan(eqn, operands, inner[0])
        if name in compat.REMAT_NAMES:
            return self.run(inner[0], operands)[0]
        if name == "cond":
            branches = [self.run(branch, operands[1:])[0] for branch in inner]
            which = self.squash(1 + operands[0])
            return [which * sum(each) for each in zip(*branches, strict=True)]
        if name in _REDUCTIONS:
            return [jnp.sum(operands[0], axis=tuple(eqn.params["axes"]))]
        if name in _WINDOWS:
            return [_summed_window(eqn, operands[0])]
        if name in ("gather", "dynamic_slice"):
            if all(value is not None for value in exact[1:]):
                return compat.bind(eqn, operands[0], *exact[1:])
            return [self.looked_up(eqn, operands)]
        if name in elementwise.NAMES or name in KEEPS_ZERO:
            return [self.elementwise(name, operands)]
        whatever = self.squash(1 + sum((jnp.sum(i) for i in operands), start=jnp.zeros(())))
        return [jnp.broadcast_to(whatever, slot.shape) for slot in node.outputs]

    def elementwise(self, name: str, operands: list[Array]) -> Array:
        if name == "mul":
            return operands[0] * operands[1]
        if name == "div":
            return operands[0] * self.squash(1 + operands[1])
        if name == "select_n":
            return self.squash(1 + operands[0]) * sum(operands[1:])
        total = sum(operands[1:], start=operands[0])
        return total if name in _SUMS or name in KEEPS_ZERO else 1 + total

    def looked_up(self, eqn: Any, operands: list[Array]) -> Array:
        """Whole slices keep their places; of other axes, any element may have been meant."""
        x, sizes = operands[0], eqn.params["slice_sizes"]
        shape = eqn.outvars[0].aval.shape
        partly = tuple(a for a, n in enumerate(sizes) if n != x.shape[a])
        if eqn.primitive.name == "dynamic_slice":
            return jnp.broadcast_to(jnp.sum(x, axis=partly, keepdims=True), shape)
        numbers = eqn.params["dimension_numbers"]
        dropped = {*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ())}
        kept = [a for a in range(x.ndim) if a not in dropped]
        x = jnp.sum(x, axis=tuple({*partly, *dropped}), keepdims=True)
        x = jnp.squeeze(x, tuple(dropped))
        places = dict(zip(numbers.offset_dims, range(len(kept)), strict=True))
        column = [x.shape[places[i]] if i in places else 1 for i in range(len(shape))]
        return jnp.broadcast_to(x.reshape(column), shape)

    def scan(self, eqn: Any, operands: list[Array], body: Walked) -> list[Array]:
        num_consts, num_carry = compat.scan_counts(eqn)
        consts = operands[:num_consts]
        slots = body.program.inputs[num_consts : num_consts + num_carry]
        start = operands[num_consts : num_consts + num_carry]
        start = [v.astype(_dtype(s.dtype)) for v, s in zip(start, slots, strict=True)]

        def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
            state = [_differs_by_step(c) for c in carry] if self.squash is _forward else carry
            results = self.run(body, [*consts, *state, *x])[0]
            new = [v.astype(c.dtype) for v, c in zip(results[:num_carry], carry, strict=True)]
            return new, results[num_carry:]

        given = operands[num_consts + num_carry :]
        last, made = jax.lax.scan(
            step, start, given, length=eqn.params["length"], reverse=eqn.params["reverse"]
        )
        last = [_differs_by_step(c) for c in last] if self.squash is _forward else last
        return [*last, *made]


def _of_constant(value: Any) -> Array:
    if jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended):  # random keys
        return jnp.ones(np.shape(value), jnp.float32)
    return jnp.asarray(np.asarray(value) != 0, _dtype(jnp.result_type(value)))


def _of_one_dtype(operands: list[Array]) -> list[Array]:
    widest = jnp.result_type(*operands)
    return [value.astype(widest) for value in operands]


def _summed_window(eqn: Any, x: Array) -> Array:
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    sizes, strides, padding, base, dilation = (eqn.params[name] for name in names)
    return jax.lax.reduce_window(
        x, np.zeros((), x.dtype), jax.lax.add, sizes, strides, padding, base, dilation
    )
