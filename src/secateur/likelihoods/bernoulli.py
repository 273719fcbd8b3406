"""The Bernoulli likelihood: binary targets, from a logit."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal
from secateur.likelihoods.base import (
    Noise,
    Prediction,
    PredictiveMoments,
    WithoutNoise,
    like_prediction,
    split,
    sum_outputs,
)
from secateur.quadrature import expectation
from secateur.registration import register_dataclass


@register_dataclass
@dataclass(frozen=True, eq=False)
class BernoulliLikelihood(WithoutNoise):
    """Targets are 0 or 1; the model's output is the logit of 1.

        p(y_n | f_n) = Π_m σ(f_nm)^y_nm (1 − σ(f_nm))^(1 − y_nm)

    Predictions and targets have the same shape, rows first. A target between 0 and 1 is a soft
    label.

    Example:
        >>> from secateur.distributions import Normal
        >>> logits = Normal(jnp.array([0.0]), jnp.array([1.0]))
        >>> BernoulliLikelihood().expected_log_likelihood(None, logits, jnp.array([1])).round(4)
        Array([-0.8061], dtype=float...)
    """

    def expected_log_likelihood(
        self, noise: Noise, prediction: Prediction, targets: Array
    ) -> Array:
        """Return E[y ln σ(f) + (1 − y) ln(1 − σ(f))], one value per row.

        A Normal logit is integrated numerically, to the accuracy of `secateur.quadrature`.
        """
        mean, variance = split(prediction)
        targets = like_prediction("BernoulliLikelihood", mean, targets)
        # Evaluated on the likelier side, −softplus(−|f|), to avoid cancellation. (Not by abs: at
        # f = 0, where networks start, it would have no derivative.)
        positive = mean >= 0
        away = jnp.where(positive, -mean, mean)
        doubt = (
            jax.nn.softplus(away)
            if variance is None
            else expectation(jax.nn.softplus, away, variance)
        )
        against = jnp.where(positive, 1 - targets, targets)
        return sum_outputs(against * away - doubt)

    def check_targets(self, shape: tuple[int, ...], targets: np.ndarray) -> None:
        """Raise an error for targets outside the interval from 0 to 1.

        Args:
            shape: Shape of the predictions.
            targets: Targets.
        """
        smallest, largest = targets.min(initial=0), targets.max(initial=0)
        if smallest < 0 or largest > 1:
            raise ValueError(
                f"BernoulliLikelihood: targets range from {smallest} to {largest}. Supported: 0, "
                "1, and soft labels between them. Encode the two classes as 0 and 1, such as "
                "targets == 'yes' or targets > 0."
            )

    def predictive_log_density(self, noise: Noise, prediction: Prediction, targets: Array) -> Array:
        """Return y ln E[σ(f)] + (1 − y) ln E[1 − σ(f)], one value per row.

        Computed by one-dimensional quadrature that stays accurate for improbable targets.
        """
        mean, variance = split(prediction)
        targets = like_prediction("BernoulliLikelihood", mean, targets)
        if variance is None:
            return self.expected_log_likelihood(noise, mean, targets)
        yes, no = log_expected_sigmoid(mean, variance), log_expected_sigmoid(-mean, variance)
        return sum_outputs(targets * yes + (1 - targets) * no)

    def predictive_moments(self, noise: Noise, prediction: Prediction) -> PredictiveMoments:
        """Return the probability of a 1, p, and the two parts of its variance p (1 − p)."""
        mean, variance = split(prediction)
        if variance is None:
            p = jax.nn.sigmoid(mean)
            return PredictiveMoments(p, jnp.zeros_like(p), p * (1 - p))
        p = expectation(jax.nn.sigmoid, mean, variance)
        spread = expectation(lambda f: jax.nn.sigmoid(f) * jax.nn.sigmoid(-f), mean, variance)
        return PredictiveMoments(p, jnp.maximum(p * (1 - p) - spread, 0), spread)

    def predictive_cdf(self, noise: Noise, components: Normal, values: np.ndarray) -> np.ndarray:
        """Return P(y ≤ value): 0 below 0, 1 from 1 on, the probability of a 0 between."""
        return np.where(values < 0, 0.0, np.where(values < 1, 1 - self._chance(components), 1.0))

    def predictive_quantile(
        self, noise: Noise, components: Normal, probability: float
    ) -> np.ndarray:
        """Return 0 or 1: the smallest value whose cumulative probability reaches `probability`."""
        return np.where(1 - self._chance(components) >= probability, 0.0, 1.0)

    def sample_targets(self, key: Array, noise: Noise, f: Array) -> Array:
        """Draw 0 or 1 from logits."""
        return jax.random.bernoulli(key, jax.nn.sigmoid(f)).astype(jnp.int32)

    def _chance(self, components: Normal) -> np.ndarray:
        """P(y = 1), averaged over the components."""
        mean, variance = components.mean, components.variance
        # Padded to a power of two, so that only a few sizes are compiled.
        padding = (0, (1 << max(0, mean.size - 1).bit_length()) - mean.size)
        f = Normal(*(jnp.asarray(np.pad(a.ravel(), padding)) for a in (mean, variance)))
        chance = np.asarray(_chance_of_one(f), np.float64)[: mean.size]
        return chance.reshape(mean.shape).mean(axis=0)


@jax.jit
def _chance_of_one(f: Normal) -> Array:
    return expectation(jax.nn.sigmoid, f.mean, f.variance)


def log_expected_sigmoid(mean: Array, variance: Array) -> Array:
    """Return ln E[σ(x)] for x ~ N(mean, variance), elementwise.

        E[σ(x)] = exp(k m + k² v/2) E[exp(−k x') σ(x')],    x' ~ N(m + k v, v),  any k

    For the k in [0, 1] that brings x' closest to 0, the last expectation is never small, so that
    its logarithm is accurate however unlikely a 1 is.
    """
    smallest = jnp.finfo(mean.dtype).tiny
    k = jax.lax.stop_gradient(jnp.clip(-mean / jnp.maximum(variance, smallest), 0, 1))
    rest = expectation(
        lambda x: jnp.exp(jax.nn.log_sigmoid(x) - k * x), mean + k * variance, variance
    )
    return k * (mean + 0.5 * k * variance) + jnp.log(rest)
