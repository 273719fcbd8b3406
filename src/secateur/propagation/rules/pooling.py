"""Windows over positions: the strided views of a pooling operation, and their covariances."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.propagation.values import Uncertain
from secateur.quadrature import unit_legendre

# Beyond this, the pairs of places in a window are too many to follow.
LARGEST_WINDOW = 9

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
            # Element at ``second`` against the one δ before it; δ may be negative on some axes.
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
    """What correlation adds to the variance of each window's sum."""
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
    edges = [low, *inner, high]
    count = 24 if m.dtype == jnp.float64 else 12
    u, w = unit_legendre(count, centre)
    first, second = jnp.zeros_like(centre), jnp.zeros_like(centre)
    half = float(np.sqrt(0.5))
    for start, end in itertools.pairwise(edges):
        left, right = start[None], end[None]
        t = left + (right - left) * u
        z = (t[:, None] - m[None]) / sigma[None]
        below = jnp.prod(0.5 * jax.lax.erfc(-half * jnp.clip(z, -40.0, 40.0)), axis=1)
        # left of the centre −F, right of it 1 − F
        term = w * (right - left) * (jnp.where(t > centre[None], 1.0, 0.0) - below)
        first = first + jnp.sum(term, axis=0)
        second = second + 2.0 * jnp.sum(term * (t - centre[None]), axis=0)
    # Narrower than rounding, the maximum is the plain one, with its derivative.
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
