"""The cost of a GRU's training step by algorithm, with and without its optimisations.

Three networks side by side (GRU of 16 units over 8 samples, batches of 16), as `secateur reproduce
table1` trains them on its three signals; or three for each of several seeds. "Without"
disables one optimisation in the same process: noise is drawn in the steps of the loop instead of
before it (local), or the closed-form moments of σ and tanh are replaced by quadrature (independent,
moments).

    python benchmarks/recurrent.py [--epochs 60] [--seeds 1]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from secateur import BayesianModel, datasets, fit_many
from secateur.networks import Gru
from secateur.paper.protocol import GRU_UNITS, SIGNALS, make_recipes
from secateur.propagation import uncertain_loops, univariate

WITHOUT = {
    "local": (uncertain_loops, "_DRAWN_BEFORE", 0),
    "independent": (univariate, "_LOGISTIC", {}),
    "moments": (univariate, "_LOGISTIC", {}),
}


@contextmanager
def patched(module: Any, name: str, value: Any) -> Iterator[None]:
    """Set a module's attribute temporarily; compiled programs are discarded."""
    old = getattr(module, name)
    jax.clear_caches()
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)
        jax.clear_caches()


def per_step(inference: str, epochs: int, seeds: int) -> float:
    """Return milliseconds of processor time per step of all networks, without compilation."""
    data = [datasets.load(name) for name in SIGNALS for _ in range(seeds)]
    network = Gru(data[0].x.shape[-1], GRU_UNITS)
    model = BayesianModel(network, network.init(jax.random.key(0)), inference=inference)
    recipe = make_recipes("sine", "paper")["paper"]
    keys = list(jax.random.split(jax.random.key(0), len(data)))
    steps = -(-len(data[0].y) // recipe.batch_size)

    def seconds(epochs: int) -> float:
        start = time.process_time()
        pairs = [(d.x, d.y) for d in data]
        fit_many(model, pairs, keys=keys, recipe=recipe, epochs=epochs, progress=False)
        return time.process_time() - start

    seconds(1)  # compiles
    short, long = seconds(epochs // 3), seconds(epochs)
    return 1e3 * (long - short) / (steps * (epochs - epochs // 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60, help="to measure over")
    parser.add_argument("--seeds", type=int, default=1, help="networks for each signal")
    options = parser.parse_args()
    print("algorithm     ms of CPU per step   without   ratio")
    for inference in ("global", "local", "independent", "moments"):
        now = per_step(inference, **vars(options))
        line = f"{inference:12}  {now:18.2f}"
        if inference in WITHOUT:
            with patched(*WITHOUT[inference]):
                before = per_step(inference, **vars(options))
            line += f"   {before:7.2f}   {before / now:5.1f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
