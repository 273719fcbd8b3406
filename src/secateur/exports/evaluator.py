"""Evaluation of a graph in NumPy: the reference with which every export is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import special

from secateur.exports.graph import Atom, Constant, Graph, Node, Value
from secateur.exports.integers import INTEGER_FUNCTIONS

__all__ = ["MOVES", "FloatArithmetic", "evaluate_graph", "move_elements", "run_frames",
           "scaled_weights"]  # fmt: skip

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "max": np.maximum, "min": np.minimum, "abs": np.abs, "sign": np.sign, "gt": np.greater,
    "ge": np.greater_equal, "lt": np.less, "le": np.less_equal, "eq": np.equal,
    "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "xor": np.logical_xor, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log,
    "log1p": np.log1p, "tanh": np.tanh, "logistic": special.expit, "erf": special.erf,
    "erfc": special.erfc, "sin": np.sin, "cos": np.cos, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "atan": np.arctan, "square": np.square, "pow": np.power, "sqrt": np.sqrt,
    "cbrt": np.cbrt, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "is_finite": np.isfinite,
    "rsqrt": lambda x: 1 / np.sqrt(x), "clamp": lambda low, x, high: np.clip(x, low, high),
    "select_n": lambda which, no, yes: np.where(which, yes, no),
}  # fmt: skip
MOVES = {"reshape", "transpose", "expand", "slice", "reverse", "concatenate"}
_NOTHING = {"max": -np.inf, "sum": 0.0}
_REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


class FloatArithmetic:
    """Floating-point arithmetic; other classes may implement the steps differently."""

    def __init__(self, dtype: Any = np.float64) -> None:
        self.dtype = np.dtype(dtype)

    def constant(self, array: np.ndarray) -> np.ndarray:
        """Convert a known array."""
        return array.astype(self.dtype) if array.dtype.kind == "f" else array

    def elementwise(self, op: str, attributes: dict[str, Any], *arrays: Any) -> Any:
        """Apply a function to every element."""
        if op == "integer_pow":
            return arrays[0] ** attributes["y"]
        if op in INTEGER_FUNCTIONS:
            return INTEGER_FUNCTIONS[op](*arrays, **attributes)
        return _FUNCTIONS[op](*arrays)

    def linear(self, x: Any, weights: np.ndarray, bias: np.ndarray | None) -> Any:
        """Return x Wᵀ + b; x has two axes."""
        if weights.dtype.kind == "i":
            y = x.astype(np.int64) @ weights.T.astype(np.int64)
            return y if bias is None else y + bias
        y = x @ self.constant(weights).T
        return y if bias is None else y + self.constant(bias)

    def reduce(self, kind: str, array: Any, axis: int) -> Any:
        """Reduce over one axis."""
        return _REDUCE[kind].reduce(array, axis=axis)


def evaluate_graph(
    graph: Graph,
    inputs: Sequence[Any],
    states: Sequence[Any] = (),
    arithmetic: Any = None,
    watch: Callable[[Value, Any], None] = lambda value, array: None,
) -> tuple[list[Any], list[Any]]:
    """Evaluate all steps.

    Args:
        graph: The steps.
        inputs: An array for each of its inputs.
        states: An array for each of its states.
        arithmetic: Implementation of the operations. Defaults to float64.
        watch: Function that is called with every intermediate result.

    Returns:
        Its outputs, and the states after the call.
    """
    numbers = arithmetic or FloatArithmetic()
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    values.update((s.before, a) for s, a in zip(graph.states, states, strict=True))

    def read(atom: Atom) -> Any:
        return numbers.constant(atom.array) if isinstance(atom, Constant) else values[atom]

    def whole(atom: Atom) -> Any:
        array = read(atom)
        return array if np.shape(array) == atom.shape else np.broadcast_to(array, atom.shape)

    for node in graph.nodes:
        operands = [read(a) for a in node.inputs]
        if node.op == "recurrent":
            values.update(zip(node.outputs, _loop(node, operands, numbers), strict=True))
        elif node.op in ("linear", "conv", "pool", "reduce", "pad"):
            values[node.output] = _compute(node, whole(node.inputs[0]), numbers)
        elif node.op == "matmul":
            values[node.output] = np.matmul(*(whole(a) for a in node.inputs))
        elif node.op == "gather":
            places = np.clip(
                whole(node.inputs[0]).astype(int), 0, len(node.attributes["table"]) - 1
            )
            values[node.output] = numbers.constant(node.attributes["table"])[places]
        elif node.op in MOVES:
            values[node.output] = move_elements(node, [whole(a) for a in node.inputs])
        else:
            result = numbers.elementwise(node.op, node.attributes, *operands)
            same = np.shape(result) == node.output.shape
            values[node.output] = result if same else np.broadcast_to(result, node.output.shape)
        for value in node.outputs:
            watch(value, values[value])
    return [whole(a) for a in graph.outputs], [whole(s.after) for s in graph.states]


def move_elements(node: Node, arrays: Sequence[Any]) -> Any:
    """Return the result of a step that only moves elements, one of `MOVES`."""
    attributes, shape = node.attributes, node.output.shape
    x = arrays[0]
    if node.op == "reshape":
        return x.reshape(shape)
    if node.op == "transpose":
        return x.transpose(attributes["order"])
    if node.op == "expand":
        return np.broadcast_to(x, shape)
    if node.op == "slice":
        edges = zip(attributes["starts"], attributes["limits"], attributes["steps"], strict=True)
        return x[tuple(slice(a, b, c) for a, b, c in edges)]
    if node.op == "reverse":
        return np.flip(x, attributes["axes"])
    return np.concatenate(arrays, attributes["axis"])


def pad_array(x: Any, padding: Sequence[tuple[int, int]], value: Any) -> Any:
    """Return an array with padding."""
    shape = [n + a + b for n, (a, b) in zip(x.shape, padding, strict=True)]
    result = np.full(shape, value, x.dtype)
    inner = (slice(a, a + n) for n, (a, _) in zip(x.shape, padding, strict=True))
    result[tuple(inner)] = x
    return result


def take_windows(
    x: Any, size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Any:
    """Return all windows of a padded array: (positions …, elements of a window …)."""
    reach = [(n - 1) * d + 1 for n, d in zip(size, dilation, strict=True)]
    windows = sliding_window_view(x, reach)
    places = tuple(slice(None, None, s) for s in strides)
    elements = tuple(slice(None, None, d) for d in dilation)
    return windows[(*places, *elements)]


def _compute(node: Node, x: Any, numbers: Any) -> Any:
    attributes = node.attributes
    if node.op == "linear":
        flat = numbers.linear(x.reshape(-1, x.shape[-1]), scaled_weights(node), attributes["bias"])
        return flat.reshape(node.output.shape)
    if node.op == "conv":
        return _convolve(node, x, numbers)
    if node.op == "pad":
        return pad_array(x, attributes["padding"], _filling(attributes["value"], numbers))
    if node.op == "reduce":
        for axis in sorted(attributes["axes"], reverse=True):
            x = numbers.reduce(attributes["kind"], x, axis)
        return x
    x = pad_array(x, attributes["padding"], _filling(_NOTHING[attributes["kind"]], numbers, x))
    rank = x.ndim
    windows = take_windows(x, attributes["window"], attributes["strides"], (1,) * rank)
    return numbers.reduce(attributes["kind"], windows.reshape(*windows.shape[:rank], -1), rank)


def scaled_weights(node: Node) -> np.ndarray:
    """Return the weights of a product, scaled if they are stored as multiples of a step."""
    weights, step = node.attributes["weights"], node.attributes.get("step")
    return weights if step is None else weights * step


def _filling(value: float, numbers: Any, x: Any = None) -> Any:
    """Return the padding value in the arithmetic's own representation."""
    if x is not None and x.dtype.kind == "i":
        return max(value, np.iinfo(x.dtype).min)
    return numbers.constant(np.array(float(value))).item()


