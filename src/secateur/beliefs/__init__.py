"""A mean-field posterior over any pytree: which leaves are uncertain, their priors, what is pruned.

There is no class of beliefs. Beliefs are the model's own parameters with a `Normal` in the place of
every uncertain array and whatever was there in every other place, so that everything which works
on the parameters' pytree (Equinox modules, nnx.State, dicts, lists, named tuples) works on beliefs.

One convention holds everywhere: an element whose variance is exactly 0 is certain. It has no
parameter, no complexity and no gradient. A pruned weight is one that is certainly 0.
"""

from secateur.beliefs.choosing import believe, priors
from secateur.beliefs.divergence import complexity
from secateur.beliefs.elements import Count, count, cut, hold_pruned, live, mean, sample
from secateur.beliefs.trees import is_belief
from secateur.beliefs.vectors import ravel

__all__ = [
    "Count",
    "believe",
    "complexity",
    "count",
    "cut",
    "hold_pruned",
    "is_belief",
    "live",
    "mean",
    "priors",
    "ravel",
    "sample",
]
