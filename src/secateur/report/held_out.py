"""How good the model is on rows it has not seen, before and after pruning."""

from __future__ import annotations

from typing import Any

import numpy as np

from secateur.fitting.result import Fitted
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


# --- numbers ---------------------------------------------------------------------------------------


def _judge_numbers(found, models, x, y, targets, seed) -> None:
    predictions = {name: predict_numbers(m, x, y, seed) for name, m in models.items()}
    if any(p is None for p in predictions.values()):
        return
    y = np.asarray(y, np.float64).reshape(len(y), -1)
    for name, p in predictions.items():
        errors = p.mean - y
        baseline = np.square(y - y.mean(axis=0)).mean()
        covered = _covered(p.below)
        found[name] |= {
            "rmse": number(np.sqrt(np.square(errors).mean())),
            "mean_absolute_error": number(np.abs(errors).mean()),
            "r_squared": number(1 - np.square(errors).mean() / baseline) if baseline else None,
            "coverage_95": number((covered <= 0.95).mean()),
        }
    shown = _some(len(y))
    for index, target in enumerate(targets[:MOST_TARGETS]):
        entry: dict[str, Any] = {"name": text(target["name"]), "levels": numbers(LEVELS)}
        for name, p in predictions.items():
            covered = _covered(p.below[:, index])
            entry[name] = {
                "rmse": number(np.sqrt(np.square(p.mean[:, index] - y[:, index]).mean())),
                "coverage": numbers((covered[:, None] <= LEVELS).mean(axis=0)),
            }
        entry["points"] = _points(predictions["after"], y, index, shown)
        found["targets"].append(entry)


def _covered(below: np.ndarray) -> np.ndarray:
    """The level of the smallest central interval that holds each observation."""
    return np.abs(2 * below - 1)


def _points(p: Numbers, y: np.ndarray, index: int, shown: np.ndarray) -> dict[str, Any]:
    columns = {"row": shown, "observed": y[shown, index], "mean": p.mean[shown, index],
               "deviation": p.deviation[shown, index]}  # fmt: skip
    return {name: numbers(values, 5) for name, values in columns.items()}


def _some(rows: int) -> np.ndarray:
    """Rows to show, all or evenly spread."""
    return np.unique(np.linspace(0, rows - 1, min(rows, MOST_POINTS)).round().astype(int))


# --- classes ---------------------------------------------------------------------------------------


def _judge_classes(found, models, x, y, targets, seed) -> None:
    chances = {name: class_probabilities(m, x, y, seed) for name, m in models.items()}
    if any(p is None for p in chances.values()):
        return
    labels = np.asarray(y).reshape(len(y), -1).astype(int)
    most_frequent = [np.bincount(column).max() / len(labels) for column in labels.T]
    for name, p in chances.items():
        guess = p.argmax(axis=-1)
        found[name] |= {
            "accuracy": number((guess == labels).mean()),
            "most_frequent": number(np.mean(most_frequent)),
            "calibration_error": number(_calibration_error(p, labels)),
        }
    for index, target in enumerate(targets[:MOST_TARGETS]):
        count = chances["after"].shape[-1]
        classes = [text(c) for c in target.get("classes") or range(count)]
        entry: dict[str, Any] = {"name": text(target["name"]), "classes": classes}
        for name, p in chances.items():
            own, right = p[:, index], labels[:, index]
            guess = own.argmax(axis=-1)
            table = np.zeros((count, count), int)
            np.add.at(table, (right, guess), 1)
            entry[name] = {
                "accuracy": number((guess == right).mean()),
                "bins": _reliability(own.max(axis=-1), guess == right),
                "confusion": table.tolist() if count <= MOST_CLASSES else None,
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


def _calibration_error(chances: np.ndarray, labels: np.ndarray) -> float:
    """|sure − right|, averaged over rows by bin."""
    confidence, right = chances.max(axis=-1).ravel(), (chances.argmax(-1) == labels).ravel()
    which = _bin_of(confidence)
    gaps = [abs((confidence - right)[which == b].sum()) for b in range(BINS)]
    return float(np.sum(gaps) / len(right))
