"""Values and weights in 8 bits, as networks that were quantised before they were read have them.

A function rounds values to multiples of a scale and continues in floating-point numbers,

    q = clip(round(x / scale) + zero, smallest, largest)        x ≈ (q − zero) · scale

which in ONNX is a QuantizeLinear and a DequantizeLinear, with integers in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from secateur.exports.graph import Constant, Graph, Node, Value

__all__ = ["QUANTISATION", "find_steps", "is_read_as_integer",
           "recognise_quantisation"]  # fmt: skip

QUANTISATION = ("quantize_linear", "dequantize_linear")
_MOVES = ("reshape", "transpose")
_TYPES = (np.dtype(np.int8), np.dtype(np.uint8))
_SMALLEST_IN_STEPS = 256  # numbers of an array that is written in 8 bits where that is exact
_LARGEST_STEP = 128


# --- values ---------------------------------------------------------------------------------------


def recognise_quantisation(graph: Graph, dtypes: tuple[Any, Any]) -> None:
    """Write the steps of a quantisation as one, wherever its result is stored as an integer.

    The new steps are `quantize_linear` and `dequantize_linear`, with the attributes `scale`, `zero`
    and `dtype`. The former's result is read by the latter only, or is the graph's.

    Args:
        graph: Graph to change.
        dtypes: Types of the graph's input and output.
    """
    users = graph.users()
    given = np.dtype(dtypes[0])
    if given in _TYPES:
        _dequantise(graph, graph.inputs[0], given, users)
    for node in [n for n in graph.nodes if n.op == "round"]:
        _quantise(graph, node, np.dtype(dtypes[1]), users)
    graph.drop_unread()


def _quantise(graph: Graph, node: Node, result: np.dtype, users: dict[Value, list[Node]]) -> None:
    makers = {n.output: n for n in graph.nodes if len(n.outputs) == 1}
    divided = makers.get(node.inputs[0])  # type: ignore[arg-type]
    scale = None if divided is None else _second_number(divided, "div")
    if divided is None or scale is None or divided.inputs[0].shape != divided.output.shape:
        return
    last, numbers = node, {}
    for op in ("add", "max", "min"):
        readers = users.get(last.output, [])
        if len(readers) == 1 and last.output not in graph.outputs:
            number = _second_number(readers[0], op)
            if number is not None:
                last, numbers[op] = readers[0], number
    zero, limits = numbers.get("add", 0.0), (numbers.get("max"), numbers.get("min"))
    dtype = next((d for d in _TYPES if limits == (np.iinfo(d).min, np.iinfo(d).max)), None)
    if dtype is None or zero != np.rint(zero):
        return
    value = last.output
    is_result = any(a is value for a in graph.outputs)
    if is_result and result != dtype:
        return
    if not _dequantise(graph, value, dtype, users, only=(scale, zero)):
        return
    last.op, last.inputs = "quantize_linear", [divided.inputs[0]]
    last.attributes = {"scale": scale, "zero": zero, "dtype": dtype}


def _dequantise(
    graph: Graph,
    value: Value,
    dtype: np.dtype,
    users: dict[Value, list[Node]],
    *,
    only: tuple[float, float] | None = None,
) -> bool:
    """Let all that read a value read it as (q − zero) · scale; False if something does not."""
    ends = _find_ends(graph, value, users)
    if ends is None or (only is not None and any(end[2:] != only for end in ends)):
        return False
    for last, operand, scale, zero in ends:
        last.op, last.inputs = "dequantize_linear", [operand]
        last.attributes = {"scale": scale, "zero": zero, "dtype": dtype}
    return True


def _find_ends(
    graph: Graph, value: Value, users: dict[Value, list[Node]]
) -> list[tuple[Node, Value, float, float]] | None:
    """Return the last steps of (q − zero) · scale, with q, scale and zero, behind moved elements.

    None if anything else reads the value.
    """
    ends = []
    for reader in users.get(value, []):
        if reader.op in _MOVES and reader.output not in graph.outputs:
            behind = _find_ends(graph, reader.output, users)
            if behind is None:
                return None
            ends += behind
            continue
        last, zero = reader, _second_number(reader, "sub")
        if zero is not None:
            readers = users.get(reader.output, [])
            if len(readers) != 1 or reader.output in graph.outputs:
                return None
            last = readers[0]
        scale = _second_number(last, "mul")
        if scale is None:
            return None
        ends.append((last, value, scale, zero or 0.0))
    return ends


def is_read_as_integer(graph: Graph, value: Value) -> bool:
    """Whether a value is only dequantised, perhaps after its elements were moved."""
    return all(
        node.op == "dequantize_linear"
        or (node.op in _MOVES and is_read_as_integer(graph, node.output))
        for node in graph.nodes
        if value in node.inputs
    )


def _second_number(node: Node, op: str) -> float | None:
    """Return the number that a step applies to its first operand, or None."""
    if node.op != op or not isinstance(node.inputs[1], Constant):
        return None
    return node.inputs[1].number if isinstance(node.inputs[0], Value) else None


# --- weights --------------------------------------------------------------------------------------


def find_steps(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int | None] | None:
    """Return 8-bit numbers and scales whose products are exactly these values.

    Args:
        values: Numbers in float32.

    Returns:
        The numbers, the scales, and the axis along which each index has a scale of its own (None if
        there is one scale); or None where the values are no such products.
    """
    if values.dtype != np.float32 or values.size < _SMALLEST_IN_STEPS:
        return None
    axes = [None, *(a for a in (0, values.ndim - 1, 1) if a < values.ndim)]
    for axis in dict.fromkeys(axes):
        rows = values.reshape(1, -1)
        if axis is not None:
            rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        if axis is not None and 4 * rows.shape[0] > values.size:
            continue  # scales would take as much as they save
        pairs = []
        for row in rows:
            pair = _find_row_steps(row)
            if pair is None:
                break
            pairs.append(pair)
        else:
            steps = np.stack([row for row, _ in pairs])
            scales = np.array([scale for _, scale in pairs], np.float32)
            if axis is None:
                return steps.reshape(values.shape), scales.reshape(()), None
            lengths = [n for a, n in enumerate(values.shape) if a != axis]
            return np.moveaxis(steps.reshape(-1, *lengths), 0, axis), scales, axis
    return None


def _find_row_steps(row: np.ndarray) -> tuple[np.ndarray, np.float32] | None:
    top = np.abs(row).max()
    if not 0 < top < np.inf:
        return (np.zeros(row.shape, np.int8), np.float32(1)) if top == 0 else None
    sizes = np.unique(np.abs(row))[:200].astype(np.float64)
    for number in range(1, _LARGEST_STEP + 1):
        steps = sizes * (number / float(top))
        if np.abs(steps - np.rint(steps)).max() > 1e-4:
            continue
        scale = top / np.float32(number)
        for guess in (scale, *(np.nextafter(scale, np.float32(end)) for end in (0, np.inf))):
            steps = np.rint(row / guess)
            fits = steps.min() >= -_LARGEST_STEP and steps.max() < _LARGEST_STEP
            if fits and np.array_equal(steps.astype(np.float32) * guess, row):
                return steps.astype(np.int8), guess
    return None
