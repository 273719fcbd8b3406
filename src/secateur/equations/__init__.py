"""A function's equations: read once, walked by one interpreter, with one table of primitives."""

from secateur.equations.interpreter import Interpreter, RuleTable
from secateur.equations.tracing import (
    Atom,
    Equation,
    KnownValue,
    Program,
    Slot,
    read_program,
    trace_function,
    uniform_value,
)

__all__ = [
    "Atom",
    "Equation",
    "Interpreter",
    "KnownValue",
    "Program",
    "RuleTable",
    "Slot",
    "read_program",
    "trace_function",
    "uniform_value",
]
