"""Beliefs with random covariance within units, and draws of them by NumPy alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from secateur.distributions import Normal, UnitNormal
from secateur.distributions.unit_normal import from_units, to_units
from secateur.pytrees import flatten_beliefs
from secateur.structure.unit_posterior import correlate_units


def make_beliefs(f, params, x, *, deviation=0.1, seed=0):
    """Beliefs about params in which the weights of each unit have a random correlation."""
    rng = np.random.default_rng(seed)

    def believe(w):
        if not hasattr(w, "dtype") or not jnp.issubdtype(w.dtype, jnp.inexact):
            return w  # a function, or whole numbers
        return Normal(jnp.asarray(w), jnp.full(jnp.shape(w), deviation**2, jnp.result_type(w)))

    beliefs = correlate_units(jax.tree.map(believe, params), f, params, x, "unit")
    leaves, _, treedef = flatten_beliefs(beliefs)
    new, mixing = [], {}
    for q in leaves:
        if isinstance(q, UnitNormal):
            rows = to_units(np.asarray(q.factor), q.unit_axes, extra=1)
            size = rows.shape[-1]
            shape = (*rows.shape[:-2], size, size)
            if q.group not in mixing:
                # One direction that all weights of the unit share, and noise of their own.
                common = rng.normal(size=shape[:-1])
                mixing[q.group] = 0.5 * np.eye(size) + rng.normal(size=shape) * 0.3
                mixing[q.group][..., 0] += common
            mixed = rows @ mixing[q.group]
            factor = from_units(mixed, np.shape(q.mean), q.unit_axes)
            q = UnitNormal.of(q.mean, jnp.asarray(factor), group=q.group, unit_axes=q.unit_axes)
        new.append(q)
    return treedef.unflatten(new)


def draw(beliefs, count, seed=1):
    """Weights drawn by NumPy from the covariance of each unit, with an axis of draws in front."""
    rng = np.random.default_rng(seed)
    leaves, _, treedef = flatten_beliefs(beliefs)
    groups = {}
    for number, q in enumerate(leaves):
        if isinstance(q, UnitNormal):
            groups.setdefault(q.group, []).append(number)
    new = list(leaves)
    for members in groups.values():
        own = [leaves[i] for i in members]
        rows = np.concatenate(
            [to_units(np.asarray(q.factor), q.unit_axes, extra=1) for q in own], -2
        )
        means = np.concatenate([to_units(np.asarray(q.mean), q.unit_axes) for q in own], -1)
        units, size = means.shape[:-1], means.shape[-1]
        covariance = rows @ np.swapaxes(rows, -1, -2)
        root = np.linalg.cholesky(covariance + 1e-12 * np.eye(size))
        drawn = means + np.einsum(
            "...ab,n...b->n...a", root, rng.normal(size=(count, *units, size))
        )
        ends = np.cumsum([np.size(q.mean) // max(1, int(np.prod(units))) for q in own])[:-1]
        for i, q, part in zip(members, own, np.split(drawn, ends, axis=-1), strict=True):
            back = [from_units(one, np.shape(q.mean), q.unit_axes) for one in part]
            new[i] = jnp.asarray(np.stack(back))
    for i, q in enumerate(leaves):
        if isinstance(q, Normal) and not isinstance(q, UnitNormal):
            noise = rng.normal(size=(count, *np.shape(q.mean)))
            new[i] = jnp.asarray(np.asarray(q.mean) + np.sqrt(np.asarray(q.variance)) * noise)
    return treedef.unflatten(new)
