"""How training starts, steps and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh

from secateur.distributions import Normal
from secateur.options import check_count
from secateur.pytrees import PyTree, flatten_beliefs, is_belief
from secateur.training.hierarchy import PriorGroups
from secateur.training.layout import Layout, Place

__all__ = ["RECIPES", "BeforeUpdate", "Recipe", "Training", "choose_recipe", "find_rate_scales"]


@dataclass(frozen=True)
class Recipe:
    """All settings of training.

    Attributes:
        standardise_inputs: Whether to give every input column mean 0 and standard deviation 1.
        standardise_targets: Likewise the targets of a Gaussian likelihood of unknown precision;
            its Gamma prior is then that of the standardised targets' precision. The free energy
            stays in the data's own units.
        initial_means: "params" starts from the model's own weights (matrices that are constant,
            such as zeros, are drawn so that they keep the size of their input). A number draws all
            means from N(0, number²).
        initial_deviation: Standard deviation of every weight at the start. None is the prior's.
        relative_deviation: Largest standard deviation of a weight at the start, as a share of the
            root mean square of its leaf's means, for networks whose inputs or weights have scales
            of their own. None sets no limit.
        noise_prior: Shape and rate of the Gamma prior of a Gaussian likelihood's precisions, for a
            likelihood without a prior of its own. The default is wide: where targets are nearly
            free of noise, Gamma(1, 1) would keep the noise at a tenth of their deviation.
        conjugate_noise: Whether q(γ) follows the weights in closed form. In the paper Adam learns
            it, which keeps it optimistic while the network learns.
        rate: Learning rate of Adam.
        full_rate_width: Means of a leaf with a longer side than this move at a proportionally lower
            rate, because a unit sums over all its inputs. None moves all at the same rate.
        relative_rate: Largest step of the means of a leaf as a share of their root mean square in
            the model's params. None sets no limit.
        warm_steps: Number of steps (at most a quarter of all) over which the weight of the
            complexity rises from 0 to 1, so that units that have not learnt anything yet are not
            switched off.
        batch_size: Number of rows in a step, at most all rows.
        epochs: Maximum number of epochs. None is about `steps` steps, and at least `fewest_epochs`.
        steps: See `epochs`.
        retrain_epochs: Maximum number of epochs of each training between rounds of pruning. None is
            about `retrain_steps` steps, and at least `fewest_epochs`.
        retrain_steps: See `retrain_epochs`.
        fewest_epochs: See `epochs`.
        gradual_rounds: Number of rounds in which `prune` cuts while the weight of the complexity
            still rises: it rises to 1 over the epochs of `fit` and of these rounds together, and
            the rate stays constant meanwhile. With 0, `warm_steps` decides.
        gradual_steps: Number of steps of each of these rounds, or `fewest_epochs` if these are
            more.
        cooling: Fraction of the epochs over which the rate decays to 0; 0 keeps it constant.
        stops: Whether to begin cooling (or, without cooling, to end) once the free energy has
            levelled off.
        samples: Number of draws that the final free energy averages, for sampling algorithms.
    """

    standardise_inputs: bool = True
    standardise_targets: bool = True
    initial_means: str | float = "params"
    initial_deviation: float | None = 0.05
    relative_deviation: float | None = None
    noise_prior: tuple[float, float] = (1.0, 0.01)
    conjugate_noise: bool = True
    rate: float = 2e-2
    full_rate_width: int | None = 50
    relative_rate: float | None = None
    warm_steps: int = 15_000
    batch_size: int = 64
    epochs: int | None = None
    steps: int = 60_000
    retrain_epochs: int | None = None
    retrain_steps: int = 15_000
    fewest_epochs: int = 60
    gradual_rounds: int = 0
    gradual_steps: int = 500
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
        noise_prior=(1.0, 1.0),
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
    # For networks that were trained elsewhere, whose data are not standardised. Most weights are
    # not needed, but add noise to the others and narrow the learnt prior. With the full complexity
    # from the start, the network would forget much before they are cut. So cutting begins early,
    # and the weight of the complexity rises slowly.
    "trained": Recipe(
        standardise_inputs=False,
        standardise_targets=False,
        initial_deviation=math.exp(-4.5),
        relative_deviation=0.2,
        rate=2e-3,
        full_rate_width=None,
        relative_rate=0.05,
        batch_size=128,
        steps=1000,
        retrain_steps=2000,
        fewest_epochs=1,
        gradual_rounds=8,
        samples=3,
    ),
}


def choose_recipe(
    recipe: str | Recipe,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    rate: float | None = None,
) -> Recipe:
    """Return a recipe, given itself or its name, with the options that are not None replaced."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe={recipe!r}. Supported: {', '.join(RECIPES)}, or a Recipe.")
        recipe = RECIPES[recipe]
    options = {"epochs": epochs, "batch_size": batch_size, "rate": rate}
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in changes.keys() & {"epochs", "batch_size"}:
        changes[name] = check_count(changes[name], name)
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"rate={rate}. It must be positive.")
    return replace(recipe, **changes)


@dataclass(frozen=True, eq=False)
class BeforeUpdate:
    """The state of a model before its last update; see `secateur.update`.

    Attributes:
        priors: Priors of the weights before any data, a pytree like the beliefs.
        alive: Which weights were alive when the update began, by uncertain leaf, a pytree like the
            beliefs. The posterior of those is the prior of the update.
    """

    priors: Any
    alive: Any

    def flatten_alive(self, layout: Layout) -> tuple[np.ndarray, ...]:
        """Return which weights were alive, by vector of a layout."""
        masks = [m for m in layout.treedef.flatten_up_to(self.alive) if m is not None]
        return tuple(np.asarray(v) > 0.5 for v in layout.vectors([np.asarray(m) for m in masks]))


