"""Elementwise equations that make one function of one uncertain value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from secateur.equations import Atom, Equation, Program, Slot, primitives


@dataclass(frozen=True)
class Group:
    """Elementwise equations that make one function of one uncertain value, in order."""

    root: Slot
    equations: tuple[Equation, ...]
    result: Slot

    @property
    def program(self) -> Program:
        """Return its equations as a function of the root."""
        return Program([self.root], [self.result], list(self.equations))


def univariate_group(equation: Equation, groups: dict[Slot, Group], is_uncertain) -> Group | None:
    """The group that ``equation`` extends, or None where it is not a function of one value only.

    Args:
        equation: the next equation.
        groups: the groups that end in earlier slots.
        is_uncertain: whether an atom is uncertain.
    """
    if equation.name not in primitives.UNIVARIATE:
        return None
    operands = [a for a in equation.inputs if isinstance(a, Slot) and is_uncertain(a)]
    parts = [groups.get(slot) or Group(slot, (), slot) for slot in operands]
    roots = {part.root for part in parts}
    if len(roots) != 1:
        return None
    root = parts[0].root
    result = equation.outputs[0]
    if any(slot.shape != result.shape for slot in operands) or root.shape != result.shape:
        return None
    members = {n.index: n for part in parts for n in part.equations}
    members[equation.index] = equation
    return Group(root, tuple(members[i] for i in sorted(members)), result)


def split_affine(group: Group) -> tuple[Slot, Slot]:
    """The ends of a group's nonlinear core: everything before and after is affine.

    Returns:
        ``(start, end)``; ``start is end`` where the whole group is affine up to there.
    """
    inside = {group.root, *(n.outputs[0] for n in group.equations)}

    def is_affine(equation: Equation) -> bool:
        return primitives.is_affine(equation.eqn, [a in inside for a in equation.inputs])

    start = group.root
    while start is not group.result:
        consumers = [n for n in group.equations if start in n.inputs]
        if len(consumers) != 1 or not is_affine(consumers[0]):
            break
        start = consumers[0].outputs[0]
    end = group.result
    producers = {n.outputs[0]: n for n in group.equations}
    while end is not start:
        equation = producers[end]
        operands = {a for a in equation.inputs if a in inside}
        if len(operands) != 1 or not is_affine(equation):
            break
        end = operands.pop()
    return start, end


def restrict(group: Group, start: Slot, end: Slot) -> Group:
    """The equations of ``group`` that lead from ``start`` to ``end``."""
    needed, kept = {end}, []
    for equation in reversed(group.equations):
        if equation.outputs[0] in needed and equation.outputs[0] is not start:
            kept.append(equation)
            needed.update(a for a in equation.inputs if isinstance(a, Slot))
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
        if not isinstance(atom, Slot) or not atom.tracked:
            return
        group = groups.get(atom)
        root, core = (atom, atom) if group is None else (group.root, split_affine(group)[1])
        uses.setdefault(core, set()).add((atom, user))
        cores.setdefault(root, set()).add(core)

    mixing: set[Slot] = set()
    for equation in program.equations:
        group = univariate_group(equation, groups, lambda a: a.tracked)
        if group is not None:
            groups[equation.outputs[0]] = group
            continue
        for position, atom in enumerate(equation.inputs):
            use(atom, (equation.index, position))
        if elementwise_only and equation.name not in primitives.UNIVARIATE:
            roots = [groups[a].root if a in groups else a for a in equation.inputs]
            mixing |= {slot for slot in (*equation.inputs, *roots) if isinstance(slot, Slot)}
    for position, atom in enumerate(program.outputs):
        use(atom, ("output", position))
    several = {s for s, users in uses.items() if len(users) > 1}
    return (several | {root for root, reached in cores.items() if len(reached) > 1}) - mixing
