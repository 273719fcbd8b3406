"""Scores of a model on held-out rows, before and after pruning."""

from __future__ import annotations

from typing import Any

import numpy as np

from secateur.averaging import Average
from secateur.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from secateur.predictive import Predictive
from secateur.report.record_file import round_number, round_numbers, shorten_text
from secateur.trained import Trained

__all__ = ["describe_performance", "find_class_probabilities", "score_prediction"]

LEVELS = np.arange(1, 20) / 20  # nominal coverage
INTERVAL = 0.95
BINS = 10  # of predicted probability
MAX_TARGETS = 6  # shown individually
MAX_POINTS = 500  # rows whose residuals are shown
MAX_CLASSES = 20  # shown in a confusion matrix


def describe_performance(
    fitted: Trained,
    pruned: Trained,
    data: tuple[Any, Any],
    *,
    task: str,
    targets: list[dict[str, Any]],
    average: Average | None = None,
) -> dict[str, Any]:
    """Return scores for all targets together, and calibration and residuals for each.

    Args:
        fitted: The model before pruning.
        pruned: The model after pruning.
        data: Inputs and targets of held-out rows.
        task: "regression" or "classification".
        targets: Name and classes of every target.
        average: Pruned models that predict together, whose figures are "averaged"; or None.
    """
    x, y = data[0], np.asarray(data[1])
    likelihood = pruned.model.likelihood
    predictions: dict[str, Predictive] = {"before": fitted.predict(x), "after": pruned.predict(x)}
    if average is not None:
        predictions["averaged"] = average.predict(x)
    figures: dict[str, Any] = {"rows": len(y), "targets": []}
    for name, prediction in predictions.items():
        figures[name] = score_prediction(prediction, y, likelihood=likelihood)
    if task == "classification":
        _add_classes(figures, predictions, y, targets)
    elif isinstance(likelihood, GaussianLikelihood):
        _add_numbers(figures, predictions, y, targets)
    return figures


def score_prediction(
    prediction: Predictive, y: np.ndarray, *, likelihood: Likelihood
) -> dict[str, Any]:
    """Score a prediction.

    For regression: `rmse`, `mean_absolute_error`, `r_squared` and `coverage_95`, the fraction of
    targets in their central 95 % interval; with several targets, over all of them (`r_squared` is
    the mean over targets). For classification: `accuracy`, `base_rate` (the accuracy of always
    predicting the most frequent class of `y`), `coverage_95` (the fraction of rows whose class is
    in the smallest set of classes with 95 % probability) and `calibration_error`. In both cases:
    `log_likelihood`, in nats per row.

    Args:
        prediction: Prediction of the rows.
        y: True targets.
        likelihood: Likelihood of the model.
    """
    scores = {"log_likelihood": round_number(np.mean(prediction.log_density(y)))}
    if isinstance(likelihood, CategoricalLikelihood | BernoulliLikelihood):
        return scores | _score_classes(prediction, y)
    if isinstance(likelihood, GaussianLikelihood):
        own = score_targets(prediction, y)
        errors = prediction.mean.reshape(len(y), -1) - y.reshape(len(y), -1)
        parts = [target["r_squared"] for target in own]
        scores |= {
            "rmse": round_number(np.sqrt(np.square(errors).mean())),
            "mean_absolute_error": round_number(np.abs(errors).mean()),
            "r_squared": None if None in parts else round_number(np.mean(parts)),
            "coverage_95": round_number(np.mean([target["coverage_95"] for target in own])),
        }
    return scores


# --- numbers -------------------------------------------------------------------------------------


def score_targets(prediction: Predictive, y: np.ndarray) -> list[dict[str, Any]]:
    """Return `rmse`, `r_squared`, `mean_absolute_error` and `coverage_95` of every target.

    R² = 1 − Σ (y − mean)² / Σ (y − ȳ)², with ȳ the mean of these rows; it is None if all targets
    are equal.

    Args:
        prediction: Prediction of the rows.
        y: True targets, of shape (rows, targets).
    """
    columns = y.astype(np.float64).reshape(len(y), -1)
    errors = prediction.mean.reshape(columns.shape) - columns
    levels = _find_levels(prediction, y)
    scores = []
    for own, error, level in zip(columns.T, errors.T, levels.T, strict=True):
        square, variance = np.square(error).mean(), own.var()
        scores.append(
            {
                "rmse": round_number(np.sqrt(square)),
                "r_squared": round_number(1 - square / variance) if variance else None,
                "mean_absolute_error": round_number(np.abs(error).mean()),
                "coverage_95": round_number((level <= INTERVAL).mean()),
            }
        )
    return scores


def _find_levels(prediction: Predictive, y: np.ndarray) -> np.ndarray:
    """Return the level of the smallest central interval that holds each observation."""
    return np.abs(2 * prediction.cdf(y).reshape(len(y), -1) - 1)


