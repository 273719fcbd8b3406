"""The cost of quantisation: held-out log-density of pruned networks before and after it.

    python benchmarks/quantisation.py [--sets boston,concrete,wine,sine]

Networks of 50 ReLU units on the first standard split of each UCI set, and a GRU of 16 units on the
first four fifths of the sine signal, trained and pruned with the default recipe; then exported as
C with int8, int16x8, weights8 and weights16. Activations are scaled by the training rows; the
log-density is that of the held-out ones.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import jax
import numpy as np

import secateur as sc
from secateur.exports.quantisation import MODES


def data_of(name: str) -> tuple:
    data = sc.datasets.load(name)
    if name in ("sine", "sawtooth", "square"):
        first = np.arange(len(data.x)) < 0.8 * len(data.x)
        return data.x[first], data.y[first], data.x[~first], data.y[~first]
    train, test = data.splits()[0]
    return data.x[train], data.y[train], data.x[test], data.y[test]


def pruned_on(name: str, x: np.ndarray, y: np.ndarray) -> sc.Trained:
    if x.ndim == 3:
        network, inference = sc.networks.Gru(x.shape[-1], 16), "global"
    else:
        network, inference = sc.networks.Dense(x.shape[-1], (50,), y.shape[-1]), "moments"
    model = sc.BayesianModel(network, network.init(jax.random.key(0)), inference=inference)
    fitted = sc.fit(model, (x, y), key=jax.random.key(1), progress=False)
    return sc.prune(fitted, (x, y), key=jax.random.key(2), progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", default="boston,concrete,wine,sine")
    for name in parser.parse_args().sets.split(","):
        x, y, x_test, y_test = data_of(name)
        pruned = pruned_on(name, x, y)
        print(f"{name}: {pruned.live_weights} weights left, {pruned.pruned_fraction:.1%} pruned")
        for mode in MODES:
            with tempfile.TemporaryDirectory() as folder:
                sheet = sc.export(
                    pruned,
                    Path(folder) / "net.c",
                    inputs=x,
                    held_out=(x_test, y_test),
                    quantise=mode,
                    measured=False,
                )
            exact, rounded = sheet.accuracy.exact, sheet.accuracy.quantised
            assert exact is not None
            assert rounded is not None
            change = rounded.log_density - exact.log_density
            bits = ", ".join(str(t.bits) for t in sheet.arithmetic.tensors)
            noise = max((t.noise for t in sheet.arithmetic.tensors), default=0.0)
            print(
                f"  {mode:9s} log-density {exact.log_density:8.4f} → "
                f"{rounded.log_density:8.4f} nats per row ({change:+.4f}); "
                f"bits {bits}; noise at most {noise:.2g} of the posterior's"
            )


if __name__ == "__main__":
    main()
