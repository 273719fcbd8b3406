"""A function's equations evaluated with other kinds of numbers, and traced again.

Moments are defined for real numbers in a precision that holds their squares. So what depends on
uncertain values is rewritten before it is walked: half precision as float32, and complex numbers
as pairs of real ones (`complex_pairs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import compat
from secateur.equations.complex_pairs import PAIR_RULES, ComplexPair, join, split
from secateur.equations.control_flow import Scan, WhileLoop, branches, recomputed_part
from secateur.equations.primitives import CONTROL_FLOW
from secateur.equations.tracing import Trace, all_equations, call_name, wrapped_jaxpr

_WIDE = np.dtype("float32")
_SCATTERS: dict[str, Callable] = {
    "scatter": jax.lax.scatter,
    "scatter-add": jax.lax.scatter_add,
    "scatter-max": jax.lax.scatter_max,
    "scatter-min": jax.lax.scatter_min,
}


def is_half(dtype: Any) -> bool:
    """Whether a dtype is a floating-point type with less precision than float32."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.finfo(dtype).bits < 32


def _is_complex(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def needs_rewriting(jaxpr: Any) -> bool:
    """Whether any equation has half-precision or complex numbers."""
    avals = [v.aval for eqn in all_equations(jaxpr) for v in (*eqn.invars, *eqn.outvars)]
    dtypes = {a.dtype for a in (*avals, *(v.aval for v in jaxpr.invars)) if hasattr(a, "dtype")}
    return any(is_half(dtype) or _is_complex(dtype) for dtype in dtypes)


def rewrite(trace: Trace, tracked: Sequence[bool]) -> tuple[Trace, Counter]:
    """Return a function in float32 (or float64) and real numbers, where it depends on its inputs.

    Args:
        trace: The function.
        tracked: Which inputs count.

    Returns:
        The function, whose tracked inputs of half precision are float32; and how often each
        primitive was widened from each dtype.
    """
    inputs = [
        jax.ShapeDtypeStruct(v.aval.shape, widened(v.aval.dtype) if t else v.aval.dtype)
        for v, t in zip(trace.jaxpr.invars, tracked, strict=True)
    ]
    counts: Counter = Counter()

    def run(*arrays: Array) -> list:
        counts.clear()
        results = _Rewriting(counts).run(trace.jaxpr, trace.consts, arrays, tracked)[0]
        return [join(r) if isinstance(r, ComplexPair) else r for r in results]

    jaxpr, consts = compat.trace(run, *inputs)
    return Trace(jaxpr, consts, trace.result_structure), counts


def widened(dtype: Any) -> Any:
    """Return the dtype that numbers of a dtype are computed in."""
    return _WIDE if is_half(dtype) else dtype


class _Rewriting:
    """Evaluates equations, those with tracked operands on other kinds of numbers."""

    def __init__(self, counts: Counter) -> None:
        self.counts = counts

    def run(
        self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], tracked: Sequence[bool]
    ) -> tuple[list[Any], list[bool]]:
        """Return the results, and which of them depend on tracked inputs."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        flags: dict[Any, bool] = dict.fromkeys(jaxpr.constvars, False)
        values.update(zip(jaxpr.invars, inputs, strict=True))
        flags.update(zip(jaxpr.invars, tracked, strict=True))

        def read(atom: Any) -> tuple[Any, bool]:
            is_literal = isinstance(atom, compat.Literal)
            return (atom.val, False) if is_literal else (values[atom], flags[atom])

        for eqn in jaxpr.eqns:
            operands, marks = zip(*map(read, eqn.invars), strict=True) if eqn.invars else ((), ())
            with compat.at_line_of(eqn):
                if any(marks):
                    results = self.rewrite(eqn, list(operands), list(marks))
                else:
                    results = compat.bind(eqn, *operands)
            values.update(zip(eqn.outvars, results, strict=True))
            flags.update(dict.fromkeys(eqn.outvars, any(marks)))
        outputs = [read(a) for a in jaxpr.outvars]
        return [value for value, _ in outputs], [flag for _, flag in outputs]

    def rewrite(self, eqn: Any, operands: list[Any], marks: list[bool]) -> list[Any]:
        """Return the results of an equation that depends on a tracked input."""
        inner = wrapped_jaxpr(eqn)
        name = eqn.primitive.name
        if inner is not None or CONTROL_FLOW.get(name) == "remat":
            return self.call(eqn, inner, operands, marks)
        avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        operands = [_settled(o, v.aval.dtype) for o, v in zip(operands, eqn.invars, strict=True)]
        if name in CONTROL_FLOW:
            return getattr(self, CONTROL_FLOW[name])(eqn, operands)
        halves = {a.dtype for a in avals if is_half(a.dtype)}
        self.counts.update((str(np.dtype(dtype)), name) for dtype in halves)
        if any(_is_complex(a.dtype) for a in avals):
            rule = PAIR_RULES.get(name)
            if rule is not None:
                results = rule(eqn, *operands)
                return results if isinstance(results, list) else [results]
            operands = [join(o) if isinstance(o, ComplexPair) else o for o in operands]
        return [_settled(r, r.dtype) for r in _bind(eqn, operands, halves)]

    def call(self, eqn: Any, inner: Any, operands: list[Any], marks: list[bool]) -> list[Any]:
        """Return the results of a call, which keeps its name, or of a recomputed part."""
        jaxpr, consts = inner or recomputed_part(eqn)

        def run(operands: list[Any]) -> list[Any]:
            results, flags = self.run(jaxpr, consts, operands, marks)
            pairs = zip(results, flags, jaxpr.outvars, strict=True)
            return [r if flag else _settled(r, v.aval.dtype) for r, flag, v in pairs]

        if inner is None:
            params = eqn.params
            return jax.checkpoint(
                run, prevent_cse=params.get("prevent_cse", True), policy=params.get("policy")
            )(operands)
        run.__name__ = call_name(eqn) or "call"
        return jax.jit(run)(operands)

    def nested(self, body: Any, operands: Sequence[Any]) -> list[Any]:
        """Return the results of a body of which everything counts as tracked."""
        jaxpr, consts = body
        results, _ = self.run(jaxpr, consts, operands, [True] * len(operands))
        return [_settled(r, v.aval.dtype) for r, v in zip(results, body[0].outvars, strict=True)]

    def scan(self, eqn: Any, operands: list[Any]) -> list[Any]:
        parts = Scan.of(eqn)
        consts, carry, xs = parts.split(operands)

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            after, stacked = parts.split_results(self.nested(parts.body, [*consts, *carry, *x]))
            return _like(after, carry), stacked

        last, stacked = jax.lax.scan(
            step, carry, xs, length=parts.length, reverse=parts.reverse, unroll=parts.unroll
        )
        return [*last, *stacked]

    def while_loop(self, eqn: Any, operands: list[Any]) -> list[Any]:
        loop = WhileLoop.of(eqn)
        condition_consts, consts, carry = loop.split(operands)
        return jax.lax.while_loop(
            lambda carry: self.nested(loop.condition, [*condition_consts, *carry])[0],
            lambda carry: _like(self.nested(loop.body, [*consts, *carry]), carry),
            carry,
        )

    def cond(self, eqn: Any, operands: list[Any]) -> list[Any]:
        index, *arguments = operands
        calls = [lambda values, b=body: self.nested(b, values) for body in branches(eqn)]
        return jax.lax.switch(index, calls, arguments)


def _settled(value: Any, dtype: Any) -> Any:
    """A value in the kind of number that tracked values of its dtype have."""
    if isinstance(value, ComplexPair):
        return value
    if _is_complex(dtype):
        return split(jnp.asarray(value))
    if is_half(dtype) or is_half(jnp.result_type(value)):
        return jnp.asarray(value, widened(dtype))
    return value


def _like(values: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    return jax.tree.map(lambda a, b: jnp.asarray(a, jnp.result_type(b)), list(values), list(others))


def _bind(eqn: Any, operands: list[Any], halves: set) -> list[Any]:
    """Evaluate an equation on widened operands; one that has equations inside, as it is."""
    if not halves:
        return compat.bind(eqn, *operands)
    name, params = eqn.primitive.name, dict(eqn.params)
    if name in _SCATTERS:
        kept = ("indices_are_sorted", "unique_indices", "mode")
        numbers = params["dimension_numbers"]
        return [_SCATTERS[name](*operands, numbers, **{k: params[k] for k in kept})]
    has_equations = any(hasattr(compat.open_jaxpr(v)[0], "eqns") for v in params.values())
    if has_equations or name == "bitcast_convert_type":
        pairs = zip(operands, eqn.invars, strict=True)
        return compat.bind(eqn, *(jnp.asarray(o, v.aval.dtype) for o, v in pairs))
    for key, value in params.items():
        if isinstance(value, np.dtype | type) and jax.dtypes.issubdtype(value, np.generic):
            params[key] = widened(value)
    return compat.bind(eqn.replace(params=params), *operands)
