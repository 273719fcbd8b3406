"""The one table of JAX's primitives: the kind of each, and what else walks need to know about it.

No other module names primitives in lists. The names are those in a jaxpr; some changed between
versions of JAX, and all names of one primitive are in the table. Every walk over equations says,
for each kind, what it does with a primitive that it has no rule of its own for (`Policy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import jax.numpy as jnp


class Kind(StrEnum):
    """What a primitive does; walks treat all primitives of a kind alike."""

    CALL = "call that only wraps"
    CONTROL_FLOW = "control flow"
    COPY = "copy"
    CONVERSION = "conversion"
    ARITHMETIC = "arithmetic"
    SMOOTH = "smooth function"
    KINKED = "function with a kink"
    STEP = "function of steps"
    COMPARISON = "comparison"
    LOGIC = "logic"
    CHOICE = "choice"
    SPECIAL = "special function"
    MOVE = "rearrangement"
    JOIN = "join"
    LOOKUP = "lookup"
    UPDATE = "update"
    SEGMENT = "extremum by segments"
    CONTRACTION = "product with weights"
    ADDITION = "sum over axes"
    REDUCTION = "reduction"
    LOGICAL_REDUCTION = "reduction of truth values"
    ARGUMENT = "place of an extremum"
    WINDOW = "extremum over windows"
    CUMULATIVE = "running reduction"
    ORDER = "ordering"
    MIXTURE = "operation over whole axes"
    COMPLEX = "operation on complex numbers"
    GENERATOR = "numbers from nothing"
    RANDOM = "random numbers"
    DEVICES = "communication between devices"
    OUTSIDE = "call outside JAX"


class Policy(StrEnum):
    """What a walk does with a primitive."""

    RULE = "every primitive of the kind has a rule"
    EXPAND = "never met: its equations are read in its place"
    EVALUATE = "evaluated as it is, on the walk's own values"
    ERROR = "an error that names it"
    FREEZE = "what it touches is left whole, and reported"
    MIX = "every result depends on every operand"
    USE = "its operands count as used"


_TABLE = {
    Kind.CALL: """jit pjit closed_call core_call custom_jvp_call custom_vjp_call
        custom_vjp_call_jaxpr composite custom_vmap_call
        stack unstack tile polynomial one_minus_square log2 scatter-sub""",
    Kind.CONTROL_FLOW: "scan while cond remat remat2 checkpoint",
    Kind.COPY: """copy copy_p reduce_precision stop_gradient optimization_barrier name
        sharding_constraint layout_constraint reshard pvary device_put""",
    Kind.CONVERSION: "convert_element_type",
    Kind.ARITHMETIC: "add sub add_any mul div neg",
    Kind.SMOOTH: """exp exp2 expm1 log log1p tanh logistic erf erfc sin cos sinh cosh asinh atan
        square integer_pow pow sqrt rsqrt cbrt lgamma digamma bessel_i0e bessel_i1e""",
    Kind.KINKED: "max min abs clamp sign",
    Kind.STEP: "floor ceil round",
    Kind.COMPARISON: "gt ge lt le eq ne lt_to le_to eq_to is_finite",
    Kind.LOGIC: "and or not xor",
    Kind.CHOICE: "select_n",
    Kind.SPECIAL: """acos acosh asin atanh tan erf_inv atan2 rem nextafter igamma igammac
        igamma_grad_a random_gamma_grad regularized_incomplete_beta polygamma zeta clz
        population_count shift_left shift_right_arithmetic shift_right_logical mulhi""",
    Kind.MOVE: "transpose reshape squeeze expand_dims broadcast_in_dim slice split rev",
    Kind.JOIN: "concatenate pad",
    Kind.LOOKUP: "gather dynamic_slice",
    Kind.UPDATE: "dynamic_update_slice scatter scatter-add scatter_add",
    Kind.SEGMENT: "scatter-max scatter_max scatter-min scatter_min",
    Kind.CONTRACTION: "dot_general conv_general_dilated",
    Kind.ADDITION: "reduce_sum cumsum reduce_window_sum",
    Kind.REDUCTION: "reduce_max reduce_min reduce_prod",
    Kind.LOGICAL_REDUCTION: "reduce_and reduce_or reduce_xor",
    Kind.ARGUMENT: "argmax argmin",
    Kind.WINDOW: "reduce_window_max reduce_window_min",
    Kind.CUMULATIVE: "cumlogsumexp cummax cummin cumprod",
    Kind.ORDER: "sort top_k",
    Kind.MIXTURE: """reduce reduce_window approx_top_k scatter-mul scatter_mul select_and_scatter
        select_and_scatter_add select_and_gather_add ragged_dot_general ragged_dot scaled_dot
        cholesky cholesky_update eig eigh lu lu_pivots_to_permutation qr geqrf geqp3
        householder_product ormqr schur svd hessenberg triangular_solve tridiagonal
        tridiagonal_solve symmetric_product custom_linear_solve bitcast_convert_type
        linear_call custom_lin to_edtype from_edtype tie""",
    Kind.COMPLEX: "fft complex real imag conj",
    Kind.GENERATOR: "iota empty empty2 create_token axis_index platform_index",
    Kind.RANDOM: """rng_bit_generator rng_uniform random_bits random_seed random_split
        random_fold_in random_wrap random_unwrap random_clone random_gamma threefry2x32
        iota_2x32_shape""",
    Kind.DEVICES: """psum pmax pmin ppermute all_to_all all_gather reduce_scatter pbroadcast
        psum_invariant all_gather_invariant ragged_all_to_all shard_map psend precv preduced
        all_gather_reduced unreduced_psum unreduced_pmax unreduced_pmin unreduced_reduce_scatter
        pbroadcast_dynamic vary_unreduced_cast vary_unreduced_cast_p
        psum_start psum_done psum_invariant_start ppermute_start ppermute_done all_to_all_start
        all_to_all_done all_gather_start all_gather_done all_gather_reduced_start
        reduce_scatter_start reduce_scatter_done pbroadcast_start pbroadcast_done
        unreduced_psum_start unreduced_reduce_scatter_start""",
    Kind.OUTSIDE: """dce_sink stage
        pure_callback io_callback debug_callback debug_print ffi_call after_all
        custom_partitioning inspect_sharding new_ref get swap addupdate freeze run_state""",
}  # fmt: skip
KINDS: dict[str, Kind] = {name: kind for kind, names in _TABLE.items() for name in names.split()}


def of(*kinds: Kind) -> set[str]:
    """Return the names of all primitives of some kinds."""
    return {name for name, kind in KINDS.items() if kind in kinds}


Policies = Mapping[Kind | None, Policy]


def policies(*ruled: Kind, otherwise: Policy) -> Policies:
    """Return what a walk does with each kind, and with what is not in the table (None).

    Args:
        *ruled: Kinds of which every primitive has a rule.
        otherwise: What happens to the others.
    """
    chosen: dict[Kind | None, Policy] = dict.fromkeys((*Kind, None), otherwise)
    chosen.update(dict.fromkeys(ruled, Policy.RULE))
    return {**chosen, Kind.CALL: Policy.EXPAND}


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
    "composite": "jaxpr",
    "custom_vmap_call": "call",
}
# Calls whose derivatives, or batches, are not those of the equations inside.
WITH_OWN_RULES = {name for name in CALLS if name.startswith("custom_")}
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

# The value of each result is that of the operand in its place.
IDENTITIES = of(Kind.COPY)
# One operand, one result, through which a function of one value is followed.
COPIES = {"copy", "copy_p", "reduce_precision", "name"}
# As many results as operands, each that of its own operand.
SIDE_BY_SIDE = {"optimization_barrier", "device_put", "pvary"}
CONVERSION = "convert_element_type"
# Every element stays in its place, with its dependence on sources of noise.
STAYS_IN_PLACE = COPIES | {CONVERSION, "stop_gradient"}

SUMS = {"add", "sub", "add_any"}
COMPARISONS = of(Kind.COMPARISON)
# Comparisons that are the sign of a difference of two numbers, and that sign.
SIGNS = {"gt": 1.0, "ge": 1.0, "lt": -1.0, "le": -1.0}
# What they are of a number and itself.
OF_ITSELF = {"eq": True, "ne": False, "ge": True, "le": True, "gt": False, "lt": False}
STEPS = of(Kind.STEP)
# Their kinks have to be known where they are integrated numerically.
WITH_KINKS = of(Kind.KINKED, Kind.COMPARISON)

# Several of these, applied to one uncertain value, are integrated as one function of it.
UNIVARIATE = COPIES | of(
    Kind.CONVERSION, Kind.ARITHMETIC, Kind.SMOOTH, Kind.KINKED, Kind.COMPARISON, Kind.LOGIC,
    Kind.CHOICE,
)  # fmt: skip
# Functions of one value with f(0) = 0.
KEEPS_ZERO = IDENTITIES | STEPS | {
    CONVERSION, "neg", "abs", "sign", "tanh", "sin", "sinh", "asinh", "atan", "erf", "expm1",
    "log1p", "sqrt", "cbrt", "square", "integer_pow", "tan", "erf_inv", "asin", "atanh",
}  # fmt: skip
ELEMENTWISE = UNIVARIATE | of(Kind.COPY, Kind.STEP, Kind.SPECIAL)
# 0 where all operands are 0.
ZERO_IF_ALL_ARE = SUMS | {"max", "min", "clamp"}

# Undefined, or without moments, where a Gaussian reaches below zero.
_POSITIVE_ONLY = {"log", "sqrt", "rsqrt", "log1p", "lgamma", "digamma"}

# --- rearrangements -------------------------------------------------------------------------------

# Every element of the operand is in the result once; only the shape and the order change.
RESHAPES = {"transpose", "reshape", "squeeze", "expand_dims"}
# Elements go to places that do not depend on values; some go to several places or to none.
FIXED_MOVES = of(Kind.MOVE)
JOINS = of(Kind.JOIN)
LOOKUPS = of(Kind.LOOKUP)
UPDATES = of(Kind.UPDATE)
SEGMENT_EXTREMA = of(Kind.SEGMENT)
SEGMENT_SUMS = {"scatter-add", "scatter_add"}
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
    FIXED_MOVES | JOINS | IDENTITIES | set(DATA_OPERANDS) | of(Kind.CHOICE, Kind.CONVERSION)
)
# A number that is the same in every element stays one.
KEEPS_UNIFORM = {"broadcast_in_dim", CONVERSION, "reshape", "squeeze", "copy"}
# Axes of length one inserted, and values copied along axes.
SPREADS = {"broadcast_in_dim", "reshape", "expand_dims", "squeeze", "copy"}
# Comparisons that a Gaussian decides with probability 0 or 1, unless both sides are uncertain.
DECIDED_BY_GAUSSIANS = {"eq", "ne", "is_finite"}
# What the search for a place in a table is made of.
IN_A_SEARCH = UNIVARIATE | {"gather", "broadcast_in_dim", "squeeze", "reshape"}
# What the shift of a softmax may go through before it is subtracted; is_finite and select_n guard
# against −∞.
SHIFT_CARRIERS = SPREADS | {"stop_gradient", "max", "is_finite", "select_n", "gather"}

# --- products and reductions ----------------------------------------------------------------------

PRODUCTS = of(Kind.CONTRACTION)
# The operation behind each one.
REDUCTIONS = {
    name: name.removeprefix("reduce_")
    for name in ("reduce_sum", *of(Kind.REDUCTION, Kind.LOGICAL_REDUCTION))
}
# Reductions of numbers; 0 where all elements are 0.
NUMERIC_REDUCTIONS = REDUCTIONS.keys() - of(Kind.LOGICAL_REDUCTION)
ARGUMENTS = of(Kind.ARGUMENT)
WINDOWS = {
    name: name.removeprefix("reduce_window_") for name in ("reduce_window_sum", *of(Kind.WINDOW))
}
CUMULATIVE = of(Kind.CUMULATIVE) | {"cumsum"}
# Sums of elements with coefficients 0 and 1.
ADDITIONS = of(Kind.ADDITION)
# Numbers that depend on no operand, or on a random key only.
GENERATORS = of(Kind.GENERATOR, Kind.RANDOM)
ORDERINGS = of(Kind.ORDER)


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