def _add_numbers(
    figures: dict[str, Any],
    predictions: dict[str, Predictive],
    y: np.ndarray,
    targets: list[dict[str, Any]],
) -> None:
    scores = {name: score_targets(prediction, y) for name, prediction in predictions.items()}
    levels = {name: _find_levels(prediction, y) for name, prediction in predictions.items()}
    points = _make_points(predictions["after"], y.astype(np.float64).reshape(len(y), -1))
    for index, target in enumerate(targets[:MAX_TARGETS]):
        entry: dict[str, Any] = {
            "name": shorten_text(target["name"]),
            "levels": round_numbers(LEVELS),
        }
        for name in predictions:
            covered = levels[name][:, index, None] <= LEVELS
            coverage = {"coverage": round_numbers(covered.mean(axis=0))}
            entry[name] = scores[name][index] | coverage
        entry["points"] = {
            name: round_numbers(values if values.ndim == 1 else values[:, index])
            for name, values in points.items()
        }
        figures["targets"].append(entry)


def _make_points(prediction: Predictive, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return the rows to show individually: all of them, or an evenly spaced subset."""
    rows = len(y)
    shown = np.unique(np.linspace(0, rows - 1, min(rows, MAX_POINTS)).round().astype(int))
    low, high = prediction.interval(INTERVAL)
    columns = {"mean": prediction.mean, "deviation": prediction.standard_deviation, "low": low,
               "high": high}  # fmt: skip
    return {
        "row": shown,
        "observed": y[shown],
        **{name: values.reshape(rows, -1)[shown] for name, values in columns.items()},
    }


# --- classes -------------------------------------------------------------------------------------


def find_class_probabilities(prediction: Predictive) -> np.ndarray:
    """Return the probability of every class, shape (rows, classes), also for binary targets."""
    probabilities = prediction.probabilities
    if probabilities.ndim == 2 and probabilities.shape[1] > 1:
        return probabilities
    is_one = probabilities.reshape(len(prediction))
    return np.stack([1 - is_one, is_one], axis=1)


def _score_classes(prediction: Predictive, y: np.ndarray) -> dict[str, Any]:
    labels = y.reshape(-1).astype(int)
    probabilities = find_class_probabilities(prediction)
    is_right = probabilities.argmax(axis=1) == labels
    calibration_error = _find_calibration_error(probabilities.max(axis=1), is_right)
    return {
        "accuracy": round_number(is_right.mean()),
        "base_rate": round_number(np.bincount(labels).max() / len(labels)),
        "coverage_95": round_number(find_likely_sets(probabilities, labels, INTERVAL).mean()),
        "calibration_error": round_number(calibration_error),
    }


def _add_classes(
    figures: dict[str, Any],
    predictions: dict[str, Predictive],
    y: np.ndarray,
    targets: list[dict[str, Any]],
) -> None:
    classes = [shorten_text(c) for c in targets[0]["classes"]]
    labels = y.reshape(-1).astype(int)
    entry: dict[str, Any] = {"name": shorten_text(targets[0]["name"]), "classes": classes}
    for name, prediction in predictions.items():
        probabilities = find_class_probabilities(prediction)
        choices, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
        table = np.zeros((len(classes), len(classes)), int)
        np.add.at(table, (labels, choices), 1)
        entry[name] = {
            "bins": _make_bins(confidence, choices == labels),
            "confusion": table.tolist() if len(classes) <= MAX_CLASSES else None,
        }
    figures["targets"].append(entry)


def _find_bins(confidence: np.ndarray) -> np.ndarray:
    return np.minimum((confidence * BINS).astype(int), BINS - 1)


def _make_bins(confidence: np.ndarray, is_right: np.ndarray) -> list[dict[str, Any]]:
    """Return, by bin of confidence, the mean confidence and the accuracy."""
    bins = _find_bins(confidence)
    return [
        {
            "rows": int((bins == b).sum()),
            "confidence": round_number(confidence[bins == b].mean()),
            "right": round_number(is_right[bins == b].mean()),
        }
        for b in range(BINS)
        if (bins == b).any()
    ]


def _find_calibration_error(confidence: np.ndarray, is_right: np.ndarray) -> float:
    """Return |confidence − accuracy| by bin, averaged over rows."""
    bins = _find_bins(confidence)
    gaps = [abs((confidence - is_right)[bins == b].sum()) for b in range(BINS)]
    return float(np.sum(gaps) / len(is_right))


def find_likely_sets(probabilities: np.ndarray, labels: np.ndarray, level: float) -> np.ndarray:
    """Whether each label is in the smallest set of classes with at least this probability.

    Args:
        probabilities: Class probabilities of shape (rows, classes).
        labels: Class indices of shape (rows,).
        level: Minimum probability of the set.
    """
    own = np.take_along_axis(probabilities, labels[:, None], axis=1)
    likelier = np.where(probabilities > own, probabilities, 0).sum(axis=1)
    return likelier < level
