"""A check of the paper's free energies of recurrent networks under local reparametrisation.

The authors' recurrent cell differs from local reparametrisation in three ways: it multiplies the
noise by the variance of a gate's input instead of its standard deviation (the biases enter by their
deviation), draws one number per unit for all rows and steps of a batch, and leaves out the reset
gate. This script trains such a cell on the three signals with the paper's settings and prints the
free energy of the same posterior twice: with that noise, as in the paper's Table 1, and with
weights drawn from the posterior, which is the definition of the free energy.

    python benchmarks/authors_gru.py [--epochs 3000] [--seeds 3]
"""

from __future__ import annotations

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import digamma, gammaln

from secateur import datasets
from secateur.paper.protocol import GRU_UNITS as UNITS
from secateur.paper.protocol import PAPER_RESULTS, PAPER_SETTINGS, SIGNALS

GATES = ("update", "candidate")


def shapes() -> dict[str, tuple[int, ...]]:
    gates = {}
    for gate in (
        "reset",
        *GATES,
    ):  # the reset gate has its weights, and its share of the complexity
        gates |= {f"{gate} x": (1, UNITS), f"{gate} h": (UNITS, UNITS), f"{gate} 1": (UNITS,)}
    return gates | {"out h": (UNITS, 1), "out 1": (1,)}


def run_cell(pre, rows: jax.Array) -> jax.Array:
    """The last state, given a function of input, state and gate that returns a gate's input."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        update, new = jax.nn.sigmoid(pre(x, h, "update")), jnp.tanh(pre(x, h, "candidate"))
        return update * h + (1 - update) * new, None

    start = jnp.zeros((rows.shape[0], UNITS), rows.dtype)
    return jax.lax.scan(step, start, jnp.swapaxes(rows, 0, 1))[0]


def as_the_authors(means: dict, deviations: dict, rows: jax.Array, key: jax.Array) -> jax.Array:
    """Predictions with the noise of the authors' cell."""
    *keys, last = jax.random.split(key, len(GATES) + 1)
    noise = {gate: jax.random.normal(k, (UNITS,)) for gate, k in zip(GATES, keys, strict=True)}

    def pre(x: jax.Array, h: jax.Array, gate: str) -> jax.Array:
        m, s = ([w[f"{gate} {part}"] for part in "xh1"] for w in (means, deviations))
        spread = jnp.square(x) @ jnp.square(s[0]) + jnp.square(h) @ jnp.square(s[1]) + s[2][None]
        return x @ m[0] + h @ m[1] + m[2][None] + spread * noise[gate][None]

    h = run_cell(pre, rows)
    mean = h @ means["out h"] + means["out 1"][None]
    variance = jnp.square(h) @ jnp.square(deviations["out h"])
    variance += jnp.square(deviations["out 1"])[None]
    return mean + jnp.sqrt(variance) * jax.random.normal(last, mean.shape)


def as_it_should_be(means: dict, deviations: dict, rows: jax.Array, key: jax.Array) -> jax.Array:
    """Predictions of the same function with weights drawn from the posterior."""
    keys = dict(zip(means, jax.random.split(key, len(means)), strict=True))
    w = {k: m + deviations[k] * jax.random.normal(keys[k], m.shape) for k, m in means.items()}

    def pre(x: jax.Array, h: jax.Array, gate: str) -> jax.Array:
        return x @ w[f"{gate} x"] + h @ w[f"{gate} h"] + w[f"{gate} 1"][None]

    return run_cell(pre, rows) @ w["out h"] + w["out 1"][None]


def gamma_complexity(shape: jax.Array, rate: jax.Array) -> jax.Array:
    return (shape - 1) * digamma(shape) - gammaln(shape) + jnp.log(rate) + shape * (1 / rate - 1)


