"""Elementwise functions as ONNX operators; some need several, chosen so that no digits are lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from secateur.exports.graph import Constant, ExportError, Node

if TYPE_CHECKING:
    from secateur.exports.onnx.writer import Writer

__all__ = ["write_elementwise"]

_LARGEST = float(np.finfo(np.float32).max)
_SAME = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "max": "Max",
    "min": "Min", "abs": "Abs", "sign": "Sign", "gt": "Greater", "ge": "GreaterOrEqual",
    "lt": "Less", "le": "LessOrEqual", "eq": "Equal", "and": "And", "or": "Or", "not": "Not",
    "xor": "Xor", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "erf": "Erf",
    "sin": "Sin", "cos": "Cos", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "atan": "Atan",
    "pow": "Pow", "sqrt": "Sqrt", "floor": "Floor", "ceil": "Ceil", "round": "Round",
}  # fmt: skip


def write_elementwise(writer: Writer, node: Node, operands: list[str]) -> str:
    """Add the operators of a step; returns the name of the result."""
    zeros = [isinstance(a, Constant) and a.number == 0 for a in node.inputs]
    if node.op == "max" and any(zeros):
        return writer.op("Relu", [operands[1 - zeros.index(True)]])
    if node.op in _SAME:
        return writer.op(_SAME[node.op], operands)
    compose = _COMPOSED.get(node.op)
    if compose is None or (node.op == "select_n" and len(operands) != 3):
        raise ExportError(f"'{node.op}' cannot be written as ONNX ({node.where}).")
    return compose(writer, node, *operands)


def _power(w: Writer, node: Node, x: str) -> str:
    exponent = node.attributes["y"]
    size = abs(exponent)
    if size > 4:
        return w.op("Pow", [x, w.number(exponent)])
    if size == 0:
        raise ExportError(f"a power of 0 cannot be written as ONNX ({node.where}).")
    powers = {1: x}
    for n in range(2, size + 1):
        powers[n] = w.op("Mul", [powers[n - n // 2], powers[n // 2]])
    return powers[size] if exponent > 0 else w.op("Reciprocal", [powers[size]])


def _expm1(w: Writer, node: Node, x: str) -> str:
    """eˣ − 1 = tanh(x/2) (eˣ + 1), which keeps its digits near 0."""
    half = w.op("Tanh", [w.op("Mul", [x, w.number(0.5)])])
    return w.op("Mul", [half, w.op("Add", [w.op("Exp", [x]), w.number(1)])])


def _log1p(w: Writer, node: Node, x: str) -> str:
    """ln(1 + x) = 2 artanh(x / (2 + x)), which keeps its digits near 0; plainly beyond 1."""
    ratio = w.op("Div", [x, w.op("Add", [x, w.number(2)])])
    near = w.op("Mul", [w.op("Atanh", [ratio]), w.number(2)])
    far = w.op("Log", [w.op("Add", [x, w.number(1)])])
    return w.op("Where", [w.op("Greater", [x, w.number(1)]), far, near])


def _cbrt(w: Writer, node: Node, x: str) -> str:
    root = w.op("Pow", [w.op("Abs", [x]), w.number(1 / 3)])
    return w.op("Mul", [w.op("Sign", [x]), root])


_COMPOSED: dict[str, Callable[..., str]] = {
    "ne": lambda w, node, x, y: w.op("Not", [w.op("Equal", [x, y])]),
    "exp2": lambda w, node, x: w.op("Exp", [w.op("Mul", [x, w.number(math.log(2))])]),
    "expm1": _expm1,
    "log1p": _log1p,
    "erfc": lambda w, node, x: w.op("Sub", [w.number(1), w.op("Erf", [x])]),
    "square": lambda w, node, x: w.op("Mul", [x, x]),
    "integer_pow": _power,
    "rsqrt": lambda w, node, x: w.op("Reciprocal", [w.op("Sqrt", [x])]),
    "cbrt": _cbrt,
    "clamp": lambda w, node, low, x, high: w.op("Min", [w.op("Max", [x, low]), high]),
    "is_finite": lambda w, node, x: w.op("LessOrEqual", [w.op("Abs", [x]), w.number(_LARGEST)]),
    "select_n": lambda w, node, which, no, yes: w.op("Where", [which, yes, no]),
}