def _convolve(node: Node, x: Any, numbers: Any) -> Any:
    """Convolve, as a product of the weights with all windows, group by group."""
    attributes, weights = node.attributes, scaled_weights(node)
    rank = x.ndim
    zero = 0 if x.dtype.kind == "i" else _filling(0.0, numbers)
    if attributes["channels_last"]:
        x = np.moveaxis(x, -1, 1)
    if any(s != 1 for s in attributes["stretch"]):
        size = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], attributes["stretch"], strict=True)]
        spread = np.full((*x.shape[:2], *size), zero, x.dtype)
        places = tuple(slice(None, None, s) for s in attributes["stretch"])
        spread[:, :, *places] = x
        x = spread
    edges = [(max(a, 0), max(b, 0)) for a, b in attributes["padding"]]
    x = pad_array(x, [(0, 0), (0, 0), *edges], zero)
    cut = [slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(
        attributes["padding"], x.shape[2:], strict=True)]  # fmt: skip
    x = x[(slice(None), slice(None), *cut)]
    groups = attributes["groups"]
    fan_in, per_group = weights.shape[1], len(weights) // groups
    bias = np.zeros(len(weights)) if attributes["bias"] is None else attributes["bias"]
    parts = []
    for g in range(groups):
        mine = slice(g * per_group, (g + 1) * per_group)
        windows = take_windows(
            x[:, g * fan_in : (g + 1) * fan_in], (1, fan_in, *weights.shape[2:]),
            (1, 1, *attributes["strides"]), (1, 1, *attributes["dilation"]),
        )  # fmt: skip
        places = windows.shape[:rank]
        rows = windows.reshape(int(np.prod(places)), -1)
        y = numbers.linear(rows, weights[mine].reshape(per_group, -1), bias[mine])
        parts.append(y.reshape(places[0], *places[2:], per_group))
    y = np.concatenate(parts, -1)
    return y if attributes["channels_last"] else np.moveaxis(y, -1, 1)


def _loop(node: Node, stacked: Sequence[Any], numbers: Any) -> list[Any]:
    attributes = node.attributes
    body, carried = attributes["body"], attributes["carried"]
    carry = [numbers.constant(np.asarray(a)) for a in attributes["initial"]]
    length = node.inputs[0].shape[0]
    steps = range(length)[:: -1 if attributes["reverse"] else 1]
    frames: list[list[Any]] = []
    for t in steps:
        results, _ = evaluate_graph(body, [*carry, *(a[t] for a in stacked)], arithmetic=numbers)
        carry = results[:carried]
        frames.append(results[carried:])
    ordered = frames[::-1] if attributes["reverse"] else frames
    return [*carry, *(np.stack(column) for column in zip(*ordered, strict=True))]


def run_frames(graph: Graph, frames: Any, arithmetic: Any = None) -> np.ndarray:
    """Return the output after every frame of a graph that takes one frame at a time.

    Args:
        graph: Graph with one input, of the shape of one frame, and states.
        frames: Array of shape (frames, *shape of the input).
        arithmetic: Implementation of the operations. Defaults to float64.
    """
    states: list[Any] = [state.initial for state in graph.states]
    outputs = []
    for frame in frames:
        (output, *_), states = evaluate_graph(graph, [frame], states, arithmetic)
        outputs.append(output)
    return np.stack(outputs)
