"""Train a Bayesian model by minimising its free energy."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh

from secateur.beliefs import believe, priors
from secateur.distributions import Gamma, Normal
from secateur.likelihoods import GaussianLikelihood
from secateur.likelihoods.base import check_likelihood
from secateur.model import BayesianModel
from secateur.options import check_count, check_key, check_keys, complete_options
from secateur.progress import Callback, Progress
from secateur.propagation import propagate
from secateur.pytrees import flatten_beliefs, is_belief
from secateur.structure import units
from secateur.structure.unit_posterior import check_unit_priors, correlate_units
from secateur.trained import Trained, collect_runs, find_best, make_fit_error
from secateur.training.checkpoint import Checkpoint
from secateur.training.devices import (
    automatic_context,
    find_mesh,
    is_addressable,
    on_automatic_axes,
    with_automatic_axes,
)
from secateur.training.function_checks import find_mistakes
from secateur.training.hierarchy import PriorGroups
from secateur.training.layout import lay_out
from secateur.training.recipe import Recipe, Training, choose_recipe, make_initial_beliefs
from secateur.training.sources import Arrays, Stream, check_model, check_targets, make_source
from secateur.training.trainer import NotFiniteError, Trainer

__all__ = ["fit", "fit_many"]

LEARNT_PRIORS = ("leaves", "inputs")
# Number of weights that an input must feed to have a prior variance of its own in a leaf: each
# variance costs some nats, which a few weights cannot earn.
_SMALLEST_GROUP = 10
_SHARED_OPTIONS = (
    "recipe", "epochs", "batch_size", "rate", "optimiser", "learn_priors", "checkpoint",
    "progress", "callback",
)  # fmt: skip


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
    learn_priors: str | None = None,
    size: int | None = None,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Trained:
    """Train a model: find the beliefs about its weights with the lowest free energy.

        q(θ) q(γ) = argmin KL[q(θ)‖p(θ)] + KL[q(γ)‖p(γ)] − E[ln p(Y | θ, γ)]

    One compiled program runs up to 256 epochs at a time. Every row is used once in every epoch.
    Training ends once the free energy has levelled off, or at the maximum number of epochs. The
    same key on the same machine gives bit-identical results.

    Args:
        model: See `BayesianModel`.
        data: A pair `(x, y)` of arrays (x may be a pytree of them), rows first. Or, where they do
            not fit into memory, a function that starts an iterator of such pairs, an iterable of
            them, or a plain iterator, which can be read only once and needs `size`. Numbers may be
            of any type; they are standardised in float64 and then take the weights' precision.
            Integer targets of a Gaussian likelihood are converted to numbers. Rows may have
            weights: `(x, y, weights)`, with one number w_n ≥ 0 per row, stands for
            −Σ_n w_n E[ln p(y_n | θ, γ)], so that a row of weight 2 counts as two rows and a row of
            weight 0 is left out.
        key: A JAX random key.
        recipe: "default"; "paper", the settings of the paper; or a `Recipe`.
        epochs: Maximum number of passes over the data. Defaults to the recipe's.
        batch_size: Number of rows in a step, at most all rows. Defaults to the recipe's.
        rate: Highest learning rate. Defaults to the recipe's.
        optimiser: Any optax optimiser, to be used instead of Adam. Its updates are used as they are
            while the learning rate is constant, and scaled down as it falls.
        restarts: Number of initialisations to train side by side, of which the one with the lowest
            free energy is kept. The first is the model's own; the others are drawn with the same
            spread.
        learn_priors: Which variances of Normal priors to learn: "leaves", one for each leaf; or
            "inputs", one for each input of a leaf that has at least ten weights for each (inputs
            are found by `secateur.units`), and one for each other leaf, so that the weights of an
            input that does not matter vanish together. Precisions have a Gamma prior, whose
            complexity is part of the free energy. None learns none.
        size: Number of rows, for an iterator.
        mesh: Devices to divide the rows of each step over. Defaults to those of sharded data.
        checkpoint: File to save the state of training in, every second or so. If it exists already,
            training continues from it; if its training is finished, its result is returned.
        progress: Whether to show progress on standard error, after two seconds.
        callback: Function that is called with a `ProgressUpdate` several times a second. It may
            return "cool", so that the learning rate falls to 0 from then on and training ends, or
            "stop", so that training ends at once; such a training counts as finished. If it raises,
            the checkpoint is written first, and training can be resumed from it.

    Returns:
        A `Trained`.

    Raises:
        FitError: A value was not finite. Holds the last good state.
        ValueError, TypeError: The data do not fit the model, or cannot be used.
        CheckpointError: The checkpoint is damaged or belongs to another training.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> x = np.linspace(-1, 1, 64)[:, None]
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((1, 1)))
        >>> fitted = fit(model, (x, 3 * x + 1), key=jax.random.key(0), progress=False)
        >>> fitted.predict(np.array([[2.0]])).mean.round(1).tolist()
        [[7.0]]

    Reference: Algorithm 1 of the paper, its first step.
    """
    key, restarts = check_key(key), check_count(restarts, "restarts")
    _check_is_model(model)
    chosen = choose_recipe(recipe, epochs=epochs, batch_size=batch_size, rate=rate)
    source = make_source(data, size=size, batch_size=chosen.batch_size)
    sharded = (data if isinstance(source, Arrays) else (), model.params)
    candidates = fit_runs(
        model,
        source,
        list(jax.random.split(key, restarts)) if restarts > 1 else [key],
        Training(
            chosen,
            optimiser,
            find_prior_groups(model, source, learn_priors),
            find_mesh(sharded) if mesh is None else with_automatic_axes(mesh),
        ),
        checkpoint,
        Progress("fit", show=progress, callback=callback),
    )
    free_energies = tuple(c.free_energy for c in candidates)
    return replace(find_best(candidates), restarts=free_energies)


def fit_many(
    model: BayesianModel, datasets: Sequence[Any], *, keys: Sequence[Array], **options: Any
) -> list[Trained]:
    """Train one model on several data sets of equal shape, or with several seeds, in one program.

    Args:
        model: See `BayesianModel`. The first run starts from its params, the others from weights
            of the same spread.
        datasets: Pairs `(x, y)`, such as splits of one set, or `(x, y, weights)`, as in `fit`. One
            alone is used for all keys.
        keys: A JAX random key for each run.
        options: `recipe`, `epochs`, `batch_size`, `rate`, `optimiser`, `learn_priors`,
            `checkpoint`, `progress` (of the best run) and `callback`, as in `fit`.

    Returns:
        A `Trained` for each key, in order.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> x = np.linspace(-1, 1, 32)[:, None]
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((1, 1)))
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> fits = fit_many(model, [(x, x), (x, -2 * x)], keys=keys, progress=False)
        >>> [round(float(f.predict(np.ones((1, 1))).mean[0, 0])) for f in fits]
        [1, -2]
    """
    chosen = complete_options(fit, _SHARED_OPTIONS, options, caller="fit_many")
    keys = check_keys(keys)
    _check_is_model(model)
    if len(datasets) not in (1, len(keys)):
        raise ValueError(
            f"{len(datasets)} data sets and {len(keys)} keys. Give a key for every data set, or "
            "one data set for all keys."
        )
    names = ("epochs", "batch_size", "rate")
    recipe = choose_recipe(chosen["recipe"], **{name: chosen[name] for name in names})
    source = Arrays(list(datasets))
    groups = find_prior_groups(model, source, chosen["learn_priors"])
    return fit_runs(
        model,
        source,
        keys,
        Training(recipe, chosen["optimiser"], groups),
        chosen["checkpoint"],
        Progress("fit", show=chosen["progress"], callback=chosen["callback"]),
    )


@automatic_context()
def fit_runs(
    model: BayesianModel,
    source: Arrays | Stream,
    keys: list[Array],
    training: Training,
    checkpoint_path: str | os.PathLike | None,
    progress: Progress,
    *,
    starts: list[Any] | None = None,
) -> list[Trained]:
    """Train several runs side by side and return their results.

    Args:
        model: See `BayesianModel`.
        source: The data.
        keys: A random key for each run.
        training: How to train.
        checkpoint_path: See `fit`.
        progress: Receives updates several times a second.
        starts: Beliefs that each run starts from. A weight of variance 0 does not exist in that
            run, as if it had been pruned. Defaults to the recipe's.
    """
    model = _complete_likelihood(model, training.recipe)
    check_likelihood(model.likelihood)
    model = replace(model, params=on_automatic_axes(model.params))
    keys = [on_automatic_axes(key) for key in keys]
    beliefs = believe(model.params, variance=1.0, where=model.where)
    prior = priors(beliefs, model.prior)
    starts = starts or [
        make_initial_beliefs(training.recipe, k, beliefs, prior, redraw=number > 0)
        for number, k in enumerate(keys)
    ]
    if model.posterior != "mean-field":
        check_unit_priors(prior)
        x, _ = source.sample()
        starts = [correlate_units(s, model.f, model.params, x, model.posterior) for s in starts]
    trainer = Trainer(model, source, starts, [prior] * len(keys), training)
    _check(model, source, trainer, starts[0])
    state = trainer.start(keys)
    checkpoint = None
    if checkpoint_path is not None:
        checkpoint = Checkpoint(checkpoint_path, trainer.fingerprint(state))
    with progress:
        try:
            state, records, timetable = trainer.train(
                trainer.restart(state),
                trainer.planner.plan_training(),
                progress=progress,
                checkpoint=checkpoint,
            )
        except NotFiniteError as error:
            raise make_fit_error(trainer, error, checkpoint_path) from None
        results = collect_runs(trainer, state, records, timetable.stop_reason)
        results = [replace(r, is_level=timetable.is_run_level(n)) for n, r in enumerate(results)]
        free_energy = find_best(results).free_energy
        progress.finish(f"fit: free energy {free_energy:.1f} nats; {timetable.stop_reason}")
    failed = [number for number, r in enumerate(results) if math.isnan(r.free_energy)]
    if failed:
        warnings.warn(
            f"runs {failed} of {len(results)} met a value that is not finite and were stopped; "
            "their free energy is nan.",
            stacklevel=3,
        )
    return results


def _check_is_model(model: Any) -> None:
    if not isinstance(model, BayesianModel):
        advice = "Give a BayesianModel(f, params)."
        if isinstance(model, Trained):
            advice = "Give its model (trained.model), or learn from new data with update."
        raise TypeError(f"a {type(model).__name__} is not a model to train. {advice}")


def _complete_likelihood(model: BayesianModel, recipe: Recipe) -> BayesianModel:
    """Return the likelihood; a Gaussian one without a prior gets the recipe's."""
    likelihood = model.likelihood
    if not isinstance(likelihood, GaussianLikelihood) or likelihood.prior is not None:
        return model
    if likelihood.precision is not None:
        return model
    return replace(model, likelihood=replace(likelihood, prior=Gamma(*recipe.noise_prior)))


