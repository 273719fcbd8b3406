"""Free energy against pruning rate, without retraining: figures 2 and 3 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secateur.pruning.conditioning import order_weights
from secateur.pruning.moves import (
    Change,
    Move,
    count_live,
    cut_below,
    cut_lowest,
    join_by_run,
    rank_weights,
    score_weights,
)
from secateur.reduction import CRITERIA
from secateur.trained import Trained, open_data, resume
from secateur.training.program import TrainingState
from secateur.training.trainer import Trainer

__all__ = ["Curve", "Sweep", "sweep"]


@dataclass(frozen=True, eq=False)
class Curve:
    """The free energy as more and more weights are removed in the order of one criterion.

    Attributes:
        criterion: Criterion that orders the weights.
        rates: Shares of the live weights removed.
        estimated: Free energy that Bayesian model reduction expects, in nats.
        free_energy: Actual free energy, in nats.
        complexity: Its first part.
        accuracy: Its second part.
        standard_error: Standard error of the actual free energy, where the algorithm samples.
    """

    criterion: str
    rates: np.ndarray
    estimated: np.ndarray
    free_energy: np.ndarray
    complexity: np.ndarray
    accuracy: np.ndarray
    standard_error: np.ndarray

    @property
    def best(self) -> int:
        """Return the index of the lowest actual free energy."""
        return int(np.nanargmin(self.free_energy))


@dataclass(frozen=True, eq=False)
class Sweep:
    """Curves by criterion, and where Bayesian model reduction stops by itself.

    Attributes:
        curves: Curves by criterion.
        stop_rate: Share of the live weights with delta_f ≤ 0.
        stop_estimated: Free energy expected there, in nats.
        stop_free_energy: Actual free energy there, in nats.
    """

    curves: dict[str, Curve]
    stop_rate: float
    stop_estimated: float
    stop_free_energy: float


def sweep(
    trained: Trained,
    data: Any,
    *,
    criteria: Sequence[str] = CRITERIA,
    rates: Any = None,
    size: int | None = None,
) -> Sweep:
    """Remove more and more weights, without retraining, and record the free energy.

    Args:
        trained: From `fit`, `prune`, `update` or `load`.
        data: Data as given to `fit`.
        criteria: Any of "bmr", "snr", "spr" and "magnitude".
        rates: Shares of the live weights to remove. Defaults to 0, 0.01, … 0.99.
        size: Number of rows, for an iterator.

    Returns:
        A `Sweep`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from secateur import BayesianModel, fit
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((4, 1)))
        >>> fitted = fit(model, (x, x[:, :1]), key=jax.random.key(0), progress=False)
        >>> result = sweep(fitted, (x, x[:, :1]), criteria=["bmr"], rates=[0, 0.25, 0.5, 0.75])
        >>> result.stop_rate, result.curves["bmr"].best
        (0.75, 3)

    Reference: figures 2 and 3 of the paper.
    """
    unknown = [c for c in criteria if c not in CRITERIA]
    if unknown:
        raise ValueError(f"criteria {unknown} are unknown. Supported: {', '.join(CRITERIA)}.")
    shares = np.arange(100) / 100 if rates is None else np.asarray(rates, float)
    if shares.ndim != 1 or np.any((shares < 0) | (shares > 1)):
        raise ValueError("rates must be a list of shares between 0 and 1.")
    trainer, state = resume([trained], open_data(data, trained, size))
    curves = {c: compute_curve(trainer, state, c, shares) for c in criteria}
    candidates = np.sum(join_by_run(order_weights(state, score_weights(state, "bmr"))) <= 0)
    rate = candidates / max(1, trained.live_weights)
    stop = compute_curve(trainer, state, "bmr", np.array([rate]))
    return Sweep(curves, float(rate), float(stop.estimated[0]), float(stop.free_energy[0]))


def compute_curve(
    trainer: Trainer, state: TrainingState, criterion: str, rates: np.ndarray
) -> Curve:
    """Evaluate a single run at several pruning rates."""
    scores, delta_f = rank_weights(state, criterion), score_weights(state, "bmr")
    ordered = np.sort(join_by_run(scores)[0])
    live = int(np.sum(ordered < np.inf))
    start = float(trainer.evaluate(state)[0].free_energy.total)
    rows = []
    for rate in rates:
        count = round(float(rate) * live)
        limit = ordered[count - 1] if count else -np.inf
        change = cut_below(state, scores, delta_f, np.array([limit]))
        (evaluation,) = trainer.evaluate(change.state)
        parts = evaluation.free_energy
        values = (parts.total, parts.complexity, parts.accuracy, evaluation.standard_error)
        rows.append((start + float(change.estimated[0]), *map(float, values)))
    return Curve(criterion, rates, *np.array(rows).T)


def make_swept_cut(trainer: Trainer, criterion: str) -> Move:
    """Return the move that cuts the fraction of the lowest weights that a sweep finds best."""

    def cut_best_share(state: TrainingState, share: np.ndarray) -> Change:
        curve = compute_curve(trainer, state, criterion, np.arange(100) / 100)
        count = np.round(curve.rates[curve.best] * count_live(state))
        return cut_lowest(state, criterion, np.ceil(share * count).astype(int))

    return cut_best_share
