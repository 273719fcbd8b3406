"""One experiment of Table 1: train, cut once, prune iteratively; several seeds in one program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from secateur import __version__, datasets
from secateur.fitting import fit_many
from secateur.paper.protocol import describe_recipe, make_model, make_recipes
from secateur.progress import ProgressUpdate
from secateur.pruning import prune_many
from secateur.trained import Trained
from secateur.training.recipe import Recipe

__all__ = ["Job", "SeedResult", "run_job"]


@dataclass(frozen=True)
class Job:
    """The work of one process.

    Attributes:
        sets: Names of data sets of one shape, which share a program.
        inference: "moments", "local" or "global".
        kind: Kind of recipe, "paper" or "default".
        seeds: Seeds of the initialisations, trained side by side.
        epochs: Maximum number of epochs of each training, for a quick look; 0 is the recipe's.
    """

    sets: tuple[str, ...]
    inference: str
    kind: str
    seeds: tuple[int, ...]
    epochs: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that a record of this job must match: recipes and version."""
        recipes = make_recipes(self.sets[0], self.kind)
        return {
            "version": __version__,
            "recipes": {name: describe_recipe(recipe) for name, recipe in recipes.items()},
        }

    @property
    def name(self) -> str:
        """Return a name that is a valid file name."""
        quick = f"-{self.epochs}-epochs" if self.epochs else ""
        first, last = self.seeds[0], self.seeds[-1]
        seeds = f"seed-{first}" if first == last else f"seeds-{first}-{last}"
        return f"{'+'.join(self.sets)}-{self.inference}-{self.kind}-{seeds}{quick}"


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed: free energies in nats, and shares of all weights.

    Attributes:
        recipe: Name of the recipe that ended lowest.
        start: Free energy of the full network.
        one: Free energy after one cut, without training.
        one_pruned: Fraction of the weights removed by this cut.
        iterative: Free energy after iterative pruning.
        pruned: Fraction of the weights that are removed in the end.
    """

    recipe: str
    start: float
    one: float
    one_pruned: float
    iterative: float
    pruned: float

    @classmethod
    def from_pruned(cls, recipe: str, pruned: Trained) -> SeedResult:
        """Make a result from a pruned model."""
        start = pruned.free_energy_before
        first = pruned.rounds[0] if pruned.rounds else None
        return cls(
            recipe,
            start,
            start + first.at_once if first else start,
            first.changed / pruned.weights_before if first else 0.0,
            pruned.free_energy,
            pruned.pruned_fraction,
        )


def run_job(
    job: Job,
    *,
    data_dir: str | None = None,
    folder: Path | None = None,
    report_progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a job and return its record, which JSON can hold.

    Args:
        job: The job.
        data_dir: Folder with the data; see `secateur.datasets.load`.
        folder: Folder for checkpoints, from which a killed job is resumed.
        report_progress: Function that is called with a line on the job's progress.
    """
    start = time.perf_counter()
    data = [datasets.load(name, data_dir) for name in job.sets]
    results: list[list[SeedResult]] = []
    for name, recipe in make_recipes(job.sets[0], job.kind).items():
        runs = _prune_runs(job, data, name, recipe, folder, report_progress)
        results.append([SeedResult.from_pruned(name, run) for run in runs])
    best = [min(by_recipe, key=lambda r: r.iterative) for by_recipe in zip(*results, strict=True)]
    runs_by_set = np.array_split(np.arange(len(best)), len(data))
    return {
        "job": asdict(job),
        "settings": job.settings,
        "seconds": time.perf_counter() - start,
        "outcomes": {
            name: [asdict(best[run]) for run in runs_of_set]
            for name, runs_of_set in zip(job.sets, runs_by_set, strict=True)
        },
    }


def _prune_runs(
    job: Job,
    data: Sequence[datasets.Dataset],
    name: str,
    recipe: Recipe,
    folder: Path | None,
    report_progress: Callable[[str], None],
) -> list[Trained]:
    """Train and prune every seed on every data set, all in one program."""
    pairs = [(d.x, d.y) for d in data for _ in job.seeds]
    if len(data) == 1:
        pairs = pairs[:1]  # one data set for all seeds
    keys = [jax.random.key(seed) for _ in data for seed in job.seeds]

    def stage_options(stage: str) -> dict[str, Any]:
        def callback(update: ProgressUpdate) -> None:
            report_progress(f"{stage}: {update.short}")

        file = f"{job.name}-{name.replace(' ', '-')}.{stage}"
        return {
            "epochs": job.epochs or None,
            "checkpoint": None if folder is None else folder / file,
            "callback": callback,
            "progress": False,
        }

    model = make_model(job.sets[0], data[0], job.inference)
    fits = fit_many(model, pairs, keys=keys, recipe=recipe, **stage_options("fit"))
    key = jax.random.fold_in(jax.random.key(len(job.seeds)), job.seeds[0])
    return prune_many(fits, pairs, key=key, **stage_options("prune"))
