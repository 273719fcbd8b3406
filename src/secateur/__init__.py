"""secateur: neural networks as Bayesian neural networks, pruned without thresholds."""

from secateur.beliefs import believe, complexity, count, cut, live, priors
from secateur.distributions import (
    Beta,
    Dirichlet,
    Gamma,
    Laplace,
    MultivariateNormal,
    Normal,
)
from secateur.free_energy import FreeEnergy, free_energy
from secateur.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from secateur.propagation import (
    Coverage,
    UnsupportedOperation,
    coverage,
    propagate,
    register_rule,
    unregister_rule,
)
from secateur.reduction import (
    condition_on_zero,
    group_scores,
    prune_scores,
    reduce,
    savage_dickey,
)

__version__ = "0.1.0"

__all__ = [
    "BernoulliLikelihood",
    "Beta",
    "CategoricalLikelihood",
    "Coverage",
    "Dirichlet",
    "FreeEnergy",
    "Gamma",
    "GaussianLikelihood",
    "Laplace",
    "MultivariateNormal",
    "Normal",
    "PoissonLikelihood",
    "UnsupportedOperation",
    "believe",
    "complexity",
    "condition_on_zero",
    "count",
    "coverage",
    "cut",
    "free_energy",
    "group_scores",
    "live",
    "priors",
    "propagate",
    "prune_scores",
    "reduce",
    "register_rule",
    "savage_dickey",
    "unregister_rule",
]
