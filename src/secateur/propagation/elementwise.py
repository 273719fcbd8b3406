"""Which primitives act element by element, and where such a function is affine or has kinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

_ARITHMETIC = {"add", "sub", "mul", "div", "neg", "add_any"}
_IDENTITY = {"copy", "copy_p", "reduce_precision"}
_PIECEWISE = {"max", "min", "abs", "clamp", "select_n", "sign"}
_COMPARISON = {"gt", "ge", "lt", "le", "eq", "ne", "and", "or", "not", "xor"}
_SMOOTH = {
    "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "sin", "cos",
    "sinh", "cosh", "asinh", "atan", "square", "integer_pow", "pow", "sqrt", "rsqrt", "cbrt",
}  # fmt: skip

NAMES = _ARITHMETIC | _IDENTITY | _PIECEWISE | _COMPARISON | _SMOOTH | {"convert_element_type"}

# Undefined, or without moments, where a Gaussian reaches below zero.
POSITIVE_ONLY = {"log", "sqrt", "rsqrt", "log1p"}


def is_affine(eqn: Any, uncertain: Sequence[bool]) -> bool:
    """Whether one equation is affine in its uncertain operands together."""
    name = eqn.primitive.name
    if name in {"add", "sub", "neg", "add_any", "copy", "copy_p", "reduce_precision"}:
        return True
    if name == "convert_element_type":
        return jnp.issubdtype(eqn.params["new_dtype"], jnp.floating) and jnp.issubdtype(
            eqn.invars[0].aval.dtype, jnp.floating
        )
    if name == "mul":
        return sum(uncertain) == 1
    if name == "div":
        return not uncertain[1]
    if name == "select_n":
        return not uncertain[0]
    return False


def needs_positive(eqn: Any, uncertain: Sequence[bool]) -> bool:
    """Whether an equation makes sense only for a positive uncertain operand."""
    name = eqn.primitive.name
    if name in POSITIVE_ONLY:
        return True
    if name == "integer_pow":
        return eqn.params["y"] < 0
    if name == "pow":
        return uncertain[0]
    if name == "div":
        return uncertain[1]
    return False
