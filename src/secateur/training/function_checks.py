"""Detection of mistakes in the equations of a model's function, before anything is compiled.

The function is traced once, with a number of rows that divides no other size, so that every axis of
that size is an axis of rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from secateur.equations import compat
from secateur.equations.tracing import (
    Atom,
    Equation,
    Slot,
    Trace,
    all_equations,
    trace_function,
)
from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood

_EVALUATION_MODE = (
    "Build the function from the model in evaluation mode: model.eval() before nnx.split (Flax "
    "NNX), eqx.nn.inference_mode(model) (Equinox), training=False (Keras), or deterministic=True "
    "(Flax Linen; use_running_average=True for its BatchNorm)."
)
_PRIMES = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151)
# Equations that only rearrange values.
_ARRANGEMENTS = {
    "reshape", "squeeze", "transpose", "convert_element_type", "broadcast_in_dim", "copy",
    "stop_gradient", "copy_p", "expand_dims",
}  # fmt: skip


def find_mistakes(f: Callable, params: Any, inputs: Any, likelihood: Any) -> list[str]:
    """Return what is probably wrong with a model's function, as sentences for warnings.

    - A row's output that depends on the other rows.
    - A softmax before a `CategoricalLikelihood`, or a sigmoid before a `BernoulliLikelihood`.

    Args:
        f: The function `f(params, x)`.
        params: Its weights.
        inputs: A few rows of inputs, of which only shapes and dtypes matter.
        likelihood: The model's likelihood.

    Raises:
        ValueError: The function takes one row at a time, needs a random key, draws random numbers
            for every row (dropout in training mode), normalises by the rows while weights that hold
            statistics are not read (batch normalisation in training mode), or also returns its
            state.

    Example:
        >>> import jax.numpy as jnp
        >>> f = lambda w, x: (x - x.mean(axis=0, keepdims=True)) @ w
        >>> (mistake,) = find_mistakes(f, jnp.ones((3, 1)), np.ones((2, 3)), None)
        >>> mistake.partition(" (")[0]
        "a row's output depends on the other rows"
    """
    rows = _choose_rows(params, inputs)
    try:
        trace = _trace(f, params, inputs, (rows,))
    except Exception as error:  # whatever the user's code raises
        _explain_failure(f, params, inputs, error)
        return []  # it may work for other numbers of rows; if not, it fails again when it is used
    _refuse_state(trace)
    equations = list(all_equations(trace.jaxpr))
    mistakes = []
    mixing = next((eqn for eqn in equations if _mixes_rows(eqn, rows)), None)
    if mixing is not None:
        unread = _find_unread(trace, params)
        if unread:
            raise ValueError(
                f"batch normalisation is in training mode: the model's function normalises by the "
                f"rows it is given ({mixing.primitive.name} over rows{_locate(mixing)}) and does "
                f"not read {', '.join(unread)}. The free energy assumes that rows are independent. "
                f"{_EVALUATION_MODE}"
            )
        mistakes.append(
            f"a row's output depends on the other rows ({mixing.primitive.name} over rows"
            f"{_locate(mixing)}), but the free energy assumes that rows are independent, and "
            "predictions would depend on which rows are predicted together. Batch normalisation in "
            f"training mode? {_EVALUATION_MODE}"
        )
    drawing = next((eqn for eqn in equations if _draws_rows(eqn, rows)), None)
    if drawing is not None:
        raise ValueError(
            f"dropout is in training mode: the model's function draws random numbers for every row"
            f"{_locate(drawing)}, which would be the same at every step. {_EVALUATION_MODE}"
        )
    return mistakes + _check_output(trace, likelihood)


def _refuse_state(trace: Trace) -> None:
    """Refuse a function that returns more than an array."""
    count = trace.result_structure.num_leaves
    if count != 1:
        raise ValueError(
            f"the model's function returns {count} arrays ({trace.result_structure}), and one is "
            "needed. A module that returns its updated state as well (batch_stats, in Flax Linen "
            f"with mutable=…) is in training mode. {_EVALUATION_MODE} Otherwise return the "
            "first of them: f=lambda params, x: module(params, x)[0]."
        )


def _find_unread(trace: Trace, params: Any) -> list[str]:
    """Return the paths of floating-point arrays that the result does not depend on."""
    jaxpr = trace.jaxpr
    read = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    leaves = jax.tree_util.tree_leaves_with_path(params)
    paths = [jax.tree_util.keystr(path) for path, leaf in leaves if hasattr(leaf, "shape")]
    return [
        path
        for path, v in zip(paths, jaxpr.invars, strict=False)
        if id(v) not in read and jax.numpy.issubdtype(v.aval.dtype, np.floating)
    ]


def check_function(f: Callable, params: Any, inputs: Any) -> None:
    """Refuse inputs that a model's function cannot take.

    Args:
        f: The function `f(params, x)`.
        params: Its weights.
        inputs: A few rows of inputs, of which only shapes and dtypes matter.

    Raises:
        ValueError: The function fails.
    """
    leaves = jax.tree.leaves(inputs)
    try:
        _trace(f, params, inputs, (len(leaves[0]),))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the model's function fails for rows of the shapes {[x.shape[1:] for x in leaves]}: "
            f"{error} Give rows like those that the model was fitted to."
        ) from error


def _check_output(trace: Trace, likelihood: Any) -> list[str]:
    """Return what is wrong with the last operation of a function, given its likelihood."""
    name = type(likelihood).__name__
    if isinstance(likelihood, CategoricalLikelihood) and _ends_in_softmax(trace):
        return [
            f"the model's function ends in a softmax, and {name} takes logits: the probabilities "
            "would go through a second softmax. Return the values before the softmax."
        ]
    if isinstance(likelihood, BernoulliLikelihood) and _ends_in_sigmoid(trace):
        return [
            f"the model's function ends in a sigmoid, and {name} takes logits: the probability "
            "would go through a second sigmoid. Return the values before the sigmoid."
        ]
    return []


# --- tracing --------------------------------------------------------------------------------------


def _choose_rows(params: Any, inputs: Any) -> int:
    """Return a prime that divides no size of the weights or of a row."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(params) if hasattr(leaf, "shape")]
    shapes += [np.shape(x)[1:] for x in jax.tree.leaves(inputs)]
    sizes = {size for shape in shapes for size in shape}
    free = (p for p in _PRIMES if all(size % p for size in sizes))
    return next(free, 1_000_003)


