"""Requirements on a pruned model: few weights, and good predictions of held-out rows.

They select one of the models of all rounds; `most_weights` also decides whether weights are cut
against the free energy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import numpy as np

from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood
from secateur.options import check_count
from secateur.predictive import Predictive
from secateur.pruning.moves import count_live
from secateur.trained import Round, Trained
from secateur.training.checkpoint import fingerprint
from secateur.training.evaluation import Evaluation
from secateur.training.layout import assemble
from secateur.training.program import TrainingState, take_run
from secateur.training.sources import check_data
from secateur.training.table_columns import is_table, make_array
from secateur.training.trainer import Trainer

__all__ = ["FULL_GRADE", "Budget"]

# The grade of a state that meets all requirements.
FULL_GRADE = 3


@dataclass(frozen=True, eq=False)
class Budget:
    """Requirements on the result of pruning; see `secateur.prune`.

    Attributes:
        most_weights: Largest number of weights, or None.
        held_out: Rows to measure predictions on, a pair `(x, y)`, or None.
        least_accuracy: Required accuracy on these rows, or None.
        most_rmse: Largest root-mean-square error on these rows, or None.

    Example:
        >>> Budget(most_weights=1e2).most_weights
        100
    """

    most_weights: int | None = None
    held_out: Any = field(default=None, repr=False)
    least_accuracy: float | None = None
    most_rmse: float | None = None

    def __post_init__(self) -> None:
        if self.most_weights is not None:
            count = check_count(self.most_weights, "most_weights")
            object.__setattr__(self, "most_weights", count)
        accuracy, rmse = self.least_accuracy, self.most_rmse
        if accuracy is not None and rmse is not None:
            raise ValueError(
                "least_accuracy is for classification, and most_rmse for regression. Give one of "
                "them."
            )
        if accuracy is not None and not 0 < accuracy <= 1:
            raise ValueError(f"least_accuracy={accuracy}. Give a fraction above 0 and up to 1.")
        if rmse is not None and not 0 < rmse < math.inf:
            raise ValueError(f"most_rmse={rmse}. Give a positive number, in the targets' units.")
        if (self.held_out is None) != (accuracy is None and rmse is None):
            raise ValueError(
                "held_out is used with least_accuracy or most_rmse, which are measured on its "
                "rows. Give both held_out=(x, y) and one of these."
            )
        if self.held_out is not None:
            check_data(self.held_out)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is required."""
        return self.most_weights is None and self.held_out is None

    def check_model(self, likelihood: Any) -> None:
        """Raise an error for a requirement that does not apply to a likelihood's targets.

        Args:
            likelihood: The model's likelihood.
        """
        has_classes = isinstance(likelihood, CategoricalLikelihood | BernoulliLikelihood)
        if self.least_accuracy is not None and not has_classes:
            raise ValueError(
                f"least_accuracy needs classes, and a {type(likelihood).__name__} has none. Give "
                "most_rmse."
            )
        if self.most_rmse is not None and has_classes:
            raise ValueError(
                f"most_rmse needs targets that are numbers, and a {type(likelihood).__name__} has "
                "classes. Give least_accuracy."
            )

    def identify(self) -> str:
        """Return a hash of the held-out rows, for the fingerprint of a checkpoint."""
        if self.held_out is None:
            return ""
        inputs, targets = self.held_out
        arrays = jax.tree.map(lambda x: make_array(x, "inputs"), inputs, is_leaf=is_table)
        return fingerprint([arrays, make_array(targets, "targets")])

    # --- judging --------------------------------------------------------------------------------

    def grade(
        self, trainer: Trainer, state: TrainingState, evaluations: list[Evaluation]
    ) -> np.ndarray:
        """Return, for each run, a grade that rises with the requirements that a state meets.

        The number of weights counts more than predictions.
        """
        within = np.ones(trainer.runs, bool)
        if self.most_weights is not None:
            within = count_live(state) <= self.most_weights
        meets = np.ones(trainer.runs, bool)
        if self.held_out is not None:
            measures = self.measure(trainer, state, evaluations)
            meets = np.array([self.allows(measure) for measure in measures])
        return 2 * within + meets  # at most FULL_GRADE

    def allows(self, measure: float) -> bool:
        """Whether an accuracy or an error meets the requirement."""
        if self.least_accuracy is not None:
            return measure >= self.least_accuracy
        return self.most_rmse is not None and measure <= self.most_rmse

    def measure(
        self, trainer: Trainer, state: TrainingState, evaluations: list[Evaluation]
    ) -> list[float]:
        """Return by run the accuracy or the root-mean-square error on the held-out rows."""
        layout, scalings = trainer.spec.layout, trainer.scalings
        inputs, _ = self.held_out
        measures = []
        for run, evaluation in enumerate(evaluations):
            own = take_run(state, run)
            beliefs, _ = assemble(layout, own.weights, own.alive, own.prior)
            prediction = Predictive(
                trainer.model,
                layout.build_tree(beliefs, trainer.constants.certain),
                evaluation.noise,
                scalings[min(run, len(scalings) - 1)],
                inputs,
                key=own.key,
            )
            measures.append(self._measure(prediction))
        return measures

    def _measure(self, prediction: Predictive) -> float:
        targets = np.asarray(make_array(self.held_out[1], "targets"))
        return _measure(prediction, targets, self.least_accuracy is not None)

    def is_met_by(self, trained: Trained) -> bool:
        """Whether a trained model meets all requirements.

        Args:
            trained: A trained model.
        """
        return self.find_shortfall(trained) is None

    def find_shortfall(self, trained: Trained) -> str | None:
        """Return a description of the requirements that a pruned model misses, or None.

        Args:
            trained: A trained model.
        """
        parts = []
        if self.most_weights is not None and trained.live_weights > self.most_weights:
            parts.append(self._explain_weights(list(trained.rounds), trained.live_weights))
        if self.held_out is not None:
            measure = self._measure(trained.predict(self.held_out[0]))
            if not self.allows(measure):
                parts.append(self._explain_measure(measure))
        return "; ".join(parts) or None

    # --- words ----------------------------------------------------------------------------------

    def explain(self, reason: str, rounds: list[Round], weights: int, measure: float) -> str:
        """Return why pruning ended and which requirements were met, in words.

        Args:
            reason: Why it ended, without the requirements.
            rounds: Rounds of the run.
            weights: Number of weights of the result.
            measure: Its accuracy or error on the held-out rows, or nan.
        """
        parts = [reason]
        if self.most_weights is not None:
            parts.append(self._explain_weights(rounds, weights))
        if self.held_out is not None:
            parts.append(self._explain_measure(measure))
        return "; ".join(parts)

    def _explain_weights(self, rounds: list[Round], weights: int) -> str:
        most = self.most_weights
        assert most is not None
        if weights > most:
            smallest = min([weights, *(r.left for r in rounds if r.kept)])
            return (
                f"the limit of {most} weights was not reached: the smallest model that was found "
                f"has {smallest}, and this one, with the lowest free energy, has {weights}"
            )
        forced = sum(r.forced and r.kept for r in rounds)
        if not forced:
            return f"{weights} weights are within the limit of {most}"
        plural = "round" if forced == 1 else "rounds"
        return (
            f"the limit of {most} weights was reached by {forced} forced {plural}: {weights} "
            "weights are left"
        )

    def _explain_measure(self, measure: float) -> str:
        if self.least_accuracy is not None:
            name, limit = "accuracy", f"at least {self.least_accuracy:g}"
        else:
            name, limit = "root-mean-square error", f"at most {self.most_rmse:g}"
        words = f"{name} {measure:.4g} on the held-out rows"
        if self.allows(measure):
            return f"{words}, where {limit} is required"
        return f"no model meets the requirement ({limit}): {words}"


def make_budget(options: dict[str, Any]) -> Budget:
    """Return the requirements among the options of `prune`."""
    return Budget(**{f.name: options[f.name] for f in fields(Budget) if f.name in options})


def _measure(prediction: Predictive, targets: np.ndarray, is_share: bool) -> float:
    """Return the accuracy, or the root-mean-square error over rows and outputs."""
    values = prediction.mean
    if not is_share:
        if targets.shape != values.shape:
            raise ValueError(
                f"held_out has targets of shape {targets.shape}, and the model predicts shape "
                f"{values.shape}. Give targets as in the data."
            )
        return float(np.sqrt(np.mean(np.square(values - targets))))
    answers = values > 0.5 if values.shape == targets.shape else values.argmax(axis=-1)
    if answers.shape != targets.shape:
        raise ValueError(
            f"held_out has targets of shape {targets.shape}, and the model predicts classes of "
            f"shape {answers.shape}. Give targets as in the data."
        )
    return float(np.mean(answers == targets))
