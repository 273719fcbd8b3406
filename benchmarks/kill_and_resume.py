"""Kill `fit` and `prune` at random moments, and compare the resumed result with an undisturbed one.

    python benchmarks/kill_and_resume.py --times 100

Each job runs in its own process, with a checkpoint, and is killed (SIGKILL) after a random fraction
of the time that it takes without interruption, start-up included. The next process resumes from the
checkpoint. Whenever a job finishes, its result (beliefs, priors, noise, free energy, history and
rounds) must equal that of the undisturbed job to the bit; then the checkpoint is deleted and the
job starts again, until the requested number of kills is reached.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

JOBS = ("fit", "prune")
PRELOADED = ["secateur.files", "secateur.fitting", "secateur.pruning"]


def run_job(job: str, folder: Path, checkpoint: Path | None, result: Path) -> None:
    """Do the work in this process and write the digest of its result to a file."""
    import jax
    import numpy as np

    import secateur as sc
    from secateur.storage import write_file
    from secateur.training import checkpoint as checkpoints
    from secateur.training import timetable
    from secateur.training.recipe import RECIPES

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # As often as possible, so that some kills happen while a checkpoint is written.
    checkpoints._SECONDS_BETWEEN, timetable.CALL_SECONDS = 0.0, 0.02
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 2))
    data = (x, np.sin(2 * x[:, :1]) + 0.1 * rng.normal(size=(64, 1)))
    key = jax.random.key(0)
    options = {"key": key, "checkpoint": checkpoint, "progress": False}
    model_path = folder / "model.safetensors"
    if job == "fit":
        network = sc.networks.Dense(2, hidden=(8,))
        model = sc.BayesianModel(network, network.init(key), inference="local")
        recipe = replace(RECIPES["default"], stops=False, batch_size=16, epochs=4000)
        trained = sc.fit(model, data, recipe=recipe, **options)
        if checkpoint is None:
            sc.save(trained, model_path)
    else:
        trained = sc.prune(sc.load(model_path), data, what="both", grow=True, epochs=400, **options)
    rounds = [replace(r, seconds=0.0, history=None) for r in trained.rounds]
    facts = repr((trained.free_energy, trained.epochs, trained.stop_reason, rounds))
    digest = hashlib.sha256(facts.encode())
    arrays = (trained.beliefs, trained.priors, trained.noise, vars(trained.history))
    for leaf in jax.tree.leaves(arrays):
        digest.update(np.asarray(leaf).tobytes())
    write_file(result, f"{trained.free_energy!r} {digest.hexdigest()}")


def start(job: str, folder: Path, checkpoint: Path | None, result: Path):
    """Start a job in a process of its own, which has all modules already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=run_job, args=(job, folder, checkpoint, result), daemon=True)
    process.start()
    return process


def finish(process) -> None:
    """Wait for a job, and fail if it does."""
    process.join()
    if process.exitcode:
        sys.exit(f"a job failed with exit code {process.exitcode}")


def kill_repeatedly(job: str, times: int, folder: Path, rng: random.Random) -> bool:
    """Kill a job a number of times; return whether all its results were as expected."""
    checkpoint, result = folder / f"{job}.checkpoint", folder / f"{job}.result"
    for _ in range(2):  # the first one compiles
        begin = time.monotonic()
        finish(start(job, folder, None, result))
        seconds = time.monotonic() - begin
    expected, kills, results, resumed = result.read_text(), 0, [], 0
    result.unlink()
    while kills < times or not results:
        process = start(job, folder, checkpoint, result)
        if kills < times:
            process.join(rng.uniform(0, seconds))
        if kills < times and process.is_alive():
            process.kill()
            process.join()
            kills += 1
            resumed += checkpoint.exists()
            continue
        finish(process)
        results.append(result.read_text())
        result.unlink()
        for path in folder.glob(f"{job}.checkpoint*"):
            path.unlink()
    same = sum(r == expected for r in results)
    print(
        f"{job}: {seconds:.1f} s undisturbed; killed {kills} times, {resumed} of them with a "
        f"checkpoint; {same} of {len(results)} results equal to the bit (free energy "
        f"{float(expected.split()[0]):.3f} nats)",
        flush=True,
    )
    return same == len(results)


def main() -> None:
    """Kill both jobs, and exit with 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=100, help="number of kills of each job")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [kill_repeatedly(job, options.times, Path(folder), rng) for job in JOBS]
    sys.exit(0 if all(outcomes) else 1)


if __name__ == "__main__":
    main()
