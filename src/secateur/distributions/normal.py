"""Distributions on the real line: Normal, Laplace and scale mixtures of Normals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

from secateur.distributions.exponential_family import Distribution, ExponentialFamily, Natural
from secateur.distributions.special import broadcast, kl_div, safe_sqrt
from secateur.registration import register_dataclass

_LOG_2PI = math.log(2 * math.pi)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Normal(ExponentialFamily):
    """Elementwise Normal distribution; the second parameter is a variance, not a deviation.

    N(x | μ, σ²) = exp(−(x − μ)²/(2σ²)) / √(2πσ²);  T = (x, x²),  η = (μ/σ², −1/(2σ²)),  h = 1/√(2π)

    A variance of exactly 0 means that the value is certain: samples equal the mean, the density is
    +inf at the mean and 0 elsewhere, and gradients are never nan.

    >>> float(Normal(0.0, 1.0).kl(Normal(0.0, 1.0)))
    0.0
    >>> Normal(jnp.zeros(3), jnp.ones(3)).sample(jax.random.key(0), (5,)).shape
    (5, 3)
    """

    mean: Any
    variance: Any

    def log_prob(self, value: Any) -> jax.Array:
        """−½ ((x − μ)²/σ² + ln 2πσ²)."""
        value, mean, variance = broadcast(value, self.mean, self.variance)
        certain = variance == 0
        safe = jnp.where(certain, 1, variance)
        density = -0.5 * (jnp.square(value - mean) / safe + jnp.log(safe) + _LOG_2PI)
        return jnp.where(certain, jnp.where(value == mean, jnp.inf, -jnp.inf), density)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """μ + σ·noise, differentiable in μ and σ²."""
        mean, variance = broadcast(self.mean, self.variance)
        noise = jax.random.normal(key, (*shape, *mean.shape), mean.dtype)
        mean, deviation, noise = broadcast(mean, safe_sqrt(variance), noise)
        return mean + deviation * noise

    def kl(self, other: Distribution) -> jax.Array:
        """KL[self ‖ other] = ½ (σ²/σ'² − 1 − ln σ²/σ'²) + (μ − μ')²/(2σ'²); also against a Laplace.

        Infinite where only one of the two is certain (with gradient 0, so that it can be masked);
        0 where both are certain and have the same value.
        """
        if isinstance(other, Laplace):
            return self._kl_to_laplace(other)
        if not isinstance(other, Normal):
            raise self._no_kl(other, "Normal", "Laplace")
        mean, variance, mean_p, variance_p = broadcast(
            self.mean, self.variance, other.mean, other.variance
        )
        certain_p = variance_p == 0
        safe_p = jnp.where(certain_p, 1, variance_p)
        divergence = 0.5 * (kl_div(safe_p, variance) + jnp.square(mean - mean_p)) / safe_p
        same = (variance == 0) & (mean == mean_p)
        return jnp.where(certain_p, jnp.where(same, 0, jnp.inf), divergence)

    def _kl_to_laplace(self, other: Laplace) -> jax.Array:
        mean, variance, location, scale = broadcast(
            self.mean, self.variance, other.location, other.scale
        )
        deviation, offset = safe_sqrt(variance), mean - location
        # Past 40 deviations exp and erf have saturated; clipping keeps 0·inf out of the gradient.
        certain = deviation == 0
        ratio = jnp.clip(offset / jnp.where(certain, 1, deviation), -40, 40)
        spread = deviation * math.sqrt(2 / math.pi) * jnp.exp(-0.5 * jnp.square(ratio))
        mean_distance = spread + offset * erf(ratio * math.sqrt(0.5))
        entropy = 0.5 * (jnp.log(jnp.where(certain, 1, variance)) + _LOG_2PI + 1)
        divergence = jnp.log(2 * scale) + mean_distance / scale - entropy
        return jnp.where(certain, jnp.inf, divergence)

    @property
    def natural_parameters(self) -> Natural:
        """η = (μ/σ², −1/(2σ²))."""
        mean, variance = broadcast(self.mean, self.variance)
        return mean / variance, -0.5 / variance

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The Normal with natural parameters η."""
        first, second = natural
        return cls(-0.5 * first / second, -0.5 / second)

    @staticmethod
    def log_partition_of(natural: Natural) -> jax.Array:
        """A(η) = −η₁²/(4η₂) − ½ ln(−2η₂)."""
        first, second = natural
        return -0.25 * jnp.square(first) / second - 0.5 * jnp.log(-2 * second)

    @staticmethod
    def is_valid_natural(natural: Natural) -> jax.Array:
        """η₂ < 0."""
        return natural[1] < 0


