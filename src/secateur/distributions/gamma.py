"""Distributions of positive numbers and of proportions: Gamma and Beta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln, xlog1py, xlogy

from secateur.distributions.exponential_family import Distribution, ExponentialFamily, Natural
from secateur.distributions.multivariate import Dirichlet
from secateur.distributions.special import (
    broadcast,
    gammaln_difference,
    gammaln_residual_divergence,
    kl_div,
    log_ratio,
)
from secateur.registration import register_dataclass


@register_dataclass
@dataclass(frozen=True, eq=False)
class Gamma(ExponentialFamily):
    """Elementwise Gamma distribution in shape and *rate*, the belief about a noise precision.

    Γ(x | α, β) = β^α x^(α−1) exp(−βx) / Γ(α);  T = (ln x, x),  η = (α, −β),  h = 1/x

    (h = 1/x makes η₁ the shape itself: α − 1 would lose a small shape to rounding.)

    >>> gamma = Gamma(2.0, 4.0)
    >>> float(gamma.mean), float(gamma.variance)
    (0.5, 0.125)
    """

    shape: Any
    rate: Any

    @property
    def mean(self) -> jax.Array:
        """α/β."""
        shape, rate = broadcast(self.shape, self.rate)
        return shape / rate

    @property
    def variance(self) -> jax.Array:
        """α/β²."""
        shape, rate = broadcast(self.shape, self.rate)
        return shape / rate / rate

    @property
    def mean_log(self) -> jax.Array:
        """E[ln x] = ψ(α) − ln β."""
        shape, rate = broadcast(self.shape, self.rate)
        return digamma(shape) - jnp.log(rate)

    def log_prob(self, value: Any) -> jax.Array:
        """α ln β + (α − 1) ln x − βx − ln Γ(α); −inf for x < 0."""
        value, shape, rate = broadcast(value, self.shape, self.rate)
        inside = value >= 0
        value = jnp.where(inside, value, 1)
        density = xlogy(shape - 1, value) - rate * value + shape * jnp.log(rate) - gammaln(shape)
        return jnp.where(inside, density, -jnp.inf)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws, differentiable in α and β."""
        concentration, rate = broadcast(self.shape, self.rate)
        full = (*shape, *rate.shape)
        unit = jax.random.gamma(key, jnp.broadcast_to(concentration, full), full, rate.dtype)
        return unit / jnp.broadcast_to(rate, full)

    def kl(self, other: Distribution) -> jax.Array:
        """KL[self ‖ other], grouped so that a shape of thousands costs no digits."""
        if not isinstance(other, Gamma):
            raise self._no_kl(other, "Gamma")
        shape, rate, shape_p, rate_p = broadcast(self.shape, self.rate, other.shape, other.rate)
        return kl_div(shape_p, shape * (rate_p / rate)) + gammaln_residual_divergence(
            shape_p, shape
        )

    @property
    def natural_parameters(self) -> Natural:
        """η = (α, −β)."""
        shape, rate = broadcast(self.shape, self.rate)
        return shape, -rate

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The Gamma with natural parameters η."""
        return cls(natural[0], -natural[1])

    @staticmethod
    def log_partition_of(natural: Natural) -> jax.Array:
        """A(η) = ln Γ(η₁) − η₁ ln(−η₂)."""
        return gammaln(natural[0]) - natural[0] * jnp.log(-natural[1])

    @staticmethod
    def is_valid_natural(natural: Natural) -> jax.Array:
        """η₁ > 0 and η₂ < 0."""
        return (natural[0] > 0) & (natural[1] < 0)

    @classmethod
    def log_partition_difference(cls, new: Natural, old: Natural) -> jax.Array:
        """A(new) − A(old), accurate for large shapes."""
        by_rate = old[0] * log_ratio(-new[1], -old[1]) + (new[0] - old[0]) * jnp.log(-new[1])
        return gammaln_difference(new[0], old[0]) - by_rate


@register_dataclass
@dataclass(frozen=True, eq=False)
class Beta(ExponentialFamily):
    """Elementwise Beta distribution on (0, 1).

    Beta(x | a, b) = x^(a−1) (1−x)^(b−1) / B(a, b)

    T = (ln x, ln(1−x)),  η = (a, b),  h = 1/(x (1−x))

    >>> float(Beta(1.0, 3.0).mean)
    0.25
    """

    a: Any
    b: Any

    @property
    def mean(self) -> jax.Array:
        """a/(a + b)."""
        a, b = broadcast(self.a, self.b)
        return a / (a + b)

    @property
    def variance(self) -> jax.Array:
        """(a/(a + b)) (b/(a + b)) / (a + b + 1)."""
        a, b = broadcast(self.a, self.b)
        return (a / (a + b)) * (b / (a + b)) / (a + b + 1)

    def log_prob(self, value: Any) -> jax.Array:
        """(a − 1) ln x + (b − 1) ln(1 − x) − ln B(a, b); −inf outside [0, 1]."""
        value, a, b = broadcast(value, self.a, self.b)
        inside = (value >= 0) & (value <= 1)
        value = jnp.where(inside, value, 0.5)
        log_kernel = xlogy(a - 1, value) + xlog1py(b - 1, -value)
        return jnp.where(inside, log_kernel - self.log_partition_of((a, b)), -jnp.inf)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws, differentiable in a and b."""
        a, b = broadcast(self.a, self.b)
        full = (*shape, *a.shape)
        a, b = jnp.broadcast_to(a, full), jnp.broadcast_to(b, full)
        return jax.random.beta(key, a, b, full, a.dtype)

    def kl(self, other: Distribution) -> jax.Array:
        """KL[self ‖ other], that of the Dirichlet distribution over (x, 1 − x)."""
        if not isinstance(other, Beta):
            raise self._no_kl(other, "Beta")
        return self._as_dirichlet().kl(other._as_dirichlet())

    def _as_dirichlet(self) -> Dirichlet:
        return Dirichlet(jnp.stack(broadcast(self.a, self.b), -1))

    @property
    def natural_parameters(self) -> Natural:
        """η = (a, b)."""
        a, b = broadcast(self.a, self.b)
        return a, b

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The Beta with natural parameters η."""
        return cls(*natural)

    @staticmethod
    def log_partition_of(natural: Natural) -> jax.Array:
        """A(η) = ln B(η₁, η₂)."""
        return Dirichlet.log_partition_of((jnp.stack(natural, -1),))

    @staticmethod
    def is_valid_natural(natural: Natural) -> jax.Array:
        """η₁ > 0 and η₂ > 0."""
        return (natural[0] > 0) & (natural[1] > 0)

    @classmethod
    def log_partition_difference(cls, new: Natural, old: Natural) -> jax.Array:
        """A(new) − A(old), accurate for large a and b."""
        return Dirichlet.log_partition_difference((jnp.stack(new, -1),), (jnp.stack(old, -1),))
