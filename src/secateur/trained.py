"""`Trained`: a model, the beliefs about its weights, and the record of its training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

import secateur
from secateur.beliefs import count, mean_weights
from secateur.model import BayesianModel
from secateur.predictive import SAMPLES, Predictive
from secateur.pytrees import uncertain_leaves
from secateur.training.devices import is_addressable
from secateur.training.evaluation import Evaluation
from secateur.training.function_checks import check_function
from secateur.training.layout import assemble, to_numpy
from secateur.training.objective import FreeEnergy
from secateur.training.program import EpochRecord, TrainingState, take_run
from secateur.training.recipe import Recipe, Training
from secateur.training.scaling import Scaling
from secateur.training.sources import Arrays, Stream, make_source
from secateur.training.trainer import NotFiniteError, Trainer

__all__ = ["Compaction", "FitError", "History", "Round", "Trained"]


@dataclass(frozen=True, eq=False)
class History:
    """Free energy and its parts by epoch, in nats, averaged over the steps of each epoch.

    Attributes:
        complexity: Complexity of weights and noise.
        accuracy: Expected log-likelihood of all rows.
    """

    complexity: np.ndarray = field(default_factory=lambda: np.zeros(0))
    accuracy: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def free_energy(self) -> np.ndarray:
        """Return complexity − accuracy."""
        return self.complexity - self.accuracy

    def __len__(self) -> int:
        return len(self.accuracy)

    @classmethod
    def join(cls, histories: Sequence[History]) -> History:
        """Return several histories one after the other."""
        return cls(
            np.concatenate([h.complexity for h in histories]),
            np.concatenate([h.accuracy for h in histories]),
        )


@dataclass(frozen=True, eq=False)
class Round:
    """One move of pruning: weights are removed (or grown back), and the rest is retrained.

    Changes of the free energy are in nats, compared with the beginning of the round; negative is
    better.

    Attributes:
        move: "cut weights", "cut units" or "grow weights".
        before: Number of weights before the round.
        changed: Number of weights that were cut or grown.
        estimated: Change of the free energy that Bayesian model reduction expected.
        at_once: Actual change right after the move, before any training; nan in rounds that are
            not judged (`Recipe.gradual_rounds`), whose free energy is that of their last epoch.
        trained: Actual change after training; nan if there was nothing left to train.
        free_energy: Free energy at the end of the round, whether or not it was kept.
        complexity: Complexity of weights and noise at the end of the round.
        accuracy: Accuracy at the end of the round.
        standard_error: Standard error of the free energy where the algorithm samples; else 0.
        kept: False if the round was undone because it ended worse than it began.
        seconds: Duration; the total for all runs if several are pruned at once.
        history: History of the round's training by epoch, or None.
        forced: True if the round was kept regardless of the free energy, because of a `rate` or
            `most_weights`.
    """

    move: str
    before: int
    changed: int
    estimated: float
    at_once: float
    trained: float
    free_energy: float
    complexity: float
    accuracy: float
    standard_error: float
    kept: bool
    seconds: float
    history: History | None = field(repr=False)
    forced: bool = False

    @property
    def left(self) -> int:
        """Return the number of weights at the end of the round, had it been kept."""
        return self.before + (self.changed if self.move.startswith("grow") else -self.changed)

    @property
    def divergence(self) -> float:
        """Return actual minus estimated change right after the move: the error of the estimate."""
        return self.at_once - self.estimated


@dataclass(frozen=True, eq=False)
class Compaction:
    """What `secateur.compact` removed.

    Attributes:
        kept_inputs: Indices of the remaining input features (last axis of the inputs). If the
            inputs are a pytree, one such array for each of its arrays.
        removed: Which units were removed and why.
        parameters_before: Number of elements of all arrays of the original model.
        parameters_after: Number of elements of all arrays of the smaller model.
    """

    kept_inputs: Any
    removed: tuple[Any, ...]
    parameters_before: int
    parameters_after: int

    def table(self) -> str:
        """Return which units were removed and why, one line for each kind of unit."""
        return "\n".join(map(str, self.removed))


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model: from `fit`, `prune`, `update`, `compact` or `load`.

    `beliefs`, `priors` and `noise` are the only record of what was learnt. Further training and
    pruning start from them, so that `dataclasses.replace(trained, beliefs=…)` is a trained model
    with different beliefs.

    Attributes:
        model: The model.
        beliefs: Posterior of the weights, with the structure of the model's params.
        priors: Priors, with the same structure. They differ from the model's if they were learnt.
        noise: q(γ) in standardised units, or None.
        scaling: How inputs and targets are standardised.
        free_energy: Free energy of all rows, in nats and the data's own units; lower is better.
        parts: Complexity of weights and noise, and accuracy.
        standard_error: Standard error of the free energy where the algorithm samples; else 0.
        epochs: Total number of epochs of all trainings.
        stop_reason: Why the last step (training or pruning) ended, in words.
        is_level: Whether the free energy had levelled off when training ended, before any pruning;
            True if unknown.
        training: Settings and state that are needed to continue training.
        key: Random key of predictions, for algorithms that sample.
        history: Free energy by epoch; empty for a model from a file.
        restarts: Free energy of every initialisation; nan for one that failed.
        rounds: Rounds of pruning; empty if it was not pruned.
        weights_before: Number of weights before pruning.
        free_energy_before: Free energy before pruning, in nats.
        compaction: What `compact` removed, or None.
        extra: The `extra` value given to `save`, for a model from a file; else None.
        version: Version of secateur that made it.
    """

    model: BayesianModel
    beliefs: Any
    priors: Any
    noise: Any
    scaling: Scaling
    free_energy: float
    parts: FreeEnergy
    standard_error: float
    epochs: int
    stop_reason: str
    training: Training = field(repr=False)
    key: Array = field(repr=False)
    history: History = field(default_factory=History, repr=False)
    restarts: tuple[float, ...] = ()
    rounds: tuple[Round, ...] = ()
    weights_before: int = 0
    free_energy_before: float = math.nan
    is_level: bool = True
    compaction: Compaction | None = None
    extra: Any = None
    version: str = ""

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of its training."""
        return self.training.recipe

    @property
    def live_weights(self) -> int:
        """Return the number of weights that have not been pruned."""
        return count(self.beliefs).live

    @property
    def pruned_fraction(self) -> float:
        """Return the fraction of the weights that pruning has removed."""
        return 1 - self.live_weights / max(1, self.weights_before)

    def predict(
        self,
        inputs: Any,
        *,
        at_means: bool = False,
        key: Array | None = None,
        samples: int = SAMPLES,
    ) -> Predictive:
        """Return the predictive distribution of new rows; see `Predictive`.

        Args:
            inputs: Rows like those given to `fit`.
            at_means: Whether to fix every weight at its posterior mean, as in exported C, instead
                of averaging over the posterior. The noise is included in either case.
            key: A JAX random key for a model whose inference samples. Defaults to a key that is
                stored with the model, so that the same call gives the same answer.
            samples: Number of networks that are averaged if the inference samples.
        """
        model, beliefs = self.model, self.beliefs
        if at_means:  # nothing is left to sample
            model, beliefs = replace(model, inference="moments"), mean_weights(beliefs)
        return Predictive(
            model,
            beliefs,
            self.noise,
            self.scaling,
            inputs,
            key=self.key if key is None else key,
            samples=samples,
        )

    def table(self) -> str:
        """Return the rounds of pruning as a table."""
        return _tabulate_rounds(self.rounds)

    def __repr__(self) -> str:
        error = f" ± {self.standard_error:.1f}" if self.standard_error else ""
        lines = [
            f"free energy {self.free_energy:.1f}{error} nats = complexity "
            f"{float(self.parts.complexity):.1f} − accuracy {float(self.parts.accuracy):.1f}",
            f"{self.live_weights} weights",
        ]
        if self.rounds:
            lines[1] = (
                f"{self.weights_before} → {self.live_weights} weights "
                f"({100 * self.pruned_fraction:.1f} % pruned) in {len(self.rounds)} "
                f"{'round' if len(self.rounds) == 1 else 'rounds'}"
            )
        if self.compaction is not None:
            parameters = self.compaction.parameters_before, self.compaction.parameters_after
            lines.append("{} → {} parameters".format(*parameters))
        return f"<Trained: {'; '.join(lines)}; {self.epochs} epochs, {self.stop_reason}>"


class FitError(FloatingPointError):
    """Training encountered a value that is not finite.

    Attributes:
        last_good: The `Trained` from before the epoch in which this happened, or None if it was the
            first epoch.
    """

    def __init__(self, message: str, last_good: Trained | None = None) -> None:
        super().__init__(message)
        self.last_good = last_good


def _tabulate_rounds(rounds: Sequence[Round]) -> str:
    headings = ("round", "move", "changed", "left", "estimated", "at once", "divergence", "trained",
                "free energy", "complexity", "accuracy", "s", "")  # fmt: skip
    rows: list[tuple[str, ...]] = [headings]
    for number, r in enumerate(rounds, 1):
        changes = (r.estimated, r.at_once, r.divergence, r.trained)
        ends = (r.free_energy, r.complexity, r.accuracy, r.seconds)
        cells = (str(number), r.move, str(r.changed), str(r.left))
        numbers = ("–" if math.isnan(v) else f"{v:.1f}" for v in (*changes, *ends))
        end = "" if r.kept else "undone"
        rows.append((*cells, *numbers, "forced" if r.kept and r.forced else end))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


# --- from and to a trainer ------------------------------------------------------------------------


def find_best(results: Sequence[Trained]) -> Trained:
    """Return the model with the lowest free energy."""
    return min(results, key=lambda r: math.inf if math.isnan(r.free_energy) else r.free_energy)


def make_history(trainer: Trainer, records: EpochRecord, run: int) -> History:
    """Return the history of a run in the data's own units."""
    return History(
        (records.complexity_weights + records.complexity_noise)[:, run],
        records.accuracy[:, run] - trainer.run_jacobians[run],
    )


