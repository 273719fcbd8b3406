"""Which of the weights that were cut the data now ask for."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs import believe, priors
from secateur.beliefs.trees import beliefs_in
from secateur.distributions import Normal
from secateur.energy import accuracy
from secateur.fitting.program import Fixed, Settings, State, in_pieces
from secateur.fitting.recipes import initial_beliefs
from secateur.fitting.trainer import Trainer
from secateur.fitting.weights import Layout, Vectors, Weights
from secateur.model import BayesianModel
from secateur.propagation import propagate
from secateur.pruning.process import Process, Proposer
from secateur.pruning.scoring import Change, each_run


class Sensitivity(NamedTuple):
    """How the accuracy of all rows depends on every weight where it is now.

    Attributes:
        slope: g, its derivative by the weight.
        curvature: h ≥ 0, minus its second derivative.
    """

    slope: Vectors
    curvature: Vectors


@partial(jax.jit, static_argnames=("settings",))
def sensitivity(
    settings: Settings, state: State, fixed: Fixed, data: tuple, noise: Any
) -> Sensitivity:
    """One pass over the rows for both.

    For a Gaussian weight of variance v, ∂E[ℓ]/∂v = ½ E[ℓ''] (Price), so the derivatives by mean and
    variance, which moment propagation has at v = 0 too, are all that is needed.
    """

    def one(state: State, data: tuple, noise: Any) -> Sensitivity:
        forward = propagate(settings.f, "moments")
        flat = state.weights.beliefs(state.alive)

        def good(flat: tuple[Normal, ...], x: Any, y: Array, count: Array) -> Array:
            prediction = forward(None, settings.layout.beliefs(flat, fixed.certain), x)
            return accuracy(fixed.likelihood, noise, prediction, y, weights=count)

        def add(total: Any, piece: Any) -> tuple[Any, None]:
            (x, y), count = piece
            return jax.tree.map(jnp.add, total, jax.grad(good)(flat, x, y, count)), None

        pieces, counts = in_pieces(data)
        each = pieces, jnp.asarray(counts, settings.layout.dtype)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, flat), each)
        return Sensitivity(
            tuple(q.mean for q in total), tuple(jnp.maximum(-2 * q.variance, 0) for q in total)
        )

    if settings.many:
        one = jax.vmap(one, in_axes=(0, 0 if settings.own_data else None, 0))
    return one(state, data, noise)


class Return(NamedTuple):
    """The best Gaussian for a weight that comes back, and what that changes."""

    mean: Array
    variance: Array
    delta_f: Array


def best_return(slope: Any, curvature: Any, prior_variance: Any) -> Return:
    """The best belief about a weight at 0 whose accuracy has this slope and curvature there.

        λ = 1/σ_p² + h        q = N(g/λ, 1/λ)        delta_f = ½ ln(λ σ_p²) − g²/2λ

    Exact where the accuracy is quadratic in the weight and the prior is N(0, σ_p²).

    Example:
        >>> [round(float(v), 3) for v in best_return(3.0, 8.0, 1.0)]
        [0.333, 0.111, 0.599]
    """
    precision = 1 / prior_variance + curvature
    delta_f = 0.5 * jnp.log(precision * prior_variance) - jnp.square(slope) / (2 * precision)
    return Return(slope / precision, 1 / precision, delta_f)


def returning_weights(process: Process, model: BayesianModel, key: Array) -> Proposer:
    """Propose all cut weights whose return lowers the free energy.

    Where a whole unit is gone, none of its weights has any influence alone: slope and curvature are
    exactly 0. Such weights are drawn anew, as a training would start.
    """
    trainer = process.trainer
    settings, many = trainer.settings, trainer.settings.many

    def propose(state: State, share: np.ndarray) -> Change:
        noise = [e.noise for e in process.judged.evaluations]
        noise = jax.tree.map(lambda *a: jnp.stack(a), *noise) if many else noise[0]
        total = None
        for block in trainer.blocks():
            new = sensitivity(settings, state, trainer.fixed, block, noise)
            total = new if total is None else jax.tree.map(jnp.add, total, new)
        fresh = fresh_weights(model, trainer, jax.random.fold_in(key, process.number))
        return _grow(settings.layout, state, total, fresh, many=many)

    return propose


@partial(jax.jit, static_argnames=("layout", "many"))
def _grow(layout: Layout, state: State, total: Any, fresh: Weights, *, many: bool) -> Change:
    def one(state: State, total: Sensitivity, fresh: Weights) -> Change:
        means, logs, alive = [], [], []
        changed, estimated = jnp.zeros((), int), jnp.zeros((), layout.dtype)
        for v, place_mask in enumerate(_places(layout)):
            g, h = total.slope[v], total.curvature[v]
            variance = jnp.broadcast_to(jnp.asarray(state.prior[v].variance), g.shape)
            back = best_return(g, h, variance)
            dead = ~state.alive[v] & place_mask
            asked = dead & (back.delta_f < 0)
            idle = dead & (g == 0) & (h == 0)
            mean = jnp.where(asked, back.mean, state.weights.means[v])
            log = jnp.where(asked, 0.5 * jnp.log(back.variance), state.weights.log_deviations[v])
            means.append(jnp.where(idle, fresh.means[v], mean))
            logs.append(jnp.where(idle, fresh.log_deviations[v], log))
            alive.append(state.alive[v] | asked | idle)
            changed += jnp.sum(asked | idle)
            estimated += jnp.sum(jnp.where(asked, back.delta_f, 0))
        new = state._replace(weights=Weights(tuple(means), tuple(logs)), alive=tuple(alive))
        return Change(new, changed, estimated)

    return each_run(one, many)(state, total, fresh)


def _places(layout: Layout) -> list[np.ndarray]:
    """Which elements of the vectors are weights, and no padding."""
    masks = [np.zeros(size, bool) for size in layout.sizes]
    for place in layout.places:
        masks[place.vector][place.start : place.start + place.size] = True
    return masks


def fresh_weights(model: BayesianModel, trainer: Trainer, key: Array) -> Weights:
    """Where a training of these weights would start, by run."""
    beliefs = believe(model.params, variance=1.0, where=model.where)
    prior = priors(beliefs, model.prior)
    layout = trainer.settings.layout

    def one(key: Array) -> Weights:
        start = initial_beliefs(trainer.recipe, key, beliefs, prior, redraw=True)
        drawn = list(beliefs_in(start))
        means = layout.vectors([q.mean for q in drawn])
        variances = layout.vectors([q.variance for q in drawn])
        return Weights.of(tuple(map(Normal, means, variances)))

    if not trainer.settings.many:
        return one(key)
    keys = jax.random.split(key, len(trainer.run_jacobians))
    return jax.tree.map(lambda *a: np.stack(a), *map(one, keys))
