"""Bayesian model reduction run to its end, and growing back."""

from secateur.pruning.prune import Pruned, prune, prune_many
from secateur.pruning.rounds import Round

__all__ = ["Pruned", "Round", "prune", "prune_many"]
