"""`Average`: several trained models of the same data that predict together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import scipy  # its submodules are imported when they are first used
from jax import Array

from secateur.distributions import Normal
from secateur.likelihoods.base import PredictiveMoments, invert_cdf, invert_step_cdf
from secateur.options import check_key, name_kind
from secateur.predictive import SAMPLES, Predictive
from secateur.trained import Trained

__all__ = ["WEIGHTINGS", "Average", "Mixture", "choose_average"]

WEIGHTINGS = ("equal", "evidence")


@dataclass(frozen=True, eq=False)
class Average:
    """Trained models of the same data that predict together, such as pruned restarts.

        p(y | x) = Σ_k w_k p_k(y | x)        w_k = 1/K, or w_k ∝ exp(−F_k)

    F_k is the free energy of a model, so that exp(−F_k) is a lower bound of its evidence. Restarts
    often differ by many nats, and then evidence gives nearly all weight to one of them. With equal
    weights, disagreement between models widens the intervals, and a bad model spoils the average.

    Attributes:
        models: The models.
        weighting: "equal" or "evidence".
        log_evidence: −F of every model, including the changes by later updates.

    Example:
        >>> import secateur as sc
        >>> network, key = sc.networks.Dense(1, hidden=(3,)), jax.random.key(0)
        >>> x = np.random.default_rng(0).normal(size=(40, 1))
        >>> model = sc.BayesianModel(network, network.init(key))
        >>> fits = sc.fit_many(
        ...     model, [(x, x**2)] * 2, keys=jax.random.split(key), epochs=50, progress=False
        ... )
        >>> average = Average.from_models(fits)
        >>> average.weights.tolist(), average.predict(x).mean.shape
        ([0.5, 0.5], (40, 1))
    """

    models: tuple[Trained, ...]
    weighting: str
    log_evidence: tuple[float, ...]

    @classmethod
    def from_models(cls, models: Sequence[Trained], weighting: str = "equal") -> Average:
        """Average models that were trained on the same data.

        Args:
            models: Trained models; those whose free energy is nan are left out.
            weighting: "equal", or "evidence" for weights in proportion to exp(−F).
        """
        check_weighting(weighting)
        for model in models:
            if not isinstance(model, Trained):
                raise TypeError(
                    f"{name_kind(model)} is not a trained model. Give a list of what fit, "
                    "prune or load returned."
                )
        finite = tuple(model for model in models if np.isfinite(model.free_energy))
        if not finite:
            raise ValueError("there is no model to average, or none with a finite free energy.")
        return cls(finite, weighting, tuple(-model.free_energy for model in finite))

    @property
    def weights(self) -> np.ndarray:
        """Return the weight of every model; their sum is 1."""
        if self.weighting == "equal":
            return np.full(len(self.models), 1 / len(self.models))
        return scipy.special.softmax(np.asarray(self.log_evidence))

    def describe(self) -> dict[str, Any]:
        """Return the facts saved with each model, which state that it does not predict alone."""
        return {"weighting": self.weighting, "models": len(self.models)}

    def predict(self, inputs: Any, *, key: Array | None = None, samples: int = SAMPLES) -> Mixture:
        """Return the joint prediction of the models for new rows.

        Args:
            inputs: Rows like those given to `fit`.
            key: As in `Trained.predict`.
            samples: As in `Trained.predict`.
        """
        parts = [model.predict(inputs, key=key, samples=samples) for model in self.models]
        return Mixture(parts, self.weights)

    def update(self, change: Callable[[Trained], Trained]) -> Average:
        """Return the average of the models after each of them has learnt from the same new rows.

        Args:
            change: Function that updates a model, as `secateur.update` does. The free energy of
                what it returns is that of the new rows.
        """
        models = tuple(map(change, self.models))
        pairs = zip(self.log_evidence, models, strict=True)
        sums = tuple(before - model.free_energy for before, model in pairs)
        return replace(self, models=models, log_evidence=sums)

    def __repr__(self) -> str:
        weights = ", ".join(f"{100 * weight:.3g} %" for weight in self.weights)
        return f"<Average of {len(self.models)} models, weighted by {self.weighting}: {weights}>"


def choose_average(models: Sequence[Trained], held_out: tuple[Any, Any] | None) -> Average:
    """Average models with the weights that predict held-out rows better.

    Args:
        models: Trained models.
        held_out: Inputs and targets that the models have not seen, or None for equal weights.
    """
    if held_out is None:
        return Average.from_models(models)
    averages = [Average.from_models(models, weighting) for weighting in WEIGHTINGS]
    parts = [model.predict(held_out[0]) for model in averages[0].models]

    def score(average: Average) -> float:
        return float(np.mean(Mixture(parts, average.weights).log_density(held_out[1])))

    return max(averages, key=score)


def check_weighting(weighting: Any) -> None:
    """Raise an error for an unknown weighting.

    Raises:
        ValueError: The message lists those supported.
    """
    if weighting not in WEIGHTINGS:
        raise ValueError(f"average={weighting!r}. Supported: {', '.join(WEIGHTINGS)}.")


class Mixture(Predictive):
    """A mixture of predictive distributions of the same rows; see `Predictive`.

    Args:
        parts: The distributions.
        weights: Their weights, whose sum is 1.
    """

    def __init__(self, parts: Sequence[Predictive], weights: np.ndarray) -> None:
        self._parts, self._weights = list(parts), np.asarray(weights, np.float64)
        self._rows, self._likelihood = len(parts[0]), parts[0]._likelihood

    def __repr__(self) -> str:
        return f"<Mixture: {len(self)} rows, {len(self._parts)} models>"

    def _mix(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.tensordot(self._weights, np.stack(values), axes=1)

    def _find_spread(self, means: Sequence[np.ndarray]) -> np.ndarray:
        """Return the variance between means."""
        return self._mix(np.square(np.stack(means) - self._mix(means)))

    @cached_property
    def outputs(self) -> Normal:
        """Mean and variance of the models' functions together."""
        means = [part.outputs.mean for part in self._parts]
        within = self._mix([part.outputs.variance for part in self._parts])
        return Normal(self._mix(means), within + self._find_spread(means))

    @cached_property
    def _moments(self) -> PredictiveMoments:
        parts = [part._moments for part in self._parts]
        means = [part.mean for part in parts]
        within = self._mix([part.weight_variance for part in parts])
        return PredictiveMoments(
            self._mix(means),
            within + self._find_spread(means),
            self._mix([part.noise_variance for part in parts]),
        )

    def quantiles(self, probabilities: Any) -> np.ndarray:
        """Return the values that targets are below with given probabilities.

        Args:
            probabilities: A number, or several, which become the first axis of the result.
        """
        levels = np.asarray(probabilities, np.float64)
        own = np.stack([part.quantiles(levels.ravel()) for part in self._parts])
        # The quantile of a mixture is between those of its parts.
        low, high = own.min(axis=0), own.max(axis=0)
        is_count = bool(np.all(own == np.floor(own)))
        pairs = zip(levels.ravel().tolist(), low, high, strict=True)
        values = [
            invert_step_cdf(self.cdf, p, a - 1, b) if is_count else invert_cdf(self.cdf, p, a, b)
            for p, a, b in pairs
        ]
        return np.stack(values).reshape(levels.shape + low.shape[1:])

    def cdf(self, values: Any) -> np.ndarray:
        """Return the probability that each target is at most a value.

        Args:
            values: Numbers that broadcast to the shape of the targets.
        """
        return self._mix([part.cdf(values) for part in self._parts])

    def log_density(self, targets: Any) -> np.ndarray:
        """Return ln Σ_k w_k p_k(y | x), in nats, one value for each row.

        Args:
            targets: Targets of all rows, as given to `fit`.
        """
        densities = np.stack([part.log_density(targets) for part in self._parts])
        return scipy.special.logsumexp(densities, axis=0, b=self._weights[:, None])

    def sample(self, key: Array, count: int = 1) -> np.ndarray:
        """Draw targets of all rows; the rows of one draw come from the same model.

        Args:
            key: A JAX random key.
            count: Number of draws, the first axis of the result.
        """
        pick_key, draw_key = jax.random.split(check_key(key))
        total = len(self._parts)
        picks = np.asarray(jax.random.choice(pick_key, total, (count,), p=self._weights))
        draws: Any = None
        for number in np.unique(picks).tolist():
            is_own = picks == number
            own_key = jax.random.fold_in(draw_key, number)
            values = self._parts[number].sample(own_key, int(is_own.sum()))
            draws = np.zeros((count, *values.shape[1:])) if draws is None else draws
            draws[is_own] = values
        return draws
