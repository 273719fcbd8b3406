"""Algorithm 1 of the paper: prune by Bayesian model reduction, train again, repeat."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.fitting.outcome import describe
from secateur.fitting.program import State
from secateur.fitting.result import Fitted, History, Past
from secateur.fitting.saving import fingerprint
from secateur.fitting.sources import Arrays, Stream
from secateur.fitting.trainer import Trainer
from secateur.model import BayesianModel
from secateur.progress import Callback, Progress
from secateur.pruning.grouping import Grouping, worthless_units
from secateur.pruning.growing import returning_weights
from secateur.pruning.notebook import Notebook
from secateur.pruning.process import Process, Proposer
from secateur.pruning.proposing import best_share, share_of_weights, worthless_weights
from secateur.pruning.resuming import as_source, resume
from secateur.pruning.rounds import Round, table
from secateur.reduction import CRITERIA
from secateur.structure import units

__all__ = ["Pruned", "prune", "prune_many"]


WHAT = ("weights", "units", "both")


@dataclass(frozen=True, eq=False)
class Pruned(Fitted):
    """A fitted model of which only the weights are left that the evidence asks for.

    Attributes:
        rounds: what was done, in order; see `Round`.
        weights_before: how many weights there were.
        free_energy_before: nats.
    """

    rounds: tuple[Round, ...]
    weights_before: int
    free_energy_before: float

    @property
    def pruned_fraction(self) -> float:
        """Return the share of the weights that are gone."""
        return 1 - self.live_weights / max(1, self.weights_before)

    def table(self) -> str:
        """Return the rounds as a table."""
        return table(self.rounds)

    def __repr__(self) -> str:
        return (
            f"<Pruned: free energy {self.free_energy_before:.1f} → {self.free_energy:.1f} nats, "
            f"{self.weights_before} → {self.live_weights} weights "
            f"({100 * self.pruned_fraction:.1f} % pruned) in {len(self.rounds)} rounds; "
            f"{self.stop_reason}>"
        )


def prune(
    fitted: Fitted,
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
) -> Pruned:
    """Remove every weight whose removal lowers the free energy; train again; repeat.

        delta_f = ln p(0) − ln q(0)        cut all weights with delta_f ≤ 0

    until a round finds nothing to cut. A round that ends with a higher free energy than it began
    with, by more than the noise of its estimate, is undone, and the better half of its weights is
    tried, then a quarter, and so on. The result is the model of least free energy that was seen.

    Args:
        fitted: from `fit`, or from an earlier `prune`.
        data: as given to `fit`.
        key: a JAX random key, for the trainings.
        criterion: "bmr", which stops by itself; or "snr", "spr" or "magnitude", which only rank.
        rate: share of all weights to remove by a criterion that only ranks, in one round. None
            looks for the rate of least free energy (see `sweep`).
        what: "weights"; "units", so that only whole units go (see `secateur.units`), each where the
            sum over its weights is ≤ 0; or "both": units first, then weights.
        grow: also let weights come back: after pruning, those whose return the data ask for, and
            units that are gone altogether drawn anew; train, prune, and keep it if the free energy
            is lower than before; repeat while it is.
        epochs: at most so many for each training; by default the recipe's.
        size: number of rows, for an iterator.
        checkpoint: a file to save the state of pruning in, after every round and, with a second
            file beside it, during every training. If it is there already, pruning goes on from it.
        progress: whether to show progress on standard error, from two seconds on.
        callback: called with a `Report` several times a second; see `fit`. "stop" makes the round
            the last one: it is judged as it is, and no other begins.

    Returns:
        A `Pruned`: a `Fitted` with the story of its rounds.

    Example:
        >>> import jax, jax.numpy as jnp
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
    (result,) = _prune(
        [fitted],
        as_source(data, fitted, size),
        key=key,
        criterion=criterion,
        rate=rate,
        what=what,
        grow=grow,
        epochs=epochs,
        checkpoint=checkpoint,
        progress=Progress("prune", show=progress, callback=callback),
    )
    return result


