"""Softmax of independent Normal logits, as one-dimensional integrals by the Gumbel-max identity.

With independent standard Gumbel G_j,  argmax_j (x_j + G_j)  is class y with probability
softmax(x)_y, and  max_j (x_j + G_j)  has mean  logsumexp(x) + γ_Euler.  For independent random x_j
the distribution function of the maximum is a product, so that with the distribution function F_j
and the density f_j of x_j + G_j

    E[logsumexp(x)] = ∫ u d Π_j F_j(u) − γ_Euler      E[softmax(x)_y] = ∫ f_y(u) Π_{j≠y} F_j(u) du

The Gumbel density is represented by eight Normals, so that F_j and f_j have closed forms for any
variance, zero or huge, without an inner integral.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import erf, erfc

from secateur.distributions.special import safe_sqrt
from secateur.likelihoods.integrals import log_expectation_exp, saturating_expm1
from secateur.propagation.logistic import LOGISTIC_SCALES, LOGISTIC_SHARES

# Least squares on the distribution function, weighted towards the tail, with mean, variance and
# E[exp(−G)] = 1 matched; the distribution function is then within 2.1e-4 everywhere.
_WEIGHT = (0.0514393, 0.1976190, 0.2961440, 0.2518383, 0.1392242, 0.0513608, 0.0113920, 0.0009824)
_MEAN = (-1.0408920, -0.4633359, 0.1720451, 0.9039022, 1.7713289, 2.8185446, 4.1027850, 5.7226214)
_SCALE = (0.3932487, 0.4922657, 0.6173813, 0.7838049, 1.0096111, 1.3213053, 1.7675362, 2.4782762)

# Nodes over u: enough that the eight Normals dominate the error up to 10 classes.
_NODES = 21
_PREDICTIVE_NODES = 97
# Number of rows processed at a time where each row needs much memory.
_ROWS = 256


@jax.custom_jvp
def expected_logsumexp(mean: Array, variance: Array) -> Array:
    """Return E[logsumexp(x)] over the last axis, for independent x_j ~ N(mean_j, variance_j).

    Two classes have a closed form (`_integrate_pair`). For more, the error, measured in
    tests/test_likelihoods.py against dense quadrature, is at most 2e-4 nat for up to 10 classes
    with variances up to 25. For up to 100 classes with variances up to 1e4 it is at most 3e-3, or
    3e-3 of the largest standard deviation if that exceeds 1. (On the same cases a Fenton–Wilkinson
    sum is off by 0.06 nat at variance 1 and by 6 at 25, the Knowles–Minka bound by 0.03 and 6; both
    are cheaper.)

    The derivatives are those of the true expectation, by the same quadrature, including variance 0:

        ∂/∂mean_j = E[softmax(x)_j]          ∂/∂variance_j = ½ E[softmax(x)_j (1 − softmax(x)_j)]

    Example:
        >>> float(expected_logsumexp(jnp.zeros(2), jnp.ones(2)).round(3))
        0.903
    """
    return _integrate_any(mean, variance)[0]


@expected_logsumexp.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    value, by_mean, by_variance = _integrate_any(*primals)
    return value, jnp.sum(by_mean * tangents[0] + by_variance * tangents[1], axis=-1)


def expected_softmax_moments(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return E[s] and E[s (1 − s)] of s = softmax(x), for independent x_j ~ N(mean_j, variance_j).

    Accurate to 2e-4 for up to 10 classes with variances up to 25; E[s] sums to 1 over the last
    axis.

    Example:
        >>> chance, spread = expected_softmax_moments(jnp.zeros(2), jnp.array([1.0, 4.0]))
        >>> [np.asarray(values).round(3).tolist() for values in (chance, spread)]
        [[0.5, 0.5], [0.141, 0.141]]
    """
    _, chance, by_variance = _integrate_any(mean, variance)
    return chance, 2 * by_variance


