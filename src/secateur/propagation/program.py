"""A model function as one flat list of equations, with the wrappers around them taken off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from secateur import compat
from secateur.propagation import elementwise


class Slot:
    """A place for one intermediate value; compared by identity."""

    __slots__ = ("dtype", "shape", "uncertain", "uniform")

    def __init__(self, aval: Any, *, uncertain: bool):
        self.shape: tuple[int, ...] = tuple(getattr(aval, "shape", ()))
        self.dtype = getattr(aval, "dtype", None)
        self.uncertain = uncertain  # may be; the walk knows for sure
        self.uniform: float | None = None  # the one number in every element, where known


@dataclass(frozen=True, eq=False)
class Constant:
    value: Any


Atom = Slot | Constant


@dataclass(frozen=True, eq=False)
class Node:
    """One equation with its operands resolved.

    ``smooth``: its kinks cancel in the whole. ``where``: the user's line behind it.
    """

    index: int
    eqn: Any
    inputs: tuple[Atom, ...]
    outputs: tuple[Slot, ...]
    smooth: bool
    where: str

    @property
    def name(self) -> str:
        return self.eqn.primitive.name


@dataclass
class Program:
    inputs: list[Slot] = field(default_factory=list)
    outputs: list[Atom] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


# Constants written through these are still known while tracing.
_KEEPS_UNIFORM = {"broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "copy"}

# Written with max and abs for numerical reasons, yet smooth as a whole.
_SMOOTH_WRAPPERS = {"logaddexp", "softplus", "logaddexp2"}


def uniform_value(atom: Atom) -> float | None:
    """The value of an operand known, while tracing, to be the same number everywhere."""
    if isinstance(atom, Slot):
        return atom.uniform
    if isinstance(atom.value, jax.core.Tracer) or np.size(atom.value) > 4096:
        return None
    array = np.asarray(atom.value)
    if not array.size or array.dtype.kind not in "fiub":
        return None
    return float(array.flat[0]) if np.all(array == array.flat[0]) else None


def flatten(jaxpr: Any, consts: Sequence[Any], uncertain: Sequence[bool]) -> Program:
    """Inline every wrapper that an uncertain value passes through; leave the others whole.

    Args:
        jaxpr: an open jaxpr.
        consts: values of its constant variables.
        uncertain: for each input variable, whether it may be uncertain.
    """
    program = Program()
    atoms: list[Atom] = []
    for variable, flag in zip(jaxpr.invars, uncertain, strict=True):
        slot = Slot(variable.aval, uncertain=flag)
        program.inputs.append(slot)
        atoms.append(slot)
    program.outputs = _inline(jaxpr, consts, atoms, program.nodes, smooth=False, where="")
    return program


def _inline(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Atom],
    nodes: list[Node],
    *,
    smooth: bool,
    where: str,
) -> list[Atom]:
    places: dict[Any, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
    places.update((v, Constant(c)) for v, c in zip(jaxpr.constvars, consts, strict=True))

    def read(atom: Any) -> Atom:
        return Constant(atom.val) if isinstance(atom, compat.Literal) else places[atom]

    for eqn in jaxpr.eqns:
        operands = tuple(read(a) for a in eqn.invars)
        # Inside JAX's own functions an equation knows no line of the user's; the call does.
        line = compat.source_line(eqn) or where
        tainted = any(isinstance(a, Slot) and a.uncertain for a in operands)
        inner = compat.wrapped_jaxpr(eqn) if tainted else None
        if inner is not None:
            inner_jaxpr, inner_consts = inner
            inner_smooth = smooth or compat.call_name(eqn) in _SMOOTH_WRAPPERS
            results = _inline(
                inner_jaxpr, inner_consts, operands, nodes, smooth=inner_smooth, where=line
            )
            places.update(zip(eqn.outvars, results, strict=True))
            continue
        outputs = tuple(Slot(v.aval, uncertain=tainted) for v in eqn.outvars)
        if eqn.primitive.name in _KEEPS_UNIFORM and not tainted:
            outputs[0].uniform = uniform_value(operands[0])
        nodes.append(Node(len(nodes), eqn, operands, outputs, smooth, line))
        places.update(zip(eqn.outvars, outputs, strict=True))
    return [read(a) for a in jaxpr.outvars]


@dataclass(frozen=True)
class Group:
    """Elementwise equations that make one function of one uncertain value, in order."""

    root: Slot
    nodes: tuple[Node, ...]
    result: Slot


def univariate_group(node: Node, groups: dict[Slot, Group], is_uncertain) -> Group | None:
    """The group that ``node`` extends, or None where it is no function of one value only.

    Args:
        node: the next equation.
        groups: the groups that end in earlier slots.
        is_uncertain: tells of an atom whether it is uncertain.
    """
    if node.name not in elementwise.NAMES:
        return None
    operands = [a for a in node.inputs if isinstance(a, Slot) and is_uncertain(a)]
    parts = [groups.get(slot) or Group(slot, (), slot) for slot in operands]
    roots = {part.root for part in parts}
    if len(roots) != 1:
        return None
    root = parts[0].root
    result = node.outputs[0]
    if any(slot.shape != result.shape for slot in operands) or root.shape != result.shape:
        return None
    members = {n.index: n for part in parts for n in part.nodes}
    members[node.index] = node
    return Group(root, tuple(members[i] for i in sorted(members)), result)


def split_affine(group: Group) -> tuple[Slot, Slot]:
    """The ends of a group's nonlinear core: everything before and after is affine.

    Returns:
        ``(start, end)``; ``start is end`` where the whole group is affine up to there.
    """
    inside = {group.root, *(n.outputs[0] for n in group.nodes)}

    def is_affine(node: Node) -> bool:
        return elementwise.is_affine(node.eqn, [a in inside for a in node.inputs])

    start = group.root
    while start is not group.result:
        consumers = [n for n in group.nodes if start in n.inputs]
        if len(consumers) != 1 or not is_affine(consumers[0]):
            break
        start = consumers[0].outputs[0]
    end = group.result
    producers = {n.outputs[0]: n for n in group.nodes}
    while end is not start:
        node = producers[end]
        operands = {a for a in node.inputs if a in inside}
        if len(operands) != 1 or not is_affine(node):
            break
        end = operands.pop()
    return start, end


def restrict(group: Group, start: Slot, end: Slot) -> Group:
    """The equations of ``group`` that lead from ``start`` to ``end``."""
    needed, kept = {end}, []
    for node in reversed(group.nodes):
        if node.outputs[0] in needed and node.outputs[0] is not start:
            kept.append(node)
            needed.update(a for a in node.inputs if isinstance(a, Slot))
    return Group(start, tuple(reversed(kept)), end)


def shared_slots(program: Program, *, elementwise_only: bool = False) -> set[Slot]:
    """Slots whose uncertainty reaches several places, so that those are correlated.

    Args:
        program: flat equations.
        elementwise_only: leave out what is used by anything that is not element by element.
    """
    groups: dict[Slot, Group] = {}
    uses: dict[Slot, set] = {}
    cores: dict[Slot, set[Slot]] = {}

    def use(atom: Atom, user: Any) -> None:
        if not isinstance(atom, Slot) or not atom.uncertain:
            return
        group = groups.get(atom)
        root, core = (atom, atom) if group is None else (group.root, split_affine(group)[1])
        uses.setdefault(core, set()).add((atom, user))
        cores.setdefault(root, set()).add(core)

    mixing: set[Slot] = set()
    for node in program.nodes:
        group = univariate_group(node, groups, lambda a: a.uncertain)
        if group is not None:
            groups[node.outputs[0]] = group
            continue
        for position, atom in enumerate(node.inputs):
            use(atom, (node.index, position))
        if elementwise_only and node.name not in elementwise.NAMES:
            roots = [groups[a].root if a in groups else a for a in node.inputs]
            mixing |= {slot for slot in (*node.inputs, *roots) if isinstance(slot, Slot)}
    for position, atom in enumerate(program.outputs):
        use(atom, ("output", position))
    several = {s for s, users in uses.items() if len(users) > 1}
    return (several | {root for root, reached in cores.items() if len(reached) > 1}) - mixing
