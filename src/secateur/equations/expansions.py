"""Primitives that abbreviate others: every walk reads those others instead.

Newer versions of JAX have primitives of their own for what older ones write with several. Written
out here once, they need no rule in any walk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from secateur.equations import compat


def _stack(*operands: Array, axis: int, **_: Any) -> Array:
    return lax.concatenate([lax.expand_dims(x, (axis,)) for x in operands], axis)


def _unstack(x: Array, *, axis: int, **_: Any) -> list[Array]:
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def _tile(x: Array, *, reps: tuple[int, ...], **_: Any) -> Array:
    added = len(reps) - x.ndim
    shape = (*(1,) * added, *x.shape)
    wide = tuple(n for pair in zip(reps, shape, strict=True) for n in pair)
    places = tuple(2 * (added + axis) + 1 for axis in range(x.ndim))
    spread = lax.broadcast_in_dim(x, wide, places)
    return lax.reshape(spread, tuple(r * n for r, n in zip(reps, shape, strict=True)))


def _polynomial(x: Array, *coefficients: Array, **_: Any) -> Array:
    total = jnp.broadcast_to(coefficients[-1], x.shape)
    for coefficient in coefficients[-2::-1]:
        total = total * x + jnp.broadcast_to(coefficient, x.shape)
    return total


def _one_minus_square(x: Array, **_: Any) -> Array:
    return 1 - lax.integer_pow(x, 2)


def _log2(x: Array, **_: Any) -> Array:
    return lax.log(x) / math.log(2.0)


def _scatter_sub(x: Array, places: Array, update: Array, **params: Any) -> Array:
    numbers = params.pop("dimension_numbers")
    kept = ("indices_are_sorted", "unique_indices", "mode")
    return lax.scatter_add(x, places, -update, numbers, **{k: params[k] for k in kept})


EXPANSIONS: dict[str, Callable] = {
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "polynomial": _polynomial,
    "one_minus_square": _one_minus_square,
    "log2": _log2,
    "scatter-sub": _scatter_sub,
}


def expand(eqn: Any) -> tuple[Any, list] | None:
    """Return the jaxpr, with its constants, that a primitive abbreviates, or None."""
    expansion = EXPANSIONS.get(eqn.primitive.name)
    if expansion is None:
        return None
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    return compat.trace(lambda *operands: expansion(*operands, **eqn.params), *shapes)
