# The public names, one by one. They are imported when first used (`__init__.py`), so that
# `secateur --help` need not wait for JAX.
from . import datasets, importing, networks
from .averaging import Average
from .beliefs import believe, complexity, count, cut, live, priors
from .compaction import compact, shrink_module
from .distributions import (
    Beta,
    Dirichlet,
    Gamma,
    Laplace,
    MultivariateNormal,
    Normal,
    ScaleMixture,
    UnitNormal,
)
from .exports import ExportError, Sheet, export
from .files import FileError, load, save
from .fitting import fit, fit_many
from .importing import ImportedFunction, OnnxError, from_onnx, from_torch, to_torch
from .likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from .model import BayesianModel
from .predictive import Predictive
from .progress import ProgressUpdate
from .propagation import (
    Coverage,
    UnsupportedOperation,
    coverage,
    propagate,
    register_rule,
    unregister_rule,
)
from .pruning import Sweep, prune, prune_exactly, prune_many, sweep
from .reduction import (
    condition_on_zero,
    group_scores,
    prune_scores,
    reduce,
    savage_dickey,
)
from .registration import register_dataclass
from .structure import Unit, Units, units
from .trained import Compaction, FitError, History, Round, Trained
from .training.checkpoint import CheckpointError, CheckpointWarning
from .training.objective import FreeEnergy, free_energy
from .training.recipe import Recipe
from .updating import update

__version__: str

__all__ = [
    "Average",
    "BayesianModel",
    "BernoulliLikelihood",
    "Beta",
    "CategoricalLikelihood",
    "CheckpointError",
    "CheckpointWarning",
    "Compaction",
    "Coverage",
    "Dirichlet",
    "ExportError",
    "FileError",
    "FitError",
    "FreeEnergy",
    "Gamma",
    "GaussianLikelihood",
    "History",
    "ImportedFunction",
    "Laplace",
    "MultivariateNormal",
    "Normal",
    "OnnxError",
    "PoissonLikelihood",
    "Predictive",
    "ProgressUpdate",
    "Recipe",
    "Round",
    "ScaleMixture",
    "Sheet",
    "Sweep",
    "Trained",
    "Unit",
    "UnitNormal",
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
    "from_onnx",
    "from_torch",
    "group_scores",
    "importing",
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
    "register_dataclass",
    "register_rule",
    "savage_dickey",
    "save",
    "shrink_module",
    "sweep",
    "to_torch",
    "units",
    "unregister_rule",
    "update",
]
