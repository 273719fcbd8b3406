"""Moves and training in turn, each judged by the free energy it ends with."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.fitting import program
from secateur.fitting.devices import is_here
from secateur.fitting.levelling import WORTH_MENTIONING
from secateur.fitting.program import Evaluation, Record, State
from secateur.fitting.trainer import NotFinite, Trainer
from secateur.progress import Progress
from secateur.pruning.rounds import Round
from secateur.pruning.scoring import Change

# How many standard errors count as noise.
_NOISE = 2.0

# A proposer takes a state and, by run, the share of its candidates to change.
Proposer = Callable[[State, np.ndarray], Change]


class Judgement(NamedTuple):
    """By run: what a state is worth."""

    free_energies: np.ndarray  # nats; inf where it is not finite
    errors: np.ndarray
    evaluations: list[Evaluation]


class Process:
    """Alternates moves and training, for one run or several side by side.

    Attributes:
        current: the state after the last move that was kept.
        best: the state of least free energy so far, by run.
        rounds: by run, all rounds in order.

    Args:
        trainer: for the data.
        state: to begin with; it is not changed.
        key: decides the order of rows and the noise of every training.
        epochs: at most so many for each training, or None for the recipe's own.
        progress: told of every training.
        notebook: where to save what has happened, or None.
        extra: what a state's free energies lack, by run (see `secateur.update`).
    """

    def __init__(
        self,
        trainer: Trainer,
        state: State,
        *,
        key: Array,
        epochs: int | None,
        progress: Progress,
        notebook: Any = None,
        extra: Callable[[State], Any] | None = None,
    ) -> None:
        self.trainer, self.many = trainer, trainer.settings.many
        self.runs = len(trainer.run_jacobians)
        self._settles = trainer.recipe.cooling > 0
        self._key, self._epochs, self._progress = key, epochs, progress
        self._notebook, self._extra = notebook, extra
        self.current = self.best = self.snapshot = trainer.gathered(state)
        self.rounds: list[list[Round]] = [[] for _ in range(self.runs)]
        self.number = 0
        self.going = np.ones(self.runs, bool)  # runs that phases to come are for
        # Phases and attempts that are over; those that have been asked for, which after an
        # interruption are fewer; and where the rounds of the attempt under way begin, by run.
        self.phases, self.attempts = 0, 0
        self._phases_asked, self._attempts_asked = 0, 0
        self.starts = [0] * self.runs
        self._begin_phase()
        self.first_judged = self._judge(self.current)
        self.judged = self.best_judged = self.first_judged
        if notebook is not None and notebook.read(self):
            self.judged, self.best_judged = self._judge(self.current), self._judge(self.best)

    def _begin_phase(self) -> None:
        # By run: the share of candidates to change, and whether the phase goes on.
        self.share, self.active = np.ones(self.runs), self.going.copy()

    def repeat(self, move: str, propose: Proposer, *, keep: bool = False) -> None:
        """Repeat a move until there is nothing left to change.

        A round that ends higher than it began, by more than noise, is undone; the next one changes
        the better half of the candidates only, and so on. Not so with a rate that never falls (the
        paper's recipe): where such a training ends is chance, and every round goes on from there.

        Args:
            move: what it is called.
            propose: what to change.
            keep: do it once, and keep it whatever the free energy says.
        """
        self._phases_asked += 1
        if self._phases_asked <= self.phases:  # over before the process was interrupted
            return
        while not self._progress.stopped:
            change = propose(self.current, self.share)
            changed = np.atleast_1d(np.asarray(change.changed))
            self.active &= changed > 0
            if not self.active.any():
                break
            kept = self._round(move, change, changed, keep)
            self.share = np.where(kept, np.minimum(1.0, 2 * self.share), self.share / 2)
            self.active &= kept | (changed > 1)
            if keep:
                break
            self._save()
        if self._progress.stopped:
            return
        self.phases += 1
        self._begin_phase()
        self._save()

    def _round(self, move: str, change: Change, changed: np.ndarray, keep: bool) -> np.ndarray:
        begun = time.monotonic()
        before, self.number = self.judged, self.number + 1
        weights = self.live_weights(self.current)
        start = self._choose(self.active, change.state, self.current)
        at_once = self._judge(start)
        title = f"round {self.number}, {move}: {_span(changed[self.active])} of "
        title += _span(weights[self.active])
        trained, records = self._train(start, title, anew=move.startswith("grow"))
        after = self._judge(trained) if records is not None else at_once
        is_better = after.free_energies <= at_once.free_energies
        lower_end = self._choose(is_better, trained, start)
        lower_ended = _chosen(is_better, after, at_once)
        end, ended = lower_end, lower_ended
        if not self._settles:
            end, ended = trained, after
        noise = _NOISE * np.sqrt(before.errors**2 + ended.errors**2)
        gain = before.free_energies - ended.free_energies
        may_rise = np.isfinite(ended.free_energies) & (keep or not self._settles)
        kept = self.active & (may_rise | (gain >= -noise))
        seconds = time.monotonic() - begun
        estimated = np.atleast_1d(np.asarray(change.estimated))
        for run in map(int, np.flatnonzero(self.active)):
            parts = ended.evaluations[run].free_energy
            trained_to = after.free_energies[run] - before.free_energies[run]
            self.rounds[run].append(
                Round(
                    move=move,
                    before=int(weights[run]),
                    changed=int(changed[run]),
                    estimated=float(estimated[run]),
                    at_once=float(at_once.free_energies[run] - before.free_energies[run]),
                    trained=float(trained_to) if records is not None else float("nan"),
                    free_energy=float(ended.free_energies[run]),
                    complexity=float(parts.complexity),
                    accuracy=float(parts.accuracy),
                    standard_error=float(ended.errors[run]),
                    kept=bool(kept[run]),
                    seconds=seconds,
                    history=None if records is None else self.trainer.history(records, run),
                )
            )
        self.current = self._choose(kept, end, self.current)
        self.judged = _chosen(kept, ended, before)
        # (Of two models of the same free energy, the one with fewer weights.)
        lower = kept & (lower_ended.free_energies <= self.best_judged.free_energies)
        self.best = self._choose(lower, lower_end, self.best)
        self.best_judged = _chosen(lower, lower_ended, self.best_judged)
        return kept

    def _train(self, start: State, title: str, *, anew: bool) -> tuple[State, Record | None]:
        if not self.live_weights(start).any():
            return start, None
        trainer = self.trainer
        keys = jax.random.fold_in(self._key, self.number)
        fresh = program.restarted(trainer.settings, start)
        if self.many:
            keys = jax.random.split(keys, self.runs)
        state = trainer.placed(fresh._replace(key=keys))
        timetable = trainer.timetable() if anew else trainer.retraining(self._epochs)
        self._progress.retitle(title)
        saver, records = None, None
        if self._notebook is not None:
            saver = self._notebook.saver(self.number)
            found = saver.read(state)
            if found is not None:
                state, timetable, records = found
                state = trainer.placed(state)
        try:
            state, records = trainer.train(
                state, timetable, progress=self._progress, saver=saver, records=records
            )
        except NotFinite as trouble:
            warnings.warn(f"round {self.number}: {trouble}; it is judged as it was before that.",
                          stacklevel=2)  # fmt: skip
            state, records = trouble.state, trouble.records
            if not len(records.accuracy):
                return start, None
        return trainer.gathered(state)._replace(key=start.key), records

    def _judge(self, state: State) -> Judgement:
        found = self.trainer.evaluate(state, None)
        values = np.array([float(e.free_energy.total) for e in found])
        if self._extra is not None:
            values = values + np.atleast_1d(np.asarray(self._extra(state)))
        values = np.where(np.isfinite(values), values, np.inf)
        return Judgement(values, np.array([float(e.standard_error) for e in found]), found)

    def _choose(self, yes: np.ndarray, new: State, old: State) -> State:
        """Take the new state for some runs and the old one for the others."""
        if yes.all():
            return new
        if not yes.any():
            return old
        return _mixed(jnp.asarray(yes), new, old)

    def live_weights(self, state: State) -> np.ndarray:
        """Return the number of live weights, by run."""
        sums = [
            np.atleast_1d(np.sum(np.asarray(a), axis=-1) if is_here(a) else jnp.sum(a, axis=-1))
            for a in state.alive
        ]
        return np.asarray(np.sum(sums, axis=0))

    def attempt(self, phases: Callable[[], None]) -> None:
        """Run some phases, and undo them all where they have not lowered the free energy by a nat.

        Runs for which they have not are left alone from then on.
        """
        self._attempts_asked += 1
        if self._attempts_asked <= self.attempts:  # over before the process was interrupted
            phases()
            return
        if self._phases_asked == self.phases:  # it begins here
            self.snapshot = self.current
            self.starts = [len(rounds) for rounds in self.rounds]
            judged = self.judged
        else:
            judged = self._judge(self.snapshot)
        before = self.snapshot
        phases()
        noise = _NOISE * np.sqrt(judged.errors**2 + self.judged.errors**2)
        gain = judged.free_energies - self.judged.free_energies
        lower = self.going & (gain > np.maximum(noise, WORTH_MENTIONING))
        for run in np.flatnonzero(self.going & ~lower):
            told, start = self.rounds[run], self.starts[run]
            told[start:] = [replace(r, kept=False) for r in told[start:]]
        self.current = self._choose(lower, self.current, before)
        self.judged = _chosen(lower, self.judged, judged)
        if self._progress.stopped:
            return
        self.going &= lower
        self.attempts += 1
        self._begin_phase()
        self._save()

    def _save(self) -> None:
        if self._notebook is not None:
            self._notebook.write(self)


@jax.jit
def _mixed(yes: Array, new: State, old: State) -> State:
    def choose(a: Array, b: Array) -> Array:
        return jnp.where(yes.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)

    # Keys are all alike, and no numbers.
    arrays = [dict(state._asdict(), key=None) for state in (new, old)]
    return State(**jax.tree.map(choose, *arrays) | {"key": old.key})


def _chosen(yes: np.ndarray, new: Judgement, old: Judgement) -> Judgement:
    return Judgement(
        np.where(yes, new.free_energies, old.free_energies),
        np.where(yes, new.errors, old.errors),
        [n if y else o for y, n, o in zip(yes, new.evaluations, old.evaluations, strict=True)],
    )


def _span(numbers: np.ndarray) -> str:
    low, high = numbers.min(), numbers.max()
    return str(low) if low == high else f"{low}–{high}"
