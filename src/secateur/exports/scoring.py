"""Scores of an export on rows with targets, before and after quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal
from secateur.exports.evaluator import FloatArithmetic
from secateur.exports.model_graph import ModelGraph
from secateur.exports.quantisation import QuantisedGraph
from secateur.exports.sheet import Scores
from secateur.likelihoods import CategoricalLikelihood
from secateur.propagation import draws, propagate
from secateur.pytrees import flatten_beliefs, is_belief
from secateur.trained import Trained
from secateur.training.layout import Layout, lay_out, to_numpy
from secateur.training.objective import free_energy

__all__ = ["compute_free_energy", "round_model", "score_rows"]


def score_rows(
    trained: Trained, model: ModelGraph, quantised: QuantisedGraph | None, inputs: Any, targets: Any
) -> tuple[Scores, Scores | None]:
    """Return free energy, log-density and correct classes on rows, before and after quantisation.

    The log-density is that of the targets with the exported network's output as the mean. It
    includes the posterior variance of the output if the inference computes it without sampling.

    Args:
        trained: The model.
        model: Its graph.
        quantised: The same graph in integers, or None.
        inputs: Rows.
        targets: Targets of these rows.
    """
    rows = np.asarray(inputs, np.float32)
    variance = None
    if not draws(trained.model.inference):
        variance = trained.predict(rows).outputs.variance
    energy = compute_free_energy(trained, inputs, targets)
    outputs = model.run(rows.astype(np.float64))
    exact = _score_outputs(trained, model, outputs, variance, targets, energy)
    if quantised is None:
        return exact, None
    rounded = round_model(trained, model, quantised.weights)
    after = None if rounded is None else compute_free_energy(rounded, inputs, targets)
    outputs = model.run(rows, FloatArithmetic(np.float32), quantised.graph)
    return exact, _score_outputs(trained, model, outputs, variance, targets, after)


def _score_outputs(
    trained: Trained,
    model: ModelGraph,
    outputs: np.ndarray,
    variance: np.ndarray | None,
    targets: Any,
    energy: float | None,
) -> Scores:
    likelihood, units = trained.model.likelihood, trained.scaling.targets
    if model.by_frame and np.ndim(targets) < outputs.ndim:
        outputs = outputs[:, -1]
    outputs = outputs.reshape(len(outputs), -1) if np.ndim(targets) <= 2 else outputs
    mean, scale, jacobian = outputs, np.ones(()), 0.0
    if units is not None:
        mean, scale = units.to_standard(outputs), np.asarray(units.scale, np.float64)
        jacobian = units.log_jacobian_per_row(targets)
    prediction: Any = jnp.asarray(mean, jnp.float32)
    if variance is not None:
        spread = variance.reshape(mean.shape) / np.square(scale)
        prediction = Normal(prediction, jnp.asarray(spread, jnp.float32))
    y = jnp.asarray(trained.scaling.standardise_targets(targets, np.float32))
    density = _compute_log_density(likelihood, trained.noise, prediction, y, kind=type(likelihood))
    correct = None
    if isinstance(likelihood, CategoricalLikelihood):
        correct = float(np.mean(outputs.argmax(-1) == np.asarray(targets)))
    return Scores(energy, float(np.mean(density)) - jacobian, correct)


@partial(jax.jit, static_argnames=("kind",))
def _compute_log_density(
    likelihood: Any, noise: Any, prediction: Any, targets: Any, *, kind: type
) -> Any:
    return likelihood.predictive_log_density(noise, prediction, targets)


def round_model(
    trained: Trained, model: ModelGraph, weights: Sequence[np.ndarray]
) -> Trained | None:
    """Return the model with means rounded like the graph's weights, and the same variances.

    Args:
        trained: The model.
        model: Its graph.
        weights: Weights of each product in the graph, after rounding.

    Returns:
        None if a weight of the graph is not a constant multiple of a single model parameter.
    """
    leaves, _, structure = flatten_beliefs(trained.beliefs)
    means = {i: np.array(q.mean, np.float64).ravel() for i, q in enumerate(leaves) if is_belief(q)}
    for node, rounded in zip(model.graph.products(), weights, strict=True):
        origin = node.attributes["origin"]
        if origin is None:
            return None
        is_parameter = np.isin(origin.leaf, list(means)) & (origin.factor != 0)
        if np.any(node.attributes["weights"][~is_parameter]):
            return None
        for number, mean in means.items():
            here = is_parameter & (origin.leaf == number)
            mean[origin.place[here]] = rounded[here] / origin.factor[here]
    rounded_leaves = list(leaves)
    for number, mean in means.items():
        q = leaves[number]
        values = jnp.asarray(mean.reshape(q.mean.shape), q.mean.dtype)
        rounded_leaves[number] = replace(q, mean=values)
    return replace(trained, beliefs=structure.unflatten(rounded_leaves))


def compute_free_energy(trained: Trained, inputs: Any, targets: Any) -> float:
    """Return the free energy of a model on some rows, in nats and the data's own units."""
    layout, flat, certain = lay_out(to_numpy(trained.beliefs))
    model, block = trained.model, trained.scaling.standardise((inputs, targets), layout.dtype)
    samples = trained.recipe.samples if draws(model.inference) else None
    total = _compute_energy(
        model.f, model.inference, layout, samples, trained.key, flat, certain,
        trained.priors, model.likelihood, trained.noise, block,
    )  # fmt: skip
    energy = float(total)
    if trained.scaling.targets is not None:
        energy += len(block[1]) * trained.scaling.targets.log_jacobian_per_row(targets)
    return energy


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _compute_energy(
    f: Any,
    inference: str,
    layout: Layout,
    samples: int | None,
    key: Array,
    flat: Any,
    certain: Any,
    priors: Any,
    likelihood: Any,
    noise: Any,
    block: Any,
) -> Array:
    return free_energy(
        propagate(f, inference),
        layout.beliefs(flat, certain),
        priors,
        likelihood,
        noise,
        block,
        key=None if samples is None else key,
        samples=samples or 1,
    ).total
