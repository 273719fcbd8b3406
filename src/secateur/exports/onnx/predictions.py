"""What an exported model answers: raw inputs go in, predictions in the data's units come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.beliefs import count, mean
from secateur.distributions import Normal
from secateur.exports.graph import ExportError
from secateur.fitting.scaling import Affine
from secateur.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from secateur.likelihoods.gumbel import expected_softmax
from secateur.propagation import draws
from secateur.propagation.transform import make_forward
from secateur.quadrature import expectation

__all__ = ["Answer", "answer", "can_have_moments", "input_dtype"]

_SMALL = 20_000  # weights, up to which moments are worth their many small steps
_NEGLIGIBLE = 1e-8  # of a column's deviation
_BY_MEANS = "of the network at the posterior means of its weights"
_BY_MOMENTS = "expected under the posterior of the weights, by moments"


@dataclass(frozen=True, eq=False)
class Answer:
    """A function to export.

    Attributes:
        function: from raw inputs to a list of arrays.
        meanings: what each of them is, by name.
    """

    function: Callable[[Any], list[Any]]
    meanings: dict[str, str]


def can_have_moments(trained: Any) -> bool:
    """Whether moments travel through a model that is small enough to write them out."""
    return not draws(trained.model.inference) and count(trained.beliefs).total <= _SMALL


def input_dtype(trained: Any, *, moments: bool) -> Any:
    """Return the type that the function is traced with.

    Moments are written for the float32 that they are computed in: their formulas depend on it.
    """
    if moments:
        return jnp.float32
    found = [leaf.dtype for leaf in jax.tree.leaves(trained.beliefs) if _is_floating(leaf)]
    return jnp.result_type(jnp.float32, *found)


def answer(trained: Any, *, moments: bool, deviation: bool) -> Answer:
    """Return the function to export.

    Args:
        trained: from `fit`, `prune`, `load` or `compact`.
        moments: mean and variance of the network's value, or its value at the posterior means.
        deviation: whether a standard deviation is wanted.
    """
    meanings: dict[str, str] = {}
    standardise, restore = trained.scaling.inputs, trained.scaling.targets
    if standardise is not None and not isinstance(standardise, Affine):
        raise ExportError(
            "a model of several input arrays cannot be exported. Supported: one array with rows "
            "first."
        )
    dtype = input_dtype(trained, moments=moments)
    beliefs = _cast(trained.beliefs, dtype) if moments else mean(trained.beliefs)
    f, likelihood = trained.model.f, trained.model.likelihood

    def function(x: Any) -> list[Any]:
        if standardise is not None:
            x = _standardised(standardise, x)
        if moments:
            forward = make_forward(f, trained.model.inference, closed_sigmoids=False)
            value = forward(None, beliefs, x)
            if not isinstance(value, Normal):
                value = Normal(value, jnp.zeros_like(value))
        else:
            value = f(beliefs, x)
        value = value if restore is None else restore.to_data(value)
        found = _outputs(trained, likelihood, value, deviation)
        meanings.update((name, meaning) for name, (_, meaning) in found.items())
        return [array for array, _ in found.values()]

    return Answer(function, meanings)


def _standardised(affine: Affine, x: Any) -> Any:
    """Return (x − shift)/scale, as exactly in float32 as `predict` computes it in float64.

    A shift that is large beside the scale is taken off in two parts. The first difference is exact
    for values near it, so that rounding the shift costs nothing.
    """
    shift, scale = (np.asarray(p, np.float64) for p in (affine.shift, affine.scale))
    first = shift.astype(np.float32).astype(np.float64)
    rest = shift - first
    x = x - _ranked(first, x)
    if np.any(np.abs(rest) > _NEGLIGIBLE * scale):
        x = x - _ranked(rest, x)
    return x / _ranked(scale, x)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if _is_floating(x) else x, tree)


def _is_floating(leaf: Any) -> bool:
    is_array = isinstance(leaf, jax.Array | np.ndarray)
    return is_array and jnp.issubdtype(leaf.dtype, jnp.floating)


def _outputs(trained: Any, likelihood: Any, value: Any, deviation: bool) -> dict[str, Any]:
    """Arrays and their meanings by name, from a Normal or a plain value of the network."""
    uncertain = isinstance(value, Normal)
    centre: Any = value.mean if uncertain else value
    variance: Any = value.variance if uncertain else None
    how = _BY_MOMENTS if uncertain else _BY_MEANS
    if isinstance(likelihood, CategoricalLikelihood):
        chances = expected_softmax(centre, variance) if uncertain else jax.nn.softmax(centre)
        return {"probabilities": (chances, f"of the classes, {how}")}
    if isinstance(likelihood, BernoulliLikelihood):
        sigmoid = jax.nn.sigmoid
        chances = expectation(sigmoid, centre, variance) if uncertain else sigmoid(centre)
        return {"probabilities": (chances, f"of a 1, {how}")}
    if isinstance(likelihood, PoissonLikelihood):
        rate = jnp.exp(centre + 0.5 * variance) if uncertain else jnp.exp(centre)
        return {"rate": (rate, f"of the counts, {how}")}
    outputs = {"mean": (centre, f"in the data's units, {how}")}
    noise = _noise_variance(trained, likelihood)
    if not deviation or (noise is None and not uncertain):
        return outputs
    total = (
        jnp.zeros_like(centre)
        if noise is None
        else jnp.broadcast_to(_ranked(noise, centre), centre.shape)
    )
    total = total if variance is None else total + variance
    if noise is None:
        meaning = "of the function alone: the likelihood's noise is not known to be Gaussian"
    elif uncertain:
        meaning = "of an observation: uncertainty of the weights, by moments, and noise"
    else:
        meaning = "of the noise alone: the uncertainty of the weights is not in it"
    return outputs | {"standard_deviation": (jnp.sqrt(total), f"in the data's units, {meaning}")}


def _noise_variance(trained: Any, likelihood: Any) -> np.ndarray | None:
    """Return the variance of the noise in the data's units: β/(α − 1), or 1/γ of a known γ."""
    if not isinstance(likelihood, GaussianLikelihood):
        return None
    if trained.noise is None:
        return 1 / np.asarray(likelihood.precision, np.float64)
    shape, rate = (np.asarray(p, np.float64) for p in (trained.noise.shape, trained.noise.rate))
    scale = 1.0 if trained.scaling.targets is None else np.asarray(trained.scaling.targets.scale)
    return np.where(shape > 1, scale**2 * rate / np.where(shape > 1, shape - 1, 1), np.inf)


def _ranked(per_column: np.ndarray, like: Any) -> Any:
    """Return numbers for the last axis with as many axes as an array has."""
    shape = (1,) * (like.ndim - per_column.ndim) + per_column.shape
    return jnp.asarray(per_column, like.dtype).reshape(shape)
