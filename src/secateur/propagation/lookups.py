"""Table look-ups at a place that is computed from an uncertain value, as functions of that value.

A spline or an interpolated table rounds an uncertain value to an integer, or searches for it, and
looks up numbers there. An integer has no Gaussian distribution, but the whole is a function of one
value, and is integrated as such.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from secateur.equations import Atom, Equation, Program, Slot, primitives, read_program
from secateur.equations.control_flow import Scan


def is_place(slot: Atom) -> bool:
    """Whether a value consists of integers or booleans."""
    return isinstance(slot, Slot) and np.dtype(slot.dtype).kind in "iub"


def is_lookup(equation: Equation, is_uncertain: Callable[[Atom], bool]) -> bool:
    """Whether an equation belongs to a look-up: each result depends on one element of each operand.

    These are a look-up of single numbers in a certain table, a search (a loop in which elements
    meet one by one), and axes of length one for the indices.
    """
    name, result = equation.name, equation.outputs[0]
    if name == "gather":
        table, places = equation.inputs
        shape = equation.params["slice_sizes"]
        single = set(shape) <= {1} and not equation.params["dimension_numbers"].offset_dims
        return single and not is_uncertain(table) and _wide(result.shape) == _shape(places)
    if name in ("broadcast_in_dim", "reshape"):
        (x,) = equation.inputs[:1]
        widened = _wide(_shape(x)) == result.shape
        places = equation.params.get("broadcast_dimensions", range(len(_shape(x))))
        return is_place(x) and widened and tuple(places) == tuple(range(len(_shape(x))))
    if name == "scan":
        parts = Scan.of(equation)
        alike = {slot.shape for slot in equation.outputs} == {result.shape}
        steps = read_program(*parts.body, [True] * len(equation.inputs)).equations
        known = all(step.name in primitives.IN_A_SEARCH for step in steps)
        stacked = len(equation.inputs) > parts.num_consts + parts.num_carry
        return alike and known and not stacked and all(map(is_place, equation.outputs))
    return False


def find_places(program: Program) -> frozenset[int]:
    """Return the numbers of the equations that make places in tables of uncertain values.

    Places and what is looked up there are not functions of one value, so the places are those of
    the means. What rounds a number to a place does so for all of its uses.
    """
    producers = {slot: n for n in program.equations for slot in n.outputs}
    found: set[int] = set()

    def mark(atom: Atom) -> None:
        producer = producers.get(atom) if isinstance(atom, Slot) and atom.tracked else None
        if producer is None or producer.index in found:
            return
        if all(map(is_place, producer.outputs)):
            found.add(producer.index)
            for operand in producer.inputs:
                mark(operand)
        elif producer.name in primitives.STEPS:
            found.add(producer.index)
        elif producer.name in primitives.UNIVARIATE:
            for operand in producer.inputs:
                mark(operand)

    for equation in program.equations:
        table, *places = equation.inputs or (None,)
        if equation.name in primitives.LOOKUPS and isinstance(table, Slot) and table.tracked:
            for place in filter(is_place, places):
                mark(place)
    # The same rounding may be written twice: once for the place, once for what is left of it.
    steps = {(n.name, n.inputs[0]) for n in program.equations if n.index in found and n.inputs}
    again = {n.index for n in program.equations if n.name in primitives.STEPS
             and (n.name, n.inputs[0]) in steps}  # fmt: skip
    return frozenset(found | again)


def keeps_columns(equation: Equation, root: Slot) -> bool:
    """Whether each result is a function of one element of a root, along axes where that has one.

    On the other axes, every element stays in its place.
    """
    rank = len(root.shape)
    fixed = {a for a, n in enumerate(root.shape) if n != 1}
    shapes = [_shape(a) for a in (*equation.inputs, *equation.outputs) if _shape(a) != ()]
    if not all(len(s) == rank and all(s[a] in (1, root.shape[a]) for a in fixed) for s in shapes):
        return False
    if any(slot.shape[a] != root.shape[a] for slot in equation.outputs for a in fixed):
        return False
    params = equation.params
    if equation.name == "pad":
        return all(tuple(params["padding_config"][a]) == (0, 0, 0) for a in fixed)
    moved = {"concatenate": "dimension", "split": "axis", "rev": "dimensions"}
    if equation.name in moved:
        return not fixed.intersection(np.atleast_1d(params[moved[equation.name]]).tolist())
    return equation.name == "slice" or equation.name not in (
        primitives.FIXED_MOVES | primitives.JOINS
    )


def _shape(atom: Atom) -> tuple[int, ...]:
    return atom.shape if isinstance(atom, Slot) else np.shape(atom.value)


def _wide(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 1)


def find_rounding(program: Program) -> frozenset[int]:
    """Return the numbers of the equations (floor, round …) whose result becomes an integer."""
    found: set[int] = set()
    wanted: set[Atom] = set()
    for equation in reversed(program.equations):
        result = equation.outputs[0]
        if equation.name == primitives.CONVERSION and is_place(result):
            wanted.update(equation.inputs)
        elif result in wanted and equation.name in primitives.STEPS:
            found.add(equation.index)
        elif result in wanted and equation.name in primitives.UNIVARIATE:
            wanted.update(equation.inputs)
    return frozenset(found)
