"""Mean field beside covariance within units: free energy, what a cut promises, held-out rows.

    python benchmarks/covariance.py [--tables a,b] [--seeds 5] [--steps 20000] [--results FILE]
    python benchmarks/covariance.py --results FILE --page docs/results/covariance.md

What is in FILE already is not computed again. Both posteriors are trained and pruned in the same
run, on the same splits (four fifths of the rows, drawn with the seed), with the default recipe
except for the steps, and with the variances of the priors learnt by input, as by `secateur fit`
(`--learn-priors none`: N(0, 1)). Networks have one hidden layer of 50 units, for tecator of 10.
Printed are medians over the seeds:

    fit, pruned     free energy before and after pruning, nats
    promised        change of the first cut that Bayesian model reduction expects, and
    came            what it was at once, before any training; |gap| is the median of the difference
    left            weights after pruning
    rmse, ll, cover held-out root-mean-square error, log-density per row, share within 95 %
    ms/step         processor time of a training step of one seed, with compiling left out

`planted` is sin(2 x₀) + x₁ x₂ of 15 inputs with 600 rows; `useless` is the share of its other 12
inputs that stay alive.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from table_sources import default_cache, prepare_tables

import secateur as sc
from secateur.datasets import load as load_dataset

POSTERIORS = ("mean-field", "unit")
UCI = ("boston", "concrete", "energy", "yacht", "wine", "kin8nm", "powerplant", "naval")
HIDDEN = {"tecator": 10}


def make_planted(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3 + seed)
    x = rng.normal(size=(750, 15))
    y = np.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.1 * rng.normal(size=(750, 1))
    return x, y


def read(name: str, seed: int, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and target of a table, all columns numbers."""
    if name == "planted":
        return make_planted(seed)
    if name in UCI:
        data = load_dataset(name)
        return np.asarray(data.x, float), np.asarray(data.y, float)[:, :1]
    (table,) = prepare_tables([name], cache)
    frame = pd.read_csv(table.path)
    y = frame.pop(table.table.target).to_numpy(float)[:, None]
    return frame.to_numpy(float), y


