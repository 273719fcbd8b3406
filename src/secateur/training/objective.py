"""The variational free energy and its parts, in nats, for the whole data set; lower is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.beliefs import complexity, hold_pruned
from secateur.likelihoods import Likelihood, Prediction
from secateur.likelihoods.base import Noise, row_weights, weighted_sum
from secateur.registration import register_dataclass

__all__ = ["FreeEnergy", "accuracy", "compute_parts", "free_energy"]


@register_dataclass
@dataclass(frozen=True, eq=False)
class FreeEnergy:
    """A free energy and its parts, each in nats for the whole data set.

        F = complexity − accuracy = KL[q(θ)‖p(θ)] + KL[q(γ)‖p(γ)] − E[ln p(Y | θ, γ)] ≥ −ln p(Y)

    Attributes:
        complexity_weights: KL[q(θ) ‖ p(θ)], summed over the live weights.
        complexity_noise: KL[q(γ) ‖ p(γ)], summed over the outputs.
        accuracy: the expected log-likelihood of all rows.

    Example:
        >>> FreeEnergy(3.0, 1.0, -10.0).total
        14.0

    Reference: equation (7) of the paper.
    """

    complexity_weights: Array
    complexity_noise: Array
    accuracy: Array

    @property
    def complexity(self) -> Array:
        """The complexity of weights and noise together."""
        return self.complexity_weights + self.complexity_noise

    @property
    def total(self) -> Array:
        """The free energy itself, complexity − accuracy."""
        return self.complexity - self.accuracy


def free_energy(
    forward: Callable[..., Prediction],
    beliefs: Any,
    priors: Any,
    likelihood: Likelihood,
    noise: Noise,
    data: tuple[Any, Array],
    *,
    key: Array | None,
    weights: Array | None = None,
    size: float | Array | None = None,
    samples: int = 1,
) -> FreeEnergy:
    """Free energy of beliefs about a model, exact or estimated without bias from a mini-batch.

        F = KL[q(θ)‖p(θ)] + KL[q(γ)‖p(γ)] − Σ_n w_n E[ln p(y_n | θ, γ)]          w_n = 1, or N/batch

    Pure: works under `jit`, `vmap` and `grad`. Pruned weights (variance 0) get no gradient.

    Rows may have different weights. There are two unbiased ways to treat N shuffled rows in K
    batches of which the last is padded. With `weights` 1 and 0 and `size=N`, every batch estimates
    the total from its actual rows. With `weights` K and 0 and no `size`, all rows have the same
    weight, and the mean over the K batches is F.

    Args:
        forward: Function `forward(key, beliefs, x)` that returns a Normal or a sample; see
            `secateur.propagate`.
        beliefs: See `secateur.believe`.
        priors: Priors of the beliefs, from `secateur.priors`.
        likelihood: See `secateur.likelihoods`.
        noise: Its q(γ), from `likelihood.update_noise` or `likelihood.initial_noise`.
        data: The inputs, any pytree that `forward` takes, and the targets.
        key: A JAX random key. May be None for a `forward` that draws nothing.
        weights: Weight of each row, shape (rows,); 1 by default, 0 for padding.
        size: Number of rows of the whole data set, N, if `data` is a mini-batch.
        samples: Number of draws of a sampling `forward` to average.

    Returns:
        A `FreeEnergy`; its `total` is what training minimises.

    Example:
        >>> from secateur.beliefs import believe, priors
        >>> from secateur.distributions import Normal
        >>> from secateur.likelihoods import GaussianLikelihood
        >>> def forward(key, q, x):
        ...     return Normal(x * q.mean, x**2 * q.variance)
        >>> x = jnp.array([1.0, 2.0])
        >>> q = believe(jnp.array(2.0), variance=0.1)
        >>> likelihood = GaussianLikelihood(precision=1.0)
        >>> result = free_energy(
        ...     forward, q, priors(q, Normal(0.0, 1.0)), likelihood, None, (x, 2 * x), key=None
        ... )
        >>> round(float(result.total), 4)
        4.7892

    Reference: equation (7) of the paper.
    """
    if samples < 1:
        raise ValueError(f"samples is {samples}. Give at least 1.")
    if samples > 1 and key is None:
        raise ValueError(f"key is None, and {samples} samples need one. Give jax.random.key(seed).")
    inputs, targets = data
    held = hold_pruned(beliefs)
    divergence = complexity(beliefs, priors)

    def evaluate_sample(key: Array | None) -> FreeEnergy:
        prediction = forward(key, held, inputs)
        return compute_parts(
            divergence, likelihood, noise, prediction, targets, weights=weights, size=size
        )

    if samples == 1 or key is None:
        return evaluate_sample(key)
    parts = jax.vmap(evaluate_sample)(jax.random.split(key, samples))
    return FreeEnergy(
        divergence, likelihood.noise_complexity(noise), jnp.mean(parts.accuracy, axis=0)
    )


def compute_parts(
    complexity_weights: Array,
    likelihood: Likelihood,
    noise: Noise,
    prediction: Prediction,
    targets: Array,
    *,
    weights: Array | None = None,
    size: float | Array | None = None,
) -> FreeEnergy:
    """Return the free energy of one prediction: the objective of every training step and test.

    Args:
        complexity_weights: KL[q(θ) ‖ p(θ)], which depends on how the weights are stored.
        likelihood: See `secateur.likelihoods`.
        noise: Its q(γ), or None.
        prediction: A Normal or a sample, rows first.
        targets: The targets of these rows.
        weights: Weight of each row; 1 by default.
        size: Number of rows of the whole data set, to which the weights are scaled.
    """
    return FreeEnergy(
        complexity_weights,
        likelihood.noise_complexity(noise),
        accuracy(likelihood, noise, prediction, targets, weights=weights, size=size),
    )


def accuracy(
    likelihood: Likelihood,
    noise: Noise,
    prediction: Prediction,
    targets: Array,
    *,
    weights: Array | None = None,
    size: float | Array | None = None,
) -> Array:
    """Expected log-likelihood of the whole data set, from a prediction that is already known.

        Σ_n w_n E[ln p(y_n | f_n, γ)]

    Args:
        likelihood: See `secateur.likelihoods`.
        noise: Its q(γ), or None.
        prediction: A Normal or a sample, rows first.
        targets: The targets of these rows.
        weights: Weight of each row; 1 by default.
        size: Number of rows of the whole data set, to which the weights are scaled.

    Returns:
        A scalar, in nats.

    Example:
        >>> from secateur.likelihoods import PoissonLikelihood
        >>> log_rates, counts = jnp.zeros(4), jnp.array([0, 0, 0, 0])
        >>> float(accuracy(PoissonLikelihood(), None, log_rates, counts, size=100))
        -100.0
    """
    values = likelihood.expected_log_likelihood(noise, prediction, targets)
    counts = row_weights(values.shape[0], values.dtype, weights=weights, size=size)
    return weighted_sum(values, counts)
