"""New data: yesterday's posterior is today's prior."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.distributions import Normal
from secateur.fitting.outcome import failure, outcomes
from secateur.fitting.program import State, restarted
from secateur.fitting.result import Fitted, Past
from secateur.fitting.trainer import NotFinite, Trainer
from secateur.fitting.weights import Weights
from secateur.model import BayesianModel
from secateur.progress import Callback, Progress
from secateur.pruning.growing import fresh_weights
from secateur.pruning.resuming import as_source, resume
from secateur.pruning.scoring import weight_scores

__all__ = ["update"]


def update(
    fitted: Fitted,
    data: Any,
    *,
    key: Array,
    trust: float = 1.0,
    epochs: int | None = None,
    size: int | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Fitted:
    """Learn from new data without the old: what is believed now is the prior of what comes.

        p(θ | old, new) ∝ p(new | θ) p(θ | old)        q_old(θ) in the place of p(θ | old)

    Weights that were pruned stay so, until `prune(…, grow=True)` finds that the new data ask for
    them. The result can be pruned with the new data alone: a weight is judged by all data there
    ever were, because delta_f = ln p(0) − ln q(0) with the prior p from before any.

    Args:
        fitted: from `fit`, `prune` or `update`.
        data: new rows only, of the same shape as before.
        key: a JAX random key.
        trust: in the old beliefs, between 0 and 1. Below 1 the prior is q_old^trust p^(1 − trust),
            with p from before any data: where the world changes, or because beliefs about the
            weights of a network, held to be independent of each other, are more certain than they
            should be. (On the boston data in three batches, 0.25 predicts better than 1.)
        epochs: at most so many; by default the recipe's.
        size: number of rows, for an iterator.
        progress: whether to show progress on standard error, from two seconds on.
        callback: called with a `Report` several times a second.

    Returns:
        A `Fitted`. Its free energy is that of the new data given the old; the sum over all updates
        bounds the evidence of all data.

    Example:
        >>> import jax, numpy as np
        >>> from secateur import BayesianModel, fit
        >>> x = np.random.default_rng(0).normal(size=(400, 1))
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((1, 1)))
        >>> old = fit(model, (x[:200], 3 * x[:200]), key=jax.random.key(0), progress=False)
        >>> new = update(old, (x[200:], 3 * x[200:]), key=jax.random.key(1), progress=False)
        >>> bool(new.beliefs.variance[0, 0] < old.beliefs.variance[0, 0])
        True
    """
    if not 0 < trust <= 1:
        raise ValueError(f"trust={trust}. Give a number above 0 and up to 1.")
    before, model = fitted.continuation, fitted.model
    model = replace(model, likelihood=model.likelihood.with_prior(fitted.noise))
    going_on = before._replace(empirical_bayes=False)
    trainer, state = resume(
        [replace(fitted, model=model, continuation=going_on)], as_source(data, fitted, size)
    )
    first = state.prior if before.past is None else before.past.prior
    beliefs = state.weights.beliefs(state.alive)
    columns = zip(beliefs, first, state.alive, strict=True)
    prior = tuple(starmap(partial(_yesterday, trust), columns))
    state = state._replace(prior=prior, key=key)
    past = Past(first, state.alive)
    state = state._replace(weights=_stirred(model, trainer, state, first, key))
    state = trainer.placed(restarted(trainer.settings, state))
    timetable = trainer.timetable(warm=False) if epochs is None else trainer.retraining(epochs)
    with Progress("update", show=progress, callback=callback) as shown:
        try:
            state, records = trainer.train(state, timetable, progress=shown)
        except NotFinite as trouble:
            raise failure(model, trainer, trouble, None) from None
        (result,) = outcomes(model, trainer, state, records, timetable.ended)
        shown.finish(f"update: free energy {result.free_energy:.1f} nats; {timetable.ended}")
    return replace(result, continuation=result.continuation._replace(past=past))


def _stirred(
    model: BayesianModel, trainer: Trainer, state: State, first: Any, key: Array
) -> Weights:
    """Where to start: weights that have learnt nothing yet are drawn as a training would start.

    Beliefs that are still the prior's are wide and have no direction: from there, what the new data
    could teach them would not be found.
    """
    fresh = fresh_weights(model, trainer, key)
    scores = weight_scores(state, "bmr", many=False, prior=first)
    idle = [a & (s <= 0) for a, s in zip(state.alive, scores, strict=True)]
    return jax.tree.map(
        lambda new, old, i: jnp.where(i, new, old),
        fresh,
        state.weights,
        Weights(tuple(idle), tuple(idle)),
    )


def _yesterday(trust: float, belief: Normal, first: Any, alive: Array) -> Normal:
    """The posterior so far as a prior; weights that were cut keep the one from before any data."""
    variance = jnp.where(alive, belief.variance, first.variance)
    precision = trust / variance + (1 - trust) / first.variance
    pull = trust * belief.mean / variance + (1 - trust) * first.mean / first.variance
    return Normal(jnp.where(alive, pull / precision, first.mean), 1 / precision)
