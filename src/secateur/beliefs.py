"""A mean-field posterior over any pytree: which leaves are uncertain, their priors, what is pruned.

There is no class of beliefs. Beliefs are the model's own parameters with a `Normal` in place of
every uncertain array; all other leaves are unchanged. So everything that works on the pytree of
parameters (Equinox modules, nnx.State, dicts, lists, named tuples) also works on beliefs.

One convention holds everywhere: an element whose variance is exactly 0 is certain. It has no
parameter, no complexity and no gradient. A pruned weight is one that is certainly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.correlations import condition_units, sample_units, shared_information
from secateur.distributions import (
    Beta,
    Dirichlet,
    Distribution,
    Gamma,
    Laplace,
    MultivariateNormal,
    Normal,
)
from secateur.distributions.normal import check_spread
from secateur.pytrees import (
    PyTree,
    align_tree,
    broadcast_prefix,
    flatten_beliefs,
    is_belief,
    map_beliefs,
    uncertain_leaves,
)
from secateur.quadrature import expectation

__all__ = ["Count", "believe", "complexity", "count", "cut", "live", "priors"]

_LOG_2PI_E = math.log(2 * math.pi) + 1


# --- making leaves uncertain ----------------------------------------------------------------------


def believe(
    params: PyTree,
    *,
    variance: float | Array | PyTree | Callable[[str, Array], Any],
    where: PyTree | Callable[[str, Array], bool] | None = None,
) -> PyTree:
    """Make parameters uncertain: replace each selected array by a Normal around it.

        q(θ) = N(θ | leaf, variance)

    Functions, strings, numbers and arrays of integers, booleans or complex numbers pass through.
    So does a leaf that is already a Normal, so two calls can give two groups different variances.

    Args:
        params: Any pytree.
        variance: Initial variance. One number for all; or a pytree (or a prefix of one) of numbers
            or arrays that broadcast to their leaf; or a function of (path, leaf).
        where: Which arrays become uncertain. None: every floating-point array. A function of (path,
            leaf), called with every array, and with paths such as ``"layers[0].weight"`` or
            ``"['w']"``. Or a pytree (or a prefix of one) of bools, where True over a whole subtree
            selects the floating-point arrays in it.

    Returns:
        The beliefs, with the structure of `params`.

    Raises:
        ValueError: `where` selects an array that cannot be uncertain, or nothing at all; or a
            variance is negative, not finite or of the wrong shape.

    Example:
        >>> beliefs = believe({"w": jnp.ones(3), "steps": 7}, variance=0.1)
        >>> beliefs["w"].variance.shape, beliefs["steps"]
        ((3,), 7)
        >>> beliefs = believe([jnp.ones(2), jnp.ones(1)], variance=0.1, where=[True, False])
        >>> is_belief(beliefs[0]), is_belief(beliefs[1])
        (True, False)

    Reference: the factors of q(θ), equation (8a) of the paper.
    """
    leaves, paths, treedef = flatten_beliefs(params)
    chosen = _choose(leaves, paths, treedef, where)
    if not any(chosen):
        raise ValueError(
            "no leaf was made uncertain: `where` selected none of the floating-point arrays, which "
            f"are {[p for p, x in zip(paths, leaves, strict=True) if _can_believe(x)]}. "
            "Choose at least one, or leave `where` out to choose all."
        )
    given = _per_leaf(variance, paths, leaves, treedef, chosen, "variance")
    new = [
        Normal(jnp.asarray(leaf), _variance_for(leaf, value, path)) if yes else leaf
        for leaf, path, yes, value in zip(leaves, paths, chosen, given, strict=True)
    ]
    return treedef.unflatten(new)


def priors(
    beliefs: PyTree, prior: Distribution | PyTree | Callable[[str, Array], Distribution]
) -> PyTree:
    """Return the prior of every uncertain leaf, broadcast to its shape; None for other leaves.

    Args:
        beliefs: See `believe`.
        prior: One distribution for all; or a pytree (or a prefix of one) of distributions, None
            where nothing is uncertain; or a function of (path, leaf), where the leaf is the array
            of means. Normal and Laplace have a closed complexity; of any other distribution of
            independent elements with a `log_prob` on the whole line it is integrated numerically.

    Returns:
        A pytree with the structure of `beliefs`.

    Example:
        >>> beliefs = believe({"w": jnp.ones((2, 3)), "steps": 7}, variance=0.1)
        >>> priors(beliefs, Normal(0.0, 1.0))["w"].variance.shape
        (2, 3)

    Reference: equation (2) of the paper.
    """
    leaves, paths, treedef = flatten_beliefs(beliefs)
    chosen = [is_belief(leaf) for leaf in leaves]
    arrays = [leaf.mean if is_belief(leaf) else leaf for leaf in leaves]
    given = _per_leaf(prior, paths, arrays, treedef, chosen, "prior")
    new = [
        _prior_for(leaf, value, path) if yes else None
        for leaf, path, yes, value in zip(leaves, paths, chosen, given, strict=True)
    ]
    return treedef.unflatten(new)


def _choose(leaves: list[Any], paths: list[str], treedef: Any, where: Any) -> list[bool]:
    if where is None:
        return [_can_believe(leaf) for leaf in leaves]
    chosen, asked_for = [], []
    if callable(where):
        flags = [
            bool(where(path, leaf)) if _is_array(leaf) else False
            for leaf, path in zip(leaves, paths, strict=True)
        ]
        chosen = [f and _can_believe(x) for f, x in zip(flags, leaves, strict=True)]
        asked_for = flags
    else:
        for leaf, (flag, exact) in zip(
            leaves, broadcast_prefix(where, treedef, "where"), strict=True
        ):
            chosen.append(bool(flag) and _can_believe(leaf))
            # For a subtree, True selects whatever can be uncertain; for a leaf, the leaf itself.
            asked_for.append(bool(flag) and exact)
    for leaf, path, yes, asked in zip(leaves, paths, chosen, asked_for, strict=True):
        if asked and not yes:
            raise ValueError(
                f"`where` chose {path or 'the root'}, which cannot be uncertain: it is "
                f"{_describe(leaf)}. Supported: floating-point arrays. Leave it out of "
                "`where`, or convert it first."
            )
    return chosen


def _per_leaf(
    given: Any, paths: list[str], leaves: list[Any], treedef: Any, chosen: list[bool], what: str
) -> list[Any]:
    """Return one value per leaf, from a function of (path, leaf) or from a pytree prefix."""
    if callable(given):
        return [
            given(path, leaf) if yes else None
            for path, leaf, yes in zip(paths, leaves, chosen, strict=True)
        ]
    return [value for value, _ in broadcast_prefix(given, treedef, what)]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _can_believe(leaf: Any) -> bool:
    return _is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)


def _describe(leaf: Any) -> str:
    if is_belief(leaf):
        return "a Normal already"
    return f"an array of {leaf.dtype}" if _is_array(leaf) else f"a {type(leaf).__name__}"


def _variance_for(leaf: Any, value: Any, path: str) -> Array:
    try:
        variance = _broadcast(value, leaf.shape, leaf.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the variance given for {path or 'the root'} is {value!r}, which does not broadcast "
            f"to its shape {leaf.shape}. Give a number or an array that does."
        ) from error
    if not isinstance(variance, jax.core.Tracer):
        known = np.asarray(variance)
        smallest, largest = np.min(known, initial=0), np.max(known, initial=0)
        if not (smallest >= 0 and np.isfinite(largest)):
            raise ValueError(
                f"the variance given for {path or 'the root'} must be finite and at least 0, and "
                f"ranges from {smallest} to {largest}. (It is a variance, never its logarithm.)"
            )
    return variance


def _broadcast(value: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Broadcast, with NumPy unless the value is a JAX array, to avoid compilation."""
    if isinstance(value, jax.Array):
        return jnp.broadcast_to(value.astype(dtype), shape)
    return jax.device_put(np.broadcast_to(np.asarray(value, dtype), shape))


