"""Whether a function of one value is defined on the whole real line, as a Gaussian requires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import Interpreter, KnownValue, Program, primitives, uniform_value

Bounds = tuple[float, float]
EVERYWHERE: Bounds = (-np.inf, np.inf)
# The lower end of the domain of each of these.
_DEFINED_FROM = {"sqrt": 0.0, "rsqrt": 0.0, "log": 0.0, "log2": 0.0, "pow": 0.0, "log1p": -1.0}
_RANGES: dict[str, Bounds] = {
    "exp": (0.0, np.inf), "exp2": (0.0, np.inf), "expm1": (-1.0, np.inf), "logistic": (0.0, 1.0),
    "tanh": (-1.0, 1.0), "sin": (-1.0, 1.0), "cos": (-1.0, 1.0), "erf": (-1.0, 1.0),
    "erfc": (0.0, 2.0), "cosh": (1.0, np.inf), "abs": (0.0, np.inf), "square": (0.0, np.inf),
    "sqrt": (0.0, np.inf), "rsqrt": (0.0, np.inf), "sign": (-1.0, 1.0),
}  # fmt: skip


def _times(x: Bounds, y: Bounds) -> Bounds:
    products = [a * b if a and b else 0.0 for a in x for b in y]
    return min(products), max(products)


def _monotone(function: Callable[[float], float], x: Bounds, start: float) -> Bounds:
    with np.errstate(over="ignore", divide="ignore"):
        return float(function(max(x[0], start))), float(function(max(x[1], start)))


def _apply(name: str, same: bool, params: dict, x: list[Bounds]) -> Bounds:
    """Bounds of a result from those of the operands."""
    if name in ("add", "add_any"):
        return x[0][0] + x[1][0], x[0][1] + x[1][1]
    if name == "sub":
        return x[0][0] - x[1][1], x[0][1] - x[1][0]
    if name == "neg":
        return -x[0][1], -x[0][0]
    if name == "mul":
        low, high = _times(*x)
        return (max(low, 0.0) if same else low), high
    if name == "div" and x[1][0] > 0.0:
        return _times(x[0], (1.0 / x[1][1], 1.0 / x[1][0]))
    if name in ("abs", "square") or (name == "integer_pow" and params["y"] in (2, 4, 6, 8)):
        power = int({"abs": 1, "square": 2}.get(name) or params["y"])
        highest = max(abs(x[0][0]), abs(x[0][1]))
        lowest = 0.0 if x[0][0] <= 0.0 <= x[0][1] else min(abs(x[0][0]), abs(x[0][1]))
        return float(lowest**power), float(highest**power)
    if name in ("max", "min"):
        pick = max if name == "max" else min
        return pick(x[0][0], x[1][0]), pick(x[0][1], x[1][1])
    if name == "clamp":
        return max(x[1][0], x[0][0]), min(x[1][1], x[2][1])
    if name == "select_n":
        return min(b[0] for b in x[1:]), max(b[1] for b in x[1:])
    if name == "sqrt":
        return _monotone(np.sqrt, x[0], 0.0)
    if name in ("log", "log1p"):
        return _monotone(getattr(np, name), x[0], _DEFINED_FROM[name])
    if name == "exp":
        return _monotone(np.exp, x[0], -np.inf)
    if name in primitives.STAYS_IN_PLACE:
        return x[0]
    return _RANGES.get(name, EVERYWHERE)


class DomainSearch(Interpreter):
    """Bounds of every value of a program, from those of its inputs (interval arithmetic).

    Attributes:
        is_total: Whether every operand lies in the domain of its operation.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.is_total = True

    def value(self, atom: Any) -> Bounds:
        """Return the bounds of an operand."""
        if atom in self.values:
            return self.values[atom]
        number = uniform_value(atom)
        if number is not None:
            return number, number
        known = atom.value if isinstance(atom, KnownValue) else None
        if not isinstance(known, np.ndarray) or not known.size or known.dtype.kind not in "fiub":
            return EVERYWHERE
        return float(known.min()), float(known.max())

    def apply_default(self, equation: Any, operands: list[Bounds]) -> list[Bounds]:
        """Return the bounds of a result, and record whether it may be undefined."""
        name = equation.name
        if name in _DEFINED_FROM and operands[0][0] < _DEFINED_FROM[name]:
            self.is_total = False
        same = len(equation.inputs) == 2 and equation.inputs[0] is equation.inputs[1]
        low, high = _apply(name, same, equation.params, operands)
        bounds = EVERYWHERE if np.isnan(low) or np.isnan(high) else (low, high)
        return [bounds] * len(equation.outputs)


def is_total(program: Program, root: Bounds = EVERYWHERE) -> bool:
    """Whether a program of one input is defined for all values of the input."""
    search = DomainSearch(program)
    search.run([root])
    return search.is_total


def within_domain(function: Callable[[Array], Array], inside: Array) -> Callable[[Array], Array]:
    """Return a function that has its value at ``inside`` wherever it is not defined.

    Both its values and its derivatives are finite there: it is never evaluated outside.
    """
    fixed = jax.lax.stop_gradient(inside)

    def total(x: Array) -> Array:
        defined = jnp.isfinite(jax.lax.stop_gradient(function(jax.lax.stop_gradient(x))))
        copied = tuple(a for a in range(x.ndim) if x.shape[a] != defined.shape[a])
        defined = jnp.all(defined, axis=copied, keepdims=True) if copied else defined
        return function(jnp.where(defined, x, fixed))

    return total
