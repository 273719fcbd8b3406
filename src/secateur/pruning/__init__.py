"""Bayesian model reduction run to its end, and growing back."""

from secateur.pruning.exact import ExactlyPruned, prune_exactly
from secateur.pruning.prune import Pruned, prune, prune_many
from secateur.pruning.rounds import Round
from secateur.pruning.sweep import Curve, Sweep, sweep

__all__ = [
    "Curve",
    "ExactlyPruned",
    "Pruned",
    "Round",
    "Sweep",
    "prune",
    "prune_exactly",
    "prune_many",
    "sweep",
]
