"""Algorithm 1 of the paper: prune by Bayesian model reduction, train again, repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.fitting.outcome import describe
from secateur.fitting.program import State
from secateur.fitting.result import Fitted, History
from secateur.fitting.sources import Arrays, Stream
from secateur.fitting.trainer import Trainer
from secateur.fitting.weights import Vectors
from secateur.progress import Progress, Report
from secateur.pruning.growing import returning_weights
from secateur.pruning.process import Process, Proposer
from secateur.pruning.resuming import as_source, resume
from secateur.pruning.rounds import Round, table
from secateur.pruning.scoring import Change, by_run, cut, limits, weight_scores
from secateur.pruning.sweep import curve
from secateur.reduction import CRITERIA

__all__ = ["Pruned", "prune", "prune_many"]


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
    grow: bool = False,
    epochs: int | None = None,
    size: int | None = None,
    progress: bool = True,
    callback: Callable[[Report], None] | None = None,
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
        grow: also let weights come back: after pruning, those whose return the data ask for, and
            units that are gone altogether drawn anew; train, prune, and keep it if the free energy
            is lower than before; repeat while it is.
        epochs: at most so many for each training; by default the recipe's.
        size: number of rows, for an iterator.
        progress: whether to show progress on standard error, from two seconds on.
        callback: called with a `Report` several times a second.

    Returns:
        A `Pruned`: a `Fitted` with the story of its rounds.

    Example:
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
        grow=grow,
        epochs=epochs,
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
    grow: bool = False,
    epochs: int | None = None,
    progress: bool = True,
    callback: Callable[[Report], None] | None = None,
) -> list[Pruned]:
    """Prune what `fit_many` returned, all in one program; see `prune`.

    Args:
        fits: from one call of `fit_many`.
        datasets: as given there.
        key: a JAX random key.
        criterion: see `prune`, here and below.
        rate: share of all weights to remove.
        grow: also let weights come back.
        epochs: at most so many for each training.
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
        grow=grow,
        epochs=epochs,
        progress=Progress("prune", show=progress, callback=callback),
    )


def _prune(
    fits: list[Fitted],
    source: Arrays | Stream,
    *,
    key: Array,
    criterion: str,
    rate: float | None,
    grow: bool,
    epochs: int | None,
    progress: Progress,
) -> list[Pruned]:
    if criterion not in CRITERIA:
        raise ValueError(f"criterion={criterion!r}. Supported: {', '.join(CRITERIA)}.")
    if rate is not None and (criterion == "bmr" or not 0 <= rate <= 1):
        raise ValueError(
            f"rate={rate} with criterion={criterion!r}. A rate is a share between 0 and 1 for the "
            "criteria that only rank; bmr stops by itself."
        )
    if grow and criterion != "bmr":
        raise ValueError(f"grow=True goes with criterion='bmr', not {criterion!r}.")
    trainer, state = resume(fits, source)
    with progress:
        process = Process(trainer, state, key=key, epochs=epochs, progress=progress)
        before = process.judged.free_energies
        why = "nothing was left to prune"
        if criterion == "bmr":
            process.repeat("cut weights", worthless_weights(trainer.settings.many))
        elif rate is not None:
            why = f"{criterion} was told to prune {100 * rate:g} %"
            process.repeat("cut weights", share_of_weights(process, criterion, rate), keep=True)
        else:
            if trainer.settings.many:
                raise ValueError(f"prune_many needs a rate for criterion={criterion!r}.")
            process.repeat("cut weights", best_share(trainer, criterion))
        if grow:
            back = returning_weights(process, fits[0].model, key)

            def cycle() -> None:
                process.repeat("grow weights", back, keep=True)
                process.repeat("cut weights", worthless_weights(trainer.settings.many))

            while process.going.any():
                process.attempt(cycle)
            why = "neither cutting nor growing lowered the free energy any more"
        results = finish(process, fits, before, why, forced=rate is not None)
        free_energy = min(r.free_energy for r in results)
        progress.finish(f"prune: free energy {free_energy:.1f} nats; {why}")
    return results


def worthless_weights(many: bool) -> Proposer:
    """Propose all weights with delta_f ≤ 0, or the lowest of them."""

    def propose(state: State, share: np.ndarray) -> Change:
        delta_f = weight_scores(state, "bmr", many=many)
        if (share < 1).any():
            rows = by_run(delta_f, many)
            counts = np.ceil(share * np.sum(rows <= 0, axis=1)).astype(int)
            limit = np.minimum(limits(rows, counts), 0.0)
        else:
            limit = np.zeros(len(share))
        return _cut_to(state, delta_f, delta_f, limit, many)

    return propose


def share_of_weights(process: Process, criterion: str, rate: float) -> Proposer:
    """Propose the lowest weights, so many that a share of all is gone: once only."""
    many = process.many
    wanted = np.round(rate * process.live_weights(process.current)).astype(int)
    left = process.live_weights(process.current) - wanted

    def propose(state: State, share: np.ndarray) -> Change:
        counts = np.maximum(process.live_weights(state) - left, 0)
        return _cut_lowest(state, criterion, counts, many)

    return propose


def best_share(trainer: Trainer, criterion: str) -> Proposer:
    """Propose as many of the lowest weights as a sweep finds best."""

    def propose(state: State, share: np.ndarray) -> Change:
        live = sum(int(jnp.sum(a)) for a in state.alive)
        found = curve(trainer, state, criterion, np.arange(100) / 100)
        count = np.ceil(share * round(found.rates[found.best] * live)).astype(int)
        return _cut_lowest(state, criterion, count, False)

    return propose


def _cut_lowest(state: State, criterion: str, counts: np.ndarray, many: bool) -> Change:
    delta_f = weight_scores(state, "bmr", many=many)
    scores = weight_scores(state, criterion, many=many)
    return _cut_to(state, scores, delta_f, limits(by_run(scores, many), counts), many)


def _cut_to(
    state: State, scores: Vectors, delta_f: Vectors, limit: np.ndarray, many: bool
) -> Change:
    given = jnp.asarray(limit if many else limit[0], scores[0].dtype)
    return cut(state, scores, delta_f, given, many=many)


def finish(
    process: Process, fits: list[Fitted], before: np.ndarray, why: str, *, forced: bool
) -> list[Pruned]:
    """Return the best of what the process saw, or where it ended, in the user's terms."""
    trainer, results = process.trainer, []
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
            why,
        )
        results.append(
            Pruned(
                **{f.name: getattr(new, f.name) for f in fields(Fitted)},
                rounds=(*getattr(fitted, "rounds", ()), *rounds),
                weights_before=getattr(fitted, "weights_before", fitted.live_weights),
                free_energy_before=getattr(fitted, "free_energy_before", float(before[run])),
            )
        )
    return results