def prune_many(
    fits: Sequence[Fitted],
    datasets: Sequence[Any],
    *,
    key: Array,
    criterion: str = "bmr",
    rate: float | None = None,
    what: str = "weights",
    grow: bool = False,
    epochs: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> list[Pruned]:
    """Prune what `fit_many` returned, all in one program; see `prune`.

    Args:
        fits: from one call of `fit_many`.
        datasets: as given there.
        key: a JAX random key.
        criterion: see `prune`, here and below.
        rate: share of all weights to remove.
        what: "weights", "units" or "both".
        grow: also let weights come back.
        epochs: at most so many for each training.
        checkpoint: a file to save the state of pruning in.
        progress: whether to show progress; the figures are those of the best run.
        callback: called with a `Report` several times a second.

    Returns:
        A `Pruned` for each, in order.
    """
    return _prune(
        list(fits),
        Arrays(list(datasets)),
        key=key,
        criterion=criterion,
        rate=rate,
        what=what,
        grow=grow,
        epochs=epochs,
        checkpoint=checkpoint,
        progress=Progress("prune", show=progress, callback=callback),
    )


def _prune(
    fits: list[Fitted],
    source: Arrays | Stream,
    *,
    key: Array,
    criterion: str,
    rate: float | None,
    what: str,
    grow: bool,
    epochs: int | None,
    checkpoint: str | os.PathLike | None,
    progress: Progress,
) -> list[Pruned]:
    if criterion not in CRITERIA:
        raise ValueError(f"criterion={criterion!r}. Supported: {', '.join(CRITERIA)}.")
    if rate is not None and (criterion == "bmr" or not 0 <= rate <= 1):
        raise ValueError(
            f"rate={rate} with criterion={criterion!r}. A rate is a share between 0 and 1 for the "
            "criteria that only rank; bmr stops by itself."
        )
    if what not in WHAT:
        raise ValueError(f"what={what!r}. Supported: {', '.join(WHAT)}.")
    if criterion != "bmr" and (grow or what != "weights"):
        raise ValueError(f"criterion={criterion!r} prunes single weights, and nothing grows.")
    trainer, state = resume(fits, source)
    model, past = fits[0].model, fits[0].continuation.past
    if past is not None and len(fits) > 1:
        raise ValueError("models that were updated are pruned one by one; see prune.")
    notebook = None
    if checkpoint is not None:
        options = (criterion, rate, what, grow, epochs, jax.random.key_data(key).tolist())
        notebook = Notebook(checkpoint, fingerprint(model, trainer, state, *options))
    with progress:
        process = Process(
            trainer,
            state,
            key=key,
            epochs=epochs,
            progress=progress,
            notebook=notebook,
            extra=None if past is None else evidence_before(past, state),
        )
        if criterion == "bmr":
            cuts = _cuts(model, trainer, what, None if past is None else past.prior)
            _cut_to_the_end(process, cuts)
        elif rate is not None:
            process.repeat("cut weights", share_of_weights(process, criterion, rate), keep=True)
        else:
            if trainer.settings.many:
                raise ValueError(f"prune_many needs a rate for criterion={criterion!r}.")
            process.repeat("cut weights", best_share(trainer, criterion))
        if grow:
            back = returning_weights(process, model, key)

            def cycle() -> None:
                process.repeat("grow weights", back, keep=True)
                _cut_to_the_end(process, cuts)

            while process.going.any() and not progress.stopped:
                process.attempt(cycle)
        ends = [_end(rounds, criterion, rate, grow) for rounds in process.rounds]
        if progress.stopped:
            ends = [f"it was stopped in round {process.number}"] * len(fits)
        results = finish(process, fits, ends, forced=rate is not None)
        best = min(results, key=lambda r: r.free_energy)
        progress.finish(f"prune: free energy {best.free_energy:.1f} nats; {best.stop_reason}")
    return results


def _end(rounds: list[Round], criterion: str, rate: float | None, grow: bool) -> str:
    """Why pruning ended, in words."""
    if rate is not None:
        return f"{criterion} was told to prune {100 * rate:g} %"
    if grow:
        return "neither cutting nor growing lowered the free energy any more"
    if rounds and not rounds[-1].kept:
        return "whatever else was cut raised the free energy"
    return "nothing was left to prune"


def _cuts(model: BayesianModel, trainer: Trainer, what: str, prior: Any) -> dict[str, Proposer]:
    """The moves that remove something, in order."""
    many = trainer.settings.many
    cuts: dict[str, Proposer] = {}
    if what != "weights":
        x, _ = trainer.scalings[0].standard(trainer.source.sample(), trainer.settings.layout.dtype)
        found = units(model.f, model.params, x)
        if not len(found):
            raise ValueError("no units were found in the model's function; see secateur.units.")
        cuts["cut units"] = worthless_units(Grouping(found, trainer.settings.layout), many, prior)
    if what != "units":
        cuts["cut weights"] = worthless_weights(many, prior)
    return cuts


def evidence_before(past: Past, start: State) -> Callable[[State], Array]:
    """What the data before an update say of the weights that were cut since.

    Their free energy is not computed again, but reduced: Σ ln p(0) − ln q(0), with the prior p from
    before any data and the posterior q from before the update, which is the update's prior.
    """
    before = tuple(
        prior.log_prob(0.0) - belief.log_prob(0.0)
        for prior, belief in zip(past.prior, start.prior, strict=True)
    )

    def of(state: State) -> Array:
        cut = [a & ~b for a, b in zip(past.alive, state.alive, strict=True)]
        return sum(
            (jnp.sum(jnp.where(c, d, 0)) for c, d in zip(cut, before, strict=True)),
            start=jnp.zeros(()),
        )

    return of


def _cut_to_the_end(process: Process, cuts: dict[str, Proposer]) -> None:
    for move, propose in cuts.items():
        process.repeat(move, propose)


def finish(process: Process, fits: list[Fitted], ends: list[str], *, forced: bool) -> list[Pruned]:
    """Return the best of what the process saw, or where it ended, in the user's terms."""
    trainer, before, results = process.trainer, process.first_judged.free_energies, []
    state, judged = process.best, process.best_judged
    if forced:
        state, judged = process.current, process.judged
    for run, fitted in enumerate(fits):
        rounds = process.rounds[run]
        histories = [fitted.history, *(r.history for r in rounds if r.history is not None)]
        history = History(
            np.concatenate([h.complexity for h in histories]),
            np.concatenate([h.accuracy for h in histories]),
        )
        epochs = fitted.epochs + sum(
            len(h.accuracy) // trainer.source.blocks_per_pass for h in histories[1:]
        )
        new = describe(
            fitted.model,
            trainer,
            state,
            run,
            judged.evaluations[run],
            history,
            epochs,
            ends[run],
        )
        going_on = {"continuation": new.continuation._replace(past=fitted.continuation.past)}
        results.append(
            Pruned(
                **{f.name: getattr(new, f.name) for f in fields(Fitted)} | going_on,
                rounds=(*getattr(fitted, "rounds", ()), *rounds),
                weights_before=getattr(fitted, "weights_before", fitted.live_weights),
                free_energy_before=getattr(fitted, "free_energy_before", float(before[run])),
            )
        )
    return results