@register_dataclass
@dataclass(frozen=True, eq=False)
class Laplace(Distribution):
    """Elementwise Laplace distribution, a prior that prefers sparse weights.

    Laplace(x | m, b) = exp(−|x − m|/b) / (2b)

    It is not an exponential family in m. To reduce a Normal belief under a Laplace prior, use
    `secateur.savage_dickey`, which needs only the two densities.

    >>> float(Laplace(0.0, 0.5).variance)
    0.5
    """

    location: Any
    scale: Any

    @property
    def mean(self) -> jax.Array:
        """The location m."""
        return broadcast(self.location, self.scale)[0]

    @property
    def variance(self) -> jax.Array:
        """2b²."""
        return 2 * jnp.square(broadcast(self.location, self.scale)[1])

    def log_prob(self, value: Any) -> jax.Array:
        """−|x − m|/b − ln 2b."""
        value, location, scale = broadcast(value, self.location, self.scale)
        return -jnp.abs(value - location) / scale - jnp.log(2 * scale)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws, differentiable in m and b."""
        location, scale = broadcast(self.location, self.scale)
        noise = jax.random.laplace(key, (*shape, *scale.shape), scale.dtype)
        location, scale, noise = broadcast(location, scale, noise)
        return location + scale * noise

    def kl(self, other: Distribution) -> jax.Array:
        """KL[self ‖ other] = b/b' − 1 − ln b/b' + (b/b') (exp(−d/b) − 1 + d/b), d = |m − m'|."""
        if not isinstance(other, Laplace):
            raise self._no_kl(other, "Laplace")
        location, scale, location_p, scale_p = broadcast(
            self.location, self.scale, other.location, other.scale
        )
        distance = jnp.abs(location - location_p)
        by_location = scale * jnp.expm1(-distance / scale) + distance
        return (kl_div(scale_p, scale) + by_location) / scale_p


@register_dataclass
@dataclass(frozen=True, eq=False)
class ScaleMixture(Distribution):
    """Elementwise mixture of a wide and a narrow Normal around 0: a smooth spike and slab.

    p(x) = π N(x | 0, wide) + (1 − π) N(x | 0, narrow)

    Args:
        share: Weight π of the wide component.
        wide: Variance of the wide component.
        narrow: Variance of the narrow component.

    >>> float(ScaleMixture(0.5, 1.0, 0.01).variance)
    0.505
    """

    share: Any
    wide: Any
    narrow: Any

    @property
    def mean(self) -> jax.Array:
        """0."""
        return jnp.zeros_like(broadcast(self.share, self.wide, self.narrow)[0])

    @property
    def variance(self) -> jax.Array:
        """π wide + (1 − π) narrow."""
        share, wide, narrow = broadcast(self.share, self.wide, self.narrow)
        return share * wide + (1 - share) * narrow

    @property
    def detail(self) -> jax.Array:
        """The scale of the finest feature of the density: the narrow deviation."""
        return jnp.sqrt(broadcast(self.share, self.wide, self.narrow)[2])

    def log_prob(self, value: Any) -> jax.Array:
        """Return ln (π N(x | 0, wide) + (1 − π) N(x | 0, narrow))."""
        share = jnp.asarray(self.share)
        return jnp.logaddexp(
            *broadcast(
                jnp.log(share) + Normal(0.0, self.wide).log_prob(value),
                jnp.log1p(-share) + Normal(0.0, self.narrow).log_prob(value),
            )
        )

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws."""
        share, wide, narrow = broadcast(self.share, self.wide, self.narrow)
        which, how_far = jax.random.split(key)
        shape = (*shape, *share.shape)
        is_wide = jax.random.bernoulli(which, share, shape)
        is_wide, wide, narrow = broadcast(is_wide, wide, narrow)
        deviation = jnp.sqrt(jnp.where(is_wide, wide, narrow))
        return deviation * jax.random.normal(how_far, shape, deviation.dtype)

    def kl(self, other: Distribution) -> jax.Array:
        """There is no closed form."""
        raise self._no_kl(other, "nothing")


# The parameters that say how wide a distribution is.
_SPREADS = {Normal: ("variance",), Laplace: ("scale",), ScaleMixture: ("wide", "narrow")}


def check_spread(prior: Any, name: str) -> None:
    """Raise an error for a prior whose width is not positive and finite, if its value is known.

    Args:
        prior: Any distribution.
        name: Name of the leaf, used in messages.

    Raises:
        ValueError: The width is zero, negative, infinite or nan.
    """
    for parameter in _SPREADS.get(type(prior), ()):
        value = getattr(prior, parameter)
        if isinstance(value, jax.core.Tracer):
            continue
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            continue
        known = np.asarray(value)
        is_valid = (known > 0) & np.isfinite(known)
        if not np.all(is_valid):
            raise ValueError(
                f"the prior given for {name} is a {type(prior).__name__} whose {parameter} is "
                f"{known[~is_valid].flat[0]}. Give a positive, finite number. (To keep a leaf "
                "certain, leave it out with where=….)"
            )
