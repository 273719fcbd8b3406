"""Priors whose variances are learnt, with a Gamma prior on every precision.

Weights are in groups: a whole leaf, or one index along an axis of it. The weights of a group share
the precision of their Normal prior:

    w ~ N(m, 1/λ)        λ ~ Gamma(a, b)        q(λ) = Gamma(a + n/2, b + ½ Σ E[(w − m)²])

over its n live weights. `TrainingState.prior` holds N(m, 1/E[λ]); everything else that a learnt
precision adds to the free energy depends on n and E[λ] alone, and is `hyper_complexity`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Gamma, Normal
from secateur.training.coordinates import Vectors
from secateur.training.layout import Layout, Place

__all__ = [
    "PriorGroups", "credit_groups", "find_hyperprior", "fit_priors", "hyper_complexity",
    "sum_savings",
]  # fmt: skip

# For every uncertain leaf, the axis along which each index is a group, or None for one group.
PriorGroups = tuple[int | None, ...]

# Heavy-tailed: a weight alone has a Student t prior with one degree of freedom. Weights of a leaf
# are within about a decade of 1, since data are standardised. Those of an irrelevant input may be
# arbitrarily small, and a wide prior makes such an input cost more than it is worth.
LEAF_HYPERPRIOR = Gamma(0.5, 0.05)
INPUT_HYPERPRIOR = Gamma(0.5, 5e-7)


# Number of weights in a group from which Stirling's series is exact to 1e-9.
_FEW = 64


def find_hyperprior(axis: int | None) -> Gamma:
    """Return the prior of the precisions of a leaf's groups."""
    return LEAF_HYPERPRIOR if axis is None else INPUT_HYPERPRIOR


def fit_priors(
    layout: Layout,
    groups: PriorGroups,
    alive: Vectors,
    flat: tuple[Normal, ...],
    priors: tuple[Normal, ...],
) -> tuple[Normal, ...]:
    """Return the priors N(m, 1/E[λ]) at the q(λ) with the lowest free energy.

    Args:
        layout: Layout of the weights.
        groups: Groups of the weights.
        alive: Which weights are alive, by vector.
        flat: Beliefs, by vector.
        priors: Priors, by vector; their means stay.
    """
    squares = tuple(
        jnp.where(a, q.variance + jnp.square(q.mean - p.mean), 0)
        for q, p, a in zip(flat, priors, alive, strict=True)
    )
    variances = []
    for place, axis in zip(layout.places, groups, strict=True):
        count = _sum_group(place, axis, alive)
        total = _sum_group(place, axis, squares)
        prior = find_hyperprior(axis)
        variances.append((prior.rate + 0.5 * total) / (prior.shape + 0.5 * count))
    vectors = layout.vectors(variances, padding=1.0)
    return tuple(Normal(p.mean, v) for p, v in zip(priors, vectors, strict=True))


def hyper_complexity(
    layout: Layout, groups: PriorGroups, alive: Vectors, priors: tuple[Normal, ...]
) -> Array:
    """Return what the learnt precisions add to KL[q(w) ‖ N(m, 1/E[λ])], in nats.

        Σ_groups  ½ n (ln E[λ] − E[ln λ]) + KL[q(λ) ‖ p(λ)]

    Args:
        layout: Layout of the weights.
        groups: Groups of the weights.
        alive: Which weights are alive, by vector.
        priors: Priors, by vector, from `fit_priors`.
    """
    columns = _group_complexities(layout, groups, alive, priors)
    return sum((jnp.sum(c) for c in columns), start=jnp.zeros((), layout.dtype))


def credit_groups(
    layout: Layout,
    groups: PriorGroups,
    alive: Vectors,
    priors: tuple[Normal, ...],
    delta_f: Vectors,
) -> Vectors:
    """Return scores of weights in which a group that is cut as a whole also saves its precision.

    The scores of a group that would remain, Σ delta_f > 0, are compared with the complexity of its
    precision. Where that is larger, removing the whole group lowers the free energy, and the scores
    of its weights are scaled so that their sum is the change that is expected.

    Args:
        layout: Layout of the weights.
        groups: Groups of the weights.
        alive: Which weights are alive, by vector.
        priors: Priors, by vector, from `fit_priors`.
        delta_f: Scores, by vector; +inf where a weight is not alive.
    """
    remains = tuple(a & (d > 0) for a, d in zip(alive, delta_f, strict=True))
    positive = tuple(jnp.where(r, d, 0) for r, d in zip(remains, delta_f, strict=True))
    savings = _group_complexities(layout, groups, remains, priors)
    factors = []
    for place, axis, saving in zip(layout.places, groups, savings, strict=True):
        total = _sum_group(place, axis, positive)
        is_worse = (total > 0) & (total <= saving)
        factors.append(jnp.where(is_worse, 1 - saving / jnp.where(total > 0, total, 1), 1))
    vectors = layout.vectors(factors, padding=1.0)
    return tuple(jnp.where(r, d * f, d) for r, d, f in zip(remains, delta_f, vectors, strict=True))


