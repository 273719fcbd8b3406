"""Runs the compiled programs: in what portions, with which data, watched by whom."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh

from secateur.energy import FreeEnergy
from secateur.fitting import devices, program
from secateur.fitting.optimiser import adam
from secateur.fitting.pacing import Pace
from secateur.fitting.program import Evaluation, Fixed, Plan, Record, Settings, State
from secateur.fitting.recipes import Recipe
from secateur.fitting.result import History
from secateur.fitting.saving import Saver
from secateur.fitting.scaling import Scaling
from secateur.fitting.sources import Arrays, Block, Stream, scaling_of
from secateur.fitting.timetable import Timetable
from secateur.fitting.weights import Layout, Vectors, Weights
from secateur.model import BayesianModel
from secateur.progress import Progress, Report
from secateur.propagation import draws


class NotFinite(FloatingPointError):
    """No run can go on; says where, and holds the state and records from before."""

    def __init__(self, where: str, state: State, records: Record) -> None:
        super().__init__(where)
        self.state, self.records = state, records


class Trainer:
    """A model, its data and the programs for them.

    Args:
        model: see `BayesianModel`.
        source: the data.
        layout: of the model's beliefs.
        certain: its certain arrays.
        recipe: see `Recipe`.
        optimiser: whose updates are scaled by the recipe's falling rate; None is Adam.
        empirical_bayes: whether prior variances are learnt.
        runs: how many trainings go on side by side, or None for one.
        mesh: devices over which the rows of each step are divided, or None.
        shard_weights: whether the weights are divided over them too.
        scalings: how each data set is standardised; by default as the recipe says.
    """

    def __init__(
        self,
        model: BayesianModel,
        source: Arrays | Stream,
        layout: Layout,
        certain: list[Array],
        recipe: Recipe,
        *,
        optimiser: optax.GradientTransformation | None = None,
        empirical_bayes: bool = False,
        runs: int | None = None,
        mesh: Mesh | None = None,
        shard_weights: bool = False,
        scalings: list[Scaling] | None = None,
    ) -> None:
        self.source = source
        self.recipe = recipe
        self.given_optimiser = optimiser
        self.scalings = scalings or [
            scaling_of(
                columns,
                inputs=recipe.standardise_inputs,
                targets=recipe.standardise_targets and model.likelihood.free_units,
            )
            for columns in source.columns
        ]
        own_data = len(self.scalings) > 1
        batch_size = min(recipe.batch_size, source.size)
        self.settings = Settings(
            model.f,
            model.inference,
            layout,
            adam(layout, recipe.full_rate_width) if optimiser is None else optimiser,
            batch_size,
            empirical_bayes,
            recipe.conjugate_noise,
            many=runs is not None,
            own_data=own_data,
            mesh=mesh,
            shard_weights=shard_weights,
        )
        # NumPy's arrays go to whatever devices the program runs on; numbers stay weakly typed.
        likelihood = jax.tree.map(
            lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, model.likelihood
        )
        self.fixed = Fixed(self.placed(certain), likelihood)
        self._data: Block | None = None
        if isinstance(source, Arrays):
            sets = [
                c.standard(s, layout.dtype) for s, c in zip(source.sets, self.scalings, strict=True)
            ]
            data = sets[0] if not own_data else jax.tree.map(lambda *a: np.stack(a), *sets)
            self._data = jax.tree.map(lambda a: devices.put_rows(mesh, a, int(own_data)), data)
            self.steps = program.steps_per_pass(source.size, batch_size)
        else:
            self.steps = source.steps_per_pass(batch_size)
        self._rate = recipe.rate if optimiser is None else 1.0
        # What the change of units adds to the free energy, per data set and then per run.
        log_jacobians = [
            0.0
            if s.targets is None
            else source.size * s.targets.log_jacobian_per_row(source.sample()[1])
            for s in self.scalings
        ]
        self.run_jacobians = np.resize(log_jacobians, runs or 1)

    # --- beginning ------------------------------------------------------------------------------

    def start(self, weights: Weights, alive: Vectors, prior: Any, key: Array) -> State:
        """Return the state in which a run begins."""
        noise = self._initial_noise()
        state = State(
            weights,
            alive,
            self.settings.optimiser.init(program.to_optimise(self.settings, weights, noise)),
            noise,
            jax.device_put(np.zeros((), np.int32)),
            prior,
            key,
            jax.device_put(np.zeros((), np.int32)),
        )
        return self.placed(state)

    def _initial_noise(self) -> Any:
        noise = self.fixed.likelihood.initial_noise(self.source.sample()[1])
        return jax.tree.map(lambda p: p.astype(self.settings.layout.dtype), noise)

    def timetable(self, *, warm: bool = True) -> Timetable:
        """Return a new plan for a whole training.

        Args:
            warm: whether the weight of the complexity rises slowly, as the recipe says. Where the
                prior is what was learnt before, it should count from the beginning.
        """
        return self._timetable(self.recipe if warm else replace(self.recipe, warm_steps=0))

    def retraining(self, epochs: int | None) -> Timetable:
        """Return a new plan for the training of weights that have been trained before."""
        recipe = self.recipe
        return self._timetable(
            replace(
                recipe,
                epochs=recipe.retrain_epochs if epochs is None else epochs,
                steps=recipe.retrain_steps,
                warm_steps=0,
            )
        )

    def _timetable(self, recipe: Recipe) -> Timetable:
        blocks = self.source.blocks_per_pass
        if recipe.epochs is not None:
            budget = recipe.epochs * blocks
        else:
            budget = max(60, blocks, recipe.steps * blocks // self.steps)
        if not self.source.repeatable:
            budget = min(budget, blocks)
        return Timetable.of(recipe, budget, self.steps / blocks)

    # --- training -------------------------------------------------------------------------------

    def train(
        self,
        state: State,
        timetable: Timetable,
        *,
        progress: Progress,
        saver: Saver | None = None,
        records: Record | None = None,
    ) -> tuple[State, Record]:
        """Train to the end of the timetable.

        Returns:
            The last state and the records by epoch, with a second axis for the runs.
        """
        kept = [] if records is None else [records]
        done = 0 if records is None else len(records.accuracy)
        blocks = None if self._data is not None else self.source.blocks(start=done)
        pace = Pace(program.CALL_LENGTH)
        while not timetable.ended:
            plan = self._plan(timetable)
            wanted = max(1, min(timetable.next_decision - done, pace.epochs))
            data, count = self._next(blocks, wanted)
            if data is None:
                timetable.ended = "the iterator of data came to its end"
                break
            with pace.measured(count):
                state, raw = program.train(self.settings, state, self.fixed, data, plan, count)
                new = self._fetch(raw, count)
            failed = np.all(new.bad_step >= 0, axis=1)
            if failed.any():
                first = int(np.argmax(failed))
                kept.append(Record(*(r[:first] for r in new)))
                raise NotFinite(self._where(new, first, done), state, _joined(kept))
            kept.append(new)
            done += count
            if done >= timetable.next_decision:
                timetable.decide(self.free_energies(_joined(kept)))
            try:
                answer = progress.update(self._report(timetable, plan, new, done, pace))
            except BaseException:  # whoever interrupts may want to go on from here
                if saver is not None:
                    saver.write(self.gathered, state, timetable, _joined(kept))
                raise
            if answer is not None:
                timetable.shorten(answer, done)
            if saver is not None:
                saver.consider(self.gathered, state, timetable, lambda: _joined(kept))
        result = _joined(kept)
        if saver is not None and len(kept) > (records is not None):
            saver.write(self.gathered, state, timetable, result)
        return state, result

    def history(self, records: Record, run: int) -> History:
        """Return a run's course in the data's own units."""
        return History(
            (records.complexity_weights + records.complexity_noise)[:, run],
            records.accuracy[:, run] - self.run_jacobians[run],
        )

    def run_of(self, state: State, run: int) -> State:
        """Return the state of one run."""
        return jax.tree.map(lambda a: a[run], state) if self.settings.many else state

    def free_energies(self, records: Record) -> np.ndarray:
        """Return them by epoch and run, nan from where a run failed."""
        total = records.complexity_weights + records.complexity_noise - records.accuracy
        total = total + self.run_jacobians
        return np.where(np.maximum.accumulate(records.bad_step >= 0, axis=0), np.nan, total)

    def _next(self, blocks: Iterator[Block] | None, wanted: int) -> tuple[Block | None, int]:
        if blocks is None:
            return self._data, min(wanted, program.CALL_LENGTH)
        block = next(blocks, None)
        if block is None:
            return None, 0
        return self._ready(block), 1

    def _ready(self, block: Block) -> Block:
        """Standardise a block of a stream and put it on the devices."""
        return jax.tree.map(
            lambda a: devices.put_rows(self.settings.mesh, a, 0),
            self.scalings[0].standard(block, self.settings.layout.dtype),
        )

    def _plan(self, timetable: Timetable) -> Plan:
        numbers = (
            self._rate,
            timetable.warm_epochs,
            timetable.cool_start,
            timetable.cool_epochs,
            self.source.size,
            self.steps,
        )
        return Plan(*(np.asarray(n, self.settings.layout.dtype) for n in numbers))

    def _fetch(self, records: Record, count: int) -> Record:
        """Bring records to the host, with an axis for the runs whether or not there are several."""
        rows = [np.asarray(r)[:count] for r in records]
        return Record(*(r.reshape(count, -1) for r in rows))

    def _where(self, new: Record, index: int, done: int) -> str:
        step = int(new.bad_step[index].max())
        parts = ("complexity_weights", "complexity_noise", "accuracy")
        bad = [p for p in parts if not np.isfinite(getattr(new, p)[index]).any()]
        part = " and ".join(bad).replace("_", " of the ") or "weights"
        return f"the {part} became nan or infinite in epoch {done + index + 1}, step {step + 1}"

    def _report(
        self, timetable: Timetable, plan: Plan, new: Record, done: int, pace: Pace
    ) -> Report:
        last = Record(*(r[-1:] for r in new))
        totals = self.free_energies(last)[0]
        best = int(np.nanargmin(totals))
        jacobian = float(self.run_jacobians[best])
        complexity = float((last.complexity_weights + last.complexity_noise)[0, best])
        blocks = self.source.blocks_per_pass
        epoch = np.asarray(done - 1, np.float32)
        return Report(
            epoch=-(-done // blocks),
            epochs=-(-timetable.last_epoch // blocks),
            free_energy=float(totals[best]),
            complexity=complexity,
            accuracy=float(last.accuracy[0, best]) - jacobian,
            rate=float(program.rate_at(plan, epoch, np)),
            phase=timetable.phase,
            seconds=pace.seconds,
            seconds_left=pace.seconds_per_epoch * (timetable.last_epoch - done),
        )

    def blocks(self) -> Iterator[Block]:
        """Yield all rows once, in one block or several, as the programs see them."""
        return self._one_pass() if self._data is None else iter([self._data])

    # --- judging --------------------------------------------------------------------------------

    def evaluate(self, state: State, records: Record | None = None) -> list[Evaluation]:
        """Free energies of all runs, in the data's own units.

        Args:
            state: the weights to judge.
            records: of their training; for data that cannot be read again they are all there is.
        """
        if self._data is not None:
            found = self._evaluate(state, self._data)
        elif self.source.repeatable:
            found = self._evaluate_stream(state)
        else:
            assert records is not None
            found = self._recall(state, records)
        many = self.settings.many
        each = [
            jax.tree.map(lambda a, run=run: a[run] if many else a, found)
            for run in range(len(self.run_jacobians))
        ]
        return [
            e._replace(free_energy=_with_jacobian(e.free_energy, j))
            for e, j in zip(each, self.run_jacobians, strict=True)
        ]

    def _evaluate(self, state: State, data: Block, noise: Any = None) -> Evaluation:
        samples = self.recipe.samples if draws(self.settings.inference) else 1
        return program.evaluate(self.settings, state, self.fixed, data, noise, samples=samples)

    def _evaluate_stream(self, state: State) -> Evaluation:
        """Two passes: q(γ) from all blocks, then the accuracy of each under it."""
        start = noise = self._initial_noise()
        if self.settings.many:
            runs = len(self.run_jacobians)
            start = noise = jax.tree.map(lambda p: jnp.broadcast_to(p, (runs, *p.shape)), start)
        for block in self._one_pass():
            # The parameters of q(γ) are the prior's plus a sum over rows.
            found = self._evaluate(state, block).noise
            noise = jax.tree.map(lambda total, new, old: total + new - old, noise, found, start)
        found = [self._evaluate(state, block, noise) for block in self._one_pass()]
        last = found[-1].free_energy
        good = sum(e.free_energy.accuracy for e in found)
        error = jnp.sqrt(sum(jnp.square(e.standard_error) for e in found))
        parts = FreeEnergy(last.complexity_weights, last.complexity_noise, good)
        return Evaluation(parts, noise, error)

    def _one_pass(self) -> Iterator[Block]:
        blocks = itertools.islice(self.source.blocks(), self.source.blocks_per_pass)
        return (self._ready(block) for block in blocks)

    def _recall(self, state: State, records: Record) -> Evaluation:
        """Estimate from the last third of the blocks of a stream that was read once."""
        recent = slice(-max(1, len(records.accuracy) // 3), None)
        means = [np.mean(r[recent], axis=0) for r in records[:3]]
        spread = np.std((records.complexity_weights - records.accuracy)[recent], axis=0)
        error = spread / np.sqrt(len(records.accuracy[recent]))
        many = self.settings.many
        parts = FreeEnergy(*(jnp.asarray(m if many else m[0]) for m in means))
        return Evaluation(parts, state.noise, jnp.asarray(error if many else error[0]))

    # --- devices --------------------------------------------------------------------------------

    def placed(self, tree: Any) -> Any:
        """Put arrays where the program leaves them, so that it is compiled once only.

        Always copies: the program takes its state's memory over, which must be nobody else's.
        """
        if self.settings.mesh is None:
            return devices.copied(tree)
        places = program.placement(self.settings, tree)
        return jax.tree.map(lambda a, place: devices.put(jnp.copy(a), place), tree, places)

    def gathered(self, tree: Any) -> Any:
        """Return arrays of which every process has all of every one."""
        return devices.gathered(self.settings.mesh, tree)


def _with_jacobian(parts: FreeEnergy, log_jacobian: float) -> FreeEnergy:
    return FreeEnergy(
        parts.complexity_weights, parts.complexity_noise, parts.accuracy - log_jacobian
    )


def _joined(records: list[Record]) -> Record:
    return Record(*(np.concatenate(field) for field in zip(*records, strict=True)))
