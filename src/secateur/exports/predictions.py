"""The function of an exported model, from raw inputs to predictions in the data's units.

The formulas are those of `Trained.predict`: the likelihood's `predictive_moments` and
`predictive_interval`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.beliefs import count, mean_weights
from secateur.distributions import Normal
from secateur.exports.graph import ExportError
from secateur.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from secateur.propagation import draws
from secateur.propagation.transform import make_forward
from secateur.trained import Trained
from secateur.training.scaling import Affine

__all__ = ["MEANS", "ExportedFunction", "check_mean", "compute_noise", "find_dtype",
           "knows_moments", "make_function", "make_score_function",
           "standardise_exactly"]  # fmt: skip

# What an export can predict: the network at the posterior means of its weights, or the mean of
# `predict`, which averages over the posterior.
MEANS = ("weights", "predictive")

# Probability of the interval between `lower` and `upper`.
LEVEL = 0.95

_SMALL = 20_000  # maximum number of weights for which moments are written out
_NEGLIGIBLE = 1e-8  # of a column's deviation
_BY_MEANS = "of the network at the posterior means of its weights"
_BY_MOMENTS = "expected under the posterior of the weights, by moments"
_SAMPLED = "; predict averages networks drawn from the posterior instead"


@dataclass(frozen=True, eq=False)
class ExportedFunction:
    """A function to export.

    Attributes:
        function: Function from raw inputs to a list of arrays.
        meanings: Meaning of each array by name; filled in when the function is called.
        by_moments: Whether mean and variance of the network's output are computed.
    """

    function: Callable[[Any], list[Any]]
    meanings: dict[str, str]
    by_moments: bool


def knows_moments(trained: Trained) -> bool:
    """Whether a model's inference computes moments and the model is small enough to write them."""
    return not draws(trained.model.inference) and count(trained.beliefs).total <= _SMALL


def find_dtype(trained: Trained) -> Any:
    """Return the dtype in which a model computes: that of its weights, but at least float32."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(trained.beliefs) if _is_floating(leaf)]
    return jnp.result_type(jnp.float32, *dtypes)


def make_function(
    trained: Trained, *, by_moments: bool, uncertainty: bool, dtype: Any
) -> ExportedFunction:
    """Return the function to export.

    Args:
        trained: A trained model.
        by_moments: Whether to compute mean and variance of the network's output, or its value at
            the posterior means.
        uncertainty: Whether to compute a standard deviation and an interval.
        dtype: Dtype in which moments are computed.
    """
    meanings: dict[str, str] = {}
    standardise = trained.scaling.inputs
    if standardise is not None and not isinstance(standardise, Affine):
        raise ExportError(
            "a model of several input arrays cannot be exported. Supported: one array with rows "
            "first."
        )
    weights = _cast(trained.beliefs, dtype) if by_moments else mean_weights(trained.beliefs)
    f, inference = trained.model.f, trained.model.inference

    def function(x: Any) -> list[Any]:
        if standardise is not None:
            x = standardise_exactly(standardise, x)
        if by_moments:
            value = make_forward(f, inference, portable=True)(None, weights, x)
            if not isinstance(value, Normal):
                value = Normal(value, jnp.zeros_like(value))
        else:
            value = f(weights, x)
        outputs = _make_outputs(trained, value, uncertainty)
        meanings.update((name, meaning) for name, (_, meaning) in outputs.items())
        return [array for array, _ in outputs.values()]

    return ExportedFunction(function, meanings, by_moments)


def check_mean(mean: str | None) -> None:
    """Check that `mean` is one of those supported, or None.

    Raises:
        ExportError: It is not supported.
    """
    if mean not in (None, *MEANS):
        raise ExportError(f"mean={mean!r}. Supported: {', '.join(MEANS)}.")


def make_score_function(trained: Trained) -> Callable[[Any], Any]:
    """Return the function from raw inputs to outputs that correspond to the mean of `predict`.

    For regression this is the expected value under the posterior of the weights, by moments. For
    classes, binary targets and counts it is the averaged probability or rate on the scale of the
    link function: its log-odds or its logarithm.

    Raises:
        ExportError: There is no such function.
    """
    likelihood, inference = trained.model.likelihood, trained.model.inference
    to_score = next((f for kind, f in _SCORES.items() if isinstance(likelihood, kind)), None)
    if to_score is None:
        raise ExportError(
            f"mean='predictive' is not known for a {type(likelihood).__name__}. Supported: "
            f"{', '.join(kind.__name__ for kind in _SCORES)}. mean='weights' writes the network at "
            "the posterior means of its weights."
        )
    if draws(inference):
        raise ExportError(
            f"mean='predictive' needs moments, and this model's inference is {inference!r}: its "
            "predictions average networks that are drawn from the posterior, each of which would "
            "have to be written. mean='weights' writes the network at the posterior means of its "
            "weights."
        )
    outputs = make_function(trained, by_moments=True, uncertainty=False, dtype=jnp.float32)
    return lambda x: to_score(outputs.function(x)[0])


_SCORES: dict[Any, Callable[[Any], Any]] = {
    GaussianLikelihood: lambda mean: mean,
    CategoricalLikelihood: jnp.log,
    BernoulliLikelihood: lambda p: jnp.log(p) - jnp.log1p(-p),
    PoissonLikelihood: jnp.log,
}


def compute_noise(trained: Trained, outputs: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the noise's deviation and half the width of its 95 % interval, in the data's units.

    Both describe an observation around a known value of the function. None if the likelihood is
    not Gaussian.

    Args:
        trained: A trained model.
        outputs: Number of outputs.
    """
    likelihood, noise = trained.model.likelihood, trained.noise
    if not isinstance(likelihood, GaussianLikelihood):
        return None
    columns = np.size(likelihood.precision if noise is None else noise.shape)
    zeros = np.zeros((1, columns))
    variance = likelihood.predictive_moments(noise, jnp.asarray(zeros)).noise_variance
    _, high = likelihood.predictive_interval(noise, Normal(zeros, zeros), LEVEL)
    units = trained.scaling.targets
    scale = 1.0 if units is None else np.asarray(units.scale, np.float64)
    values = (np.sqrt(np.asarray(variance, np.float64)) * scale, high * scale)
    deviation, half_width = (np.resize(v, outputs) for v in values)
    return deviation, half_width


