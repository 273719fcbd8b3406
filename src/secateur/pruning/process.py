"""Alternating moves and trainings, each judged by the free energy at its end."""

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

from secateur.progress import Progress
from secateur.pruning.budget import Budget
from secateur.pruning.moves import Change, Move, count_live
from secateur.pruning.rounds import decode_rounds, encode_round, make_gradual_round
from secateur.trained import History, Round, make_history
from secateur.training.checkpoint import Checkpoint
from secateur.training.evaluation import Evaluation
from secateur.training.program import EpochRecord, TrainingState
from secateur.training.timetable import WORTH_MENTIONING, Timetable
from secateur.training.trainer import NotFiniteError, Trainer

# Number of standard errors that count as noise.
_NOISE = 2.0


class Judgement(NamedTuple):
    """The free energies of a state, by run."""

    free_energies: np.ndarray  # nats; inf where it is not finite
    errors: np.ndarray
    evaluations: list[Evaluation]


class Process:
    """Alternates moves and training, for all runs of a trainer side by side.

    Attributes:
        current: State after the last move that was kept.
        best: State with the lowest free energy so far, by run.
        rounds: All rounds in order, by run.

    Args:
        trainer: Trainer with the data.
        state: State to begin with, which is not changed.
        key: Random key that decides the order of rows and the noise of every training.
        epochs: Maximum number of epochs of each training. None is the recipe's.
        progress: Receives the progress of every training.
        checkpoint_path: File to save the progress in, or None.
        fingerprint: Hash of everything that determines the course of the process.
        extra: Function from a state to the terms that are added to its free energies, by run (see
            `secateur.update`).
        budget: Requirements that the best state should meet. It is the one with the lowest free
            energy among those that meet the most of them.
    """

    def __init__(
        self,
        trainer: Trainer,
        state: TrainingState,
        *,
        key: Array,
        epochs: int | None,
        progress: Progress,
        checkpoint_path: Any = None,
        fingerprint: str = "",
        extra: Callable[[TrainingState], Any] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.trainer, self.runs = trainer, trainer.runs
        self._settles = trainer.recipe.cooling > 0
        self._key, self._epochs, self._progress = key, epochs, progress
        self._path, self._fingerprint, self._extra = checkpoint_path, fingerprint, extra
        self._checkpoint, self._budget = None, budget
        if checkpoint_path is not None:
            self._checkpoint = Checkpoint(checkpoint_path, fingerprint, work="pruning")
        self.current = self.best = self.snapshot = trainer.gather(state)
        self.rounds: list[list[Round]] = [[] for _ in range(self.runs)]
        self.number = self.gradual_rounds = 0
        self.going = np.ones(self.runs, bool)  # runs to which the next phases apply
        # Finished phases and attempts; those requested so far, which are fewer after an
        # interruption; and where the rounds of the current attempt begin, by run.
        self.phases, self.attempts = 0, 0
        self._phases_asked, self._attempts_asked = 0, 0
        self.attempts_over = False
        self.starts = [0] * self.runs
        self._begin_phase()
        self.first_judgement = self.judgement = self._judge(self.current)
        self.best_judgement = self.judgement
        if self._checkpoint is not None and self._restore(self._checkpoint):
            self.judgement, self.best_judgement = self._judge(self.current), self._judge(self.best)
        self._best_grades = self._grade(self.best, self.best_judgement)

    @property
    def can_go_on(self) -> bool:
        """Whether there are runs for another attempt, and no callback has asked to stop."""
        if self._attempts_asked < self.attempts:  # finished before the process was interrupted
            return True
        is_open = bool(self.going.any()) and not self.attempts_over
        return is_open and not self._progress.stopped

    def _begin_phase(self) -> None:
        # By run: the fraction of candidates to change, and whether the phase continues.
        self.share, self.active = np.ones(self.runs), self.going.copy()

    # --- gradual cutting ------------------------------------------------------------------------

    def cut_gradually(self, name: str, move: Move, fit_epochs: int) -> None:
        """Cut while the weight of the complexity still rises, if the recipe says so.

        Free energies of these rounds are those of their last epoch of training. They are not
        judged, because they belong to different weights of the complexity.

        Args:
            name: What the move is called.
            move: What to cut.
            fit_epochs: Number of epochs of the fit.
        """
        trainer, count = self.trainer, self.trainer.recipe.gradual_rounds
        if not count:
            return
        self._phases_asked += 1
        if self._phases_asked <= self.phases:  # finished before the process was interrupted
            return
        while self.gradual_rounds < count and not self._progress.stopped:
            start_time, self.number = time.monotonic(), self.number + 1
            weights, change = count_live(self.current), move(self.current, self.share)
            title = f"{name}: {_format_range(np.asarray(change.changed))} of "
            timetable = trainer.planner.plan_gradual_round(self.gradual_rounds, fit_epochs)
            state, records = self._train(change.state, title + _format_range(weights), timetable)
            if records is None:  # nothing is left
                break
            self.current, self.gradual_rounds = state, self.gradual_rounds + 1
            seconds = time.monotonic() - start_time
            for run, rounds in enumerate(self.rounds):
                history = make_history(trainer, records, run)
                before = self.judgement.free_energies[run]
                rounds.append(
                    make_gradual_round(name, change, run, weights, history, rounds, before, seconds)
                )
            self._save()
        self.judgement = self._judge(self.current)
        self._keep_best(np.ones(self.runs, bool), self.current, self.judgement)
        if not self._progress.stopped:
            self.phases += 1
            self._save()

    # --- phases ---------------------------------------------------------------------------------

    def repeat(self, name: str, move: Move, *, keep: bool = False, once: bool = False) -> None:
        """Repeat a move until there is nothing left to change.

        A round that ends with a higher free energy than it began with, by more than noise, is
        undone; the next one changes only the better half of the candidates, and so on. With a
        constant learning rate (the paper's recipe), the end of a training is random, and every
        round continues from there.

        Args:
            name: Name of the move.
            move: The move.
            keep: Whether to keep every round regardless of the free energy.
            once: Whether to do it only once.
        """
        self._phases_asked += 1
        if self._phases_asked <= self.phases:  # finished before the process was interrupted
            return
        while not self._progress.stopped:
            change = move(self.current, self.share)
            changed = np.asarray(change.changed)
            self.active &= changed > 0
            if not self.active.any():
                break
            kept = self._run_round(name, change, changed, keep)
            self.share = np.where(kept, np.minimum(1.0, 2 * self.share), self.share / 2)
            self.active &= kept | ((changed > 1) & (not keep))
            if once:
                break
            self._save()
        if self._progress.stopped:
            return
        self.phases += 1
        self._begin_phase()
        self._save()

    def attempt(self, run_phases: Callable[[], None]) -> None:
        """Run some phases, and undo them for runs whose free energy they do not lower by a nat.

        Those runs take no part in further phases.
        """
        self._attempts_asked += 1
        if self._attempts_asked <= self.attempts:  # finished before the process was interrupted
            run_phases()
            return
        if self._phases_asked == self.phases:  # it begins here
            self.snapshot = self.current
            self.starts = [len(rounds) for rounds in self.rounds]
            before = self.judgement
        else:
            before = self._judge(self.snapshot)
        snapshot = self.snapshot
        run_phases()
        noise = _NOISE * np.sqrt(before.errors**2 + self.judgement.errors**2)
        gain = before.free_energies - self.judgement.free_energies
        lower = self.going & (gain > np.maximum(noise, WORTH_MENTIONING))
        for run in np.flatnonzero(self.going & ~lower):
            rounds, start = self.rounds[run], self.starts[run]
            rounds[start:] = [replace(r, kept=False) for r in rounds[start:]]
        self.current = _choose_states(lower, self.current, snapshot)
        self.judgement = _choose_judgements(lower, self.judgement, before)
        if self._progress.stopped:
            return
        self.going &= lower
        self.attempts += 1
        self._begin_phase()
        self._save()

    def end_attempts(self) -> None:
        """Let the next phases apply to all runs again."""
        if self.attempts_over or self._progress.stopped:
            return
        self.attempts_over = True
        self.going = np.ones(self.runs, bool)
        self._begin_phase()
        self._save()

    # --- rounds ---------------------------------------------------------------------------------

    def _run_round(self, name: str, change: Change, changed: np.ndarray, keep: bool) -> np.ndarray:
        """Train after a move, judge the result, and return by run whether it is kept."""
        start_time = time.monotonic()
        before, self.number = self.judgement, self.number + 1
        weights = count_live(self.current)
        start = _choose_states(self.active, change.state, self.current)
        at_once = self._judge(start)
        title = f"{name}: {_format_range(changed[self.active])} of "
        title += _format_range(weights[self.active])
        planner = self.trainer.planner
        if name.startswith("grow"):
            timetable = planner.plan_training(warm=not self.trainer.recipe.gradual_rounds)
        else:
            timetable = planner.plan_retraining(self._epochs)
        trained, records = self._train(start, title, timetable)
        after = self._judge(trained) if records is not None else at_once
        is_better = after.free_energies <= at_once.free_energies
        lower_end = _choose_states(is_better, trained, start)
        lower_judgement = _choose_judgements(is_better, after, at_once)
        end, end_judgement = lower_end, lower_judgement
        if not self._settles:
            end, end_judgement = trained, after
        noise = _NOISE * np.sqrt(before.errors**2 + end_judgement.errors**2)
        gain = before.free_energies - end_judgement.free_energies
        may_rise = np.isfinite(end_judgement.free_energies) & (keep or not self._settles)
        kept = self.active & (may_rise | (gain >= -noise))
        seconds = time.monotonic() - start_time
        estimated = np.asarray(change.estimated)
        for run in map(int, np.flatnonzero(self.active)):
            parts = end_judgement.evaluations[run].free_energy
            trained_change = after.free_energies[run] - before.free_energies[run]
            self.rounds[run].append(
                Round(
                    move=name,
                    before=int(weights[run]),
                    changed=int(changed[run]),
                    estimated=float(estimated[run]),
                    at_once=float(at_once.free_energies[run] - before.free_energies[run]),
                    trained=float(trained_change) if records is not None else float("nan"),
                    free_energy=float(end_judgement.free_energies[run]),
                    complexity=float(parts.complexity),
                    accuracy=float(parts.accuracy),
                    standard_error=float(end_judgement.errors[run]),
                    kept=bool(kept[run]),
                    seconds=seconds,
                    history=None if records is None else make_history(self.trainer, records, run),
                    forced=keep and not name.startswith("grow"),
                )
            )
        self.current = _choose_states(kept, end, self.current)
        self.judgement = _choose_judgements(kept, end_judgement, before)
        self._keep_best(kept, lower_end, lower_judgement)
        return kept

    def _keep_best(self, kept: np.ndarray, state: TrainingState, judgement: Judgement) -> None:
        """Store the state of runs for which it is better than the best so far."""
        grades = self._grade(state, judgement)
        # (Of two models with the same free energy, the one with fewer weights.)
        is_lower = judgement.free_energies <= self.best_judgement.free_energies
        better = (grades > self._best_grades) | ((grades == self._best_grades) & is_lower)
        better &= kept
        self.best = _choose_states(better, state, self.best)
        self.best_judgement = _choose_judgements(better, judgement, self.best_judgement)
        self._best_grades = np.where(better, grades, self._best_grades)

    def _grade(self, state: TrainingState, judgement: Judgement) -> np.ndarray:
        """Return by run how much of the budget a state meets."""
        if self._budget is None:
            return np.zeros(self.runs, int)
        return self._budget.grade(self.trainer, state, judgement.evaluations)

    def _train(
        self, start: TrainingState, title: str, timetable: Timetable
    ) -> tuple[TrainingState, EpochRecord | None]:
        """Train all runs again; without records if there is nothing to train."""
        if not count_live(start).any():
            return start, None
        trainer = self.trainer
        key = jax.random.fold_in(self._key, self.number)
        keys = key[None] if self.runs == 1 else jax.random.split(key, self.runs)
        self._progress.retitle(f"round {self.number}, {title}")
        checkpoint = None
        if self._path is not None:
            # A checkpoint that is left over from another round is ignored.
            fingerprint = f"{self._fingerprint}, round {self.number}"
            checkpoint = Checkpoint(f"{self._path}.round", fingerprint, ignore_foreign=True)
        try:
            state, records, _ = trainer.train(
                trainer.restart(start._replace(key=keys)),
                timetable,
                progress=self._progress,
                checkpoint=checkpoint,
            )
        except NotFiniteError as error:
            warnings.warn(
                f"round {self.number}: {error}; the round is evaluated with the state before that.",
                stacklevel=2,
            )
            state, records = error.state, error.records
            if not len(records.accuracy):
                return start, None
        return trainer.gather(state._replace(memory=None))._replace(key=start.key), records

    def _judge(self, state: TrainingState) -> Judgement:
        evaluations = self.trainer.evaluate(state)
        values = np.array([float(e.free_energy.total) for e in evaluations])
        if self._extra is not None:
            values = values + np.asarray(self._extra(state))
        values = np.where(np.isfinite(values), values, np.inf)
        errors = np.array([float(e.standard_error) for e in evaluations])
        return Judgement(values, errors, evaluations)

    # --- checkpoint -----------------------------------------------------------------------------

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        histories = [[r.history for r in rounds if r.history is not None] for rounds in self.rounds]
        joined = [History.join([History(), *run]) for run in histories]
        tree = {
            "states": [self.current, self.best, self.snapshot],
            "histories": [np.stack([h.complexity, h.accuracy]) for h in joined],
            "share": self.share,
            "active": self.active,
            "going": self.going,
        }
        facts = {
            "number": self.number,
            "gradual_rounds": self.gradual_rounds,
            "phases": self.phases,
            "attempts": self.attempts,
            "attempts_over": self.attempts_over,
            "starts": self.starts,
            "rounds": [[encode_round(r) for r in rounds] for rounds in self.rounds],
        }
        self._checkpoint.write(tree, facts)

    def _restore(self, checkpoint: Checkpoint) -> bool:
        """Continue from the checkpoint; False if there is none."""
        like = {
            "states": [self.current] * 3,
            "histories": [0] * self.runs,
            "share": 0,
            "active": 0,
            "going": 0,
        }
        saved = checkpoint.read(like)
        if saved is None:
            return False
        tree, facts = saved
        self.current, self.best, self.snapshot = map(self.trainer.place, tree["states"])
        self.share, self.active, self.going = (tree[n] for n in ("share", "active", "going"))
        self.number, self.phases = facts["number"], facts["phases"]
        self.gradual_rounds = facts["gradual_rounds"]
        self.attempts, self.starts = facts["attempts"], facts["starts"]
        self.attempts_over = facts["attempts_over"]
        for run, rounds in enumerate(facts["rounds"]):
            self.rounds[run] = decode_rounds(rounds, tree["histories"][run])
        return True


def _choose_states(yes: np.ndarray, new: TrainingState, old: TrainingState) -> TrainingState:
    """Take the new state for some runs and the old one for the others."""
    if yes.all():
        return new
    if not yes.any():
        return old
    return _mix_states(jnp.asarray(yes), new, old)


@jax.jit
def _mix_states(yes: Array, new: TrainingState, old: TrainingState) -> TrainingState:
    def choose(a: Array, b: Array) -> Array:
        return jnp.where(yes.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)

    # Keys are all alike, and not numbers.
    arrays = [dict(state._asdict(), key=None) for state in (new, old)]
    return TrainingState(**jax.tree.map(choose, *arrays) | {"key": old.key})


def _choose_judgements(yes: np.ndarray, new: Judgement, old: Judgement) -> Judgement:
    return Judgement(
        np.where(yes, new.free_energies, old.free_energies),
        np.where(yes, new.errors, old.errors),
        [n if y else o for y, n, o in zip(yes, new.evaluations, old.evaluations, strict=True)],
    )


def _format_range(numbers: np.ndarray) -> str:
    low, high = numbers.min(), numbers.max()
    return str(low) if low == high else f"{low}–{high}"