def collect_runs(
    trainer: Trainer, state: TrainingState, records: EpochRecord, stop_reason: str
) -> list[Trained]:
    """Evaluate all runs of a trainer and return them as trained models."""
    state = trainer.gather(state._replace(memory=None))
    free_energies = trainer.free_energies(records)
    epochs = len(free_energies) // trainer.source.blocks_per_pass
    results = []
    for run, evaluation in enumerate(trainer.evaluate(state, records)):
        history = make_history(trainer, records, run)
        own = take_run(state, run)
        trained = make_trained(
            trainer, own, run, evaluation, history=history, epochs=epochs, stop_reason=stop_reason
        )
        if not np.all(np.isfinite(free_energies[-1:, run])):
            trained = replace(trained, free_energy=math.nan, free_energy_before=math.nan)
        results.append(trained)
    return results


def make_trained(
    trainer: Trainer,
    state: TrainingState,
    run: int,
    evaluation: Evaluation,
    *,
    history: History,
    epochs: int,
    stop_reason: str,
) -> Trained:
    """Return one run of a trainer as a trained model.

    Args:
        trainer: The trainer.
        state: The state of that run alone.
        run: Number of the run.
        evaluation: Free energy of the run.
        history: History of the run.
        epochs: Number of epochs.
        stop_reason: Why training ended, in words.
    """
    layout = trainer.spec.layout
    beliefs, priors = assemble(layout, state.weights, state.alive, state.prior)
    parts = evaluation.free_energy
    free_energy = float(parts.total)
    return Trained(
        model=trainer.model,
        beliefs=layout.build_tree(beliefs, trainer.constants.certain),
        priors=layout.build_tree(priors, None),
        noise=evaluation.noise,
        scaling=trainer.scalings[min(run, len(trainer.scalings) - 1)],
        free_energy=free_energy,
        parts=parts,
        standard_error=float(evaluation.standard_error),
        epochs=epochs,
        stop_reason=stop_reason,
        training=trainer.training,
        key=state.key,
        history=history,
        restarts=(free_energy,),
        weights_before=sum(int(np.sum(np.asarray(a))) for a in state.alive),
        free_energy_before=free_energy,
        version=secateur.__version__,
    )


