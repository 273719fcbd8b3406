"""secateur: neural networks as Bayesian neural networks, pruned without thresholds."""

from secateur.beliefs import believe, complexity, count, cut, live, priors
from secateur.checkpoints import CheckpointError, CheckpointWarning
from secateur.distributions import (
    Beta,
    Dirichlet,
    Gamma,
    Laplace,
    MultivariateNormal,
    Normal,
    ScaleMixture,
)
from secateur.fitting import FitError, Fitted, Recipe, fit, fit_many
from secateur.free_energy import FreeEnergy, free_energy
from secateur.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from secateur.model import BayesianModel
from secateur.progress import Report
from secateur.propagation import (
    Coverage,
    UnsupportedOperation,
    coverage,
    propagate,
    register_rule,
    unregister_rule,
)
from secateur.pruning import Pruned, Round, Sweep, prune, prune_exactly, prune_many, sweep
from secateur.reduction import (
    condition_on_zero,
    group_scores,
    prune_scores,
    reduce,
    savage_dickey,
)
from secateur.units import Unit, Units, units
from secateur.updating import update

__version__ = "0.1.0"

__all__ = [
    "BayesianModel",
    "BernoulliLikelihood",
    "Beta",
    "CategoricalLikelihood",
    "CheckpointError",
    "CheckpointWarning",
    "Coverage",
    "Dirichlet",
    "FitError",
    "Fitted",
    "FreeEnergy",
    "Gamma",
    "GaussianLikelihood",
    "Laplace",
    "MultivariateNormal",
    "Normal",
    "PoissonLikelihood",
    "Pruned",
    "Recipe",
    "Report",
    "Round",
    "ScaleMixture",
    "Sweep",
    "Unit",
    "Units",
    "UnsupportedOperation",
    "believe",
    "complexity",
    "condition_on_zero",
    "count",
    "coverage",
    "cut",
    "fit",
    "fit_many",
    "free_energy",
    "group_scores",
    "live",
    "priors",
    "propagate",
    "prune",
    "prune_exactly",
    "prune_many",
    "prune_scores",
    "reduce",
    "register_rule",
    "savage_dickey",
    "sweep",
    "units",
    "unregister_rule",
    "update",
]
