"""Cutting weights whose units have a covariance: the other weights of the unit are conditioned."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from secateur.distributions import Normal, UnitNormal
from secateur.distributions.jacobi import decompose_symmetric
from secateur.distributions.low_rank import LowRank, condition
from secateur.distributions.unit_normal import condition_factors
from secateur.training.coordinates import (
    Coordinates,
    LowRankMixing,
    Vectors,
    condition_prior,
    make_factor,
)
from secateur.training.program import TrainingState, map_runs


class ConditionedVector(NamedTuple):
    """The rest of a vector of units after a cut, and the expected change."""

    mean: Array
    log_deviation: Array
    mixing: Any
    delta_f: Array


def condition_vector(
    mean: Array, log_deviation: Array, mixing: Any, alive: Array, gone: Array, prior: Any
) -> ConditionedVector:
    """Remove weights of the units of a vector; all arguments are those of one run.

    delta_f = Σ_units ln p_S(0) − ln q_S(0)        exactly, for the set S of each unit
    """
    left = alive & ~gone
    if isinstance(mixing, LowRankMixing):
        shape = mixing.shape_of(log_deviation, alive)
        rows = shape.own.shape
        held = jnp.where(alive, mean, 0).reshape(rows)
        moved, lowered, surprise = condition(held, shape, gone.reshape(rows))
        own = jnp.where(left, jnp.sqrt(lowered.own).reshape(-1), 1)
        new_mixing: Any = LowRankMixing(lowered.directions)
    else:
        units, size, _ = mixing.shape
        factor = make_factor(log_deviation, mixing, alive)
        held = jnp.where(alive, mean, 0).reshape(units, size)
        moved, rest, surprise = condition_factors(held, factor, gone.reshape(units, size))
        own = jnp.where(left, jnp.diagonal(rest, axis1=1, axis2=2).reshape(-1), 1)
        new_mixing = jnp.tril(rest, -1)
    if isinstance(prior, UnitNormal):
        log_prior = -condition_prior(prior, gone)[1]
    else:
        log_prior = jnp.where(gone, jnp.broadcast_to(prior.log_prob(0.0), gone.shape), 0)
    return ConditionedVector(
        moved.reshape(-1), jnp.log(own), new_mixing, jnp.sum(log_prior) + jnp.sum(surprise)
    )


@partial(jax.jit, static_argnames=("to_the_end",))
def order_weights(
    state: TrainingState, delta_f: Vectors, *, prior: Any = None, to_the_end: bool = False
) -> Vectors:
    """Return scores by which a limit cuts the weights of every unit greedily.

    In each unit, the weight with the lowest delta_f is removed and the others are conditioned on
    that, while that delta_f is ≤ 0. A weight's score is its delta_f at that point, or the largest
    of those before it in its unit, so that a limit cuts it only together with them. A weight that
    stays has its delta_f at the end. All units of all runs take their steps at once.

    Args:
        state: State of all runs.
        delta_f: Scores of single weights; they remain those of weights without covariance.
        prior: Prior by vector to score with. Defaults to the state's own.
        to_the_end: Whether to continue until nothing is left, for a complete order.
    """

    def order(state: TrainingState, delta_f: Vectors) -> Vectors:
        priors = state.prior if prior is None else prior
        columns = zip(*state.weights, state.alive, priors, delta_f, strict=True)
        return tuple(
            scores if o is None else _order_units(m, s, o, a, p, to_the_end)
            for m, s, o, a, p, scores in columns
        )

    return map_runs(order, state, delta_f) if state.weights.mixing else delta_f


def _order_units(
    mean: Array, log_deviation: Array, mixing: Any, alive: Array, prior: Any, to_the_end: bool
) -> Array:
    if isinstance(mixing, LowRankMixing):
        conditioned: Any = _ConditionedLowRank.of(mixing.shape_of(log_deviation, alive))
    else:
        conditioned = _ConditionedFactor(make_factor(log_deviation, mixing, alive))
    units, size = conditioned[0].shape[:2]
    log_prior = jnp.broadcast_to(prior.log_prob(0.0), alive.shape).reshape(units, size)
    live = alive.reshape(units, size)
    limit = jnp.inf if to_the_end else 0.0

    def score(mean: Array, conditioned: Any, left: Array) -> Array:
        variance = jnp.where(left, conditioned.variance, 1)
        return jnp.where(left, log_prior - Normal(mean, variance).log_prob(0.0), jnp.inf)

    def should_go_on(carry: Any) -> Array:
        mean, conditioned, left, _, _ = carry
        lowest = jnp.min(score(mean, conditioned, left), axis=1)
        return jnp.any((lowest <= limit) & left.any(axis=1))

    def step(carry: Any) -> Any:
        mean, conditioned, left, scores, highest = carry
        current = score(mean, conditioned, left)
        lowest, index = jnp.min(current, axis=1), jnp.argmin(current, axis=1)
        goes = (lowest <= limit) & left.any(axis=1)
        at = jnp.take_along_axis(mean, index[:, None], axis=1)[:, 0]
        rest, shift = conditioned.remove(index, at)
        is_it = jnp.arange(size)[None] == index[:, None]
        out = goes[:, None] & is_it
        highest = jnp.where(goes, jnp.maximum(highest, lowest), highest)
        scores = jnp.where(out, highest[:, None], scores)
        mean = jnp.where(goes[:, None], mean - shift, mean)
        chosen = [
            jnp.where(goes.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(rest, conditioned, strict=True)
        ]
        return mean, type(conditioned)(*chosen), left & ~out, scores, highest

    start = jnp.where(live, mean.reshape(units, size), 0)
    scores = jnp.full((units, size), jnp.inf, mean.dtype)
    lowest = jnp.full(units, -jnp.inf, mean.dtype)
    end = jax.lax.while_loop(should_go_on, step, (start, conditioned, live, scores, lowest))
    mean_left, conditioned, left, scores, _ = end
    return jnp.where(left, score(mean_left, conditioned, left), scores).reshape(-1)


class _ConditionedFactor(NamedTuple):
    """Units from which weights have been removed one by one, by their factors."""

    factor: Array

    @property
    def variance(self) -> Array:
        """Variances of the weights that are left."""
        return jnp.sum(jnp.square(self.factor), axis=-1)

    def remove(self, index: Array, at: Array) -> tuple[_ConditionedFactor, Array]:
        """Return what is left without a weight of each unit, and what comes off the means."""
        row = jnp.take_along_axis(self.factor, index[:, None, None], axis=1)[:, 0]
        length = jnp.sqrt(jnp.sum(jnp.square(row), axis=1))
        direction = row / jnp.where(length > 0, length, 1)[:, None]
        along = jnp.einsum("uik,uk->ui", self.factor, direction)
        shift = along * (at / jnp.where(length > 0, length, 1))[:, None]
        return _ConditionedFactor(self.factor - along[:, :, None] * direction[:, None, :]), shift


class _ConditionedLowRank(NamedTuple):
    """Likewise, by a precision of low rank: only (I + Vᵀ D⁻¹ V)⁻¹ of what is left changes."""

    columns: Array
    own: Array
    inverse: Array

    @classmethod
    def of(cls, shape: LowRank) -> _ConditionedLowRank:
        """Return units before anything is removed."""
        columns = shape.columns()
        gram = jnp.einsum("uir,ui,uiq->urq", columns, shape.own, columns)
        values, basis = decompose_symmetric(gram)
        inverse = (basis / (1 + jnp.maximum(values, 0))[:, None, :]) @ jnp.swapaxes(basis, 1, 2)
        return cls(columns, shape.own, inverse)

    @property
    def variance(self) -> Array:
        """Variances of the weights that are left."""
        inside = jnp.sum((self.columns @ self.inverse) * self.columns, axis=-1)
        floor = jnp.finfo(self.own.dtype).eps
        return self.own * jnp.maximum(1 - self.own * inside, floor)

    def remove(self, index: Array, at: Array) -> tuple[_ConditionedLowRank, Array]:
        """Return what is left without a weight of each unit, and what comes off the means."""
        row = jnp.take_along_axis(self.columns, index[:, None, None], axis=1)[:, 0]
        own = jnp.take_along_axis(self.own, index[:, None], axis=1)[:, 0]
        # (C − a v vᵀ)⁻¹ = C⁻¹ + C⁻¹ v vᵀ C⁻¹ a / (1 − a vᵀ C⁻¹ v)
        solved = jnp.einsum("urq,uq->ur", self.inverse, row)
        share = jnp.minimum(own * jnp.einsum("ur,ur->u", row, solved), 1 - 1e-6)
        step = (own / (1 - share))[:, None, None] * solved[:, :, None] * solved[:, None, :]
        inverse = self.inverse + step
        shift = jnp.einsum("uir,urq,uq->ui", self.columns, inverse, row) * self.own
        is_it = jnp.arange(self.own.shape[1])[None] == index[:, None]
        columns = jnp.where(is_it[:, :, None], 0, self.columns)
        return _ConditionedLowRank(columns, self.own, inverse), -shift * at[:, None]


def score_joint(state: TrainingState, members: Vectors, prior: Any) -> Array:
    """Return Σ_units ln p_S(0) − ln q_S(0) of one run, for members S of units with covariance."""
    columns = zip(*state.weights, state.alive, members, prior, strict=True)
    total = jnp.zeros((), state.weights.means[0].dtype)
    for mean, log, mixing, alive, member, own_prior in columns:
        if mixing is not None:
            gone = alive & member
            total += condition_vector(mean, log, mixing, alive, gone, own_prior).delta_f
    return total


def reduce_priors(state: TrainingState, gone: Vectors) -> Any:
    """Return the priors of the remaining weights; those with covariance are conditioned, too."""
    return tuple(
        condition_prior(p, g)[0] if isinstance(p, UnitNormal) else p
        for p, g in zip(state.prior, gone, strict=True)
    )


def remove_from_vectors(
    state: TrainingState, gone: Vectors, delta_f: Vectors, prior: Any
) -> tuple[Coordinates, Vectors, Array]:
    """Return what remains of all vectors, which weights are alive, and the expected change."""
    alive = tuple(a & ~g for a, g in zip(state.alive, gone, strict=True))
    weights = state.weights
    estimated = jnp.zeros((), weights.means[0].dtype)
    columns: list[Any] = []
    mixing = weights.mixing or (None,) * len(gone)
    for v, (own, is_gone, left) in enumerate(zip(mixing, gone, alive, strict=True)):
        mean, log = weights.means[v], weights.log_deviations[v]
        if own is None:
            columns.append((jnp.where(left, mean, 0), jnp.where(left, log, 0), None))
            estimated += jnp.sum(jnp.where(is_gone, delta_f[v], 0))
            continue
        result = condition_vector(mean, log, own, state.alive[v], is_gone, prior[v])
        columns.append(result[:3])
        estimated += result.delta_f
    means, logs, new_mixing = map(tuple, zip(*columns, strict=True))
    return Coordinates(means, logs, new_mixing if weights.mixing else ()), alive, estimated
