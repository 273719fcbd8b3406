"""The free energy of a state on all rows, at the best q(γ)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal
from secateur.propagation import propagate
from secateur.training.batches import cut_rows
from secateur.training.blocks import RowBlock
from secateur.training.hierarchy import hyper_complexity
from secateur.training.layout import flat_complexity
from secateur.training.objective import FreeEnergy, compute_parts
from secateur.training.program import (
    Constants,
    ProgramSpec,
    TrainingState,
    map_runs,
)

# Folded into the key in place of the number of an epoch.
_EVALUATION = 2**32 - 1


class Evaluation(NamedTuple):
    """A free energy at the best q(γ), that q(γ), and the standard error if it was sampled."""

    free_energy: FreeEnergy
    noise: Any
    standard_error: Array


@partial(jax.jit, static_argnames=("spec", "samples"))
def evaluate(
    spec: ProgramSpec,
    state: TrainingState,
    constants: Constants,
    data: RowBlock,
    noise: Any = None,
    *,
    samples: int,
) -> Evaluation:
    """Return the free energy of every run on these rows.

    Args:
        spec: See `ProgramSpec`.
        state: The weights to evaluate.
        constants: See `Constants`.
        data: The rows, with a leading axis of sets.
        noise: q(γ) by run; by default the conjugate one for these rows.
        samples: Number of predictions that a sampling algorithm averages.
    """
    likelihood, dtype = constants.likelihood, spec.layout.dtype
    is_known = noise is not None

    def evaluate_run(state: TrainingState, noise: Any, data: RowBlock) -> Evaluation:
        targets, weights = data.targets, data.weights
        predictions = _predict(spec, constants, samples, state, data.inputs)
        if not is_known:
            flat = jax.tree.map(lambda p: p.reshape(-1, *p.shape[2:]), predictions)
            repeated = jnp.tile(targets, (samples,) + (1,) * (targets.ndim - 1))
            counts = jnp.full(repeated.shape[0], 1 / samples, dtype)
            if weights is not None:
                counts = jnp.tile(weights, samples) * counts
            noise = likelihood.update_noise(flat, repeated, weights=counts)
        divergence = flat_complexity(state.weights, state.alive, state.prior)
        if spec.prior_groups is not None:
            divergence += hyper_complexity(spec.layout, spec.prior_groups, state.alive, state.prior)

        def judge(prediction: Any) -> FreeEnergy:
            return compute_parts(
                divergence, likelihood, noise, prediction, targets, weights=weights
            )

        parts = jax.vmap(judge)(predictions)
        accuracy = jnp.mean(parts.accuracy)
        total = FreeEnergy(divergence, likelihood.noise_complexity(noise), accuracy)
        spread = jnp.std(parts.accuracy, ddof=1) if samples > 1 else jnp.zeros_like(accuracy)
        return Evaluation(total, noise, spread / np.sqrt(samples).astype(spread.dtype))

    # The optimiser's state may be empty, and is not used here.
    return map_runs(evaluate_run, state._replace(memory=None), noise, data=data)


def _predict(
    spec: ProgramSpec, constants: Constants, samples: int, state: TrainingState, inputs: Any
) -> Normal | Array:
    """Predict all rows, some at a time; the first axis of the result counts samples."""
    forward = propagate(spec.f, spec.inference)
    beliefs = spec.layout.beliefs(state.weights.beliefs(state.alive), constants.certain)
    key = jax.random.fold_in(state.key, _EVALUATION)
    pieces, counts = cut_rows(inputs)
    rows = jax.tree.leaves(inputs)[0].shape[0]

    def predict_piece(piece: Any) -> Any:
        x, number = piece
        keys = jax.random.split(jax.random.fold_in(key, number), samples)
        return jax.vmap(lambda k: forward(k, beliefs, x))(keys)

    def join(p: Array) -> Array:
        p = jnp.moveaxis(p, 0, 1)  # samples, pieces, rows
        return p.reshape(samples, -1, *p.shape[3:])[:, :rows]

    predictions = jax.lax.map(predict_piece, (pieces, jnp.arange(len(counts))))
    return jax.tree.map(join, predictions)
