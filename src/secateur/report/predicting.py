"""What a model says of rows it has not seen, as plain arrays, whatever its inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import ndtr

from secateur.distributions import Normal
from secateur.fitting.result import Fitted
from secateur.propagation import draws

__all__ = ["Numbers", "class_probabilities", "log_densities", "predict_numbers"]

_BLOCK = 8192  # rows at a time: quadrature keeps many numbers for each
# Nodes over ln γ, in deviations of its density: the integrand is smooth, so that few are exact.
_NODES = np.linspace(-9, 9, 61)


class Numbers(NamedTuple):
    """Predictions of numbers, in the data's own units, of shape (rows, targets).

    Attributes:
        mean: of the prediction.
        deviation: of an observation, noise included.
        below: the probability that an observation is at most what it turned out to be.
    """

    mean: np.ndarray
    deviation: np.ndarray
    below: np.ndarray

    @property
    def covered_by(self) -> np.ndarray:
        """Return the level of the smallest central interval that holds each observation."""
        return np.abs(2 * self.below - 1)


def log_densities(fitted: Fitted, x: Any, y: Any, seed: int) -> np.ndarray:
    """Return the predictive log-density of every row, in nats."""
    key = jax.random.key(seed) if draws(fitted.model.inference) else None
    return _by_block(lambda x, y: fitted.log_density(x, y, key=key), x, y)


def predict_numbers(fitted: Fitted, x: Any, y: np.ndarray, seed: int) -> Numbers:
    """Predict targets of a model with a Gaussian likelihood.

    The noise is integrated out: an observation is N(μ, v + 1/γ) with γ ~ q(γ).
    """
    noise, weights = _noise_variances(fitted)

    def block(x: Any, y: Any) -> np.ndarray:
        y = np.reshape(np.asarray(y, np.float64), (len(y), -1))
        below, means, variances = np.zeros_like(y), [], []
        for prediction in _predictions(fitted, x, seed):
            mean, variance = _moments(prediction, y.shape)
            for inverse, weight in zip(noise, weights, strict=True):
                below += weight * ndtr((y - mean) / np.sqrt(variance + inverse))
            means.append(mean)
            variances.append(variance + np.sum(weights * noise, axis=0))
        total = np.mean(variances, axis=0) + np.var(means, axis=0)
        return np.stack([np.mean(means, axis=0), np.sqrt(total), below / len(means)], axis=1)

    found = _by_block(block, x, y)
    return Numbers(found[:, 0], found[:, 1], found[:, 2])


def class_probabilities(
    fitted: Fitted, x: Any, y: np.ndarray, classes: int, seed: int
) -> np.ndarray:
    """Return the probability of every class, of shape (rows, classes)."""
    # By the program that log-densities need anyway: asked of each class in turn.
    chances = [np.exp(log_densities(fitted, x, np.full_like(y, c), seed)) for c in range(classes)]
    found = np.stack(chances, axis=1).astype(np.float64)
    return found / found.sum(axis=1, keepdims=True)  # the quadrature is good to 2e-4


def _predictions(fitted: Fitted, x: Any, seed: int) -> Iterator[Normal | jax.Array]:
    """The one prediction by moments, or as many samples as the recipe says."""
    if not draws(fitted.model.inference):
        yield fitted.predict(x)
        return
    for key in jax.random.split(jax.random.key(seed), fitted.continuation.recipe.samples):
        yield fitted.predict(x, key=key)


def _moments(prediction: Normal | jax.Array, shape: tuple[int, ...]) -> tuple[Any, Any]:
    if isinstance(prediction, Normal):
        parts = prediction.mean, prediction.variance
    else:
        parts = prediction, np.zeros(shape)
    mean, variance = (np.reshape(np.asarray(part, np.float64), shape) for part in parts)
    return mean, variance


def _noise_variances(fitted: Fitted) -> tuple[np.ndarray, np.ndarray]:
    """Values of 1/γ in the data's own units and their weights, both (nodes, targets)."""
    likelihood: Any = fitted.model.likelihood
    targets, precision = fitted.scaling.targets, likelihood.precision
    scale = np.atleast_1d(1.0 if targets is None else np.asarray(targets.scale, np.float64))
    if precision is not None:
        variance = np.square(scale) / np.atleast_1d(np.asarray(precision, np.float64))
        return variance[None], np.ones_like(variance)[None]
    shape = np.atleast_1d(np.asarray(fitted.noise.shape, np.float64))[None]
    rate = np.atleast_1d(np.asarray(fitted.noise.rate, np.float64))[None]
    t = _NODES[:, None] / np.sqrt(shape)  # ln γ from its most probable value
    weights = np.exp(-shape * (np.expm1(t) - t))
    return np.square(scale) * rate / shape * np.exp(-t), weights / weights.sum(axis=0)


def _by_block(function: Callable[[Any, Any], Any], x: Any, y: Any) -> np.ndarray:
    parts = [
        np.asarray(function(x[start : start + _BLOCK], y[start : start + _BLOCK]))
        for start in range(0, len(y), _BLOCK)
    ]
    return np.concatenate(parts)
