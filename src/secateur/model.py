"""A model function, together with the assumptions made before seeing data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from secateur.distributions import Distribution, Normal
from secateur.likelihoods import GaussianLikelihood
from secateur.likelihoods.base import Likelihood, check_instance
from secateur.propagation.transform import ALGORITHMS

__all__ = ["BayesianModel", "StateNote"]

# Classes of Flax NNX whose arrays are not weights.
_STATE_CLASSES = ("BatchStat", "RngKey", "RngCount", "RngState", "Cache", "Intermediate")
# Names beside "params" under which Flax Linen, and libraries with its conventions, keep state.
_STATE_COLLECTIONS = {
    "batch_stats",
    "cache",
    "intermediates",
    "state",
    "constants",
    "spectral_stats",
}


class StateNote(UserWarning):
    """Part of the params is state, not weights, and stays certain; pass `where=` to choose."""


POSTERIORS = ("mean-field", "unit")
# Those, and what "unit" means for units with many weights.
FORMS = (*POSTERIORS, "low-rank")


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
            that a unit sums over (with its bias) have a covariance; `"low-rank"`, likewise with a
            precision of a diagonal and 4 directions, which is what `"unit"` means for units of
            more than 200 weights; or a function of (path, leaf) that returns one of these.
            Covariance needs Normal priors, and memory: each weight has as many numbers as its
            unit has weights, or 6 with the low rank.
        where: Choice of the leaves that are uncertain. Defaults to all arrays of floating-point
            numbers but a library's state, such as the `batch_stats` of a Flax Linen module, which
            stays as it is, with a `StateNote`; see `secateur.believe`.

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
        if isinstance(self.posterior, str) and self.posterior not in FORMS:
            raise ValueError(
                f"BayesianModel: posterior={self.posterior!r}. Supported: "
                f"{', '.join(FORMS)}, or a function of (path, leaf) that returns one of these."
            )
        if self.where is None:
            self._keep_state_certain()
        check_instance(self.likelihood)
        if isinstance(self.prior, type | str):
            name = self.prior if isinstance(self.prior, str) else self.prior.__name__
            raise TypeError(
                f"BayesianModel: prior={name} is not a distribution. Give an instance with its "
                "parameters, such as prior=Normal(0.0, 1.0)."
            )

    def _keep_state_certain(self) -> None:
        """Choose the weights among the params, if they hold state as well."""
        choice = _weights_only(self.params)
        state = sorted({name for name in jax.tree.leaves(choice) if isinstance(name, str)})
        if not state:
            return
        where = jax.tree.map(lambda name: not isinstance(name, str), choice)
        object.__setattr__(self, "where", where)
        warnings.warn(
            f"{', '.join(state)} in the params is state and not weights: it stays as it is. Give "
            "where= to choose the uncertain leaves yourself.",
            StateNote,
            stacklevel=4,
        )


def _weights_only(params: Any) -> Any:
    """Return a prefix of the params with the names of what is state, and True elsewhere."""
    if isinstance(params, Mapping) and "params" in params:
        names = {k: str(k) if k in _STATE_COLLECTIONS else True for k in params}
        return type(params)(names)  # type: ignore[call-arg]

    def is_state(node: Any) -> bool:
        return any(cls.__name__ in _STATE_CLASSES for cls in type(node).__mro__)

    def choose(node: Any) -> Any:
        return type(node).__name__ if is_state(node) else True

    structure: Any
    nodes, structure = jax.tree.flatten(params, is_leaf=is_state)
    return structure.unflatten([choose(node) for node in nodes])
