"""Iterative pruning by Bayesian model reduction, and regrowth of pruned weights."""

from secateur.pruning.algorithm import prune, prune_many
from secateur.pruning.curves import Curve, Sweep, sweep
from secateur.pruning.exact import ExactPruning, prune_exactly

__all__ = [
    "Curve",
    "ExactPruning",
    "Sweep",
    "prune",
    "prune_exactly",
    "prune_many",
    "sweep",
]
