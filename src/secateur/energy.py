"""The variational free energy and its parts, in nats, for the whole data set; lower is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import register_dataclass

from secateur.beliefs import complexity, hold_pruned
from secateur.likelihoods import Likelihood, Prediction
from secateur.likelihoods.base import Noise, row_weights, weighted_sum

__all__ = ["FreeEnergy", "accuracy", "free_energy"]


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

    Pure; works under `jit`, `vmap` and `grad`. Pruned weights (variance 0) get no gradient.

    Rows may count differently. Two ways to treat N rows in K batches of which the last is padded,
    both unbiased when the rows are shuffled:
    `weights` 1 and 0 with `size=N`: every batch estimates the whole from the rows it really has;
    `weights` K and 0 without `size`: every row counts the same, the mean over the K batches is F.

    Args:
        forward: `forward(key, beliefs, x)` gives a Normal or a sample; see `secateur.propagate`.
        beliefs: see `secateur.beliefs.believe`.
        priors: their priors, from `secateur.beliefs.priors`.
        likelihood: see `secateur.likelihoods`.
        noise: its q(γ): from `likelihood.update_noise` or `likelihood.initial_noise`.
        data: the inputs, any pytree that `forward` takes, and the targets.
        key: a JAX random key; None will do for a `forward` that draws nothing.
        weights: what each row counts for, shape (rows,), by default 1; 0 is padding.
        size: rows of the whole data set, N, if `data` are a mini-batch.
        samples: how many draws of a sampling `forward` to average.

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

    def accuracy_of_one(key: Array | None) -> Array:
        prediction = forward(key, held, inputs)
        return accuracy(likelihood, noise, prediction, targets, weights=weights, size=size)

    if samples == 1 or key is None:
        expected = accuracy_of_one(key)
    else:
        expected = jnp.mean(jax.vmap(accuracy_of_one)(jax.random.split(key, samples)))
    return FreeEnergy(
        complexity_weights=complexity(beliefs, priors),
        complexity_noise=likelihood.noise_complexity(noise),
        accuracy=expected,
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
    """Expected log-likelihood of the whole data set, from a prediction that was already made.

        Σ_n w_n E[ln p(y_n | f_n, γ)]

    For those who need the prediction for more than this, such as `likelihood.update_noise`.

    Args:
        likelihood: see `secateur.likelihoods`.
        noise: its q(γ), or None.
        prediction: a Normal or a sample, rows first.
        targets: the targets.
        weights: what each row counts for, by default 1.
        size: rows of the whole data set; the weights are scaled to sum to it.

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
