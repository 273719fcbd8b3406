"""Elementwise equations that make one function of one uncertain value."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any

import jax

from secateur.equations import Atom, Equation, Program, Slot, compat, primitives, read_program
from secateur.propagation.lookups import find_rounding, is_lookup, is_place, keeps_columns


@dataclass(frozen=True)
class UnivariateGroup:
    """Elementwise equations that form a function of one uncertain value, in order."""

    root: Slot
    equations: tuple[Equation, ...]
    result: Slot

    @property
    def program(self) -> Program:
        """Return its equations as a function of the root."""
        return Program([self.root], [self.result], list(self.equations))


def extend_group(
    equation: Equation,
    groups: dict[Slot, UnivariateGroup],
    is_uncertain: Callable[[Any], bool],
    rounding: frozenset[int] = frozenset(),
    spread: Container[Slot] = frozenset(),
) -> UnivariateGroup | None:
    """The group that ``equation`` extends, or None where it is not a function of one value only.

    Args:
        equation: The next equation.
        groups: The groups that end in earlier slots.
        is_uncertain: Whether an atom is uncertain.
        rounding: Numbers of the equations of steps that are part of a look-up.
        spread: Roots of groups that may have several results for each element; see `find_spread`.

    Returns:
        The group that ends in the first result; the groups of other results differ only in their
        end.
    """
    elementwise = equation.name in primitives.UNIVARIATE or equation.index in rounding
    moves = equation.name in primitives.FIXED_MOVES | primitives.JOINS
    if not elementwise and not moves and not is_lookup(equation, is_uncertain):
        return None
    operands = [a for a in equation.inputs if isinstance(a, Slot) and is_uncertain(a)]
    parts = [groups.get(slot) or UnivariateGroup(slot, (), slot) for slot in operands]
    roots = {part.root for part in parts}
    if len(roots) != 1:
        return None
    root = parts[0].root
    if is_place(root):
        return None
    result = equation.outputs[0]
    if not (root in spread and (elementwise or moves) and keeps_columns(equation, root)):
        if elementwise and any(slot.shape != result.shape for slot in operands):
            return None
        if moves and not is_lookup(equation, is_uncertain):
            return None
        wide = is_place(result) and result.shape == (*root.shape, 1)  # an index into a table
        if root.shape != result.shape and not wide:
            return None
    members = {n.index: n for part in parts for n in part.equations}
    members[equation.index] = equation
    return UnivariateGroup(root, tuple(members[i] for i in sorted(members)), result)


def find_spread(program: Program, rounding: frozenset[int]) -> set[Slot]:
    """Return the roots of functions with several results for each element of their root.

    An example is the basis of a B-spline: x is compared with all knots along an axis on which it
    has length one, and there the results are put together. Only comparisons need this. What other
    functions make along such an axis are values of their own, one for each place.
    """
    groups: dict[Slot, UnivariateGroup] = {}
    roots: set[Slot] = set()
    if not any(_widens(n) for n in program.equations if n.name in primitives.COMPARISONS):
        return roots
    for equation in program.equations:
        group = extend_group(equation, groups, _is_tracked, rounding, _Everything())
        if group is None:
            continue
        groups.update((slot, replace(group, result=slot)) for slot in equation.outputs)
        if equation.name in primitives.COMPARISONS and group.result.shape != group.root.shape:
            roots.add(group.root)
    return roots


def _widens(equation: Equation) -> bool:
    tracked = [a for a in equation.inputs if isinstance(a, Slot) and a.tracked]
    return any(slot.shape != equation.outputs[0].shape for slot in tracked)


class _Everything:
    def __contains__(self, item: object) -> bool:
        return True


def _is_tracked(atom: Atom) -> bool:
    return isinstance(atom, Slot) and atom.tracked


def split_affine(group: UnivariateGroup) -> tuple[Slot, Slot]:
    """The ends of a group's nonlinear core: everything before and after is affine.

    Returns:
        ``(start, end)``; ``start is end`` where the whole group is affine up to there.
    """
    inside = {group.root, *(s for n in group.equations for s in n.outputs)}

    def is_affine(equation: Equation) -> bool:
        return primitives.is_affine(equation.eqn, [a in inside for a in equation.inputs])

    start = group.root
    while start is not group.result:
        consumers = [n for n in group.equations if start in n.inputs]
        if len(consumers) != 1 or not is_affine(consumers[0]):
            break
        if consumers[0].outputs[0].shape != start.shape:
            break
        start = consumers[0].outputs[0]
    end = group.result
    producers = {s: n for n in group.equations for s in n.outputs}
    while end is not start:
        equation = producers[end]
        operands = {a for a in equation.inputs if a in inside}
        if len(operands) != 1 or not is_affine(equation):
            break
        if {slot.shape for slot in operands} != {end.shape}:
            break
        end = operands.pop()
    return start, end


def restrict_group(group: UnivariateGroup, start: Slot, end: Slot) -> UnivariateGroup:
    """The equations of ``group`` that lead from ``start`` to ``end``."""
    needed, kept = {end}, []
    for equation in reversed(group.equations):
        if needed.intersection(equation.outputs) and equation.outputs[0] is not start:
            kept.append(equation)
            needed.update(a for a in equation.inputs if isinstance(a, Slot))
    return UnivariateGroup(start, tuple(reversed(kept)), end)


def find_logarithm(group: UnivariateGroup) -> Equation | None:
    """Return the logarithm of the root, or of its size, if all of a group is a function of it."""
    for equation in group.equations:
        users = [n for n in group.equations if equation.inputs[0] in n.inputs]
        if equation.name not in ("abs", "log") or len(users) != 1:
            return None
        if equation.name == "log":
            rest = restrict_group(group, equation.outputs[0], group.result)
            return None if any(group.root in n.inputs for n in rest.equations) else equation
    return None


def as_number(group: UnivariateGroup, dtype: Any) -> UnivariateGroup:
    """Return a group that ends in truth values, with their conversion to numbers at its end."""
    last = group.equations[-1]
    truth = jax.ShapeDtypeStruct(group.result.shape, bool)
    jaxpr, _ = compat.trace(lambda b: b.astype(dtype), truth)
    (equation,) = read_program(jaxpr, [], [True]).equations
    equation = replace(equation, index=last.index + 1, inputs=(group.result,), where=last.where)
    return UnivariateGroup(group.root, (*group.equations, equation), equation.outputs[0])


def shared_slots(program: Program, *, elementwise_only: bool = False) -> set[Slot]:
    """Slots whose uncertainty reaches several places, so that those are correlated.

    Args:
        program: Flat equations.
        elementwise_only: Whether to leave out slots that are used by other than elementwise
            equations.
    """
    groups: dict[Slot, UnivariateGroup] = {}
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
    rounding = find_rounding(program)
    spread = find_spread(program, rounding)
    for equation in program.equations:
        group = extend_group(equation, groups, _is_tracked, rounding, spread)
        if group is not None:
            groups.update((slot, replace(group, result=slot)) for slot in equation.outputs)
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
