"""Windows of a pooling operation, and maxima of Gaussian values over pairs, axes and windows."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions.special import normal_tail
from secateur.propagation.covariances import NO_LOADS
from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.uncertain_values import Uncertain
from secateur.quadrature import unit_legendre

# Largest number of places in a window for which all pairs are tracked.
LARGEST_WINDOW = 9

# In place of −∞; its square still fits into float32.
FAR_BELOW = -1e15

Place = tuple[int, ...]


class Windows:
    """One array per place in the window, each in the shape of the pooled result."""

    def __init__(self, params: dict, out_shape: tuple[int, ...]):
        self.window = params["window_dimensions"]
        self.strides = params["window_strides"]
        self.dilation = params["window_dilation"]
        self.padding = [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(
                params["padding"], params["base_dilation"], strict=True
            )
        ]
        self.out_shape = out_shape
        self.places: list[Place] = list(itertools.product(*(range(n) for n in self.window)))

    def view(self, array: Array, place: Place, fill: float) -> Array:
        padded = jax.lax.pad(array, jnp.asarray(fill, array.dtype), self.padding)
        start = [p * d for p, d in zip(place, self.dilation, strict=True)]
        limit = [
            s + (n - 1) * k + 1 for s, n, k in zip(start, self.out_shape, self.strides, strict=True)
        ]
        return jax.lax.slice(padded, start, limit, self.strides)

    def covariances(self, x: Uncertain) -> dict[tuple[int, int], Array]:
        """Cov of the elements at two places of the window, for every pair of places i < j."""
        assert x.neighbours is not None
        cache: dict[Any, Array] = {}
        pairs = {}
        for (i, first), (j, second) in itertools.combinations(enumerate(self.places), 2):
            # The element at ``second`` and the one δ before it; δ may be negative on some axes.
            shift = {
                axis: (b - a) * d
                for axis, (a, b, d) in enumerate(zip(first, second, self.dilation, strict=True))
                if a != b
            }
            name = tuple(sorted(shift.items()))
            if name not in cache:
                cache[name] = x.neighbours(shift)
            pairs[i, j] = self.view(cache[name], second, 0.0)
        return pairs


def sum_of_covariances(params: dict, x: Uncertain, out_shape: tuple[int, ...]) -> Array:
    """The contribution of correlation to the variance of each window's sum."""
    pairs = Windows(params, out_shape).covariances(x)
    if not pairs:
        return jnp.zeros(out_shape, x.mean.dtype)
    return 2.0 * sum(list(pairs.values())[1:], start=next(iter(pairs.values())))


def moments_of_maximum(means: list[Array], variances: list[Array]) -> tuple[Array, Array]:
    """Mean and variance of the largest of a few independent Gaussians, by quadrature.

        E[M] = c + ∫_c^∞ (1 − F) − ∫_{−∞}^c F
        E[(M − c)²] = 2∫_c^∞ (t − c)(1 − F) + 2∫_{−∞}^c (c − t)F

    with F(t) = Π_i Φ((t − m_i)/σ_i), in panels between the means so that a step (an operand that
    is certain) never falls inside one.
    """
    m, v = jnp.stack(means), jnp.stack(variances)
    sigma = jnp.sqrt(jnp.maximum(v, 1e-60 if m.dtype == jnp.float64 else 1e-20))
    fixed_m, fixed_sigma = jax.lax.stop_gradient((m, sigma))
    reach = 7.0 if m.dtype == jnp.float64 else 5.5
    centre = jnp.max(fixed_m, axis=0)
    low = jnp.max(fixed_m - reach * fixed_sigma, axis=0)
    high = jnp.max(fixed_m + reach * fixed_sigma, axis=0)
    inner = jnp.sort(jnp.clip(fixed_m, low[None], high[None]), axis=0)
    edges = jnp.concatenate([low[None], inner, high[None]])[:, None]
    count = 24 if m.dtype == jnp.float64 else 12
    u, w = unit_legendre(count, centre)
    # All panels at once: axes are panels, places in a panel, and those of the result.
    length = edges[1:] - edges[:-1]
    t = edges[:-1] + length * u[None]
    z = (t[:, :, None] - m[None, None]) / sigma[None, None]
    below = jnp.prod(0.5 * jax.lax.erfc(-float(np.sqrt(0.5)) * jnp.clip(z, -40.0, 40.0)), axis=2)
    # left of the centre −F, right of it 1 − F
    above = t - centre[None, None]
    term = w[None] * length * (jnp.where(above > 0.0, 1.0, 0.0) - below)
    first = jnp.sum(term, axis=(0, 1))
    second = 2.0 * jnp.sum(term * above, axis=(0, 1))
    # Below rounding, this is the plain maximum, with its derivative.
    certain = high - low <= 1e3 * jnp.finfo(m.dtype).eps * jnp.abs(centre)
    plain_mean, plain_variance = largest_mean(m, v)
    mean = jnp.where(certain, plain_mean, centre + first)
    return mean, jnp.where(certain, plain_variance, jnp.maximum(second - first * first, 0.0))


def largest_mean(m: Array, v: Array) -> tuple[Array, Array]:
    """The largest mean and its variance."""
    winner = jnp.argmax(m, axis=0)[None]
    return (
        jnp.take_along_axis(m, winner, axis=0)[0],
        jnp.take_along_axis(v, winner, axis=0)[0],
    )


