"""Microseconds per training step: secateur, its peers, and the bare matrix products of a step.

    python benchmarks/training.py [--cases abcd] [--rounds 3] [--json FILE] [--plot FILE]

Same network, batch, number of steps and data for all, everything warm. Each measurement is a
process of its own; rounds go through all contestants in turn, so that a busy minute hits everyone,
and the median over rounds counts. Peers and how to install them: see `training_peers.py`; those
that are not installed are left out.

The floor of an algorithm is what no implementation can leave out: the matrix products of a step and
of its gradient, in the same kind of compiled loop. `global` has them once; `local` and `moments`
for means and for variances.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from training_peers import CASES, HIDDEN, NOISE, Case, gru, installed_peers, mlp

ALGORITHMS = ("moments", "local", "global")
FLOORS = {"floor, once": 1, "floor, means and variances": 2}
STEPS = {"a": 4000, "b": 4000, "c": 500, "d": 160}
REPEATS = 5


def network(case: Case) -> tuple[Callable, list]:
    """The model function and its weights."""
    import jax
    import jax.numpy as jnp

    def layer(number: int, inputs: int, outputs: int) -> tuple:
        w = jax.random.normal(jax.random.key(number), (inputs, outputs))
        return w * (2 / inputs) ** 0.5, jnp.zeros(outputs)

    if case.sizes is not None:
        pairs = zip(case.sizes, case.sizes[1:], strict=False)
        return mlp, [layer(i, m, n) for i, (m, n) in enumerate(pairs)]
    return gru, [layer(0, 1, 3 * HIDDEN), layer(1, HIDDEN, 3 * HIDDEN), layer(2, HIDDEN, 1)]


def products(case: Case) -> Callable:
    """The network's matrix products alone: its gradient has the products of a training step."""
    import jax

    def linear(weights, x):
        if case.sizes is not None:
            for w in weights:
                x = x @ w
            return x
        wx, wh, w = weights

        def cell(h, x):
            return (x @ wx + h @ wh)[:, :HIDDEN], None

        start = x[:, 0] @ wx[:, :HIDDEN]
        return jax.lax.scan(cell, start, x.swapaxes(0, 1))[0] @ w

    return linear


def floor(case: Case, copies: int, steps: int) -> Callable[[], object]:
    """A compiled loop over batches that does nothing but the products."""
    import jax
    import jax.numpy as jnp

    x, _ = case.data()
    batches = len(x) // case.batch
    x = jnp.asarray(x[: batches * case.batch].reshape(batches, case.batch, *x.shape[1:]))
    weights = [[w for w, _ in network(case)[1]] for _ in range(copies)]
    linear = products(case)

    def step(weights, x):
        new = []
        for copy in weights:
            y, backward = jax.vjp(lambda w: linear(w, x), copy)
            new.append([w + 1e-12 * g for w, g in zip(copy, backward(y)[0], strict=True)])
        return new, None

    @jax.jit
    def loop(weights):
        passes = max(1, round(steps / batches))
        return jax.lax.fori_loop(0, passes, lambda _, w: jax.lax.scan(step, w, x)[0], weights)

    return lambda: jax.block_until_ready(loop(weights))


def secateur(case: Case, algorithm: str, steps: int) -> Callable[[], object]:
    """The compiled program that `secateur.fit` runs, with all it does: noise, records, checks."""
    import jax

    import secateur as sc
    from secateur.fitting import RECIPES, program
    from secateur.fitting.sources import Arrays
    from secateur.fitting.trainer import Trainer
    from secateur.fitting.weights import Weights, flat_priors, lay_out

    f, params = network(case)
    likelihood = sc.GaussianLikelihood(precision=NOISE**-2)
    if case.classes is not None:
        likelihood = sc.CategoricalLikelihood()
    model = sc.BayesianModel(f, params, likelihood=likelihood, inference=algorithm)
    beliefs = sc.believe(params, variance=0.01)
    layout, flat, certain = lay_out(beliefs)
    recipe = replace(RECIPES["default"], batch_size=case.batch)
    trainer = Trainer(model, Arrays([case.data()]), layout, certain, recipe)
    priors = flat_priors(layout, sc.priors(beliefs, sc.Normal(0.0, 1.0)))
    alive = tuple(q.variance > 0 for q in flat)
    state = trainer.start(Weights.of(flat), alive, priors, jax.random.key(0))
    plan = trainer._plan(trainer.timetable())
    epochs = max(1, round(steps / trainer.steps))

    def run():
        nonlocal state
        done = 0
        while done < epochs:
            count = min(program.CALL_LENGTH, epochs - done)
            state, records = program.train(
                trainer.settings, state, trainer.fixed, trainer._data, plan, count
            )
            done += count
        jax.block_until_ready(records)

    return run