def find_prior_groups(
    model: BayesianModel, source: Arrays | Stream, learn_priors: str | None
) -> PriorGroups | None:
    """Return, for every uncertain leaf, the axis whose indices have their own prior variances."""
    if learn_priors is None:
        return None
    if learn_priors not in LEARNT_PRIORS:
        raise ValueError(
            f"learn_priors={learn_priors!r}. Supported: {', '.join(LEARNT_PRIORS)}, or None."
        )
    beliefs = believe(model.params, variance=1.0, where=model.where)
    leaf_priors = jax.tree.leaves(
        priors(beliefs, model.prior), is_leaf=lambda p: hasattr(p, "log_prob")
    )
    if not all(isinstance(p, Normal) for p in leaf_priors):
        raise ValueError("learn_priors learns the variances of Normal priors only.")
    leaves, _, treedef = flatten_beliefs(beliefs)
    if learn_priors == "leaves":
        return tuple(None for leaf in leaves if is_belief(leaf))
    model_units = units(model.f, model.params, source.sample()[0])
    inputs = [number for number, u in enumerate(model_units.units) if u.kind == "input"]
    axes = treedef.flatten_up_to(model_units.axes)
    groups: list[int | None] = []
    for leaf, by_axis in zip(leaves, axes, strict=True):
        if is_belief(leaf):
            reading = [a for a, labels in enumerate(by_axis) if np.isin(labels, inputs).all()]
            size = np.size(leaf.mean) // np.shape(leaf.mean)[reading[0]] if reading else 0
            groups.append(reading[0] if size >= _SMALLEST_GROUP else None)
    return tuple(groups)


def _check(model: BayesianModel, source: Arrays | Stream, trainer: Trainer, beliefs: Any) -> None:
    """Refuse data that do not fit the model before anything is compiled."""
    for _, columns in source.columns:
        check_targets(columns)
    sample = trainer.scalings[0].standardise(source.sample(), trainer.spec.layout.dtype)
    for mistake in find_mistakes(model.f, model.params, sample[0], model.likelihood):
        warnings.warn(mistake, stacklevel=5)  # one of them is the decorator of `fit_runs`
    targets: list[Any] = []
    if isinstance(source, Arrays):
        targets = [one.targets for one in source.sets if is_addressable(one.targets)]
    targets.append(sample[1])  # last, so that messages speak of all rows where that is possible
    layout, flat, certain = lay_out(beliefs)
    forward = propagate(model.f, model.inference)

    def try_forward(x: Any) -> Any:
        return forward(jax.random.key(0), layout.beliefs(flat, certain), x)

    for some in targets:
        check_model(try_forward, model.likelihood, sample, some)
