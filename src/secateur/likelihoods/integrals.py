"""Logarithms of one-dimensional integrals, accurate even where the integral underflows."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions.special import safe_sqrt

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)

# Nodes below exp(−30) of the peak contribute less than 1e-11 of the integral.
_NEGLIGIBLE = 30.0
# Two rounds of narrowing find a peak a thousand times narrower than the initial range.
_NARROWING = (48, 48)
_NODES = 128
# A Gaussian factor is negligible beyond this many deviations from the integrand's peak.
_REACH = 9.0


def log_integral(log_f: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Return ln ∫ exp(log_f(t)) dt between low and high, elementwise.

    The range is narrowed to where the integrand is not negligible, then the trapezoidal rule is
    applied, whose error falls geometrically with the number of nodes for analytic integrands that
    vanish at both ends. No gradient flows through the choice of nodes.

    Args:
        log_f: Smooth elementwise function of arrays of the shape of `low`, with one or two peaks.
        low: Lower limit; the integrand is negligible below it.
        high: Upper limit; the integrand is negligible above it.
    """
    low, high = jax.lax.stop_gradient((low, high))
    for count in _NARROWING:
        nodes, cell = _grid(low, high, count)
        values = jax.lax.stop_gradient(jax.vmap(log_f)(nodes))
        counts = values >= jnp.max(values, axis=0, keepdims=True) - _NEGLIGIBLE
        low = jnp.min(jnp.where(counts, nodes, jnp.inf), axis=0) - cell
        high = jnp.max(jnp.where(counts, nodes, -jnp.inf), axis=0) + cell
    nodes, cell = _grid(low, high, _NODES)
    return jax.nn.logsumexp(jax.vmap(log_f)(nodes), axis=0) + jnp.log(cell)


def _grid(low: Array, high: Array, count: int) -> tuple[Array, Array]:
    fraction = np.linspace(0.0, 1.0, count).reshape((-1,) + (1,) * low.ndim)
    nodes = low[None] + (high - low)[None] * jnp.asarray(fraction, low.dtype)
    return nodes, (high - low) / (count - 1)


def log_expectation_exp(log_g: Callable[[Array], Array], mean: Array, variance: Array) -> Array:
    """Return ln E[exp(log_g(x))] for x ~ N(mean, variance) and *concave* log_g, elementwise.

    Concavity makes the integrand single-peaked and at least as narrow as the Gaussian, so the peak
    is found by bisection. Error below 1e-6 while log_g bends over more than about 0.05 deviations;
    a step that is sharper than that (variance > 400 for a bend of unit scale) costs up to 1e-2.

    Args:
        log_g: Elementwise function of arrays of the shape of `mean`; finite everywhere.
        mean: Means of x.
        variance: Variances of x, same shape, 0 allowed.
    """
    deviation = safe_sqrt(variance)
    fixed_mean, fixed_deviation = jax.lax.stop_gradient((mean, deviation))

    def slope(z: Array) -> Array:
        x = fixed_mean + fixed_deviation * z
        return fixed_deviation * jax.jvp(log_g, (x,), (jnp.ones_like(x),))[1] - z

    # The log-integrand has curvature ≤ −1: its peak is no further from 0 than its slope there.
    at_zero = jnp.clip(slope(jnp.zeros_like(fixed_mean)), -1e9, 1e9)
    bracket = (jnp.minimum(at_zero, 0), jnp.maximum(at_zero, 0))

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        rising = slope(middle) > 0
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    low, high = jax.lax.fori_loop(0, 60, halve, bracket)
    peak = 0.5 * (low + high)
    # In s = z − peak, because around a peak at a million deviations z would lose its digits.
    centre = mean + deviation * peak
    reach = jnp.full_like(peak, _REACH)
    integral = log_integral(
        lambda s: log_g(centre + deviation * s) - s * (peak + 0.5 * s), -reach, reach
    )
    return integral - 0.5 * jnp.square(peak) - _HALF_LOG_2PI


def saturating_expm1(x: Array) -> Array:
    """Return e^x − 1, continued by its tangent (still convex) well before it would overflow."""
    limit = 0.5 * math.log(float(jnp.finfo(x.dtype).max))
    beyond = jnp.maximum(x - limit, 0)
    return jnp.expm1(jnp.minimum(x, limit)) + math.exp(limit) * beyond
