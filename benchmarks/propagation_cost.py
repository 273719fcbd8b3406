"""The cost of `moments` compared with the plain function: compilation, memory and run time.

    python benchmarks/propagation_cost.py [--repeats 5] [--json FILE]

A 16-layer ReLU network (width 64, batch 128). Both programs are traced and compiled in the same
process, alternately, without a compilation cache; the result is the ratio of the medians.
Memory is XLA's own estimate for a pass: arguments, temporaries and outputs. Temporaries
alone are shown too: XLA's CPU scheduler makes the squared weights of all layers at the start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp

import secateur as sc

LAYERS, WIDTH, BATCH = 16, 64, 128


def network(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def timed(build, *args) -> tuple[float, float, jax.stages.Compiled]:
    jax.clear_caches()
    start = time.perf_counter()
    lowered = jax.jit(build()).lower(*args)
    middle = time.perf_counter()
    compiled = lowered.compile()
    return middle - start, time.perf_counter() - middle, compiled


def run_time(compiled, *args, repeats: int = 50) -> float:
    jax.block_until_ready(compiled(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def memory(compiled) -> tuple[int, int]:
    """Bytes in all, and of temporaries."""
    analysis = compiled.memory_analysis()
    inside = analysis.temp_size_in_bytes
    outside = analysis.output_size_in_bytes + analysis.argument_size_in_bytes
    return inside + outside, inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="write the results to this file")
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    keys = jax.random.split(jax.random.key(0), LAYERS)
    params = [(jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH**0.5, jnp.zeros(WIDTH)) for k in keys]
    beliefs = jax.tree.map(lambda m: sc.Normal(m, jnp.full_like(m, 0.01)), params)
    x = jax.random.normal(jax.random.key(1), (BATCH, WIDTH))

    def plain():
        return lambda params, x: network(params, x)

    def moments():
        forward = sc.propagate(network, "moments")
        return lambda beliefs, x: forward(None, beliefs, x)

    timed(plain, params, x)  # the first call includes imports
    timed(moments, beliefs, x)
    figures: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for name, build, args in (
            ("plain", plain, (params, x)),
            ("moments", moments, (beliefs, x)),
        ):
            trace, compile_, compiled = timed(build, *args)
            for key, value in (
                ("trace", trace),
                ("compile", compile_),
                ("trace+compile", trace + compile_),
                ("memory", memory(compiled)[0]),
                ("temporaries", memory(compiled)[1]),
                ("run", run_time(compiled, *args)),
            ):
                figures.setdefault(f"{name} {key}", []).append(value)
    result = {"jax": jax.__version__, "layers": LAYERS, "width": WIDTH, "batch": BATCH}
    print(f"jax {jax.__version__}, {LAYERS} layers of {WIDTH}, batch {BATCH}, medians")
    for key, unit, scale in (
        ("trace", "ms", 1e3), ("compile", "ms", 1e3), ("trace+compile", "ms", 1e3),
        ("memory", "kB", 1e-3), ("temporaries", "kB", 1e-3), ("run", "ms", 1e3),
    ):  # fmt: skip
        a, b = (statistics.median(figures[f"{n} {key}"]) for n in ("plain", "moments"))
        result[key] = {"plain": a, "moments": b, "ratio": b / a}
        print(f"{key:14s} plain {a * scale:9.2f} {unit}   moments {b * scale:9.2f} {unit}   "
              f"ratio {b / a:5.2f}")  # fmt: skip
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
