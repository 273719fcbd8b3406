"""How single operations are written in C, and which of the runtime's functions they call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from secateur.exports.graph import ExportError

__all__ = ["Writer", "literal"]

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gt": ">", "ge": ">=", "lt": "<",
          "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||"}  # fmt: skip
_CALLS = {
    "max": "max", "min": "min", "abs": "abs", "exp": "exp", "expm1": "expm1", "log": "log",
    "log1p": "log1p", "tanh": "tanh", "logistic": "sigmoid", "erf": "erf", "erfc": "erfc",
    "sin": "sin", "cos": "cos", "sqrt": "sqrt", "rsqrt": "rsqrt", "floor": "floor", "ceil": "ceil",
    "round": "round",
}  # fmt: skip
# Functions whose results are integers.
WHOLE = {"quantise", "requantise", "lookup", "tanh_q15", "sigmoid_q15"}
COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne", "and", "or", "xor", "not", "is_finite"}


def literal(value: float) -> str:
    """Return a number as a C constant of type float, exactly as rounded to float32."""
    number = np.float32(value)
    if np.isnan(number):
        return "(0.0f / 0.0f)"
    if np.isinf(number):
        return "(1.0f / 0.0f)" if number > 0 else "(-1.0f / 0.0f)"
    text = np.format_float_scientific(number, trim="0", exp_digits=1)
    plain = np.format_float_positional(number, trim="0")
    shortest = plain if len(plain) <= len(text) else text
    return f"{shortest}f"


class Writer:
    """Writes operations, and remembers the functions and tables that they need."""

    def __init__(self) -> None:
        self.functions: set[str] = set()
        self.tables: dict[str, str] = {}

    def call(self, name: str, *operands: str) -> str:
        """Return a call of a function of the runtime."""
        self.functions.add(name)
        return f"sc_{name}({', '.join(operands)})"

    def table(self, kind: str, values: Iterable) -> str:
        """Return the name of a constant table; equal ones are there once."""
        items = [str(v) for v in values]
        text = f"{kind} @[{len(items)}] = {{\n{wrapped(items)}\n}};"
        return self.tables.setdefault(text, f"table_{len(self.tables)}")

    def declared_tables(self) -> list[str]:
        """Return the declarations of all tables."""
        return [f"static const {t.replace('@', name, 1)}" for t, name in self.tables.items()]

    def apply(
        self,
        op: str,
        operands: Sequence[str],
        attributes: Mapping[str, Any],
        constants: Sequence[float | None],
    ) -> str:
        """Return the expression of one elementwise function.

        Args:
            op: its name in the graph.
            operands: as C expressions that need no brackets: names, elements, constants.
            attributes: what the function needs beside operands.
            constants: the values of the operands where they are known, else None.
        """
        if op in ("max", "min") and any(k is not None for k in constants):
            # Against a constant one comparison is enough; a nan stays one.
            a, b = operands if constants[1] is not None else reversed(operands)
            return f"{a} {'<' if op == 'max' else '>'} {b} ? {b} : {a}"
        if op in _INFIX:
            return f"{operands[0]} {_INFIX[op]} {operands[1]}"
        if op in _CALLS:
            return self.call(_CALLS[op], *operands)
        if op == "select_n":
            which, no, yes = operands
            return f"{which} ? {yes} : {no}"
        if op == "neg":
            return f"-{operands[0]}"
        if op == "not":
            return f"!{operands[0]}"
        if op == "is_finite":
            return f"{operands[0]} - {operands[0]} == 0.0f"
        if op == "xor":
            return f"{operands[0]} != {operands[1]}"
        if op == "square":
            return f"{operands[0]} * {operands[0]}"
        if op == "integer_pow":
            return self.call("powi", operands[0], str(attributes["y"]))
        if op == "clamp":
            low, x, high = operands
            return f"{x} < {low} ? {low} : {x} > {high} ? {high} : {x}"
        if op == "sign":
            (x,) = operands
            return f"(float)(({x} > 0.0f) - ({x} < 0.0f))"
        if op in (*WHOLE, "dequantise"):
            return self._integers(op, operands[0], attributes)
        raise ExportError(
            f"the function '{op}' cannot be written in C. Supported: {', '.join(sorted(_CALLS))}, "
            "comparisons and arithmetic."
        )

    def _integers(self, op: str, x: str, attributes: Mapping[str, Any]) -> str:
        if op == "dequantise":
            return f"(float){x} * {literal(attributes['scale'])}"
        if op == "quantise":
            limits = (literal(attributes[k]) for k in ("inverse", "low", "high"))
            return self.call("quantise", x, *limits)
        if op == "requantise":
            numbers = (str(attributes[k]) for k in ("multiplier", "shift", "low", "high"))
            return self.call("requantise", x, *numbers)
        if op == "lookup":
            return self.call("lookup_int16", self.table("int16_t", attributes["table"]), x)
        return self.call(op, f"(int16_t){x}")


def wrapped(items: Sequence[str], width: int = 96) -> str:
    """Return items of an array in indented lines."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([*lines, line]).rstrip(",")
