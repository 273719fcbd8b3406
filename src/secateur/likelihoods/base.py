"""The protocol that all likelihoods follow, and the checks and sums that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Gamma, Normal

Prediction = Normal | Array
Noise = Gamma | None

_ADVICE = (
    "Give an instance, such as GaussianLikelihood(), CategoricalLikelihood(), "
    "BernoulliLikelihood() or PoissonLikelihood()."
)
# Tolerance of `invert_cdf` in probability, and its maximum number of steps.
_SMALLEST_EXCESS, _MOST_STEPS = 1e-14, 100


class PredictiveMoments(NamedTuple):
    """Mean and variance of targets, the variance by its source.

    Attributes:
        mean: E[y].
        weight_variance: Var[E[y | f]], the uncertainty about the weights (epistemic).
        noise_variance: E[Var[y | f]], the noise of observations (aleatoric).
    """

    mean: Any
    weight_variance: Any
    noise_variance: Any


@runtime_checkable
class Likelihood(Protocol):
    """The methods that `free_energy` and `fit` require of a likelihood.

    The first axis of predictions and targets is the row; rows are independent. A prediction is a
    Normal, whose elements are taken as independent, or an array: one sample, taken as certain.

    `Trained.predict` uses further methods, which `fit` does not need. Without them a model can
    still be trained and pruned, and its log-densities can be computed.

    - `predictive_moments(noise, prediction)` returns `PredictiveMoments`, in JAX.
    - `predictive_cdf(noise, components, values)` returns P(y ≤ value), in NumPy and float64.
      `components` is a Normal with an axis of equally weighted components before the rows.
    - `predictive_quantile(noise, components, probability)` returns the inverse of the CDF.
    - `sample_targets(key, noise, f)` draws targets around values of the function, in JAX.

    Another optional method, `check_targets(shape, targets)`, is called with the shape of the
    predictions and NumPy targets before training and by `Predictive.log_density`. It raises a
    ValueError for targets that cannot occur under the likelihood. So does a method
    `check_parameters()`, called before training, for an invalid parameter of the likelihood.
    """

    @property
    def free_units(self) -> bool:
        """Return whether targets may be shifted and scaled, as no parameter is in their units."""
        ...

    def initial_noise(self, targets: Any) -> Noise:
        """Return the initial q(γ) for targets of this shape; None if there is no unknown noise."""
        ...

    def expected_log_likelihood(
        self, noise: Noise, prediction: Prediction, targets: Array
    ) -> Array:
        """Return E[ln p(y | f, γ)] under q(γ) and the prediction, one value per row."""
        ...

    def predictive_log_density(self, noise: Noise, prediction: Prediction, targets: Array) -> Array:
        """Return ln E[p(y | f, γ)] under q(γ) and the prediction, one value per row."""
        ...

    def update_noise(
        self,
        prediction: Prediction,
        targets: Array,
        *,
        weights: Array | None = None,
        size: float | Array | None = None,
    ) -> Noise:
        """Return the q(γ) that minimises the free energy given the prediction, or None."""
        ...

    def noise_complexity(self, noise: Noise) -> Array:
        """Return KL[q(γ) ‖ p(γ)], a scalar."""
        ...

    def with_prior(self, noise: Noise) -> Likelihood:
        """Return the same likelihood with a q(γ) as the prior of γ, for use with new data."""
        ...


def check_likelihood(likelihood: Any) -> None:
    """Raise an error for an object that lacks a method that training needs, and for bad parameters.

    Raises:
        TypeError: The message names the missing methods.
        ValueError: A parameter is not valid.
    """
    check_instance(likelihood)
    required = (name for name in vars(Likelihood) if not name.startswith("_"))
    lacking = [name for name in required if not hasattr(likelihood, name)]
    if lacking:
        raise TypeError(
            f"likelihood={likelihood!r} lacks {', '.join(lacking)}. {_ADVICE} "
            "secateur.likelihoods.Likelihood lists the methods of a custom likelihood."
        )
    if hasattr(likelihood, "check_parameters"):
        likelihood.check_parameters()


def check_instance(likelihood: Any) -> None:
    """Raise an error if a likelihood is given by name or as a class.

    Raises:
        TypeError: The message suggests an instance.
    """
    if isinstance(likelihood, str):
        raise TypeError(f"likelihood={likelihood!r} is a string. {_ADVICE}")
    if isinstance(likelihood, type):
        raise TypeError(
            f"likelihood={likelihood.__name__} is a class. Give an instance: "
            f"{likelihood.__name__}()."
        )


class WithoutNoise:
    """The part of the protocol that does nothing when there is no noise to learn."""

    @property
    def free_units(self) -> bool:
        """Return False: labels and counts cannot be rescaled."""
        return False

    def initial_noise(self, targets: Any) -> Noise:
        """Return None: there is no q(γ)."""
        return None

    def update_noise(
        self,
        prediction: Prediction,
        targets: Array,
        *,
        weights: Array | None = None,
        size: float | Array | None = None,
    ) -> Noise:
        """Return None: there is no q(γ)."""
        return None

    def noise_complexity(self, noise: Noise) -> Array:
        """Return 0: there is no q(γ)."""
        return jnp.zeros(())

    def with_prior(self, noise: Noise) -> Likelihood:
        """Return the likelihood itself: there is no q(γ)."""
        return self  # type: ignore[return-value]


def sampled_predictive_log_density(
    likelihood: Likelihood, noise: Noise, samples: Prediction, targets: Array
) -> Array:
    """Predictive log-density from several predictions, equally weighted.

        ln p(y) = ln (1/S) Σ_s p(y | f_s)

    Args:
        likelihood: Any likelihood.
        noise: Its q(γ), or None.
        samples: Predictions with the sample axis first, then rows: the outputs of a `"local"` or
            `"global"` model for several keys.
        targets: Targets, without a sample axis.

    Returns:
        One value per row.

    Example:
        >>> from secateur.likelihoods import BernoulliLikelihood
        >>> logits = jnp.array([[-50.0], [50.0]])  # one row, two samples that disagree
        >>> density = sampled_predictive_log_density(
        ...     BernoulliLikelihood(), None, logits, jnp.array([1])
        ... )
        >>> round(float(jnp.exp(density)[0]), 4)
        0.5
    """
    density = jax.vmap(lambda f: likelihood.predictive_log_density(noise, f, targets))(samples)
    return jax.nn.logsumexp(density, axis=0) - jnp.log(jnp.asarray(len(density), density.dtype))


def row_weights(
    rows: int, dtype: Any, *, weights: Array | None, size: float | Array | None
) -> Array:
    """Return the weight of each row: w_n or, given the size of the whole data set, w_n·size/Σw.

    Rows of weight 0 are padding: their values have no effect.
    """
    if weights is None:
        weights = jnp.ones(rows, dtype)
    elif jnp.shape(weights) != (rows,):
        raise ValueError(
            f"weights has shape {jnp.shape(weights)} and the data have {rows} rows. Give one "
            f"weight per row, shape ({rows},): 1 for a row that counts, 0 for padding."
        )
    weights = jnp.asarray(weights, dtype)
    if size is None:
        return weights
    total = jnp.sum(weights)
    return weights * jnp.where(total > 0, size / jnp.where(total > 0, total, 1), 0)


def weighted_sum(values: Array, weights: Array) -> Array:
    """Sum weights·values over rows, ignoring rows of weight 0 even if their value is not finite."""
    column = weights.reshape((-1,) + (1,) * (values.ndim - 1))
    return jnp.sum(column * jnp.where(column > 0, values, 0), axis=0)


def split(prediction: Prediction) -> tuple[Array, Array | None]:
    """Return the mean and the variance of a prediction; a sample has no variance."""
    if isinstance(prediction, Normal):
        value, variance = jnp.asarray(prediction.mean), jnp.asarray(prediction.variance)
        variance = jnp.broadcast_to(variance.astype(value.dtype), value.shape)
    else:
        value, variance = jnp.asarray(prediction), None
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"the prediction has dtype {value.dtype}. Supported: floating-point types. Is the "
            "model returning labels instead of its raw outputs?"
        )
    return value, variance


def like_prediction(name: str, value: Array, targets: Any) -> Array:
    """Check that targets have exactly the prediction's shape, and convert them to its dtype."""
    if jnp.shape(targets) != value.shape:
        hint = "Give both the same shape, rows first."
        if value.ndim == jnp.ndim(targets) + 1 and value.shape[-1] == 1:
            hint = "Use targets[:, None], or let the model drop its last axis."
        elif jnp.ndim(targets) == value.ndim + 1 and jnp.shape(targets)[-1] == 1:
            hint = "Use targets[:, 0], or let the model return a last axis of size 1."
        raise ValueError(
            f"{name}: the prediction has shape {value.shape} and the targets have shape "
            f"{jnp.shape(targets)}; they would not be compared element by element. {hint}"
        )
    if value.ndim == 0:
        raise ValueError(f"{name}: the prediction is a scalar. Its first axis must count rows.")
    return jnp.asarray(targets).astype(value.dtype)


