"""Processor time of a training step with covariance within units, beside that of mean field.

    python benchmarks/covariance_cost.py [--networks 13-50-1,784-300-100-10] [--largest 100000]

Both posteriors take turns in one run, so that a busy machine slows down both; printed are the
median processor times of a step, compiling left out, and the median of the ratios. Layers
whose units have more weights than `--largest` stay independent.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import jax
import numpy as np

import secateur as sc

POSTERIORS = ("mean-field", "unit")


def make_task(
    shape: tuple[int, ...], posterior: str, batch_size: int, largest: int = 100_000
) -> tuple:
    inputs, *hidden, outputs = shape
    network = sc.networks.Dense(inputs, hidden=tuple(hidden), outputs=outputs)
    params = network.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * batch_size, inputs)).astype(np.float32)
    if outputs > 1:
        likelihood = sc.CategoricalLikelihood()
        y = rng.integers(outputs, size=len(x))
    else:
        likelihood = sc.GaussianLikelihood()
        y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=(len(x), 1)).astype(np.float32)

    def choose(path: str, leaf: jax.Array) -> str:
        (layer,) = [i for i in range(len(shape)) if f"[{i}]" in path]
        return posterior if shape[layer] < largest else "mean-field"

    return sc.BayesianModel(network, params, likelihood=likelihood, posterior=choose), (x, y)


def time_step(task: tuple, batch_size: int, steps: int) -> float:
    """Return the processor time of a step in milliseconds."""
    model, (x, y) = task
    recipe = replace(sc.Recipe(), batch_size=batch_size, stops=False)
    epochs = max(1, steps * batch_size // len(x))
    start = time.process_time()
    sc.fit(model, (x, y), key=jax.random.key(1), recipe=recipe, epochs=epochs, progress=False)
    return 1e3 * (time.process_time() - start)


def measure(
    shape: tuple[int, ...], batch_size: int, steps: int, repeats: int, largest: int
) -> None:
    tasks = {p: make_task(shape, p, batch_size, largest) for p in POSTERIORS}
    few = steps // 5
    for task in tasks.values():
        time_step(task, batch_size, few)  # compiles
    times: dict[str, list[float]] = {p: [] for p in POSTERIORS}
    for _ in range(repeats):
        for name, task in tasks.items():
            short, long = (time_step(task, batch_size, n) for n in (few, steps))
            times[name].append((long - short) / (steps - few))
    medians = {name: float(np.median(values)) for name, values in times.items()}
    ratios = np.array(times["unit"]) / np.array(times["mean-field"])
    text = ", ".join(f"{name} {ms:.3f} ms" for name, ms in medians.items())
    name = "-".join(map(str, shape))
    print(f"{name}, {batch_size} rows: {text}, ratio {np.median(ratios):.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="13-50-1,784-300-100-10")
    parser.add_argument("--largest", type=int, default=100_000, help="fan-in")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.networks.split(","):
        shape = tuple(map(int, name.split("-")))
        steps = arguments.steps if max(shape) < 200 else max(arguments.steps // 20, 40)
        measure(shape, arguments.batch_size, steps, arguments.repeats, arguments.largest)


if __name__ == "__main__":
    main()
