"""Elementwise operations of two values of which at least one is uncertain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur import quadrature
from secateur.equations import primitives
from secateur.propagation.covariances import (
    NO_LOADS,
    add_neighbours,
    combine_loads,
    compute_covariance,
)
from secateur.propagation.rules.maxima import larger
from secateur.propagation.rules.registry import Call, declare
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
    x, y = _pair(call, x, y)
    sign = -1.0 if call.name == "sub" else 1.0
    variance, add_factor = add_factors(x, y, sign)
    shared = compute_covariance(x.loads, y.loads)
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
    axis = call.walk.normalised_axis(call.equation)
    if axis is not None:
        call.note("moment-matched", "normalisation (softmax) as a whole")
        return normalise(call.walk.logarithm_of(call.equation.inputs[0]), axis)
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


def normalise(x: Uncertain, axis: int) -> Uncertain:
    """exp(x_i)/Σ_j exp(x_j) for independent Gaussian x.

    The share of element i is σ(x_i − ln Σ_{j≠i} e^{x_j}); the sum of log-normals counts as one
    log-normal of the same two moments (Fenton–Wilkinson), so the argument is Gaussian.
    """
    top = jax.lax.stop_gradient(jnp.max(x.mean + 0.5 * x.variance, axis=axis, keepdims=True))
    first = jnp.exp(x.mean + 0.5 * x.variance - top)
    second = first * first * jnp.expm1(jnp.minimum(x.variance, 30.0))
    tiny = jnp.finfo(first.dtype).tiny ** 0.25
    others = jnp.maximum(jnp.sum(first, axis=axis, keepdims=True) - first, tiny)
    spread = jnp.maximum(jnp.sum(second, axis=axis, keepdims=True) - second, 0.0)
    log_variance = jnp.log1p(spread / (others * others))
    centre = x.mean - top - (jnp.log(others) - 0.5 * log_variance)
    mean, variance = quadrature.moments(jax.nn.sigmoid, centre, x.variance + log_variance)
    # The shares sum to one by construction, their moment-matched means only nearly.
    total = jnp.sum(mean, axis=axis, keepdims=True)
    return replace(
        x,
        mean=mean / total,
        variance=variance,
        loads=NO_LOADS,
        entangled=x.entangled | {axis},
        sums_to_one=axis,
        neighbours=None,
    )


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