def _prior_for(q: Normal, prior: Any, path: str) -> Any:
    name = path or "the root"
    if isinstance(prior, Gamma | Beta | Dirichlet | MultivariateNormal) or not hasattr(
        prior, "log_prob"
    ):
        raise TypeError(
            f"the prior given for {name} is {prior!r}. Give a distribution, such as Normal(0.0, "
            "1.0). Supported: Normal, Laplace, or any distribution of independent elements with a "
            "log_prob on the whole line (a Normal belief would be infinitely complex under any "
            "other)."
        )
    check_spread(prior, name)
    if jax.tree.leaves(prior, is_leaf=lambda node: node is prior) == jax.tree.leaves(prior):
        return prior  # not a pytree: it broadcasts itself
    shape, dtype = jnp.shape(q.mean), jnp.result_type(q.mean)
    try:
        return jax.tree.map(lambda p: _broadcast(p, shape, dtype), prior)
    except ValueError as error:
        raise ValueError(
            f"the parameters of the prior given for {name} do not broadcast to its shape {shape}: "
            f"{prior!r}. Give numbers, or arrays that do."
        ) from error


# --- complexity -----------------------------------------------------------------------------------


def complexity(beliefs: PyTree, priors: PyTree) -> Array:
    """Σ KL[q(θ) ‖ p(θ)] over the live weights, in nats.

        Normal prior:  ½ (σ²/σ_p² − 1 − ln σ²/σ_p²) + (μ − μ_p)²/(2σ_p²)
        any other:     E_q[−ln p(θ)] − ½ ln(2πe σ²)

    The expectation is closed for a Laplace prior. For others it is a quadrature that resolves a
    prior around its mean down to its attribute `detail`, a scale, or else down to about its own
    standard deviation: a spike within a wide prior needs that attribute (see `ScaleMixture`).

    Args:
        beliefs: See `believe`.
        priors: One distribution per uncertain leaf, as from `secateur.priors`.

    Returns:
        A scalar. An element of variance 0 contributes nothing, to the value or to the gradient.

    Example:
        >>> from secateur.beliefs import believe, priors
        >>> beliefs = believe({"w": jnp.ones(3)}, variance=1.0)
        >>> float(complexity(beliefs, priors(beliefs, Normal(0.0, 1.0))))
        1.5

    Reference: the first term of equation (7) of the paper.
    """
    leaves, paths, treedef = flatten_beliefs(beliefs)
    total = jnp.zeros((), jnp.float32)
    for leaf, prior, path in zip(leaves, align_tree(priors, treedef, "priors"), paths, strict=True):
        if not is_belief(leaf):
            continue
        if prior is None:
            raise ValueError(
                f"the uncertain leaf {path or 'at the root'} has no prior. Give every uncertain "
                "leaf one: secateur.priors(beliefs, Normal(0.0, 1.0))."
            )
        alive = leaf.variance > 0
        # Two selections, so that neither the value nor the gradient of a dead weight is computed.
        q = Normal(leaf.mean, jnp.where(alive, leaf.variance, 1))
        divergence = jnp.where(alive, _divergence(q, prior), 0)
        total = total + jnp.sum(divergence, dtype=jnp.promote_types(divergence.dtype, jnp.float32))
    return total + shared_information(leaves, align_tree(priors, treedef, "priors"))


