"""Algorithm 1 of the paper: prune by Bayesian model reduction, train again, repeat."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.options import complete_options
from secateur.progress import Callback, Progress
from secateur.pruning.curves import make_swept_cut
from secateur.pruning.growth import grow_weights
from secateur.pruning.moves import Change, Move, count_live, make_ranked_cut, make_weight_cut
from secateur.pruning.process import Process
from secateur.pruning.unit_moves import Grouping, make_unit_cut
from secateur.reduction import CRITERIA
from secateur.structure import units
from secateur.trained import History, Round, Trained, make_trained, open_data, resume
from secateur.training.layout import Layout, flatten_priors
from secateur.training.program import TrainingState, take_run
from secateur.training.recipe import BeforeUpdate
from secateur.training.sources import Arrays, Stream
from secateur.training.trainer import Trainer

__all__ = ["prune", "prune_many"]

WHAT = ("weights", "units", "both")
_SHARED_OPTIONS = (
    "criterion", "rate", "what", "grow", "epochs", "checkpoint", "progress", "callback",
)  # fmt: skip


def prune(
    trained: Trained,
    data: Any,
    *,
    key: Array,
    criterion: str = "bmr",
    rate: float | None = None,
    what: str = "weights",
    grow: bool = False,
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
    tried, then a quarter, and so on. The result is the model of least free energy that was seen.

    Args:
        trained: From `fit`, `prune`, `update` or `load`. Its beliefs are what is pruned.
        data: Data as given to `fit`.
        key: A JAX random key, for the trainings.
        criterion: "bmr", which stops by itself; or "snr", "spr" or "magnitude", which only rank.
        rate: Share of all weights to remove by a criterion that only ranks, in one round. None
            finds the rate of least free energy (see `sweep`).
        what: "weights"; "units", to remove only whole units (see `secateur.units`), each where the
            sum over its weights is ≤ 0; or "both": units first, then weights.
        grow: Whether weights may come back: after pruning, those whose return the data ask for, and
            units that are gone altogether are drawn anew; train, prune, and keep the result if its
            free energy is lower than before; repeat while it is.
        epochs: Maximum number of epochs of each training. Defaults to the recipe's.
        size: Number of rows, for an iterator.
        checkpoint: File to save the state of pruning in, after every round and, with a second file
            beside it, during every training. If it exists already, pruning goes on from it.
        progress: Whether to show progress on standard error, after two seconds.
        callback: Function that is called with a `ProgressUpdate` several times a second; see `fit`.
            "stop" makes the round the last one: it is judged as it is, and no other begins.

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
    plan = _Plan(criterion, rate, what, grow, epochs)
    (result,) = _prune_runs(
        [trained],
        open_data(data, trained, size),
        key,
        plan,
        checkpoint,
        Progress("prune", show=progress, callback=callback),
    )
    return result


def prune_many(
    models: Sequence[Trained], datasets: Sequence[Any], *, key: Array, **options: Any
) -> list[Trained]:
    """Prune what `fit_many` returned, all in one program; see `prune`.

    Args:
        models: From one call of `fit_many`.
        datasets: Data sets as given there.
        key: A JAX random key.
        options: `criterion`, `rate`, `what`, `grow`, `epochs`, `checkpoint`, `progress` (of the
            best run) and `callback`, as in `prune`.

    Returns:
        A `Trained` for each model, in order.
    """
    chosen = complete_options(prune, _SHARED_OPTIONS, options, caller="prune_many")
    names = ("criterion", "rate", "what", "grow", "epochs")
    return _prune_runs(
        list(models),
        Arrays(list(datasets)),
        key,
        _Plan(*(chosen[name] for name in names)),
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

    def __post_init__(self) -> None:
        criterion, rate, what = self.criterion, self.rate, self.what
        if criterion not in CRITERIA:
            raise ValueError(f"criterion={criterion!r}. Supported: {', '.join(CRITERIA)}.")
        if rate is not None and (criterion == "bmr" or not 0 <= rate <= 1):
            raise ValueError(
                f"rate={rate} with criterion={criterion!r}. A rate is a share between 0 and 1 for "
                "the criteria that only rank; bmr stops by itself."
            )
        if what not in WHAT:
            raise ValueError(f"what={what!r}. Supported: {', '.join(WHAT)}.")
        if criterion != "bmr" and (self.grow or what != "weights"):
            raise ValueError(f"criterion={criterion!r} prunes single weights, and nothing grows.")

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
        raise ValueError("models that were updated are pruned one by one; see prune.")
    if plan.criterion != "bmr" and plan.rate is None and len(models) > 1:
        raise ValueError(f"prune_many needs a rate for criterion={plan.criterion!r}.")
    trainer, state = resume(models, source)
    layout = trainer.spec.layout
    fingerprint = ""
    if checkpoint is not None:
        fingerprint = trainer.fingerprint(state, plan, jax.random.key_data(key).tolist())
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
        )
        prior = None if before is None else flatten_priors(layout, before.priors)
        _run_moves(process, plan, prior, key)
        reasons = [plan.explain_end(rounds) for rounds in process.rounds]
        if progress.stopped:
            reasons = [f"pruning was stopped in round {process.number}"] * len(models)
        results = _collect(process, models, reasons, forced=plan.rate is not None)
        best = min(results, key=lambda r: r.free_energy)
        progress.finish(f"prune: free energy {best.free_energy:.1f} nats; {best.stop_reason}")
    return results


def _run_moves(process: Process, plan: _Plan, prior: Any, key: Array) -> None:
    """Repeat the moves of a plan until nothing is left to change."""
    trainer = process.trainer
    if plan.criterion != "bmr":
        if plan.rate is None:
            process.repeat("cut weights", make_swept_cut(trainer, plan.criterion))
            return
        live = count_live(process.current)
        cut = make_ranked_cut(live, plan.criterion, plan.rate)
        process.repeat("cut weights", cut, keep=True)
        return
    cuts = _make_cuts(trainer, plan.what, prior)

    def cut_to_the_end() -> None:
        for name, move in cuts.items():
            process.repeat(name, move)

    cut_to_the_end()
    if not plan.grow:
        return

    def grow(state: TrainingState, share: Any) -> Change:
        noises = [e.noise for e in process.judgement.evaluations]
        return grow_weights(trainer, state, noises, jax.random.fold_in(key, process.number))

    def grow_and_cut() -> None:
        process.repeat("grow weights", grow, keep=True)
        cut_to_the_end()

    while process.can_go_on:
        process.attempt(grow_and_cut)


def _make_cuts(trainer: Trainer, what: str, prior: Any) -> dict[str, Move]:
    """Return the moves that remove something, in order."""
    cuts: dict[str, Move] = {}
    model, layout = trainer.model, trainer.spec.layout
    if what != "weights":
        x, _ = trainer.scalings[0].standardise(trainer.source.sample(), layout.dtype)
        model_units = units(model.f, model.params, x)
        if not len(model_units):
            raise ValueError("no units were found in the model's function; see secateur.units.")
        cuts["cut units"] = make_unit_cut(Grouping(model_units, layout), prior)
    if what != "units":
        cuts["cut weights"] = make_weight_cut(trainer.spec, prior)
    return cuts


def _make_past_evidence(
    layout: Layout, before: BeforeUpdate, start: TrainingState
) -> Callable[[TrainingState], Array]:
    """Return what the data before an update say of the weights that were cut since, by run.

    Their free energy is not computed again, but reduced: Σ ln p(0) − ln q(0), with the prior p from
    before any data and the posterior q from before the update, which is the update's prior.
    """
    first = flatten_priors(layout, before.priors)
    changes = tuple(
        prior.log_prob(0.0) - belief.log_prob(0.0)
        for prior, belief in zip(first, take_run(start.prior, 0), strict=True)
    )
    alive_before = before.flatten_alive(layout)

    def compute(state: TrainingState) -> Array:
        cut = [a & ~b for a, b in zip(alive_before, take_run(state.alive, 0), strict=True)]
        sums = (jnp.sum(jnp.where(c, d, 0)) for c, d in zip(cut, changes, strict=True))
        return sum(sums, start=jnp.zeros(()))[None]

    return compute


def _collect(
    process: Process, models: list[Trained], reasons: list[str], *, forced: bool
) -> list[Trained]:
    """Return the best of what the process saw, or where it ended, as trained models."""
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
                rounds=(*trained.rounds, *rounds),
                weights_before=trained.live_weights if first else trained.weights_before,
                free_energy_before=float(before[run]) if first else trained.free_energy_before,
            )
        )
    return results
