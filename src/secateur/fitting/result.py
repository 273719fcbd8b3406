"""What `fit` returns, and what it raises."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh

from secateur.beliefs import count
from secateur.distributions import Normal
from secateur.energy import FreeEnergy
from secateur.fitting.program import State
from secateur.fitting.recipes import Recipe
from secateur.fitting.scaling import Scaling
from secateur.fitting.weights import Layout, Vectors, lay_out
from secateur.likelihoods.base import sampled_predictive_log_density
from secateur.model import BayesianModel
from secateur.propagation import draws, propagate

__all__ = ["FitError", "Fitted", "History", "Trained"]


@dataclass(frozen=True, eq=False)
class History:
    """Free energy and parts by epoch, in nats: means over the steps of each epoch.

    Attributes:
        complexity: of weights and noise.
        accuracy: expected log-likelihood of all rows.
    """

    complexity: np.ndarray
    accuracy: np.ndarray

    @property
    def free_energy(self) -> np.ndarray:
        """Return complexity − accuracy."""
        return self.complexity - self.accuracy


class Past(NamedTuple):
    """What was there before the data that a model was last updated with; see `secateur.update`.

    Attributes:
        prior: of the weights before any data.
        alive: which weights were alive when the update began; yesterday's posterior of those is
            the update's prior.
    """

    prior: Any
    alive: Vectors


class Continuation(NamedTuple):
    """All that training needs, beside the model and data, to go on where it ended."""

    state: State
    layout: Layout
    certain: list[Array]
    recipe: Recipe
    optimiser: optax.GradientTransformation | None
    empirical_bayes: bool
    mesh: Mesh | None
    shard_weights: bool
    past: Past | None = None


@dataclass(frozen=True, eq=False)
class Trained:
    """What is believed of a model's weights, how good that is, and what it predicts.

    The attributes are explained in `Fitted`.
    """

    model: BayesianModel
    beliefs: Any
    priors: Any
    noise: Any
    scaling: Scaling
    free_energy: float
    parts: FreeEnergy
    standard_error: float
    epochs: int
    stop_reason: str
    recipe: Recipe

    @property
    def live_weights(self) -> int:
        """Return the number of weights that have not been pruned."""
        return count(self.beliefs).live

    def predict(self, inputs: Any, *, key: Array | None = None) -> Normal | Array:
        """Predict the function's value for new inputs, in the data's own units.

        Args:
            inputs: as given to `fit`.
            key: a JAX random key for a model whose inference samples.

        Returns:
            Under `"moments"` a Normal with the mean and variance of f, noise of the observations
            not included; else a sample of f.
        """
        layout, flat, certain = lay_out(self.beliefs)
        x = self.scaling.standard_inputs(inputs, layout.dtype)
        prediction = _predict(self.model.f, self.model.inference, layout, key, flat, certain, x)
        if self.scaling.targets is None:
            return prediction
        return self.scaling.targets.to_data(prediction)

    def log_density(self, inputs: Any, targets: Any, *, key: Array | None = None) -> Array:
        """Return the predictive log-density of new targets, in nats and the data's own units.

            ln p(y | x) = ln E[p(y | f(θ, x), γ)]    under q(θ) and q(γ), one value per row

        Args:
            inputs: as given to `fit`.
            targets: likewise.
            key: a JAX random key for a model whose inference samples; the recipe's number of
                samples is averaged.
        """
        layout, flat, certain = lay_out(self.beliefs)
        block = self.scaling.standard((inputs, targets), layout.dtype)
        samples = self.recipe.samples if draws(self.model.inference) else None
        density = _log_density(
            self.model.f, self.model.inference, layout, samples, key, flat, certain,
            self.model.likelihood, self.noise, block,
        )  # fmt: skip
        if self.scaling.targets is None:
            return density
        return density - self.scaling.targets.log_jacobian_per_row(targets)


@dataclass(frozen=True, eq=False)
class Fitted(Trained):
    """A trained model: what is believed of its weights now, and how good that is.

    Attributes:
        model: the model that was fitted.
        beliefs: the posterior, with the structure of the model's params.
        priors: with the same structure; other than the model's after empirical Bayes.
        noise: q(γ) in standardised units, or None.
        scaling: how inputs and targets are standardised.
        free_energy: in nats, for all rows, in the data's own units; lower is better.
        parts: complexity of weights and noise, and accuracy.
        standard_error: of the free energy, where the algorithm samples; else 0.
        epochs: how many there were.
        stop_reason: why training ended, in words.
        recipe: how it was trained.
        history: by epoch.
        restarts: the free energy of every initialisation; nan for one that failed.
        continuation: what training goes on from; internal.
    """

    history: History
    restarts: tuple[float, ...]
    continuation: Continuation = field(repr=False)

    def __repr__(self) -> str:
        error = f" ± {self.standard_error:.1f}" if self.standard_error else ""
        return (
            f"<Fitted: free energy {self.free_energy:.1f}{error} nats = complexity "
            f"{float(self.parts.complexity):.1f} − accuracy {float(self.parts.accuracy):.1f}; "
            f"{self.epochs} epochs, {self.stop_reason}>"
        )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _predict(f, inference, layout, key, flat, certain, x) -> Normal | Array:
    return propagate(f, inference)(key, layout.beliefs(flat, certain), x)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _log_density(
    f, inference, layout, samples, key, flat, certain, likelihood, noise, block
) -> Array:
    beliefs, (x, y) = layout.beliefs(flat, certain), block
    forward = propagate(f, inference)
    if samples is None:
        return likelihood.predictive_log_density(noise, forward(None, beliefs, x), y)
    keys = jax.random.split(key, samples)
    predictions = jax.vmap(lambda k: forward(k, beliefs, x))(keys)
    return sampled_predictive_log_density(likelihood, noise, predictions, y)


class FitError(FloatingPointError):
    """Training met a value that is not finite.

    Attributes:
        last_good: the `Fitted` from before the epoch in which it happened, or None if there was no
            good epoch.
    """

    def __init__(self, message: str, last_good: Fitted | None = None) -> None:
        super().__init__(message)
        self.last_good = last_good