def sum_outputs(values: Array) -> Array:
    """Sum over everything but the rows."""
    return jnp.sum(values, axis=tuple(range(1, values.ndim)))


def invert_cdf(
    cdf: Callable[[np.ndarray], np.ndarray], probability: float, low: Any, high: Any
) -> np.ndarray:
    """Return where a continuous increasing function of arrays reaches a probability.

    The Illinois variant of regula falsi. Each element stops on its own, so that its result does
    not depend on the others.

    Args:
        cdf: Elementwise function.
        probability: Target value of the function.
        low: Points where the function is at most the probability.
        high: Points where the function is at least the probability.

    Example:
        >>> cubes = invert_cdf(lambda x: x**3, 0.5, np.zeros(2), np.array([1.0, 2.0]))
        >>> (cubes**3).round(12).tolist()
        [0.5, 0.5]
    """
    low, high = np.array(low, np.float64), np.array(high, np.float64)
    excess_low, excess_high = cdf(low) - probability, cdf(high) - probability
    was_below = np.zeros(low.shape, np.int8)  # of the last step: 1, −1, or 0 before the first
    for _ in range(_MOST_STEPS):
        rise = excess_high - excess_low
        share = np.where(rise > 0, -excess_low / np.where(rise > 0, rise, 1), 0.5)
        middle = low + np.clip(share, 0, 1) * (high - low)
        excess = cdf(middle) - probability
        is_below = np.where(excess < 0, 1, -1)
        # An end point kept twice in a row is halved, so that the next guess overshoots the root.
        halved = np.where(is_below == was_below, 0.5, 1.0)
        excess_high = np.where(is_below == 1, halved * excess_high, excess)
        excess_low = np.where(is_below == 1, excess, halved * excess_low)
        low, high = np.where(is_below == 1, middle, low), np.where(is_below == 1, high, middle)
        is_done = (np.abs(excess) < _SMALLEST_EXCESS) | (middle + (high - low) == middle)
        low, high = np.where(is_done, middle, low), np.where(is_done, middle, high)
        excess_low = np.where(is_done, 0, excess_low)
        excess_high = np.where(is_done, 0, excess_high)
        was_below = is_below
        if np.all(low == high):
            break
    return 0.5 * (low + high)


def invert_step_cdf(
    cdf: Callable[[np.ndarray], np.ndarray], probability: float, low: Any, high: Any
) -> np.ndarray:
    """Return the smallest integers at which an increasing function reaches a probability.

    Args:
        cdf: Elementwise function.
        probability: Value to reach.
        low: Whole numbers where the function is below that.
        high: Whole numbers where the function has reached it.

    Example:
        >>> invert_step_cdf(lambda x: x / 10, 0.35, np.array([0.0]), np.array([9.0])).tolist()
        [4.0]
    """
    low, high = np.array(low, np.float64), np.array(high, np.float64)
    while np.any(high - low > 1):
        middle = np.floor(0.5 * (low + high))
        is_short = cdf(middle) < probability
        low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
    return high
