"""Regrowth: which pruned weights would lower the free energy if they were readmitted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from secateur.beliefs import believe, priors
from secateur.distributions import Normal, UnitNormal
from secateur.model import BayesianModel
from secateur.propagation import propagate
from secateur.pruning.moves import Change
from secateur.pytrees import uncertain_leaves
from secateur.training.batches import cut_rows
from secateur.training.blocks import RowBlock
from secateur.training.coordinates import Coordinates, Vectors
from secateur.training.layout import Layout
from secateur.training.objective import accuracy
from secateur.training.program import (
    Constants,
    ProgramSpec,
    TrainingState,
    map_runs,
    stack_runs,
)
from secateur.training.recipe import make_initial_beliefs
from secateur.training.trainer import Trainer


class Sensitivity(NamedTuple):
    """How the accuracy of all rows depends on every weight at its current value.

    Attributes:
        slope: g, its derivative by the weight.
        curvature: h ≥ 0, minus its second derivative.
    """

    slope: Vectors
    curvature: Vectors


@partial(jax.jit, static_argnames=("spec",))
def compute_sensitivity(
    spec: ProgramSpec, state: TrainingState, constants: Constants, data: RowBlock, noise: Any
) -> Sensitivity:
    """Return both derivatives from one pass over the rows.

    For a Gaussian weight of variance v, ∂E[ℓ]/∂v = ½ E[ℓ''] (Price), so the derivatives by mean and
    variance, which moment propagation also has at v = 0, are all that is needed.
    """

    def compute(state: TrainingState, noise: Any, data: RowBlock) -> Sensitivity:
        forward = propagate(spec.f, "moments")
        # A readmitted weight is independent of the others of its unit.
        flat = tuple(
            replace(q, is_whole=False) if isinstance(q, UnitNormal) else q
            for q in state.weights.beliefs(state.alive)
        )

        def piece_accuracy(flat: tuple[Normal, ...], rows: RowBlock, counts: Array) -> Array:
            prediction = forward(None, spec.layout.beliefs(flat, constants.certain), rows.inputs)
            if rows.weights is not None:
                counts = counts * rows.weights
            return accuracy(constants.likelihood, noise, prediction, rows.targets, weights=counts)

        def add_piece(total: Any, piece: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(piece_accuracy)(flat, *piece)), None

        pieces, counts = cut_rows(data)
        steps = pieces, jnp.asarray(counts, spec.layout.dtype)
        total, _ = jax.lax.scan(add_piece, jax.tree.map(jnp.zeros_like, flat), steps)
        return Sensitivity(
            tuple(q.mean for q in total), tuple(jnp.maximum(-2 * q.variance, 0) for q in total)
        )

    return map_runs(compute, state, noise, data=data)


class GrownWeight(NamedTuple):
    """The best Gaussian for a readmitted weight, and the resulting change of the free energy."""

    mean: Array
    variance: Array
    delta_f: Array


def find_grown_weight(slope: Any, curvature: Any, prior_variance: Any) -> GrownWeight:
    """Return the best belief about a weight at 0 whose accuracy has this slope and curvature there.

        λ = 1/σ_p² + h        q = N(g/λ, 1/λ)        delta_f = ½ ln(λ σ_p²) − g²/2λ

    Exact where the accuracy is quadratic in the weight and the prior is N(0, σ_p²).

    Example:
        >>> [round(float(v), 3) for v in find_grown_weight(3.0, 8.0, 1.0)]
        [0.333, 0.111, 0.599]
    """
    precision = 1 / prior_variance + curvature
    delta_f = 0.5 * jnp.log(precision * prior_variance) - jnp.square(slope) / (2 * precision)
    return GrownWeight(slope / precision, 1 / precision, delta_f)


def grow_weights(trainer: Trainer, state: TrainingState, noises: list[Any], key: Array) -> Change:
    """Readmit all weights whose return lowers the free energy.

    If a whole unit was removed, none of its weights has any influence alone: slope and curvature
    are exactly 0. Such weights are initialised again, as at the start of a training.

    Args:
        trainer: The trainer, for its data.
        state: State of all runs.
        noises: q(γ) of each run.
        key: A JAX random key for the weights that are drawn.
    """
    total = None
    for block in trainer.blocks():
        new = compute_sensitivity(trainer.spec, state, trainer.constants, block, stack_runs(noises))
        total = new if total is None else jax.tree.map(jnp.add, total, new)
    fresh = draw_weights(trainer.model, trainer, key)
    return _grow(trainer.spec.layout, state, total, fresh)


@partial(jax.jit, static_argnames=("layout",))
def _grow(layout: Layout, state: TrainingState, total: Any, fresh: Coordinates) -> Change:
    def grow(state: TrainingState, total: Sensitivity, fresh: Coordinates) -> Change:
        means, logs, alive = [], [], []
        changed, estimated = jnp.zeros((), int), jnp.zeros((), layout.dtype)
        for v, is_weight in enumerate(layout.masks()):
            g, h = total.slope[v], total.curvature[v]
            variance = jnp.broadcast_to(jnp.asarray(state.prior[v].variance), g.shape)
            grown = find_grown_weight(g, h, variance)
            dead = ~state.alive[v] & is_weight
            wanted = dead & (grown.delta_f < 0)
            idle = dead & (g == 0) & (h == 0)
            mean = jnp.where(wanted, grown.mean, state.weights.means[v])
            log = jnp.where(wanted, 0.5 * jnp.log(grown.variance), state.weights.log_deviations[v])
            means.append(jnp.where(idle, fresh.means[v], mean))
            logs.append(jnp.where(idle, fresh.log_deviations[v], log))
            alive.append(state.alive[v] | wanted | idle)
            changed += jnp.sum(wanted | idle)
            estimated += jnp.sum(jnp.where(wanted, grown.delta_f, 0))
        weights = Coordinates(tuple(means), tuple(logs), state.weights.mixing)
        return Change(state._replace(weights=weights, alive=tuple(alive)), changed, estimated)

    return map_runs(grow, state, total, fresh)


def draw_weights(model: BayesianModel, trainer: Trainer, key: Array) -> Coordinates:
    """Return the means from which a training of these weights would start, by run."""
    beliefs = believe(model.params, variance=1.0, where=model.where)
    prior = priors(beliefs, model.prior)
    layout = trainer.spec.layout

    def draw(key: Array) -> Coordinates:
        start = make_initial_beliefs(trainer.recipe, key, beliefs, prior, redraw=True)
        leaves = list(uncertain_leaves(start))
        means = layout.vectors([q.mean for q in leaves])
        variances = layout.vectors([q.variance for q in leaves])
        return Coordinates.from_beliefs(tuple(map(Normal, means, variances)))

    keys = [key] if trainer.runs == 1 else list(jax.random.split(key, trainer.runs))
    return stack_runs(list(map(draw, keys)))
