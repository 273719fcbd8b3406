"""The table of rules, by primitive name, and how users add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from secateur.distributions import Normal
from secateur.equations import Equation
from secateur.equations.execution import execute_moments
from secateur.propagation.uncertain_values import Uncertain, to_normal

EXACTNESS = ("exact", "moment-matched", "quadrature", "first-order", "independent")


@dataclass
class Call:
    """One equation about to be evaluated on values of which at least one is uncertain."""

    equation: Equation
    walk: Any
    exactness: str = "exact"
    remark: str = ""

    @property
    def params(self) -> dict:
        return self.equation.params

    @property
    def name(self) -> str:
        return self.equation.name

    def bind(self, *operands: Any) -> Any:
        """The primitive on plain arrays."""
        results = self.walk.bind(self.equation, *operands)
        return results if self.equation.eqn.primitive.multiple_results else results[0]

    def bind_moments(self, x: Any, w: Uncertain) -> list[Any]:
        """The primitive on a signal and means, and on its square and variances."""
        if self.walk.portable:
            return [self.bind(x, w.mean), self.bind(x * x, w.variance)]
        return execute_moments(self.equation.eqn, x, w.mean, w.variance)

    def note(self, exactness: str, remark: str = "") -> None:
        """Record in the coverage table how exact this evaluation is."""
        self.exactness, self.remark = exactness, remark


@dataclass(frozen=True)
class Rule:
    """``apply(call, *operands)`` on arrays and Uncertain; ``linear``: kept by "local" too.

    ``is_linear(uncertain)`` returns whether a linear rule applies to these operands.
    """

    apply: Callable[..., Any]
    kind: str
    is_linear: Callable[[list[bool]], bool] = lambda uncertain: False


RULES: dict[str, Rule] = {}


def declare(kind: str, *names: str, linear: Callable[[list[bool]], bool] | bool = False):
    """Declare one function as the rule of all primitives of a kind."""

    def decorate(function: Callable) -> Callable:
        test = linear if callable(linear) else (lambda uncertain: bool(linear))
        for name in names:
            RULES[name] = Rule(function, kind, test)
        return function

    return decorate


def register_rule(
    primitive: str | Any, *, exactness: str = "moment-matched", linear: bool = False
) -> Callable:
    """Register a rule of ``moments`` (and ``local``, if linear) for a primitive.

    The decorated function is called as ``rule(bind, *operands, **params)``: ``bind`` evaluates the
    primitive on plain arrays, each operand is an array or a ``Normal``, ``params`` are the
    primitive's. It returns an array or a ``Normal`` (a list of them for several results).

    Args:
        primitive: A JAX primitive, or its name in the jaxpr.
        exactness: One of "exact", "moment-matched", "quadrature", "first-order", "independent";
            shown by ``coverage``.
        linear: The rule is a linear map of its uncertain operands, so ``local`` may use it too.

    Returns:
        A decorator.

    Example:
        >>> import jax.numpy as jnp, secateur as sc
        >>> @sc.register_rule("sort")
        ... def sort_by_mean(bind, x, **params):
        ...     order = jnp.argsort(x.mean)
        ...     return [sc.Normal(x.mean[order], x.variance[order])]
        >>> forward = sc.propagate(lambda w, x: jnp.sort(w * x), "moments")
        >>> belief = sc.Normal(jnp.array([3.0, 1.0]), jnp.array([0.1, 0.2]))
        >>> [float(m) for m in forward(None, belief, jnp.ones(2)).mean]
        [1.0, 3.0]
        >>> sc.unregister_rule("sort")
    """
    if exactness not in EXACTNESS:
        raise ValueError(f"exactness={exactness!r} is not known. Supported: {EXACTNESS}.")
    name = primitive if isinstance(primitive, str) else primitive.name

    def decorate(function: Callable) -> Callable:
        def apply(call: Call, *operands: Any) -> Any:
            call.note(exactness, f"registered rule {function.__name__}")
            results = function(call.bind, *map(to_normal, operands), **call.params)
            return jax.tree.map(
                _from_normal, results, is_leaf=lambda leaf: isinstance(leaf, Normal)
            )

        RULES[name] = Rule(apply, "registered", lambda uncertain: linear)
        return function

    return decorate


_BUILT_IN: dict[str, Rule] = {}


def unregister_rule(primitive: str | Any) -> None:
    """Undo :func:`register_rule` and restore the built-in rule, if there is one."""
    name = primitive if isinstance(primitive, str) else primitive.name
    if name in _BUILT_IN:
        RULES[name] = _BUILT_IN[name]
    else:
        RULES.pop(name, None)


def seal() -> None:
    """Store the built-in rules, once all are declared."""
    _BUILT_IN.update(RULES)


def _from_normal(result: Any) -> Any:
    if isinstance(result, Normal):
        return Uncertain(result.mean, result.variance, entangled=frozenset(range(64)))
    return result
