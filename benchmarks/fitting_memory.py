"""Peak memory of fitting: arrays of the size of powerplant, and a stream of ten million rows.

    python benchmarks/fitting_memory.py [--rows 10000000] [--json FILE]

Each case runs in its own process and reports its peak resident memory from the operating system.
"before" is the memory of Python, JAX and the library before any data. The batches of the stream are
generated on the fly; its memory is also measured after a tenth of the rows, to reveal any growth.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

FEATURES = 8
BATCH = 10_000


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def model(inputs: int):
    import jax

    import secateur as sc

    def network(params, x):
        return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]

    k1, k2 = jax.random.split(jax.random.key(0))
    zeros = jax.numpy.zeros
    params = {
        "w1": jax.random.normal(k1, (inputs, 50)),
        "b1": zeros(50),
        "w2": jax.random.normal(k2, (50, 1)) / 7,
        "b2": zeros(1),
    }
    return sc.BayesianModel(network, params)


def rows(number: int, count: int):
    import numpy as np

    rng = np.random.default_rng(number)
    x = rng.normal(size=(count, FEATURES))
    return x, np.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] + 0.1 * rng.normal(size=(count, 1))


def powerplant() -> dict:
    """9568 rows of 4 inputs, as many as the data set of that name has."""
    import jax

    import secateur as sc

    network = model(4)
    x, y = rows(0, 9568)
    before = peak_megabytes()
    start = time.perf_counter()
    fitted = sc.fit(network, (x[:, :4], y), key=jax.random.key(0), progress=False)
    return {
        "rows": 9568,
        "before_megabytes": before,
        "peak_megabytes": peak_megabytes(),
        "seconds": time.perf_counter() - start,
        "epochs": fitted.epochs,
        "free_energy": fitted.free_energy,
    }


def stream(total: int) -> dict:
    """One pass over generated rows."""
    import jax

    import secateur as sc

    def batches():
        for number in range(total // BATCH):
            yield rows(number, BATCH)

    network = model(FEATURES)
    before = peak_megabytes()
    early: list[float] = []
    seen = 0

    def watch(update):
        nonlocal seen
        seen += 1
        if not early and seen * 16_384 > total / 10:
            early.append(peak_megabytes())

    start = time.perf_counter()
    fitted = sc.fit(
        network, batches, key=jax.random.key(0), epochs=1, progress=False, callback=watch
    )
    return {
        "rows": total,
        "before_megabytes": before,
        "after_a_tenth_megabytes": early[0],
        "peak_megabytes": peak_megabytes(),
        "seconds": time.perf_counter() - start,
        "free_energy_per_row": fitted.free_energy / total,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        result = powerplant() if options.one == "powerplant" else stream(options.rows)
        print(json.dumps(result))
        return
    results = {}
    for name in ("powerplant", "stream"):
        command = [sys.executable, __file__, "--one", name, "--rows", str(options.rows)]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        results[name] = json.loads(process.stdout.splitlines()[-1])
        print(name, *(f"{k} {v:.6g}" for k, v in results[name].items()), sep="\n    ", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
