"""The Poisson likelihood: counts, from the logarithm of their rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jax import Array

from secateur.distributions import Normal
from secateur.distributions.special import stirling_remainder
from secateur.likelihoods.base import (
    Noise,
    Prediction,
    PredictiveMoments,
    WithoutNoise,
    invert_step_cdf,
    like_prediction,
    split,
    sum_outputs,
)
from secateur.likelihoods.integrals import log_expectation_exp, saturating_expm1
from secateur.registration import register_dataclass


@register_dataclass
@dataclass(frozen=True, eq=False)
class PoissonLikelihood(WithoutNoise):
    """Targets are counts; the model's output is the logarithm of their rate.

        p(y_n | f_n) = Π_m exp(f_nm)^y_nm exp(−exp(f_nm)) / y_nm!

    Predictions and targets have the same shape, rows first. Beyond the square root of the largest
    number of the dtype (an exponent of 44 in float32) exp is continued by its tangent, so that a
    model with a very poor starting point has a finite free energy and a useful gradient.

    Example:
        >>> likelihood = PoissonLikelihood()
        >>> log_rate, counts = jnp.zeros(1), jnp.array([0])
        >>> likelihood.expected_log_likelihood(None, log_rate, counts).tolist()
        [-1.0]
    """

    def expected_log_likelihood(
        self, noise: Noise, prediction: Prediction, targets: Array
    ) -> Array:
        """Return Σ_m { y m − exp(m + v/2) − ln y! } for f ~ N(m, v), one value per row; exact."""
        mean, variance = split(prediction)
        targets = like_prediction("PoissonLikelihood", mean, targets)
        half = jnp.zeros_like(mean) if variance is None else 0.5 * variance
        return sum_outputs(_at_best(targets) - _shortfall(mean, targets, half_variance=half))

    def check_targets(self, shape: tuple[int, ...], targets: np.ndarray) -> None:
        """Raise an error for targets that are not counts.

        Args:
            shape: Shape of the predictions.
            targets: Targets.
        """
        is_count = (targets >= 0) & (targets == np.floor(targets))
        if not is_count.all():
            wrong = targets[~is_count]
            raise ValueError(
                f"PoissonLikelihood: {wrong.size} of {targets.size} targets are not counts, the "
                f"first of them {wrong.flat[0]}. Supported: 0, 1, 2, …. Use GaussianLikelihood for "
                "other numbers."
            )

    def predictive_log_density(self, noise: Noise, prediction: Prediction, targets: Array) -> Array:
        """Return ln E[p(y | f)], one value per row: Poisson–lognormal for a Normal prediction.

        Computed by quadrature, to 1e-6 nat for variances up to 100 and 1e-2 at 1e4.
        """
        mean, variance = split(prediction)
        targets = like_prediction("PoissonLikelihood", mean, targets)
        if variance is None:
            return self.expected_log_likelihood(noise, mean, targets)
        spread = log_expectation_exp(lambda f: -_shortfall(f, targets), mean, variance)
        return sum_outputs(_at_best(targets) + spread)

    def predictive_moments(self, noise: Noise, prediction: Prediction) -> PredictiveMoments:
        """Return E[y] = exp(m + v/2), Var[exp f] = E[y]² (exp v − 1), and E[exp f]; exact."""
        mean, variance = split(prediction)
        if variance is None:
            rate = jnp.exp(mean)
            return PredictiveMoments(rate, jnp.zeros_like(rate), rate)
        rate = jnp.exp(mean + 0.5 * variance)
        return PredictiveMoments(rate, jnp.square(rate) * jnp.expm1(variance), rate)

    def predictive_cdf(self, noise: Noise, components: Normal, values: np.ndarray) -> np.ndarray:
        """Return P(y ≤ value), with the log-rate integrated out by Gauss–Hermite quadrature."""
        total = np.zeros(np.broadcast_shapes(components.mean.shape[1:], np.shape(values)))
        deviation = np.sqrt(components.variance)
        for node, weight in zip(*_make_normal_nodes(), strict=True):
            rates = np.exp(components.mean + deviation * node)
            total += weight * np.mean(
                scipy.special.pdtr(np.floor(np.maximum(values, 0)), rates), axis=0
            )
        return np.where(values < 0, 0.0, total)

    def predictive_quantile(
        self, noise: Noise, components: Normal, probability: float
    ) -> np.ndarray:
        """Return the smallest count whose cumulative probability reaches `probability`."""

        def cdf(values: np.ndarray) -> np.ndarray:
            return self.predictive_cdf(noise, components, values)

        high = np.ones(components.mean.shape[1:])
        while np.any(short := cdf(high) < probability):
            high = np.where(short, 2 * high, high)
        return invert_step_cdf(cdf, probability, np.full_like(high, -1.0), high)

    def sample_targets(self, key: Array, noise: Noise, f: Array) -> Array:
        """Draw counts from log-rates."""
        return jax.random.poisson(key, jnp.exp(f))


@cache
def _make_normal_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss–Hermite nodes and weights for expectations under a standard Normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(48)
    return nodes, weights / weights.sum()


def _at_best(count: Array) -> Array:
    """Return y ln y − y − ln y!, the log-mass at the best rate, by Stirling's series."""
    some = count > 0
    positive = jnp.where(some, count, 1)
    value = -0.5 * (math.log(2 * math.pi) + jnp.log(positive)) - stirling_remainder(positive)
    return jnp.where(some, value, 0)


def _shortfall(log_rate: Array, count: Array, *, half_variance: Array | float = 0.0) -> Array:
    """Return exp(m + v/2) − y m − (y − y ln y) ≥ 0, the log-mass's distance from its maximum.

    It is computed as y (e^(d + v/2) − 1 − d) with d = m − ln y, which is accurate for large counts.
    """
    some = count > 0
    positive = jnp.where(some, count, 1)
    excess = log_rate - jnp.log(positive)
    with_counts = positive * (saturating_expm1(excess + half_variance) - excess)
    return jnp.where(some, with_counts, 1 + saturating_expm1(log_rate + half_variance))
