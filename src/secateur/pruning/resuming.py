"""From a fitted model back to a trainer and a state, with the program that is compiled already."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.fitting import devices
from secateur.fitting.program import State
from secateur.fitting.result import Fitted
from secateur.fitting.sources import Arrays, Stream, source_of
from secateur.fitting.trainer import Trainer


def as_source(data: Any, fitted: Fitted, size: int | None) -> Arrays | Stream:
    """Return the data as something that can be read again and again."""
    batch_size = fitted.continuation.recipe.batch_size
    source = source_of(data, size=size, batch_size=batch_size)
    if not source.repeatable:
        raise ValueError(
            "an iterator can be read once only, and this reads the data many times. Give arrays, "
            "or a function that starts an iterator."
        )
    return source


def resume(fits: list[Fitted], source: Arrays | Stream) -> tuple[Trainer, State]:
    """Return a trainer for fitted models, and their states side by side if they are several."""
    first = fits[0].continuation
    for fitted in fits:
        _check_finite(fitted)
        if fitted.continuation.layout != first.layout:
            raise ValueError("the fitted models differ in structure. Give those of one fit_many.")
    trainer = Trainer(
        fits[0].model,
        source,
        first.layout,
        first.certain,
        first.recipe,
        optimiser=first.optimiser,
        empirical_bayes=first.empirical_bayes,
        runs=None if len(fits) == 1 else len(fits),
        mesh=first.mesh,
        shard_weights=first.shard_weights,
        scalings=[f.scaling for f in fits[: len(source.columns)]],
    )
    states = [f.continuation.state for f in fits]
    state = states[0] if len(fits) == 1 else jax.tree.map(lambda *a: jnp.stack(a), *states)
    return trainer, trainer.placed(state)


def _check_finite(fitted: Fitted) -> None:
    weights = fitted.continuation.state.weights
    if not all(_finite(v) for v in jax.tree.leaves(weights)):
        raise ValueError(
            "the fitted model holds nan or infinite beliefs, which no score can judge. Fit it "
            "again with a smaller learning rate."
        )


def _finite(values: jax.Array) -> bool:
    """Whether all are; by NumPy, which has nothing to compile, where it can see them all."""
    if devices.is_here(values):
        return bool(np.all(np.isfinite(np.asarray(values))))
    return bool(jnp.all(jnp.isfinite(values)))