def _trace(f: Callable, params: Any, inputs: Any, rows: tuple[int, ...]) -> Trace:
    """Trace the function for inputs with other leading axes than the sample's."""
    described = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*rows, *np.shape(x)[1:]), _dtype_of(x)), inputs
    )
    leaves, structure = jax.tree.flatten((params, described))
    places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")]
    arrays = [jax.ShapeDtypeStruct(leaves[i].shape, _dtype_of(leaves[i])) for i in places]
    return trace_function(f, leaves, structure, places, arrays)


def _dtype_of(leaf: Any) -> Any:
    is_settled = isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)  # among them random keys
    return leaf.dtype if is_settled else jax.dtypes.canonicalize_dtype(leaf.dtype)


def _explain_failure(f: Callable, params: Any, inputs: Any, error: Exception) -> None:
    """Raise a more helpful error if the cause of a failure is a common one."""
    words = f"{type(error).__name__} {error}"
    if re.search(r"dropout|\brngs?\b|\bPRNG\b", words, re.I):
        raise ValueError(
            f"the model's function needs a random key ({error}). Dropout in training mode? "
            f"{_EVALUATION_MODE}"
        ) from error
    if re.search(r"TraceContextError|cannot mutate", words, re.I):
        raise ValueError(
            f"the model's function changes its own state ({error}). Dropout or batch normalisation "
            f"in training mode? {_EVALUATION_MODE}"
        ) from error
    try:
        _trace(f, params, inputs, ())
    except Exception:
        return
    shapes = [np.shape(x) for x in jax.tree.leaves(inputs)]
    raise ValueError(
        f"the model's function takes one row at a time: it fails for inputs with an axis of rows "
        f"(shapes {shapes}) and works without it. Give a function of all rows, by jax.vmap: "
        "f=lambda params, x: jax.vmap(lambda row: f(params, row))(x); for an Equinox module, "
        "f=lambda module, x: jax.vmap(module)(x)."
    ) from error


def _locate(eqn: Any) -> str:
    line = compat.source_line(eqn)
    return f", {line}" if line else ""


# --- rows -----------------------------------------------------------------------------------------


def _mixes_rows(eqn: Any, rows: int) -> bool:
    """Whether an equation sums, sorts or compares along an axis of rows."""
    name, params = eqn.primitive.name, eqn.params
    if not eqn.invars:
        return False
    shape = np.shape(eqn.invars[0].aval)
    if name.startswith("reduce_") or name in ("argmax", "argmin"):
        axes = params.get("axes", ())
    elif name.startswith("cum"):
        axes = (params.get("axis", 0),)
    elif name == "sort":
        axes = (params["dimension"],)
    elif name == "dot_general":
        axes = params["dimension_numbers"][0][0]
    else:
        return False
    return any(shape[axis] and shape[axis] % rows == 0 for axis in axes)


def _draws_rows(eqn: Any, rows: int) -> bool:
    """Whether an equation makes random numbers, some for each row."""
    if eqn.primitive.name not in ("random_bits", "rng_bit_generator", "rng_uniform"):
        return False
    shapes = [np.shape(v.aval) for v in eqn.outvars]
    return any(math.prod(shape) % rows == 0 for shape in shapes if shape)


# --- the last operation ---------------------------------------------------------------------------


def _follow(trace: Trace) -> tuple[Callable[[Atom], Equation | None], Atom | None]:
    """Return a function from a value to the equation behind it, and the output."""
    program = trace.program([True] * len(trace.jaxpr.invars))
    producers = {out: eq for eq in program.equations for out in eq.outputs}

    def find_source(atom: Atom) -> Equation | None:
        equation = producers.get(atom) if isinstance(atom, Slot) else None
        while equation is not None and equation.name in _ARRANGEMENTS:
            first = equation.inputs[0]
            equation = producers.get(first) if isinstance(first, Slot) else None
        return equation

    return find_source, program.outputs[0] if len(program.outputs) == 1 else None


def _ends_in_softmax(trace: Trace) -> bool:
    """Whether the output is exp(…) / Σ exp(…), or exp of a difference with a log of such a sum."""
    find_source, output = _follow(trace)
    last = None if output is None else find_source(output)
    if last is None:
        return False
    if last.name == "div":
        above, below = (find_source(atom) for atom in last.inputs)
        names = (above and above.name, below and below.name)
        return names == ("exp", "reduce_sum")
    if last.name == "exp":
        difference = find_source(last.inputs[0])
        if difference is not None and difference.name == "sub":
            part = find_source(difference.inputs[1])
            return part is not None and part.name == "log"
    return False


def _ends_in_sigmoid(trace: Trace) -> bool:
    find_source, output = _follow(trace)
    last = None if output is None else find_source(output)
    return last is not None and last.name == "logistic"
