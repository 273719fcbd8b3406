"""Whether two functions of beliefs are the same, on random inputs."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.beliefs import mean_weights
from secateur.distributions import Normal
from secateur.propagation import draws, propagate
from secateur.pytrees import is_belief
from secateur.training.layout import lay_out, to_numpy

ROWS = 32
_TOLERANCE = 1e-6  # relative to the largest output
_ROUNDING = 32  # units in the last place, where that is more: single precision


def random_inputs(example: Any, rows: int, seed: int = 0) -> Any:
    """Draw inputs like an example; values that are not real numbers are the example's own."""
    rng = np.random.default_rng(seed)

    def draw(x: Any) -> Any:
        x = np.asarray(x)
        if np.issubdtype(x.dtype, np.floating) or x.dtype.kind == "V":
            return jnp.asarray(rng.normal(size=(rows, *x.shape[1:])), x.dtype)
        return jnp.asarray(x[np.arange(rows) % len(x)])

    return jax.tree.map(draw, example)


def evaluate_outputs(f: Any, inference: str, beliefs: Any, x: Any) -> list[np.ndarray]:
    """Return means and variances of the outputs, or under sampling f at the mean weights."""
    layout, flat, certain = lay_out(to_numpy(beliefs))
    result = _evaluate(f, inference, layout, flat, certain, x)
    return [np.asarray(a) for a in jax.tree.leaves(result)]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _evaluate(f, inference, layout, flat, certain, x) -> Any:
    beliefs = layout.beliefs(flat, certain)
    if draws(inference):
        return f(mean_weights(beliefs), x)
    outputs = propagate(f, inference)(None, beliefs, x)
    # What no weight is left to make uncertain comes back as an array: its variance is 0.
    return jax.tree.map(
        lambda y: y if is_belief(y) else Normal(y, jnp.zeros_like(y)), outputs, is_leaf=is_belief
    )


def are_same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    """Whether outcomes are equal up to rounding."""
    return len(one) == len(other) and all(map(_is_same, one, other))


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not jnp.issubdtype(one.dtype, jnp.floating):
        return bool(np.array_equal(one, other))
    limit = max(_TOLERANCE, _ROUNDING * float(jnp.finfo(one.dtype).eps))
    one, other = one.astype(np.float64), other.astype(np.float64)
    scale = max(np.max(np.abs(one), initial=0), np.max(np.abs(other), initial=0))
    return bool(np.max(np.abs(one - other), initial=0) <= limit * scale)
