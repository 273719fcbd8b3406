"""Special functions whose textbook formulas suffer from cancellation, in forms that do not.

Free energies are sums of many small differences; in float32 the textbook forms of
`x - 1 - ln x` and of differences of `ln Γ` lose them. Everything here is elementwise, takes
arrays of one shape, and keeps its precision relative to its *own* value, however small.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import digamma, gammaln
from jax.typing import ArrayLike

# Beyond this argument the first seven terms of Stirling's series reach float64 precision.
_STIRLING_FROM = 10.0
# B_2k / (2k (2k - 1)), the coefficients of z^(1 - 2k) in Stirling's series.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def broadcast(*values: ArrayLike) -> list[jax.Array]:
    """Give all values one inexact dtype and one shape, also under strict rank promotion."""
    dtype = jnp.result_type(float, *values)
    shape = jnp.broadcast_shapes(*(jnp.shape(value) for value in values))
    return [jnp.broadcast_to(jnp.asarray(value, dtype), shape) for value in values]


def safe_sqrt(x: jax.Array) -> jax.Array:
    """√x with gradient 0 instead of inf at x = 0, the variance of a pruned weight."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def log_ratio(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return ln(x/y) for positive x, y: accurate near x = y, and where x/y would overflow."""
    near = jnp.abs(x - y) < 0.25 * y
    step = jnp.where(near, (x - y) / y, 0)
    return jnp.where(near, jnp.log1p(step), jnp.log(x) - jnp.log(y))


