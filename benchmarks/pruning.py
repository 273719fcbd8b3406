"""Free energies before and after pruning with the paper's settings.

    python benchmarks/pruning.py DATA/uci [--sets boston yacht] [--recipe default] [--seeds 5]

For every data set and algorithm: the median over seeds of the free energy of the full network,
after one cut without training, and after pruning to the end; the share of the weights that went;
and for how many seeds every step lowered the free energy. All seeds run in one program.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import secateur as sc

BATCH_SIZES = {"boston": 16, "energy": 16, "yacht": 16, "concrete": 32, "wine": 32}


def network(params, x):
    """50 ReLU units."""
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and the last column."""
    text = (folder / f"{name}.csv").read_text()
    values = np.array([[float(v) for v in r.replace(",", " ").split()] for r in text.splitlines()])
    return values[:, :-1], values[:, -1:]


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=["boston", "concrete", "wine", "yacht"])
    parser.add_argument("--algorithms", nargs="+", default=["moments", "local", "global"])
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--grow", action="store_true")
    options = parser.parse_args()
    heads = {"start": 9, "one cut": 9, "end": 9, "pruned": 8, "falls": 8, "s": 6}
    print(" " * 19 + "".join(f"{head:>{width}s}" for head, width in heads.items()))
    for name in options.sets:
        x, y = load(options.folder, name)
        k1, k2 = jax.random.split(jax.random.key(0))
        params = {
            "w1": jax.random.normal(k1, (x.shape[1], 50)) * (2 / x.shape[1]) ** 0.5,
            "b1": jnp.zeros((1, 50)),
            "w2": jax.random.normal(k2, (50, 1)) * 50**-0.5,
            "b2": jnp.zeros((1, 1)),
        }
        batch_size = BATCH_SIZES.get(name, 64) if options.recipe == "paper" else None
        for algorithm in options.algorithms:
            begun = time.perf_counter()
            model = sc.BayesianModel(network, params, inference=algorithm)
            keys = [jax.random.key(seed) for seed in range(options.seeds)]
            fits = sc.fit_many(
                model, [(x, y)], keys=keys, recipe=options.recipe, batch_size=batch_size,
                progress=False,
            )  # fmt: skip
            pruned = sc.prune_many(
                fits, [(x, y)], key=jax.random.key(99), grow=options.grow, progress=False
            )
            start = np.array([p.free_energy_before for p in pruned])
            cut = start + [p.rounds[0].at_once for p in pruned]
            end = np.array([p.free_energy for p in pruned])
            share = [100 * p.pruned_fraction for p in pruned]
            falls = int(np.sum((cut < start) & (end < cut)))
            medians = "".join(f"{np.median(v):9.1f}" for v in (start, cut, end))
            print(
                f"{name:10s}{algorithm:9s}{medians}{np.median(share):7.1f}%"
                f"{falls:6d}/{len(pruned)}{time.perf_counter() - begun:6.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
