"""Small real runs, and the records that the report's tests look at."""

from functools import cache
from typing import NamedTuple

import jax
import numpy as np

import secateur as sc
from secateur.networks import Dense
from secateur.report import make_record

SCRIPT = "<script>alert(1)</script>"
BREAKOUT = "</script><img src=x onerror=alert(2)>"
NAMES = ["size", SCRIPT, "noise", "colour=red", "colour=blue"]
INPUTS = [
    {"name": name, "column": name.split("=")[0], "kind": "category" if "=" in name else "number"}
    for name in NAMES
]
CLASSES = ["no", BREAKOUT, "perhaps"]


class Models(NamedTuple):
    fitted: sc.Trained
    pruned: sc.Trained
    held_out: tuple
    task: str
    targets: list

    def record(self, **changes):
        options = {
            "fitted": self.fitted,
            "pruned": self.pruned,
            "inputs": INPUTS,
            "targets": self.targets,
            "task": self.task,
            "settings": {"hidden": [6], "seed": 0, "note": BREAKOUT, "minutes": None},
            "command": f"secateur fit 'a & b.csv' --target '{SCRIPT}'",
            "data": {"name": f"{SCRIPT}.csv", "rows": 160, "train_rows": 120, "held_out_rows": 40},
            "held_out": self.held_out,
            "seconds": 12.3,
        }
        return make_record(**(options | changes))


def table(rng, rows=160):
    """Five columns: the first two matter, the last two are one column in two inputs."""
    x = rng.normal(size=(rows, 5))
    x[:, 3] = rng.integers(0, 2, size=rows)
    x[:, 4] = 1 - x[:, 3]
    return x


@cache
def run(task):
    """Train and prune a network of six hidden units."""
    rng = np.random.default_rng(0)
    x = table(rng)
    signal = 2 * x[:, 0] - np.abs(x[:, 1])
    if task == "regression":
        y = np.stack(
            [signal + 0.3 * rng.normal(size=160), 10 - 5 * x[:, 0] + rng.normal(size=160)], axis=1
        )
        likelihood, outputs = sc.GaussianLikelihood(), 2
        targets = [{"name": "price", "classes": None}, {"name": BREAKOUT, "classes": None}]
    else:
        y = np.digitize(signal, [-1.5, 0.5]).astype(np.int32)
        likelihood, outputs = sc.CategoricalLikelihood(), 3
        targets = [{"name": SCRIPT, "classes": CLASSES}]
    network = Dense(5, (6,), outputs)
    params = network.init(jax.random.key(0))
    model = sc.BayesianModel(network, params, likelihood=likelihood)
    data, held_out = (x[:120], y[:120]), (x[120:], y[120:])
    fitted = sc.fit(model, data, key=jax.random.key(1), epochs=400, progress=False)
    pruned = sc.prune(fitted, data, key=jax.random.key(2), epochs=100, progress=False)
    return Models(fitted, pruned, held_out, task, targets)
