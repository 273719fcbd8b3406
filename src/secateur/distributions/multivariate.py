"""Distributions over vectors: Dirichlet and MultivariateNormal.

The last axis holds the vector; the axes before it are a batch of independent members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln, xlogy

from secateur.distributions.exponential_family import Distribution, ExponentialFamily, Natural
from secateur.distributions.special import (
    broadcast,
    cholesky_of_live,
    gammaln_difference,
    gammaln_divergence,
    less_total,
    log_det,
    with_total,
)
from secateur.registration import register_dataclass

_LOG_2PI = math.log(2 * math.pi)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Dirichlet(ExponentialFamily):
    """Dirichlet distribution over the last axis; values are points of the simplex.

    Dir(x | α) = Π_k x_k^(α_k−1) Γ(Σα)/ΠΓ(α_k);  T = ln x,  η = α,  h = Π 1/x_k

    >>> Dirichlet(jnp.array([1.0, 1.0, 2.0])).mean.tolist()
    [0.25, 0.25, 0.5]
    """

    concentration: Any

    @property
    def mean(self) -> jax.Array:
        """α/Σα."""
        (concentration,) = broadcast(self.concentration)
        return concentration / concentration.sum(-1, keepdims=True)

    @property
    def variance(self) -> jax.Array:
        """Of each component: m (1 − m) / (Σα + 1) with m its mean."""
        (concentration,) = broadcast(self.concentration)
        total = concentration.sum(-1, keepdims=True)
        mean = concentration / total
        return mean * ((total - concentration) / total) / (total + 1)

    def log_prob(self, value: Any) -> jax.Array:
        """Σ (α_k − 1) ln x_k − A(α), for x on the simplex (its sum is not checked)."""
        value, concentration = broadcast(value, self.concentration)
        inside = jnp.all(value >= 0, -1)
        value = jnp.where(inside[..., None], value, 1)
        log_kernel = xlogy(concentration - 1, value).sum(-1)
        return jnp.where(inside, log_kernel - self.log_partition_of((concentration,)), -jnp.inf)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent points of the simplex, differentiable in α."""
        (concentration,) = broadcast(self.concentration)
        full = (*shape, *concentration.shape)
        concentration = jnp.broadcast_to(concentration, full)
        return jax.random.dirichlet(key, concentration, full[:-1], concentration.dtype)

    def kl(self, other: Distribution) -> jax.Array:
        """KL[self ‖ other], the divergence of A."""
        if not isinstance(other, Dirichlet):
            raise self._no_kl(other, "Dirichlet")
        own, of_p = broadcast(self.concentration, other.concentration)
        return less_total(gammaln_divergence(with_total(of_p), with_total(own)))

    @property
    def natural_parameters(self) -> Natural:
        """η = (α,)."""
        return tuple(broadcast(self.concentration))

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The Dirichlet with natural parameters η."""
        return cls(*natural)

    @staticmethod
    def log_partition_of(natural: Natural) -> jax.Array:
        """A(η) = Σ ln Γ(α_k) − ln Γ(Σα)."""
        return less_total(gammaln(with_total(natural[0])))

    @staticmethod
    def is_valid_natural(natural: Natural) -> jax.Array:
        """Every α_k > 0."""
        return jnp.all(natural[0] > 0, -1)

    @classmethod
    def log_partition_difference(cls, new: Natural, old: Natural) -> jax.Array:
        """A(new) − A(old), accurate for large α."""
        return less_total(gammaln_difference(with_total(new[0]), with_total(old[0])))


@register_dataclass
@dataclass(frozen=True, eq=False)
class MultivariateNormal(ExponentialFamily):
    """Normal distribution with full covariance over the last axis of `mean`.

    N(x | μ, Σ) = exp(−½ (x−μ)ᵀ Σ⁻¹ (x−μ)) / √|2πΣ|

    T = (x, xxᵀ),  η = (Σ⁻¹μ, −½Σ⁻¹),  h = (2π)^(−d/2)

    A coordinate whose row and column of Σ are exactly 0 is certain, as in `Normal`.

    >>> MultivariateNormal(jnp.zeros(2), jnp.array([[2.0, 1.0], [1.0, 3.0]])).variance.tolist()
    [2.0, 3.0]
    """

    mean: Any
    covariance: Any

    @property
    def variance(self) -> jax.Array:
        """The diagonal of Σ."""
        return jnp.diagonal(self.covariance, axis1=-2, axis2=-1)

    def _parts(self, *values: Any) -> tuple[list[jax.Array], jax.Array, jax.Array]:
        """Values and mean in one shape, the Cholesky factor, and which coordinates are certain."""
        vectors = broadcast(*values, self.mean, jnp.asarray(self.covariance)[..., 0])
        factor, certain = cholesky_of_live(jnp.asarray(self.covariance, vectors[0].dtype))
        factor = jnp.broadcast_to(factor, (*vectors[0].shape, vectors[0].shape[-1]))
        return vectors[:-1], factor, jnp.broadcast_to(certain, vectors[0].shape)

    def log_prob(self, value: Any) -> jax.Array:
        """−½ ((x − μ)ᵀ Σ⁻¹ (x − μ) + ln |2πΣ|)."""
        (value, mean), factor, certain = self._parts(value)
        whitened = solve_triangular(factor, (value - mean)[..., None], lower=True)[..., 0]
        density = -0.5 * (
            jnp.square(whitened).sum(-1) + log_det(factor) + mean.shape[-1] * _LOG_2PI
        )
        at_certain = jnp.where(jnp.all(~certain | (value == mean), -1), jnp.inf, -jnp.inf)
        return jnp.where(certain.any(-1), at_certain, density)

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """μ + L·noise with L the Cholesky factor of Σ."""
        (mean,), factor, certain = self._parts()
        noise = jax.random.normal(key, (*shape, *mean.shape), mean.dtype)
        mean, certain, noise = (jnp.broadcast_to(x, noise.shape) for x in (mean, certain, noise))
        return mean + jnp.where(certain, 0, jnp.einsum("...ij,...j->...i", factor, noise))

    def kl(self, other: Distribution) -> jax.Array:
        """KL[self ‖ other] = ½ (tr Σ'⁻¹Σ − d + (μ−μ')ᵀ Σ'⁻¹ (μ−μ') + ln |Σ'| − ln |Σ|).

        A coordinate that is certain in both, at the same value, contributes 0. A coordinate that is
        certain in only one of them, or at different values, makes the divergence +inf.
        """
        if not isinstance(other, MultivariateNormal):
            raise self._no_kl(other, "MultivariateNormal")
        (mean_p, mean), factor, certain = self._parts(other.mean)
        _, factor_p, certain_p = other._parts(mean)
        both = jnp.concatenate([factor, (mean - mean_p)[..., None]], -1)
        squares = jnp.square(solve_triangular(factor_p, both, lower=True)).sum((-2, -1))
        divergence = 0.5 * (squares - mean.shape[-1] + log_det(factor_p) - log_det(factor))
        comparable = jnp.all((certain == certain_p) & (~certain | (mean == mean_p)), -1)
        return jnp.where(comparable, divergence, jnp.inf)

    @property
    def natural_parameters(self) -> Natural:
        """η = (Σ⁻¹μ, −½Σ⁻¹)."""
        (mean,), factor, _ = self._parts()
        identity = jnp.broadcast_to(jnp.eye(mean.shape[-1], dtype=mean.dtype), factor.shape)
        half = solve_triangular(factor, identity, lower=True)
        precision = half.mT @ half
        return jnp.einsum("...ij,...j->...i", precision, mean), -0.5 * precision

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The Normal with natural parameters η."""
        covariance = jnp.linalg.inv(-2 * natural[1])
        return cls(jnp.einsum("...ij,...j->...i", covariance, natural[0]), covariance)

    @staticmethod
    def log_partition_of(natural: Natural) -> jax.Array:
        """A(η) = −¼ η₁ᵀ η₂⁻¹ η₁ − ½ ln |−2η₂|."""
        factor = jnp.linalg.cholesky(-2 * natural[1])
        whitened = solve_triangular(factor, natural[0][..., None], lower=True)
        return 0.5 * (jnp.square(whitened).sum((-2, -1)) - log_det(factor))

    @staticmethod
    def is_valid_natural(natural: Natural) -> jax.Array:
        """−η₂ is positive definite."""
        return jnp.linalg.eigvalsh(-2 * natural[1])[..., 0] > 0
