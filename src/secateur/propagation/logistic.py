"""Moments of the logistic function and of tanh in float32, in closed form.

The logistic function is, to 3e-7, a mixture of nine Normal distribution functions

    σ(x) ≈ Σ_i p_i Φ(s_i x),        E[Φ(s x)] = Φ(m t),  t = s/√(1 + s² v),        x ~ N(m, v)

so its expectation is closed, and so are those of its derivatives, which give everything else:

    Var[σ] = E[σ](1 − E[σ]) − E[σ']         because σ' = σ − σ²
    ∂E[g]/∂m = E[g'],   ∂E[g]/∂v = ½ E[g'']             (Price)

Where that difference cancels, the moments are a Taylor series in v (small v), or a sum of
log-normals (far in the tail, σ = eˣ − e²ˣ + …). Quadrature takes ten times as long; it is used in
float64, for which nine terms are not enough.

Scales and shares were found by least squares on the relative error of σ and σ' on [−24, 0].
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = ["LOGISTIC_SCALES", "LOGISTIC_SHARES", "logistic_moments", "tanh_moments"]

LOGISTIC_SCALES = (0.222720585, 0.281601153, 0.351336238, 0.437410448, 0.544837224, 0.678971209,
           0.847189634, 1.06247793, 1.35543041)  # fmt: skip
LOGISTIC_SHARES = (0.000425209664, 0.0103506942, 0.0618804806, 0.167728769, 0.26788653, 0.273771513,
           0.166783066, 0.0476409252, 0.00353281217)  # fmt: skip
# Φ(−a) = e^{−a²/2} Σ_k c_k r^k with r = 1/(1 + 0.375 a), a ≥ 0: relative error 2e-7.
_PACE = 0.375
_TAIL = (0.149603387, 0.149604526, 0.128446328, 0.0886349065, 0.0156376879, 0.0506155467,
         -0.186504268, 0.136870756, -0.0329089806)  # fmt: skip
_SMALL_VARIANCE = 0.02
_TAIL_FROM = -4.0  # of m + 4 v: the terms left out, of order e^{3m + 11.5v}, are below 1e-5
_DENSITY_AT_0 = float(1 / np.sqrt(2 * np.pi))


class _Expectations(NamedTuple):
    """E[σ], E[σ] − ½, E[σ'], E[σ''], E[σ'''], then Var[σ] and its derivatives by m and v."""

    value: Any
    centred: Any
    first: Any
    second: Any
    third: Any
    variance: Any
    by_mean: Any
    by_variance: Any


def _from_derivatives(value: Array, first: Array, second: Array, third: Array) -> _Expectations:
    return _Expectations(
        value,
        value - 0.5,
        first,
        second,
        third,
        value * (1 - value) - first,
        first * (1 - 2 * value) - second,
        0.5 * (second * (1 - 2 * value) - third),
    )


def _made_once(*arrays: Array) -> Any:
    """Prevent recomputation in everything that depends on them (twice as fast)."""
    return jax.lax.optimization_barrier(arrays)


def _mixture(m: Array, v: Array) -> tuple[Array, Array, Array, Array]:
    """E[σ] and the expectations of its first three derivatives, for m ≤ 0."""
    column = (-1,) + (1,) * m.ndim
    scales = jnp.asarray(LOGISTIC_SCALES, m.dtype).reshape(column)
    steep = scales * jax.lax.rsqrt(1 + scales * scales * v[None])
    steep, peak = _made_once(steep, jnp.exp(-0.5 * jnp.square(m[None] * steep)))
    value = first = second = third = jnp.zeros_like(m)
    for share, t, p in zip(LOGISTIC_SHARES, steep, peak, strict=True):
        a = m * t
        r = 1 / (1 - _PACE * a)
        value += share * p * r * _polynomial(_TAIL, r)
        density = share * _DENSITY_AT_0 * t * p
        first += density
        second -= density * t * a
        third += density * t * t * (a * a - 1)
    return _made_once(value, first, second, third)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    total = jnp.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def _taylor(e: Array, h: Array, v: Array) -> _Expectations:
    """To third order in v, by the derivatives of σ at m: σ' times polynomials in h = tanh(m/2).

    The arguments are e = e^m, which is precise far from 0, and h, which is precise near 0.
    """
    r = 1 / (1 + e)
    f1 = e * r * r
    q = h * h
    f2 = -h * f1
    f3 = f1 * (1.5 * q - 0.5)
    f4 = f1 * h * (2 - 3 * q)
    f5 = f1 * (1 + q * (7.5 * q - 7.5))
    f6 = f1 * h * (-8.5 + q * (30 - 22.5 * q))
    change = v * (f2 / 2 + v * (f4 / 8 + v * (f6 / 48)))
    return _Expectations(
        e * r + change,
        0.5 * h + change,
        f1 + v * (f3 / 2 + v * (f5 / 8)),
        f2 + v * (f4 / 2 + v * (f6 / 8)),
        f3 + v * (f5 / 2),
        v
        * (
            f1 * f1
            + v * ((f2 * f2 / 2 + f1 * f3) + v * (f3 * f3 * (5 / 12) + f2 * f4 / 2 + f1 * f5 / 4))
        ),
        2 * v * (f1 * f2 + v * (f2 * f3 + 0.5 * f1 * f4)),
        f1 * f1
        + v * (f2 * f2 + 2 * f1 * f3 + v * (f3 * f3 * (5 / 4) + f2 * f4 * 1.5 + f1 * f5 * 0.75)),
    )


def _tail(p1: Array, w: Array) -> _Expectations:
    """σ = eˣ − e²ˣ + e³ˣ, in p_k = E[e^{kx}] and w = e^v: p_2 = p_1² w, p_3 = p_1³ w³.

    Cov(e^{jx}, e^{kx}) = p_j p_k (w^{jk} − 1), which is proportional to e^{(j+k)m} and
    e^{(j²+k²)v/2}.
    """
    p2 = p1 * p1 * w
    p3 = p1 * p2 * w * w
    expected = _from_derivatives(
        p1 - p2 + p3, p1 - 2 * p2 + 3 * p3, p1 - 4 * p2 + 9 * p3, p1 - 8 * p2 + 27 * p3
    )
    variance = by_mean = by_variance = jnp.zeros_like(p1)
    for (j, pj), (k, pk) in itertools.product(enumerate((p1, -p2, p3), 1), repeat=2):
        both, power = pj * pk, w ** (j * k)
        variance += both * (power - 1)
        by_mean += (j + k) * both * (power - 1)
        by_variance += both * (0.5 * (j * j + k * k) * (power - 1) + j * k * power)
    return expected._replace(variance=variance, by_mean=by_mean, by_variance=by_variance)


def _expectations(mean: Array, variance: Array) -> _Expectations:
    """All expectations for arrays of two rows, one after the other.

    XLA does not fuse across the boundaries of a loop. Otherwise it would fuse all of this into each
    kernel that uses a result and recompute it there: training a GRU was four times slower.
    """
    return jax.lax.map(lambda row: _at_once(*row), (mean, variance))


def _at_once(mean: Array, variance: Array) -> _Expectations:
    """σ(−x) = 1 − σ(x): everything is computed for means below 0, and reflected if necessary."""
    m = -jnp.abs(mean)
    small, far = variance < _SMALL_VARIANCE, m + 4 * variance < _TAIL_FROM
    # Only where it is used, to avoid overflow elsewhere.
    tail_m, tail_v = jnp.where(far, m, _TAIL_FROM), jnp.where(far, variance, 0)
    # (w⁹ must not overflow; with so much variance, p_1 is below 1e-15.)
    e, h, p1, w = _made_once(
        jnp.exp(m),
        jnp.tanh(0.5 * m),
        jnp.exp(tail_m + 0.5 * tail_v),
        jnp.exp(jnp.minimum(tail_v, 9.0)),
    )
    by_mixture = _from_derivatives(*_mixture(m, variance))
    by_taylor = _taylor(e, h, jnp.where(small, variance, 0))
    in_tail = _tail(p1, w)
    # Small variances take precedence: there, w − 1 would suffer from rounding.
    expected = _Expectations(
        *(
            jnp.where(small, s, jnp.where(far, t, x))
            for t, s, x in zip(in_tail, by_taylor, by_mixture, strict=True)
        )
    )
    above = mean > 0
    sign = jnp.where(above, -1, 1).astype(mean.dtype)
    return expected._replace(
        value=jnp.where(above, 1 - expected.value, expected.value),
        centred=sign * expected.centred,
        second=sign * expected.second,
        variance=jnp.maximum(expected.variance, 0),
        by_mean=sign * expected.by_mean,
    )


@jax.custom_jvp
def _moments(mean: Array, variance: Array) -> tuple[Array, Array, Array, Array]:
    expected = _expectations(mean, variance)
    return expected.value, expected.centred, expected.variance, expected.first


@_moments.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    expected = _expectations(*primals)
    m, v = tangents
    moved = expected.first * m + 0.5 * expected.second * v
    return (expected.value, expected.centred, expected.variance, expected.first), (
        moved,
        moved,
        expected.by_mean * m + expected.by_variance * v,
        expected.second * m + 0.5 * expected.third * v,
    )


def _shaped(mean: Array, variance: Array) -> list[Array]:
    """Reshape to two long rows: the left and the right half of the last axis.

    XLA's kernels are twice as fast along one long axis as along several short ones; the axes before
    the last may be sharded over devices.
    """
    expected = _moments(_halves(mean), _halves(variance))
    *before, last = mean.shape or (1,)
    halves = [f.reshape(2, *before, -1) for f in expected]
    return [jnp.concatenate([*h], axis=-1)[..., :last].reshape(mean.shape) for h in halves]


def _halves(x: Array) -> Array:
    *before, last = x.shape or (1,)
    padded = jnp.pad(x.reshape(*before, last), [(0, 0)] * len(before) + [(0, last % 2)])
    return jnp.stack(jnp.split(padded, 2, axis=-1)).reshape(2, -1)


def logistic_moments(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """E[σ(x)], Var[σ(x)] and E[σ'(x)] for x ~ N(mean, variance)."""
    value, _, spread, slope = _shaped(mean, variance)
    return value, spread, slope


def tanh_moments(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """The same moments for tanh, which is 2 σ(2x) − 1."""
    _, centred, spread, slope = _shaped(2 * mean, 4 * variance)
    return 2 * centred, 4 * spread, 4 * slope
