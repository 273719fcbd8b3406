"""A model function together with what is believed before any data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from secateur.distributions import Distribution, Normal
from secateur.likelihoods import GaussianLikelihood
from secateur.likelihoods.base import Likelihood, check_instance
from secateur.propagation.transform import ALGORITHMS

__all__ = ["BayesianModel"]

POSTERIORS = ("mean-field", "unit")


@dataclass(frozen=True, eq=False)
class BayesianModel:
    """A model function, the weights it starts from, and the assumptions about data and weights.

        p(Y, θ, γ) = p(Y | f(θ, X), γ) p(θ) p(γ)

    Args:
        f: Any pure JAX function `f(params, x)`. Rows of data are the first axis of `x` and of the
            result.
        params: Weights, in any pytree and from any library. Training starts from them.
        likelihood: How targets scatter around the function; see `secateur.likelihoods`.
        prior: Prior of the weights: one distribution for all, or one per leaf; see
            `secateur.priors`.
        inference: `"moments"`, `"independent"`, `"local"` or `"global"`; see `secateur.propagate`.
        posterior: `"mean-field"`, where all weights are independent; `"unit"`, where the weights
            that a unit sums over (with its bias) have a covariance; or a function of (path, leaf)
            that returns one of these. Covariance needs Normal priors, and memory: each weight has
            as many numbers as its unit has weights.
        where: Choice of the leaves that are uncertain. Defaults to all arrays of floating-point
            numbers; see `secateur.believe`.

    Example:
        >>> import jax.numpy as jnp
        >>> model = BayesianModel(lambda w, x: x @ w, jnp.zeros((3, 1)), inference="local")
        >>> model.prior
        Normal(mean=0.0, variance=1.0)
    """

    f: Callable[[Any, Any], Any]
    params: Any
    likelihood: Likelihood = field(default_factory=GaussianLikelihood)
    prior: Distribution | Any = field(default_factory=lambda: Normal(0.0, 1.0))
    inference: str = "moments"
    where: Any = None
    posterior: Any = "mean-field"

    def __post_init__(self) -> None:
        if not callable(self.f):
            raise TypeError(
                f"BayesianModel: f is a {type(self.f).__name__}. Give a function f(params, x)."
            )
        if self.inference not in ALGORITHMS:
            raise ValueError(
                f"BayesianModel: inference={self.inference!r} is not an algorithm. Supported: "
                f"{', '.join(ALGORITHMS)}."
            )
        if isinstance(self.posterior, str) and self.posterior not in POSTERIORS:
            raise ValueError(
                f"BayesianModel: posterior={self.posterior!r}. Supported: "
                f"{', '.join(POSTERIORS)}, or a function of (path, leaf) that returns one of these."
            )
        check_instance(self.likelihood)
        if isinstance(self.prior, type | str):
            name = self.prior if isinstance(self.prior, str) else self.prior.__name__
            raise TypeError(
                f"BayesianModel: prior={name} is not a distribution. Give an instance with its "
                "parameters, such as prior=Normal(0.0, 1.0)."
            )
