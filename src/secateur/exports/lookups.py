"""Functions of one value that integers have no arithmetic for: those that become tables."""

from __future__ import annotations

from dataclasses import dataclass

from secateur.exports.graph import ELEMENTWISE, Constant, Graph, Node, Value

__all__ = ["Lookups", "find_lookups", "has_zero"]


@dataclass(frozen=True, eq=False)
class Lookups:
    """Functions of one value that are looked up.

    Attributes:
        looked_up: by result, the value that it is a function of, and the steps.
        inner: results of steps inside such functions only.
    """

    looked_up: dict[Value, tuple[Value, list[Node]]]
    inner: set[Value]


_OWN = {"tanh", "logistic", "add", "sub", "mul", "neg"}


def find_lookups(graph: Graph) -> Lookups:
    """Chains of elementwise steps that make one function of one value, beyond what integers do."""
    users = graph.users()
    results = set(graph.results())
    found: dict[Value, tuple[Value, list[Node]]] = {}
    for node in graph.nodes:
        if node.op not in ELEMENTWISE:
            continue
        if any(isinstance(a, Constant) and a.number is None for a in node.inputs):
            continue
        values = [a for a in node.inputs if isinstance(a, Value)]
        parts = [found.get(v, (v, [])) for v in values]
        roots = {root for root, _ in parts}
        if len(roots) != 1 or any(v.shape != node.output.shape for v in values):
            continue
        steps = [s for _, steps in parts for s in steps]
        found[node.output] = (parts[0][0], [*dict.fromkeys(steps), node])
    looked_up, inner = {}, set()
    for value, (root, steps) in found.items():
        readers = users.get(value, [])
        outside = value in results or any(
            r.output not in found or found[r.output][0] is not root for r in readers
        )
        simple = len(steps) == 1 and (steps[0].op in _OWN or _is_relu(steps[0]))
        if not outside or simple or root is graph.inputs[0] or root.dtype.kind != "f":
            continue
        last = steps[-1]
        affine = len(steps) > 1 and last.op in ("add", "sub", "neg")
        if affine and _read_outside(last, found, users, root):
            continue  # 1 − z of a gate that is there anyway
        looked_up[value] = (root, steps)
        inner |= {s.output for s in steps[:-1]}
    needed = {v for v in inner if _needed_elsewhere(v, looked_up, inner, users, results)}
    return Lookups(looked_up, inner - needed - set(looked_up))


def _is_relu(node: Node) -> bool:
    return node.op == "max" and has_zero(node)


def _read_outside(node: Node, found: dict, users: dict, root: Value) -> bool:
    """Whether the operand of an affine step is read by others, and so is there anyway."""
    value = next(a for a in node.inputs if isinstance(a, Value))
    return any(
        r is not node and (r.output not in found or found[r.output][0] is not root)
        for r in users.get(value, [])
    )


def _needed_elsewhere(
    value: Value, looked_up: dict, inner: set[Value], users: dict, results: set
) -> bool:
    if value in results:
        return True
    return any(r.output not in inner and r.output not in looked_up for r in users.get(value, []))


def has_zero(node: Node) -> bool:
    """Whether an operand is 0: a relu, if it is a maximum."""
    return any(isinstance(a, Constant) and a.number == 0 for a in node.inputs)