def larger(
    m1: Array, v1: Array, m2: Array, v2: Array, shared: Array | None = None
) -> tuple[Array, Array, Array]:
    """Mean and variance of max(x, y), and P(x > y), for jointly Gaussian x and y (Clark 1961).

    θ² = Var[x − y],  α = (m1 − m2)/θ,  E = m1 Φ(α) + m2 Φ(−α) + θ φ(α)

    A mean of −∞ is that of an element which is left out.
    """
    left_out = jnp.isneginf(m1) & jnp.isneginf(m2)
    m1, m2 = (jnp.where(jnp.isneginf(m), FAR_BELOW, m) for m in (m1, m2))
    total = v1 + v2
    if shared is not None:
        total = total - 2.0 * shared
    theta = jnp.sqrt(jnp.maximum(total, 1e-60 if m1.dtype == jnp.float64 else 1e-20))
    gap = m1 - m2
    alpha = jnp.clip(gap / theta, -40.0, 40.0)
    density = jnp.exp(-0.5 * alpha * alpha) * float(1.0 / np.sqrt(2.0 * np.pi))
    # One tail for both: it takes most of the time to compile.
    wins = alpha > 0
    tail = normal_tail(jnp.where(wins, alpha, -alpha), density)
    first, second = jnp.where(wins, 1.0 - tail, tail), jnp.where(wins, tail, 1.0 - tail)
    excess = theta * density - jnp.where(wins, gap, -gap) * tail  # E[max] − larger mean
    mean = jnp.maximum(m1, m2) + excess
    # Second moment about the mean of the maximum, so that large means do not cancel.
    d1, d2 = m1 - mean, m2 - mean
    variance = (d1 * d1 + v1) * first + (d2 * d2 + v2) * second + (d1 + d2) * theta * density
    mean = jnp.where(left_out, -jnp.inf, mean)
    return mean, jnp.maximum(variance, 0.0), first


def tournament(
    means: list[Array], variances: list[Array], covariances: dict[tuple[int, int], Array]
) -> tuple[Array, Array]:
    """The largest of several correlated Gaussians, pairwise, as a balanced tree.

    Each winner is treated as Gaussian again; its covariance with a third value is that of the two
    candidates, weighted by their probability of winning:  Cov(max(x, y), z) = Cov(x, z) P(x > y) +
    Cov(y, z) P(y > x).
    """
    while len(means) > 1:
        next_means, next_variances, weights = [], [], []
        for i in range(0, len(means) - 1, 2):
            shared = covariances.get((i, i + 1))
            m, v, p = larger(means[i], variances[i], means[i + 1], variances[i + 1], shared)
            next_means.append(m)
            next_variances.append(v)
            weights.append([(i, p), (i + 1, 1.0 - p)])
        if len(means) % 2:
            next_means.append(means[-1])
            next_variances.append(variances[-1])
            weights.append([(len(means) - 1, jnp.ones_like(means[-1]))])
        if covariances:
            covariances = {
                (a, b): _weighted(covariances, weights[a], weights[b])
                for a, b in itertools.combinations(range(len(weights)), 2)
            }
        means, variances = next_means, next_variances
    return means[0], variances[0]


def _weighted(covariances: dict[tuple[int, int], Array], first: list, second: list) -> Array:
    terms = [p * q * covariances[i, j] for i, p in first for j, q in second]
    return functools.reduce(jnp.add, terms)


_REMARK = "maximum as a tournament of pairs"


@declare("maximum", "reduce_max", "reduce_min")
def reduce_maximum(call: Call, x: Uncertain) -> Uncertain | Array:
    if call.walk.is_shift(call.equation):
        # Any certain shift gives the same function; the one at the mean is numerically stable.
        call.note("exact", "shift of a softmax, taken at the mean")
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
    _note_exactness(call, x, set(reduced))
    return replace(x, mean=sign * mean[0], variance=variance[0], loads=NO_LOADS,
                   entangled=entangled, sums_to_one=None, neighbours=None)  # fmt: skip


@declare("maximum", "reduce_window_max", "reduce_window_min")
def window_maximum(call: Call, x: Uncertain) -> Uncertain:
    """Max pooling."""
    sign = -1.0 if call.name.endswith("min") else 1.0
    windows = Windows(call.params, call.equation.outputs[0].shape)
    means = [windows.view(sign * x.mean, place, FAR_BELOW) for place in windows.places]
    variances = [windows.view(x.variance, place, 0.0) for place in windows.places]
    small = len(means) <= LARGEST_WINDOW
    pooled = {a for a, n in enumerate(windows.window) if n > 1}
    if small and not x.entangled & pooled:
        m, v = moments_of_maximum(means, variances)
        call.note("quadrature", "maximum of independent values")
    elif small and x.neighbours is not None:
        m, v = tournament(means, variances, windows.covariances(x))
        call.note("first-order", f"{_REMARK} with their covariance")
    else:
        m, v = tournament(means, variances, {})
        _note_exactness(call, x, pooled)
    return replace(x, mean=sign * m, variance=v, loads=NO_LOADS, sums_to_one=None, neighbours=None)


def _note_exactness(call: Call, x: Uncertain, reduced: set[int]) -> None:
    if x.entangled & reduced:
        call.note("independent", f"{_REMARK}; its elements are correlated")
    else:
        call.note("moment-matched", _REMARK)
