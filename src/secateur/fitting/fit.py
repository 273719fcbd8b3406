"""`fit`: train a Bayesian model by minimising its free energy."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh

from secateur.beliefs import believe, priors
from secateur.distributions import Normal
from secateur.fitting import checks
from secateur.fitting.devices import is_here, mesh_of
from secateur.fitting.outcome import best, failure, outcomes
from secateur.fitting.recipes import RECIPES, Recipe, initial_beliefs
from secateur.fitting.result import Fitted
from secateur.fitting.saving import Saver, fingerprint
from secateur.fitting.sources import Arrays, Stream, source_of
from secateur.fitting.trainer import NotFinite, Trainer
from secateur.fitting.weights import Weights, flat_priors, lay_out, of_one_kind
from secateur.model import BayesianModel
from secateur.progress import Callback, Progress
from secateur.propagation import propagate

__all__ = ["fit", "fit_many"]


def fit(
    model: BayesianModel,
    data: Any,
    *,
    key: Array,
    recipe: str | Recipe = "default",
    epochs: int | None = None,
    batch_size: int | None = None,
    rate: float | None = None,
    optimiser: optax.GradientTransformation | None = None,
    restarts: int = 1,
    empirical_bayes: bool = False,
    size: int | None = None,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Fitted:
    """Train a model: find the beliefs about its weights of least free energy.

        q(θ) q(γ) = argmin KL[q(θ)‖p(θ)] + KL[q(γ)‖p(γ)] − E[ln p(Y | θ, γ)]

    One compiled program runs many epochs at a time. Every row is used once in every epoch. Training
    ends by itself once the free energy has levelled off, or with the budget of epochs. The same key
    on the same machine gives the same result, to the bit.

    Args:
        model: see `BayesianModel`.
        data: a pair `(x, y)` of arrays (x may be a pytree of them), rows first. Or, where they do
            not fit into memory, a function that starts an iterator of such pairs, an iterable of
            them, or a plain iterator, which can be read once only and needs `size`. Numbers may be
            of any type; they are standardised in float64 and then take the weights' precision.
            Integer targets of a Gaussian likelihood are taken as numbers.
        key: a JAX random key.
        recipe: "default"; "paper", which is that of the paper; or a `Recipe`.
        epochs: at most so many passes over the data; by default the recipe's.
        batch_size: rows in a step; all rows if it exceeds their number.
        rate: learning rate at its highest.
        optimiser: any optax optimiser, in the place of Adam. Its updates are used as they are while
            the rate is constant, and scaled down in step with it as it falls.
        restarts: how many initialisations to train side by side; the one of least free energy is
            kept. The first is the model's own, the others are drawn with the same spread.
        empirical_bayes: also learn the variance of the Normal prior of every leaf.
        size: number of rows, for an iterator.
        mesh: devices to divide the rows of each step over. Found from the data if they are sharded.
        checkpoint: a file to save the state of training in, every second or so. If it is there
            already, training goes on from it; if it is finished, its result is returned.
        progress: whether to show progress on standard error, from two seconds on.
        callback: called with a `Report` several times a second. It may return "cool", so that the
            learning rate falls to 0 from then on and training ends, or "stop", so that it ends at
            once; a training that ended so counts as finished. If it raises, the checkpoint is
            written first, and training can go on from it.

    Returns:
        A `Fitted`.

    Raises:
        FitError: a value was not finite; holds the last good state.
        ValueError, TypeError: the data do not fit the model, or cannot be used.
        CheckpointError: the checkpoint is damaged or belongs to another training.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 64)[:, None]
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((1, 1)))
        >>> fitted = fit(model, (x, 3 * x + 1), key=jax.random.key(0), progress=False)
        >>> fitted.predict(np.array([[2.0]])).mean.round(1).tolist()
        [[7.0]]

    Reference: Algorithm 1 of the paper, its first step.
    """
    if restarts < 1:
        raise ValueError(f"restarts={restarts}. Give at least 1.")
    chosen = _recipe(recipe, epochs=epochs, batch_size=batch_size, rate=rate)
    source = source_of(data, size=size, batch_size=chosen.batch_size)
    candidates = _fit(
        model,
        source,
        keys=list(jax.random.split(key, restarts)) if restarts > 1 else [key],
        runs=restarts if restarts > 1 else None,
        recipe=chosen,
        optimiser=optimiser,
        empirical_bayes=empirical_bayes,
        mesh=mesh or mesh_of((data if isinstance(source, Arrays) else (), model.params)),
        checkpoint=checkpoint,
        progress=Progress("fit", show=progress, callback=callback),
    )
    return replace(best(candidates), restarts=tuple(c.free_energy for c in candidates))


def fit_many(
    model: BayesianModel,
    datasets: Sequence[Any],
    *,
    keys: Sequence[Array],
    recipe: str | Recipe = "default",
    epochs: int | None = None,
    batch_size: int | None = None,
    rate: float | None = None,
    optimiser: optax.GradientTransformation | None = None,
    empirical_bayes: bool = False,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> list[Fitted]:
    """Train one model on several data sets of equal shape, or with several seeds, in one program.

    Args:
        model: see `BayesianModel`. The first run starts from its params, the others from weights
            of the same spread.
        datasets: pairs `(x, y)`: splits of one set, say. One pair alone is used for all keys.
        keys: a JAX random key for each run.
        recipe: see `fit`, here and below.
        epochs: at most so many passes over the data.
        batch_size: rows in a step.
        rate: learning rate at its highest.
        optimiser: any optax optimiser.
        empirical_bayes: also learn the variance of the Normal prior of every leaf.
        checkpoint: a file to save the state of training in.
        progress: whether to show progress; the figures are those of the best run.
        callback: called with a `Report` several times a second.

    Returns:
        A `Fitted` per key, in order.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 32)[:, None]
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((1, 1)))
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> fits = fit_many(model, [(x, x), (x, -2 * x)], keys=keys, progress=False)
        >>> [round(float(f.predict(np.ones((1, 1))).mean[0, 0])) for f in fits]
        [1, -2]
    """
    keys = list(keys)
    if len(datasets) not in (1, len(keys)):
        raise ValueError(
            f"{len(datasets)} data sets and {len(keys)} keys. Give a key for every data set, or "
            "one data set for all keys."
        )
    return _fit(
        model,
        Arrays(list(datasets)),
        keys=keys,
        runs=len(keys),
        recipe=_recipe(recipe, epochs=epochs, batch_size=batch_size, rate=rate),
        optimiser=optimiser,
        empirical_bayes=empirical_bayes,
        mesh=None,
        checkpoint=checkpoint,
        progress=Progress("fit", show=progress, callback=callback),
    )


def _fit(
    model: BayesianModel,
    source: Arrays | Stream,
    *,
    keys: list[Array],
    runs: int | None,
    recipe: Recipe,
    optimiser: optax.GradientTransformation | None,
    empirical_bayes: bool,
    mesh: Mesh | None,
    checkpoint: str | os.PathLike | None,
    progress: Progress,
) -> list[Fitted]:
    """Train all runs and return what became of each."""
    beliefs = believe(model.params, variance=1.0, where=model.where)
    prior = priors(beliefs, model.prior)
    starts = [
        initial_beliefs(recipe, k, beliefs, prior, redraw=number > 0)
        for number, k in enumerate(keys)
    ]
    shard_weights = mesh is not None and mesh_of(model.params) is not None
    multiple = mesh.size if mesh is not None and shard_weights else 1
    apart = not of_one_kind(beliefs, prior)
    laid_out = [lay_out(start, multiple=multiple, apart=apart) for start in starts]
    layout, _, certain = laid_out[0]
    flat_prior = flat_priors(layout, prior)
    if empirical_bayes:
        if not all(isinstance(p, Normal) for p in flat_prior):
            raise ValueError("empirical_bayes=True learns the variance of Normal priors only.")
        flat_prior = tuple(
            Normal(*(jnp.broadcast_to(v, size) for v in (p.mean, p.variance)))
            for p, size in zip(flat_prior, layout.sizes, strict=True)
        )
    trainer = Trainer(
        model,
        source,
        layout,
        certain,
        recipe,
        optimiser=optimiser,
        empirical_bayes=empirical_bayes,
        runs=runs,
        mesh=mesh,
        shard_weights=shard_weights,
    )
    _check(model, source, trainer, starts[0])
    each = [
        trainer.start(Weights.of(flat), tuple(q.variance > 0 for q in flat), flat_prior, k)
        for k, (_, flat, _) in zip(keys, laid_out, strict=True)
    ]
    state = each[0] if runs is None else jax.tree.map(lambda *a: jnp.stack(a), *each)
    timetable, records = trainer.timetable(), None
    saver = None
    if checkpoint is not None:
        saver = Saver(checkpoint, fingerprint(model, trainer, state))
        found = saver.read(state)
        if found is not None:
            state, timetable, records = trainer.placed(found[0]), *found[1:]
    with progress:
        try:
            state, records = trainer.train(
                state, timetable, progress=progress, saver=saver, records=records
            )
        except NotFinite as trouble:
            raise failure(model, trainer, trouble, checkpoint) from None
        results = outcomes(model, trainer, state, records, timetable.ended)
        free_energy = best(results).free_energy
        progress.finish(f"fit: free energy {free_energy:.1f} nats; {timetable.ended}")
    failed = [number for number, r in enumerate(results) if math.isnan(r.free_energy)]
    if failed:
        warnings.warn(
            f"runs {failed} of {len(results)} met a value that is not finite and went no further; "
            "their free energy is nan.",
            stacklevel=3,
        )
    return results


def _check(model: BayesianModel, source: Any, trainer: Trainer, beliefs: Any) -> None:
    for _, columns in source.columns:
        checks.varying_targets(columns)
    sample = trainer.scalings[0].standard(source.sample(), trainer.settings.layout.dtype)
    targets = [sample[1]]
    if isinstance(source, Arrays):
        targets += [y for _, y in source.sets if is_here(y)]
    layout, flat, certain = lay_out(beliefs)
    forward = propagate(model.f, model.inference)

    def try_out(x: Any) -> Any:
        return forward(jax.random.key(0), layout.beliefs(flat, certain), x)

    for some in targets:
        checks.rehearse(try_out, model.likelihood, sample, some)


def _recipe(
    recipe: str | Recipe, *, epochs: int | None, batch_size: int | None, rate: float | None
) -> Recipe:
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe={recipe!r}. Supported: {', '.join(RECIPES)}, or a Recipe.")
        recipe = RECIPES[recipe]
    options = {"epochs": epochs, "batch_size": batch_size, "rate": rate}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if not value > 0:
            raise ValueError(f"{name}={value}. It must be positive.")
    return replace(recipe, **given)
