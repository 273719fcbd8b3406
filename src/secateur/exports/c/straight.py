"""Straight-line code: every number that is needed is computed by a line of its own."""

from __future__ import annotations

from secateur.exports.c.expressions import COMPARISONS, WHOLE, Writer, literal
from secateur.exports.c.scalars import Scalar, Straight

__all__ = ["write_straight"]


def write_straight(
    program: Straight, writer: Writer, states: dict[int, str], state_kind: str = "float"
) -> list[str]:
    """Return the statements that compute the outputs and the states.

    Args:
        program: what to compute.
        writer: takes note of the functions that are called.
        states: for each state its place in C, as it is read and written.
        state_kind: the C type of a state.
    """
    names: dict[Scalar, str] = {}
    whole = _whole_numbers(program, state_kind)
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
            kind = "int32_t" if scalar in whole else "float"
            text = _expression(scalar, names, whole, writer)
            lines.append(f"const {kind} {name} = {text};")
            names[scalar] = name
    results = [f"y[{i}] = {names[scalar]};" for i, scalar in enumerate(program.outputs)]
    # Written last, for all that is read above is the state before.
    cast = "" if state_kind == "float" else f"({state_kind})"
    kept = [
        f"{states[i]} = {cast}{names[after]};"
        for i, after in program.states.items()
        if names[after] != states[i]
    ]
    return [*lines, *results, *_in_safe_order(kept, state_kind)]


def _in_safe_order(assignments: list[str], kind: str) -> list[str]:
    """Copies from one state to another must see the old value: through temporaries, if any."""
    targets = {line.split(" = ")[0] for line in assignments}
    reads = [line.split(" = ")[1].rstrip(";") for line in assignments]
    if not targets.intersection(reads):
        return assignments
    saved = [f"const {kind} old{i} = {source};" for i, source in enumerate(reads)]
    stored = [f"{line.split(' = ')[0]} = old{i};" for i, line in enumerate(assignments)]
    return [*saved, *stored]


def _whole_numbers(program: Straight, state_kind: str) -> set[Scalar]:
    """The expressions that are integers: functions with such results, and arithmetic of those."""
    whole: set[Scalar] = set()
    for scalar in program.steps:
        if scalar.op == "s":
            is_whole = state_kind != "float"
        elif scalar.op in COMPARISONS or scalar.op in WHOLE:
            is_whole = True
        elif scalar.op in ("x", "number", "dequantise"):
            is_whole = False
        else:
            values = [a for a in scalar.args if a.known is None]
            is_whole = all(a in whole for a in values)
            if scalar.op == "select_n":
                values = [a for a in scalar.args[1:] if a.known is None]
                is_whole = bool(values) and all(a in whole for a in values)
        if is_whole:
            whole.add(scalar)
    return whole


def _expression(
    scalar: Scalar, names: dict[Scalar, str], whole: set[Scalar], writer: Writer
) -> str:
    compared = scalar.op in COMPARISONS and all(a in whole for a in scalar.args if a.known is None)
    integral = compared or (scalar in whole and scalar.op not in COMPARISONS)
    number = _integer if integral else literal
    operands = [names[a] if a.known is None else number(a.known) for a in scalar.args]
    if scalar.op in ("max", "min") and integral:
        a, b = operands
        return f"{a} {'>' if scalar.op == 'max' else '<'} {b} ? {a} : {b}"
    if scalar.op != "sum":
        return writer.apply(
            scalar.op, operands, dict(scalar.detail or ()), [a.known for a in scalar.args]
        )
    weights, constant = scalar.detail
    text = number(constant) if constant else ""
    for weight, operand in zip(weights, operands, strict=True):
        size = "" if abs(weight) == 1 else f"{number(abs(weight))} * "
        sign = "-" if weight < 0 else "+"
        text += (
            f" {sign} {size}{operand}" if text else f"{'-' if weight < 0 else ''}{size}{operand}"
        )
    return text


def _integer(value: float) -> str:
    return str(round(value))
