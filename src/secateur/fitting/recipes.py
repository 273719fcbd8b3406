"""How training starts, steps and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs.trees import PyTree, flatten, is_belief
from secateur.distributions import Normal

__all__ = ["RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """Everything that can be chosen about training.

    Attributes:
        standardise_inputs: give every input column mean 0 and deviation 1.
        standardise_targets: likewise the targets of a Gaussian likelihood. The free energy stays in
            the data's own units.
        initial_means: "params" starts from the model's own weights (leaves that are constant, such
            as zeros, are drawn so that they keep the size of their input); a number draws all
            of them from N(0, number²).
        initial_deviation: of every weight's belief; None is the prior's own.
        conjugate_noise: whether q(γ) follows the weights in closed form; the paper has it learnt
            by Adam, which keeps it optimistic while the network learns.
        rate: of Adam.
        warm_epochs: over so many epochs (and no more than a quarter of them) the weight of the
            complexity rises from 0 to 1. Units that have not yet learnt anything are not given up.
        batch_size: rows in a step; no more than there are.
        epochs: the budget; None is about `steps` steps, and at least 60 epochs.
        steps: see `epochs`.
        cooling: share of the epochs in which the rate falls to 0; 0 keeps it constant.
        stops: whether to begin cooling (or, without cooling, end) once the free energy is level.
        samples: draws that the final free energy averages, for the sampling algorithms.
    """

    standardise_inputs: bool = True
    standardise_targets: bool = True
    initial_means: str | float = "params"
    initial_deviation: float | None = 0.05
    conjugate_noise: bool = True
    rate: float = 5e-3
    warm_epochs: int = 50
    batch_size: int = 64
    epochs: int | None = None
    steps: int = 60_000
    cooling: float = 0.3
    stops: bool = True
    samples: int = 10


RECIPES = {
    "default": Recipe(),
    # Settings of the paper's notebooks; batch_size, epochs and rate vary with its data sets.
    "paper": Recipe(
        standardise_targets=False,
        initial_means=0.01,
        initial_deviation=None,
        conjugate_noise=False,
        rate=1e-2,
        warm_epochs=0,
        batch_size=16,
        epochs=750,
        cooling=0.0,
        stops=False,
    ),
}


def initial_beliefs(
    recipe: Recipe, key: Array, beliefs: PyTree, priors: PyTree, *, redraw: bool
) -> PyTree:
    """Return where a run starts.

    Args:
        recipe: see `Recipe`.
        key: for drawn means.
        beliefs: whose means are the model's own weights; variances are replaced, except that what
            is certain (variance 0) stays so.
        priors: of the beliefs.
        redraw: draw the means even where the recipe starts from the model's weights, with each
            leaf's own spread: another initialisation of the same kind, for restarts.
    """
    leaves, _, treedef = flatten(beliefs)
    new = []
    for number, (leaf, prior) in enumerate(zip(leaves, treedef.flatten_up_to(priors), strict=True)):
        if not is_belief(leaf):
            new.append(leaf)
            continue
        mean = _initial_mean(recipe, jax.random.fold_in(key, number), leaf.mean, redraw)
        if recipe.initial_deviation is None:
            variance = jnp.broadcast_to(prior.variance, mean.shape).astype(mean.dtype)
        else:
            variance = jnp.full_like(mean, recipe.initial_deviation**2)
        alive = leaf.variance > 0
        new.append(Normal(jnp.where(alive, mean, leaf.mean), jnp.where(alive, variance, 0)))
    return treedef.unflatten(new)


def _initial_mean(recipe: Recipe, key: Array, given: Array, redraw: bool) -> Array:
    noise = jax.random.normal(key, given.shape, given.dtype)
    if not isinstance(recipe.initial_means, str):
        return recipe.initial_means * noise
    spread, centre = _spread(given), jnp.mean(given)
    if spread > 0:
        return centre + spread * noise if redraw else jnp.asarray(given)
    if given.ndim < 2:
        return jnp.asarray(given)  # biases, scales: constant on purpose
    # He's scale, for the layout (…, inputs, outputs); a matrix of zeros could never break symmetry.
    inputs = np.prod(given.shape[:-1])
    return centre + float(np.sqrt(2 / inputs)) * noise


def _spread(values: Any) -> float:
    return float(jnp.std(values)) if values.size > 1 else 0.0
