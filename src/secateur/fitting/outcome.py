"""From a trainer's state to what users get."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from secateur.fitting.program import Evaluation, Record, State
from secateur.fitting.result import Continuation, FitError, Fitted, History
from secateur.fitting.trainer import NotFinite, Trainer
from secateur.fitting.weights import assemble
from secateur.model import BayesianModel


def best(results: list[Fitted]) -> Fitted:
    """Return the one of least free energy."""
    return min(results, key=lambda r: math.inf if math.isnan(r.free_energy) else r.free_energy)


def outcomes(
    model: BayesianModel, trainer: Trainer, state: State, records: Record, why: str
) -> list[Fitted]:
    """Judge all runs of a trainer and describe each."""
    state = trainer.gathered(state)
    free_energies = trainer.free_energies(records)
    epochs = len(free_energies) // trainer.source.blocks_per_pass
    results = []
    for run, evaluation in enumerate(trainer.evaluate(state, records)):
        history = trainer.history(records, run)
        fitted = describe(model, trainer, state, run, evaluation, history, epochs, why)
        if not np.all(np.isfinite(free_energies[-1:, run])):
            fitted = replace(fitted, free_energy=math.nan)
        results.append(fitted)
    return results


def describe(
    model: BayesianModel,
    trainer: Trainer,
    state: State,
    run: int,
    evaluation: Evaluation,
    history: History,
    epochs: int,
    why: str,
) -> Fitted:
    """Return one run of a (gathered) state in the user's terms."""
    settings, certain = trainer.settings, trainer.fixed.certain
    layout = settings.layout
    own = trainer.run_of(state, run)
    found, own_priors = assemble(layout, own.weights, own.alive, own.prior)
    parts = evaluation.free_energy
    return Fitted(
        model=model,
        beliefs=layout.tree(found, certain),
        priors=layout.tree(own_priors, None),
        noise=evaluation.noise,
        scaling=trainer.scalings[min(run, len(trainer.scalings) - 1)],
        free_energy=float(parts.total),
        parts=parts,
        standard_error=float(evaluation.standard_error),
        history=history,
        epochs=epochs,
        stop_reason=why,
        recipe=trainer.recipe,
        restarts=(float(parts.total),),
        continuation=Continuation(
            own,
            layout,
            certain,
            trainer.recipe,
            trainer.given_optimiser,
            settings.empirical_bayes,
            settings.mesh,
            settings.shard_weights,
        ),
    )


def failure(
    model: BayesianModel, trainer: Trainer, trouble: NotFinite, checkpoint: Any
) -> FitError:
    """Return the error that a training which met a value that is not finite ends with."""
    message = (
        f"{trouble}. Try a smaller learning rate (rate={trainer.recipe.rate / 10:g}), look at the "
        "data for extreme values, or let the model's function not overflow (exp, 1/x, log)."
    )
    if not len(trouble.records.accuracy):
        return FitError(message)
    message += " The state before that epoch is this error's last_good"
    message += f", one from before is in {checkpoint}." if checkpoint else "."
    good = outcomes(model, trainer, trouble.state, trouble.records, str(trouble))
    return FitError(message, best(good))
