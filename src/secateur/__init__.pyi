# The public names, one by one. They are imported when first used (`__init__.py`), so that
# `secateur --help` need not wait for JAX.
from . import datasets, networks
from .beliefs import believe, complexity, count, cut, live, priors
from .checkpoints import CheckpointError, CheckpointWarning
from .compaction import Compacted, compact
from .distributions import (
    Beta,
    Dirichlet,
    Gamma,
    Laplace,
    MultivariateNormal,
    Normal,
    ScaleMixture,
)
from .energy import FreeEnergy, free_energy
from .exports import ExportError, Sheet, export
from .files import FileError, Loaded, load, save
from .fitting import FitError, Fitted, Recipe, fit, fit_many
from .likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from .model import BayesianModel
from .progress import Report
from .propagation import (
    Coverage,
    UnsupportedOperation,
    coverage,
    propagate,
    register_rule,
    unregister_rule,
)
from .pruning import Pruned, Round, Sweep, prune, prune_exactly, prune_many, sweep
from .reduction import (
    condition_on_zero,
    group_scores,
    prune_scores,
    reduce,
    savage_dickey,
)
from .structure import Unit, Units, units
from .updating import update

__version__: str

__all__ = [
    "BayesianModel",
    "BernoulliLikelihood",
    "Beta",
    "CategoricalLikelihood",
    "CheckpointError",
    "CheckpointWarning",
    "Compacted",
    "Coverage",
    "Dirichlet",
    "ExportError",
    "FileError",
    "FitError",
    "Fitted",
    "FreeEnergy",
    "Gamma",
    "GaussianLikelihood",
    "Laplace",
    "Loaded",
    "MultivariateNormal",
    "Normal",
    "PoissonLikelihood",
    "Pruned",
    "Recipe",
    "Report",
    "Round",
    "ScaleMixture",
    "Sheet",
    "Sweep",
    "Unit",
    "Units",
    "UnsupportedOperation",
    "believe",
    "compact",
    "complexity",
    "condition_on_zero",
    "count",
    "coverage",
    "cut",
    "datasets",
    "export",
    "fit",
    "fit_many",
    "free_energy",
    "group_scores",
    "live",
    "load",
    "networks",
    "priors",
    "propagate",
    "prune",
    "prune_exactly",
    "prune_many",
    "prune_scores",
    "reduce",
    "register_rule",
    "savage_dickey",
    "save",
    "sweep",
    "units",
    "unregister_rule",
    "update",
]