def _make_outputs(trained: Trained, value: Any, uncertainty: bool) -> dict[str, tuple[Any, str]]:
    """Return arrays and their meanings by name, from a Normal or a plain value of the network."""
    likelihood, noise, units = trained.model.likelihood, trained.noise, trained.scaling.targets
    is_normal = isinstance(value, Normal)
    how = _BY_MOMENTS if is_normal else _BY_MEANS
    if draws(trained.model.inference):
        how += _SAMPLED

    def to_data(array: Any) -> Any:
        return array if units is None else units.to_data(array)

    if not hasattr(likelihood, "predictive_moments"):
        outputs = {"mean": (to_data(value.mean if is_normal else value), f"of the function, {how}")}
        if uncertainty and is_normal:
            deviation = _to_data_scale(units, jnp.sqrt(value.variance))
            meaning = "of the function alone: the noise is not included"
            outputs["standard_deviation"] = (deviation, meaning)
        return outputs
    mean, weight_variance, noise_variance = likelihood.predictive_moments(noise, value)
    if isinstance(likelihood, CategoricalLikelihood):
        return {"probabilities": (mean, f"of the classes, {how}")}
    if isinstance(likelihood, BernoulliLikelihood):
        return {"probabilities": (mean, f"of a 1, {how}")}
    is_count = isinstance(likelihood, PoissonLikelihood)
    if is_count:
        outputs = {"rate": (mean, f"of the counts, {how}")}
    else:
        outputs = {"mean": (to_data(mean), f"in the data's units, {how}")}
    if not uncertainty:
        return outputs
    part = (
        "of an observation: uncertainty of the weights, by moments, and noise"
        if is_normal
        else "of the noise alone, without the uncertainty of the weights"
    )
    deviation = _to_data_scale(units, jnp.sqrt(weight_variance + noise_variance))
    outputs["standard_deviation"] = (
        deviation,
        part if is_count else f"in the data's units, {part}",
    )
    if isinstance(likelihood, GaussianLikelihood):
        prediction = value if is_normal else Normal(value, jnp.zeros_like(value))
        ends = likelihood.predictive_interval(noise, prediction, LEVEL)
        for name, end in zip(("lower", "upper"), ends, strict=True):
            meaning = f"{name} end of the {LEVEL:.0%} interval {part}"
            outputs[name] = (to_data(end), meaning)
    return outputs


def _to_data_scale(units: Affine | None, deviation: Any) -> Any:
    if units is None:
        return deviation
    return deviation * _match_rank(np.asarray(units.scale, np.float64), deviation)


def standardise_exactly(affine: Affine, x: Any) -> Any:
    """Return (x − shift)/scale, as exactly in float32 as `predict` computes it in float64.

    A shift that is large compared with the scale is subtracted in two parts. The first difference
    is exact for values close to the shift, so that rounding the shift has no effect.
    """
    shift, scale = (np.asarray(p, np.float64) for p in (affine.shift, affine.scale))
    first = shift.astype(np.float32).astype(np.float64)
    rest = shift - first
    x = x - _match_rank(first, x)
    if np.any(np.abs(rest) > _NEGLIGIBLE * scale):
        x = x - _match_rank(rest, x)
    return x / _match_rank(scale, x)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if _is_floating(x) else x, tree)


def _is_floating(leaf: Any) -> bool:
    is_array = isinstance(leaf, jax.Array | np.ndarray)
    return is_array and jnp.issubdtype(leaf.dtype, jnp.floating)


def _match_rank(per_column: np.ndarray, like: Any) -> Any:
    """Return values for the last axis with as many axes as an array has."""
    shape = (1,) * (like.ndim - per_column.ndim) + per_column.shape
    return jnp.asarray(per_column, like.dtype).reshape(shape)
