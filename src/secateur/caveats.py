"""Warnings about a trained model that explains its targets poorly, as sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from secateur.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from secateur.trained import Trained

__all__ = ["CaveatWarning", "find_caveats"]

# Condition number of standardised inputs from which on independent beliefs about the weights cannot
# represent the posterior.
_LARGE_CONDITION = 100.0
# Largest numbers of rows and columns for which ridge regression is tried: a few hundredths of a
# second.
_MAX_ROWS, _MAX_COLUMNS = 5_000, 500


_NOT_LEVEL = (
    "the free energy had not levelled off when training ended, so pruning may have cut weights "
    "that would have been useful. Train for longer, or with another learning rate"
)


class CaveatWarning(UserWarning):
    """A trained model explains its targets poorly; the message says why."""


def find_caveats(trained: Trained, data: tuple) -> list[str]:
    """Return what is wrong with a model on the rows that it was trained on.

    Args:
        trained: A trained model, usually after pruning.
        data: Inputs of shape (rows, inputs), targets and, where rows have them, the weights that it
            was trained on.

    Returns:
        A sentence each: that its training was not finished, that it does not depend on its inputs,
        that it is not better than a constant, or that its inputs are collinear and ridge regression
        does better. Empty for a model that has none of these problems.

    Example:
        >>> import jax, warnings, secateur as sc
        >>> x = np.random.default_rng(0).normal(size=(40, 2))
        >>> y = np.random.default_rng(1).normal(size=(40, 1))
        >>> network = sc.networks.Dense(2, hidden=())
        >>> model = sc.BayesianModel(network, network.init(jax.random.key(0)))
        >>> fitted = sc.fit(model, (x, y), key=jax.random.key(1), progress=False)
        >>> with warnings.catch_warnings(action="ignore"):  # every weight is removed
        ...     pruned = sc.prune(fitted, (x, y), key=jax.random.key(2), progress=False)
        >>> find_caveats(pruned, (x, y))[0][:41]
        'no input is left: the model is a constant'
    """
    x, y = data[0], np.asarray(data[1])
    weights = data[2] if len(data) > 2 else None
    prediction = trained.predict(x)
    outputs = np.asarray(prediction.outputs.mean)
    caveats = [] if trained.is_level else [_NOT_LEVEL]
    if np.all(outputs == outputs[:1]):
        return [
            *caveats,
            "no input is left: the model is a constant. Either the inputs do not explain the "
            "target, or there are too few rows to show that they do",
        ]
    counts = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    baseline = _find_constant_density(trained.model.likelihood, y, counts)
    achieved = float(np.average(prediction.log_density(y), weights=counts))
    if baseline is not None and achieved <= baseline:
        caveats.append(
            "the model is not better than a constant: its log-likelihood on the training rows is "
            f"{achieved:.3f} nats per row, that of a constant {baseline:.3f}"
        )
    is_gaussian = isinstance(trained.model.likelihood, GaussianLikelihood)
    # (The formula for the leave-one-out error does not apply to weighted rows.)
    if is_gaussian and np.ndim(x) == 2 and y.ndim == 2 and weights is None:
        caveats += _compare_with_ridge(np.asarray(x, np.float64), y, np.asarray(prediction.mean))
    return caveats


def _find_constant_density(likelihood: Any, y: np.ndarray, counts: np.ndarray) -> float | None:
    """Return the log-likelihood per row of the best constant; None for other likelihoods."""
    from scipy.special import gammaln, xlogy

    if isinstance(likelihood, CategoricalLikelihood | BernoulliLikelihood):
        columns = y.reshape(len(y), -1)
        numbers = [np.unique(c, return_inverse=True)[1] for c in columns.T]
        shares = [np.bincount(n, counts) / counts.sum() for n in numbers]
        return float(sum(np.sum(xlogy(s, s)) for s in shares))
    if isinstance(likelihood, GaussianLikelihood) and likelihood.precision is None:
        values = y.reshape(len(y), -1).astype(np.float64)
        mean = np.average(values, axis=0, weights=counts)
        variance = np.average(np.square(values - mean), axis=0, weights=counts)
        return float(-0.5 * np.sum(np.log(2 * np.pi * np.e * variance)))
    if isinstance(likelihood, PoissonLikelihood):
        targets = y.reshape(len(y), -1)
        rates = np.average(targets, axis=0, weights=counts)
        densities = xlogy(targets, rates) - rates - gammaln(targets + 1.0)
        return float(np.average(np.sum(densities, axis=1), weights=counts))
    return None


def _compare_with_ridge(x: np.ndarray, y: np.ndarray, mean: np.ndarray) -> list[str]:
    """Compare with ridge regression where inputs are nearly collinear.

    The model's error on the rows it was trained on is optimistic, the leave-one-out error of ridge
    regression is not: where even the first is larger, something is wrong.
    """
    from sklearn.linear_model import RidgeCV

    deviation = x.std(axis=0)
    x = (x - x.mean(axis=0))[:, deviation > 0] / deviation[deviation > 0]
    if not x.shape[1] or len(x) > _MAX_ROWS or x.shape[1] > _MAX_COLUMNS:
        return []
    singular = np.linalg.svd(x, compute_uv=False)
    smallest = singular[-1] if len(x) > x.shape[1] else 0.0
    condition = singular[0] / smallest if smallest > 0 else np.inf
    if condition < _LARGE_CONDITION:
        return []
    y = np.asarray(y, np.float64)
    scale = np.where(y.std(axis=0) > 0, y.std(axis=0), 1)
    target = (y - y.mean(axis=0)) / scale
    ridge = RidgeCV(np.logspace(-6, 3, 28)).fit(x, target)
    ridge_error = np.sqrt(-ridge.best_score_) if np.ndim(ridge.best_score_) == 0 else np.nan
    own_error = np.sqrt(np.mean(np.square((mean - y) / scale)))
    if not own_error >= ridge_error:
        return []
    return [
        f"the inputs are nearly collinear (condition number {condition:.0f}), and the model's "
        f"error on its training rows, {own_error:.3g} standard deviations of the target, is not "
        f"below the leave-one-out error of ridge regression, {ridge_error:.3g}. Principal "
        "components of the inputs, or fewer of them, would serve better"
    ]