def _integrate_any(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """Return the expectation and its derivatives."""
    return (_integrate_pair if mean.shape[-1] == 2 else _integrate)(mean, variance)


def _integrate_pair(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """Return the same for two classes: logsumexp(x) = x_1 + softplus(d) with d = x_2 − x_1.

    The logistic function is a mixture of Normal distribution functions, σ(d) ≈ Σ_i p_i Φ(s_i d), so
    that d ~ N(m, v) has, with t = s/√(1 + s² v),

        E[softplus(d)] = Σ_i p_i (m Φ(m t_i) + φ(m t_i)/t_i)        E[σ(d)] = Σ_i p_i Φ(m t_i)
        E[σ'(d)] = Σ_i p_i t_i φ(m t_i)
    """
    m = mean[..., 1] - mean[..., 0]
    v = jnp.sum(variance, axis=-1)
    value = chance = slope = jnp.zeros_like(m)
    for share, scale in zip(LOGISTIC_SHARES, LOGISTIC_SCALES, strict=True):
        t = scale * jax.lax.rsqrt(1 + scale**2 * v)
        a = m * t
        below = 0.5 * erfc(-math.sqrt(0.5) * a)
        density = jnp.exp(-0.5 * jnp.square(a)) / math.sqrt(2 * math.pi)
        value += share * (m * below + density / t)
        chance += share * below
        slope += share * t * density
    half = 0.5 * slope[..., None]
    return (
        mean[..., 0] + value,
        jnp.stack([1 - chance, chance], axis=-1),
        jnp.concatenate([half, half], axis=-1),
    )


def _integrate(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """Return the expectation and its derivatives, by quadrature over the maximum u."""
    top = jnp.max(mean, axis=-1)
    mean = mean - top[..., None]
    u, width = _nodes(mean, variance, count=_NODES, reach=(3.5, 4.0), margin=(3.2, 12.0))
    below = density = jnp.zeros((), mean.dtype)
    for weight, offset, deviation in zip(_WEIGHT, _MEAN, _SCALE, strict=True):
        scale = jax.lax.rsqrt(variance + deviation**2)[None]
        t = (u - mean[None] - offset) * scale
        below += 0.5 * weight * (1 + erf(math.sqrt(0.5) * t))
        bell = (weight / math.sqrt(2 * math.pi)) * scale * jnp.exp(-0.5 * jnp.square(t))
        density += bell
    below = jnp.maximum(below, 1e-30)
    log_below = jnp.log(below)
    others = width * jnp.exp(jnp.sum(log_below, axis=-1, keepdims=True) - log_below)
    # The probability that the maximum is at u and belongs to class j; sums to 1 up to rounding.
    chance = others * density
    total = jnp.sum(chance, axis=(0, -1))
    # −½ ∫ f_j' Π_{i≠j} F_i du, the derivative by the variance of j, integrated by parts.
    hazard = density / below
    rivals = jnp.sum(hazard, axis=-1, keepdims=True) - hazard
    return (
        top + jnp.sum(u * chance, axis=(0, -1)) / total - np.euler_gamma,
        jnp.sum(chance, axis=0) / total[..., None],
        0.5 * jnp.sum(chance * rivals, axis=0) / total[..., None],
    )


def _nodes(
    mean: Array,
    variance: Array,
    *,
    count: int,
    reach: tuple[float, float],
    margin: tuple[float, float],
) -> tuple[Array, Array]:
    """Return values of the maximum and the widths of their intervals, on a new leading axis.

    They cover the range outside which the maximum has negligible probability: `reach` standard
    deviations of the logits plus a `margin` for the Gumbel noise. Only logits with a large variance
    can put the maximum far above the lower end, and their densities are wide, so the intervals may
    grow in proportion to the distance.
    """
    deviation = safe_sqrt(variance)
    lowest = mean - reach[0] * deviation
    low = jax.nn.logsumexp(lowest, axis=-1, keepdims=True)
    rise = jnp.sum(jnp.exp(lowest - low) * deviation, axis=-1, keepdims=True) * reach[0] + margin[0]
    low = low - margin[0]
    highest = jnp.max(mean + reach[1] * deviation, axis=-1, keepdims=True)
    high = jnp.maximum(highest, jax.nn.logsumexp(mean, axis=-1, keepdims=True)) + margin[1]
    interval = jnp.log1p((high - low) / rise) / (count - 1)
    counter = np.arange(float(count)).reshape((-1,) + (1,) * mean.ndim)
    x = interval[None] * jnp.asarray(counter, mean.dtype)
    nodes = low[None] + rise[None] * jnp.expm1(x), (interval * rise)[None] * jnp.exp(x)
    return jax.lax.stop_gradient(nodes)


def log_expected_softmax(mean: Array, variance: Array, label: Array) -> Array:
    """Return ln E[softmax(x)_label] over the last axis, for independent Normal logits.

    Only the other classes use the eight Normals. The density of the label's own x + G is exact, so
    that the result is accurate for very improbable labels. The error is at most 2e-4 nat for
    variances up to 25.

    Args:
        mean: Means of the logits, shape (rows, classes).
        variance: Variances of the logits, same shape.
        label: Integer labels of shape (rows,).
    """
    one_row = jax.checkpoint(lambda row: _log_expected_softmax_of_row(*row))
    return jax.lax.map(one_row, (mean, variance, label), batch_size=min(_ROWS, max(1, len(mean))))


def _log_expected_softmax_of_row(mean: Array, variance: Array, label: Array) -> Array:
    mean = mean - jax.lax.stop_gradient(jnp.max(mean))
    u, width = _nodes(mean, variance, count=_PREDICTIVE_NODES, reach=(8.0, 8.0), margin=(3.5, 20.0))
    below = jnp.zeros((), mean.dtype)
    for weight, offset, deviation in zip(_WEIGHT, _MEAN, _SCALE, strict=True):
        scale = jax.lax.rsqrt(variance + deviation**2)[None]
        below += 0.5 * weight * erfc(math.sqrt(0.5) * (mean[None] + offset - u) * scale)
    log_below = jnp.log(jnp.maximum(below, jnp.finfo(mean.dtype).tiny))
    own = jnp.arange(mean.shape[-1]) == label
    others = jnp.sum(jnp.where(own[None], 0, log_below), axis=-1)
    centre = mean[label] - u[:, 0]
    # The Gumbel's density at u is exp(x − exp(x)) with x = −u.
    log_density = log_expectation_exp(
        lambda x: x - 1 - saturating_expm1(x),
        centre,
        jnp.broadcast_to(variance[label], centre.shape),
    )
    return jax.nn.logsumexp(log_density + others + jnp.log(width[:, 0]))
