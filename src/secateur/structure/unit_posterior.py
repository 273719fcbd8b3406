"""Beliefs with covariance within units, from what each unit sums over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from secateur.distributions import Normal, UnitNormal
from secateur.distributions.unit_normal import from_units, to_units
from secateur.model import POSTERIORS
from secateur.pytrees import PyTree, flatten_beliefs, is_belief
from secateur.structure.fan_in import FanIn, find_fan_in

__all__ = ["LARGEST_FAN_IN", "check_unit_priors", "correlate_units"]

# Largest number of weights of a unit that has a covariance: each weight has as many factors.
LARGEST_FAN_IN = 512

Posterior = str | Callable[[str, Any], str]


def correlate_units(
    beliefs: PyTree, f: Callable[[Any, Any], Any], params: PyTree, x: Any, posterior: Posterior
) -> PyTree:
    """Return beliefs in which the weights that a unit sums over may be correlated.

    They are still independent at first; nothing but their class has changed.

    Args:
        beliefs: Independent beliefs about the weights.
        f: The model's function.
        params: Its weights.
        x: Inputs of the right shapes.
        posterior: "mean-field" or "unit", for all leaves, or a function of (path, leaf).
    """
    leaves, paths, treedef = flatten_beliefs(beliefs)
    chosen = [
        is_belief(leaf) and _choose(posterior, path, leaf.mean) == "unit"
        for leaf, path in zip(leaves, paths, strict=True)
    ]
    if not any(chosen):
        return beliefs
    new = list(leaves)
    for number, fan_in in enumerate(find_fan_in(f, params, x)):
        members = [i for i in fan_in.leaves if chosen[i]]
        axes = [a for i, a in zip(fan_in.leaves, fan_in.unit_axes, strict=True) if chosen[i]]
        if members:
            name = f"{number}: {paths[members[0]]}"
            _check_size(leaves, paths, FanIn(tuple(members), tuple(axes)))
            joined = _join(name, [leaves[i] for i in members], axes)
            for i, leaf in zip(members, joined, strict=True):
                new[i] = leaf
    return treedef.unflatten(new)


def check_unit_priors(priors: PyTree) -> None:
    """Refuse priors under which beliefs with covariance have no closed form."""
    for prior in jax.tree.leaves(priors, is_leaf=lambda p: hasattr(p, "log_prob")):
        if not isinstance(prior, Normal):
            raise ValueError(
                f'posterior="unit" needs Normal priors: under a {type(prior).__name__}, the '
                "complexity of correlated weights has no closed form. Give a Normal prior, or keep "
                'the weights independent (posterior="mean-field").'
            )


def _choose(posterior: Posterior, path: str, leaf: Any) -> str:
    name = posterior(path, leaf) if callable(posterior) else posterior
    if name not in POSTERIORS:
        raise ValueError(
            f"posterior={name!r} for {path or 'the root'}. Supported: {', '.join(POSTERIORS)}, or "
            "a function of (path, leaf) that returns one of these."
        )
    return name


def _check_size(leaves: list[Any], paths: list[str], fan_in: FanIn) -> None:
    sizes = [
        math.prod(n for a, n in enumerate(np.shape(leaves[i].mean)) if a not in axes)
        for i, axes in zip(fan_in.leaves, fan_in.unit_axes, strict=True)
    ]
    if sum(sizes) > LARGEST_FAN_IN:
        names = " and ".join(paths[i] or "the root" for i in fan_in.leaves)
        raise ValueError(
            f'posterior="unit" keeps the covariance of all weights of a unit, and those of {names} '
            f"have {sum(sizes)} each; the limit is {LARGEST_FAN_IN}. Keep this layer independent: "
            'posterior=lambda path, leaf: "mean-field" for its paths and "unit" for the others.'
        )


def _join(name: str, leaves: list[Normal], unit_axes: list[tuple[int, ...]]) -> list[UnitNormal]:
    """Return one group of independent beliefs as one that may become correlated."""
    deviations = [
        to_units(np.sqrt(np.broadcast_to(np.asarray(q.variance), np.shape(q.mean))), axes)
        for q, axes in zip(leaves, unit_axes, strict=True)
    ]
    whole = np.concatenate(deviations, axis=-1)
    factor = whole[..., None] * np.eye(whole.shape[-1], dtype=whole.dtype)
    ends = np.cumsum([d.shape[-1] for d in deviations])[:-1]
    rows = np.split(factor, ends, axis=-2)
    return [
        UnitNormal.of(q.mean, from_units(own, np.shape(q.mean), axes), group=name, unit_axes=axes)
        for q, own, axes in zip(leaves, rows, unit_axes, strict=True)
    ]
