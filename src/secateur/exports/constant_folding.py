"""Evaluation of equations with known operands while a function is lowered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from secateur.equations import Equation, compat
from secateur.exports.graph import ELEMENTWISE, Atom, Constant, ExportError, Origin

__all__ = ["evaluate_known", "to_numbers"]


def to_numbers(value: Any) -> np.ndarray:
    """Return a value as a NumPy array."""
    if isinstance(value, jax.core.Tracer):
        raise ExportError("the model function cannot be exported from inside another JAX function.")
    dtype = getattr(value, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        raise ExportError("the model draws random numbers, which cannot be exported.")
    return np.asarray(value)


def evaluate_known(node: Equation, operands: list[Constant]) -> list[Atom]:
    """Evaluate an equation of known operands, keeping track of their origin in the parameters."""
    out = node.outputs[0]
    if node.name == "broadcast_in_dim":  # the array is not expanded
        (x,) = operands
        origin = x.origin and x.origin.move(lambda a: _broadcast(node, a))
        return [Constant(_expand(node, x.array), out.shape, origin)]
    if node.name in _MOVES:
        arrays = _MOVES[node.name](node, [a.full() for a in operands])
        origins: list[Origin | None] = [None] * len(arrays)
        if any(a.origin for a in operands):
            tags = [a.origin or Origin.nowhere(a.shape) for a in operands]
            parts = [
                _MOVES[node.name](node, [getattr(t, part) for t in tags])
                for part in ("leaf", "place", "factor")
            ]
            origins = [Origin(*columns) for columns in zip(*parts, strict=True)]
        return [Constant.of(a, origin) for a, origin in zip(arrays, origins, strict=True)]
    if node.name in ELEMENTWISE or node.name == "convert_element_type":
        compact = np.broadcast_shapes(*(a.array.shape for a in operands))
        arrays = [np.broadcast_to(a.array, compact) for a in operands]
        (result,) = compat.bind(node.eqn, *arrays)
        array = np.asarray(result).reshape(compact or (1,) * len(out.shape))
        return [Constant(array, out.shape, _trace_origin(node, operands))]
    results = compat.bind(node.eqn, *(a.full() for a in operands))
    return [Constant.of(to_numbers(r)) for r in results]


def _trace_origin(node: Equation, operands: list[Constant]) -> Origin | None:
    """Return the origin of an elementwise equation's result, if it has a single one."""
    tagged = [a.origin for a in operands if a.origin is not None]
    if not tagged:
        return None
    if node.name == "select_n":
        which, *cases = operands
        origins = [a.origin or Origin.nowhere(a.shape) for a in cases]
        index = np.broadcast_to(which.full().astype(int), node.outputs[0].shape)
        leaf, place, factor = (
            np.choose(index, [getattr(o, part) for o in origins])
            for part in ("leaf", "place", "factor")
        )
        return Origin(leaf, place, factor)
    first = operands[0].origin
    if node.name == "convert_element_type":
        return first if np.dtype(node.outputs[0].dtype).kind == "f" else None
    if node.name == "neg" and first is not None:
        return first.scale(-1.0)
    if len(tagged) != 1 or len(operands) != 2:
        return None
    value, multiplier = operands if first is not None else operands[::-1]
    if node.name == "mul" and value.origin is not None:
        return value.origin.scale(multiplier.full().astype(np.float64))
    if node.name == "div" and first is not None:
        return first.scale(1 / multiplier.full().astype(np.float64))
    return None


# --- known arrays whose elements are only moved: in NumPy, without compilation --------------------


def _expand(node: Equation, x: np.ndarray) -> np.ndarray:
    """Add axes of length 1 to an array, ready for broadcasting."""
    shape = [1] * len(node.outputs[0].shape)
    for axis, place in enumerate(node.params["broadcast_dimensions"]):
        shape[place] = x.shape[axis]
    return x.reshape(shape)


def _broadcast(node: Equation, x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(_expand(node, x), node.outputs[0].shape)


def _cut(node: Equation, x: np.ndarray) -> np.ndarray:
    params = node.params
    steps = params["strides"] or (1,) * x.ndim
    edges = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return x[tuple(slice(*edge) for edge in edges)]


def _divide(node: Equation, x: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum(node.params["sizes"])[:-1]
    return np.split(x, ends, axis=node.params["axis"])


_MOVES: dict[str, Callable[[Equation, list[np.ndarray]], list[np.ndarray]]] = {
    "reshape": lambda node, x: [x[0].reshape(node.outputs[0].shape)],
    "squeeze": lambda node, x: [x[0].reshape(node.outputs[0].shape)],
    "expand_dims": lambda node, x: [x[0].reshape(node.outputs[0].shape)],
    "transpose": lambda node, x: [x[0].transpose(node.params["permutation"])],
    "slice": lambda node, x: [_cut(node, x[0])],
    "split": lambda node, x: _divide(node, x[0]),
    "rev": lambda node, x: [np.flip(x[0], node.params["dimensions"])],
    "concatenate": lambda node, x: [np.concatenate(x, node.params["dimension"])],
}
