"""Which leaves are uncertain, how much, and what was believed of them before the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs.trees import PyTree, broadcast_prefix, flatten, is_belief
from secateur.distributions import Beta, Dirichlet, Distribution, Gamma, MultivariateNormal, Normal


def believe(
    params: PyTree,
    *,
    variance: float | Array | PyTree | Callable[[str, Array], Any],
    where: PyTree | Callable[[str, Array], bool] | None = None,
) -> PyTree:
    """Make parameters uncertain: a Normal around each chosen array, everything else as it is.

        q(θ) = N(θ | leaf, variance)

    Functions, strings, numbers and arrays of integers, booleans or complex numbers pass through.
    So does a leaf that is a Normal already: call twice to give two groups their own variance.

    Args:
        params: any pytree.
        variance: at the start. One number for all; or a pytree (or a prefix of one) of numbers or
            arrays that broadcast to their leaf; or a function of (path, leaf).
        where: which arrays become uncertain. None: every array of floating numbers. A function of
            (path, leaf), asked about every array, with paths such as ``"layers[0].weight"`` or
            ``"['w']"``. Or a pytree (or a prefix of one) of bools, where True over a whole subtree
            means the arrays of floating numbers in it.

    Returns:
        The beliefs, with the structure of `params`.

    Raises:
        ValueError: `where` chooses an array that cannot be uncertain, or nothing at all; or a
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
    leaves, paths, treedef = flatten(params)
    chosen = _choose(leaves, paths, treedef, where)
    if not any(chosen):
        raise ValueError(
            "no leaf was made uncertain: `where` chose none of the arrays of floating numbers, "
            f"which are {[p for p, x in zip(paths, leaves, strict=True) if _can_believe(x)]}. "
            "Choose at least one, or leave `where` out to choose all."
        )
    given = _per_leaf(variance, paths, leaves, treedef, chosen, "variance")
    new = [
        Normal(jnp.asarray(leaf), _variance_for(leaf, value, path)) if yes else leaf
        for leaf, path, yes, value in zip(leaves, paths, chosen, given, strict=True)
    ]
    return treedef.unflatten(new)


def priors(
    beliefs: PyTree, prior: Distribution | PyTree | Callable[[str, Normal], Distribution]
) -> PyTree:
    """Give every uncertain leaf its prior, broadcast to the leaf's shape; None in other places.

    Args:
        beliefs: see `believe`.
        prior: one distribution for all; or a pytree (or a prefix of one) of distributions, None
            where nothing is uncertain; or a function of (path, leaf). Normal and Laplace have a
            closed complexity; of any other distribution of independent elements with a `log_prob`
            on the whole line it is integrated numerically.

    Returns:
        A pytree with the structure of `beliefs`.

    Example:
        >>> beliefs = believe({"w": jnp.ones((2, 3)), "steps": 7}, variance=0.1)
        >>> priors(beliefs, Normal(0.0, 1.0))["w"].variance.shape
        (2, 3)

    Reference: equation (2) of the paper.
    """
    leaves, paths, treedef = flatten(beliefs)
    chosen = [is_belief(leaf) for leaf in leaves]
    given = _per_leaf(prior, paths, leaves, treedef, chosen, "prior")
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
            # Over a subtree, True means what can be uncertain in it; at a leaf, that very leaf.
            asked_for.append(bool(flag) and exact)
    for leaf, path, yes, asked in zip(leaves, paths, chosen, asked_for, strict=True):
        if asked and not yes:
            raise ValueError(
                f"`where` chose {path or 'the root'}, which cannot be uncertain: it is "
                f"{_describe(leaf)}. Supported: arrays of floating numbers. Leave it out of "
                "`where`, or convert it first."
            )
    return chosen


def _per_leaf(
    given: Any, paths: list[str], leaves: list[Any], treedef: Any, chosen: list[bool], what: str
) -> list[Any]:
    """One value per leaf from a function of (path, leaf) or from a pytree prefix."""
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
    """Broadcast; what JAX does not yet hold by NumPy, which has nothing to compile."""
    if isinstance(value, jax.Array):
        return jnp.broadcast_to(value.astype(dtype), shape)
    return jax.device_put(np.broadcast_to(np.asarray(value, dtype), shape))


def _prior_for(q: Normal, prior: Any, path: str) -> Any:
    name = path or "the root"
    if isinstance(prior, Gamma | Beta | Dirichlet | MultivariateNormal) or not hasattr(
        prior, "log_prob"
    ):
        raise TypeError(
            f"the prior given for {name} is a {type(prior).__name__}. Supported: Normal, Laplace, "
            "or any distribution of independent elements with a log_prob on the whole line (a "
            "Normal belief would be infinitely complex under any other)."
        )
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
