"""Products over axes, and running products, maxima and logsumexps: element after element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.propagation.covariances import NO_LOADS
from secateur.propagation.rules.maxima import larger
from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.uncertain_values import Uncertain

Moments = tuple[Array, Array]


def _product(x: Moments, y: Moments) -> Moments:
    """Moments of x·y for independent x and y: all terms are positive, so that none cancels."""
    (m1, v1), (m2, v2) = x, y
    return m1 * m2, m1 * m1 * v2 + m2 * m2 * v1 + v1 * v2


def _largest(x: Moments, y: Moments) -> Moments:
    mean, variance, _ = larger(*x, *y)
    return mean, variance


def _result(
    call: Call, x: Uncertain, moments: Moments, axes: set[int], kept: frozenset
) -> Uncertain:
    if x.entangled & axes:
        call.note("independent", "its elements are correlated")
    return replace(
        x, mean=moments[0], variance=moments[1], loads=NO_LOADS, entangled=kept,
        sums_to_one=None, neighbours=None,
    )  # fmt: skip


@declare("product over axes", "reduce_prod")
def reduce_product(call: Call, x: Uncertain) -> Uncertain:
    """Pairs of elements, then pairs of pairs."""
    axes = tuple(call.params["axes"])
    kept = [a for a in range(x.mean.ndim) if a not in axes]
    shape = (int(np.prod([x.shape[a] for a in axes])), *(x.shape[a] for a in kept))
    mean, variance = (a.transpose(*axes, *kept).reshape(shape) for a in (x.mean, x.variance))
    while mean.shape[0] > 1:
        half = mean.shape[0] // 2
        pairs = _product(
            (mean[:half], variance[:half]), (mean[half : 2 * half], variance[half : 2 * half])
        )
        mean = jnp.concatenate([pairs[0], mean[2 * half :]])
        variance = jnp.concatenate([pairs[1], variance[2 * half :]])
    entangled = frozenset(i for i, a in enumerate(kept) if a in x.entangled)
    return _result(call, x, (mean[0], variance[0]), set(axes), entangled)


def _accumulate(call: Call, x: Uncertain, combine: Callable, moments: Moments) -> Uncertain:
    axis, reverse = call.params["axis"], call.params["reverse"]
    result = jax.lax.associative_scan(combine, moments, axis=axis, reverse=reverse)
    return _result(call, x, result, {axis}, x.entangled | {axis})


@declare("running product", "cumprod")
def running_product(call: Call, x: Uncertain) -> Uncertain:
    return _accumulate(call, x, _product, (x.mean, x.variance))


@declare("running maximum", "cummax", "cummin")
def running_maximum(call: Call, x: Uncertain) -> Uncertain:
    """Each winner is treated as Gaussian again."""
    call.note("moment-matched", "maximum of the elements so far, two by two")
    sign = -1.0 if call.name == "cummin" else 1.0
    result = _accumulate(call, x, _largest, (sign * x.mean, x.variance))
    return replace(result, mean=sign * result.mean)


@declare("running logsumexp", "cumlogsumexp")
def running_logsumexp(call: Call, x: Uncertain) -> Uncertain:
    """The sum of log-normals is treated as a log-normal with the same two moments."""
    call.note("moment-matched", "a sum of log-normals as a log-normal")
    narrow = jnp.maximum(x.variance, 1e-30)
    spread = jnp.where(narrow < 1.0, jnp.expm1(narrow), 1.0)
    log_spread = jnp.where(narrow < 1.0, jnp.log(spread), narrow + jnp.log1p(-jnp.exp(-narrow)))
    first = call.bind(x.mean + 0.5 * x.variance)
    second = call.bind(2.0 * x.mean + x.variance + log_spread)
    variance = jnp.log1p(jnp.exp(second - 2.0 * first))
    axis = call.params["axis"]
    return _result(call, x, (first - 0.5 * variance, variance), {axis}, x.entangled | {axis})
