"""How good the model is on rows it has not seen, before and after pruning."""

from __future__ import annotations

from typing import Any

import numpy as np

from secateur.fitting.result import Fitted
from secateur.likelihoods import GaussianLikelihood
from secateur.report.plain import number, numbers, text
from secateur.report.predicting import (
    Numbers,
    class_probabilities,
    log_densities,
    predict_numbers,
)

__all__ = ["describe_held_out"]

LEVELS = np.arange(1, 20) / 20  # nominal coverage
BINS = 10  # of predicted probability
MOST_TARGETS = 6  # that are shown one by one
MOST_POINTS = 500  # rows whose residuals are shown
MOST_CLASSES = 20  # that a table of confusions shows


def describe_held_out(
    fitted: Fitted, pruned: Fitted, data: tuple[Any, Any], task: str, targets: list, seed: int
) -> dict[str, Any]:
    """Return figures for all targets together, and calibration and residuals for each."""
    x, y = data[0], np.asarray(data[1])
    models = {"before": fitted, "after": pruned}
    found: dict[str, Any] = {"rows": len(y), "targets": []}
    for name, model in models.items():
        density = log_densities(model, x, y, seed)
        found[name] = {"log_likelihood": number(np.mean(density))}
    judge = _judge_classes if task == "classification" else _judge_numbers
    judge(found, models, x, y, targets, seed)
    return found


# --- numbers -------------------------------------------------------------------------------------


def _judge_numbers(found, models, x, y, targets, seed) -> None:
    if not all(isinstance(m.model.likelihood, GaussianLikelihood) for m in models.values()):
        return
    predictions = {name: predict_numbers(m, x, y, seed) for name, m in models.items()}
    y = np.asarray(y, np.float64).reshape(len(y), -1)
    for name, p in predictions.items():
        errors = p.mean - y
        baseline = np.square(y - y.mean(axis=0)).mean()
        found[name] |= {
            "rmse": number(np.sqrt(np.square(errors).mean())),
            "mean_absolute_error": number(np.abs(errors).mean()),
            "r_squared": number(1 - np.square(errors).mean() / baseline) if baseline else None,
            "coverage_95": number((p.covered_by <= 0.95).mean()),
        }
    shown = _some(len(y))
    for index, target in enumerate(targets[:MOST_TARGETS]):
        entry: dict[str, Any] = {"name": text(target["name"]), "levels": numbers(LEVELS)}
        for name, p in predictions.items():
            covered = p.covered_by[:, index]
            entry[name] = {
                "rmse": number(np.sqrt(np.square(p.mean[:, index] - y[:, index]).mean())),
                "coverage": numbers((covered[:, None] <= LEVELS).mean(axis=0)),
            }
        entry["points"] = _points(predictions["after"], y, index, shown)
        found["targets"].append(entry)


def _points(p: Numbers, y: np.ndarray, index: int, shown: np.ndarray) -> dict[str, Any]:
    columns = {"row": shown, "observed": y[shown, index], "mean": p.mean[shown, index],
               "deviation": p.deviation[shown, index]}  # fmt: skip
    return {name: numbers(values, 5) for name, values in columns.items()}


def _some(rows: int) -> np.ndarray:
    """Rows to show, all or evenly spread."""
    return np.unique(np.linspace(0, rows - 1, min(rows, MOST_POINTS)).round().astype(int))


# --- classes -------------------------------------------------------------------------------------


def _judge_classes(found, models, x, y, targets, seed) -> None:
    classes = [text(c) for c in targets[0]["classes"]]
    labels = y.reshape(-1).astype(int)
    entry: dict[str, Any] = {"name": text(targets[0]["name"]), "classes": classes}
    for name, model in models.items():
        chances = class_probabilities(model, x, y, len(classes), seed)
        guess, sure = chances.argmax(axis=1), chances.max(axis=1)
        right = guess == labels
        found[name] |= {
            "accuracy": number(right.mean()),
            "most_frequent": number(np.bincount(labels).max() / len(labels)),
            "coverage_95": number(_in_likely_set(chances, labels, 0.95).mean()),
            "calibration_error": number(_calibration_error(sure, right)),
        }
        table = np.zeros((len(classes), len(classes)), int)
        np.add.at(table, (labels, guess), 1)
        entry[name] = {
            "bins": _reliability(sure, right),
            "confusion": table.tolist() if len(classes) <= MOST_CLASSES else None,
        }
    found["targets"].append(entry)


def _bin_of(confidence: np.ndarray) -> np.ndarray:
    return np.minimum((confidence * BINS).astype(int), BINS - 1)


def _reliability(confidence: np.ndarray, right: np.ndarray) -> list[dict[str, Any]]:
    """By bin of confidence: how sure the model was, and how often it was right."""
    which = _bin_of(confidence)
    return [
        {
            "rows": int((which == b).sum()),
            "confidence": number(confidence[which == b].mean()),
            "right": number(right[which == b].mean()),
        }
        for b in range(BINS)
        if (which == b).any()
    ]


def _calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """|sure − right|, averaged over rows by bin."""
    which = _bin_of(confidence)
    gaps = [abs((confidence - right)[which == b].sum()) for b in range(BINS)]
    return float(np.sum(gaps) / len(right))


def _in_likely_set(chances: np.ndarray, labels: np.ndarray, level: float) -> np.ndarray:
    """Whether each label is in the smallest set of classes of at least this probability."""
    own = np.take_along_axis(chances, labels[:, None], axis=1)
    likelier = np.where(chances > own, chances, 0).sum(axis=1)
    return likelier < level
