"""Writing C code: lines and loops, single operations, constants and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from secateur.exports.graph import ExportError

__all__ = ["Arena", "CodeLines", "ExpressionWriter", "format_index", "format_number"]


class CodeLines:
    """Lines of code, indented by their enclosing blocks."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0
        self._loops = 0

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self._depth + text)

    def comment(self, text: str) -> None:
        """Add a comment, escaping comment ends inside it."""
        self.line(f"/* {text.replace('*/', '* /')} */")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Open a block in braces and indent the lines in it."""
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def loops(self, shape: Sequence[int], letter: str = "i") -> Iterator[list[str]]:
        """Open loops over all indices of a shape; axes of length 1 need none."""
        names, opened = [], 0
        for n in shape:
            if n == 1:
                names.append("0")
                continue
            name = f"{letter}{self._loops}"
            self._loops += 1
            self.line(f"for (int {name} = 0; {name} < {n}; ++{name}) {{")
            self._depth += 1
            opened += 1
            names.append(name)
        if not opened:  # separate braces, so that names inside cannot clash
            self.line("{")
            self._depth += 1
        yield names
        for _ in range(max(opened, 1)):
            self._depth -= 1
            self.line("}")


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of an array in memory, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return strides[::-1]


def format_index(names: Sequence[str], strides: Sequence[int], offset: int = 0) -> str:
    """Return the expression of an index into memory."""
    parts = [
        name if stride == 1 else f"{name} * {stride}"
        for name, stride in zip(names, strides, strict=True)
        if name != "0" and stride != 0
    ]
    if offset or not parts:
        parts.append(str(offset))
    return " + ".join(parts)


def collapse_axes(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Merge axes that are contiguous in all operands."""
    sizes: list[int] = []
    joined: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        steps = [s[axis] for s in strides]
        if n == 1:
            continue
        if sizes and all(mine[-1] == step * n for mine, step in zip(joined, steps, strict=True)):
            sizes[-1] *= n
            for mine, step in zip(joined, steps, strict=True):
                mine[-1] = step
        else:
            sizes.append(n)
            for mine, step in zip(joined, steps, strict=True):
                mine.append(step)
    return sizes, joined


class Arena:
    """One array that is shared by all intermediate results."""

    def __init__(self) -> None:
        self.size = 0
        self._taken: dict[int, int] = {}

    def reserve(self, length: int) -> int:
        """Reserve the first free piece that is long enough, and return its start."""
        start = 0
        for begin, size in sorted(self._taken.items()):
            if begin - start >= length:
                break
            start = max(start, begin + size)
        self._taken[start] = length
        self.size = max(self.size, start + length)
        return start

    def free(self, start: int) -> None:
        """Release a piece."""
        del self._taken[start]


def count_elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return int(np.prod(shape, dtype=int))


_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gt": ">", "ge": ">=", "lt": "<",
          "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||"}  # fmt: skip
_CALLS = {
    "max": "max", "min": "min", "abs": "abs", "exp": "exp", "expm1": "expm1", "log": "log",
    "log1p": "log1p", "asinh": "asinh", "tanh": "tanh", "logistic": "sigmoid", "erf": "erf",
    "erfc": "erfc", "sin": "sin", "cos": "cos", "sqrt": "sqrt", "rsqrt": "rsqrt", "floor": "floor",
    "ceil": "ceil", "round": "round",
}  # fmt: skip
# Functions whose results are integers.
WHOLE = {"quantise", "requantise", "lookup", "tanh_q15", "sigmoid_q15"}
COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne", "and", "or", "xor", "not", "is_finite"}


def format_number(value: float) -> str:
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


class ExpressionWriter:
    """Writes operations, and collects the functions and tables that they need."""

    def __init__(self) -> None:
        self.functions: set[str] = set()
        self.tables: dict[str, str] = {}

    def call(self, name: str, *operands: str) -> str:
        """Return a call of a function of the runtime."""
        self.functions.add(name)
        return f"sc_{name}({', '.join(operands)})"

    def table(self, kind: str, values: Iterable) -> str:
        """Return the name of a constant table; equal tables are stored once."""
        items = [str(v) for v in values]
        text = f"{kind} @[{len(items)}] = {{\n{wrap_items(items)}\n}};"
        return self.tables.setdefault(text, f"table_{len(self.tables)}")

    def declare_tables(self) -> list[str]:
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
            op: Name of the function in the graph.
            operands: Operands as C expressions that need no brackets: names, elements, constants.
            attributes: Parameters of the function.
            constants: Values of the operands where they are known, else None.
        """
        if op in ("max", "min") and any(k is not None for k in constants):
            # For a constant one comparison is enough; nan stays nan.
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
            return f"(float){x} * {format_number(attributes['scale'])}"
        if op == "quantise":
            limits = (format_number(attributes[k]) for k in ("inverse", "low", "high"))
            return self.call("quantise", x, *limits)
        if op == "requantise":
            numbers = (str(attributes[k]) for k in ("multiplier", "shift", "low", "high"))
            return self.call("requantise", x, *numbers)
        if op == "lookup":
            return self.call("lookup_int16", self.table("int16_t", attributes["table"]), x)
        return self.call(op, f"(int16_t){x}")


def wrap_items(items: Sequence[str], width: int = 96) -> str:
    """Return items of an array in indented lines."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([*lines, line]).rstrip(",")
