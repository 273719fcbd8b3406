"""The only place that reads JAX's private or version-dependent parts.

Supported: jax 0.10 (Python 3.11) and jax ≥ 0.12 (Python ≥ 3.12), where a closed jaxpr and a jaxpr
became one class and `scan` says in `ft_in` what it said in `num_consts` and `num_carry`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
from jax._src import core as _core
from jax._src import source_info_util as _source_info
from jax._src.interpreters import partial_eval as _partial_eval

Literal = _core.Literal
JaxprEqn = _core.JaxprEqn


def open_jaxpr(jaxpr: Any) -> tuple[Any, list]:
    """A jaxpr and its constants, whether or not this JAX keeps them apart."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, list(getattr(jaxpr, "consts", ()))


def trace(function, *args) -> tuple[Any, list]:
    """The jaxpr of ``function`` without its dead equations, and its constants."""
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(function)(*args))
    live, _ = _partial_eval.dce_jaxpr(jaxpr, True, instantiate=True)
    live = getattr(live, "jaxpr", live)
    if len(live.constvars) != len(consts):
        kept = set(live.constvars)
        consts = [c for v, c in zip(jaxpr.constvars, consts, strict=True) if v in kept]
    return live, consts


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts.vals)), len(list(carry.vals))


def bind(eqn: JaxprEqn, *operands: Any) -> list:
    """Evaluate one equation on plain arrays; always a list of results."""
    bindable = eqn.primitive.get_bind_params(eqn.params)
    subfunctions, params = bindable if isinstance(bindable, tuple) else ((), bindable)
    result = eqn.primitive.bind(*subfunctions, *operands, **params)
    return list(result) if eqn.primitive.multiple_results else [result]


def is_abstract(value: Any) -> bool:
    """Whether a value is a tracer that has no number, as within a compiled program."""
    return isinstance(value, jax.core.Tracer) and not _core.is_concrete(value)


def at_line_of(eqn: JaxprEqn) -> AbstractContextManager:
    """Attribute what is traced here to the line of user code behind an equation."""
    info = eqn.source_info
    names = _source_info.current_name_stack() + info.name_stack
    return _source_info.user_context(info.traceback, name_stack=names)


def source_line(eqn: JaxprEqn) -> str:
    """The user's ``file:line (function)`` behind an equation."""
    return _source_info.summarize(eqn.source_info)
