"""Learning from new data: the posterior so far is the prior of what comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.beliefs import live
from secateur.distributions import Normal
from secateur.options import check_count, check_key
from secateur.progress import Callback, Progress
from secateur.pruning.growth import draw_weights
from secateur.pruning.moves import score_weights
from secateur.pytrees import align_tree, flatten_beliefs, is_belief
from secateur.trained import (
    Trained,
    check_trained,
    collect_runs,
    make_fit_error,
    open_data,
    resume,
)
from secateur.training.layout import Coordinates, flatten_priors
from secateur.training.program import TrainingState
from secateur.training.recipe import BeforeUpdate
from secateur.training.trainer import NotFiniteError, Trainer

__all__ = ["update"]


def update(
    trained: Trained,
    data: Any,
    *,
    key: Array,
    trust: float = 1.0,
    epochs: int | None = None,
    size: int | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Trained:
    """Learn from new data without the old: the posterior so far is the prior of the new data.

        p(θ | old, new) ∝ p(new | θ) p(θ | old)        q_old(θ) in place of p(θ | old)

    Weights that were pruned stay pruned, until `prune(…, grow=True)` finds that the new data ask
    for them. The result can be pruned with the new data alone: a weight is judged by all data there
    ever were, because delta_f = ln p(0) − ln q(0) with the prior p from before any.

    Args:
        trained: From `fit`, `prune`, `update` or `load`.
        data: New rows only, of the same shape as before, with or without weights; see `fit`.
        key: A JAX random key.
        trust: Trust in the old beliefs, above 0 and up to 1. Below 1 the prior is
            q_old^trust p^(1 − trust), with p from before any data: where the world changes, or
            because beliefs about the weights of a network, which are taken as independent of each
            other, are more certain than they should be. (On the boston data in three batches, 0.25
            predicts better than 1.)
        epochs: Maximum number of epochs. Defaults to the recipe's.
        size: Number of rows, for an iterator.
        progress: Whether to show progress on standard error, after two seconds.
        callback: Function that is called with a `ProgressUpdate` several times a second; see `fit`.

    Returns:
        A `Trained`. Its free energy is that of the new data given the old; the sum over all updates
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
    key = check_key(key)
    check_trained(trained)
    epochs = None if epochs is None else check_count(epochs, "epochs")
    if not 0 < trust <= 1:
        raise ValueError(f"trust={trust}. Give a number above 0 and up to 1.")
    before = trained.training.before_update
    first_priors = trained.priors if before is None else before.priors
    start = replace(
        trained,
        model=replace(trained.model, likelihood=trained.model.likelihood.with_prior(trained.noise)),
        priors=_make_priors(trained.beliefs, first_priors, trust),
        training=replace(
            trained.training,
            prior_groups=None,
            before_update=BeforeUpdate(first_priors, live(trained.beliefs)),
        ),
    )
    trainer, state = resume([start], open_data(data, trained, size), keys=[key])
    state = _redraw_idle(trainer, state, first_priors, key)
    timetable = (
        trainer.plan_training(warm=False) if epochs is None else trainer.plan_retraining(epochs)
    )
    with Progress("update", show=progress, callback=callback) as shown:
        try:
            state, records, timetable = trainer.train(
                trainer.restart(state), timetable, progress=shown
            )
        except NotFiniteError as error:
            raise make_fit_error(trainer, error) from None
        (result,) = collect_runs(trainer, state, records, timetable.stop_reason)
        shown.finish(f"update: free energy {result.free_energy:.1f} nats; {timetable.stop_reason}")
    return result


def _make_priors(beliefs: Any, first_priors: Any, trust: float) -> Any:
    """Return the posterior so far as a prior; cut weights keep the one from before any data."""
    leaves, _, treedef = flatten_beliefs(beliefs)
    pairs = zip(leaves, align_tree(first_priors, treedef, "priors"), strict=True)
    uncertain = [(q, p) for q, p in pairs if is_belief(q)]
    mixed = iter(_mix_priors([q for q, _ in uncertain], [p for _, p in uncertain], trust))
    return treedef.unflatten([next(mixed) if is_belief(leaf) else None for leaf in leaves])


@jax.jit
def _mix_priors(beliefs: list[Normal], first_priors: list[Any], trust: float) -> list[Normal]:
    priors = []
    for q, first in zip(beliefs, first_priors, strict=True):
        alive = q.variance > 0
        variance = jnp.where(alive, q.variance, first.variance)
        precision = trust / variance + (1 - trust) / first.variance
        pull = trust * q.mean / variance + (1 - trust) * first.mean / first.variance
        priors.append(Normal(jnp.where(alive, pull / precision, first.mean), 1 / precision))
    return priors


def _redraw_idle(
    trainer: Trainer, state: TrainingState, first_priors: Any, key: Array
) -> TrainingState:
    """Draw weights that have learnt nothing yet as at the start of a training.

    Beliefs that are still the prior's are wide and have no direction: from there, training would
    not find what the new data could teach them.
    """
    fresh = draw_weights(trainer.model, trainer, key)
    scores = score_weights(state, "bmr", prior=flatten_priors(trainer.spec.layout, first_priors))
    idle = tuple(a & (s <= 0) for a, s in zip(state.alive, scores, strict=True))
    weights = jax.tree.map(
        lambda new, old, i: jnp.where(i, new, old), fresh, state.weights, Coordinates(idle, idle)
    )
    return state._replace(weights=weights)
