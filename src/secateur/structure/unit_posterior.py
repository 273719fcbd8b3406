"""Beliefs with covariance within units, from what each unit sums over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from secateur.distributions import Normal, UnitNormal
from secateur.distributions.low_rank import LowRank
from secateur.distributions.unit_normal import from_units, to_units
from secateur.model import FORMS
from secateur.pytrees import PyTree, flatten_beliefs, is_belief
from secateur.structure.fan_in import find_fan_in

__all__ = ["LARGEST_FAN_IN", "check_unit_priors", "correlate_units"]

# Largest number of weights of a unit for which `posterior="auto"` tries covariance.
LARGEST_FAN_IN = 512
# Largest number of weights of a unit that has a full covariance: each has as many factors.
LARGEST_FULL = 200
# Number of directions of a precision of low rank.
RANK = 4

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
        posterior: "mean-field", "unit" or "low-rank" for all leaves, or a function of (path, leaf).
    """
    leaves, paths, treedef = flatten_beliefs(beliefs)
    forms = [
        _choose(posterior, path, leaf.mean) if is_belief(leaf) else "mean-field"
        for leaf, path in zip(leaves, paths, strict=True)
    ]
    chosen = [form != "mean-field" for form in forms]
    if not any(chosen):
        return beliefs
    new = list(leaves)
    for number, fan_in in enumerate(find_fan_in(f, params, x)):
        members = [i for i in fan_in.leaves if chosen[i]]
        axes = [a for i, a in zip(fan_in.leaves, fan_in.unit_axes, strict=True) if chosen[i]]
        if members:
            name = f"{number}: {paths[members[0]]}"
            own = [leaves[i] for i in members]
            size = _count_weights(own, axes)
            is_low = size > LARGEST_FULL or any(forms[i] == "low-rank" for i in members)
            joined = (_join_low_rank if is_low else _join)(name, own, axes)
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
    if name not in FORMS:
        raise ValueError(
            f"posterior={name!r} for {path or 'the root'}. Supported: {', '.join(FORMS)}, or "
            "a function of (path, leaf) that returns one of these."
        )
    return name


def _count_weights(leaves: list[Normal], unit_axes: list[tuple[int, ...]]) -> int:
    """Return the number of weights of a unit."""
    return sum(
        math.prod(n for a, n in enumerate(np.shape(q.mean)) if a not in axes)
        for q, axes in zip(leaves, unit_axes, strict=True)
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


def _join_low_rank(
    name: str, leaves: list[Normal], unit_axes: list[tuple[int, ...]]
) -> list[UnitNormal]:
    """Likewise, with a precision of low rank."""
    return [
        UnitNormal.of_low_rank(
            q.mean,
            LowRank(
                np.broadcast_to(np.asarray(q.variance), np.shape(q.mean)),
                np.zeros((*np.shape(q.mean), RANK), np.asarray(q.variance).dtype),
            ),
            group=name,
            unit_axes=axes,
        )
        for q, axes in zip(leaves, unit_axes, strict=True)
    ]
