"""How equations are evaluated on the device at hand: the primitive, or a form that is faster.

A compiled loop on a CPU is where training spends its time, and where XLA's convolutions and
gradients of pooling are many times slower than equivalent products and slices. On other devices the
primitives are the fastest form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.equations import compat
from secateur.equations.control_flow import Scan, WhileLoop, branches, recomputed_part
from secateur.equations.convolutions import Geometry, can_convolve, convolve
from secateur.equations.pooling import reduce_windows
from secateur.equations.primitives import CONTROL_FLOW, WITH_OWN_RULES
from secateur.equations.tracing import all_equations, wrapped_jaxpr


def prefers_fast_forms() -> bool:
    """Whether the default device is one on which other forms are faster than the primitives."""
    return jax.default_backend() == "cpu"


def has_fast_form(jaxpr: Any) -> bool:
    """Whether any equation of a jaxpr, or of one inside, has another form on this device."""
    return prefers_fast_forms() and any(e.primitive.name in _FORMS for e in all_equations(jaxpr))


def execute(eqn: Any, *operands: Any) -> list[Any]:
    """Return the results of an equation on plain arrays, by the fastest form on this device."""
    if not prefers_fast_forms():
        return compat.bind(eqn, *operands)
    form = _FORMS.get(eqn.primitive.name)
    if form is not None:
        result = form(eqn, *operands)
        return compat.bind(eqn, *operands) if result is None else [result]
    inside = [compat.open_jaxpr(part)[0] for value in eqn.params.values()
              for part in (value if isinstance(value, tuple | list) else (value,))]  # fmt: skip
    if any(hasattr(jaxpr, "eqns") and has_fast_form(jaxpr) for jaxpr in inside):
        return _execute_inside(eqn, list(operands))
    return compat.bind(eqn, *operands)


def execute_moments(eqn: Any, x: Any, means: Array, variances: Array) -> list[Array]:
    """Return a product of a signal with means, and of its square with variances.

    Args:
        eqn: A product of a signal and weights.
        x: The signal, certain.
        means: Means of the weights.
        variances: Variances of the weights.
    """
    if eqn.primitive.name == "conv_general_dilated" and prefers_fast_forms():
        signal = jnp.asarray(x)
        if can_convolve(eqn.params, signal, means):
            return convolve(Geometry.of(eqn.params), signal, [means], [variances])
    return [*execute(eqn, x, means), *execute(eqn, x * x, variances)]


def execute_jaxpr(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the results of all equations of a jaxpr, each by its fastest form."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, compat.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        with compat.at_line_of(eqn):
            results = execute(eqn, *map(read, eqn.invars))
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(a) for a in jaxpr.outvars]


def _execute_inside(eqn: Any, operands: list[Any]) -> list[Any]:
    """Return the results of a call or of control flow, with the fastest forms inside."""
    name = eqn.primitive.name
    if name in WITH_OWN_RULES:
        return compat.bind(eqn, *operands)
    inner = wrapped_jaxpr(eqn)
    if inner is not None:
        return execute_jaxpr(*inner, operands)
    rule = _CONTROL_FLOW.get(CONTROL_FLOW.get(name, ""))
    return compat.bind(eqn, *operands) if rule is None else rule(eqn, operands)


def _scan(eqn: Any, operands: list[Any]) -> list[Any]:
    parts = Scan.of(eqn)
    consts, carry, xs = parts.split(operands)

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        return parts.split_results(execute_jaxpr(*parts.body, [*consts, *carry, *x]))

    last, stacked = jax.lax.scan(
        step, carry, xs, length=parts.length, reverse=parts.reverse, unroll=parts.unroll
    )
    return [*last, *stacked]


def _while_loop(eqn: Any, operands: list[Any]) -> list[Any]:
    loop = WhileLoop.of(eqn)
    condition_consts, consts, carry = loop.split(operands)
    return jax.lax.while_loop(
        lambda carry: execute_jaxpr(*loop.condition, [*condition_consts, *carry])[0],
        lambda carry: execute_jaxpr(*loop.body, [*consts, *carry]),
        carry,
    )


def _cond(eqn: Any, operands: list[Any]) -> list[Any]:
    index, *arguments = operands
    calls = [lambda values, b=body: execute_jaxpr(b[0], b[1], values) for body in branches(eqn)]
    return jax.lax.switch(index, calls, arguments)


def _remat(eqn: Any, operands: list[Any]) -> list[Any]:
    part, params = recomputed_part(eqn), eqn.params
    return jax.checkpoint(
        lambda values: execute_jaxpr(*part, values),
        prevent_cse=params.get("prevent_cse", True),
        policy=params.get("policy"),
    )(operands)


def _convolution(eqn: Any, x: Any, kernel: Any) -> Array | None:
    x, kernel = jnp.asarray(x), jnp.asarray(kernel)
    if not can_convolve(eqn.params, x, kernel):
        return None
    return convolve(Geometry.of(eqn.params), x, [kernel])[0]


def _windows(eqn: Any, x: Any) -> Array | None:
    return reduce_windows(eqn.primitive.name, eqn.params, jnp.asarray(x))


_FORMS: dict[str, Callable[..., Array | None]] = {
    "conv_general_dilated": _convolution,
    "reduce_window_max": _windows,
    "reduce_window_min": _windows,
    "reduce_window_sum": _windows,
}
_CONTROL_FLOW = {"scan": _scan, "while_loop": _while_loop, "cond": _cond, "remat": _remat}