@dataclass(frozen=True, eq=False)
class Training:
    """How a model is trained: what is needed, beside model and data, to continue training.

    Attributes:
        recipe: See `Recipe`.
        optimiser: Optimiser whose updates are scaled by the recipe's learning-rate schedule. None
            is Adam.
        prior_groups: Groups of weights whose prior variances are learnt, or None.
        mesh: Devices over which the rows of each step are divided, or None.
        before_update: State before the last update, or None.
    """

    recipe: Recipe
    optimiser: optax.GradientTransformation | None = None
    prior_groups: PriorGroups | None = None
    mesh: Mesh | None = None
    before_update: BeforeUpdate | None = None


@cache  # the same optimiser for the same layout, so that compiled programs are reused
def make_adam(
    layout: Layout, full_rate_width: int | None, scales: tuple[float, ...] = ()
) -> optax.GradientTransformation:
    """Return Adam of rate 1, slower for the means of wide layers.

    Adam moves every weight by about the same distance in a step, and a unit sums over all its
    inputs: the more it has, the further the same rate moves it.

    Args:
        layout: Layout of the weights.
        full_rate_width: See `Recipe`.
        scales: Further factors of the rate of the means, by leaf; see `find_rate_scales`.
    """
    factors = [_rate_factor(place, full_rate_width) for place in layout.places]
    if scales:
        factors = [factor * scale for factor, scale in zip(factors, scales, strict=True)]
    steps = [optax.scale_by_adam(), optax.scale(-1.0)]
    if any(factor < 1 for factor in factors):
        vectors = layout.vectors([np.float32(factor) for factor in factors])
        by_vector = [v[:1] if (v == v[0]).all() else v for v in vectors]
        steps.append(optax.stateless(lambda updates, _: _scale_means(by_vector, updates)))
    return optax.chain(*steps)


def find_rate_scales(rate: float, relative_rate: float, beliefs: PyTree) -> tuple[float, ...]:
    """Return the factors of the rate, by uncertain leaf, that `Recipe.relative_rate` asks for.

    They are powers of two, so that compiled programs are reused for weights of similar sizes.

    Args:
        rate: See `Recipe`.
        relative_rate: See `Recipe`.
        beliefs: Beliefs whose means are the model's params.
    """
    leaves = [np.asarray(q.mean) for q in flatten_beliefs(beliefs)[0] if is_belief(q)]
    sizes = [float(np.sqrt(np.mean(np.square(a, dtype=np.float64)))) for a in leaves]
    limits = [relative_rate * size / rate for size in sizes]
    return tuple(2.0 ** math.floor(math.log2(n)) if 0 < n < 1 else 1.0 for n in limits)


def _rate_factor(place: Place, width: int | None) -> float:
    """It is not known which axes of a leaf are inputs, so the longer side is used."""
    if width is None or len(place.shape) < 2:
        return 1.0
    longer = max(math.prod(place.shape[:-1]), math.prod(place.shape[1:]))
    return min(1.0, width / longer)


def _scale_means(scales: Any, updates: Any) -> Any:
    weights, noise = updates
    means = tuple(m * s.astype(m.dtype) for m, s in zip(weights.means, scales, strict=True))
    return weights._replace(means=means), noise


def make_initial_beliefs(
    recipe: Recipe, key: Array, beliefs: PyTree, priors: PyTree, *, redraw: bool
) -> PyTree:
    """Return the beliefs that a run starts from, as NumPy arrays, to avoid compilation.

    Args:
        recipe: See `Recipe`.
        key: A random key for drawn means.
        beliefs: Beliefs whose means are the model's own weights. Variances are replaced, except
            that what is certain (variance 0) stays so.
        priors: Priors of the beliefs.
        redraw: Whether to draw the means even where the recipe starts from the model's weights,
            with each leaf's own spread: another initialisation of the same kind, for restarts.
    """
    leaves, _, treedef = flatten_beliefs(beliefs)
    size = sum(np.size(leaf.mean) for leaf in leaves if is_belief(leaf))
    noise = np.asarray(jax.random.normal(key, (size,), jnp.float32))
    new: list[Any] = []
    for leaf, prior in zip(leaves, treedef.flatten_up_to(priors), strict=True):
        if not is_belief(leaf):
            new.append(leaf)
            continue
        weights, alive = np.asarray(leaf.mean), np.asarray(leaf.variance) > 0
        own, noise = noise[: weights.size].reshape(weights.shape), noise[weights.size :]
        mean = _initial_mean(recipe, own, weights, redraw)
        deviation = recipe.initial_deviation
        variance = np.asarray(prior.variance) if deviation is None else deviation**2
        if recipe.relative_deviation is not None and np.any(mean):
            limit = recipe.relative_deviation**2 * np.mean(np.square(mean, dtype=np.float64))
            variance = np.minimum(variance, limit)
        new.append(
            Normal(
                np.where(alive, mean, weights).astype(weights.dtype),
                np.where(alive, variance, 0).astype(weights.dtype),
            )
        )
    return treedef.unflatten(new)


def _initial_mean(recipe: Recipe, noise: np.ndarray, weights: np.ndarray, redraw: bool) -> Any:
    if not isinstance(recipe.initial_means, str):
        return recipe.initial_means * noise
    spread, centre = np.std(weights) if weights.size > 1 else 0.0, np.mean(weights)
    if spread > 0:
        return centre + spread * noise if redraw else weights
    if weights.ndim < 2:
        return weights  # biases and scales are constant on purpose
    # He's scale, for the layout (…, inputs, outputs); a matrix of zeros could never break symmetry.
    return centre + np.sqrt(2 / np.prod(weights.shape[:-1])) * noise
