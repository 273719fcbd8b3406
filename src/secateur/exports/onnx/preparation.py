"""Preparation of graphs for ONNX: channels first, means as one operator, projections inside loops.

Everything here changes a graph in place without changing its results.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from secateur.exports.graph import ELEMENTWISE, Atom, Constant, Graph, Node, Value
from secateur.exports.onnx.quantised_values import QUANTISATION, recognise_quantisation
from secateur.exports.simplification import simplify_graph

__all__ = ["prepare_graph"]


def prepare_graph(graph: Graph, dtypes: tuple[Any, Any] = (np.float32, np.float32)) -> Graph:
    """Bring a graph into the form that the writer takes, and return it.

    Args:
        graph: Graph to change.
        dtypes: Types of its input and output in the file.
    """
    recognise_quantisation(graph, dtypes)
    for node in graph.nodes:
        _mean(graph, node)  # before the division is folded into weights
    simplify_graph(graph)
    _channels_first(graph)
    for change in _CHANGES:
        while _changes(graph, change):
            simplify_graph(graph)
    return graph


def _changes(graph: Graph, change: Callable[[Graph, Node, dict, dict], bool]) -> bool:
    """Apply a change to the first step that allows it; return whether there was one."""
    makers = {value: node for node in graph.nodes for value in node.outputs}
    users = graph.users()
    return any(change(graph, node, makers, users) for node in graph.nodes)


def _mean(graph: Graph, node: Node) -> None:
    """Turn a sum over axes or windows, divided by their size, into a mean."""
    if node.op != "div" or not isinstance(node.inputs[1], Constant):
        return
    makers = {value: n for n in graph.nodes for value in n.outputs}
    users = graph.users()
    (x, size), total = (node.inputs[0], node.inputs[1].number), None
    while x in makers and len(users[x]) == 1 and x not in graph.outputs:
        maker = makers[x]
        if maker.op in ("reduce", "pool") and maker.attributes["kind"] == "sum":
            total = maker
            break
        if maker.op not in ("reshape", "expand"):
            return
        (x,) = maker.inputs
    if total is None:
        return
    attributes = total.attributes
    if total.op == "pool":
        elements = prod(attributes["window"])
    else:
        elements = prod(total.inputs[0].shape[a] for a in attributes["axes"])
    if size == elements and node.inputs[0].shape == node.output.shape:
        attributes["kind"] = "mean"
        graph.replace(node.output, node.inputs[0])


def _channels_first(graph: Graph) -> None:
    """Move the axes of convolutions and pooling behind rows and channels, as ONNX expects."""
    graph.nodes = [n for node in graph.nodes for n in _without_short_axes(node)]
    simplify_graph(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        order = _order(node)
        if order is None:
            nodes.append(node)
            continue
        (x,), y = node.inputs, node.output
        there = Value(tuple(x.shape[a] for a in order), x.dtype)
        result = Value(tuple(y.shape[a] for a in order), y.dtype)
        nodes.append(Node("transpose", [x], [there], {"order": order}, node.where))
        node.inputs, node.outputs = [there], [result]
        if node.op == "conv":
            node.attributes["channels_last"] = False
        else:
            for name in ("window", "strides", "padding"):
                node.attributes[name] = tuple(node.attributes[name][a] for a in order)
        back = {"order": tuple(int(a) for a in np.argsort(order))}
        nodes += [node, Node("transpose", [result], [y], back, node.where)]
    graph.nodes = nodes
    simplify_graph(graph)


def _without_short_axes(node: Node) -> list[Node]:
    """Remove the axes of length 1 from pooling that libraries add under `vmap`."""
    if node.op != "pool":
        return [node]
    (x,), y, attributes = node.inputs, node.output, node.attributes
    kept = [
        a for a, n in enumerate(y.shape)
        if a == 0 or n != 1 or x.shape[a] != 1 or any(attributes["padding"][a])
    ]  # fmt: skip
    if len(kept) == len(y.shape) or len(kept) < 3:
        return [node]
    narrow = Value(tuple(x.shape[a] for a in kept), x.dtype)
    result = Value(tuple(y.shape[a] for a in kept), y.dtype)
    for name in ("window", "strides", "padding"):
        attributes[name] = tuple(attributes[name][a] for a in kept)
    node.inputs, node.outputs = [narrow], [result]
    before, after = Node("reshape", [x], [narrow]), Node("reshape", [result], [y])
    return [before, node, after]


def _order(node: Node) -> tuple[int, ...] | None:
    """Return the order of axes that a step needs, or None if no change is needed."""
    if node.op not in ("conv", "pool"):
        return None
    rank = len(node.output.shape)
    if node.op == "conv":
        last = node.attributes["channels_last"]
        return (0, rank - 1, *range(1, rank - 1)) if last else None
    attributes = node.attributes
    still = [
        a for a in range(1, rank)
        if attributes["window"][a] == attributes["strides"][a] == 1
        and tuple(attributes["padding"][a]) == (0, 0)
    ]  # fmt: skip
    if not still or 1 in still:
        return None  # no change, or not supported by the writer
    return (0, still[-1], *(a for a in range(1, rank) if a != still[-1]))


def _softmax(graph: Graph, node: Node, makers: dict, users: dict) -> bool:
    """exp(x − max x) / Σ exp(x − max x)."""
    if node.op != "div":
        return False
    exp = makers.get(node.inputs[0])
    total = _spread_reduction(node.inputs[1], makers, "sum")
    if exp is None or exp.op != "exp" or total is None or total.inputs[0] is not exp.output:
        return False
    shifted = makers.get(exp.inputs[0])
    if shifted is None or shifted.op != "sub":
        return False
    x, top = shifted.inputs
    largest = _spread_reduction(top, makers, "max")
    axes = tuple(total.attributes["axes"])
    if largest is None or largest.inputs[0] is not x or len(axes) != 1:
        return False
    if tuple(largest.attributes["axes"]) != axes or x.shape != node.output.shape:
        return False
    node.op, node.inputs, node.attributes = "softmax", [x], {"axis": int(axes[0])}
    graph.drop_unread()
    return True


def _spread_reduction(atom: Atom, makers: dict, kind: str) -> Node | None:
    """Return the reduction behind a value whose axes are kept, or None."""
    reshape = makers.get(atom)
    if reshape is None or reshape.op != "reshape":
        return None
    node = makers.get(reshape.inputs[0])
    if node is None or node.op != "reduce" or node.attributes["kind"] != kind:
        return None
    kept = [1 if a in node.attributes["axes"] else n for a, n in enumerate(node.inputs[0].shape)]
    return node if tuple(kept) == reshape.output.shape else None


def _transpose_later(graph: Graph, node: Node, makers: dict, users: dict) -> bool:
    """Move transpositions behind elementwise functions and sums, where inverses cancel."""
    if node.op == "reduce":
        return _transpose_after_sum(graph, node, makers)
    if node.op not in (*ELEMENTWISE, *QUANTISATION):
        return False
    orders = {
        tuple(makers[a].attributes["order"])
        if a in makers and makers[a].op == "transpose" and a.shape == node.output.shape
        else None
        for a in node.inputs
        if isinstance(a, Value)
    }
    if len(orders) != 1 or None in orders:
        return False
    (order,) = orders
    assert order is not None
    back = np.argsort(order)

    def before(atom: Atom) -> Atom:
        if isinstance(atom, Value):
            return makers[atom].inputs[0]
        return Constant(atom.array.transpose(back), tuple(atom.shape[a] for a in back))

    node.inputs = [before(a) for a in node.inputs]
    _transposed_result(graph, node, order)
    return True


def _transpose_after_sum(graph: Graph, node: Node, makers: dict) -> bool:
    maker = makers.get(node.inputs[0])
    if maker is None or maker.op != "transpose":
        return False
    order, axes = maker.attributes["order"], node.attributes["axes"]
    kept = [order[a] for a in range(len(order)) if a not in axes]
    node.inputs = list(maker.inputs)
    node.attributes["axes"] = tuple(sorted(order[a] for a in axes))
    _transposed_result(graph, node, tuple(sorted(kept).index(a) for a in kept))
    return True


def _transposed_result(graph: Graph, node: Node, order: tuple[int, ...]) -> None:
    """Make a step's result precede the transposition that is moved behind it."""
    y = node.output
    result = Value(tuple(y.shape[a] for a in np.argsort(order)), y.dtype)
    node.outputs = [result]
    place = graph.nodes.index(node)
    graph.nodes.insert(place + 1, Node("transpose", [result], [y], {"order": order}, node.where))
    graph.drop_unread()


