"""A network that is really smaller, beside the same one full of zeros, as ONNX files.

    python benchmarks/onnx_size.py --keep 0.05

Both are written by `secateur.exports.onnx.write_onnx` and run by onnxruntime, one row at a time on
one thread, in turns. Their outputs are the same: what the small one lacks is multiplied by 0 in the
other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime

import secateur as sc
from secateur.exports.onnx import write_onnx
from secateur.fitting.result import Trained
from secateur.fitting.scaling import Scaling


def trained(network, params) -> Trained:
    """A model that need not be trained: the weights' values do not change what is measured."""
    beliefs = jax.tree.map(lambda w: sc.Normal(w, jnp.where(w == 0, 0.0, 1e-4)), params)
    noise = sc.Gamma(jnp.full(network.outputs, 30.0), jnp.full(network.outputs, 4.0))
    return Trained(
        sc.BayesianModel(network, params), beliefs, None, noise, Scaling(None, None),
        0.0, None, 0.0, 0, "", None,
    )  # fmt: skip


def pair(
    inputs: int, hidden: tuple[int, ...], outputs: int, keep: float
) -> tuple[Trained, Trained]:
    """A wide network of which all but a share of the units has weights of 0, and what is left."""
    small = sc.networks.Dense(inputs, tuple(max(1, round(keep * n)) for n in hidden), outputs)
    wide = sc.networks.Dense(inputs, hidden, outputs)
    params = small.init(jax.random.key(0))
    layers = []
    before = inputs
    for layer, units in zip(params["layers"], (*hidden, outputs), strict=True):
        rows, columns = layer["weights"].shape
        weights = jnp.zeros((before, units)).at[:rows, :columns].set(layer["weights"])
        layers.append(
            {"weights": weights, "bias": jnp.zeros(units).at[:columns].set(layer["bias"])}
        )
        before = units
    return trained(wide, {"layers": layers}), trained(small, params)


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


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
    parser.add_argument("--keep", type=float, default=0.05, help="share of units that is left")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()

    models = pair(options.inputs, tuple(options.hidden), options.outputs, options.keep)
    x = np.random.default_rng(0).normal(size=(1, options.inputs)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("zeros.onnx", "small.onnx")]
        sizes = [
            write_onnx(model, path, deviation=False).size
            for model, path in zip(models, paths, strict=True)
        ]
        runs = [session(path).run for path in paths]
        difference = float(
            np.abs(runs[0](None, {"inputs": x})[0] - runs[1](None, {"inputs": x})[0]).max()
        )
        rounds = [
            [seconds_per_row(run, x, options.calls) for run in runs] for _ in range(5)
        ]  # in turns, so that both meet the same machine
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
