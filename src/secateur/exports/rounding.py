"""What rounding its weights does to a model: beliefs with rounded means, and their free energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs.trees import flatten, is_belief
from secateur.distributions import Normal
from secateur.energy import free_energy
from secateur.exports.models import ModelGraph
from secateur.fitting.result import Trained
from secateur.propagation import draws, propagate

__all__ = ["energy_on", "rounded_model"]

_TOLERANCE = 1e-4


def rounded_model(
    trained: Trained, model: ModelGraph, weights: Sequence[np.ndarray]
) -> Trained | None:
    """The model with its means rounded as the graph's weights were, variances as they are.

    Every weight of the graph is one of the model's times a constant. Which one, and what
    constant, is found out by filling the model with ones and with its weights' numbers.

    Args:
        trained: the model.
        model: its graph.
        weights: of each product in the graph, after rounding.

    Returns:
        None where weights of the graph are not single weights of the model.
    """
    leaves, _, structure = flatten(trained.beliefs)
    places = [i for i, leaf in enumerate(leaves) if is_belief(leaf)]
    sizes = [int(np.size(leaves[i].mean)) for i in places]
    means = np.concatenate([np.ravel(leaves[i].mean) for i in places]).astype(np.float64)
    starts = np.cumsum([0, *sizes])

    def filled(numbers: np.ndarray) -> list[np.ndarray]:
        parts = list(leaves)
        for k, i in enumerate(places):
            part = numbers[starts[k] : starts[k + 1]].reshape(np.shape(leaves[i].mean))
            parts[i] = jnp.asarray(part, leaves[i].mean.dtype)
        graph = model.steps(structure.unflatten(parts))
        return [n.attributes["weights"] for n in graph.nodes if n.op in ("linear", "conv")]

    factors = filled(np.ones_like(means))
    numbered = filled(np.arange(1.0, len(means) + 1))
    changed = means.copy()
    products = [n.attributes["weights"] for n in model.graph.nodes if n.op in ("linear", "conv")]
    for factor, number, before, after in zip(factors, numbered, products, weights, strict=True):
        if np.any(factor == 0):
            return None
        index = np.rint(number / factor).astype(int) - 1
        if index.min() < 0 or index.max() >= len(means):
            return None
        if not np.allclose(means[index] * factor, before, rtol=_TOLERANCE, atol=1e-12):
            return None
        changed[index] = after / factor
    made = list(leaves)
    for k, i in enumerate(places):
        part = changed[starts[k] : starts[k + 1]].reshape(np.shape(leaves[i].mean))
        made[i] = Normal(jnp.asarray(part, leaves[i].mean.dtype), leaves[i].variance)
    return replace(trained, beliefs=structure.unflatten(made))


def energy_on(trained: Trained, inputs: Any, targets: Any) -> float:
    """Free energy of a model on some rows, in nats and the data's own units."""
    dtype = jnp.result_type(*(q.mean for q in jax.tree.leaves(trained.beliefs, is_leaf=is_belief)
                              if is_belief(q)))  # fmt: skip
    block = trained.scaling.standard((inputs, targets), dtype)
    sampling = draws(trained.model.inference)
    key = jax.random.key(0) if sampling else None
    samples = trained.recipe.samples if sampling else 1
    model = trained.model
    forward = propagate(model.f, model.inference)

    @jax.jit  # of the data only: beliefs may hold leaves that are no arrays
    def energy(block: Any) -> Array:
        return free_energy(
            forward, trained.beliefs, trained.priors, model.likelihood, trained.noise, block,
            key=key, samples=samples,
        ).total  # fmt: skip

    total = float(energy(block))
    if trained.scaling.targets is not None:
        total += len(block[1]) * trained.scaling.targets.log_jacobian_per_row(targets)
    return total
