"""Distributions as pytrees: Normal, Gamma, Beta, Dirichlet, Laplace and more.

Each is a frozen dataclass whose fields are its parameters and its pytree leaves. Nothing is
converted or checked on construction, because JAX also builds them from tracers and placeholders.
Normal, Gamma, Beta and Laplace are elementwise: a `Normal` of two arrays of shape (3, 4) is twelve
independent Normals, and `log_prob` and `kl` return twelve numbers. A Dirichlet lies along the last
axis. Parameters broadcast, so `Normal(0.0, 1.0)` is the prior of a whole network.
"""

from secateur.distributions.exponential_family import Distribution, ExponentialFamily
from secateur.distributions.gamma import Beta, Gamma
from secateur.distributions.multivariate import Dirichlet, MultivariateNormal
from secateur.distributions.normal import Laplace, Normal, ScaleMixture
from secateur.distributions.unit_normal import UnitNormal

__all__ = [
    "Beta",
    "Dirichlet",
    "Distribution",
    "ExponentialFamily",
    "Gamma",
    "Laplace",
    "MultivariateNormal",
    "Normal",
    "ScaleMixture",
    "UnitNormal",
]
