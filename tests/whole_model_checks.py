"""What every whole model must do, measured; used by tests and by benchmarks/whole_models.py."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import secateur as sc
from model_zoo import Model, monte_carlo
from secateur.compaction.analysis import analyse
from secateur.compaction.removal import choose_units
from secateur.compaction.smaller_function import SmallerFunction

SD = 0.1
SAMPLES = 4_000


def believe(params: Any, sd: float = SD) -> Any:
    return jax.tree.map(lambda m: sc.Normal(m, jnp.full_like(m, sd**2)), params)


@lru_cache(maxsize=1)
def _compiled(f: Any) -> Any:
    """Moments, free energy for fixed targets with unit noise, and its gradient; one program."""
    forward = sc.propagate(f, "moments")

    def free_energy(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        mean, log_sd = state
        beliefs = jax.tree.map(lambda m, s: sc.Normal(m, jnp.exp(2 * s)), mean, log_sd)
        out = forward(None, beliefs, x)
        misfit = 0.5 * jnp.sum((y - out.mean) ** 2 + out.variance) / 0.1
        divergence = sum(
            0.5 * jnp.sum(jnp.exp(2 * s) + m**2 - 1 - 2 * s)
            for m, s in zip(jax.tree.leaves(mean), jax.tree.leaves(log_sd), strict=True)
        )
        return misfit + divergence, out

    return jax.jit(jax.value_and_grad(free_energy, has_aux=True))


def start(params: Any) -> Any:
    return params, jax.tree.map(lambda m: jnp.full_like(m, np.log(SD)), params)


def targets(f: Any, params: Any, x: Any) -> np.ndarray:
    shape = jax.eval_shape(f, params, x).shape
    return np.random.default_rng(1).normal(size=shape)


def agreement(f: Any, params: Any, x: Any) -> tuple[float, float]:
    """RMS error of the mean in output deviations, and the median ratio of deviations."""
    (_, out), _ = _compiled(f)(start(params), x, targets(f, params, x))
    variances = jax.tree.map(lambda m: jnp.full_like(m, SD**2), params)
    truth = monte_carlo(Model(f, params, x), variances, SAMPLES)
    mean, sd = truth.mean, np.sqrt(truth.variance)
    alive = sd > 1e-3 * sd.max()
    shift = ((np.asarray(out.mean) - mean) / np.where(alive, sd, 1.0))[alive]
    ratio = (np.sqrt(np.asarray(out.variance)) / np.where(alive, sd, 1.0))[alive]
    return float(np.sqrt(np.mean(shift**2))), float(np.median(ratio))


def train_a_little(f: Any, params: Any, x: Any, steps: int = 20) -> tuple[bool, float, float]:
    """Whether gradients are finite, and the free energy before and after some steps of Adam."""
    state, y = start(params), targets(f, params, x)
    optimiser = optax.adam(0.01)
    memory = optimiser.init(state)
    (first, _), gradient = _compiled(f)(state, x, y)
    finite = all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))
    for _ in range(steps):
        updates, memory = optimiser.update(gradient, memory)
        state = optax.apply_updates(state, updates)
        (value, _), gradient = _compiled(f)(state, x, y)
        finite &= all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))
    return finite, float(first), float(value)


def compile_seconds(f: Any, params: Any, x: Any) -> tuple[float, float]:
    """Seconds of the processor to trace and compile the function, and its moments."""
    forward = sc.propagate(f, "moments")
    calls = (
        (jax.jit(lambda p, x: f(p, x)), (params, x)),
        (jax.jit(lambda b, x: forward(None, b, x)), (believe(params), x)),
    )
    times = []
    for call, arguments in calls:
        began = time.process_time()
        call.lower(*arguments).compile()
        times.append(time.process_time() - began)
    return times[0], times[1]


def count_units(f: Any, params: Any, x: Any) -> int:
    return len(sc.units(f, params, x))


def check_removal(f: Any, params: Any, x: Any) -> float:
    """Largest change of an output, relative to the largest, when cut units are taken out.

    A fifth of the hidden units is cut; what compaction finds dead is removed from all arrays.
    """
    found = sc.units(f, params, x)
    hidden = [n for n, unit in enumerate(found.units) if unit.kind == "hidden"]
    gone = hidden[::5]
    leaves, structure = jax.tree.flatten(params)

    def cut(leaf: Any, axes: Any) -> Any:
        values = np.array(leaf)
        for axis, labels in enumerate(axes or ()):
            values[(slice(None),) * axis + (np.isin(labels, gone),)] = 0.0
        return jnp.asarray(values)

    axes = structure.flatten_up_to(found.axes)
    weights = structure.unflatten([cut(a, b) for a, b in zip(leaves, axes, strict=True)])
    arrays = jax.tree.leaves(weights)
    analysis = analyse(f, weights, x)
    dead = analysis.dead([np.asarray(a) != 0 for a in arrays])
    assert dead[gone].all(), "a unit whose weights are 0 is not found dead"
    removal = choose_units(analysis, dead, drop_inputs=False)
    small = structure.unflatten([removal.shrink(i, a) for i, a in enumerate(arrays)])
    assert not gone or _size(small) < _size(weights), "no weight was taken out"
    smaller = SmallerFunction(f, weights, removal.kept, removal.inputs)
    expected, actual = (
        np.asarray(g(w, x), np.float64) for g, w in ((f, weights), (smaller, small))
    )
    return float(np.abs(actual - expected).max() / max(1.0, np.abs(expected).max()))


def _size(tree: Any) -> int:
    return sum(np.size(a) for a in jax.tree.leaves(tree))
