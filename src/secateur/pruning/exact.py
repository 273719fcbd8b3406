"""Pruning if the whole posterior is known, without retraining."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from secateur.distributions import MultivariateNormal
from secateur.reduction import condition_on_zero, prune_scores

__all__ = ["ExactPruning", "prune_exactly"]


class ExactPruning(NamedTuple):
    """The result of greedy removal.

    Attributes:
        posterior: Posterior of the remaining weights; the others are exactly 0, and certain.
        kept: Mask of the remaining weights.
        removed: Indices of the removed weights, in the order of removal.
        delta_f: Exact free energy of the reduced model minus that of the full one, in nats.
    """

    posterior: MultivariateNormal
    kept: np.ndarray
    removed: tuple[int, ...]
    delta_f: float


def prune_exactly(posterior: MultivariateNormal, prior: MultivariateNormal) -> ExactPruning:
    """Remove weights one by one, always the one that lowers the free energy most.

    With a joint Normal posterior, the reduced posterior is its conditional and delta_f is the exact
    difference of the log-evidences (for a conjugate model), so nothing is estimated and there is
    nothing to retrain.

    Args:
        posterior: Joint posterior of all weights.
        prior: Joint prior of all weights.

    Returns:
        An `ExactPruning`.

    Example:
        >>> import jax.numpy as jnp
        >>> q = MultivariateNormal(jnp.array([2.0, 0.1]), 0.1 * jnp.eye(2))
        >>> found = prune_exactly(q, MultivariateNormal(jnp.zeros(2), jnp.eye(2)))
        >>> found.kept.tolist(), found.removed, round(found.delta_f, 3)
        ([True, False], (1,), -1.101)
    """
    kept = np.ones(posterior.mean.shape[-1], bool)
    removed: list[int] = []
    total = 0.0
    while kept.any():
        scores = np.where(kept, np.asarray(prune_scores(posterior, prior)), np.inf)
        lowest = int(np.argmin(scores))
        if not scores[lowest] <= 0:
            break
        total += float(scores[lowest])
        removed.append(lowest)
        kept[lowest] = False
        posterior, prior = (condition_on_zero(d, [lowest]) for d in (posterior, prior))
    return ExactPruning(posterior, kept, tuple(removed), total)
