"""The complexity of beliefs: how far they have moved from their priors."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.beliefs.trees import PyTree, aligned, flatten, is_belief
from secateur.distributions import Laplace, Normal
from secateur.quadrature import expectation

_LOG_2PI_E = math.log(2 * math.pi) + 1


def complexity(beliefs: PyTree, priors: PyTree) -> Array:
    """Σ KL[q(θ) ‖ p(θ)] over the live weights, in nats.

        Normal prior:  ½ (σ²/σ_p² − 1 − ln σ²/σ_p²) + (μ − μ_p)²/(2σ_p²)
        any other:     E_q[−ln p(θ)] − ½ ln(2πe σ²)

    The expectation is closed for a Laplace prior. For others it is a quadrature that resolves a
    prior around its mean down to its attribute `detail`, a scale, or else down to about its own
    standard deviation: a spike within a wide prior needs the former (see `ScaleMixture`).

    Args:
        beliefs: see `believe`.
        priors: one distribution per uncertain leaf, as from `secateur.beliefs.priors`.

    Returns:
        A scalar. Values and gradients are finite at variance 0, where there is neither.

    Example:
        >>> from secateur.beliefs import believe, priors
        >>> beliefs = believe({"w": jnp.ones(3)}, variance=1.0)
        >>> float(complexity(beliefs, priors(beliefs, Normal(0.0, 1.0))))
        1.5

    Reference: the first term of equation (7) of the paper.
    """
    leaves, paths, treedef = flatten(beliefs)
    total = jnp.zeros((), jnp.float32)
    for leaf, prior, path in zip(leaves, aligned(priors, treedef, "priors"), paths, strict=True):
        if not is_belief(leaf):
            continue
        if prior is None:
            raise ValueError(
                f"the uncertain leaf {path or 'at the root'} has no prior. Give every uncertain "
                "leaf one: secateur.beliefs.priors(beliefs, Normal(0.0, 1.0))."
            )
        alive = leaf.variance > 0
        # Two selections, so that neither the value nor the gradient of a dead weight is ever made.
        q = Normal(leaf.mean, jnp.where(alive, leaf.variance, 1))
        divergence = jnp.where(alive, _divergence(q, prior), 0)
        total = total + jnp.sum(divergence, dtype=jnp.promote_types(divergence.dtype, jnp.float32))
    return total


def _divergence(q: Normal, prior: Any) -> Array:
    if isinstance(prior, Normal | Laplace):
        return q.kl(prior)
    location = jnp.broadcast_to(getattr(prior, "mean", 0.0), q.mean.shape)
    if hasattr(prior, "detail"):
        scale = jnp.broadcast_to(prior.detail, q.mean.shape)
    else:
        scale = jnp.sqrt(jnp.broadcast_to(getattr(prior, "variance", 1.0), q.mean.shape))
    location, scale = jax.lax.stop_gradient((location, scale))
    # In units in which the prior's finest detail is 1: there the quadrature crowds its nodes.
    cross_entropy = expectation(
        lambda z: -prior.log_prob(location + scale * z),
        (q.mean - location) / scale,
        q.variance / jnp.square(scale),
    )
    return cross_entropy - 0.5 * (_LOG_2PI_E + jnp.log(q.variance))
