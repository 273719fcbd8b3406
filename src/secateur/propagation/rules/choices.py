"""A choice between two values by the sign of an uncertain one: PReLU with an uncertain slope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.propagation.covariances import combine_loads, compute_covariance
from secateur.propagation.rules.registry import Call
from secateur.propagation.uncertain_values import Uncertain, as_uncertain, deviation, merge_static

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
