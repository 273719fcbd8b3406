"""The categorical likelihood: one of several classes, from their logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.likelihoods.base import (
    Noise,
    Prediction,
    PredictiveMoments,
    WithoutNoise,
    split,
    sum_outputs,
)
from secateur.likelihoods.gumbel import (
    expected_logsumexp,
    expected_softmax_moments,
    log_expected_softmax,
)
from secateur.registration import register_dataclass


@register_dataclass
@dataclass(frozen=True, eq=False)
class CategoricalLikelihood(WithoutNoise):
    """Targets are class labels 0, 1, …; the model's outputs are their logits, on the last axis.

        p(y_n | f_n) = softmax(f_n)_{y_n}

    Predictions have shape (rows, classes), possibly with axes such as time or pixels in between;
    targets are integers of that shape without the last axis. A label outside 0 … classes − 1 is an
    error. Within `jit`, where labels cannot be checked, it makes the row's value nan.

    Example:
        >>> logits, labels = jnp.zeros((2, 4)), jnp.array([0, 3])
        >>> CategoricalLikelihood().expected_log_likelihood(None, logits, labels).round(4)
        Array([-1.3863, -1.3863], dtype=float...)
    """

    def expected_log_likelihood(
        self, noise: Noise, prediction: Prediction, targets: Array
    ) -> Array:
        """Return E[f_y − ln Σ_j exp f_j], one value per row.

        For a Normal prediction the Gumbel-max identity makes the expectation of the logarithm a
        one-dimensional integral, computed to 2e-4 nat for up to 10 classes; see
        `secateur.likelihoods.gumbel`.
        """
        mean, variance = split(prediction)
        targets = _checked_labels(mean, targets)
        if variance is None:
            log_sum = jax.nn.logsumexp(mean, axis=-1)
        else:
            log_sum = expected_logsumexp(mean, variance)
        return sum_outputs(_pick(mean, targets) - log_sum)

    def check_targets(self, shape: tuple[int, ...], targets: np.ndarray) -> None:
        """Raise an error for labels outside the classes.

        Args:
            shape: Shape of the predictions; the last axis is the class.
            targets: Labels.
        """
        if np.issubdtype(targets.dtype, np.integer):
            _check_range(shape[-1], targets)

    def predictive_log_density(self, noise: Noise, prediction: Prediction, targets: Array) -> Array:
        """Return ln E[softmax(f)_y], one value per row, to 2e-4 nat even for improbable labels."""
        mean, variance = split(prediction)
        targets = _checked_labels(mean, targets)
        if variance is None:
            return self.expected_log_likelihood(noise, mean, targets)
        classes = mean.shape[-1]
        flat = log_expected_softmax(
            mean.reshape(-1, classes), variance.reshape(-1, classes), targets.reshape(-1)
        )
        valid = (targets >= 0) & (targets < classes)
        return sum_outputs(jnp.where(valid, flat.reshape(targets.shape), jnp.nan))

    def predictive_moments(self, noise: Noise, prediction: Prediction) -> PredictiveMoments:
        """Return the probability of every class, p, and the two parts of its variance p (1 − p)."""
        mean, variance = split(prediction)
        if variance is None:
            p = jax.nn.softmax(mean)
            return PredictiveMoments(p, jnp.zeros_like(p), p * (1 - p))
        p, spread = expected_softmax_moments(mean, variance)
        return PredictiveMoments(p, jnp.maximum(p * (1 - p) - spread, 0), spread)

    def sample_targets(self, key: Array, noise: Noise, f: Array) -> Array:
        """Draw labels from logits."""
        return jax.random.categorical(key, f)


def _pick(values: Array, labels: Array) -> Array:
    """Return each row's value at its label; nan for a label that does not exist."""
    valid = (labels >= 0) & (labels < values.shape[-1])
    picked = jnp.take_along_axis(values, jnp.where(valid, labels, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(valid, picked, jnp.nan)


def _checked_labels(logits: Array, targets: Any) -> Array:
    targets = jnp.asarray(targets)
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise TypeError(
            f"CategoricalLikelihood: the targets have dtype {targets.dtype}. Supported: integer "
            "labels 0, 1, …; use jnp.argmax(targets, -1) if they are one-hot."
        )
    if logits.ndim < 2 or logits.shape[-1] < 2:
        raise ValueError(
            f"CategoricalLikelihood: the prediction has shape {logits.shape}. It needs shape "
            "(rows, classes) with at least 2 classes; for one logit use BernoulliLikelihood."
        )
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"CategoricalLikelihood: the prediction has shape {logits.shape} and the targets have "
            f"shape {targets.shape}. Targets need shape {logits.shape[:-1]}: one label for "
            "each set of logits."
        )
    if not isinstance(targets, jax.core.Tracer):
        _check_range(logits.shape[-1], np.asarray(targets))
    return targets


def _check_range(classes: int, labels: np.ndarray) -> None:
    """Check the range of labels, in NumPy, as within jit JAX would trace even constants."""
    if not labels.size:
        return
    smallest, largest = int(labels.min()), int(labels.max())
    if smallest < 0 or largest >= classes:
        raise ValueError(
            f"CategoricalLikelihood: labels range from {smallest} to {largest} and the model "
            f"has {classes} classes, 0 to {classes - 1}. Renumber the labels or give the model as "
            "many outputs as there are classes."
        )
