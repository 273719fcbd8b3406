"""The form from which all exports start: a model function as a list of steps with known weights.

The steps are the function's own equations, in a smaller vocabulary:

- elementwise functions by JAX's names (`ELEMENTWISE`), with operands of equal rank, where axes of
  length 1 are broadcast;
- `linear`: x Wᵀ + b over the last axis; `conv`: a convolution; `pool`: a maximum or sum in windows;
- `matmul`: products of two computed arrays, matrix by matrix;
- `gather`: rows of a known table, by number;
- `reduce`: sum, maximum … over axes;
- `reshape`, `transpose`, `slice`, `reverse`, `concatenate`, `pad`, `expand`: moving elements;
- `recurrent`: a loop over the first axis, whose body is a graph itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ELEMENTWISE", "PRODUCTS", "Constant", "ExportError", "Graph", "Node", "Origin",
           "StateVariable", "Value"]  # fmt: skip

ELEMENTWISE = {
    "add", "sub", "mul", "div", "neg", "max", "min", "abs", "clamp", "select_n", "sign", "gt", "ge",
    "lt", "le", "eq", "ne", "and", "or", "not", "xor", "exp", "exp2", "expm1", "log", "log1p",
    "tanh", "logistic", "erf", "erfc", "sin", "cos", "sinh", "cosh", "asinh", "atan", "square",
    "integer_pow", "pow", "sqrt", "rsqrt", "cbrt", "floor", "ceil", "round", "is_finite",
    # in quantised graphs:
    "quantise", "requantise", "dequantise", "lookup", "tanh_q15", "sigmoid_q15",
}  # fmt: skip


# Steps with weights.
PRODUCTS = ("linear", "conv")


class ExportError(ValueError):
    """A model or an option that cannot be exported. The message says why, and what is supported."""


class Value:
    """A placeholder for one intermediate result; compared by identity."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)

    def __repr__(self) -> str:
        return f"<{self.dtype} {self.shape}>"


@dataclass(frozen=True, eq=False)
class Origin:
    """The model parameter behind each element of an array, and a constant factor.

        value = factor · parameter

    Attributes:
        leaf: Number of the leaf among the model's arrays; -1 where there is none.
        place: Index of the element in that leaf, flattened.
        factor: Constant factor.
    """

    leaf: np.ndarray
    place: np.ndarray
    factor: np.ndarray

    @classmethod
    def of_leaf(cls, number: int, shape: tuple[int, ...]) -> Origin:
        """Return the origin of a whole leaf."""
        place = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
        return cls(np.full(shape, number), place, np.ones(shape))

    @classmethod
    def nowhere(cls, shape: tuple[int, ...]) -> Origin:
        """Return the origin of an array that holds no parameters."""
        return cls(np.full(shape, -1), np.zeros(shape, int), np.zeros(shape))

    def move(self, change: Callable[[np.ndarray], np.ndarray]) -> Origin:
        """Return the origin of an array whose elements were moved."""
        return Origin(change(self.leaf), change(self.place), change(self.factor))

    def scale(self, factor: np.ndarray | float) -> Origin:
        """Return the origin of the array times a constant that broadcasts with it."""
        shape = np.broadcast_shapes(self.factor.shape, np.shape(factor))
        spread = self.move(lambda a: np.broadcast_to(a, shape))
        return Origin(spread.leaf, spread.place, spread.factor * factor)


@dataclass(frozen=True, eq=False)
class Constant:
    """A known array.

    Attributes:
        array: The elements; axes along which they do not change have length 1.
        shape: Shape of the whole array.
        origin: Origins of the elements, as an array of the whole shape, or None.
    """

    array: np.ndarray
    shape: tuple[int, ...]
    origin: Origin | None = None

    @classmethod
    def of(cls, values: Any, origin: Origin | None = None) -> Constant:
        """Make a constant from any array, in its smallest form."""
        array = np.asarray(values)
        shape = array.shape
        for axis, length in enumerate(shape):
            first = array.take([0], axis) if length > 1 else array
            if length > 1 and np.array_equal(np.broadcast_to(first, array.shape), array):
                array = first
        return cls(array, shape, origin)

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype."""
        return self.array.dtype

    def full(self) -> np.ndarray:
        """Return the array in its full shape."""
        return np.broadcast_to(self.array, self.shape)

    @property
    def number(self) -> float | None:
        """Return the value if all elements are equal, or None."""
        return float(self.array.reshape(())) if self.array.size == 1 else None


Atom = Value | Constant


@dataclass(eq=False)
class Node:
    """One step.

    Attributes:
        op: Name of the operation.
        inputs: Operands.
        outputs: Results; one, except for `recurrent`.
        attributes: Parameters of the operation. `linear` and `conv` have `weights`, `bias` and the
            `origin` of the weights, each an array or None.
        where: The corresponding line of the user's code, for messages.
    """

    op: str
    inputs: list[Atom]
    outputs: list[Value]
    attributes: dict[str, Any] = field(default_factory=dict)
    where: str = ""

    @property
    def output(self) -> Value:
        """Return the only result."""
        (value,) = self.outputs
        return value


@dataclass(eq=False)
class StateVariable:
    """A state that a recurrent network carries from one frame to the next.

    Attributes:
        before: Value before a frame.
        after: Value after the frame.
        initial: Array before the first frame.
    """

    before: Value
    after: Atom
    initial: np.ndarray


@dataclass(eq=False)
class Graph:
    """Steps in topological order.

    Attributes:
        inputs: Input values.
        outputs: Results.
        nodes: The steps.
        states: State between calls, for a network that takes one frame at a time.
    """

    inputs: list[Value]
    outputs: list[Atom]
    nodes: list[Node]
    states: list[StateVariable] = field(default_factory=list)

    def products(self) -> list[Node]:
        """Return the steps with weights."""
        return [node for node in self.nodes if node.op in PRODUCTS]

    def results(self) -> Iterator[Atom]:
        """Yield all values that must be computed."""
        yield from self.outputs
        yield from (state.after for state in self.states)

    def users(self) -> dict[Value, list[Node]]:
        """Return, for every value, the steps that read it."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for atom in dict.fromkeys(a for a in node.inputs if isinstance(a, Value)):
                users.setdefault(atom, []).append(node)
        return users

    def replace(self, old: Value, new: Atom) -> None:
        """Replace a value by another one wherever it is read."""
        for node in self.nodes:
            node.inputs = [new if a is old else a for a in node.inputs]
        self.outputs = [new if a is old else a for a in self.outputs]
        for state in self.states:
            state.after = new if state.after is old else state.after

    def drop_unread(self) -> None:
        """Remove steps whose results are not read."""
        needed = {a for a in self.results() if isinstance(a, Value)}
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                kept.append(node)
                needed.update(a for a in node.inputs if isinstance(a, Value))
        self.nodes = kept[::-1]
