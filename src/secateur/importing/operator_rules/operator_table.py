"""The table of ONNX operators, and what their rules have in common.

A value is a NumPy array while it is known without the data (shapes, indices, constants), and a JAX
array otherwise. What is computed from known values alone is computed with NumPy at once, so that
shapes are plain integers while JAX traces the function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.importing.onnx_graph import OnnxError, OnnxGraph, OnnxNode

__all__ = ["OPERATORS", "OperatorCall", "operator"]

# Largest number of elements of an array that a file may ask for: a gigabyte of floats.
_LARGEST = 2**28

Rule = Callable[..., Any]
OPERATORS: dict[str, Rule] = {}


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """An operator that is being evaluated.

    Attributes:
        node: The node.
        run: Function that evaluates a graph among the node's attributes on values of its inputs.
        file_rows: Number of rows that the file was written for, or None for any.
        rows: Number of rows of the input.
        lengths: Lengths of the inputs' other axes where the file has one that is fixed and the
            data another: the file's and the data's.
    """

    node: OnnxNode
    run: Callable[[OnnxGraph, Sequence[Any]], list[Any]]
    file_rows: int | None = None
    rows: int | None = None
    lengths: dict[int, int] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Return the version of the operator set."""
        return self.node.version

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        return self.node.attributes.get(name, default)

    def choose(self, name: str, allowed: Sequence[Any], default: Any) -> Any:
        """Return an attribute that may only have some values.

        Raises:
            OnnxError: It has another value.
        """
        value = self.attribute(name, default)
        if value not in allowed:
            raise OnnxError(f"{name}={value!r}. Supported: {', '.join(map(repr, allowed))}.")
        return value

    def refuse(self, *names: str) -> None:
        """Refuse attributes that have an effect and are not supported."""
        for name in names:
            if self.attribute(name):
                raise OnnxError(f"the attribute {name!r} is not supported.")


def operator(*kinds: str) -> Callable[[Rule], Rule]:
    """Declare a function ``rule(call, *operands)`` as the rule of some operators."""

    def declare(rule: Rule) -> Rule:
        OPERATORS.update(dict.fromkeys(kinds, rule))
        return rule

    return declare


def is_known(*values: Any) -> bool:
    """Whether values are known while tracing (or left out)."""
    return all(v is None or isinstance(v, np.ndarray | np.generic) for v in values)


def numpy_for(*values: Any) -> Any:
    """Return the module that computes with these values: NumPy if all are known, else JAX's."""
    return np if is_known(*values) else jnp


def whole_numbers(value: Any, what: str) -> list[int]:
    """Return the elements of a known array of integers.

    Args:
        value: The array.
        what: Name of the value, for the message.

    Raises:
        OnnxError: It depends on the data.
    """
    if not is_known(value):
        raise OnnxError(f"{what} depends on the values of the data, which cannot be traced.")
    return [int(n) for n in np.ravel(value)]


def check_size(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape; refuse one whose arrays would not fit into memory."""
    sizes = tuple(int(n) for n in shape)
    if math.prod(sizes) > _LARGEST or any(n < 0 for n in sizes):
        raise OnnxError(f"an array of shape {sizes} is too large.")
    return sizes


def align(*values: Any) -> list[Any]:
    """Return arrays with equal numbers of axes, broadcast by ONNX's rules."""
    rank = max(np.ndim(v) for v in values)
    check_size(np.broadcast_shapes(*(np.shape(v) for v in values)))
    return [
        v if np.ndim(v) in (rank, 0) else v.reshape((1,) * (rank - np.ndim(v)) + tuple(v.shape))
        for v in values
    ]


def along(vector: Any, axis: int, rank: int) -> Any:
    """Return a vector as an array with other axes of length one."""
    return vector.reshape([-1 if a == axis else 1 for a in range(rank)])


def is_float(value: Any) -> bool:
    """Whether the elements are floating-point numbers."""
    return jnp.issubdtype(value.dtype, jnp.floating)


def same_type(*values: Any) -> list[Any]:
    """Return arrays of the one type that all of them can have."""
    dtype = jnp.result_type(*values)
    return [jnp.asarray(v, dtype) for v in values]


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    if not -rank <= axis < max(rank, 1):
        raise OnnxError(f"axis {axis} of an array with {rank} axes.")
    return axis + rank if axis < 0 else axis
