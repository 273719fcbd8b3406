"""Elementwise operations of two values of which at least one is uncertain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from secateur.equations import primitives
from secateur.propagation.covariances import (
    NO_LOADS,
    add_neighbours,
    combine_loads,
    compute_covariance,
)
from secateur.propagation.rules.maxima import larger
from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.shares import Sharing, log_share_moments, share_moments
from secateur.propagation.uncertain_values import Uncertain, as_uncertain, merge_static, spread_to
from secateur.propagation.unit_factors import add_factors


def _pair(call: Call, x: Any, y: Any) -> tuple[Uncertain, Uncertain]:
    shape = call.equation.outputs[0].shape
    return spread_to(as_uncertain(x), shape), spread_to(as_uncertain(y), shape)


def _note_exactness(
    call: Call, x: Uncertain, y: Uncertain, shared: Array | None, otherwise: str
) -> None:
    if shared is not None:
        call.note("first-order", "covariance of its operands kept to first order")
    elif x.ancestors & y.ancestors:
        call.note("independent", "its operands depend on the same weights")
    else:
        call.note(otherwise)


@declare("sum of two", *primitives.SUMS, linear=True)
def add(call: Call, x: Any, y: Any) -> Uncertain:
    """x ± y:   Var = Var[x] + Var[y] ± 2 Cov(x, y)."""
    sharing = call.walk.shares.find(call.equation) if call.name == "sub" else None
    if sharing is not None and call.walk.how != "local":
        call.note("moment-matched", "logarithm of a softmax as a whole")
        x = call.walk.logarithm_of(sharing.exponentials)
        return _as_share(x, sharing, *log_share_moments(sharing, x.mean, x.variance))
    x, y = _pair(call, x, y)
    sign = -1.0 if call.name == "sub" else 1.0
    variance, add_factor = add_factors(x, y, sign)
    shared = compute_covariance(x.loads, y.loads)
    factor = call.walk.shares.centring(call.equation) if call.name == "sub" else None
    if factor is not None:
        shared = factor * x.variance  # Cov(x_i, c Σ_j x_j) of independent elements
    if shared is not None:
        variance = jnp.maximum(variance + 2.0 * sign * shared, 0.0)
    _note_exactness(call, x, y, shared, "exact")
    total = replace(
        merge_static([x, y]),
        mean=x.mean + sign * y.mean,
        variance=variance,
        loads=combine_loads(x.loads, y.loads, 1.0, sign),
        neighbours=add_neighbours(x, y),
    )
    return add_factor(total)


def multiply(x: Uncertain, y: Uncertain, shared: Array | None) -> Uncertain:
    """x·y for jointly Gaussian x and y.

    E = x̄ȳ + c      Var = x̄² Var[y] + ȳ² Var[x] + Var[x]Var[y] + 2x̄ȳc + c²,   c = Cov(x, y)
    """
    mean = x.mean * y.mean
    variance = x.mean * x.mean * y.variance + y.mean * y.mean * x.variance + x.variance * y.variance
    if shared is not None:
        variance = jnp.maximum(variance + 2.0 * mean * shared + shared * shared, 0.0)
        mean = mean + shared
    return replace(
        merge_static([x, y]),
        mean=mean,
        variance=variance,
        loads=combine_loads(x.loads, y.loads, y.mean, x.mean),
    )


@declare("product of two", "mul")
def mul(call: Call, x: Any, y: Any) -> Uncertain:
    x, y = _pair(call, x, y)
    shared = compute_covariance(x.loads, y.loads)
    _note_exactness(call, x, y, shared, "exact")
    return multiply(x, y, shared)


@declare("quotient of two", "div")
def div(call: Call, x: Any, y: Any) -> Uncertain:
    """x/y as x·(1/y) with y log-normal; x/Σx, the last step of a softmax, as a whole."""
    sharing = call.walk.shares.find(call.equation)
    if sharing is not None:
        call.note("moment-matched", "normalisation (softmax) as a whole")
        return normalise(call, sharing)
    x, y = _pair(call, x, y)
    shared = compute_covariance(x.loads, y.loads)
    size = jnp.maximum(jnp.abs(y.mean), jnp.finfo(y.mean.dtype).tiny ** 0.25)
    ratio = y.variance / (size * size)
    sign = jnp.where(y.mean < 0, -1.0, 1.0).astype(y.mean.dtype)
    # E[1/y] = (1 + r)/m and Var[1/y] = r (1 + r)²/m² for a log-normal with r = Var/m².
    inverse = y.with_moments(
        sign * (1.0 + ratio) / size,
        ratio * (1.0 + ratio) ** 2 / (size * size),
        lambda: -1.0 / (size * size),
    )
    _note_exactness(call, x, y, shared, "moment-matched")
    if shared is not None:
        shared = -shared / (size * size)
    return multiply(x, inverse, shared)


def normalise(call: Call, sharing: Sharing) -> Uncertain:
    """exp(x_i)/Σ_j exp(x_j) as a whole, from the logarithms of the terms."""
    x = call.walk.logarithm_of(sharing.exponentials)
    chosen = None if sharing.chosen is None else call.walk.value(sharing.chosen)
    mean, variance = share_moments(sharing, x.mean, x.variance, chosen)
    return _as_share(x, sharing, mean, variance, sums_to_one=sharing.axis)


def _as_share(
    x: Uncertain, sharing: Sharing, mean: Array, variance: Array, *, sums_to_one: int | None = None
) -> Uncertain:
    every = range(mean.ndim) if sharing.axis is None else (sharing.axis,)
    return replace(
        x, mean=mean, variance=variance, loads=NO_LOADS, entangled=x.entangled | {*every},
        sums_to_one=sums_to_one, neighbours=None,
    )  # fmt: skip


@declare("larger of two", "max", "min")
def maximum(call: Call, x: Any, y: Any) -> Uncertain:
    x, y = _pair(call, x, y)
    shared = compute_covariance(x.loads, y.loads)
    sign = -1.0 if call.name == "min" else 1.0
    mean, variance, weight = larger(sign * x.mean, x.variance, sign * y.mean, y.variance, shared)
    _note_exactness(call, x, y, shared, "exact")
    return replace(
        merge_static([x, y]),
        mean=sign * mean,
        variance=variance,
        loads=combine_loads(x.loads, y.loads, weight, 1.0 - weight),
    )