def _divergence(q: Normal, prior: Any) -> Array:
    if isinstance(prior, Normal | Laplace):
        return q.kl(prior)
    location = jnp.broadcast_to(getattr(prior, "mean", 0.0), q.mean.shape)
    if hasattr(prior, "detail"):
        scale = jnp.broadcast_to(prior.detail, q.mean.shape)
    else:
        scale = jnp.sqrt(jnp.broadcast_to(getattr(prior, "variance", 1.0), q.mean.shape))
    location, scale = jax.lax.stop_gradient((location, scale))
    # In units in which the prior's finest detail is 1, where the quadrature concentrates its nodes.
    cross_entropy = expectation(
        lambda z: -prior.log_prob(location + scale * z),
        (q.mean - location) / scale,
        q.variance / jnp.square(scale),
    )
    return cross_entropy - 0.5 * (_LOG_2PI_E + jnp.log(q.variance))


# --- single weights -------------------------------------------------------------------------------


def sample_weights(key: Array, beliefs: PyTree) -> PyTree:
    """Draw parameters from beliefs; elements (or units with a covariance) are independent.

        θ = mean + √variance · noise

    Differentiable in both; where the variance is 0, θ is the mean and the variance has gradient 0.

    Args:
        key: A JAX random key.
        beliefs: See `believe`.

    Returns:
        Parameters: the beliefs with an array in place of each Normal.

    Example:
        >>> certain = {"w": Normal(jnp.ones(2), jnp.zeros(2))}
        >>> sample_weights(jax.random.key(0), certain)["w"].tolist()
        [1.0, 1.0]
    """
    leaves, _, treedef = flatten_beliefs(beliefs)
    keys = iter(jax.random.split(key, max(1, sum(map(is_belief, leaves)))))
    leaves = sample_units(keys, leaves)
    return treedef.unflatten(
        [leaf.sample(next(keys)) if is_belief(leaf) else leaf for leaf in leaves]
    )


