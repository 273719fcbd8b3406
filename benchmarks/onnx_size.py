"""A physically smaller network beside the same one with zeros for pruned weights, as ONNX files.

    python benchmarks/onnx_size.py --keep 0.05

The small network is the result of `secateur.compact`. Both are written by
`secateur.exports.to_onnx` and run alternately by onnxruntime, one row at a time on one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime

import secateur as sc
from secateur.exports import to_onnx


def with_zeros(inputs: int, hidden: tuple[int, ...], outputs: int, keep: float) -> sc.Trained:
    """An untrained network in which all but a fraction of the units are cut."""
    network = sc.networks.Dense(inputs, hidden, outputs)
    params = network.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    alive = [np.ones(inputs, bool)]
    alive += [rng.permutation(n) < max(1, round(keep * n)) for n in hidden]
    alive += [np.ones(outputs, bool)]

    def belief(values, left):
        return sc.Normal(jnp.where(left, values, 0.0), jnp.where(left, 1e-4, 0.0))

    beliefs = {
        "layers": [
            {
                "weights": belief(layer["weights"], before[:, None] & after[None]),
                "bias": belief(layer["bias"], after),
            }
            for layer, before, after in zip(params["layers"], alive[:-1], alive[1:], strict=True)
        ]
    }
    model = sc.BayesianModel(network, params)
    x = rng.normal(size=(64, inputs))
    targets = np.asarray(network(params, jnp.asarray(x, jnp.float32)))
    begun = sc.fit(model, (x, targets), key=jax.random.key(0), epochs=1, progress=False)
    return replace(begun, beliefs=beliefs)


def session(content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def seconds_per_row(run, x: np.ndarray, calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        run(None, {"inputs": x})
    return (time.perf_counter() - begun) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=784)
    parser.add_argument("--hidden", type=int, nargs="+", default=[300, 100])
    parser.add_argument("--outputs", type=int, default=10)
    parser.add_argument("--keep", type=float, default=0.05, help="fraction of units to keep")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()

    wide = with_zeros(options.inputs, tuple(options.hidden), options.outputs, options.keep)
    models = (wide, sc.compact(wide))
    x = np.random.default_rng(0).normal(size=(1, options.inputs)).astype(np.float32)
    contents = [to_onnx(model, uncertainty=False) for model in models]
    sizes = [len(content) for content in contents]
    runs = [session(content).run for content in contents]
    difference = float(
        np.abs(runs[0](None, {"inputs": x})[0] - runs[1](None, {"inputs": x})[0]).max()
    )
    rounds = [
        [seconds_per_row(run, x, options.calls) for run in runs] for _ in range(5)
    ]  # alternately, under the same load
    zeros, small = (statistics.median(column) for column in zip(*rounds, strict=True))
    figures = {
        "size_with_zeros_bytes": sizes[0],
        "size_small_bytes": sizes[1],
        "size_ratio": sizes[0] / sizes[1],
        "time_with_zeros_us": 1e6 * zeros,
        "time_small_us": 1e6 * small,
        "time_ratio": zeros / small,
        "largest_difference": difference,
    }
    print(f"with zeros {sizes[0]:>9} bytes {1e6 * zeros:>8.1f} µs per row")
    print(f"small      {sizes[1]:>9} bytes {1e6 * small:>8.1f} µs per row")
    print(
        f"{figures['size_ratio']:.1f} times smaller, {figures['time_ratio']:.1f} times faster; "
        f"outputs differ by {difference:.1e} at most"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
