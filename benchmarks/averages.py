"""One pruned network, and the average of several: log-likelihood of held-out rows.

    python benchmarks/averages.py [--splits 2] [--rows 500]

Four tables (diabetes of scikit-learn; yacht, boston and concrete, their first rows), a fifth of the
rows held out at random, ten hidden units, five restarts, at most 600 epochs and 150 after each
round of pruning. Printed for each split: nats per row of the best restart alone, of all restarts
with equal weights, and with weights in proportion to exp(−free energy).
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from sklearn.datasets import load_diabetes

import secateur as sc
from secateur import datasets
from secateur.averaging import WEIGHTINGS
from secateur.caveats import CaveatWarning
from secateur.sklearn import PrunedRegressor


def load_tables(rows: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return inputs and targets by name."""
    tables = {"diabetes": load_diabetes(return_X_y=True)}
    for name in ("yacht", "boston", "concrete"):
        data = datasets.load(name)
        tables[name] = data.x[:rows], data.y[:rows, 0]
    return tables


def score_split(x: np.ndarray, y: np.ndarray, seed: int) -> list[float]:
    """Return the log-likelihoods of the best restart and of the averages."""
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [len(y) // 5])
    estimator = PrunedRegressor(
        hidden=(10,), restarts=5, average="equal", epochs=600, retrain_epochs=150, random_state=seed
    ).fit(x[train], y[train])
    models = estimator.average_.models
    predictors = [models[0], *(sc.Average.from_models(models, w) for w in WEIGHTINGS)]
    return [p.predict(x[test]).log_density(y[test][:, None]).mean() for p in predictors]


def main() -> None:
    """Print a line for each split, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--rows", type=int, default=500)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", CaveatWarning)
    print("table     split   one network", *(w.rjust(10) for w in WEIGHTINGS))
    scores = []
    for name, (x, y) in load_tables(arguments.rows).items():
        for seed in range(arguments.splits):
            scores.append(score_split(x, y, seed))
            print(name.ljust(10), seed, *(f"{score:14.3f}" for score in scores[-1]), flush=True)
    print("mean       ", *(f"{score:14.3f}" for score in np.mean(scores, axis=0)))


if __name__ == "__main__":
    main()
