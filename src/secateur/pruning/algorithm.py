"""Algorithm 1 of the paper: prune by Bayesian model reduction, train again, repeat."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.distributions import UnitNormal
from secateur.options import check_count, check_key, complete_options
from secateur.progress import Callback, Progress
from secateur.pruning.budget import FULL_GRADE, Budget, make_budget
from secateur.pruning.curves import make_swept_cut
from secateur.pruning.growth import grow_weights
from secateur.pruning.moves import (
    Change,
    Move,
    count_live,
    join_moves,
    make_budget_cut,
    make_ranked_cut,
    make_weight_cut,
)
from secateur.pruning.process import Process
from secateur.pruning.unit_moves import Grouping, make_unit_budget_cut, make_unit_cut
from secateur.reduction import CRITERIA
from secateur.structure import units
from secateur.trained import (
    History,
    Round,
    Trained,
    check_trained,
    make_trained,
    open_data,
    resume,
)
from secateur.training.coordinates import condition_prior
from secateur.training.devices import automatic_context
from secateur.training.layout import Layout, flatten_priors
from secateur.training.program import TrainingState, take_run
from secateur.training.recipe import BeforeUpdate
from secateur.training.sources import Arrays, Stream
from secateur.training.trainer import Trainer

__all__ = ["prune", "prune_many"]

WHAT = ("weights", "units", "both")
_NOT_LEVEL = (
    "the free energy was still falling when the fit ended: train for longer (epochs) or with "
    "another rate before pruning"
)
_SHARED_OPTIONS = (
    "criterion", "rate", "what", "grow", "most_weights", "held_out", "least_accuracy", "most_rmse",
    "epochs", "checkpoint", "progress", "callback",
)  # fmt: skip


@automatic_context()
def prune(
    trained: Trained,
    data: Any,
    *,
    key: Array,
    criterion: str = "bmr",
    rate: float | None = None,
    what: str = "weights",
    grow: bool = False,
    most_weights: int | None = None,
    held_out: Any = None,
    least_accuracy: float | None = None,
    most_rmse: float | None = None,
    epochs: int | None = None,
    size: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Trained:
    """Remove every weight whose removal lowers the free energy; train again; repeat.

        delta_f = ln p(0) − ln q(0)        cut all weights with delta_f ≤ 0

    until a round finds nothing to cut. A round that ends with a higher free energy than it began
    with, by more than the noise of its estimate, is undone, and the better half of its weights is
    tried, then a quarter, and so on. The result is the model with the lowest free energy of all
    rounds.

    With requirements, it is the one with the lowest free energy among those that meet them,
    including the model before pruning. Requirements on held-out rows only select among models; they
    do not cause any pruning. `stop_reason` reports which were met. If no model meets all of them,
    there is a warning, and models within `most_weights` are preferred.

    Args:
        trained: From `fit`, `prune`, `update` or `load`. Its beliefs are what is pruned.
        data: Data as given to `fit`.
        key: A JAX random key, for the trainings.
        criterion: "bmr", which stops by itself; or "snr", "spr" or "magnitude", which only rank.
        rate: Fraction of all weights to remove in one round, for a criterion that only ranks. None
            finds the rate with the lowest free energy (see `sweep`).
        what: "weights"; "units", to remove only whole units (see `secateur.units`), each where the
            sum over its weights is ≤ 0; or "both": units first, then weights.
        grow: Whether pruned weights may grow back. After pruning, weights whose return lowers the
            free energy are readmitted, and units that were removed completely are initialised
            again; then the network is trained and pruned, and the result is kept if its free energy
            is lower. This is repeated while it helps.
        most_weights: Largest number of weights of the result. If no model is that small once
            nothing is left to prune, the weights (or units, with `what="units"`) with the lowest
            scores are cut against the free energy, at most a quarter per round, with retraining
            after each, until one is.
        held_out: Rows `(x, y)` that are not among the data, for one of the next two options.
        least_accuracy: Required accuracy on the held-out rows.
        most_rmse: Largest root-mean-square error on the held-out rows, in the targets' units.
        epochs: Maximum number of epochs of each training. Defaults to the recipe's.
        size: Number of rows, for an iterator.
        checkpoint: File to save the state of pruning in, after every round and, with a second file
            beside it, during every training. If it exists already, pruning continues from it.
        progress: Whether to show progress on standard error, after two seconds.
        callback: Function that is called with a `ProgressUpdate` several times a second; see `fit`.
            "stop" ends training and pruning: the current round is evaluated as it is.

    Returns:
        A `Trained` with its `rounds`.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from secateur import BayesianModel, fit
        >>> x = np.random.default_rng(0).normal(size=(200, 5))
        >>> y = x[:, :1] - 2 * x[:, 3:4] + 0.1 * np.random.default_rng(1).normal(size=(200, 1))
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((5, 1)))
        >>> fitted = fit(model, (x, y), key=jax.random.key(0), progress=False)
        >>> pruned = prune(fitted, (x, y), key=jax.random.key(1), progress=False)
        >>> np.flatnonzero(pruned.beliefs.variance).tolist()
        [0, 3]

    Reference: Algorithm 1 of the paper; section 4.
    """
    key = check_key(key)
    budget = Budget(most_weights, held_out, least_accuracy, most_rmse)
    plan = _Plan(criterion, rate, what, grow, epochs, budget)
    (result,) = _prune_runs(
        [trained],
        open_data(data, trained, size),
        key,
        plan,
        checkpoint,
        Progress("prune", show=progress, callback=callback),
    )
    if not result.live_weights and trained.live_weights and plan.rate is None:
        advice = f" Note that {_NOT_LEVEL}." if not trained.is_level else ""
        warnings.warn(
            "prune removed every weight: as far as this fit shows, the inputs do not explain the "
            f"targets.{advice}",
            stacklevel=2,
        )
    return result


@automatic_context()
def prune_many(
    models: Sequence[Trained], datasets: Sequence[Any], *, key: Array, **options: Any
) -> list[Trained]:
    """Prune what `fit_many` returned, all in one program; see `prune`.

    Args:
        models: From one call of `fit_many`.
        datasets: Data sets as given there.
        key: A JAX random key.
        options: `criterion`, `rate`, `what`, `grow`, `most_weights`, `held_out` (the same rows for
            all), `least_accuracy`, `most_rmse`, `epochs`, `checkpoint`, `progress` (of the best
            run) and `callback`, as in `prune`. Requirements are for each model; there is a warning
            if none meets them.

    Returns:
        A `Trained` for each model, in order.
    """
    chosen = complete_options(prune, _SHARED_OPTIONS, options, caller="prune_many")
    key, models = check_key(key), list(models)
    for trained in models:
        check_trained(trained)
    moves = {name: chosen[name] for name in ("criterion", "rate", "what", "grow", "epochs")}
    column_names = models[0].scaling.column_names if models else ()
    return _prune_runs(
        models,
        Arrays(list(datasets), column_names=column_names),
        key,
        _Plan(**moves, budget=make_budget(chosen)),
        chosen["checkpoint"],
        Progress("prune", show=chosen["progress"], callback=chosen["callback"]),
    )


@dataclass(frozen=True)
class _Plan:
    """What to prune, and how; see `prune`."""

    criterion: str
    rate: float | None
    what: str
    grow: bool
    epochs: int | None
    budget: Budget

    def __post_init__(self) -> None:
        criterion, rate, what = self.criterion, self.rate, self.what
        if self.epochs is not None:
            object.__setattr__(self, "epochs", check_count(self.epochs, "epochs"))
        if criterion not in CRITERIA:
            raise ValueError(f"criterion={criterion!r}. Supported: {', '.join(CRITERIA)}.")
        if rate is not None and (criterion == "bmr" or not 0 <= rate <= 1):
            raise ValueError(
                f"rate={rate} with criterion={criterion!r}. A rate is a fraction between 0 and 1 "
                "for the criteria that only rank; bmr stops by itself."
            )
        if rate is not None and not self.budget.is_empty:
            raise ValueError(
                f"rate={rate} fixes how much is cut, so it cannot be combined with a budget. Give "
                "only one of them."
            )
        if what not in WHAT:
            raise ValueError(f"what={what!r}. Supported: {', '.join(WHAT)}.")
        if criterion != "bmr" and (self.grow or what != "weights"):
            raise ValueError(f"criterion={criterion!r} prunes single weights, without regrowth.")

    def explain_end(self, rounds: list[Round]) -> str:
        """Return why pruning ended, in words."""
        if self.rate is not None:
            return f"{self.criterion} was asked to prune {100 * self.rate:g} %"
        if self.grow:
            return "neither cutting nor growing lowered the free energy any more"
        if rounds and not rounds[-1].kept:
            return "every further cut raised the free energy"
        return "nothing was left to prune"


def _prune_runs(
    models: list[Trained],
    source: Arrays | Stream,
    key: Array,
    plan: _Plan,
    checkpoint: str | os.PathLike | None,
    progress: Progress,
) -> list[Trained]:
    before = models[0].training.before_update
    if before is not None and len(models) > 1:
        raise ValueError("updated models can only be pruned one by one; see prune.")
    if plan.criterion != "bmr" and plan.rate is None and len(models) > 1:
        raise ValueError(f"prune_many needs a rate for criterion={plan.criterion!r}.")
    budget = plan.budget
    trainer, state = resume(models, source)
    budget.check_model(trainer.model.likelihood)
    layout = trainer.spec.layout
    fingerprint = ""
    if checkpoint is not None:
        facts = (plan, budget.identify(), jax.random.key_data(key).tolist())
        fingerprint = trainer.fingerprint(state, *facts)
    with progress:
        process = Process(
            trainer,
            state,
            key=key,
            epochs=plan.epochs,
            progress=progress,
            checkpoint_path=checkpoint,
            fingerprint=fingerprint,
            extra=None if before is None else _make_past_evidence(layout, before, state),
            budget=None if budget.is_empty else budget,
        )
        prior = None if before is None else flatten_priors(layout, before.priors)
        fit_epochs = models[0].epochs if before is None and not models[0].rounds else None
        _run_moves(process, plan, prior, key, fit_epochs)
        reasons = [plan.explain_end(rounds) for rounds in process.rounds]
        if progress.stopped:
            reasons = [f"pruning was stopped in round {process.number}"] * len(models)
        if not budget.is_empty:
            reasons = _explain_budget(process, budget, reasons)
        reasons = [
            reason if trained.is_level else f"{reason} ({_NOT_LEVEL})"
            for reason, trained in zip(reasons, models, strict=True)
        ]
        results = _collect(process, models, reasons, forced=plan.rate is not None)
        best = min(results, key=lambda r: r.free_energy)
        progress.finish(f"prune: free energy {best.free_energy:.1f} nats; {best.stop_reason}")
    return results


def _run_moves(
    process: Process, plan: _Plan, prior: Any, key: Array, fit_epochs: int | None
) -> None:
    """Repeat the moves of a plan until nothing is left to change."""
    trainer = process.trainer
    if plan.rate is not None:
        live = count_live(process.current)
        cut = make_ranked_cut(live, plan.criterion, plan.rate)
        process.repeat("cut weights", cut, keep=True, once=True)
        return
    cuts = _make_cuts(trainer, plan, prior)
    if fit_epochs is not None and plan.criterion == "bmr":
        process.cut_gradually(" and ".join(cuts), join_moves(list(cuts.values())), fit_epochs)

    def cut_to_the_end() -> None:
        for name, move in cuts.items():
            process.repeat(name, move)

    cut_to_the_end()
    if plan.grow:
        _grow_back(process, cut_to_the_end, key)
    if plan.budget.most_weights is not None:
        process.repeat(*_make_forced_cut(trainer, plan, prior), keep=True)
        cut_to_the_end()


def _grow_back(process: Process, cut_to_the_end: Callable[[], None], key: Array) -> None:
    """Let weights grow back and prune again, as long as the free energy falls."""
    trainer = process.trainer

    def grow(state: TrainingState, share: Any) -> Change:
        noises = [e.noise for e in process.judgement.evaluations]
        return grow_weights(trainer, state, noises, jax.random.fold_in(key, process.number))

    def grow_and_cut() -> None:
        process.repeat("grow weights", grow, keep=True, once=True)
        cut_to_the_end()

    while process.can_go_on:
        process.attempt(grow_and_cut)
    process.end_attempts()


def _make_cuts(trainer: Trainer, plan: _Plan, prior: Any) -> dict[str, Move]:
    """Return the moves that remove weights or units, in order."""
    if plan.criterion != "bmr":
        return {"cut weights": make_swept_cut(trainer, plan.criterion)}
    cuts: dict[str, Move] = {}
    if plan.what != "weights":
        cuts["cut units"] = make_unit_cut(trainer.spec, _find_grouping(trainer), prior)
    if plan.what != "units":
        cuts["cut weights"] = make_weight_cut(trainer.spec, prior)
    return cuts


def _find_grouping(trainer: Trainer) -> Grouping:
    """Return the units of the model's weights."""
    model, layout = trainer.model, trainer.spec.layout
    x, _ = trainer.scalings[0].standardise(trainer.source.sample(), layout.dtype)
    model_units = units(model.f, model.params, x)
    if not len(model_units):
        raise ValueError("no units were found in the model's function; see secateur.units.")
    return Grouping(model_units, layout)


