"""Learning from data in three batches, beside all rows at once: held-out log-density.

    python benchmarks/updates.py [--splits 5] [--trust 1] [--steps 20000] [--posteriors unit]

The boston data in the first of the standard splits: a fit to the first third of the training rows,
updates with the other two, and a fit to all of them. Printed are the log-densities per held-out
row in nats, and by how much the batches are behind.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import jax
import numpy as np

import secateur as sc
from secateur.datasets import load

BATCHES = 3


def score(trained: sc.Trained, rows: tuple[np.ndarray, np.ndarray]) -> float:
    return float(trained.predict(rows[0]).log_density(rows[1]).mean())


def compare(split: int, posterior: str, trust: float, steps: int) -> tuple[float, float]:
    """Return the log-densities after three batches and after all rows at once."""
    data = load("boston")
    train, test = data.splits()[split]
    x, y = np.asarray(data.x, np.float32), np.asarray(data.y, np.float32)
    network = sc.networks.Dense(x.shape[1], hidden=(50,))
    params = network.init(jax.random.key(split))
    model = sc.BayesianModel(network, params, posterior=posterior)
    recipe = replace(sc.Recipe(), steps=steps, retrain_steps=steps // 4)
    key = jax.random.key(100 + split)
    rows = x[test], y[test]
    whole = sc.fit(model, (x[train], y[train]), key=key, recipe=recipe, progress=False)
    length = len(train) // BATCHES
    parts = [train[i * length : (i + 1) * length] for i in range(BATCHES)]
    learnt = sc.fit(model, (x[parts[0]], y[parts[0]]), key=key, recipe=recipe, progress=False)
    for part in parts[1:]:
        learnt = sc.update(learnt, (x[part], y[part]), key=key, trust=trust, progress=False)
    return score(learnt, rows), score(whole, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--trust", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--posteriors", default="mean-field,unit")
    arguments = parser.parse_args()
    for posterior in arguments.posteriors.split(","):
        for split in range(arguments.splits):
            batches, whole = compare(split, posterior, arguments.trust, arguments.steps)
            print(
                f"{posterior:10} trust {arguments.trust:g} split {split}: batches {batches:.3f}, "
                f"all at once {whole:.3f}, behind by {whole - batches:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