def make_fit_error(trainer: Trainer, error: NotFiniteError, checkpoint: Any = None) -> FitError:
    """Return the error for a training that encountered a value that is not finite."""
    message = (
        f"{error}. Try a smaller learning rate (rate={trainer.recipe.rate / 10:g}), look for "
        "extreme values in the data, or prevent overflow in the model's function (exp, 1/x, log)."
    )
    if not len(error.records.accuracy):
        return FitError(message)
    message += " The state before that epoch is the attribute last_good of this error"
    message += f", an earlier one is in {checkpoint}." if checkpoint else "."
    return FitError(
        message, find_best(collect_runs(trainer, error.state, error.records, str(error)))
    )


def check_trained(trained: Any) -> None:
    """Raise an error for anything but a trained model."""
    if not isinstance(trained, Trained):
        advice = "Give the result of fit, prune, update or load."
        if isinstance(trained, BayesianModel):
            advice = "Train it first: give the result of fit(model, data, key=key)."
        raise TypeError(f"a {type(trained).__name__} is not a trained model. {advice}")


def resume(
    models: Sequence[Trained], source: Arrays | Stream, *, keys: Sequence[Array] | None = None
) -> tuple[Trainer, TrainingState]:
    """Return a trainer for trained models, and a state made from their beliefs.

    Args:
        models: Trained models of one structure, one for each run.
        source: The data.
        keys: Random keys of the runs. Defaults to the models' own.
    """
    for trained in models:
        check_trained(trained)
        leaves = uncertain_leaves(trained.beliefs)
        if not all(_is_finite(q.mean) and _is_finite(q.variance) for q in leaves):
            raise ValueError(
                "the model has nan or infinite beliefs, so it cannot be pruned or updated. Fit it "
                "again with a smaller learning rate."
            )
    first = models[0]
    inputs, _ = source.sample()
    first.scaling.check_columns(inputs)
    if not first.scaling.knows_columns:
        check_function(first.model.f, first.model.params, inputs)
    trainer = Trainer(
        first.model,
        source,
        [to_numpy(m.beliefs) for m in models],
        [m.priors for m in models],
        first.training,
        scalings=[m.scaling for m in models[: len(source.columns)]],
    )
    return trainer, trainer.start(keys or [m.key for m in models], [m.noise for m in models])


def _is_finite(values: Any) -> bool:
    """Whether all values are finite; in NumPy if possible, as that compiles nothing."""
    if is_addressable(values):
        return bool(np.all(np.isfinite(np.asarray(values))))
    return bool(jnp.all(jnp.isfinite(values)))


def open_data(data: Any, trained: Trained, size: int | None) -> Arrays | Stream:
    """Return data as a source that can be read repeatedly."""
    check_trained(trained)
    source = make_source(
        data,
        size=size,
        batch_size=trained.recipe.batch_size,
        column_names=trained.scaling.column_names,
    )
    if not source.repeatable:
        raise ValueError(
            "an iterator can be read only once, and this function reads the data several times. "
            "Give arrays, or a function that returns a new iterator."
        )
    return source