def _make_forced_cut(trainer: Trainer, plan: _Plan, prior: Any) -> tuple[str, Move]:
    """Return the move that cuts down to a number of weights, and its name."""
    most_weights = plan.budget.most_weights
    assert most_weights is not None
    if plan.what == "units":
        return "cut units", make_unit_budget_cut(_find_grouping(trainer), most_weights, prior)
    return "cut weights", make_budget_cut(most_weights, plan.criterion, prior)


def _explain_budget(process: Process, budget: Budget, reasons: list[str]) -> list[str]:
    """Return why pruning ended and whether the budget was met; warn if no run meets it."""
    state, judgement, trainer = process.best, process.best_judgement, process.trainer
    weights = count_live(state)
    measures = [math.nan] * len(reasons)
    if budget.held_out is not None:
        measures = budget.measure(trainer, state, judgement.evaluations)
    explained = [
        budget.explain(reason, process.rounds[run], int(weights[run]), measures[run])
        for run, reason in enumerate(reasons)
    ]
    grades = budget.grade(trainer, state, judgement.evaluations)
    if (grades < FULL_GRADE).all():
        warnings.warn(f"prune: {explained[int(grades.argmax())]}.", stacklevel=4)
    return explained


def _make_past_evidence(
    layout: Layout, before: BeforeUpdate, start: TrainingState
) -> Callable[[TrainingState], Array]:
    """Return the evidence of the data before an update for weights that were cut since, by run.

    Their free energy is not recomputed, but reduced: Σ ln p(0) − ln q(0), with the prior p from
    before any data and the posterior q from before the update, which is the update's prior.
    """
    first = flatten_priors(layout, before.priors)
    beliefs = take_run(start.prior, 0)
    alive_before = before.flatten_alive(layout)

    def compute(state: TrainingState) -> Array:
        total = jnp.zeros(())
        columns = zip(alive_before, take_run(state.alive, 0), first, beliefs, strict=True)
        for before, now, prior, belief in columns:
            cut = before & ~now
            change = prior.log_prob(0.0)
            if isinstance(belief, UnitNormal):
                total += jnp.sum(condition_prior(belief, jnp.asarray(cut))[1])
            else:
                change = change - belief.log_prob(0.0)
            total += jnp.sum(jnp.where(cut, change, 0))
        return total[None]

    return compute


def _collect(
    process: Process, models: list[Trained], reasons: list[str], *, forced: bool
) -> list[Trained]:
    """Return the best states of the process, or its last ones, as trained models."""
    trainer, before = process.trainer, process.first_judgement.free_energies
    state, judgement = process.best, process.best_judgement
    if forced:
        state, judgement = process.current, process.judgement
    results = []
    for run, trained in enumerate(models):
        rounds = process.rounds[run]
        histories = [r.history for r in rounds if r.history is not None]
        epochs = sum(len(h) // trainer.source.blocks_per_pass for h in histories)
        result = make_trained(
            trainer,
            take_run(state, run),
            run,
            judgement.evaluations[run],
            history=History.join([trained.history, *histories]),
            epochs=trained.epochs + epochs,
            stop_reason=reasons[run],
        )
        first = not trained.rounds
        results.append(
            replace(
                result,
                model=trained.model,
                training=trained.training,
                is_level=trained.is_level,
                rounds=(*trained.rounds, *rounds),
                weights_before=trained.live_weights if first else trained.weights_before,
                free_energy_before=float(before[run]) if first else trained.free_energy_before,
            )
        )
    return results
