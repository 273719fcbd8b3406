"""Multiply-adds of a function, counted in its equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax

from secateur.equations import compat

__all__ = ["count_multiply_adds"]


def count_multiply_adds(f: Callable[[Any, Any], Any], params: Any, x: Any) -> int:
    """Return how many products with a sum a function computes for one row, zeros included.

    Args:
        f: A function f(params, x).
        params: Its weights.
        x: Rows of inputs; only the shape of one counts.

    Example:
        >>> import jax.numpy as jnp
        >>> count_multiply_adds(lambda w, x: x @ w, jnp.ones((3, 2)), jnp.ones((5, 3)))
        6
    """
    row = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape[1:]), a.dtype), x)
    jaxpr, _ = compat.open_jaxpr(jax.make_jaxpr(f)(params, row))
    return _count(jaxpr)


def _count(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        size = math.prod(eqn.outvars[0].aval.shape) if eqn.outvars else 0
        if name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            total += size * math.prod(eqn.invars[0].aval.shape[a] for a in contracted)
        elif name == "conv_general_dilated":
            kernel = eqn.invars[1].aval.shape
            outputs = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
            total += size * math.prod(kernel) // max(outputs, 1)
        else:
            times = eqn.params["length"] if name == "scan" else 1
            inner = [v for v in eqn.params.values() if hasattr(v, "eqns") or hasattr(v, "jaxpr")]
            total += times * sum(_count(compat.open_jaxpr(v)[0]) for v in inner)
    return total
