"""Learning from data in three batches, beside all rows at once: held-out log-density.

    python benchmarks/updates.py [--splits 5] [--trust 1] [--steps 20000] [--prune]

The boston data in the first of the standard splits: a fit to the first third of the training rows,
updates with the other two, and a fit to all of them; with `--prune`, each is pruned, after updates
with growing. Printed are the log-densities per held-out
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


def compare(
    split: int, posterior: str, trust: float, steps: int, pruned: bool
) -> tuple[float, float]:
    """Return the log-densities after three batches and after all rows at once."""

    def finish(trained: sc.Trained, data: tuple[np.ndarray, np.ndarray], grow: bool) -> sc.Trained:
        if not pruned:
            return trained
        return sc.prune(trained, data, key=key, grow=grow, progress=False)

    data = load("boston")
    train, test = data.splits()[split]
    x, y = np.asarray(data.x, np.float32), np.asarray(data.y, np.float32)
    network = sc.networks.Dense(x.shape[1], hidden=(50,))
    params = network.init(jax.random.key(split))
    model = sc.BayesianModel(network, params, posterior=posterior)
    recipe = replace(sc.Recipe(), steps=steps, retrain_steps=steps // 4)
    key = jax.random.key(100 + split)
    rows, everything = (x[test], y[test]), (x[train], y[train])
    length = len(train) // BATCHES
    parts = [train[i * length : (i + 1) * length] for i in range(BATCHES)]
    first, *others = [(x[part], y[part]) for part in parts]
    options = {"key": key, "progress": False}
    whole = finish(sc.fit(model, everything, recipe=recipe, **options), everything, False)
    learnt = finish(sc.fit(model, first, recipe=recipe, **options), first, False)
    for batch in others:
        learnt = finish(sc.update(learnt, batch, trust=trust, **options), batch, True)
    return score(learnt, rows), score(whole, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--trust", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--prune", action="store_true")
    parser.add_argument("--posteriors", default="mean-field,unit")
    arguments = parser.parse_args()
    for posterior in arguments.posteriors.split(","):
        for split in range(arguments.splits):
            batches, whole = compare(
                split, posterior, arguments.trust, arguments.steps, arguments.prune
            )
            print(
                f"{posterior:10} trust {arguments.trust:g} split {split}: batches {batches:.3f}, "
                f"all at once {whole:.3f}, behind by {whole - batches:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