def split(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[tuple, tuple]:
    order = np.random.default_rng(seed).permutation(len(x))
    test, train = np.split(order, [max(len(x) // 5, 1)])
    return (x[train], y[train]), (x[test], y[test])


def judge(trained: sc.Trained, rows: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    x, y = rows
    answer = trained.predict(x)
    low, high = answer.interval(0.95)
    return {
        "rmse": float(np.sqrt(np.mean((answer.mean - y) ** 2))),
        "ll": float(answer.log_density(y).mean()),
        "cover": float(np.mean((low <= y) & (y <= high))),
    }


def measure(
    name: str, posterior: str, seeds: int, steps: int, learn_priors: str | None, cache: Path
) -> list[dict]:
    """Train and prune all seeds of one table side by side."""
    pairs = [split(*read(name, seed, cache), seed) for seed in range(seeds)]
    data = [train for train, _ in pairs]
    network = sc.networks.Dense(data[0][0].shape[1], hidden=(HIDDEN.get(name, 50),))
    model = sc.BayesianModel(network, network.init(jax.random.key(0)), posterior=posterior)
    recipe = replace(sc.Recipe(), steps=steps, retrain_steps=steps // 4)
    keys = jax.random.split(jax.random.key(1), seeds)
    options = {"keys": keys, "recipe": recipe, "learn_priors": learn_priors, "progress": False}
    sc.fit_many(model, data, epochs=1, **options)  # compiles
    start = time.process_time()
    fits = sc.fit_many(model, data, **options)
    seconds = time.process_time() - start
    batches = -(-len(data[0][0]) // recipe.batch_size)
    pruned = sc.prune_many(fits, data, key=jax.random.key(2), progress=False)
    results = []
    triples = zip(fits, pruned, pairs, strict=True)
    for seed, (before, after, (_, test)) in enumerate(triples):
        alive = np.asarray(after.beliefs["layers"][0]["weights"].variance) > 0
        cuts = after.rounds or (None,)
        results.append(
            {
                "table": name,
                "posterior": posterior,
                "seed": seed,
                "steps": steps,
                "fit": before.free_energy,
                "pruned": after.free_energy,
                "promised": cuts[0].estimated if cuts[0] else 0.0,
                "came": cuts[0].at_once if cuts[0] else 0.0,
                "gap": abs(cuts[0].divergence) if cuts[0] else 0.0,
                "rounds": len(after.rounds),
                "weights": before.live_weights,
                "left": after.live_weights,
                "inputs": int(alive.any(axis=1).sum()),
                "useless": float(alive.any(axis=1)[3:].mean()) if name == "planted" else None,
                "ms/step": 1e3 * seconds / (before.epochs * batches * seeds),
                "before": judge(before, test),
                **judge(after, test),
            }
        )
    return results


COLUMNS = ("fit", "pruned", "promised", "came", "gap", "rounds", "left", "inputs", "rmse", "ll",
           "cover", "ms/step")  # fmt: skip


def summarise(results: list[dict], name: str, posterior: str) -> dict[str, float]:
    """Return the medians over the seeds of one table."""
    own = [r for r in results if (r["table"], r["posterior"]) == (name, posterior)]
    columns = (*COLUMNS, "useless") if name == "planted" else COLUMNS
    return {"seeds": len(own)} | {c: float(np.median([r[c] for r in own])) for c in columns}


def write_page(results: list[dict], path: Path) -> None:
    """Write the medians as a page."""
    names = list(dict.fromkeys(r["table"] for r in results))
    steps = sorted({r["steps"] for r in results})
    lines = [
        "# Covariance within units, measured",
        "",
        f"`python benchmarks/covariance.py`, at most {', '.join(map(str, steps))} steps. Medians "
        "over the seeds; free energies in nats. *Gap* is |promised − actual| of the first cut.",
        "",
        "| table | posterior | seeds | fit | pruned | promised, actual | gap | rounds | weights "
        "left | inputs left | RMSE | log-density per row | within 95 % | ms per step |",
        "|---" * 2 + "|--:" * 12 + "|",
    ]
    for name in names:
        for posterior in POSTERIORS:
            m = summarise(results, name, posterior)
            lines.append(
                f"| {name} | {posterior} | {m['seeds']} | {m['fit']:.1f} | {m['pruned']:.1f} "
                f"| {m['promised']:.1f}, {m['came']:.1f} | {m['gap']:.1f} | {m['rounds']:.0f} "
                f"| {m['left']:.0f} | {m['inputs']:.0f} | {m['rmse']:.3g} | {m['ll']:.2f} "
                f"| {100 * m['cover']:.0f} % | {m['ms/step']:.3f} |"
            )
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default="tecator,trees,longley,planted," + ",".join(UCI))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--learn-priors", default="inputs", choices=("none", "leaves", "inputs"))
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--results", type=Path, help="file of results, one on each line")
    parser.add_argument("--page", type=Path, help="write a page of all results and stop")
    arguments = parser.parse_args()
    file = arguments.results
    learn_priors = None if arguments.learn_priors == "none" else arguments.learn_priors
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    results = [json.loads(line) for line in lines]
    if arguments.page:
        write_page(results, arguments.page)
        return
    for name in arguments.tables.split(","):
        for posterior in POSTERIORS:
            if not any((r["table"], r["posterior"]) == (name, posterior) for r in results):
                own = measure(
                    name, posterior, arguments.seeds, arguments.steps, learn_priors, arguments.cache
                )
                results += own
                if file is not None:
                    with file.open("a") as opened:
                        opened.writelines(json.dumps(r) + "\n" for r in own)
            medians = summarise(results, name, posterior)
            values = "  ".join(f"{column} {value:.4g}" for column, value in medians.items())
            print(f"{name:11} {posterior:10} {values}", flush=True)


if __name__ == "__main__":
    main()
