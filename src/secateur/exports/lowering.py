"""Lowering of a model function to a `Graph`; equations with known operands are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from secateur.equations import Equation, KnownValue, compat, read_program, trace_function
from secateur.equations.primitives import (
    CONTROL_FLOW,
    IDENTITIES,
    NUMERIC_REDUCTIONS,
    REDUCTIONS,
    WINDOWS,
    Kind,
    Policy,
    policies,
)
from secateur.exports.array_operands import lower_lookup, lower_product
from secateur.exports.constant_folding import evaluate_known, to_numbers
from secateur.exports.graph import (
    ELEMENTWISE,
    Atom,
    Constant,
    ExportError,
    Graph,
    Node,
    Origin,
    StateVariable,
    Value,
)

__all__ = ["lower_function", "lower_model"]

# Other names of the same operations.
_SAME = {"add_any": "add"}


def lower_function(
    f: Callable[[Any], Any], x: jax.ShapeDtypeStruct, *, by_frame: bool = False
) -> Graph:
    """Read the steps of a function of one array.

    Args:
        f: Function with its weights filled in.
        x: Shape and type of its input.
        by_frame: Whether a loop over one single frame is replaced by its body. What the loop
            carries becomes state of the graph, which then takes one frame at a time.

    Raises:
        ExportError: An operation of the function is not supported.
    """
    return lower_model(lambda _, x: f(x), (), x, by_frame=by_frame)


def lower_model(
    f: Callable[[Any, Any], Any], params: Any, x: jax.ShapeDtypeStruct, *, by_frame: bool = False
) -> Graph:
    """Read the steps of a model function, with the `Origin` of every weight.

    Args:
        f: Model function of parameters and one array.
        params: Parameters. Leaves are counted in their order.
        x: Shape and type of the input.
        by_frame: As in `lower_function`.

    Raises:
        ExportError: An operation of the function is not supported.
    """
    leaves, structure = jax.tree.flatten((params, x))
    places = [i for i, leaf in enumerate(leaves[:-1]) if isinstance(leaf, jax.Array | np.ndarray)]
    arrays = [np.asarray(leaves[i]) for i in places]
    trace = trace_function(f, leaves, structure, [*places, len(leaves) - 1], [*arrays, x])
    tagged = [
        Constant.of(array, Origin.of_leaf(i, array.shape))
        for i, array in zip(places, arrays, strict=True)
    ]
    source = Value(x.shape, x.dtype)
    lowering = Lowering(by_frame)
    outputs = lowering.run(trace.jaxpr, trace.consts, [*tagged, source])
    graph = Graph([source], outputs, lowering.nodes, lowering.states)
    graph.drop_unread()
    return graph


class Lowering:
    """The walk that makes a graph. Its rules are its methods, named after primitives."""

    policies = policies(Kind.COPY, otherwise=Policy.ERROR)

    @classmethod
    def has_rule(cls, name: str) -> bool:
        """Whether a primitive has a counterpart in the graph."""
        name = _SAME.get(name, name)
        ruled = name in IDENTITIES or name in ELEMENTWISE or CONTROL_FLOW.get(name) == "remat"
        return ruled or name in NUMERIC_REDUCTIONS or hasattr(cls, f"_{name}")

    def __init__(self, by_frame: bool) -> None:
        self.by_frame = by_frame
        self.nodes: list[Node] = []
        self.states: list[StateVariable] = []

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Atom]) -> list[Atom]:
        """Add the steps of a jaxpr, and return its results."""
        tracked = [isinstance(a, Value) or a.origin is not None for a in inputs]
        program = read_program(jaxpr, consts, tracked)
        atoms: dict[Any, Atom] = dict(zip(program.inputs, inputs, strict=True))

        def read(atom: Any) -> Atom:
            if isinstance(atom, KnownValue):
                return Constant.of(to_numbers(atom.value))
            return atoms[atom]

        for equation in program.equations:
            operands = [read(a) for a in equation.inputs]
            results = self.lower_equation(equation, operands)
            atoms.update(zip(equation.outputs, results, strict=True))
        return [read(a) for a in program.outputs]

    def lower_equation(self, node: Equation, operands: list[Atom]) -> list[Atom]:
        """Add the steps of one equation, and return its results."""
        name = _SAME.get(node.name, node.name)
        if name in IDENTITIES:
            return operands
        if CONTROL_FLOW.get(name) == "remat":
            return self.run(*compat.open_jaxpr(node.params["jaxpr"]), operands)
        if all(isinstance(a, Constant) for a in operands):
            return evaluate_known(node, operands)  # type: ignore[arg-type]
        if name in ELEMENTWISE:
            return [self.add_elementwise(name, node, operands)]
        rule = getattr(self, f"_{'reduce' if name in NUMERIC_REDUCTIONS else name}", None)
        if rule is None:
            raise ExportError(
                f"'{node.name}' cannot be exported ({node.where}). Supported: dense layers, "
                "convolutions, pooling, loops over time (scan), elementwise functions, sums and "
                "maxima over axes, and what only moves elements."
            )
        results = rule(node, operands)
        return results if isinstance(results, list) else [results]

    def add(
        self,
        op: str,
        inputs: Sequence[Atom],
        shape: Any,
        dtype: Any,
        node: Equation,
        **attributes: Any,
    ) -> Value:
        """Add a step with one result."""
        value = Value(shape, dtype)
        self.nodes.append(Node(op, list(inputs), [value], attributes, node.where))
        return value

    def add_like(self, op: str, inputs: Sequence[Atom], node: Equation, **attributes: Any) -> Value:
        """Add a step whose result is shaped as the equation's."""
        out = node.outputs[0]
        return self.add(op, inputs, out.shape, out.dtype, node, **attributes)

    def add_elementwise(self, name: str, node: Equation, operands: list[Atom]) -> Atom:
        rank = len(node.outputs[0].shape)
        operands = [a if len(a.shape) == rank else self.match_rank(a, rank, node) for a in operands]
        attributes = {"y": node.params["y"]} if name == "integer_pow" else {}
        return self.add_like(name, operands, node, **attributes)

    def match_rank(self, atom: Atom, rank: int, node: Equation) -> Atom:
        """A scalar operand with the axes of the others."""
        shape = (1,) * rank
        if isinstance(atom, Constant):
            return Constant(atom.array.reshape(shape), shape)
        return self.add("reshape", [atom], shape, atom.dtype, node)

    def transpose(self, atom: Atom, order: Sequence[int], node: Equation) -> Atom:
        order = tuple(int(i) for i in order)
        if order == tuple(range(len(order))):
            return atom
        shape = tuple(atom.shape[i] for i in order)
        return self.add("transpose", [atom], shape, atom.dtype, node, order=order)

    def reshape(self, atom: Atom, shape: Sequence[int], node: Equation) -> Atom:
        if tuple(shape) == atom.shape:
            return atom
        return self.add("reshape", [atom], shape, atom.dtype, node)

    # --- one rule for each primitive, by its name -------------------------------------------------

    def _convert_element_type(self, node: Equation, operands: list[Atom]) -> Atom:
        (x,) = operands
        after = np.dtype(node.outputs[0].dtype)
        if x.dtype.kind == after.kind and after.kind in "fi":
            return x
        if x.dtype.kind == "b" and after.kind == "f":
            one, zero = (Constant.of(np.full((1,) * len(x.shape), v, after)) for v in (1, 0))
            return self.add_like("select_n", [x, zero, one], node)
        raise ExportError(
            f"a conversion from {x.dtype} to {after} cannot be exported ({node.where}). "
            "Supported: conversions between floating-point types, and of comparisons to numbers."
        )

    def _dot_general(self, node: Equation, operands: list[Atom]) -> Atom:
        left, right = operands
        (left_axes, right_axes), (batch, _) = node.params["dimension_numbers"]
        if batch or all(isinstance(a, Value) for a in operands):
            return lower_product(self, left, right, node)
        weights_left = isinstance(left, Constant)
        weights, x = (left, right) if weights_left else (right, left)
        w_axes, x_axes = (left_axes, right_axes) if weights_left else (right_axes, left_axes)
        assert isinstance(weights, Constant)
        w_free = [a for a in range(len(weights.shape)) if a not in w_axes]
        x_free = [a for a in range(len(x.shape)) if a not in x_axes]
        kept = [x.shape[a] for a in x_free]
        out = [weights.shape[a] for a in w_free]
        fan_in = int(np.prod([x.shape[a] for a in x_axes], dtype=int))
        x = self.reshape(self.transpose(x, [*x_free, *x_axes], node), [*kept, fan_in], node)

        def as_matrix(array: np.ndarray) -> np.ndarray:
            return array.transpose([*w_free, *w_axes]).reshape(-1, fan_in)

        matrix = as_matrix(weights.full()).astype(np.float64)
        y: Atom = self.add(
            "linear", [x], [*kept, len(matrix)], node.outputs[0].dtype, node, weights=matrix,
            bias=None, origin=weights.origin and weights.origin.move(as_matrix),
        )  # fmt: skip
        y = self.reshape(y, [*kept, *out], node)
        if weights_left:
            free = len(kept)
            y = self.transpose(y, [*range(free, free + len(out)), *range(free)], node)
        return y

    def _conv_general_dilated(self, node: Equation, operands: list[Atom]) -> Atom:
        x, kernel = operands
        params = node.params
        if not isinstance(kernel, Constant) or params["batch_group_count"] != 1:
            raise ExportError(
                f"this convolution cannot be exported ({node.where}). Supported: one of a computed "
                "array with weights."
            )
        numbers = params["dimension_numbers"]
        rank = len(x.shape)
        spatial = list(range(2, rank))
        last = tuple(numbers.lhs_spec) == (0, rank - 1, *range(1, rank - 1))
        if last and numbers.out_spec == numbers.lhs_spec:
            order = (0, rank - 1, *range(1, rank - 1))  # batch, channel, space in the array
        else:
            order = (0, 1, *spatial)
            x = self.transpose(x, numbers.lhs_spec, node)

        def turn(array: np.ndarray) -> np.ndarray:
            return array.transpose(numbers.rhs_spec)

        weights = turn(kernel.full()).astype(np.float64)
        out_shape = [0] * rank
        for place, axis in zip(order, numbers.out_spec, strict=True):
            out_shape[place] = node.outputs[0].shape[axis]
        y: Atom = self.add(
            "conv", [x], out_shape, node.outputs[0].dtype, node, weights=weights, bias=None,
            origin=kernel.origin and kernel.origin.move(turn),
            channels_last=order[1] != 1, strides=tuple(params["window_strides"]),
            padding=tuple(map(tuple, params["padding"])), dilation=tuple(params["rhs_dilation"]),
            stretch=tuple(params["lhs_dilation"]), groups=params["feature_group_count"],
        )  # fmt: skip
        if order == (0, 1, *spatial):
            y = self.transpose(y, np.argsort(numbers.out_spec).tolist(), node)
        return y

    def _window(self, node: Equation, operands: list[Atom]) -> Atom:
        params = node.params
        if any(d != 1 for d in (*params["base_dilation"], *params["window_dilation"])):
            raise ExportError(f"dilated pooling cannot be exported ({node.where}).")
        return self.add_like(
            "pool", operands[:1], node, kind=WINDOWS[node.name],
            window=tuple(params["window_dimensions"]), strides=tuple(params["window_strides"]),
            padding=tuple(map(tuple, params["padding"])),
        )  # fmt: skip

    _reduce_window_sum = _reduce_window_max = _window

    def _reduce(self, node: Equation, operands: list[Atom]) -> Atom:
        axes = tuple(node.params["axes"])
        return self.add_like("reduce", operands, node, kind=REDUCTIONS[node.name], axes=axes)

    def _reshape(self, node: Equation, operands: list[Atom]) -> Atom:
        return self.reshape(operands[0], node.outputs[0].shape, node)

    _squeeze = _expand_dims = _reshape

    def _transpose(self, node: Equation, operands: list[Atom]) -> Atom:
        return self.transpose(operands[0], node.params["permutation"], node)

    def _broadcast_in_dim(self, node: Equation, operands: list[Atom]) -> Atom:
        x = operands[0]
        shape, places = node.outputs[0].shape, node.params["broadcast_dimensions"]
        inserted = [1] * len(shape)
        for axis, place in enumerate(places):
            inserted[place] = x.shape[axis]
        expanded = self.reshape(x, inserted, node)
        if tuple(inserted) == tuple(shape):
            return expanded
        return self.add_like("expand", [expanded], node)

    def _slice(self, node: Equation, operands: list[Atom]) -> Atom:
        params = node.params
        starts, limits = params["start_indices"], params["limit_indices"]
        steps = params["strides"] or (1,) * len(starts)
        return self.add_like(
            "slice", operands, node, starts=starts, limits=limits, steps=tuple(steps)
        )

    def _dynamic_slice(self, node: Equation, operands: list[Atom]) -> Atom:
        x, *starts = operands
        sizes = node.params["slice_sizes"]
        if not all(isinstance(s, Constant) for s in starts):
            raise ExportError(f"an index that is computed cannot be exported ({node.where}).")
        first = [
            min(max(int(s.full().reshape(())), 0), n - size)  # type: ignore[union-attr]
            for s, n, size in zip(starts, x.shape, sizes, strict=True)
        ]
        limits = [a + size for a, size in zip(first, sizes, strict=True)]
        steps = (1,) * len(first)
        return self.add_like("slice", [x], node, starts=first, limits=limits, steps=steps)

    def _gather(self, node: Equation, operands: list[Atom]) -> Atom:
        return lower_lookup(self, operands, node)

    def _split(self, node: Equation, operands: list[Atom]) -> list[Atom]:
        (x,) = operands
        axis, start = node.params["axis"], 0
        parts: list[Atom] = []
        for slot, size in zip(node.outputs, node.params["sizes"], strict=True):
            starts, limits = [0] * len(x.shape), list(x.shape)
            starts[axis], limits[axis] = start, start + size
            start += size
            steps = (1,) * len(starts)
            parts.append(
                self.add("slice", [x], slot.shape, slot.dtype, node,
                         starts=starts, limits=limits, steps=steps)
            )  # fmt: skip
        return parts

    def _rev(self, node: Equation, operands: list[Atom]) -> Atom:
        return self.add_like("reverse", operands, node, axes=tuple(node.params["dimensions"]))

    def _concatenate(self, node: Equation, operands: list[Atom]) -> Atom:
        return self.add_like("concatenate", operands, node, axis=node.params["dimension"])

    def _pad(self, node: Equation, operands: list[Atom]) -> Atom:
        x, value = operands
        edges = node.params["padding_config"]
        if not isinstance(value, Constant) or any(gap for _, _, gap in edges):
            raise ExportError(f"only padding at the ends can be exported ({node.where}).")
        if any(lo < 0 or hi < 0 for lo, hi, _ in edges):  # cuts off
            starts = [max(-lo, 0) for lo, _, _ in edges]
            limits = [n - max(-hi, 0) for n, (_, hi, _) in zip(x.shape, edges, strict=True)]
            shape = [b - a for a, b in zip(starts, limits, strict=True)]
            steps = (1,) * len(shape)
            x = self.add("slice", [x], shape, x.dtype, node,
                         starts=starts, limits=limits, steps=steps)  # fmt: skip
        padding = tuple((max(lo, 0), max(hi, 0)) for lo, hi, _ in edges)
        if not any(map(any, padding)):
            return x
        return self.add_like("pad", [x], node, padding=padding, value=value.number)

    def _scan(self, node: Equation, operands: list[Atom]) -> list[Atom]:
        eqn = node.eqn
        num_consts, num_carry = compat.scan_counts(eqn.params)
        consts, rest = operands[:num_consts], operands[num_consts:]
        carry, stacked = rest[:num_carry], rest[num_carry:]
        body = compat.open_jaxpr(eqn.params["jaxpr"])
        if self.by_frame:
            return self.unroll_frame(node, body, consts, carry, stacked)
        if any(isinstance(a, Value) for a in (*consts, *carry)):
            raise ExportError(
                f"a loop that begins with computed values cannot be exported ({node.where}). "
                "Supported: a loop over time whose state begins with constants."
            )
        inner = Lowering(by_frame=False)
        starts = [Value(a.shape, a.dtype) for a in carry]
        frames = [Value(a.shape[1:], a.dtype) for a in stacked]
        results = inner.run(*body, [*consts, *starts, *frames])
        graph = Graph([*starts, *frames], results, inner.nodes, inner.states)
        graph.drop_unread()
        outputs: list[Atom] = [Value(slot.shape, slot.dtype) for slot in node.outputs]
        self.nodes.append(
            Node("recurrent", list(stacked), outputs, {  # type: ignore[arg-type]
                "body": graph, "carried": num_carry, "reverse": eqn.params["reverse"],
                "initial": [a.full() for a in carry],  # type: ignore[union-attr]
            }, node.where)
        )  # fmt: skip
        return outputs

    def unroll_frame(
        self, node: Equation, body: Any, consts: Any, carry: Any, stacked: Any
    ) -> list[Atom]:
        """The body of a loop over one frame, in the loop's place."""
        if node.params["length"] != 1 or node.params["reverse"]:
            way = "backwards" if node.params["reverse"] else "over another axis than a row's first"
            raise ExportError(
                f"a loop that goes {way} cannot be exported frame by frame ({node.where})."
            )
        if not all(isinstance(a, Constant) for a in carry):
            raise ExportError(
                f"a state that begins with computed values cannot be exported ({node.where})."
            )
        starts = [Value(a.shape, a.dtype) for a in carry]
        frames = [self.reshape(a, a.shape[1:], node) for a in stacked]
        jaxpr, jaxpr_consts = body
        results = self.run(jaxpr, jaxpr_consts, [*consts, *starts, *frames])
        after, outputs = results[: len(carry)], results[len(carry) :]
        self.states += [
            StateVariable(before, a, np.array(initial.full()))
            for before, a, initial in zip(starts, after, carry, strict=True)
        ]
        return [*after, *(self.reshape(_check_value(a), (1, *a.shape), node) for a in outputs)]


def _check_value(atom: Atom) -> Atom:
    if isinstance(atom, Constant):
        raise ExportError("a loop over time with a constant result cannot be exported.")
    return atom
