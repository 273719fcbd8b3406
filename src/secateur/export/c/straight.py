"""Straight-line code: every number that is needed is computed by a line of its own."""

from __future__ import annotations

from secateur.export.c.expressions import COMPARISONS, Writer, literal
from secateur.export.c.scalars import Scalar, Straight

__all__ = ["write_straight"]


def write_straight(program: Straight, writer: Writer, states: dict[int, str]) -> list[str]:
    """Return the statements that compute the outputs and the states.

    Args:
        program: what to compute.
        writer: takes note of the functions that are called.
        states: for each state its place in C, as it is read and written.
    """
    names: dict[Scalar, str] = {}
    lines: list[str] = []
    temporaries = 0
    for scalar in program.steps:
        if scalar.op == "x":
            names[scalar] = f"x[{scalar.detail}]"
        elif scalar.op == "s":
            names[scalar] = states[scalar.detail]
        elif scalar.op == "number":
            names[scalar] = literal(scalar.detail)
        else:
            name = f"t{temporaries}"
            temporaries += 1
            kind = "int" if scalar.op in COMPARISONS else "float"
            lines.append(f"const {kind} {name} = {_expression(scalar, names, writer)};")
            names[scalar] = name
    results = [f"y[{i}] = {names[scalar]};" for i, scalar in enumerate(program.outputs)]
    # Written last, for all that is read above is the state before.
    kept = [
        f"{states[i]} = {names[after]};"
        for i, after in program.states.items()
        if names[after] != states[i]
    ]
    return [*lines, *results, *_in_safe_order(kept)]


def _in_safe_order(assignments: list[str]) -> list[str]:
    """Copies from one state to another must see the old value: through temporaries, if any."""
    targets = {line.split(" = ")[0] for line in assignments}
    reads = [line.split(" = ")[1].rstrip(";") for line in assignments]
    if not targets.intersection(reads):
        return assignments
    saved = [f"const float old{i} = {source};" for i, source in enumerate(reads)]
    stored = [f"{line.split(' = ')[0]} = old{i};" for i, line in enumerate(assignments)]
    return [*saved, *stored]


def _expression(scalar: Scalar, names: dict[Scalar, str], writer: Writer) -> str:
    operands = [names[a] for a in scalar.args]
    if scalar.op != "sum":
        return writer.apply(
            scalar.op, operands, dict(scalar.detail or ()), [a.known for a in scalar.args]
        )
    weights, constant = scalar.detail
    text = literal(constant) if constant else ""
    for weight, operand in zip(weights, operands, strict=True):
        size = "" if abs(weight) == 1 else f"{literal(abs(weight))} * "
        sign = "-" if weight < 0 else "+"
        text += (
            f" {sign} {size}{operand}" if text else f"{'-' if weight < 0 else ''}{size}{operand}"
        )
    return text
