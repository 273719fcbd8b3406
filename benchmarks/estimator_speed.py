"""Seconds of `fit`: the estimators with their defaults beside scikit-learn's MLP, in one process.

    python benchmarks/estimator_speed.py [--rounds 3]

Both estimators fit each table in turn, so that other load on the machine affects both. The first
fit of a shape compiles its programs; further fits of the same shape do not.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from secateur.sklearn import PrunedClassifier, PrunedRegressor

TABLES = {
    "iris": (load_iris, True),
    "wine": (load_wine, True),
    "breast cancer": (load_breast_cancer, True),
    "diabetes": (load_diabetes, False),
}


def measure(fit) -> float:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence
        fit()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(
        f"{'table':16s}{'MLP, s':>10s}{'first, s':>10s}{'next, s':>10s}{'first/MLP':>12s}", end=""
    )
    print(f"{'next/MLP':>12s}")
    for name, (load, has_classes) in TABLES.items():
        x, y = load(return_X_y=True)
        ours, theirs = [], []
        for seed in range(rounds):
            network = MLPClassifier if has_classes else MLPRegressor
            peer = make_pipeline(StandardScaler(), network(random_state=seed))
            pruned = (PrunedClassifier if has_classes else PrunedRegressor)(random_state=seed)
            theirs.append(measure(lambda model=peer, x=x, y=y: model.fit(x, y)))
            ours.append(measure(lambda model=pruned, x=x, y=y: model.fit(x, y)))
        peer_time, later = statistics.median(theirs), statistics.median(ours[1:])
        print(
            f"{name:16s}{peer_time:10.2f}{ours[0]:10.2f}{later:10.2f}"
            f"{ours[0] / peer_time:12.1f}{later / peer_time:12.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
