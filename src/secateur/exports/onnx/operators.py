"""From a graph to the operators of an ONNX model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from secateur.exports.graph import ELEMENTWISE, Atom, Constant, ExportError, Node, Value
from secateur.exports.onnx.layers import write_conv, write_linear, write_pool, write_recurrent
from secateur.exports.onnx.quantised_values import find_steps, is_read_as_integer
from secateur.exports.onnx.symbolic_sizes import Dim, Length, SymbolicGraph

__all__ = ["OperatorWriter", "describe_value"]

_END = np.iinfo(np.int64).max
_START = np.iinfo(np.int64).min
_REDUCE = {"max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd", "mean": "ReduceMean"}


class OperatorWriter:
    """Collects the operators and arrays of one model, in float32.

    Args:
        symbolic: Graph to write.
        source: The name of the input.
        dtypes: Types of input and outputs in the file.
    """

    def __init__(
        self,
        symbolic: SymbolicGraph,
        source: str,
        dtypes: tuple[Any, Any] = (np.float32, np.float32),
    ) -> None:
        self.symbolic = symbolic
        self.source = source
        self.dtypes = tuple(map(np.dtype, dtypes))
        self.nodes: list[Any] = []
        self.arrays: dict[tuple, Any] = {}
        self.counts: Counter[str] = Counter()
        self.sizes: dict[Length, str] = {}
        graph, x = symbolic.graph, symbolic.graph.inputs[0]
        self.names: dict[Value, str] = {x: source}
        self.needed = {a for n in graph.nodes for a in n.inputs} | {*graph.outputs}
        given = np.dtype(np.float32) if x.dtype.kind == "f" else x.dtype
        if self.dtypes[0] != given and not is_read_as_integer(graph, x):
            kind = helper.np_dtype_to_tensor_dtype(given)
            self.names[x] = self.op("Cast", [source], to=kind)

    def write(self, outputs: Sequence[str]) -> None:
        """Write all steps, and name the results."""
        graph = self.symbolic.graph
        for node in graph.nodes:
            if node.op == "recurrent":
                self.names.update(zip(node.outputs, write_recurrent(self, node), strict=True))
            else:
                self.names[node.output] = self.step(node)
        integers = {n.output for n in graph.nodes if n.op == "quantize_linear"}
        for atom, name in zip(graph.outputs, outputs, strict=True):
            kind, options = "Identity", dict[str, Any]()
            if self.dtypes[1] != np.float32 and atom not in integers:
                kind, options = "Cast", {"to": helper.np_dtype_to_tensor_dtype(self.dtypes[1])}
            operands = [self.whole(atom)]
            self.nodes.append(helper.make_node(kind, operands, [name], name, **options))

    def initialisers(self) -> list[Any]:
        """Return the arrays that operators read."""
        read = {name for node in self.nodes for name in node.input}
        return [array for array in self.arrays.values() if array.name in read]

    def step(self, node: Node) -> str:
        """Write one step; returns the name of its result."""
        if node.op in ELEMENTWISE:
            result = write_elementwise(self, node, [self.read(a) for a in node.inputs])
            reached = np.broadcast_shapes(
                *(a.array.shape if isinstance(a, Constant) else a.shape for a in node.inputs)
            )
            return result if reached == node.output.shape else self.expand(result, node.output)
        operands = [self.whole(a) for a in node.inputs]
        if node.op == "linear":
            return write_linear(self, node, *operands)
        if node.op == "conv":
            return write_conv(self, node, *operands)
        if node.op == "pool":
            return write_pool(self, node, *operands)
        return getattr(self, f"_{node.op}")(node, operands)

    # --- names of things ----------------------------------------------------------------------

    def op(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add an operator with one result, and return its name."""
        return self.op_with(kind, inputs, 1, **attributes)[0]

    def op_with(
        self, kind: str, inputs: Sequence[str], results: int, **attributes: Any
    ) -> list[str]:
        """Add an operator with several results, and return their names."""
        name = self.new(kind.lower())
        names = [name, *(f"{name}_{n}" for n in range(1, results))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names

    def new(self, stem: str) -> str:
        """Return an unused name."""
        self.counts[stem] += 1
        return f"{stem}_{self.counts[stem]}"

    def array(self, values: Any, stem: str) -> str:
        """Return the name of a known array; equal arrays are stored once."""
        values = np.ascontiguousarray(values).reshape(np.shape(values))  # also of no axes
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self.arrays:
            steps = find_steps(values)
            if steps is not None:
                *arrays, axis = steps
                options = {} if axis is None else {"axis": axis}
                return self.op("DequantizeLinear", [self.array(a, stem) for a in arrays], **options)
            self.arrays[key] = numpy_helper.from_array(values, self.new(stem))
        return self.arrays[key].name

    def number(self, value: float) -> str:
        """Return the name of a floating number."""
        return self.array(np.asarray(value, np.float64), "number")

    def whole_numbers(self, values: Sequence[int]) -> str:
        """Return the name of an array of indices or lengths."""
        return self.array(np.asarray(values, np.int64), "integers")

    def shape(self, atom: Atom) -> tuple[Length, ...]:
        """Return the lengths of an array's axes."""
        return self.symbolic.shape(atom)

    def read(self, atom: Atom) -> str:
        """Return the name of an operand that its reader may broadcast."""
        return (
            self.array(atom.array, "constant") if isinstance(atom, Constant) else self.names[atom]
        )

    def whole(self, atom: Atom) -> str:
        """Return the name of an array of the full shape."""
        if isinstance(atom, Constant) and atom.array.shape != atom.shape:
            return self.expand(self.read(atom), atom)
        return self.read(atom)

    def expand(self, name: str, to: Atom) -> str:
        """Broadcast an array to the shape of another."""
        return self.op("Expand", [name, self.lengths(self.shape(to))])

    def lengths(self, shape: Sequence[Length]) -> str:
        """Return the name of an array of lengths, some of which depend on the model's input."""
        if all(isinstance(n, int) for n in shape):
            return self.whole_numbers(shape)  # type: ignore[arg-type]
        return self.op("Concat", [self.length(n) for n in shape], axis=0)

    def length(self, n: Length) -> str:
        """Return the name of an array with one length in it."""
        if isinstance(n, int):
            return self.whole_numbers([n])
        if n is None:
            raise ExportError(
                "a length that is computed from the number of frames cannot be written as ONNX."
            )
        if n not in self.sizes:
            parts = [self.measured(name) for name in n.names]
            if n.factor != 1:
                parts.append(self.whole_numbers([n.factor]))
            name = parts[0]
            for part in parts[1:]:
                name = self.op("Mul", [name, part])
            self.sizes[n] = name
        return self.sizes[n]

    def measured(self, name: str) -> str:
        """Return the name of the number of rows or frames of the input."""
        key = Dim((name,), 1)
        if key not in self.sizes:
            axis = 0 if name == "N" else 1
            self.sizes[key] = self.op("Shape", [self.source], start=axis, end=axis + 1)
        return self.sizes[key]

    def reshape(self, name: str, shape: Sequence[Length]) -> str:
        """Give an array other axes."""
        unknown = [n for n in shape if not isinstance(n, int)]
        if len(unknown) <= 1:
            known = [n if isinstance(n, int) else -1 for n in shape]
            return self.op("Reshape", [name, self.whole_numbers(known)])
        return self.op("Reshape", [name, self.lengths(shape)])

    # --- what only moves elements, and sums ---------------------------------------------------

    def _reshape(self, node: Node, operands: list[str]) -> str:
        before, after = (self.shape(a) for a in (node.inputs[0], node.output))
        # In ONNX, 0 means that this axis keeps its length.
        stays = [isinstance(n, Dim) and n == m for m, n in zip(before, after, strict=False)]
        kept = [0 if any(stays[i : i + 1]) else n for i, n in enumerate(after)]
        return self.reshape(operands[0], kept)

    def _transpose(self, node: Node, operands: list[str]) -> str:
        return self.op("Transpose", operands, perm=[int(a) for a in node.attributes["order"]])

    def _expand(self, node: Node, operands: list[str]) -> str:
        return self.expand(operands[0], node.output)

    def _concatenate(self, node: Node, operands: list[str]) -> str:
        return self.op("Concat", operands, axis=node.attributes["axis"])

    def _reverse(self, node: Node, operands: list[str]) -> str:
        axes = [int(a) for a in node.attributes["axes"]]
        edges = ([-1] * len(axes), [_START] * len(axes), axes, [-1] * len(axes))
        return self.op("Slice", [*operands, *map(self.whole_numbers, edges)])

    def _pad(self, node: Node, operands: list[str]) -> str:
        padding = node.attributes["padding"]
        pads = [a for a, _ in padding] + [b for _, b in padding]
        value = self.number(node.attributes["value"])
        return self.op("Pad", [operands[0], self.whole_numbers(pads), value])

    def _slice(self, node: Node, operands: list[str]) -> str:
        other = self.symbolic.other[node]
        lengths = list(zip(node.inputs[0].shape, other.inputs[0].shape, strict=True))
        starts, limits = (
            [
                _edge(node, a, b, *ends)
                for a, b, ends in zip(node.attributes[n], other.attributes[n], lengths, strict=True)
            ]
            for n in ("starts", "limits")
        )
        steps = [int(s) for s in node.attributes["steps"]]
        taken = [
            a for a, e in enumerate(zip(starts, limits, steps, strict=True)) if e != (0, _END, 1)
        ]
        if not taken:
            return operands[0]
        edges = ([part[a] for a in taken] for part in (starts, limits, range(len(steps)), steps))
        return self.op("Slice", [operands[0], *map(self.whole_numbers, edges)])

    def _gather(self, node: Node, operands: list[str]) -> str:
        return self.op("Gather", [self.array(node.attributes["table"], "table"), *operands], axis=0)

    def _matmul(self, node: Node, operands: list[str]) -> str:
        return self.op("MatMul", operands)

    def _quantize_linear(self, node: Node, operands: list[str]) -> str:
        return self._quantisation("QuantizeLinear", node, operands[0])

    def _dequantize_linear(self, node: Node, operands: list[str]) -> str:
        return self._quantisation("DequantizeLinear", node, operands[0])

    def _quantisation(self, kind: str, node: Node, x: str) -> str:
        zero = np.asarray(node.attributes["zero"], node.attributes["dtype"])
        scale = self.number(node.attributes["scale"])
        return self.op(kind, [x, scale, self.array(zero, "number")])

    def _softmax(self, node: Node, operands: list[str]) -> str:
        return self.op("Softmax", operands, axis=node.attributes["axis"])

    def _reduce(self, node: Node, operands: list[str]) -> str:
        kind, axes = node.attributes["kind"], [int(a) for a in node.attributes["axes"]]
        if kind == "sum":
            return self.op("ReduceSum", [operands[0], self.whole_numbers(axes)], keepdims=0)
        return self.op(_REDUCE[kind], operands, axes=axes, keepdims=0)


def _edge(node: Node, first: int, second: int, end: int, other_end: int) -> int:
    """Return an index from the start, or from the end (negative) if that is constant."""
    if (first, second) == (end, other_end):
        return _END
    if first == second:
        return int(first)
    if end - first == other_end - second:
        return int(first - end)
    raise ExportError(
        f"an index that depends on the number of rows or frames cannot be exported ({node.where})."
    )


def describe_value(name: str, shape: Sequence[Length], dtype: Any = np.float32) -> Any:
    """Describe an input or output of the model."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(
        name, kind, [n if isinstance(n, int) else str(n) if n else None for n in shape]
    )


# --- elementwise functions; some need several operators to stay accurate --------------------------


_LARGEST = float(np.finfo(np.float32).max)
_SAME = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "max": "Max",
    "min": "Min", "abs": "Abs", "sign": "Sign", "gt": "Greater", "ge": "GreaterOrEqual",
    "lt": "Less", "le": "LessOrEqual", "eq": "Equal", "and": "And", "or": "Or", "not": "Not",
    "xor": "Xor", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "erf": "Erf",
    "sin": "Sin", "cos": "Cos", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "atan": "Atan",
    "pow": "Pow", "sqrt": "Sqrt", "floor": "Floor", "ceil": "Ceil", "round": "Round",
}  # fmt: skip


def write_elementwise(writer: OperatorWriter, node: Node, operands: list[str]) -> str:
    """Add the operators of a step; returns the name of the result."""
    zeros = [isinstance(a, Constant) and a.number == 0 for a in node.inputs]
    if node.op == "max" and any(zeros):
        return writer.op("Relu", [operands[1 - zeros.index(True)]])
    if node.op in _SAME:
        return writer.op(_SAME[node.op], operands)
    compose = _COMPOSED.get(node.op)
    if compose is None or (node.op == "select_n" and len(operands) != 3):
        raise ExportError(f"'{node.op}' cannot be written as ONNX ({node.where}).")
    return compose(writer, node, *operands)


def _power(w: OperatorWriter, node: Node, x: str) -> str:
    exponent = node.attributes["y"]
    size = abs(exponent)
    if size > 4:
        return w.op("Pow", [x, w.number(exponent)])
    if size == 0:
        raise ExportError(f"a power of 0 cannot be written as ONNX ({node.where}).")
    powers = {1: x}
    for n in range(2, size + 1):
        powers[n] = w.op("Mul", [powers[n - n // 2], powers[n // 2]])
    return powers[size] if exponent > 0 else w.op("Reciprocal", [powers[size]])


def _expm1(w: OperatorWriter, node: Node, x: str) -> str:
    """eˣ − 1 = tanh(x/2) (eˣ + 1), which is accurate near 0."""
    half = w.op("Tanh", [w.op("Mul", [x, w.number(0.5)])])
    return w.op("Mul", [half, w.op("Add", [w.op("Exp", [x]), w.number(1)])])


def _log1p(w: OperatorWriter, node: Node, x: str) -> str:
    """ln(1 + x) = 2 artanh(x / (2 + x)), which is accurate near 0; computed directly beyond 1."""
    ratio = w.op("Div", [x, w.op("Add", [x, w.number(2)])])
    near = w.op("Mul", [w.op("Atanh", [ratio]), w.number(2)])
    far = w.op("Log", [w.op("Add", [x, w.number(1)])])
    return w.op("Where", [w.op("Greater", [x, w.number(1)]), far, near])


def _cbrt(w: OperatorWriter, node: Node, x: str) -> str:
    root = w.op("Pow", [w.op("Abs", [x]), w.number(1 / 3)])
    return w.op("Mul", [w.op("Sign", [x]), root])


_COMPOSED: dict[str, Callable[..., str]] = {
    "ne": lambda w, node, x, y: w.op("Not", [w.op("Equal", [x, y])]),
    "exp2": lambda w, node, x: w.op("Exp", [w.op("Mul", [x, w.number(math.log(2))])]),
    "expm1": _expm1,
    "log1p": _log1p,
    "erfc": lambda w, node, x: w.op("Sub", [w.number(1), w.op("Erf", [x])]),
    "square": lambda w, node, x: w.op("Mul", [x, x]),
    "integer_pow": _power,
    "rsqrt": lambda w, node, x: w.op("Reciprocal", [w.op("Sqrt", [x])]),
    "cbrt": _cbrt,
    "clamp": lambda w, node, low, x, high: w.op("Min", [w.op("Max", [x, low]), high]),
    "is_finite": lambda w, node, x: w.op("LessOrEqual", [w.op("Abs", [x]), w.number(_LARGEST)]),
    "select_n": lambda w, node, which, no, yes: w.op("Where", [which, yes, no]),
}
