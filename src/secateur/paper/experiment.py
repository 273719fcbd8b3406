"""One experiment of Table 1: train, cut once, prune to the end; several seeds in one program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from secateur import __version__, datasets
from secateur.fitting.fit import fit_many
from secateur.paper.setup import model, recipes
from secateur.progress import Report
from secateur.pruning.prune import Pruned, prune_many

__all__ = ["Job", "Outcome", "run"]


@dataclass(frozen=True)
class Job:
    """What one process works on.

    Attributes:
        sets: names of data sets of one shape, which share a program.
        inference: "moments", "local" or "global".
        kind: of recipe, "paper" or "default".
        seeds: of the initialisations, side by side.
        epochs: instead of the recipe's, for a quick look; 0 is the recipe's.
    """

    sets: tuple[str, ...]
    inference: str
    kind: str
    seeds: tuple[int, ...]
    epochs: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Return what a record must agree with to be this job's: the recipes, and the version."""
        tried = {name: asdict(r) for name, r in recipes(self.sets[0], self.kind).items()}
        return {"version": __version__, "recipes": tried}

    @property
    def name(self) -> str:
        """Return a name that can be a file's."""
        quick = f"-{self.epochs}-epochs" if self.epochs else ""
        first, last = self.seeds[0], self.seeds[-1]
        seeds = f"seed-{first}" if first == last else f"seeds-{first}-{last}"
        return f"{'+'.join(self.sets)}-{self.inference}-{self.kind}-{seeds}{quick}"


@dataclass(frozen=True)
class Outcome:
    """What one seed came to; free energies in nats, shares of all weights.

    Attributes:
        recipe: which of the recipes tried ended lowest.
        start: of the full network.
        one: after one cut, without training.
        one_pruned: share of the weights that it took.
        iterative: after pruning to the end.
        pruned: share of the weights that are gone.
    """

    recipe: str
    start: float
    one: float
    one_pruned: float
    iterative: float
    pruned: float

    @classmethod
    def of(cls, recipe: str, pruned: Pruned) -> Outcome:
        """Read an outcome off the record of a pruning."""
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


def run(
    job: Job,
    *,
    data_dir: str | None = None,
    folder: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a job and return its record, which JSON can hold.

    Args:
        job: what to do.
        data_dir: where the data are; see `secateur.datasets.load`.
        folder: for checkpoints; a job that was killed goes on from there.
        tell: called with a line on where the job is, now and then.
    """
    begun = time.perf_counter()
    data = [datasets.load(name, data_dir) for name in job.sets]
    tried: list[list[Outcome]] = []
    for name, recipe in recipes(job.sets[0], job.kind).items():
        pruned = _prune(job, data, name, recipe, folder, tell)
        tried.append([Outcome.of(name, p) for p in pruned])
    best = [min(each, key=lambda o: o.iterative) for each in zip(*tried, strict=True)]
    per_set = np.array_split(np.arange(len(best)), len(data))
    return {
        "job": asdict(job),
        "settings": job.settings,
        "seconds": time.perf_counter() - begun,
        "outcomes": {
            name: [asdict(best[i]) for i in places]
            for name, places in zip(job.sets, per_set, strict=True)
        },
    }


def _prune(
    job: Job,
    data: Sequence[datasets.Dataset],
    name: str,
    recipe: Any,
    folder: Path | None,
    tell: Callable[[str], None],
) -> list[Pruned]:
    sets = [(d.x, d.y) for d in data for _ in job.seeds]
    same = sets[:1] if len(data) == 1 else sets
    keys = [jax.random.key(seed) for _ in data for seed in job.seeds]

    def checkpoint(stage: str) -> Path | None:
        return None if folder is None else folder / f"{job.name}-{name.replace(' ', '-')}.{stage}"

    def telling(stage: str) -> Callable[[Report], None]:
        return lambda report: tell(f"{stage}: {report.short}")

    options: dict[str, Any] = {"progress": False}
    fits = fit_many(
        model(job.sets[0], data[0], job.inference),
        same,
        keys=keys,
        recipe=recipe,
        epochs=job.epochs or None,
        checkpoint=checkpoint("fit"),
        callback=telling("fit"),
        **options,
    )
    return prune_many(
        fits,
        same,
        key=jax.random.fold_in(jax.random.key(len(job.seeds)), job.seeds[0]),
        epochs=job.epochs or None,
        checkpoint=checkpoint("prune"),
        callback=telling("prune"),
        **options,
    )
