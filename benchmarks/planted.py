"""Irrelevant inputs: how many survive pruning, and whether the relevant ones are kept.

    python benchmarks/planted.py [--seeds 10] [--json FILE]

Two functions with planted inputs, through the defaults of `secateur fit` (structures chosen by free
energy, learnt priors): sin(2 x₀) + x₁ x₂ of 15 inputs with 600 rows, and a smooth function of 5 of
40 inputs with 300 rows.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

import secateur as sc
from secateur.report.network import find_dense_graph
from secateur.selection import select_structure


def make_product(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(600, 15))
    y = np.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.1 * rng.normal(size=(600, 1))
    return x, y, 3


def make_sparse(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(300, 40))
    signal = x[:, :1] + 0.8 * x[:, 1:2] - 0.6 * x[:, 2:3] + np.tanh(2 * x[:, 3:4])
    y = signal + np.abs(x[:, 4:5]) + 0.1 * rng.normal(size=(300, 1))
    return x, y, 5


FUNCTIONS = {"sin + product, 3 of 15": make_product, "5 of 40": make_sparse}


def measure(name: str, seed: int) -> dict:
    x, y, relevant = FUNCTIONS[name](seed)
    start = time.perf_counter()
    selection = select_structure(
        (x, y), outputs=1, likelihood=sc.GaussianLikelihood(), key=jax.random.key(seed),
        progress=False,
    )  # fmt: skip
    graph = find_dense_graph(selection.best.pruned.beliefs)
    assert graph is not None
    used = graph.inputs_in_use
    return {
        "function": name,
        "seed": seed,
        "structure": str(selection.best.structure),
        "free_energy": selection.best.pruned.free_energy,
        "weights": selection.best.pruned.live_weights,
        "kept": int(used[:relevant].sum()),
        "relevant": relevant,
        "noise_alive": int(used[relevant:].sum()),
        "noise": int(x.shape[1] - relevant),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", default="planted.json")
    options = parser.parse_args()
    results = []
    for name in FUNCTIONS:
        own = []
        for seed in range(options.seeds):
            own.append(measure(name, seed))
            r = own[-1]
            print(
                f"{name}, seed {seed}: {r['kept']}/{r['relevant']} kept, {r['noise_alive']} of "
                f"{r['noise']} others alive; {r['structure']}, {r['weights']} weights, "
                f"F {r['free_energy']:.1f}, {r['seconds']:.0f} s",
                flush=True,
            )
        results += own
        alive, noise = (sum(r[key] for r in own) for key in ("noise_alive", "noise"))
        missed = sum(r["relevant"] - r["kept"] for r in own)
        print(f"{name}: {missed} relevant inputs missed; {100 * alive / noise:.1f} % alive\n")
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