def measure(name: str, letter: str, steps: int) -> dict:
    """Microseconds per step of one contestant, in this process."""
    case = CASES[letter]
    if name in FLOORS:
        run, exact = floor(case, FLOORS[name], steps), len(case.data()[0]) // case.batch
    else:
        run, exact = (
            secateur(case, name.removeprefix("secateur "), steps),
            -(-case.rows // case.batch),
        )
    made = max(1, round(steps / exact)) * exact
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) / made * 1e6)
    return {"microseconds_per_step": statistics.median(times), "first_call_seconds": first}


def contest(name: str, letter: str, steps: int, peers: list[str]) -> dict:
    """One measurement in a process of its own."""
    here = Path(__file__).parent
    if name in peers:
        command = ["training_peers.py", "--peer", name, "--case", letter, "--steps", str(steps)]
    else:
        command = ["training.py", "--one", name, "--cases", letter, "--steps", str(steps)]
    result = subprocess.run(
        [sys.executable, str(here / command[0]), *command[1:]], capture_output=True, text=True
    )
    if result.returncode:
        return {"microseconds_per_step": None, "reason": result.stderr.strip()[-300:]}
    return json.loads(result.stdout.splitlines()[-1])


def table(letter: str, medians: dict[str, float | None]) -> str:
    lines = [f"\n({letter}) {CASES[letter].title}"]
    lines.append(f"{'':32s}{'µs/step':>10s}" + "".join(f"{'/ ' + a:>12s}" for a in ALGORITHMS))
    ours = {a: medians.get(f"secateur {a}") for a in ALGORITHMS}
    for name, value in sorted(medians.items(), key=lambda kv: kv[1] or 1e99):
        if value is None:
            lines.append(f"{name:32s}{'—':>10s}")
            continue
        ratios = "".join(f"{value / o:12.2f}" if o else f"{'':12s}" for o in ours.values())
        lines.append(f"{name:32s}{value:10.1f}{ratios}")
    return "\n".join(lines)


def plot(results: dict[str, dict[str, float | None]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(4.2 * len(results), 4.2), squeeze=False)
    for axis, (letter, medians) in zip(axes[0], results.items(), strict=True):
        known = sorted(((v, n) for n, v in medians.items() if v), reverse=True)
        colours = ["#2a7f62" if n.startswith("secateur") else "#bbbbbb" if n.startswith("floor")
                   else "#8899bb" for _, n in known]  # fmt: skip
        axis.barh([n for _, n in known], [v for v, _ in known], color=colours)
        axis.set_xscale("log")
        axis.set_title(f"({letter}) {CASES[letter].title}", fontsize=8)
        axis.set_xlabel("µs per step")
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="abcd")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default="training.json")
    parser.add_argument("--plot", default="training.png")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.cases, options.steps)))
        return
    peers = [name for name, found in installed_peers().items() if found]
    names = [*FLOORS, *(f"secateur {a}" for a in ALGORITHMS), *peers]
    results: dict[str, dict[str, float | None]] = {}
    details = []
    for letter in options.cases:
        found: dict[str, list[float]] = {name: [] for name in names}
        for round_ in range(options.rounds):
            for name in names:
                print(f"\rcase {letter}, round {round_ + 1}: {name:32s}", end="", file=sys.stderr)
                one = contest(name, letter, STEPS[letter], peers)
                details.append({"case": letter, "name": name, **one})
                if one["microseconds_per_step"] is not None:
                    found[name].append(one["microseconds_per_step"])
        results[letter] = {n: statistics.median(v) if v else None for n, v in found.items()}
        print(table(letter, results[letter]), flush=True)
        summary = {"median_microseconds_per_step": results, "measurements": details}
        Path(options.json).write_text(json.dumps(summary, indent=1))
        plot(results, options.plot)


if __name__ == "__main__":
    main()
