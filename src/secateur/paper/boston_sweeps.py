"""The trainings behind figures 2 and 3: three on boston, each swept over pruning rates."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from secateur import __version__, datasets
from secateur.fitting import fit
from secateur.paper.protocol import ALGORITHMS, describe_recipe, make_model, make_recipes
from secateur.paper.result_files import describe_origin, write_result
from secateur.pruning.curves import Curve, Sweep, sweep
from secateur.training.recipe import Recipe

__all__ = ["CRITERIA", "QUICK_EPOCHS", "SweepOptions", "obtain_sweeps"]

CRITERIA = ("bmr", "snr", "spr")
QUICK_EPOCHS = 20
_DATA = "boston"
_ARRAYS = ("rates", "estimated", "free_energy", "complexity", "accuracy", "standard_error")
_NUMBERS = ("stop_rate", "stop_estimated", "stop_free_energy")


@dataclass(frozen=True)
class SweepOptions:
    """Options of the trainings behind figures 2 and 3.

    Attributes:
        kind: Kind of recipe, "paper" or "default" (targets standardised).
        seed: Seed of the trainings.
        epochs: Maximum number of epochs of each training. Defaults to the recipe's.
        samples: Number of samples averaged for each free energy of a sampling algorithm. Defaults
            to the recipe's.
    """

    kind: str = "paper"
    seed: int = 0
    epochs: int | None = None
    samples: int | None = None

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the trainings."""
        recipe = next(iter(make_recipes(_DATA, self.kind).values()))
        return replace(recipe, samples=self.samples or recipe.samples)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that must match for a record to be reused."""
        return {
            "version": __version__,
            "seed": self.seed,
            "epochs": self.epochs,
            "recipe": describe_recipe(self.recipe),
        }

    def name_result(self, result: str) -> str:
        """Return the name of a result's files, with the recipe unless it is the paper's."""
        return result if self.kind == "paper" else f"{result}-{self.kind}"

    def describe_origin(self, command: str) -> str:
        """Return a line with the command, its options, the versions and the date."""
        return describe_origin(
            command,
            recipe=None if self.kind == "paper" else self.kind,
            seed=self.seed or None,
            epochs=self.epochs,
            samples=self.samples,
        )


def obtain_sweeps(
    out: Path, options: SweepOptions, *, data_dir: Path | None = None, progress: bool = True
) -> dict[str, Sweep]:
    """Train on boston with each algorithm and prune at rates 0 … 99 %, without retraining.

    The results are stored in a record and reused for the same options.

    Args:
        out: Folder for the record.
        options: How to train.
        data_dir: Folder with the data; see `secateur.datasets.load`.
        progress: Whether to report progress on standard error.

    Returns:
        Sweeps by algorithm.
    """
    path = out / f"{options.name_result('sweeps')}.json"
    recorded = _read_sweeps(path, options.settings)
    if recorded is not None:
        if progress:
            sys.stderr.write(f"using the trainings of {path}\n")
        return recorded
    data = datasets.load(_DATA, data_dir)
    sweeps = {}
    for inference in ALGORITHMS:
        if progress:
            sys.stderr.write(f"{_DATA}, {inference}\n")
        fitted = fit(
            make_model(_DATA, data, inference),
            (data.x, data.y),
            key=jax.random.key(options.seed),
            recipe=options.recipe,
            epochs=options.epochs,
            progress=progress,
        )
        sweeps[inference] = sweep(fitted, (data.x, data.y), criteria=CRITERIA)
    record = {
        "settings": options.settings,
        "sweeps": {inference: _to_json(result) for inference, result in sweeps.items()},
    }
    write_result(path, json.dumps(record, allow_nan=False))
    return sweeps


def _to_json(result: Sweep) -> dict[str, Any]:
    curves = {
        name: {column: getattr(curve, column).tolist() for column in _ARRAYS}
        for name, curve in result.curves.items()
    }
    return {"curves": curves} | {number: getattr(result, number) for number in _NUMBERS}


def _from_json(plain: dict[str, Any]) -> Sweep:
    curves = {
        name: Curve(name, *(np.array(curve[column]) for column in _ARRAYS))
        for name, curve in plain["curves"].items()
    }
    return Sweep(curves, *(plain[number] for number in _NUMBERS))


def _read_sweeps(path: Path, settings: dict[str, Any]) -> dict[str, Sweep] | None:
    """Return the sweeps of a record with these settings, if there is one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("settings") != settings:
        return None
    return {inference: _from_json(plain) for inference, plain in record["sweeps"].items()}
