"""Microseconds per training step: secateur, its peers, and the bare matrix products of a step.

    python benchmarks/training.py [--cases abcd] [--rounds 3] [--json FILE] [--plot FILE]
    python benchmarks/training.py --against CHECKOUT [--cases abcd] [--rounds 7] [--json FILE]

All contestants have the same network, batch size, number of steps and data, and are warmed up. Each
measurement runs in its own process; every round measures all contestants in turn, so that other
load affects all of them, and the result is the median over rounds. See `training_peers.py` for the
peers and their installation; peers that are not installed are skipped.

The floor of an algorithm is what every implementation needs: the matrix products of a step and of
its gradient, in the same kind of compiled loop, once for `global`, and for both means and variances
for `local` and `moments`.

With --against, secateur alone is compared with another checkout of it: time per step, time of the
first call (which compiles) and peak memory, as the ratio of this checkout to the other one.
Measurements of both take turns, and the first of each pair changes from round to round. Both run in
this environment, each with its own sources first on the path: two environments with the same
packages differ by up to 17 MB of resident memory after `import jax` alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from training_peers import CASES, HIDDEN, NOISE, Case, gru, installed_peers, mlp

ALGORITHMS = ("moments", "local", "global")
FLOORS = {"floor, once": 1, "floor, means and variances": 2}
STEPS = {"a": 4000, "b": 4000, "c": 500, "d": 160}
REPEATS = 5
HERE = Path(__file__).parent


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
    """The complete compiled program that `secateur.fit` runs, with noise, records and checks."""
    import jax

    import secateur as sc
    from secateur.training import program
    from secateur.training.recipe import RECIPES, Training
    from secateur.training.sources import Arrays
    from secateur.training.trainer import Trainer

    f, params = network(case)
    likelihood = sc.GaussianLikelihood(precision=NOISE**-2)
    if case.classes is not None:
        likelihood = sc.CategoricalLikelihood()
    model = sc.BayesianModel(f, params, likelihood=likelihood, inference=algorithm)
    beliefs = sc.believe(params, variance=0.01)
    priors = sc.priors(beliefs, sc.Normal(0.0, 1.0))
    training = Training(replace(RECIPES["default"], batch_size=case.batch))
    trainer = Trainer(model, Arrays([case.data()]), [beliefs], [priors], training)
    state = trainer.restart(trainer.start([jax.random.key(0)]))
    schedule = trainer._make_schedule(trainer.planner.plan_training())
    epochs = max(1, round(steps / trainer.steps))

    def run():
        nonlocal state
        done = 0
        while done < epochs:
            count = min(program.CALL_LENGTH, epochs - done)
            state, records = program.train(
                trainer.spec, state, trainer.constants, trainer._data, schedule, count
            )
            done += count
        jax.block_until_ready(records)

    return run


def measure(name: str, letter: str, steps: int) -> dict:
    """Microseconds per step of one contestant, in this process."""
    case = CASES[letter]
    if name in FLOORS:
        run, steps_per_pass = floor(case, FLOORS[name], steps), case.rows // case.batch
    else:
        run = secateur(case, name.removeprefix("secateur "), steps)
        steps_per_pass = -(-case.rows // case.batch)
    exact_steps = max(1, round(steps / steps_per_pass)) * steps_per_pass
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) / exact_steps * 1e6)
    return {"microseconds_per_step": statistics.median(times), "first_call_seconds": first}


def measure_in_process(
    name: str,
    letter: str,
    steps: int,
    peers: list[str],
    *,
    folder: Path = HERE,
) -> dict:
    """One measurement in a process of its own, with that process's peak memory."""
    if name in peers:
        command = ["training_peers.py", "--peer", name, "--case", letter, "--steps", str(steps)]
    else:
        command = ["training.py", "--one", name, "--cases", letter, "--steps", str(steps)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        words = [sys.executable, str(folder / command[0]), *command[1:]]
        environment = os.environ | {"PYTHONPATH": str(folder.parent / "src")}
        process = subprocess.Popen(words, stdout=out, stderr=err, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            return {"microseconds_per_step": None, "reason": err.read().strip()[-300:]}
        result = json.loads(out.read().splitlines()[-1])
    return result | {"peak_megabytes": usage.ru_maxrss / 1024}


def compare(checkout: Path, letters: str, rounds: int, path: str) -> None:
    """Print the ratios of this checkout to another one; write all measurements to a file."""
    folders = {"new": HERE, "old": checkout.resolve() / "benchmarks"}
    print("Ratios new/old. Time per step: lowest of all rounds; then by round, median and range.")
    print("First call and memory: medians of all rounds.\n")
    headings = ("old µs", "new µs", "lowest", "by round", "range", "first call", "memory")
    print(f"{'case, algorithm':18s}{''.join(f'{h:>14s}' for h in headings)}", flush=True)
    measurements = []
    for letter in letters:
        for algorithm in ALGORITHMS:
            results: dict[str, list[dict]] = {which: [] for which in folders}
            for number in range(rounds):
                order = list(folders) if number % 2 else list(reversed(folders))
                for which in order:
                    name, steps = f"secateur {algorithm}", STEPS[letter]
                    result = measure_in_process(name, letter, steps, [], folder=folders[which])
                    measurements.append(
                        {"case": letter, "algorithm": algorithm, "which": which, **result}
                    )
                    if result["microseconds_per_step"] is None:
                        sys.exit(f"{which}, case {letter}, {algorithm}: {result['reason']}")
                    results[which].append(result)
            print(f"({letter}) {algorithm:14s}{compare_results(**results)}", flush=True)
            Path(path).write_text(json.dumps({"comparison": measurements}, indent=1))


def compare_results(new: list[dict], old: list[dict]) -> str:
    def values(results: list[dict], key: str) -> list[float]:
        return [result[key] for result in results]

    def ratio_of_medians(key: str) -> float:
        return statistics.median(values(new, key)) / statistics.median(values(old, key))

    key = "microseconds_per_step"
    ratios = [n / o for n, o in zip(values(new, key), values(old, key), strict=True)]
    # Other load can only add time, so the minimum is the best estimate.
    lowest_old, lowest_new = min(values(old, key)), min(values(new, key))
    numbers = (
        f"{lowest_old:.1f}",
        f"{lowest_new:.1f}",
        f"{lowest_new / lowest_old:.3f}",
        f"{statistics.median(ratios):.3f}",
        f"{min(ratios):.2f} … {max(ratios):.2f}",
        f"{ratio_of_medians('first_call_seconds'):.2f}",
        f"{ratio_of_medians('peak_megabytes'):.3f}",
    )
    return "".join(f"{number:>14s}" for number in numbers)


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
    parser.add_argument("--rounds", type=int, help="by default 3, and 7 with --against")
    parser.add_argument("--against", type=Path, help="another checkout of secateur")
    parser.add_argument("--json", default="training.json")
    parser.add_argument("--plot", default="training.png")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.cases, options.steps)))
        return
    if options.against:
        compare(options.against, options.cases, options.rounds or 7, options.json)
        return
    peers = [name for name, version in installed_peers().items() if version]
    names = [*FLOORS, *(f"secateur {a}" for a in ALGORITHMS), *peers]
    results: dict[str, dict[str, float | None]] = {}
    details = []
    for letter in options.cases:
        times: dict[str, list[float]] = {name: [] for name in names}
        for number in range(options.rounds or 3):
            for name in names:
                print(f"\rcase {letter}, round {number + 1}: {name:32s}", end="", file=sys.stderr)
                result = measure_in_process(name, letter, STEPS[letter], peers)
                details.append({"case": letter, "name": name, **result})
                if result["microseconds_per_step"] is not None:
                    times[name].append(result["microseconds_per_step"])
        results[letter] = {n: statistics.median(v) if v else None for n, v in times.items()}
        print(table(letter, results[letter]), flush=True)
        summary = {"median_microseconds_per_step": results, "measurements": details}
        Path(options.json).write_text(json.dumps(summary, indent=1))
        plot(results, options.plot)


if __name__ == "__main__":
    main()
