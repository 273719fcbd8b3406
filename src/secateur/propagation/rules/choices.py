"""Choices by an uncertain truth value, such as PReLU with an uncertain slope; logic of those.

A choice by the sign of a value is taken as a whole (`choose`). Any other truth value is a number of
its own, 1 where it holds and 0 elsewhere, whose mean is its probability p and whose variance is
p (1 − p).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.propagation.covariances import combine_loads, compute_covariance
from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.uncertain_values import (
    Uncertain,
    as_uncertain,
    deviation,
    merge_static,
    spread_to,
)

_FURTHEST = 30.0  # standard deviations; beyond, the choice is certain in every precision


def _below(t: Array) -> Array:
    return 0.5 * jax.lax.erfc(-t / float(np.sqrt(2.0)))


def subtract(x: Uncertain, y: Uncertain, sign: float) -> Uncertain:
    """±(x − y), with the covariance of the two to first order."""
    shared = compute_covariance(x.loads, y.loads)
    variance = x.variance + y.variance - (0.0 if shared is None else 2.0 * shared)
    return replace(
        merge_static([x, y]),
        mean=sign * (x.mean - y.mean),
        variance=jnp.maximum(variance, 0.0),
        loads=combine_loads(x.loads, y.loads, sign, -sign),
    )


def is_positive(difference: Uncertain) -> Uncertain:
    """The truth value d > 0 as a number, for d ~ N(μ, σ²)."""
    spread = deviation(difference.variance)
    t = jnp.clip(difference.mean / spread, -_FURTHEST, _FURTHEST)
    share = _below(t)
    slope = jnp.exp(-0.5 * t * t) / float(np.sqrt(2.0 * np.pi)) / spread
    return difference.with_moments(share, share * (1.0 - share), lambda: slope)


def mix(call: Call, truth: Uncertain, if_false: Any, if_true: Any) -> Uncertain:
    """b ? x : y   for a truth value b of probability p, by the covariance of b with x and y.

    E = p x̄ + (1−p) ȳ + Cov(b, x) − Cov(b, y)
    E[·²] = p (x̄² + Var[x]) + (1−p)(ȳ² + Var[y]) + 2x̄ Cov(b, x) − 2ȳ Cov(b, y)
    """
    shape = call.equation.outputs[0].shape
    truth, x, y = (spread_to(as_uncertain(v), shape) for v in (truth, if_true, if_false))
    p = truth.mean
    mean, shared = p * x.mean + (1.0 - p) * y.mean, []
    for value, sign in ((x, 1.0), (y, -1.0)):
        covariance = compute_covariance(value.loads, truth.loads)
        shared.append(jnp.zeros_like(mean) if covariance is None else sign * covariance)
    mean = mean + shared[0] + shared[1]
    second = jnp.zeros_like(mean)
    for value, share, covariance in ((x, p, shared[0]), (y, 1.0 - p, shared[1])):
        centred = value.mean - mean
        second += share * (centred * centred + value.variance) + 2.0 * centred * covariance
    loads = combine_loads(x.loads, y.loads, p, 1.0 - p)
    loads = combine_loads(loads, truth.loads, 1.0, x.mean - y.mean)
    call.note("first-order", "chosen by an uncertain value: covariance kept to first order")
    uncertain = [v for v in (truth, x, y) if v.ancestors]
    variance = jnp.maximum(second, 0.0)
    return replace(merge_static(uncertain), mean=mean, variance=variance, loads=loads)


@declare("logic", "and", "or", "xor", "not")
def combine_truths(call: Call, *operands: Any) -> Uncertain:
    """Probabilities: E[x ∧ y] = p q + Cov,  x ∨ y = x + y − x∧y,  x ⊻ y = x + y − 2 x∧y."""
    shape = call.equation.outputs[0].shape
    dtype = next(o.mean.dtype for o in operands if isinstance(o, Uncertain))
    x, *others = (
        spread_to(as_uncertain(o if isinstance(o, Uncertain) else jnp.asarray(o, dtype)), shape)
        for o in operands
    )
    if call.name == "not":
        return x.with_moments(1.0 - x.mean, x.variance, lambda: -jnp.ones_like(x.mean))
    (y,) = others
    shared = compute_covariance(x.loads, y.loads)
    both = x.mean * y.mean + (0.0 if shared is None else shared)
    own, product = {"and": (0.0, 1.0), "or": (1.0, -1.0), "xor": (1.0, -2.0)}[call.name]
    mean = jnp.clip(own * (x.mean + y.mean) + product * both, 0.0, 1.0)
    if shared is not None:
        call.note("first-order", "covariance of its operands kept to first order")
    elif x.ancestors & y.ancestors:
        call.note("independent", "its operands depend on the same weights")
    loads = combine_loads(x.loads, y.loads, own + product * y.mean, own + product * x.mean)
    variance = mean * (1.0 - mean)
    return replace(merge_static([x, y]), mean=mean, variance=variance, loads=loads)


def choose(call: Call, difference: Uncertain, if_positive: Any, if_negative: Any) -> Uncertain:
    """d > 0 ? a : b for a and b jointly Gaussian with d ~ N(μ, σ²), by conditioning on d.

    With t = μ/σ, β = Cov(a, d)/σ and a measured from E[y],

        E[a; d>0] = Φ(t) ā + β φ(t)        E[a²; d>0] = Φ(t)(ā² + Var[a]) + (2ā − β t) β φ(t)

    and likewise for b with −d. Covariances are those kept to first order.

    Args:
        call: The equation.
        difference: What has to be positive.
        if_positive: The result where it is.
        if_negative: The result where it is not.
    """
    a, b = as_uncertain(if_positive), as_uncertain(if_negative)
    spread = deviation(difference.variance)
    t = jnp.clip(difference.mean / spread, -_FURTHEST, _FURTHEST)
    density = jnp.exp(-0.5 * t * t) / float(np.sqrt(2.0 * np.pi))
    parts = []
    for value, sign in ((a, 1.0), (b, -1.0)):
        covariance = compute_covariance(value.loads, difference.loads)
        slope = jnp.zeros_like(t) if covariance is None else sign * covariance / spread
        parts.append((value, _below(sign * t), slope, sign * t))
    mean, second = jnp.zeros_like(t), jnp.zeros_like(t)
    for v, share, slope, _ in parts:
        mean += share * v.mean + slope * density
    for v, share, slope, place in parts:
        centred = v.mean - mean
        second += share * (centred * centred + v.variance)
        second += (2.0 * centred - slope * place) * slope * density
    (_, share_a, slope_a, _), (_, share_b, slope_b, _) = parts
    loads = combine_loads(a.loads, b.loads, share_a, share_b)
    # What moves the difference moves the choice: by the jump between a and b where d = 0.
    jump = (a.mean - slope_a * t) - (b.mean + slope_b * t)
    loads = combine_loads(loads, difference.loads, 1.0, jump * density / spread)
    call.note("first-order", "chosen by an uncertain value: covariance kept to first order")
    uncertain = [v for v in (difference, a, b) if v.ancestors]
    variance = jnp.maximum(second, 0.0)
    return replace(merge_static(uncertain), mean=mean, variance=variance, loads=loads)