def _flattened_in_other_order(graph: Graph, node: Node, makers: dict, users: dict) -> bool:
    """Remove a transposition before flattening by reordering the next dense layer's columns."""
    if node.op != "linear" or not isinstance(node.inputs[0], Value):
        return False
    reshape = makers.get(node.inputs[0])
    if reshape is None or reshape.op != "reshape":
        return False
    transpose = makers.get(reshape.inputs[0])
    if transpose is None or transpose.op != "transpose" or transpose.attributes["order"][0] != 0:
        return False
    if any(len(users[n.output]) != 1 or n.output in graph.outputs for n in (reshape, transpose)):
        return False
    rows, *sizes = transpose.output.shape
    if reshape.output.shape != (rows, prod(sizes)):
        return False
    order, weights = transpose.attributes["order"], node.attributes["weights"]
    places = [0, *(order.index(a) for a in range(1, len(order)))]
    node.attributes["weights"] = (
        weights.reshape(len(weights), *sizes).transpose(places).reshape(weights.shape)
    )
    reshape.inputs = list(transpose.inputs)
    graph.drop_unread()
    return True


# --- loops: computations that can be done for all frames at once ----------------------------------


# Changes to the attributes of a step when an axis of frames is added in front.
_WITH_FRAMES: dict[str, Callable[[dict[str, Any], int], dict[str, Any]]] = {
    "linear": lambda old, frames: {},
    "reshape": lambda old, frames: {},
    "transpose": lambda old, frames: {"order": (0, *(a + 1 for a in old["order"]))},
    "concatenate": lambda old, frames: {"axis": old["axis"] + 1},
    "reduce": lambda old, frames: {"axes": tuple(a + 1 for a in old["axes"])},
    "slice": lambda old, frames: {
        "starts": (0, *old["starts"]),
        "limits": (frames, *old["limits"]),
        "steps": (1, *old["steps"]),
    },
}


