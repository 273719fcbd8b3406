"""What a model says of rows it has not seen, as plain arrays, whatever its inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from secateur.distributions import Normal
from secateur.fitting.result import Fitted
from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood
from secateur.likelihoods.bernoulli import log_expected_sigmoid
from secateur.likelihoods.gumbel import log_expected_softmax

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


def log_densities(fitted: Fitted, x: Any, y: Any, seed: int) -> np.ndarray:
    """Return the predictive log-density of every row, in nats."""
    key = None if fitted.model.inference == "moments" else jax.random.key(seed)
    return _by_block(lambda x, y: fitted.log_density(x, y, key=key), x, y)


def predict_numbers(fitted: Fitted, x: Any, y: np.ndarray, seed: int) -> Numbers | None:
    """Predict targets with Gaussian noise of unknown size; None for another likelihood.

    The noise is integrated out: an observation is N(μ, v + 1/γ) with γ ~ q(γ).
    """
    if not isinstance(fitted.model.likelihood, GaussianLikelihood):
        return None
    noise, weights = _noise_variances(fitted)

    def block(x: Any, y: Any) -> jax.Array:
        y = jnp.reshape(jnp.asarray(y, float), (len(y), -1))
        drawn = [_moments(p, y.shape) for p in _predictions(fitted, x, seed)]
        means, variances = (jnp.stack(part)[:, None] for part in zip(*drawn, strict=True))
        spread = jnp.sqrt(variances + noise[None, :, None])
        below = jnp.sum(weights[:, None] * ndtr((y[None, None] - means) / spread).mean(0), axis=0)
        mean = means.mean(axis=(0, 1))
        within = jnp.mean(jnp.sum(weights[:, None] * jnp.square(spread), axis=1), axis=0)
        return jnp.stack([mean, jnp.sqrt(within + jnp.var(means, axis=(0, 1))), below], axis=1)

    found = _by_block(block, x, y)
    return Numbers(found[:, 0], found[:, 1], found[:, 2])


def class_probabilities(fitted: Fitted, x: Any, y: np.ndarray, seed: int) -> np.ndarray | None:
    """Return probabilities of shape (rows, targets, classes); None for another likelihood."""
    likelihood = fitted.model.likelihood
    if isinstance(likelihood, CategoricalLikelihood):
        chances = _softmax
    elif isinstance(likelihood, BernoulliLikelihood):
        chances = _sigmoid
    else:
        return None

    def block(x: Any, y: Any) -> jax.Array:
        found = sum(chances(p) for p in _predictions(fitted, x, seed))
        found = jnp.reshape(found, (len(y), -1, jnp.shape(found)[-1]))
        return found / jnp.sum(found, axis=-1, keepdims=True)

    return _by_block(block, x, y)


def _predictions(fitted: Fitted, x: Any, seed: int) -> Iterator[Normal | jax.Array]:
    """The one prediction by moments, or as many samples as the recipe says."""
    if fitted.model.inference == "moments":
        yield fitted.predict(x)
        return
    for key in jax.random.split(jax.random.key(seed), fitted.continuation.recipe.samples):
        yield fitted.predict(x, key=key)


def _moments(prediction: Normal | jax.Array, shape: tuple[int, ...]) -> tuple[Any, Any]:
    if isinstance(prediction, Normal):
        return jnp.reshape(prediction.mean, shape), jnp.reshape(prediction.variance, shape)
    return jnp.reshape(prediction, shape), jnp.zeros(shape)


def _noise_variances(fitted: Fitted) -> tuple[np.ndarray, np.ndarray]:
    """Values of 1/γ in the data's own units and their weights, both (nodes, targets)."""
    targets, precision = fitted.scaling.targets, fitted.model.likelihood.precision
    scale = np.atleast_1d(1.0 if targets is None else np.asarray(targets.scale, np.float64))
    if precision is not None:
        variance = np.square(scale) / np.atleast_1d(np.asarray(precision, np.float64))
        return variance[None], np.ones_like(variance)[None]
    shape = np.atleast_1d(np.asarray(fitted.noise.shape, np.float64))[None]
    rate = np.atleast_1d(np.asarray(fitted.noise.rate, np.float64))[None]
    t = _NODES[:, None] / np.sqrt(shape)  # ln γ from its most probable value
    weights = np.exp(-shape * (np.expm1(t) - t))
    return np.square(scale) * rate / shape * np.exp(-t), weights / weights.sum(axis=0)


@jax.jit
def _softmax(prediction: Normal | jax.Array) -> jax.Array:
    if not isinstance(prediction, Normal):
        return jax.nn.softmax(prediction, axis=-1)
    classes = prediction.mean.shape[-1]
    mean, variance = (jnp.reshape(p, (-1, classes)) for p in (prediction.mean, prediction.variance))

    def of(label: jax.Array) -> jax.Array:
        return log_expected_softmax(mean, variance, jnp.full(len(mean), label))

    chances = jnp.exp(jax.lax.map(of, jnp.arange(classes)))
    return jnp.reshape(chances.T, prediction.mean.shape)


@jax.jit
def _sigmoid(prediction: Normal | jax.Array) -> jax.Array:
    if isinstance(prediction, Normal):
        yes = jnp.exp(log_expected_sigmoid(prediction.mean, prediction.variance))
    else:
        yes = jax.nn.sigmoid(prediction)
    return jnp.stack([1 - yes, yes], axis=-1)


def _by_block(function: Callable[[Any, Any], jax.Array], x: Any, y: Any) -> np.ndarray:
    parts = [
        np.asarray(function(x[start : start + _BLOCK], y[start : start + _BLOCK]))
        for start in range(0, len(y), _BLOCK)
    ]
    return np.concatenate(parts)
