"""Simplification of graphs: constants are folded into weights, and moves are merged.

Folding is done in float64, before anything is rounded for the device.
"""

from __future__ import annotations

import numpy as np

from secateur.exports.graph import Constant, Graph, Node, Value

__all__ = ["simplify_graph", "spread_products"]

_AFFINE = {"add", "sub", "mul", "div"}
_LARGEST_SHIFT = 16.0  # in standard deviations; costs four of float32's 24 bits


def simplify_graph(graph: Graph, *, input_factors: bool = True) -> Graph:
    """Reduce the number of steps of a graph in place, with the same results, and return it.

    A factor before or after a product with weights, and a term after it, become part of weights
    and bias. A shift before the product is kept if it is large compared with the deviation: x − m
    is exact in floating point if x and m are close to each other, which is lost by multiplying out.

    Args:
        graph: Graph to change.
        input_factors: Whether to fold factors of the inputs into weights, too. Integers use one
            step for all inputs, which should then have similar ranges, so they do not.
    """
    kept = set() if input_factors else _scaled_inputs(graph)
    while _pass(graph, kept):
        graph.drop_unread()
    for node in graph.nodes:
        if node.op == "recurrent":
            simplify_graph(node.attributes["body"])
    return graph


def spread_products(graph: Graph) -> None:
    """Write products of two computed arrays as elementwise products and sums, in place."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op != "matmul":
            nodes.append(node)
            continue
        first, second = node.inputs
        rank, dtype = len(first.shape), node.output.dtype
        left = Value((*first.shape, 1), dtype)
        right = Value((*second.shape[:-2], 1, *second.shape[-2:]), dtype)
        terms = Value((*first.shape, second.shape[-1]), dtype)
        nodes += [
            Node("reshape", [first], [left], where=node.where),
            Node("reshape", [second], [right], where=node.where),
            Node("mul", [left, right], [terms], where=node.where),
            Node("reduce", [terms], node.outputs, {"kind": "sum", "axes": (rank - 1,)}, node.where),
        ]
    graph.nodes = nodes


def _scaled_inputs(graph: Graph) -> set[Value]:
    """The inputs, and the values that are shifted and scaled versions of them."""
    values = set(graph.inputs)
    for node in graph.nodes:
        operand = _operand(node)
        if operand is not None and operand[0] in values:
            values.add(node.output)
    return values


def _pass(graph: Graph, kept: set[Value]) -> bool:
    makers = {node.output: node for node in graph.nodes if len(node.outputs) == 1}
    users = graph.users()
    read = {a for a in graph.results() if isinstance(a, Value)}
    for node in graph.nodes:
        if _into_weights_before(graph, node, makers, users, read):
            return True
        if _into_weights_after(node, makers, users, read | kept):
            return True
        if _moves(graph, node, makers):
            return True
        if _no_bound(graph, node):
            return True
    return False


def _operand(node: Node) -> tuple[Value, np.ndarray, bool] | None:
    """The value and the constant of an affine elementwise step, and whether the value is first."""
    if node.op not in _AFFINE:
        return None
    first, second = node.inputs
    if isinstance(first, Value) and isinstance(second, Constant):
        value, constant, ahead = first, second, True
    elif isinstance(second, Value) and isinstance(first, Constant):
        value, constant, ahead = second, first, False
    else:
        return None
    if node.op == "div" and not ahead:
        return None
    if value.shape != node.output.shape or value.dtype.kind != "f":
        return None
    return value, constant.array.astype(np.float64), ahead


def _channel_axis(node: Node) -> int:
    rank = len(node.output.shape)
    return 1 if node.op == "conv" and not node.attributes["channels_last"] else rank - 1


def _per_channel(constant: np.ndarray, axis: int) -> np.ndarray | None:
    """The constant as one number per channel, or None if it changes along other axes."""
    if any(n != 1 for a, n in enumerate(constant.shape) if a != axis):
        return None
    return constant.reshape(-1)


def _into_weights_before(graph, node, makers, users, read) -> bool:
    """Fold a term or factor after a product into its weights."""
    operand = _operand(node)
    if operand is None:
        return False
    value, constant, ahead = operand
    maker = makers.get(value)
    if maker is None or maker.op not in ("linear", "conv"):
        return False
    if len(users[value]) != 1 or value in read:
        return False
    numbers = _per_channel(constant, _channel_axis(maker))
    if numbers is None:
        return False
    weights, bias = maker.attributes["weights"], maker.attributes["bias"]
    bias = np.zeros(len(weights)) if bias is None else bias
    factor: np.ndarray | float = 1.0
    term: np.ndarray | float = 0.0
    if node.op == "mul":
        factor = numbers
    elif node.op == "div":
        factor = 1 / numbers
    elif node.op == "add":
        term = numbers
    else:
        factor, term = (1.0, -numbers) if ahead else (-1.0, numbers)
    factor = np.broadcast_to(np.asarray(factor, np.float64), (len(weights),))
    column = factor.reshape(-1, *(1,) * (weights.ndim - 1))
    maker.attributes |= {"weights": weights * column, "bias": bias * factor + term}
    _scale_origin(maker, column)
    graph.replace(node.output, value)
    return True


def _into_weights_after(node, makers, users, read) -> bool:
    """Fold a factor before a product into its weights."""
    if node.op not in ("linear", "conv"):
        return False
    if node.op == "conv" and node.attributes["groups"] != 1:
        return False
    (x,) = node.inputs
    maker = makers.get(x)
    if maker is None or maker.op not in ("mul", "div") or len(users[x]) != 1 or x in read:
        return False
    operand = _operand(maker)
    if operand is None:
        return False
    value, constant, _ = operand
    numbers = _per_channel(constant, _channel_axis(node))
    if numbers is None:
        return False
    weights = node.attributes["weights"]
    factor = numbers if maker.op == "mul" else 1 / numbers
    factor = np.broadcast_to(factor, (weights.shape[1],))
    row = factor.reshape(1, -1, *(1,) * (weights.ndim - 2))
    node.attributes["weights"] = weights * row
    _scale_origin(node, row)
    node.inputs = [value]
    _small_shift(node, factor, makers, users)
    return True


def _scale_origin(node: Node, factor: np.ndarray) -> None:
    origin = node.attributes["origin"]
    node.attributes["origin"] = origin and origin.scale(factor)


def _small_shift(node: Node, factor: np.ndarray, makers: dict, users: dict) -> None:
    """Multiply out shifts before a factor, where no cancellation can occur."""
    while node.op == "linear":
        (x,) = node.inputs
        maker = makers.get(x)
        if maker is None or maker.op not in ("add", "sub"):
            return
        operand = _operand(maker)
        if operand is None or not operand[2] or len(users[x]) != 1:
            return
        value, constant, _ = operand
        numbers = _per_channel(constant, len(x.shape) - 1)
        if numbers is None or np.max(np.abs(numbers * factor), initial=0.0) > _LARGEST_SHIFT:
            return
        term = numbers if maker.op == "add" else -numbers
        weights, bias = node.attributes["weights"], node.attributes["bias"]
        bias = np.zeros(len(weights)) if bias is None else bias
        node.attributes["bias"] = bias + weights @ np.broadcast_to(term, (weights.shape[1],))
        node.inputs = [value]


def _no_bound(graph: Graph, node: Node) -> bool:
    """Remove max(x, −∞) and min(x, ∞), which robust reductions contain."""
    bounds = {"max": -np.inf, "min": np.inf}
    if node.op not in bounds:
        return False
    for bound, other in (node.inputs, node.inputs[::-1]):
        if not isinstance(bound, Constant) or not isinstance(other, Value):
            continue
        if bound.number == bounds[node.op] and other.shape == node.output.shape:
            graph.replace(node.output, other)
            return True
    return False


def _moves(graph: Graph, node: Node, makers: dict[Value, Node]) -> bool:
    """Merge consecutive moves, and remove moves that change nothing."""
    if node.op not in ("reshape", "transpose"):
        return False
    (x,) = node.inputs
    if isinstance(x, Constant):
        array = x.full()
        moved = array.reshape(node.output.shape) if node.op == "reshape" else array.transpose(
            node.attributes["order"])  # fmt: skip
        graph.replace(node.output, Constant.of(moved))
        return True
    maker = makers.get(x)
    if node.op == "transpose" and _keeps_order(x.shape, node.attributes["order"]):
        node.op, node.attributes = "reshape", {}
        return True
    if node.op == "reshape":
        if x.shape == node.output.shape:
            graph.replace(node.output, x)
            return True
        if maker is not None and maker.op == "reshape":
            node.inputs = list(maker.inputs)
            return True
        return False
    if maker is not None and maker.op == "transpose":
        inner = maker.attributes["order"]
        node.inputs = list(maker.inputs)
        node.attributes = {"order": tuple(inner[i] for i in node.attributes["order"])}
        return True
    return False


def _keeps_order(shape: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Whether a transposition moves only axes of length 1 and so leaves memory unchanged."""
    long = [a for a in order if shape[a] != 1]
    return long == sorted(long)
