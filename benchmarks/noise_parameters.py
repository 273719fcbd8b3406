"""Effect of the parametrisation of q(γ) on the first cut (the paper's recipe, global).

A plain training loop on boston that does not use secateur's: Adam updates shape and rate of q(γ) as
logarithms, as in the authors' code, or through softplus, as here; deviations of weights likewise.
The output is the free energy of the full network and after one cut, with 200 samples each.

    python benchmarks/noise_parameters.py [--seeds 3]
"""

from __future__ import annotations

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.special import digamma, gammaln

from secateur import datasets
from secateur.networks import Dense
from secateur.paper.protocol import PAPER_RESULTS, PAPER_SETTINGS, UNITS

NAME = "boston"
POSITIVE = {"logarithms": (jnp.exp, 0.0), "softplus": (jax.nn.softplus, float(np.log(np.e - 1)))}


def noise_complexity(shape: Array, rate: Array) -> Array:
    return (shape - 1) * digamma(shape) - gammaln(shape) + jnp.log(rate) + shape * (1 / rate - 1)


def surprise(error: Array, size: float, shape: Array, rate: Array) -> Array:
    constant = jnp.log(2 * jnp.pi) - digamma(shape) + jnp.log(rate)
    return 0.5 * (shape / rate * error + size * constant)


def complexity(mean: Array, deviation: Array) -> Array:
    """Complexity of weights, of which those with deviation 0 are pruned."""
    alive = deviation > 0
    logarithm = jnp.log(jnp.where(alive, deviation, 1))
    return jnp.sum(jnp.where(alive, 0.5 * (deviation**2 + mean**2 - 1) - logarithm, 0))


def train(weights: str, noise: str, network, x: Array, y: Array, key: Array) -> tuple:
    """Return means and deviations of the weights, and E[γ]."""
    settings, (size, _) = PAPER_SETTINGS[NAME], x.shape
    of_weights, start_weights = POSITIVE[weights]
    of_noise, start_noise = POSITIVE[noise]
    first, second = jax.random.split(key)
    flat, unflatten = ravel_pytree(network.init(first))

    def objective(moved: tuple, places: Array, key: Array) -> Array:
        mean, free, *gamma = moved
        deviation, (shape, rate) = of_weights(free), map(of_noise, gamma)
        sample = unflatten(mean + deviation * jax.random.normal(key, mean.shape))
        error = jnp.sum(jnp.square(y[places] - network(sample, x[places])))
        kl = complexity(mean, deviation) + noise_complexity(shape, rate)
        return kl / size + surprise(error, len(places), shape, rate) / len(places)

    adam = optax.adam(settings.rate, eps=1e-7)

    def step(state: tuple, drawn: tuple) -> tuple[tuple, None]:
        update, memory = adam.update(jax.grad(objective)(state[0], *drawn), state[1])
        return (optax.apply_updates(state[0], update), memory), None

    def epoch(state: tuple, key: Array) -> tuple[tuple, None]:
        shuffle, draws = jax.random.split(key)
        batches = size // settings.batch_size
        order = jax.random.permutation(shuffle, size)[: batches * settings.batch_size]
        batched = order.reshape(batches, settings.batch_size)
        return jax.lax.scan(step, state, (batched, jax.random.split(draws, batches)))

    mean = 0.01 * jax.random.normal(first, flat.shape)
    gamma = [jnp.asarray(start_noise)] * 2
    moved = (mean, jnp.full(flat.shape, start_weights), *gamma)
    keys = jax.random.split(second, settings.epochs)
    (mean, free, *gamma), _ = jax.lax.scan(epoch, (moved, adam.init(moved)), keys)[0]
    shape, rate = map(of_noise, gamma)
    return mean, of_weights(free), shape / rate


def free_energy(network, x: Array, y: Array, mean: Array, deviation: Array) -> Array:
    """At the best q(γ)."""
    _, unflatten = ravel_pytree(network.init(jax.random.key(0)))

    def error(key: Array) -> Array:
        sample = unflatten(mean + deviation * jax.random.normal(key, mean.shape))
        return jnp.sum(jnp.square(y - network(sample, x)))

    mean_error = jnp.mean(jax.lax.map(error, jax.random.split(jax.random.key(1), 200)))
    shape, rate = jnp.asarray(1 + len(y) / 2), 1 + 0.5 * mean_error
    kl = complexity(mean, deviation) + noise_complexity(shape, rate)
    return kl + surprise(mean_error, len(y), shape, rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    keys = jax.random.split(jax.random.key(0), parser.parse_args().seeds)
    data, paper = datasets.load(NAME), PAPER_RESULTS[NAME, "global"]
    x = jnp.asarray((data.x - data.x.mean(axis=0)) / data.x.std(axis=0), jnp.float32)
    y = jnp.asarray(data.y, jnp.float32)
    network = Dense(x.shape[1], (UNITS,))
    print(f"paper: {paper.start:.0f} → {paper.one:.0f} ({paper.one_pruned:.0f} % cut)")
    for weights in POSITIVE:
        for noise in POSITIVE:
            runs = jax.jit(jax.vmap(partial(train, weights, noise, network, x, y)))(keys)
            print(f"weights in {weights}, noise in {noise}:")
            for mean, deviation, precision in zip(*runs, strict=True):
                keep = jnp.log(deviation) + 0.5 * jnp.square(mean / deviation) > 0  # BMR
                full = free_energy(network, x, y, mean, deviation)
                cut = free_energy(network, x, y, mean * keep, deviation * keep)
                share = 100 * (1 - jnp.mean(keep))
                print(
                    f"  {full:.0f} → {cut:.0f} ({share:.0f} % cut), E[γ] {precision:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
