"""Time to train and prune on the boston data with the paper's settings, including the import.

    python benchmarks/boston.py DATA/uci/boston.csv [--cache FOLDER]

The authors' code needs two minutes for this on an idle 2-core machine. With --cache, compiled
programs are stored in a folder: run the script twice to see the time of a second run.
"""

from __future__ import annotations

import argparse
import time

START = time.perf_counter()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import secateur as sc  # noqa: E402


def network(params, x):
    """50 ReLU units."""
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv")
    parser.add_argument("--cache", help="folder for compiled programs")
    parser.add_argument("--inference", default="moments")
    options = parser.parse_args()
    if options.cache:
        jax.config.update("jax_compilation_cache_dir", options.cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    values = np.genfromtxt(options.csv)
    x, y = values[:, :-1], values[:, -1:]
    shapes = {"w1": (x.shape[1], 50), "b1": (1, 50), "w2": (50, 1), "b2": (1, 1)}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    model = sc.BayesianModel(network, params, inference=options.inference)
    imported = time.perf_counter()
    fitted = sc.fit(model, (x, y), key=jax.random.key(0), recipe="paper", progress=False)
    trained = time.perf_counter()
    pruned = sc.prune(fitted, (x, y), key=jax.random.key(1), progress=False)
    ended = time.perf_counter()
    print(pruned)
    print(pruned.table())
    print(
        f"import {imported - START:.1f} s, fit {trained - imported:.1f} s, "
        f"prune {ended - trained:.1f} s; without the import {ended - imported:.1f} s"
    )


if __name__ == "__main__":
    main()
