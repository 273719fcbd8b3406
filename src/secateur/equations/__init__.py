"""A function's equations: read once, walked by one interpreter, with one table of primitives."""

from secateur.equations.interpreter import Interpreter, RuleTable
from secateur.equations.nodes import (
    Atom,
    Constant,
    Node,
    Program,
    Slot,
    read_program,
    trace_function,
    uniform_value,
)

__all__ = [
    "Atom",
    "Constant",
    "Interpreter",
    "Node",
    "Program",
    "RuleTable",
    "Slot",
    "read_program",
    "trace_function",
    "uniform_value",
]
