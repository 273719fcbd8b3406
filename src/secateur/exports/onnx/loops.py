"""Loops cut down to their cells: what need not be done frame by frame is done for all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from secateur.exports.graph import ELEMENTWISE, Atom, Constant, Graph, Node, Value

__all__ = ["projection_into_loop", "readout_after_loop"]

# How the attributes of a step change where an axis of frames is put before all others.
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
    """What a loop computes from its new state is computed after it, for all frames at once."""
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
    """The steps from new states and inputs to a result; none if there are others among them."""
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
    made = {v for n in steps for v in n.outputs}
    read = {a for n in steps for a in n.inputs if isinstance(a, Value)} - made - {*outside}
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
    """W (A x + b): a product with weights ahead of a loop becomes part of the cell's weights.

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
    for n in chain:  # what they move is narrower now
        value = n.outputs[0]
        narrow = Value((*value.shape[:-1], weights.shape[1]), value.dtype)
        graph.replace(value, narrow)
        n.outputs = [narrow]
    graph.drop_unread()
    return True
