"""The larger of two Gaussian values, and maxima over axes and windows built from it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.values import Uncertain


def larger(
    m1: Array, v1: Array, m2: Array, v2: Array, shared: Array | None = None
) -> tuple[Array, Array, Array]:
    """Mean and variance of max(x, y), and P(x > y), for jointly Gaussian x and y (Clark 1961).

        θ² = Var[x − y],  α = (m1 − m2)/θ,  E = m1 Φ(α) + m2 Φ(−α) + θ φ(α)
    """
    total = v1 + v2
    if shared is not None:
        total = total - 2.0 * shared
    theta = jnp.sqrt(jnp.maximum(total, 1e-60 if m1.dtype == jnp.float64 else 1e-20))
    gap = m1 - m2
    alpha = jnp.clip(gap / theta, -40.0, 40.0)
    density = jnp.exp(-0.5 * alpha * alpha) * float(1.0 / np.sqrt(2.0 * np.pi))
    first = 0.5 * jax.lax.erfc(-alpha * float(np.sqrt(0.5)))
    second = 0.5 * jax.lax.erfc(alpha * float(np.sqrt(0.5)))
    excess = theta * density + gap * jnp.where(gap > 0, -second, first)  # E[max] − larger mean
    mean = jnp.maximum(m1, m2) + excess
    # Second moment about the mean of the maximum, so that large means do not cancel.
    d1, d2 = m1 - mean, m2 - mean
    variance = (d1 * d1 + v1) * first + (d2 * d2 + v2) * second + (d1 + d2) * theta * density
    return mean, jnp.maximum(variance, 0.0), first


def _fold(means: list[Array], variances: list[Array]) -> tuple[Array, Array]:
    """Pairwise, as a balanced tree: each level treats the winners as Gaussian again."""
    while len(means) > 1:
        pairs = [
            larger(means[i], variances[i], means[i + 1], variances[i + 1])[:2]
            for i in range(0, len(means) - 1, 2)
        ]
        rest = [(means[-1], variances[-1])] if len(means) % 2 else []
        means, variances = map(list, zip(*pairs, *rest, strict=True))
    return means[0], variances[0]


_REMARK = "maximum as a tournament of pairs"


@declare("maximum", "reduce_max", "reduce_min")
def reduce_maximum(call: Call, x: Uncertain) -> Uncertain | Array:
    if call.walk.is_softmax_shift(call.node):
        # Any certain shift gives the same function; the one at the mean serves the numerics.
        call.say("exact", "shift of a softmax, taken at the mean")
        return call.bind(x.mean)
    sign = -1.0 if call.name == "reduce_min" else 1.0
    reduced = tuple(call.params["axes"])
    kept = [a for a in range(len(x.shape)) if a not in reduced]
    order = (*reduced, *kept)
    size = int(np.prod([x.shape[a] for a in reduced]))
    shape = (size, *(x.shape[a] for a in kept))
    mean = sign * jnp.transpose(x.mean, order).reshape(shape)
    variance = jnp.transpose(x.variance, order).reshape(shape)
    while mean.shape[0] > 1:
        half = mean.shape[0] // 2
        m, v, _ = larger(mean[:half], variance[:half], mean[half : 2 * half],
                         variance[half : 2 * half])  # fmt: skip
        mean = jnp.concatenate([m, mean[2 * half :]])
        variance = jnp.concatenate([v, variance[2 * half :]])
    entangled = frozenset(i for i, a in enumerate(kept) if a in x.entangled)
    _tell(call, x, set(reduced))
    return replace(x, mean=sign * mean[0], variance=variance[0], loads={}, entangled=entangled,
                   sums_to_one=None)  # fmt: skip


@declare("maximum", "reduce_window_max", "reduce_window_min")
def window_maximum(call: Call, x: Uncertain) -> Uncertain:
    """Max pooling: one strided view per place in the window."""
    params = call.params
    sign = -1.0 if call.name.endswith("min") else 1.0
    padding = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(params["padding"], params["base_dilation"], strict=True)
    ]
    # Padding never wins, and its square still fits into float32.
    mean = jax.lax.pad(sign * x.mean, jnp.asarray(-1e15, x.mean.dtype), padding)
    variance = jax.lax.pad(x.variance, jnp.asarray(0.0, x.variance.dtype), padding)
    window, strides = params["window_dimensions"], params["window_strides"]
    dilation = params["window_dilation"]
    out_shape = call.node.outputs[0].shape
    means, variances = [], []
    for place in itertools.product(*(range(n) for n in window)):
        start = [p * d for p, d in zip(place, dilation, strict=True)]
        limit = [s + (n - 1) * k + 1 for s, n, k in zip(start, out_shape, strides, strict=True)]
        means.append(jax.lax.slice(mean, start, limit, strides))
        variances.append(jax.lax.slice(variance, start, limit, strides))
    m, v = _fold(means, variances)
    _tell(call, x, {a for a, n in enumerate(window) if n > 1})
    return replace(x, mean=sign * m, variance=v, loads={}, sums_to_one=None)


def _tell(call: Call, x: Uncertain, reduced: set[int]) -> None:
    if x.entangled & reduced:
        call.say("independent", f"{_REMARK}; its elements are correlated")
    else:
        call.say("moment-matched", _REMARK)
