"""Every list of JAX's primitives, by what they do. No other module names primitives in lists.

The names are those in a jaxpr. Some primitives changed their names between versions of JAX; all
names of one primitive are in the same lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

# --- calls and control flow -----------------------------------------------------------------------

# Calls that only wrap: their equations are read in the caller's place. The parameter holds them.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
# Names of functions (not of primitives) that are written with max and abs for numerical reasons,
# and yet are smooth as a whole.
SMOOTH_CALLS = {"logaddexp", "softplus", "logaddexp2"}
# The method of `secateur.equations.Interpreter` that each one goes to.
CONTROL_FLOW = {
    "scan": "scan",
    "while": "while_loop",
    "cond": "cond",
    "remat": "remat",
    "remat2": "remat",
    "checkpoint": "remat",
}

# --- element by element ---------------------------------------------------------------------------

COPIES = {"copy", "copy_p", "reduce_precision"}
# The value of the result is that of the operand.
IDENTITIES = COPIES | {"stop_gradient", "optimization_barrier"}
CONVERSION = "convert_element_type"
# Every element stays in its place, with its dependence on sources of noise.
STAYS_IN_PLACE = COPIES | {CONVERSION, "stop_gradient"}

SUMS = {"add", "sub", "add_any"}
_ARITHMETIC = SUMS | {"mul", "div", "neg"}
_KINKED = {"max", "min", "abs", "clamp", "sign"}
COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne"}
_LOGIC = {"and", "or", "not", "xor"}
_SMOOTH = {
    "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "sin", "cos",
    "sinh", "cosh", "asinh", "atan", "square", "integer_pow", "pow", "sqrt", "rsqrt", "cbrt",
}  # fmt: skip
# Their kinks have to be known where they are integrated numerically.
WITH_KINKS = _KINKED | COMPARISONS

# Several of these, applied to one uncertain value, are integrated as one function of it.
UNIVARIATE = (
    _ARITHMETIC | COPIES | {CONVERSION, "select_n"} | _KINKED | COMPARISONS | _LOGIC | _SMOOTH
)
# Functions of one value with f(0) = 0.
KEEPS_ZERO = IDENTITIES | {
    CONVERSION, "neg", "abs", "sign", "tanh", "sin", "sinh", "asinh", "atan", "erf", "expm1",
    "log1p", "sqrt", "cbrt", "square", "integer_pow", "tan", "floor", "ceil", "round", "erf_inv",
}  # fmt: skip
ELEMENTWISE = UNIVARIATE | KEEPS_ZERO
# 0 where all operands are 0.
ZERO_IF_ALL_ARE = SUMS | {"max", "min", "clamp"}

# Undefined, or without moments, where a Gaussian reaches below zero.
_POSITIVE_ONLY = {"log", "sqrt", "rsqrt", "log1p"}

# --- rearrangements -------------------------------------------------------------------------------

# Every element of the operand is in the result once; only the shape and the order change.
RESHAPES = {"transpose", "reshape", "squeeze", "expand_dims"}
# Elements go to places that do not depend on values; some go to several places or to none.
FIXED_MOVES = RESHAPES | {"broadcast_in_dim", "slice", "split", "rev"}
JOINS = {"concatenate", "pad"}
LOOKUPS = {"gather", "dynamic_slice"}
# Which operands are data; the others are places (indices, predicates).
DATA_OPERANDS = {
    "gather": (0,),
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    "scatter": (0, 2),
    "scatter-add": (0, 2),
    "scatter_add": (0, 2),
}
# Elements change places; none is computed with another.
REARRANGEMENTS = (
    FIXED_MOVES
    | JOINS
    | IDENTITIES
    | set(DATA_OPERANDS)
    | {"stack", "select_n", CONVERSION, "sharding_constraint"}
)
# A number that is the same in every element stays one.
KEEPS_UNIFORM = {"broadcast_in_dim", CONVERSION, "reshape", "squeeze", "copy"}
# Axes of length one inserted, and values copied along axes.
SPREADS = {"broadcast_in_dim", "reshape", "expand_dims", "copy"}

# --- products and reductions ----------------------------------------------------------------------

PRODUCTS = {"dot_general", "conv_general_dilated"}
# The operation behind each one.
REDUCTIONS = {f"reduce_{kind}": kind for kind in ("sum", "max", "min", "prod", "and", "or")}
# Reductions of numbers; 0 where all elements are 0.
NUMERIC_REDUCTIONS = REDUCTIONS.keys() - {"reduce_and", "reduce_or"}
ARGUMENTS = {"argmax", "argmin"}
WINDOWS = {f"reduce_window_{kind}": kind for kind in ("sum", "max", "min")}
CUMULATIVE = {"cumsum", "cumlogsumexp", "cummax", "cummin", "cumprod"}
# Sums of elements with coefficients 0 and 1.
ADDITIONS = {"reduce_sum", "cumsum", "reduce_window_sum"}
# Numbers that depend on no operand, or on a random key only.
GENERATORS = {"iota", "rng_bit_generator", "random_bits"}


def is_affine(eqn: Any, uncertain: Sequence[bool]) -> bool:
    """Whether one equation is affine in its uncertain operands together."""
    name = eqn.primitive.name
    if name in SUMS or name in COPIES or name == "neg":
        return True
    if name == CONVERSION:
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
    if name in _POSITIVE_ONLY:
        return True
    if name == "integer_pow":
        return eqn.params["y"] < 0
    if name == "pow":
        return uncertain[0]
    if name == "div":
        return uncertain[1]
    return False
