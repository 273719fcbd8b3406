"""Comparison of an export with `Trained.predict` on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.exports.sheet import Difference
from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood
from secateur.propagation import UnsupportedOperation
from secateur.trained import Trained

__all__ = ["choose_rows", "compare_with_predict", "read_scores"]

_MOST_ROWS = 10_000
_MOST_PRODUCTS = 20_000_000  # in total over all rows; takes NumPy a few seconds


def choose_rows(rows: np.ndarray, products: int) -> np.ndarray:
    """Return rows to compare: all, or a subset, evenly spaced, that is quick to compute.

    Args:
        rows: Rows.
        products: Number of multiplications by weights per row.
    """
    limit = min(_MOST_ROWS, max(16, _MOST_PRODUCTS // max(1, products)))
    if len(rows) <= limit:
        return rows
    return rows[np.linspace(0, len(rows) - 1, limit).astype(int)]


def read_scores(trained: Trained, scores: np.ndarray) -> np.ndarray:
    """Convert a network's outputs to predictions, as in `Predictive.mean`.

    Args:
        trained: The model.
        scores: Outputs in the units of the data; for classes, before the softmax.
    """
    likelihood, units = trained.model.likelihood, trained.scaling.targets
    if isinstance(likelihood, GaussianLikelihood) or not hasattr(likelihood, "predictive_moments"):
        return scores
    standard = scores if units is None else units.to_standard(scores)
    moments = likelihood.predictive_moments(trained.noise, jnp.asarray(standard, jnp.float32))
    mean = moments.mean if units is None else units.to_data(moments.mean)
    return np.asarray(mean, np.float64)


def compare_with_predict(
    trained: Trained,
    rows: np.ndarray,
    compute: Callable[[np.ndarray], np.ndarray],
    *,
    is_drawn: bool,
    are_scores: bool = False,
    names: Sequence[str] = (),
) -> tuple[Difference, ...]:
    """Return the differences between an export's predictions and those of `Trained.predict`.

    Args:
        trained: The model.
        rows: Rows to predict.
        compute: Function from rows to the export's predictions: means in the units of the data, or
            probabilities.
        is_drawn: Whether the rows were drawn at random.
        are_scores: Whether `compute` returns outputs of the network instead; see `read_scores`.
        names: Names of the outputs, or ().

    Returns:
        A `Difference` for each output, or one for all classes together; empty if the model cannot
        predict these rows.
    """
    try:
        prediction = trained.predict(rows)
        has_moments = hasattr(trained.model.likelihood, "predictive_moments")
        truth = prediction.mean if has_moments else prediction.outputs.mean
    except UnsupportedOperation:  # of its moments
        return ()
    outputs = np.asarray(compute(rows), np.float64)
    if outputs.ndim > truth.ndim:  # the export predicts after every frame, the model after the last
        outputs = outputs[:, -1]
    outputs = outputs.reshape(truth.shape)
    if are_scores:
        outputs = read_scores(trained, outputs)
    gaps = outputs - truth
    columns = gaps.reshape(-1, truth.shape[-1])
    facts: dict[str, Any] = {"rows": len(rows), "is_drawn": is_drawn}
    likelihood = trained.model.likelihood
    if isinstance(likelihood, CategoricalLikelihood):
        changed = int(np.sum(outputs.argmax(-1) != truth.argmax(-1)))
        return (Difference(None, *_measure(columns), changed, **facts),)
    changes = [None] * columns.shape[1]
    if isinstance(likelihood, BernoulliLikelihood):
        sides = (outputs > 0.5) != (truth > 0.5)
        changes = sides.reshape(columns.shape).sum(axis=0).tolist()
    labels = names if len(names) == columns.shape[1] else [None] * columns.shape[1]
    return tuple(
        Difference(name, *_measure(column), changed, **facts)
        for name, column, changed in zip(labels, columns.T, changes, strict=True)
    )


def _measure(gaps: np.ndarray) -> tuple[float, float]:
    return float(np.max(np.abs(gaps), initial=0.0)), float(np.sqrt(np.mean(np.square(gaps))))