def mean_weights(beliefs: PyTree) -> PyTree:
    """Return the parameters at the mean of the beliefs.

    Example:
        >>> mean_weights({"w": Normal(2.0, 1.0), "steps": 7})
        {'steps': 7, 'w': 2.0}
    """
    return map_beliefs(lambda q: q.mean, beliefs)


def live(beliefs: PyTree) -> PyTree:
    """Return masks of the weights that have not been pruned; None for leaves that are certain.

        live = (variance > 0)

    Example:
        >>> live([Normal(jnp.zeros(2), jnp.array([1.0, 0.0]))])[0].tolist()
        [True, False]
    """
    return map_beliefs(lambda q: q.variance > 0, beliefs, otherwise=lambda leaf: None)


def cut(beliefs: PyTree, keep: PyTree) -> PyTree:
    """Prune every element that is not kept: its mean and variance become exactly 0.

    Correlated weights of the same unit are conditioned on this.

    Args:
        beliefs: See `believe`.
        keep: A pytree with the structure of `beliefs`. In place of an uncertain leaf, a boolean
            mask that broadcasts to its shape (True keeps a weight), or None to keep it all.

    Returns:
        The beliefs, with their structure and shapes unchanged.

    Example:
        >>> q = Normal(jnp.array([2.0, 0.1]), jnp.ones(2))
        >>> cut({"w": q}, {"w": jnp.array([True, False])})["w"].mean.tolist()
        [2.0, 0.0]
    """
    leaves, paths, treedef = flatten_beliefs(beliefs)
    masks = align_tree(keep, treedef, "keep")
    new = [
        leaf if mask is None else _cut_leaf(leaf, mask, path)
        for leaf, mask, path in zip(leaves, masks, paths, strict=True)
    ]
    return treedef.unflatten(condition_units(leaves, masks, new))


class Count(NamedTuple):
    """Number of live weights, and of all weights, including pruned ones."""

    live: int
    total: int


def count(beliefs: PyTree) -> Count:
    """Count live weights and all weights of the uncertain leaves; not under `jit`.

    Example:
        >>> count([Normal(jnp.zeros(3), jnp.array([1.0, 0.0, 2.0])), jnp.zeros(9)])
        Count(live=2, total=3)
    """
    uncertain = list(uncertain_leaves(beliefs))
    return Count(
        live=sum(_positive(q.variance) for q in uncertain),
        total=sum(jnp.size(q.mean) for q in uncertain),
    )


def _positive(values: Any) -> int:
    """Count positive values, with NumPy where it can see them all, to avoid compilation."""
    if isinstance(values, jax.Array) and not values.is_fully_addressable:
        return int(jnp.count_nonzero(values > 0))
    return int(np.count_nonzero(np.asarray(values) > 0))


def hold_pruned(beliefs: PyTree) -> PyTree:
    """Return the same beliefs, but let no gradient reach an element whose variance is 0.

    A model's output does depend on the mean of a pruned weight; an optimiser that followed that
    gradient would move it away from 0, unseen by the complexity.

    Example:
        >>> q = Normal(jnp.array([2.0, 0.0]), jnp.array([1.0, 0.0]))
        >>> jax.grad(lambda q: hold_pruned(q).mean.sum())(q).mean.tolist()
        [1.0, 0.0]
    """

    def hold(q: Normal) -> Normal:
        # XLA folds select(p, x, x) to x: only the backward pass does any work.
        def hold_array(a: Array) -> Array:
            alive = (q.variance > 0).reshape(q.variance.shape + (1,) * (a.ndim - q.variance.ndim))
            return jnp.where(alive, a, jax.lax.stop_gradient(a))

        return jax.tree.map(hold_array, q)

    return map_beliefs(hold, beliefs)


def _cut_leaf(leaf: Any, mask: Any, path: str) -> Normal:
    if not is_belief(leaf):
        raise ValueError(
            f"`keep` has a mask for {path or 'the root'}, which is certain. Only uncertain leaves "
            "can be cut; put None in its place."
        )
    if jnp.result_type(mask) != jnp.bool_:
        raise ValueError(
            f"`keep` for {path or 'the root'} has dtype {jnp.result_type(mask)}. Masks are "
            "booleans, True where a weight is kept: delta_f > 0, say."
        )
    mask = jnp.broadcast_to(jnp.asarray(mask), jnp.shape(leaf.mean))
    return Normal(jnp.where(mask, leaf.mean, 0), jnp.where(mask, leaf.variance, 0))
