"""What figures 2 and 3 share: three trainings on boston, and the sweep over pruning rates."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from secateur import __version__, datasets
from secateur.fitting.fit import fit
from secateur.paper.setup import ALGORITHMS, model, recipes
from secateur.paper.writing import write_atomically
from secateur.pruning.sweep import Curve, Sweep, sweep

__all__ = ["CRITERIA", "QUICK_EPOCHS", "named", "sweeps"]

CRITERIA = ("bmr", "snr", "spr")
QUICK_EPOCHS = 20
_DATA = "boston"
_ARRAYS = ("rates", "estimated", "free_energy", "complexity", "accuracy", "standard_error")
_NUMBERS = ("stop_rate", "stop_estimated", "stop_free_energy")


def named(what: str, kind: str) -> str:
    """Return the name of a result: the paper's recipe goes without saying."""
    return what if kind == "paper" else f"{what}-{kind}"


def sweeps(
    out: Path,
    *,
    kind: str = "paper",
    seed: int = 0,
    epochs: int | None = None,
    samples: int | None = None,
    data_dir: Path | None = None,
    progress: bool = True,
) -> dict[str, Sweep]:
    """Train boston with each algorithm and prune it at rates 0 … 99 %, without training again.

    The results are kept in `out`, and used again by whoever asks for the same.

    Args:
        out: folder for the record.
        kind: of recipe, "paper" or "default" (targets standardised).
        seed: of the trainings.
        epochs: of each training; by default the recipe's.
        samples: that each free energy of a sampling algorithm averages; by default the recipe's.
        data_dir: where the data are; see `secateur.datasets.load`.
        progress: whether to say on standard error how far it is.

    Returns:
        Sweeps by algorithm.
    """
    recipe = next(iter(recipes(_DATA, kind).values()))
    recipe = replace(recipe, samples=samples or recipe.samples)
    settings = {"version": __version__, "seed": seed, "epochs": epochs, "recipe": asdict(recipe)}
    place = out / f"{named('sweeps', kind)}.json"
    if (known := _read(place, settings)) is not None:
        if progress:
            sys.stderr.write(f"using the trainings of {place}\n")
        return known
    data = datasets.load(_DATA, data_dir)
    found = {}
    for inference in ALGORITHMS:
        if progress:
            sys.stderr.write(f"{_DATA}, {inference}\n")
        fitted = fit(
            model(_DATA, data, inference),
            (data.x, data.y),
            key=jax.random.key(seed),
            recipe=recipe,
            epochs=epochs,
            progress=progress,
        )
        found[inference] = sweep(fitted, (data.x, data.y), criteria=CRITERIA)
    record = {"settings": settings, "sweeps": {name: _plain(s) for name, s in found.items()}}
    write_atomically(place, json.dumps(record, allow_nan=False))
    return found


def _plain(found: Sweep) -> dict[str, Any]:
    curves = {
        name: {column: getattr(curve, column).tolist() for column in _ARRAYS}
        for name, curve in found.curves.items()
    }
    return {"curves": curves} | {number: getattr(found, number) for number in _NUMBERS}


def _read(place: Path, settings: dict[str, Any]) -> dict[str, Sweep] | None:
    """The sweeps of a record with these settings, if there is one."""
    try:
        record = json.loads(place.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("settings") != settings:
        return None
    return {
        inference: Sweep(
            {
                name: Curve(name, *(np.array(curve[column]) for column in _ARRAYS))
                for name, curve in plain["curves"].items()
            },
            *(plain[number] for number in _NUMBERS),
        )
        for inference, plain in record["sweeps"].items()
    }