def sum_savings(
    layout: Layout, groups: PriorGroups, before: Vectors, after: Vectors, priors: tuple[Normal, ...]
) -> Array:
    """Return the change of the free energy by precisions that are no longer needed, usually ≤ 0.

    Args:
        layout: Layout of the weights.
        groups: Groups of the weights.
        before: Which weights were alive, by vector.
        after: Which of them still are.
        priors: Priors, by vector, from `fit_priors`.
    """
    complexities = _group_complexities(layout, groups, before, priors)
    total = jnp.zeros((), layout.dtype)
    for place, axis, complexity in zip(layout.places, groups, complexities, strict=True):
        is_empty = _sum_group(place, axis, after) == 0
        total -= jnp.sum(jnp.where(is_empty, complexity, 0))
    return total


def _sum_group(place: Place, axis: int | None, vectors: Sequence[Array]) -> Array:
    """Sum over each group of a leaf, in a shape that broadcasts to the leaf's."""
    whole = vectors[place.vector]
    leaf = place.cut(whole)
    others = tuple(a for a in range(leaf.ndim) if a != axis)
    return jnp.sum(leaf, axis=others, keepdims=True, dtype=None if leaf.dtype != bool else int)


def _group_complexities(
    layout: Layout, groups: PriorGroups, alive: Vectors, priors: tuple[Normal, ...]
) -> list[Array]:
    """Return the complexity of each group's precision, by leaf."""
    by_leaf = []
    for place, axis in zip(layout.places, groups, strict=True):
        half = 0.5 * _sum_group(place, axis, alive).astype(layout.dtype)
        variance = _first_of_group(place, axis, priors[place.vector].variance)
        by_leaf.append(_precision_complexity(half, variance, find_hyperprior(axis)))
    return by_leaf


def _precision_complexity(half: Array, variance: Array, prior: Gamma) -> Array:
    """Return ½ n (ln E[λ] − E[ln λ]) + KL[q(λ) ‖ p(λ)] for q(λ) = Gamma(s, s/E[λ]), s = a + n/2.

    With Γ by Stirling's formula, whose remainder is μ(s), all large terms cancel:

        (½ − a) ln s − ½ ln 2π − μ(s) + ln Γ(a) + a ln(s/(b E[λ])) + b E[λ]
    """
    a, b = float(prior.shape), float(prior.rate)
    shape = a + half
    # A table for small groups of weights, and Stirling's series for larger ones: `gammaln` takes
    # longer to compile than all the rest of a step.
    shapes = a + 0.5 * np.arange(_FEW)
    table = np.array([math.lgamma(s) for s in shapes]) - ((shapes - 0.5) * np.log(shapes) - shapes)
    table -= 0.5 * math.log(2 * math.pi)
    number = jnp.minimum(2 * half, _FEW - 1).astype(int)
    series = (1 / 12 - 1 / (360 * jnp.square(shape))) / shape
    remainder = jnp.where(2 * half < _FEW, jnp.asarray(table, half.dtype)[number], series)
    constant = math.lgamma(a) - 0.5 * math.log(2 * math.pi) - a * math.log(b)
    complexity = 0.5 * jnp.log(shape) + constant - remainder + a * jnp.log(variance) + b / variance
    return jnp.where(half > 0, complexity, 0)


def _first_of_group(place: Place, axis: int | None, vector: Array) -> Array:
    """Return the first element of each group of a leaf, whose elements are all the same."""
    leaf = place.cut(vector)
    index = tuple(slice(None) if a == axis else slice(0, 1) for a in range(leaf.ndim))
    return leaf[index]
