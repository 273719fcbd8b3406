"""What a model says of new rows, as a table."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy import stats

from secateur.distributions import Normal
from secateur.propagation import draws
from secateur.tables import Encoding, TableError, read

__all__ = ["predict_file", "predict_rows"]

_BLOCK = 8192  # rows at a time
_SAMPLES = 100  # of a model whose inference samples


def predict_file(
    model: Any,
    path: str | os.PathLike,
    *,
    interval: float = 0.95,
    missing: str | None = None,
    encoding: str | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Predict the rows of a file, in its order; see `predict_rows`.

    Args:
        model: of a run of `secateur fit`, from `load`.
        path: of a table; its columns are found by name.
        interval: probability of the interval.
        missing: "error", "mean", or "drop", which leaves the predictions of such rows empty; by
            default as the model was made.
        encoding: of the text file.

    Returns:
        The predictions, and what a user should know, in sentences.

    Raises:
        TableError: the table is not what the model needs, or the model is not one of tables.
    """
    extra = model.extra if isinstance(model.extra, dict) else {}
    if "table" not in extra:
        raise TableError("the model was not made from a table by `secateur fit`.")
    columns = Encoding.from_json(extra["table"])
    frame = read(path, text=columns.text_columns, encoding=encoding)
    found = columns.encode(frame, missing=missing)
    if not len(found.rows):
        raise TableError(f"no row of {path} is complete. Use --missing mean to fill in values.")
    predictions = predict_rows(model, columns, found.x, interval=interval)
    predictions.index = found.rows
    return predictions.reindex(np.arange(len(frame))), found.notes


def predict_rows(
    model: Any, encoding: Encoding, x: np.ndarray, *, interval: float = 0.95
) -> pd.DataFrame:
    """Predict rows of encoded inputs.

    Numbers: for each target its mean, standard deviation and central interval, noise included. With
    mean μ and variance v of the function and q(γ) = Gamma(α, β), an observation has mean μ and
    variance v + β/(α − 1); its interval is that of a Student t with 2α degrees of freedom and
    scale² v + β/α, which is exact for v = 0.

    Classes: the most probable one, and the probability of each.

    Args:
        model: from `fit`, `prune` or `load`.
        encoding: of its inputs.
        x: of shape (rows, inputs).
        interval: probability of the interval.
    """
    if encoding.task == "classification":
        return _classes(model, encoding, x)
    mean, variance = _moments(model, x)
    scale = np.asarray(model.scaling.targets.scale, np.float64)
    shape, rate = (np.asarray(p, np.float64) for p in (model.noise.shape, model.noise.rate))
    deviation = np.sqrt(variance + scale**2 * rate / (shape - 1))
    reach = stats.t.ppf(0.5 + interval / 2, 2 * shape)
    reach = reach * np.sqrt(variance + scale**2 * rate / shape)
    columns: dict[str, np.ndarray] = {}
    for number, target in enumerate(encoding.targets):
        columns |= {
            f"{target.name}_mean": mean[:, number],
            f"{target.name}_sd": deviation[:, number],
            f"{target.name}_low": (mean - reach)[:, number],
            f"{target.name}_high": (mean + reach)[:, number],
        }
    return pd.DataFrame(columns)


def _moments(model: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the function, of shape (rows, targets)."""
    means, variances = [], []
    for block in _blocks(x):
        found = _predictions(model, block)
        if isinstance(found, Normal):
            means.append(np.asarray(found.mean, np.float64))
            variances.append(np.asarray(found.variance, np.float64))
        else:
            means.append(np.mean(found, axis=0, dtype=np.float64))
            variances.append(np.var(found, axis=0, dtype=np.float64))
    return np.concatenate(means), np.concatenate(variances)


def _predictions(model: Any, x: np.ndarray) -> Any:
    """A Normal, or samples of shape (samples, rows, outputs)."""
    if not draws(model.model.inference):
        return model.predict(x)
    keys = jax.random.split(jax.random.key(0), _SAMPLES)
    return np.stack([np.asarray(model.predict(x, key=key)) for key in keys])


def _classes(model: Any, encoding: Encoding, x: np.ndarray) -> pd.DataFrame:
    (target,) = encoding.targets
    classes = target.classes or ()
    chances = np.concatenate([_chances(model, block, len(classes)) for block in _blocks(x)])
    columns = {target.name: np.asarray(classes, object)[chances.argmax(axis=1)]}
    return pd.DataFrame(
        columns | {f"{target.name}={c}": chances[:, number] for number, c in enumerate(classes)}
    )


def _chances(model: Any, x: np.ndarray, classes: int) -> np.ndarray:
    """E[softmax(f)], of shape (rows, classes)."""
    if not draws(model.model.inference):
        labels = [np.full(len(x), label, np.int32) for label in range(classes)]
        logs = np.stack([np.asarray(model.log_density(x, y), np.float64) for y in labels], axis=1)
        chances = np.exp(logs)
        return chances / chances.sum(axis=1, keepdims=True)  # each is right to 2e-4
    samples = jax.nn.softmax(jnp.asarray(_predictions(model, x)), axis=-1)
    return np.asarray(samples.mean(axis=0), np.float64)


def _blocks(x: np.ndarray) -> list[np.ndarray]:
    return [x[start : start + _BLOCK] for start in range(0, max(1, len(x)), _BLOCK)]
