"""The Gaussian likelihood, with one precision per output, unknown or known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jax import Array

from secateur.distributions import Gamma, Normal
from secateur.distributions.special import gammaln_difference, stirling_remainder
from secateur.likelihoods.base import (
    Noise,
    Prediction,
    PredictiveMoments,
    invert_cdf,
    like_prediction,
    row_weights,
    split,
    sum_outputs,
    weighted_sum,
)
from secateur.likelihoods.integrals import log_integral
from secateur.registration import register_dataclass

_LOG_2PI = math.log(2 * math.pi)
_PARTS = ("shape", "rate")


@register_dataclass
@dataclass(frozen=True, eq=False)
class GaussianLikelihood:
    """Targets are the model's output plus Gaussian noise with one precision per output.

        p(y_n | f_n, γ) = Π_m N(y_nm | f_nm, 1/γ_m)          γ_m ~ Gamma(α_m, β_m)

    Predictions and targets have the same shape: (rows,) or (rows, outputs), possibly with axes such
    as time in between, whose elements count as observations of the same outputs. Integer targets
    are converted.

    Args:
        prior: Gamma prior (shape, rate) of every precision, or one with an entry per output.
            Defaults to the recipe's in `fit` (`Recipe.noise_prior`), and to Gamma(1, 1) elsewhere.
        precision: Known value of γ. If given, `prior` is not used and `noise` is always None.

    Example:
        >>> likelihood = GaussianLikelihood()
        >>> y, f = jnp.array([[1.0], [2.0]]), jnp.array([[1.5], [1.5]])
        >>> noise = likelihood.update_noise(f, y)
        >>> noise.shape.tolist(), noise.rate.tolist()
        ([2.0], [1.25])

    Reference: equations (1) and (3) of the paper.
    """

    prior: Gamma | None = None
    precision: Any = field(default=None, kw_only=True)

    @property
    def free_units(self) -> bool:
        """Return whether the precision is unknown; a known precision fixes the targets' units."""
        return self.precision is None

    @property
    def _prior(self) -> Gamma:
        return Gamma(1.0, 1.0) if self.prior is None else self.prior

    def check_parameters(self) -> None:
        """Refuse parameters that are not positive.

        Raises:
            ValueError: The message says which, and what to give.
        """
        parameters = {"precision": self.precision}
        if self.precision is None:
            name = "the prior of the precision"
            parameters = {f"{part} of {name}": getattr(self._prior, part) for part in _PARTS}
        for name, value in parameters.items():
            known = np.asarray(value, np.float64)
            is_valid = (known > 0) & np.isfinite(known)
            if not np.all(is_valid):
                raise ValueError(
                    f"GaussianLikelihood: the {name} is {known[~is_valid].flat[0]:g}. Give a "
                    "positive, finite number; the default prior has shape 1 and rate 0.01."
                )

    def with_prior(self, noise: Noise) -> GaussianLikelihood:
        """Return the same likelihood with a q(γ) as the prior of γ, for use with new data."""
        return self if noise is None else replace(self, prior=noise)

    def initial_noise(self, targets: Any) -> Noise:
        """Return q(γ) = p(γ), with one entry per output; None if the precision is known.

        Args:
            targets: Targets, of which only shape and dtype are used.
        """
        if self.precision is not None:
            return None
        dtype = jnp.result_type(float, jnp.result_type(targets))
        return self._per_output(self._prior.shape, self._prior.rate, jnp.shape(targets), dtype)

    def expected_log_likelihood(
        self, noise: Noise, prediction: Prediction, targets: Array
    ) -> Array:
        """Return E[ln p(y | f, γ)] under q(γ) and the prediction, one value per row.

            −½ Σ_m { E[γ_m] E[(y_m − f_m)²] + ln 2π − E[ln γ_m] }
            E[γ] = α̂/β̂      E[ln γ] = ψ(α̂) − ln β̂      E[(y − f)²] = (y − mean)² + variance

        Example:
            >>> y, f = jnp.zeros((3, 2)), jnp.zeros((3, 2))
            >>> GaussianLikelihood(precision=1.0).expected_log_likelihood(None, f, y).round(4)
            Array([-1.8379, -1.8379, -1.8379], dtype=float...)
        """
        mean, variance, targets = self._checked(prediction, targets)
        expected, expected_log = self._moments(noise, mean)
        square = _expected_square(mean, variance, targets)
        return -0.5 * sum_outputs(expected * square + (_LOG_2PI - expected_log))

    def predictive_log_density(self, noise: Noise, prediction: Prediction, targets: Array) -> Array:
        """Return ln p(y) with q(γ) and the prediction's variance integrated out, one value per row.

            certain f:   Σ_m ln StudentT(y_m | f_m, scale² = β̂/α̂, 2α̂ degrees of freedom)
            f ~ N(μ, v): Σ_m ln ∫ Gamma(γ | α̂, β̂) N(y_m | μ_m, v_m + 1/γ) dγ

        The integral over ln γ is computed by quadrature, to 1e-6 nat in float64 and 1e-4 in
        float32. Each row has its own density: this is not the joint density of the rows, which
        share γ.
        """
        mean, variance, targets = self._checked(prediction, targets)
        square = jnp.square(targets - mean)
        if self.precision is not None:
            total = 1 / self._moments(noise, mean)[0]
            if variance is not None:
                total = total + variance
            return -0.5 * sum_outputs(square / total + jnp.log(total) + _LOG_2PI)
        noise = self._noise(noise, mean.shape)
        shape, rate = _spread(noise.shape, mean), _spread(noise.rate, mean)
        if variance is None:
            return sum_outputs(_log_student_t(square, shape, rate))
        return sum_outputs(_log_student_t_plus_normal(square, variance, shape, rate))

    def predictive_moments(self, noise: Noise, prediction: Prediction) -> PredictiveMoments:
        """Return the mean of targets, the variance of f, and E[1/γ] = β̂/(α̂ − 1)."""
        mean, variance = split(prediction)
        if self.precision is not None:
            spread = 1 / _spread(jnp.asarray(self.precision, mean.dtype), mean)
        else:
            noise = self._noise(noise, mean.shape)
            excess = noise.shape - 1
            finite = noise.rate / jnp.where(excess > 0, excess, 1)
            spread = _spread(jnp.where(excess > 0, finite, jnp.inf).astype(mean.dtype), mean)
        return PredictiveMoments(
            mean, jnp.zeros_like(mean) if variance is None else variance, spread
        )

    def predictive_interval(
        self, noise: Noise, prediction: Normal, level: float
    ) -> tuple[Any, Any]:
        """Return the central interval of targets with a given probability, for f ~ N(μ, v).

            μ ± √(v + β̂/α̂) ρ(r),   r = (β̂/α̂) / (v + β̂/α̂)

        ρ depends on α̂ and the level only; it goes from the quantile of a Normal at r = 0 to that of
        a Student t at r = 1. It is a polynomial, so that exported networks can compute it too. The
        probability is exact to 1e-6 for α̂ ≥ 1.5, which is reached with one row of data.

        Args:
            noise: q(γ), with known values.
            prediction: A Normal of NumPy or JAX arrays; JAX arrays may be traced.
            level: Probability of the interval.
        """
        xp: Any = np if isinstance(prediction.mean, np.ndarray) else jnp
        dtype = prediction.mean.dtype
        scale, coefficients = self._interval_parameters(noise, level)
        outputs = prediction.mean.shape[-1:] if np.ndim(scale) else ()
        rank = (1,) * (prediction.mean.ndim - len(outputs))
        scale = np.broadcast_to(scale, outputs).reshape(rank + outputs).astype(dtype)
        total = prediction.variance + scale
        position = 2 * (scale / total) - 1
        # Clenshaw's recurrence for a sum of Chebyshev polynomials.
        later = last = xp.zeros_like(total)
        for c in coefficients[:0:-1]:
            c = np.broadcast_to(c, outputs).reshape(rank + outputs).astype(dtype)
            later, last = last, c + 2 * position * last - later
        first = np.broadcast_to(coefficients[0], outputs).reshape(rank + outputs).astype(dtype)
        reach = xp.sqrt(total) * (first + position * last - later)
        return prediction.mean - reach, prediction.mean + reach

    def _interval_parameters(self, noise: Noise, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return β̂/α̂ of every output, and the Chebyshev coefficients of ρ on a leading axis."""
        if self.precision is not None:
            scale = 1 / np.asarray(self.precision, np.float64)
            return scale, np.broadcast_to(scipy.special.ndtri(0.5 + 0.5 * level), (1, *scale.shape))
        assert noise is not None
        shape, rate = (np.asarray(p, np.float64) for p in (noise.shape, noise.rate))
        columns = [_interval_polynomial(float(a), level) for a in shape.ravel()]
        length = max(map(len, columns))
        padded = [np.pad(c, (0, length - len(c))) for c in columns]
        return rate / shape, np.stack(padded, axis=1).reshape(length, *shape.shape)

    def predictive_cdf(self, noise: Noise, components: Normal, values: np.ndarray) -> np.ndarray:
        """Return P(y ≤ value), with q(γ) and the variance of the components integrated out."""
        mean, variance = components.mean, components.variance
        if self.precision is not None:
            deviation = np.sqrt(variance + 1 / np.asarray(self.precision, np.float64))
            return np.mean(scipy.special.ndtr((values - mean) / deviation), axis=0)
        assert noise is not None
        shape, rate = (np.asarray(p, np.float64) for p in (noise.shape, noise.rate))
        if not np.any(variance):
            distance = (values - mean) / np.sqrt(rate / shape)
            if len(mean) == 1:
                return scipy.special.stdtr(2 * shape, distance[0])
            return np.mean(_interpolate_student_t(shape, distance), axis=0)
        total = np.zeros(np.broadcast_shapes(mean.shape, np.shape(values)))
        inverses, weights = _noise_nodes(shape)
        for inverse, weight in zip(inverses, weights, strict=True):
            deviation = np.sqrt(variance + rate / shape * inverse)
            total += weight * scipy.special.ndtr((values - mean) / deviation)
        return np.mean(total, axis=0)

    def predictive_quantile(
        self, noise: Noise, components: Normal, probability: float
    ) -> np.ndarray:
        """Return the value below which a target lies with the given probability."""
        mean, variance = components.mean, components.variance
        low, high = self.predictive_interval(noise, components, abs(2 * probability - 1))
        bounds = low if probability < 0.5 else high
        if len(mean) == 1:
            return bounds[0]
        # The quantile of a mixture is between those of its components.

        def cdf(values: np.ndarray) -> np.ndarray:
            return self.predictive_cdf(noise, Normal(mean, variance), values)

        return invert_cdf(cdf, probability, bounds.min(axis=0), bounds.max(axis=0))

    def sample_targets(self, key: Array, noise: Noise, f: Array) -> Array:
        """Draw targets around values of the function; all rows share one draw of γ."""
        noise_key, row_key = jax.random.split(key)
        if self.precision is not None:
            precision = _spread(jnp.asarray(self.precision, f.dtype), f)
        else:
            noise = self._noise(noise, f.shape)
            gamma = jax.random.gamma(noise_key, noise.shape) / noise.rate
            precision = _spread(gamma.astype(f.dtype), f)
        return f + jax.random.normal(row_key, f.shape, f.dtype) / jnp.sqrt(precision)

    def update_noise(
        self,
        prediction: Prediction,
        targets: Array,
        *,
        weights: Array | None = None,
        size: float | Array | None = None,
    ) -> Noise:
        """Return the q(γ) that minimises the free energy given q(θ); None if γ is known.

            α̂ = α + N/2          β̂ = β + ½ Σ_n E[(y_n − f_n)²]

        Args:
            prediction: A Normal or a sample, for all rows or a mini-batch.
            targets: Targets, of the same shape.
            weights: Weight of each row. Defaults to 1; rows of weight 0 are padding.
            size: Number of rows N of the whole data set. Defaults to the sum of the weights.

        Returns:
            A Gamma with one entry per output.
        """
        if self.precision is not None:
            return None
        mean, variance, targets = self._checked(prediction, targets)
        counts = row_weights(mean.shape[0], mean.dtype, weights=weights, size=size)
        squares = weighted_sum(_expected_square(mean, variance, targets), counts)
        between = tuple(range(squares.ndim - 1))  # axes between rows and outputs
        repeats = math.prod(mean.shape[1:-1])
        prior = self._per_output(self._prior.shape, self._prior.rate, mean.shape, mean.dtype)
        return Gamma(
            prior.shape + 0.5 * repeats * jnp.sum(counts),
            prior.rate + 0.5 * jnp.sum(squares, axis=between),
        )

    def noise_complexity(self, noise: Noise) -> Array:
        """Return Σ_m KL[q(γ_m) ‖ p(γ_m)] in nats; 0 if the precision is known."""
        if self.precision is not None or noise is None:
            return jnp.zeros(())
        return jnp.sum(noise.kl(self._prior))

    def _per_output(self, shape: Any, rate: Any, data: tuple[int, ...], dtype: Any) -> Gamma:
        outputs = data[-1:] if len(data) > 1 else ()
        try:
            return Gamma(*(jnp.broadcast_to(jnp.asarray(p, dtype), outputs) for p in (shape, rate)))
        except ValueError as error:
            raise ValueError(
                f"GaussianLikelihood: the parameters of the precision have shapes "
                f"{jnp.shape(shape)} and {jnp.shape(rate)}, and the data {data} have "
                f"{outputs or 'one'} output(s). Give numbers, or one entry per output (last axis)."
            ) from error

    def _checked(self, prediction: Prediction, targets: Any) -> tuple[Array, Array | None, Array]:
        mean, variance = split(prediction)
        return mean, variance, like_prediction("GaussianLikelihood", mean, targets)

    def _noise(self, noise: Noise, data: tuple[int, ...]) -> Gamma:
        if noise is None:
            raise ValueError(
                "GaussianLikelihood: the precision is unknown and noise is None. Start from "
                "likelihood.initial_noise(targets), or give GaussianLikelihood(precision=...)."
            )
        return self._per_output(noise.shape, noise.rate, data, jnp.result_type(noise.rate))

    def _moments(self, noise: Noise, mean: Array) -> tuple[Array, Array]:
        """Return E[γ] and E[ln γ] in a shape that broadcasts with the prediction."""
        if self.precision is not None:
            known = _spread(jnp.asarray(self.precision, mean.dtype), mean)
            return known, jnp.log(known)
        noise = self._noise(noise, mean.shape)
        return _spread(noise.mean, mean), _spread(noise.mean_log, mean)


def _spread(per_output: Array, like: Array) -> Array:
    return jnp.broadcast_to(per_output, like.shape)


def _expected_square(mean: Array, variance: Array | None, targets: Array) -> Array:
    square = jnp.square(targets - mean)
    return square if variance is None else square + variance


def _log_student_t(square: Array, shape: Array, rate: Array) -> Array:
    normaliser = gammaln_difference(shape + 0.5, shape) - 0.5 * (_LOG_2PI + jnp.log(rate))
    return normaliser - (shape + 0.5) * jnp.log1p(0.5 * square / rate)


def _log_student_t_plus_normal(square: Array, variance: Array, shape: Array, rate: Array) -> Array:
    """Return ln ∫ Gamma(γ | α, β) N(r | 0, v + 1/γ) dγ, in t = ln(γ β/α)."""

    def log_f(t: Array) -> Array:
        total = variance + rate / shape * jnp.exp(-t)
        log_normal = -0.5 * (square / total + jnp.log(total) + _LOG_2PI)
        # Written from its maximum at t = 0, where α ln γ − βγ would cancel for large α.
        return log_normal - shape * (jnp.expm1(t) - t)

    # The peaks lie between those for v = 0 and for v → ∞; beyond the margins the Gamma factor
    # alone has fallen by 40 nats.
    first, last = -jnp.log1p(0.5 * square / rate), jnp.log1p(0.5 / shape)
    low = first - 40 / shape - jnp.sqrt(115 / shape)
    high = last + jnp.log1p(40 / shape + jnp.sqrt(80 / shape))
    # ∫ exp(−α(eᵗ − 1 − t)) dt = Γ(α) e^α / α^α, by Stirling's series.
    log_normaliser = 0.5 * (_LOG_2PI - jnp.log(shape)) + stirling_remainder(shape)
    return log_integral(log_f, low, high) - log_normaliser


# --- predictive quantiles, by NumPy in float64 ----------------------------------------------------

_NOISE_NODES = 161
# Values of t/√(1 + t²), between which the distribution function of a Student t is interpolated.
_TABLE = np.linspace(-1, 1, 20_001)


def _noise_nodes(shape: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values of 1/g and their weights for g ~ Gamma(α, α), on a new leading axis.

    The trapezoidal rule in t = ln g, between points where the density has fallen by 40 nats.
    """
    low = -40 / shape - np.sqrt(115 / shape)
    high = np.log1p(40 / shape + np.sqrt(80 / shape))
    fraction = np.linspace(0, 1, _NOISE_NODES).reshape((-1,) + (1,) * np.ndim(shape))
    t = low + (high - low) * fraction
    weights = np.exp(-shape * (np.expm1(t) - t))
    return np.exp(-t), weights / weights.sum(axis=0)


@lru_cache(maxsize=256)
def _interval_polynomial(shape: float, level: float) -> np.ndarray:
    """Return the Chebyshev coefficients of ρ(r) for r in [0, 1]; see `predictive_interval`."""
    if level <= 0:
        return np.zeros(1)
    probability = 0.5 + 0.5 * level
    inverses, weights = _noise_nodes(np.asarray(shape, np.float64))

    def reach(position: Any) -> Any:
        r = 0.5 * (np.asarray(position) + 1)
        deviation = np.sqrt((1 - r) + r * inverses[:, None])

        def cdf(values: np.ndarray) -> np.ndarray:
            return weights @ scipy.special.ndtr(values / deviation)

        # Between the quantiles of a Normal (r = 0) and of a Student t (r = 1), with a margin.
        ends = (
            float(scipy.special.ndtri(probability)),
            float(scipy.special.stdtrit(2 * shape, probability)),
        )
        low, high = np.full_like(r, 0.5 * min(ends)), np.full_like(r, 1.5 * max(ends))
        return invert_cdf(cdf, probability, low, high)

    for degree in (12, 24, 48, 96):
        coefficients = np.polynomial.chebyshev.chebinterpolate(reach, degree)
        size = np.abs(coefficients[0])
        if np.all(np.abs(coefficients[-2:]) < 1e-11 * size):
            break
    significant = np.flatnonzero(np.abs(coefficients) >= 1e-11 * size)
    return coefficients[: significant[-1] + 1]


def _interpolate_student_t(shape: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Return the distribution function of a Student t, by linear interpolation, to 1e-8."""
    position = distance / np.sqrt(1 + distance**2)
    if not shape.ndim:
        return np.interp(position, _TABLE, _tabulate_student_t(float(shape)))
    columns = [
        np.interp(position[..., i], _TABLE, _tabulate_student_t(float(a)))
        for i, a in enumerate(np.broadcast_to(shape, distance.shape[-1:]))
    ]
    return np.stack(columns, axis=-1)


@lru_cache(maxsize=16)
def _tabulate_student_t(shape: float) -> np.ndarray:
    inner = _TABLE[1:-1]
    return np.concatenate(
        [[0.0], scipy.special.stdtr(2 * shape, inner / np.sqrt(1 - inner**2)), [1.0]]
    )
