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
        standardise_targets: likewise the targets of a Gaussian likelihood whose precision is not
            known; its Gamma prior is then that of the standardised targets' precision. The free
            energy stays in the data's own units.
        initial_means: "params" starts from the model's own weights (leaves that are constant, such
            as zeros, are drawn so that they keep the size of their input); a number draws all
            of them from N(0, number²).
        initial_deviation: of every weight's belief; None is the prior's own.
        conjugate_noise: whether q(γ) follows the weights in closed form; the paper has it learnt
            by Adam, which keeps it optimistic while the network learns.
        rate: of Adam.
        full_rate_width: means of a leaf with a longer side than this move at a rate smaller in
            proportion: what a unit gets is a sum over all its inputs. None lets all move alike.
        warm_steps: over so many steps (and no more than a quarter of all) the weight of the
            complexity rises from 0 to 1. Units that have not yet learnt anything are not given up.
        batch_size: rows in a step; no more than there are.
        epochs: the budget; None is about `steps` steps, and at least 60 epochs.
        steps: see `epochs`.
        retrain_epochs: the budget of each training between rounds of pruning; None is about
            `retrain_steps` steps, and at least 60 epochs.
        retrain_steps: see `retrain_epochs`.
        cooling: share of the epochs in which the rate falls to 0; 0 keeps it constant.
        stops: whether to begin cooling (or, without cooling, end) once the free energy is level.
        samples: draws that the final free energy averages, for the sampling algorithms.
    """

    standardise_inputs: bool = True
    standardise_targets: bool = True
    initial_means: str | float = "params"
    initial_deviation: float | None = 0.05
    conjugate_noise: bool = True
    rate: float = 2e-2
    full_rate_width: int | None = 50
    warm_steps: int = 15_000
    batch_size: int = 64
    epochs: int | None = None
    steps: int = 60_000
    retrain_epochs: int | None = None
    retrain_steps: int = 15_000
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
        full_rate_width=None,
        warm_steps=0,
        batch_size=16,
        epochs=750,
        retrain_epochs=150,
        cooling=0.0,
        stops=False,
    ),
}


def initial_beliefs(
    recipe: Recipe, key: Array, beliefs: PyTree, priors: PyTree, *, redraw: bool
) -> PyTree:
    """Return where a run starts, in arrays of NumPy: there is nothing to compile.

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
    size = sum(np.size(leaf.mean) for leaf in leaves if is_belief(leaf))
    noise = np.asarray(jax.random.normal(key, (size,), jnp.float32))
    new: list[Any] = []
    for leaf, prior in zip(leaves, treedef.flatten_up_to(priors), strict=True):
        if not is_belief(leaf):
            new.append(leaf)
            continue
        given, alive = np.asarray(leaf.mean), np.asarray(leaf.variance) > 0
        own, noise = noise[: given.size].reshape(given.shape), noise[given.size :]
        mean = _initial_mean(recipe, own, given, redraw)
        deviation = recipe.initial_deviation
        variance = np.asarray(prior.variance) if deviation is None else deviation**2
        new.append(
            Normal(
                np.where(alive, mean, given).astype(given.dtype),
                np.where(alive, variance, 0).astype(given.dtype),
            )
        )
    return treedef.unflatten(new)


def _initial_mean(recipe: Recipe, noise: np.ndarray, given: np.ndarray, redraw: bool) -> Any:
    if not isinstance(recipe.initial_means, str):
        return recipe.initial_means * noise
    spread, centre = np.std(given) if given.size > 1 else 0.0, np.mean(given)
    if spread > 0:
        return centre + spread * noise if redraw else given
    if given.ndim < 2:
        return given  # biases, scales: constant on purpose
    # He's scale, for the layout (…, inputs, outputs); a matrix of zeros could never break symmetry.
    return centre + np.sqrt(2 / np.prod(given.shape[:-1])) * noise
