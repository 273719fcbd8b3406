"""Scoring a very large number of weights for removal, against a plain copy of the same arrays.

    python benchmarks/scoring.py --weights 100_000_000

Prints the time of one pass of `secateur.prune_scores` over means and variances, that of a compiled
copy of both arrays in the same run, and the memory that scoring takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import secateur as sc


def measure_seconds(function, *arguments, repeats: int) -> list[float]:
    """Seconds of each call, after one that compiles."""
    jax.block_until_ready(function(*arguments))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()

    def make(key):
        mean = 0.1 * jax.random.normal(key, (options.weights,), jnp.float32)
        return sc.Normal(mean, 0.01 + jnp.square(mean))

    posterior = jax.block_until_ready(jax.jit(make)(jax.random.key(0)))
    prior = sc.Normal(0.0, 1.0)
    score = jax.jit(lambda q: sc.prune_scores(q, prior))
    # A sum that XLA cannot simplify away: a real pass over the memory.
    copy = jax.jit(lambda q, zero: jax.tree.map(lambda a: a + zero, q))
    zero = jnp.zeros((), jnp.float32)

    both = []
    for _ in range(3):  # alternately, under the same load
        both.append(
            (
                statistics.median(measure_seconds(copy, posterior, zero, repeats=options.repeats)),
                statistics.median(measure_seconds(score, posterior, repeats=options.repeats)),
            )
        )
    copying, scoring = (statistics.median(column) for column in zip(*both, strict=True))
    memory = score.lower(posterior).compile().memory_analysis()
    arrays = memory.argument_size_in_bytes
    total = arrays + memory.output_size_in_bytes + memory.temp_size_in_bytes
    figures = {
        "weights": options.weights,
        "copy_seconds": copying,
        "score_seconds": scoring,
        "ratio": scoring / copying,
        "copy_gigabytes_per_second": 2 * arrays / copying / 1e9,
        "memory_ratio": total / arrays,
        "peak_gigabytes_of_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(f"{options.weights:,} weights, means and variances: {arrays / 1e9:.2f} GB")
    print(f"copy   {copying:.3f} s, {figures['copy_gigabytes_per_second']:.1f} GB/s")
    print(f"score  {scoring:.3f} s, {figures['ratio']:.2f} times the copy")
    print(f"memory of scoring: {figures['memory_ratio']:.2f} times the arrays")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
