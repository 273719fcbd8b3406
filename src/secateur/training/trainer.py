"""Runs the compiled programs, feeds them data, and reports progress."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs import believe
from secateur.model import BayesianModel
from secateur.progress import Progress, ProgressUpdate
from secateur.propagation import draws
from secateur.pytrees import PyTree
from secateur.training import devices, program
from secateur.training.batches import steps_per_pass
from secateur.training.blocks import RowBlock
from secateur.training.checkpoint import Checkpoint, SavedState, fingerprint
from secateur.training.coordinates import Coordinates
from secateur.training.evaluation import Evaluation, evaluate
from secateur.training.layout import flatten_priors, lay_out
from secateur.training.objective import FreeEnergy
from secateur.training.planning import Planner
from secateur.training.program import Constants, EpochRecord, ProgramSpec, Schedule, TrainingState
from secateur.training.recipe import Recipe, Training, find_rate_scales, make_adam
from secateur.training.scaling import Scaling
from secateur.training.sources import Arrays, Stream, make_scaling
from secateur.training.timetable import Pace, Timetable

# Number of steps after which the estimate of the noise no longer averages over all of them.
SETTLED = 10_000


class NotFiniteError(FloatingPointError):
    """No run can continue; the message says where. Contains the state and records from before."""

    def __init__(self, message: str, state: TrainingState, records: EpochRecord) -> None:
        super().__init__(message)
        self.state, self.records = state, records


class Trainer:
    """A model, its data, and the programs for them, for one or several runs side by side.

    Args:
        model: See `BayesianModel`.
        source: The data.
        beliefs: Beliefs to start from, one pytree for each run.
        priors: Their priors, one pytree for each run.
        training: How to train.
        scalings: How each data set is standardised. Defaults to the recipe's.
    """

    def __init__(
        self,
        model: BayesianModel,
        source: Arrays | Stream,
        beliefs: Sequence[PyTree],
        priors: Sequence[PyTree],
        training: Training,
        *,
        scalings: list[Scaling] | None = None,
    ) -> None:
        self.model, self.source, self.training = model, source, training
        self.recipe: Recipe = training.recipe
        self.runs = len(beliefs)
        mesh, recipe = training.mesh, training.recipe
        shard_weights = mesh is not None and devices.find_mesh(model.params) is not None
        multiple = mesh.size if mesh is not None and shard_weights else 1
        layouts = [lay_out(q, p, multiple=multiple) for q, p in zip(beliefs, priors, strict=True)]
        layout, _, certain = layouts[0]
        if any(other != layout for other, _, _ in layouts):
            raise ValueError("the models differ in structure. Give those of one fit_many.")
        self._flat_beliefs = [flat for _, flat, _ in layouts]
        self._flat_priors = _flatten_all_priors(layout, priors, training.prior_groups is not None)
        self.scalings = scalings or self._make_scalings()
        batch_size = min(recipe.batch_size, source.size)
        optimiser = training.optimiser
        if optimiser is None:
            optimiser = make_adam(layout, recipe.full_rate_width, _find_scales(model, recipe))
        self.spec = ProgramSpec(
            model.f,
            model.inference,
            layout,
            optimiser,
            batch_size,
            training.prior_groups,
            recipe.conjugate_noise,
            mesh=mesh,
            shard_weights=shard_weights,
            classes=(type(model.likelihood), *map(type, self._flat_priors[0])),
        )
        # NumPy arrays go to whatever devices the program runs on; numbers stay weakly typed.
        likelihood = jax.tree.map(
            lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, model.likelihood
        )
        self.constants = Constants(self.place(certain), likelihood)
        self._data = self._stack_data()
        if isinstance(source, Arrays):
            self.steps = steps_per_pass(source.size, batch_size)
        else:
            self.steps = source.steps_per_pass(batch_size)
        self.planner = Planner(recipe, self.steps, source.blocks_per_pass, source.repeatable)
        self._rate = recipe.rate if training.optimiser is None else 1.0
        # What the change of units adds to the free energy, for each data set and then each run.
        log_jacobians = [
            0.0
            if s.targets is None
            else weight * s.targets.log_jacobian_per_row(source.sample()[1])
            for s, weight in zip(self.scalings, source.total_weights, strict=True)
        ]
        self.run_jacobians = np.resize(log_jacobians, self.runs)

    def _make_scalings(self) -> list[Scaling]:
        recipe, free_units = self.recipe, self.model.likelihood.free_units
        return [
            make_scaling(
                columns,
                inputs=recipe.standardise_inputs,
                targets=recipe.standardise_targets and free_units,
                column_names=self.source.column_names,
            )
            for columns in self.source.columns
        ]

    def _stack_data(self) -> RowBlock | None:
        """Return all rows as the programs see them, with an axis of sets; None for a stream."""
        if not isinstance(self.source, Arrays):
            return None
        dtype, mesh = self.spec.layout.dtype, self.training.mesh
        pairs = zip(self.source.sets, self.scalings, strict=True)
        data = program.stack_runs([block.standardise(scaling, dtype) for block, scaling in pairs])
        return jax.tree.map(lambda a: devices.put_rows(mesh, a, 1), data)

    # --- beginning ------------------------------------------------------------------------------

    def start(self, keys: Sequence[Array], noises: Sequence[Any] | None = None) -> TrainingState:
        """Return the state in which training begins, without optimiser state.

        Args:
            keys: A random key for each run.
            noises: q(γ) of each run that was trained before. Defaults to the likelihood's.
        """
        steps = 0 if noises is None else SETTLED
        noises = [self._initial_noise()] * self.runs if noises is None else noises
        states = [
            TrainingState(
                Coordinates.from_beliefs(flat),
                tuple(np.asarray(q.variance) > 0 for q in flat),
                None,
                noise,
                np.asarray(steps, np.int32),
                prior,
                key,
                np.zeros((), np.int32),
            )
            for flat, prior, key, noise in zip(
                self._flat_beliefs, self._flat_priors, keys, noises, strict=True
            )
        ]
        return self.place(program.stack_runs(states))

    def restart(self, state: TrainingState) -> TrainingState:
        """Return a state that training can start from, with a fresh optimiser state."""
        state = state._replace(memory=None)
        return self.place(program.restart_optimiser(self.spec, state))

    def fingerprint(self, state: TrainingState, *options: Any) -> str:
        """Hash what determines the course of a training, as far as it is visible."""
        source, optimiser = self.source, self.spec.optimiser
        data = source.sets if isinstance(source, Arrays) else [source.sample()]
        weights = program.take_run(state.weights, 0)
        moved = jax.eval_shape(
            lambda w, n: optimiser.init(program.select_moved(self.spec, w, n)),
            weights, program.take_run(state.noise, 0),
        )  # fmt: skip
        # The structure distinguishes optimisers with different states.
        facts = (jax.tree.structure(moved), self.recipe, self.spec.inference)
        return fingerprint(
            [state, list(data), self.model.likelihood],
            *(*facts, self.training.prior_groups, source.size, source.total_weights, *options),
        )

    def _initial_noise(self) -> Any:
        noise = self.constants.likelihood.initial_noise(self.source.sample()[1])
        return jax.tree.map(lambda p: p.astype(self.spec.layout.dtype), noise)

    # --- training -------------------------------------------------------------------------------

    def train(
        self,
        state: TrainingState,
        timetable: Timetable,
        *,
        progress: Progress,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[TrainingState, EpochRecord, Timetable]:
        """Train to the end of the timetable, or of the one in the checkpoint.

        Args:
            state: From `restart`. Its memory is donated.
            timetable: From `plan_training` or `plan_retraining`.
            progress: Receives updates several times a second.
            checkpoint: Where to save the state, and from where to resume.

        Returns:
            The last state, the records by epoch and run, and the timetable.
        """
        record_parts: list[EpochRecord] = []
        saved = None
        if checkpoint is not None:
            saved = checkpoint.read((state, EpochRecord(0, 0, 0, 0)))
            if saved is not None:
                state, record = saved.tree
                state, timetable = self.place(state), Timetable(**saved.facts)
                record_parts.append(record)
        done = len(record_parts[0].accuracy) if record_parts else 0
        blocks = None if self._data is not None else self.source.blocks(start=done)
        pace = Pace(program.CALL_LENGTH)

        def make_saved_state() -> SavedState:
            tree = (devices.gather(self.spec.mesh, state), _join_records(record_parts))
            return SavedState(tree, vars(timetable))

        while not timetable.stop_reason:
            schedule = self._make_schedule(timetable)
            wanted = max(1, min(timetable.next_decision - done, pace.epochs))
            data, count = self._take_data(blocks, wanted)
            if data is None:
                timetable.stop_reason = "the iterator of data was exhausted"
                break
            with pace.measure(count):
                state, raw = program.train(self.spec, state, self.constants, data, schedule, count)
                new = EpochRecord(*(np.asarray(r)[:count] for r in raw))
            failed = np.all(new.bad_step >= 0, axis=1)
            if failed.any():
                first = int(np.argmax(failed))
                record_parts.append(EpochRecord(*(r[:first] for r in new)))
                message = _describe_failure(new, first, done)
                raise NotFiniteError(message, state, _join_records(record_parts))
            record_parts.append(new)
            done += count
            if done >= timetable.next_decision:
                timetable.decide(self.free_energies(_join_records(record_parts)))
            try:
                answer = progress.update(self._summarise(timetable, schedule, new, done, pace))
            except BaseException:  # the user may want to resume from here
                if checkpoint is not None:
                    checkpoint.write(*make_saved_state())
                raise
            if answer is not None:
                timetable.shorten(answer, done)
            if checkpoint is not None:
                checkpoint.write_if_due(make_saved_state)
        if checkpoint is not None and len(record_parts) > (saved is not None):
            checkpoint.write(*make_saved_state())
        return state, _join_records(record_parts), timetable

    def free_energies(self, records: EpochRecord) -> np.ndarray:
        """Return the free energies by epoch and run, nan from where a run failed."""
        total = records.complexity_weights + records.complexity_noise - records.accuracy
        total = total + self.run_jacobians
        return np.where(np.maximum.accumulate(records.bad_step >= 0, axis=0), np.nan, total)

    def _take_data(
        self, blocks: Iterator[RowBlock] | None, wanted: int
    ) -> tuple[RowBlock | None, int]:
        if blocks is None:
            return self._data, min(wanted, program.CALL_LENGTH)
        block = next(blocks, None)
        return (None, 0) if block is None else (self._prepare(block), 1)

    def _prepare(self, block: RowBlock) -> RowBlock:
        """Standardise a block of a stream and put it on the devices."""
        standard = block.standardise(self.scalings[0], self.spec.layout.dtype)
        return jax.tree.map(lambda a: devices.put_rows(self.spec.mesh, a[None], 1), standard)

    def _make_schedule(self, timetable: Timetable) -> Schedule:
        numbers = (
            self._rate,
            timetable.epochs_before,
            timetable.warm_epochs,
            timetable.cool_start,
            timetable.cool_epochs,
            np.mean(self.source.total_weights),
            self.steps,
        )
        return Schedule(*(np.asarray(n, self.spec.layout.dtype) for n in numbers))

    def _summarise(
        self, timetable: Timetable, schedule: Schedule, new: EpochRecord, done: int, pace: Pace
    ) -> ProgressUpdate:
        last = EpochRecord(*(r[-1:] for r in new))
        totals = self.free_energies(last)[0]
        best = int(np.nanargmin(totals))
        complexity = float((last.complexity_weights + last.complexity_noise)[0, best])
        blocks = self.source.blocks_per_pass
        epoch = np.asarray(done - 1, np.float32)
        return ProgressUpdate(
            epoch=-(-done // blocks),
            epochs=-(-timetable.last_epoch // blocks),
            free_energy=float(totals[best]),
            complexity=complexity,
            accuracy=float(last.accuracy[0, best]) - float(self.run_jacobians[best]),
            rate=float(program.rate_at(schedule, epoch, np)),
            phase=timetable.phase,
            seconds=pace.seconds,
            seconds_left=pace.seconds_per_epoch * (timetable.last_epoch - done),
        )

    def blocks(self) -> Iterator[RowBlock]:
        """Yield all rows once, in one block or several, as the programs see them."""
        if self._data is not None:
            return iter([self._data])
        blocks = itertools.islice(self.source.blocks(), self.source.blocks_per_pass)
        return (self._prepare(block) for block in blocks)

    # --- judging --------------------------------------------------------------------------------

    def evaluate(
        self, state: TrainingState, records: EpochRecord | None = None
    ) -> list[Evaluation]:
        """Return the free energies of all runs, in the data's own units.

        Args:
            state: The weights to evaluate.
            records: Records of their training, for data that cannot be read again.
        """
        state = state._replace(memory=None)
        if self._data is not None:
            evaluation = self._evaluate(state, self._data)
        elif self.source.repeatable:
            evaluation = self._evaluate_stream(state)
        else:
            assert records is not None
            evaluation = _recall_evaluation(state, records)
        by_run = [program.take_run(evaluation, run) for run in range(self.runs)]
        return [
            e._replace(free_energy=replace(e.free_energy, accuracy=e.free_energy.accuracy - j))
            for e, j in zip(by_run, self.run_jacobians.tolist(), strict=True)
        ]

    def _evaluate(self, state: TrainingState, data: RowBlock, noise: Any = None) -> Evaluation:
        samples = self.recipe.samples if draws(self.spec.inference) else 1
        return evaluate(self.spec, state, self.constants, data, noise, samples=samples)

    def _evaluate_stream(self, state: TrainingState) -> Evaluation:
        """Two passes: q(γ) from all blocks, then the accuracy of each under it."""
        start = program.stack_runs([self._initial_noise()] * self.runs)
        noise = start
        for block in self.blocks():
            # The parameters of q(γ) are the prior's plus a sum over rows.
            block_noise = self._evaluate(state, block).noise
            noise = jax.tree.map(lambda sum_, new, old: sum_ + new - old, noise, block_noise, start)
        evaluations = [self._evaluate(state, block, noise) for block in self.blocks()]
        last = evaluations[-1].free_energy
        accuracy = jnp.sum(jnp.stack([e.free_energy.accuracy for e in evaluations]), axis=0)
        error = jnp.sqrt(sum(jnp.square(e.standard_error) for e in evaluations))
        parts = FreeEnergy(last.complexity_weights, last.complexity_noise, accuracy)
        return Evaluation(parts, noise, error)

    # --- devices --------------------------------------------------------------------------------

    def place(self, tree: Any) -> Any:
        """Put arrays where the program leaves them, so that it is compiled only once."""
        if self.training.mesh is None:
            return jax.device_put(tree)
        return jax.tree.map(devices.put, tree, program.placement(self.spec, tree))

    def gather(self, tree: Any) -> Any:
        """Return arrays of which every process has all values."""
        return devices.gather(self.spec.mesh, tree)


def _flatten_all_priors(layout: Any, priors: Sequence[PyTree], expand: bool) -> list[Any]:
    """Return the flat priors of every run, with parameters of equal shapes."""
    flat = [flatten_priors(layout, p, expand=expand) for p in priors]
    shapes = [jax.tree.map(np.shape, f) for f in flat]
    if any(s != shapes[0] for s in shapes):
        flat = [flatten_priors(layout, p, expand=True) for p in priors]
    return flat


def _find_scales(model: BayesianModel, recipe: Recipe) -> tuple[float, ...]:
    if recipe.relative_rate is None:
        return ()
    start = believe(model.params, variance=1.0, where=model.where)
    return find_rate_scales(recipe.rate, recipe.relative_rate, start)


def _recall_evaluation(state: TrainingState, records: EpochRecord) -> Evaluation:
    """Estimate the evaluation from the last third of the blocks of a one-pass stream."""
    recent = slice(-max(1, len(records.accuracy) // 3), None)
    means = [np.mean(r[recent], axis=0) for r in records[:3]]
    spread = np.std((records.complexity_weights - records.accuracy)[recent], axis=0)
    error = spread / np.sqrt(len(records.accuracy[recent]))
    return Evaluation(FreeEnergy(*map(jnp.asarray, means)), state.noise, jnp.asarray(error))


def _describe_failure(new: EpochRecord, index: int, done: int) -> str:
    step = int(new.bad_step[index].max())
    columns = new._asdict()
    parts = ("complexity_weights", "complexity_noise", "accuracy")
    bad = [p for p in parts if not np.isfinite(columns[p][index]).any()]
    part = " and ".join(bad).replace("_", " of the ") or "weights"
    return f"the {part} became nan or infinite in epoch {done + index + 1}, step {step + 1}"


def _join_records(records: list[EpochRecord]) -> EpochRecord:
    return EpochRecord(*(np.concatenate(column) for column in zip(*records, strict=True)))