def objective(moved: tuple, rows: jax.Array, targets: jax.Array, size: int, key: jax.Array):
    """The free energy per row, from one sample."""
    means, free, log_shape, log_rate = moved
    deviations = jax.tree.map(jax.nn.softplus, free)
    shape, rate = jnp.exp(log_shape), jnp.exp(log_rate)
    error = jnp.square(targets - as_the_authors(means, deviations, rows, key))
    surprise = 0.5 * (shape / rate * error + jnp.log(2 * jnp.pi) - digamma(shape) + jnp.log(rate))
    return (
        jnp.mean(surprise) + (complexity(means, deviations) + gamma_complexity(shape, rate)) / size
    )


def complexity(means: dict, deviations: dict) -> jax.Array:
    by_leaf = jax.tree.map(
        lambda m, s: 0.5 * jnp.sum(s * s + m * m - 1 - 2 * jnp.log(s)), means, deviations
    )
    return sum(jax.tree.leaves(by_leaf))


def train(rows: jax.Array, targets: jax.Array, key: jax.Array, *, epochs: int) -> tuple:
    settings = PAPER_SETTINGS["sine"]
    size, batch = len(targets), settings.batch_size
    first, second = jax.random.split(key)
    keys = dict(zip(shapes(), jax.random.split(first, len(shapes())), strict=True))
    means = {name: 0.01 * jax.random.normal(keys[name], s) for name, s in shapes().items()}
    free = {name: jnp.full(s, float(np.log(np.e - 1))) for name, s in shapes().items()}
    moved = (means, free, jnp.zeros(()), jnp.zeros(()))
    adam = optax.adam(settings.rate, eps=1e-7)

    def step(state: tuple, drawn: tuple) -> tuple[tuple, None]:
        moved, memory = state
        places, key = drawn
        gradient = jax.grad(objective)(moved, rows[places], targets[places], size, key)
        update, memory = adam.update(gradient, memory)
        return (optax.apply_updates(moved, update), memory), None

    def epoch(state: tuple, key: jax.Array) -> tuple[tuple, None]:
        shuffle, noise = jax.random.split(key)
        batches = size // batch
        order = jax.random.permutation(shuffle, size)[: batches * batch].reshape(batches, batch)
        return jax.lax.scan(step, state, (order, jax.random.split(noise, batches)))

    state = (moved, adam.init(moved))
    return jax.lax.scan(epoch, state, jax.random.split(second, epochs))[0][0]


def free_energy(predict, moved: tuple, rows: jax.Array, targets: jax.Array, samples: int = 100):
    """At the best q(γ), with its standard error; mean over samples."""
    means, deviations = moved[0], jax.tree.map(jax.nn.softplus, moved[1])
    keys = jax.random.split(jax.random.key(1), samples)
    predictions = jax.lax.map(lambda k: predict(means, deviations, rows, k), keys)
    errors = jnp.sum(jnp.square(targets[None] - predictions), axis=(1, 2))
    size, error = len(targets), jnp.mean(errors)
    shape, rate = 1 + size / 2, 1 + 0.5 * error
    surprise = 0.5 * (shape / rate * error + size * (jnp.log(2 * jnp.pi) - digamma(shape)))
    total = surprise + 0.5 * size * jnp.log(rate) + complexity(means, deviations)
    spread = 0.5 * shape / rate * jnp.std(errors) / jnp.sqrt(samples)
    return total + gamma_complexity(jnp.asarray(shape), rate), spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=PAPER_SETTINGS["sine"].epochs)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), options.seeds)
    print("signal    paper's start   authors' noise   weights from the same posterior")
    for name in SIGNALS:
        data = datasets.load(name)
        rows, targets = jnp.asarray(data.x, jnp.float32), jnp.asarray(data.y, jnp.float32)
        runs = jax.jit(jax.vmap(partial(train, epochs=options.epochs), (None, None, 0)))(
            rows, targets, keys
        )
        columns = [
            [f"{v:.0f}±{e:.0f}" for v, e in zip(*free_energies, strict=True)]
            for predict in (as_the_authors, as_it_should_be)
            for free_energies in [
                jax.vmap(partial(free_energy, predict), (0, None, None))(runs, rows, targets)
            ]
        ]
        paper = PAPER_RESULTS[name, "local"].start
        print(
            f"{name:8}  {paper:13.0f}   {', '.join(columns[0])}   {', '.join(columns[1])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