@jax.custom_jvp
def kl_div(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return x ln(x/y) − x + y ≥ 0 for positive x, y; +inf at y = 0.

    This is the divergence of two Poisson distributions, and the shape that every variance,
    rate or scale takes in a Kullback–Leibler divergence: `r − 1 − ln r = kl_div(1, r)`. Near
    x = y it is of second order in their difference, hence the series there. At y = 0 the gradient
    is 0: a weight without variance has nothing to learn, and a masked +inf must not become nan.

    >>> float(kl_div(jnp.float32(1.0), jnp.float32(1.0009765625)))  # (r − 1)² / 2 to first order
    4.765...e-07
    """
    near = jnp.abs(y - x) < 0.25 * x
    close = jnp.where(near, y, x)
    # x (t − ln(1 + t)) with t = y/x − 1, by ln(1 + t) = 2 artanh(u), u = (y − x)/(x + y).
    u = (close - x) / (close + x)
    square = u * u
    tail = jnp.zeros_like(u)
    for order in reversed(range(10)):
        tail = tail * square + 1 / (2 * order + 3)
    series = u * ((close - x) - 2 * x * square * tail)
    far = jnp.minimum(jnp.where(near, 2 * x, y), jnp.finfo(x.dtype).max)  # inf − inf is nan
    return jnp.where(near, series, (far - x) + x * (jnp.log(x) - jnp.log(far)))


@kl_div.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    (x, y), (x_dot, y_dot) = primals, tangents
    positive = y > 0
    safe = jnp.where(positive, y, x)  # both slopes vanish at y = x
    return kl_div(x, y), log_ratio(x, safe) * x_dot + (safe - x) / safe * y_dot


@jax.custom_jvp
def stirling_remainder(z: jax.Array) -> jax.Array:
    """Return ln Γ(z) − (z − ½) ln z + z − ½ ln 2π."""
    large = z > _STIRLING_FROM
    inverse = 1 / jnp.where(large, z, _STIRLING_FROM)
    series = jnp.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        series = series * inverse**2 + coefficient
    small = jnp.where(large, 1, z)
    direct = gammaln(small) - (small - 0.5) * jnp.log(small) + small - 0.5 * math.log(2 * math.pi)
    return jnp.where(large, series * inverse, direct)


@stirling_remainder.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[jax.Array, jax.Array]:
    return stirling_remainder(*primals), stirling_remainder_slope(*primals) * tangents[0]


def stirling_remainder_slope(z: jax.Array) -> jax.Array:
    """ψ(z) − ln z + 1/(2z), the derivative of `stirling_remainder`."""
    large = z > _STIRLING_FROM
    inverse = 1 / jnp.where(large, z, _STIRLING_FROM)
    series = jnp.zeros_like(z)
    for order in reversed(range(len(_STIRLING))):
        series = series * inverse**2 - (2 * order + 1) * _STIRLING[order]
    small = jnp.where(large, 1, z)
    direct = digamma(small) - jnp.log(small) + 0.5 / small
    return jnp.where(large, series * inverse**2, direct)


def gammaln_difference(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return ln Γ(x) − ln Γ(y) for positive x, y, without cancellation."""
    leading = (x - y) * jnp.log(x) - kl_div(y, x) - 0.5 * log_ratio(x, y)
    # Stacked, because XLA compiles the long expansion of ln Γ again for every call.
    remainder = stirling_remainder(jnp.stack([x, y]))
    return leading + (remainder[0] - remainder[1])


def gammaln_divergence(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return ln Γ(x) − ln Γ(y) − (x − y) ψ(y) ≥ 0: the excess of ln Γ over its tangent at y."""
    return kl_div(x, y) + gammaln_residual_divergence(x, y)


def gammaln_residual_divergence(x: jax.Array, y: jax.Array) -> jax.Array:
    """`gammaln_divergence(x, y) − kl_div(x, y)`: ln Γ(z) without its leading term z ln z − z."""
    remainder = stirling_remainder(jnp.stack([x, y]))
    tangent = remainder[1] + (x - y) * stirling_remainder_slope(y)
    return kl_div(y, x) / (2 * y) + (remainder[0] - tangent)


def with_total(concentration: jax.Array) -> jax.Array:
    """Append the sum over the last axis to that axis: the arguments of ln Γ in ln B(α)."""
    return jnp.concatenate([concentration, concentration.sum(-1, keepdims=True)], -1)


def less_total(terms: jax.Array) -> jax.Array:
    """Sum the last axis with its last entry negated: Σ ln Γ(α_k) − ln Γ(Σα)."""
    return terms[..., :-1].sum(-1) - terms[..., -1]


def log_det(factor: jax.Array) -> jax.Array:
    """Return ln |C| of C = factor factorᵀ, from its Cholesky factor."""
    return 2 * jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)


def cholesky_of_live(covariance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cholesky factor with certain coordinates (variance exactly 0) replaced by unit ones.

    Returns the factor and the mask of certain coordinates; without any, the plain factor.
    """
    certain = jnp.diagonal(covariance, axis1=-2, axis2=-1) == 0
    touched = certain[..., :, None] | certain[..., None, :]
    identity = jnp.broadcast_to(
        jnp.eye(covariance.shape[-1], dtype=covariance.dtype), touched.shape
    )
    return jnp.linalg.cholesky(jnp.where(touched, identity, covariance)), certain


# Chebyshev fit of (1 + a)·Mills(a) on 0 ≤ a ≤ 40, in u = (a − 2.5)/(a + 2.5): to 4e-8.
_MILLS_MIDDLE = 2.5
_MILLS = (
    1.2399279,
    -0.229575441,
    -0.0945420077,
    0.115455193,
    -0.0218064103,
    -0.0151142977,
    0.00323168389,
    0.0030669414,
    -5.2477117e-05,
    -0.000492178511,
    -0.000104314245,
)


def normal_tail(a: Array, density: Array) -> Array:
    """Upper tail of the standard Normal, P(z > a) for 0 ≤ a ≤ 40, given its density at a.

        P(z > a) = φ(a) Mills(a)

    In float32 it reuses the density's exponential instead of calling `erfc`, with the same
    relative precision (2e-7); in float64 it is `erfc`.

    Example:
        >>> a = jnp.float32(1.0)
        >>> round(float(normal_tail(a, jnp.exp(-0.5 * a * a) / jnp.sqrt(2 * jnp.pi))), 6)
        0.158655
    """
    if a.dtype != jnp.float32:
        return 0.5 * jax.lax.erfc(math.sqrt(0.5) * a)
    u = (a - _MILLS_MIDDLE) / (a + _MILLS_MIDDLE)
    value = jnp.full_like(u, _MILLS[-1])
    for coefficient in _MILLS[-2::-1]:
        value = value * u + coefficient
    return density * value / (1.0 + a)
