"""Orderings of uncertain values (sort, top_k), and maxima over segments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import primitives
from secateur.propagation.covariances import NO_LOADS
from secateur.propagation.rules.maxima import FAR_BELOW
from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.uncertain_values import Uncertain, as_uncertain, merge_static

# Limit of elements × (requested ranks)²; beyond it, order statistics take longer than the rest of a
# model.
_MOST_WORK = 40_000
_NODES = 32


def _deviation(variance: Array) -> Array:
    return jnp.sqrt(jnp.maximum(variance, 1e-60 if variance.dtype == jnp.float64 else 1e-20))


def _exceeds(mean: Array, deviation: Array, t: Array) -> Array:
    """P(x > t)."""
    z = jnp.clip((t - mean) / deviation, -40.0, 40.0)
    return 0.5 * jax.lax.erfc(z * float(np.sqrt(0.5)))


def _reach(dtype: Any) -> float:
    return 7.0 if dtype == jnp.float64 else 5.5


def order_statistics(mean: Array, variance: Array, k: int) -> tuple[Array, Array]:
    """Mean and variance of the k largest of independent Gaussians along the last axis.

        P(X_(r) > t) = P(more than r − 1 elements exceed t)
        E[X_(r)] = a + ∫_a^b P(X_(r) > t) dt       E[(X_(r) − a)²] = 2 ∫_a^b (t − a) P(X_(r) > t) dt

    Between a and b are all but a negligible part of X_(r). The number of elements that exceed t is
    a sum of independent truth values, whose distribution is built up element by element.
    """
    deviation, reach = _deviation(variance), _reach(mean.dtype)
    low, high = (
        jax.lax.stop_gradient(jax.lax.top_k(mean + sign * reach * deviation, k)[0])
        for sign in (-1.0, 1.0)
    )
    fraction = jnp.asarray((np.arange(_NODES) + 0.5) / _NODES, mean.dtype)
    t = low[..., None] + (high - low)[..., None] * fraction.reshape((1,) * low.ndim + (-1,))
    counts = jnp.zeros((*t.shape, k), mean.dtype).at[..., 0].set(1.0)

    def add_element(counts: Array, element: tuple[Array, Array]) -> tuple[Array, None]:
        p = _exceeds(element[0][..., None, None], element[1][..., None, None], t)[..., None]
        shifted = jnp.concatenate([jnp.zeros_like(counts[..., :1]), counts[..., :-1]], axis=-1)
        return counts * (1.0 - p) + shifted * p, None

    elements = (jnp.moveaxis(mean, -1, 0), jnp.moveaxis(deviation, -1, 0))
    counts, _ = jax.lax.scan(jax.checkpoint(add_element), counts, elements)
    fewer = jnp.cumsum(counts, axis=-1)  # P(at most j exceed t)
    rank = jnp.arange(k).reshape((1,) * (low.ndim - 1) + (k, 1, 1))
    rank = jnp.broadcast_to(rank, (*t.shape, 1))
    exceeds = 1.0 - jnp.take_along_axis(fewer, rank, axis=-1)[..., 0]
    width = (high - low) / _NODES
    first = width * jnp.sum(exceeds, axis=-1)
    second = 2.0 * width * jnp.sum((t - low[..., None]) * exceeds, axis=-1)
    plain, places = jax.lax.top_k(mean, k)
    certain = high - low <= 1e3 * jnp.finfo(mean.dtype).eps * jnp.abs(low)
    moments = low + first, jnp.maximum(second - first * first, 0.0)
    return (
        jnp.where(certain, plain, moments[0]),
        jnp.where(certain, jnp.take_along_axis(variance, places, axis=-1), moments[1]),
    )


def _note_order(call: Call, x: Uncertain, axis: int, what: str) -> None:
    if x.entangled & {axis}:
        call.note("independent", f"{what}; its elements are correlated")
    else:
        call.note("quadrature", what)


def _largest(call: Call, x: Uncertain, k: int, axis: int) -> tuple[Array, Array]:
    """Moments of the k largest along an axis, or those of the largest means."""
    mean, variance = jnp.moveaxis(x.mean, axis, -1), jnp.moveaxis(x.variance, axis, -1)
    if mean.shape[-1] * k * k <= _MOST_WORK:
        _note_order(call, x, axis, "order statistics of independent values")
        mean, variance = order_statistics(mean, variance, k)
    else:
        call.note("independent", "ordered by means: there are too many for order statistics")
        mean, places = jax.lax.top_k(mean, k)
        variance = jnp.take_along_axis(variance, places, axis=-1)
    return jnp.moveaxis(mean, -1, axis), jnp.moveaxis(variance, -1, axis)


def _ordered(x: Uncertain, mean: Array, variance: Array, axis: int) -> Uncertain:
    return replace(
        x, mean=mean, variance=variance, loads=NO_LOADS, entangled=x.entangled | {axis},
        sums_to_one=None, neighbours=None,
    )  # fmt: skip


@declare("order statistics", "top_k")
def top_k(call: Call, x: Uncertain) -> list[Any]:
    """The k largest; their places are those of the means."""
    axis = call.params.get("axis", x.mean.ndim - 1)
    mean, variance = _largest(call, x, call.params["k"], axis)
    return [_ordered(x, mean, variance, axis), call.bind(x.mean)[1]]


@declare("order statistics", "sort")
def sort(call: Call, *operands: Any) -> list[Any]:
    """Sorted keys as order statistics; other operands are sorted by the means of the keys."""
    axis, num_keys = call.params["dimension"], call.params["num_keys"]
    means = [o.mean if isinstance(o, Uncertain) else jnp.asarray(o) for o in operands]
    places = jax.lax.broadcasted_iota(jnp.int32, means[0].shape, axis)
    *_, order = jax.lax.sort([*means, places], dimension=axis, num_keys=num_keys)

    def moved(array: Array) -> Array:
        return jnp.take_along_axis(array, order, axis=axis)

    results: list[Any] = []
    for operand, mean in zip(operands, means, strict=True):
        if isinstance(operand, Uncertain):
            moments = moved(mean), moved(operand.variance)
            results.append(_ordered(operand, *moments, axis))
        else:
            results.append(moved(mean))
    key = operands[0]
    if any(isinstance(o, Uncertain) for o in operands[:num_keys]):
        call.note("independent", "ordered by means")
    if num_keys == 1 and isinstance(key, Uncertain):
        mean, variance = _largest(call, key, key.shape[axis], axis)
        results[0] = _ordered(key, jnp.flip(mean, axis), jnp.flip(variance, axis), axis)
    return results


@declare("maximum", *primitives.SEGMENT_EXTREMA)
def segment_maximum(call: Call, x: Any, places: Any, update: Any) -> Uncertain | Array:
    """The largest of the elements that go to the same place, as independent ones.

    With F(t) = Π_i Φ((t − m_i)/σ_i):   E[M] = b − ∫_a^b F,   E[(b − M)²] = 2 ∫_a^b (b − t) F.
    """
    if call.walk.is_shift(call.equation):
        # Any certain shift gives the same function; the one at the mean is numerically stable.
        call.note("exact", "shift of a softmax, taken at the mean")
        return call.bind(*(o.mean if isinstance(o, Uncertain) else o for o in (x, places, update)))
    if isinstance(places, Uncertain):
        call.walk.no_rule(call.equation, "an uncertain index")
    sign = -1.0 if "min" in call.name else 1.0
    operands = [o for o in (x, update) if isinstance(o, Uncertain)]
    (mx, sx), (mu, su) = (_prepared(o, sign) for o in (x, update))
    params = {k: call.params[k] for k in ("indices_are_sorted", "unique_indices", "mode")}
    numbers, reach = call.params["dimension_numbers"], _reach(mx.dtype)

    def largest(one: Array, other: Array) -> Array:
        return jax.lax.stop_gradient(jax.lax.scatter_max(one, places, other, numbers, **params))

    def summed(one: Array, other: Array) -> Array:
        return jax.lax.scatter_add(one, places, other, numbers, **params)

    low = largest(mx - reach * sx, mu - reach * su)
    high = largest(mx + reach * sx, mu + reach * su)
    back = jax.vjp(lambda u: summed(jnp.zeros_like(mx), u), jnp.zeros_like(mu))[1]

    def log_below(fraction: Array) -> Array:
        t = low + (high - low) * fraction
        parts = [
            jnp.log(jnp.maximum(_exceeds(t_own, s, m), jnp.finfo(m.dtype).tiny))
            for t_own, s, m in ((t, sx, mx), (back(t)[0], su, mu))
        ]
        return jnp.exp(summed(*parts))

    fractions = jnp.asarray((np.arange(_NODES) + 0.5) / _NODES, mx.dtype)
    below = jax.vmap(log_below)(fractions)
    width = high - low
    first = width * jnp.mean(below, axis=0)
    left = (1.0 - fractions).reshape((-1,) + (1,) * mx.ndim)
    second = 2.0 * width * width * jnp.mean(left * below, axis=0)
    call.note("quadrature", "maximum of independent values")
    entangled = frozenset(range(mx.ndim))
    if any(o.entangled for o in operands):
        call.note("independent", "maximum of values that are correlated")
    plain = jax.lax.scatter_max(mx, places, mu, numbers, **params)
    certain = width <= 1e3 * jnp.finfo(mx.dtype).eps * jnp.abs(high)
    mean = jnp.where(certain, plain, high - first)
    mean = jnp.where(high <= 0.5 * FAR_BELOW, -jnp.inf, mean)
    variance = jnp.where(certain, 0.0, jnp.maximum(second - first * first, 0.0))
    merged = merge_static(operands)
    return replace(merged, mean=sign * mean, variance=variance, entangled=entangled)


def _prepared(operand: Any, sign: float) -> tuple[Array, Array]:
    value = as_uncertain(operand)
    return jnp.maximum(sign * value.mean, FAR_BELOW), _deviation(value.variance)
