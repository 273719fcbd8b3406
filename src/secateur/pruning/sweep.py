"""Free energy against pruning rate, without retraining: figures 2 and 3 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.fitting.program import State
from secateur.fitting.result import Fitted
from secateur.fitting.trainer import Trainer
from secateur.pruning.resuming import as_source, resume
from secateur.pruning.scoring import by_run, cut, weight_scores
from secateur.reduction import CRITERIA

__all__ = ["Curve", "Sweep", "sweep"]


@dataclass(frozen=True, eq=False)
class Curve:
    """What becomes of a model as ever more weights are removed in the order of one criterion.

    Attributes:
        criterion: that orders the weights.
        rates: share of the live weights removed.
        estimated: free energy that Bayesian model reduction expects, nats.
        free_energy: the actual one, nats.
        complexity: its first part.
        accuracy: its second part.
        standard_error: of the actual free energy, where the algorithm samples.
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
        """Return the index of the least actual free energy."""
        return int(np.nanargmin(self.free_energy))


@dataclass(frozen=True, eq=False)
class Sweep:
    """Curves by criterion, and where Bayesian model reduction stops by itself.

    Attributes:
        curves: by criterion.
        stop_rate: share of the live weights with delta_f ≤ 0.
        stop_estimated: free energy expected there, nats.
        stop_free_energy: the actual one, nats.
    """

    curves: dict[str, Curve]
    stop_rate: float
    stop_estimated: float
    stop_free_energy: float


def sweep(
    fitted: Fitted,
    data: Any,
    *,
    criteria: Sequence[str] = CRITERIA,
    rates: Any = None,
    size: int | None = None,
) -> Sweep:
    """Remove ever more weights, without retraining, and look at the free energy.

    Args:
        fitted: from `fit`.
        data: as given to `fit`.
        criteria: of "bmr", "snr", "spr" and "magnitude".
        rates: shares of the live weights to remove; by default 0, 0.01, … 0.99.
        size: number of rows, for an iterator.

    Returns:
        A `Sweep`.

    Example:
        >>> import jax
        >>> from secateur import BayesianModel, fit
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((4, 1)))
        >>> fitted = fit(model, (x, x[:, :1]), key=jax.random.key(0), progress=False)
        >>> found = sweep(fitted, (x, x[:, :1]), criteria=["bmr"], rates=[0, 0.25, 0.5, 0.75])
        >>> found.stop_rate, found.curves["bmr"].best
        (0.75, 3)

    Reference: figures 2 and 3 of the paper.
    """
    unknown = [c for c in criteria if c not in CRITERIA]
    if unknown:
        raise ValueError(f"criteria {unknown} are unknown. Supported: {', '.join(CRITERIA)}.")
    shares = np.arange(100) / 100 if rates is None else np.asarray(rates, float)
    if shares.ndim != 1 or np.any((shares < 0) | (shares > 1)):
        raise ValueError("rates must be a list of shares between 0 and 1.")
    trainer, state = resume([fitted], as_source(data, fitted, size))
    curves = {c: curve(trainer, state, c, shares) for c in criteria}
    worthless = np.sum(by_run(weight_scores(state, "bmr", many=False), False) <= 0)
    rate = worthless / max(1, fitted.live_weights)
    stop = curve(trainer, state, "bmr", np.array([rate]))
    return Sweep(curves, float(rate), float(stop.estimated[0]), float(stop.free_energy[0]))


def curve(trainer: Trainer, state: State, criterion: str, rates: np.ndarray) -> Curve:
    """Judge one run at several pruning rates."""
    scores = weight_scores(state, criterion, many=False)
    delta_f = weight_scores(state, "bmr", many=False)
    ordered = np.sort(by_run(scores, False)[0])
    live = int(np.sum(ordered < np.inf))
    start = float(trainer.evaluate(state)[0].free_energy.total)
    rows = []
    for rate in rates:
        count = round(float(rate) * live)
        limit = ordered[count - 1] if count else -np.inf
        change = cut(state, scores, delta_f, jnp.asarray(limit, scores[0].dtype), many=False)
        (found,) = trainer.evaluate(change.state)
        parts = found.free_energy
        rows.append(
            (
                start + float(change.estimated),
                *map(float, (parts.total, parts.complexity, parts.accuracy, found.standard_error)),
            )
        )
    return Curve(criterion, rates, *np.array(rows).T)
