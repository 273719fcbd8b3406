"""Training steps of convolutional networks: secateur against the same network as a plain one.

The plain step is the gradient of the squared error and a step downhill, in the same kind of
compiled loop, with the network as it is written ("as written": XLA's convolutions and pooling) and
in its fastest form ("plain": patches and products). Every round measures all contestants in turn,
so that other load affects all of them. Wall time is the lowest of all rounds; on a busy machine,
processor time is the more reliable of the two.

    python benchmarks/convolutions.py [--networks lenet depthwise causal] [--rounds 5] [--written]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import secateur as sc
from secateur.equations.execution import execute_jaxpr
from secateur.training import program
from secateur.training.recipe import RECIPES, Training
from secateur.training.sources import Arrays
from secateur.training.trainer import Trainer

IMAGE, SIGNAL = ("NHWC", "HWIO", "NHWC"), ("NWC", "WIO", "NWC")
STEPS = 4  # in a pass over the data
ALGORITHMS = ("local", "moments", "global")


def _kernel(number: int, *shape: int) -> Array:
    scale = (2 / np.prod(shape[:-1])) ** 0.5
    return scale * jax.random.normal(jax.random.key(number), shape)


def _pool(x: Array) -> Array:
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def lenet() -> tuple[Callable, list, tuple[int, ...]]:
    """LeNet-5 with 20-50-500-10 units for images of 28 × 28, batches of 256."""

    def f(weights, x):
        for kernel in weights[:2]:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=IMAGE)
            x = _pool(jax.nn.relu(x))
        x = jax.nn.relu(x.reshape(x.shape[0], -1) @ weights[2])
        return x @ weights[3]

    shapes = (5, 5, 1, 20), (5, 5, 20, 50), (800, 500), (500, 10)
    return f, [_kernel(i, *s) for i, s in enumerate(shapes)], (256, 28, 28, 1)


def depthwise() -> tuple[Callable, list, tuple[int, ...]]:
    """A small depthwise separable network for 49 frames of 10 features, batches of 128."""

    def f(weights, x):
        first, *pairs, last = weights
        x = lax.conv_general_dilated(x, first, (2, 2), "SAME", dimension_numbers=IMAGE)
        x = jax.nn.relu(x)
        for own, mixing in zip(pairs[::2], pairs[1::2], strict=True):
            x = lax.conv_general_dilated(
                x, own, (1, 1), "SAME", dimension_numbers=IMAGE, feature_group_count=x.shape[-1]
            )
            x = jax.nn.relu(x)
            x = lax.conv_general_dilated(x, mixing, (1, 1), "SAME", dimension_numbers=IMAGE)
            x = jax.nn.relu(x)
        return x.mean((1, 2)) @ last

    shapes = (10, 4, 1, 64), *((3, 3, 1, 64), (1, 1, 64, 64)) * 3, (64, 10)
    return f, [_kernel(i, *s) for i, s in enumerate(shapes)], (128, 49, 10, 1)


def causal() -> tuple[Callable, list, tuple[int, ...]]:
    """Causal convolutions of growing dilation over 128 samples, batches of 64."""

    def f(weights, x):
        *kernels, last = weights
        for number, kernel in enumerate(kernels):
            dilation = 2**number
            x = lax.conv_general_dilated(
                x, kernel, (1,), [(2 * dilation, 0)], rhs_dilation=(dilation,),
                dimension_numbers=SIGNAL,
            )  # fmt: skip
            x = jax.nn.relu(x)
        return x[:, -1] @ last

    shapes = (3, 8, 32), (3, 32, 32), (3, 32, 32), (3, 32, 32), (32, 10)
    return f, [_kernel(i, *s) for i, s in enumerate(shapes)], (64, 128, 8)


NETWORKS = {"lenet": lenet, "depthwise": depthwise, "causal": causal}


def make_plain(name: str, *, as_written: bool) -> Callable[[], object]:
    """Return a pass of plain steps over the data."""
    f, weights, shape = NETWORKS[name]()
    x, y = make_data(shape)
    x, y = (jnp.asarray(a.reshape(STEPS, shape[0], *a.shape[1:])) for a in (x, y))
    jaxpr = jax.make_jaxpr(f)(weights, x[0])

    def run(weights, x):
        if as_written:
            return f(weights, x)
        return execute_jaxpr(jaxpr.jaxpr, jaxpr.consts, [*weights, x])[0]

    def step(weights, batch):
        x, y = batch
        slope = jax.grad(lambda w: jnp.mean(jnp.square(run(w, x) - jax.nn.one_hot(y, 10))))(weights)
        return [w - 1e-4 * g for w, g in zip(weights, slope, strict=True)], None

    loop = jax.jit(lambda weights: lax.scan(step, weights, (x, y))[0])
    return lambda: jax.block_until_ready(loop(weights))


def make_data(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = STEPS * shape[0]
    return np.float32(rng.normal(size=(rows, *shape[1:]))), rng.integers(0, 10, rows)


def make_secateur(name: str, inference: str) -> Callable[[], object]:
    """Return an epoch of the complete program that `secateur.fit` runs."""
    f, weights, shape = NETWORKS[name]()
    model = sc.BayesianModel(f, weights, likelihood=sc.CategoricalLikelihood(), inference=inference)
    beliefs = sc.believe(weights, variance=0.01)
    priors = sc.priors(beliefs, sc.Normal(0.0, 1.0))
    training = Training(replace(RECIPES["default"], batch_size=shape[0]))
    data = Arrays([make_data(shape)])
    trainer = Trainer(model, data, [beliefs], [priors], training)
    state = trainer.restart(trainer.start([jax.random.key(0)]))
    schedule = trainer._make_schedule(trainer.planner.plan_training())

    def run():
        nonlocal state
        state, records = program.train(
            trainer.spec, state, trainer.constants, trainer._data, schedule, 1
        )
        jax.block_until_ready(records)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--algorithms", nargs="+", default=["local"], choices=ALGORITHMS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--written", action="store_true", help="also the network as written")
    parser.add_argument("--json", help="file for all measurements")
    options = parser.parse_args()
    everything = {}
    print("network    contestant     wall ms    CPU ms   / plain    CPU")
    for name in options.networks:
        runs = {"plain": make_plain(name, as_written=False)}
        if options.written:
            runs["as written"] = make_plain(name, as_written=True)
        runs |= {a: make_secateur(name, a) for a in options.algorithms}
        times: dict[str, list[tuple[float, float]]] = {contestant: [] for contestant in runs}
        for run in runs.values():
            run()  # compiles
        for _ in range(options.rounds):
            for contestant, run in runs.items():
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                spent = time.perf_counter() - wall, time.process_time() - cpu
                times[contestant].append((1e3 * spent[0] / STEPS, 1e3 * spent[1] / STEPS))
        everything[name] = times
        plain = times["plain"]
        for contestant, own in times.items():
            wall, cpu = (min(t) for t in zip(*own, strict=True))
            ratios = [[a[i] / b[i] for a, b in zip(own, plain, strict=True)] for i in (0, 1)]
            wall_ratio, cpu_ratio = map(statistics.median, ratios)
            print(f"{name:10s} {contestant:12s} {wall:9.1f} {cpu:9.1f} {wall_ratio:9.2f} "
                  f"{cpu_ratio:6.2f}", flush=True)  # fmt: skip
    if options.json:
        with open(options.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