def readout_after_loop(graph: Graph, node: Node, makers: dict, users: dict) -> bool:
    """Move what a loop computes from its new state behind the loop, for all frames at once."""
    if node.op != "recurrent":
        return False
    body: Graph = node.attributes["body"]
    carried = node.attributes["carried"]
    for place in range(carried, len(node.outputs)):
        steps = _readout(body, body.outputs[place], carried)
        if steps:
            _move_out(graph, node, place, steps)
            return True
    return False


def _readout(body: Graph, result: Atom, carried: int) -> list[Node]:
    """Return the steps from new states and inputs to a result, if it depends only on these."""
    known = {*body.outputs[:carried], *body.inputs[carried:]}
    makers = {value: n for n in body.nodes for value in n.outputs}
    needed, waiting = set(), [result]
    while waiting:
        atom = waiting.pop()
        if atom in known or isinstance(atom, Constant):
            continue
        step = makers.get(atom)
        if step is None or step.op not in (*ELEMENTWISE, *_WITH_FRAMES):
            return []
        needed.add(step)
        waiting += step.inputs
    return [n for n in body.nodes if n in needed]


def _move_out(graph: Graph, node: Node, place: int, steps: list[Node]) -> None:
    body, carried = node.attributes["body"], node.attributes["carried"]
    frames = node.inputs[0].shape[0]
    outside: dict[Atom, Atom] = dict(zip(body.inputs[carried:], node.inputs, strict=True))
    computed = {v for n in steps for v in n.outputs}
    read = {a for n in steps for a in n.inputs if isinstance(a, Value)} - computed - {*outside}
    for state in [a for a in body.outputs[:carried] if a in read]:
        later = [i for i in range(carried, len(body.outputs)) if body.outputs[i] is state]
        if not later:
            later = [len(node.outputs)]
            body.outputs.append(state)
            node.outputs.append(Value((frames, *state.shape), state.dtype))
        outside[state] = node.outputs[later[0]]
    result, target = body.outputs.pop(place), node.outputs.pop(place)

    def of_all_frames(atom: Atom) -> Atom:
        if isinstance(atom, Constant):
            return Constant(atom.array[None], (frames, *atom.shape))
        return outside[atom]

    moved = []
    for step in steps:
        value = step.output
        outside[value] = target if value is result else Value((frames, *value.shape), value.dtype)
        inputs = [of_all_frames(a) for a in step.inputs]
        change = _WITH_FRAMES.get(step.op)
        attributes = step.attributes | (change(step.attributes, frames) if change else {})
        moved.append(Node(step.op, inputs, [outside[value]], attributes, step.where))  # type: ignore[list-item]
    at = graph.nodes.index(node) + 1
    graph.nodes[at:at] = moved
    body.drop_unread()


def projection_into_loop(graph: Graph, node: Node, makers: dict, users: dict) -> bool:
    """Fold a product with weights before a loop into the cell's weights: W (A x + b).

    Keras computes W x for all frames before it loops.
    """
    if node.op != "recurrent" or "projection" in node.attributes or len(node.inputs) != 1:
        return False
    x, chain = node.inputs[0], []
    while isinstance(x, Value) and x in makers and makers[x].op in ("transpose", "reverse"):
        chain.append(makers[x])
        x = chain[-1].inputs[0]
    linear = makers.get(x)
    if linear is None or linear.op != "linear" or any(len(users[n.output]) != 1 for n in chain):
        return False
    weights = linear.attributes["weights"]
    last = [n.attributes["order"][-1] for n in chain if n.op == "transpose"]
    turned = [a for n in chain if n.op == "reverse" for a in n.attributes["axes"]]
    rank = len(linear.output.shape)
    if weights.shape[1] > weights.shape[0] or len(users[x]) != 1 or x in graph.outputs:
        return False
    if any(axis != rank - 1 for axis in last) or rank - 1 in turned:
        return False
    bias = linear.attributes["bias"]
    projection = weights, np.zeros(len(weights)) if bias is None else bias
    node.attributes["projection"] = projection
    graph.replace(linear.output, linear.inputs[0])
    for n in chain:  # the arrays that they move are narrower now
        value = n.outputs[0]
        narrow = Value((*value.shape[:-1], weights.shape[1]), value.dtype)
        graph.replace(value, narrow)
        n.outputs = [narrow]
    graph.drop_unread()
    return True


_CHANGES = (
    readout_after_loop,
    _softmax,
    _transpose_later,
    _flattened_in_other_order,
    projection_into_loop,
)
