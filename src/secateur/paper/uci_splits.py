"""Results on held-out data, which the paper does not report: the 20 standard UCI splits."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from secateur import __version__, datasets
from secateur.averaging import Average
from secateur.fitting import fit_many
from secateur.paper.protocol import (
    PUBLISHED_RESULTS,
    describe_recipe,
    make_model,
    make_recipes,
)
from secateur.paper.result_files import describe_origin, write_result
from secateur.paper.uci_tables import to_csv, to_markdown
from secateur.pruning import prune_many
from secateur.trained import Trained
from secateur.training.recipe import Recipe

__all__ = ["judge_models", "reproduce_uci", "run_splits"]

SPLITS = 20
QUICK_SPLITS, QUICK_EPOCHS = 3, 100
# Number of splits on which all recipes are tried; the others use the best of them.
_PILOT_SPLITS = 2


def reproduce_uci(
    out: Path,
    *,
    sets: Sequence[str] = (),
    splits: int = SPLITS,
    restarts: int = 1,
    epochs: int | None = None,
    seed: int = 0,
    data_dir: Path | None = None,
    quick: bool = False,
    progress: bool = True,
) -> str:
    """Train and prune on the standard splits; write test error, log-likelihood and coverage.

    Every data set's splits are one compiled program. A data set that is finished leaves a record,
    `uci/NAME.json`, and is not run again with the same settings. The tables, `uci.md` and
    `uci.csv`, show all data sets with a record.

    Args:
        out: Folder for the results.
        sets: Names of UCI sets. Defaults to all eight.
        splits: Number of splits, from the first of the 20.
        restarts: Number of initialisations for each split. Both the one with the lowest free energy
            and the average of all are evaluated.
        epochs: Maximum number of epochs of each training. Defaults to the recipe's.
        seed: Seed of everything random except the splits.
        data_dir: Folder with the data; see `secateur.datasets.load`.
        quick: Whether to run boston only, with three splits and few epochs, into `uci-quick`.
        progress: Whether to report progress on standard error.

    Returns:
        The tables, in Markdown.

    Raises:
        DatasetError: The data set does not exist, or cannot be obtained.
        ValueError: The number of splits is out of range.
    """
    name = "uci-quick" if quick else "uci"
    if quick:
        sets, splits, epochs = sets or ("boston",), QUICK_SPLITS, epochs or QUICK_EPOCHS
    if unknown := [s for s in sets if s not in PUBLISHED_RESULTS]:
        known = ", ".join(PUBLISHED_RESULTS)
        raise datasets.DatasetError(f"no UCI set {', '.join(unknown)}; there are {known}")
    if not 1 <= splits <= SPLITS:
        raise ValueError(
            f"splits={splits}. There are {SPLITS} standard splits; give 1 to {SPLITS}."
        )
    sets = sets or tuple(PUBLISHED_RESULTS)
    shared_settings = {"version": __version__, "epochs": epochs, "seed": seed, "prior": "learnt"}
    for number, uci_set in enumerate(sets, 1):
        title = f"[{number}/{len(sets)}] {uci_set}"
        recipes = make_recipes(uci_set, "default")
        settings = shared_settings | {
            "splits": splits,
            "restarts": restarts,
            "recipes": {n: describe_recipe(recipe) for n, recipe in recipes.items()},
        }
        path = out / name / f"{uci_set}.json"
        record = _read_record(path)
        if record is not None and record["settings"] == settings:
            _report(progress, f"{title}: done already")
            continue
        _report(progress, f"{title}: {splits} splits")
        start = time.perf_counter()
        data = datasets.load(uci_set, data_dir)
        data = replace(data, y=data.y[:, :1], target_names=data.target_names[:1])
        split_records = run_splits(
            data,
            data.splits()[:splits],
            recipes,
            restarts=restarts,
            epochs=epochs,
            seed=seed,
            progress=progress,
        )
        seconds = time.perf_counter() - start
        record = {
            "settings": settings,
            "seconds": seconds,
            "rows": len(data.y),
            "splits": split_records,
        }
        write_result(path, json.dumps(record, indent=1, allow_nan=False))
        _report(progress, f"{title}: {seconds:.0f} s")
    records = _read_comparable_records(out / name, shared_settings)
    note = describe_origin(
        "uci",
        quick=quick,
        restarts=restarts if restarts > 1 else None,
        seed=seed or None,
        epochs=epochs,
    )
    table = to_markdown(records, note)
    write_result(out / f"{name}.csv", to_csv(records, note))
    write_result(out / f"{name}.md", table)
    return table


def run_splits(
    data: datasets.Dataset,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    recipes: Mapping[str, Recipe],
    *,
    restarts: int = 1,
    epochs: int | None,
    seed: int,
    progress: bool,
) -> list[dict[str, Any]]:
    """Train, prune and evaluate all splits; for each, keep the model with the lowest free energy.

    The free energy after pruning does not depend on the test rows. All recipes are tried on the
    first splits, and the best one is used on the others.

    Args:
        data: A data set with one target.
        splits: Pairs of training and test indices, all of equal sizes.
        recipes: Recipes by name.
        restarts: Number of initialisations for each split.
        epochs: Maximum number of epochs of each training. None is the recipe's.
        seed: Seed of initialisations and batches.
        progress: Whether to report progress on standard error.

    Returns:
        A record for each split: recipe, free energies in nats and pruned fraction of the best
        restart; and the scores of `judge_models` before and after pruning ("before", "after") and
        for all restarts together after pruning ("averaged").
    """

    def run(name: str, start: int, stop: int) -> list[dict[str, Any]]:
        _report(progress, f"  {name}, splits {start + 1} to {stop}")
        key = jax.random.fold_in(jax.random.key(seed), start)
        runs = _train_runs(data, splits[start:stop], recipes[name], restarts, epochs, key, progress)
        return [
            {"recipe": name, **_make_record(data, test, *runs_of_split)}
            for (_, test), runs_of_split in zip(splits[start:stop], runs, strict=True)
        ]

    pilots = min(_PILOT_SPLITS, len(splits))
    candidates = {name: run(name, 0, pilots) for name in recipes}
    best = min(candidates, key=lambda name: sum(map(_free_energy_after, candidates[name])))
    records = [
        min(split, key=_free_energy_after) for split in zip(*candidates.values(), strict=True)
    ]
    if len(splits) > pilots:
        records += run(best, pilots, len(splits))
    return [record | {"split": number} for number, record in enumerate(records)]


def _free_energy_after(record: dict[str, Any]) -> float:
    return record["free_energy_after"]


def _train_runs(
    data: datasets.Dataset,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    recipe: Recipe,
    restarts: int,
    epochs: int | None,
    key: jax.Array,
    progress: bool,
) -> list[tuple[list[Trained], list[Trained]]]:
    """Train and prune all splits in one program.

    The variances of the prior are learnt with the weights, one for each leaf, as in PBP and DVI.

    Returns:
        The fitted and the pruned models of each split, one for each restart.
    """
    pairs = [(data.x[rows], data.y[rows]) for rows, _ in splits for _ in range(restarts)]
    fit_key, prune_key = jax.random.split(key)
    fits = fit_many(
        make_model(data.name, data, "moments"),
        pairs,
        keys=list(jax.random.split(fit_key, len(pairs))),
        recipe=recipe,
        epochs=epochs,
        learn_priors="leaves",
        progress=progress,
    )
    pruned = prune_many(fits, pairs, key=prune_key, epochs=epochs, progress=progress)
    ranges = [slice(start, start + restarts) for start in range(0, len(pairs), restarts)]
    return [(fits[runs], pruned[runs]) for runs in ranges]


def _make_record(
    data: datasets.Dataset, test: np.ndarray, fits: list[Trained], pruned: list[Trained]
) -> dict[str, Any]:
    best = min(range(len(pruned)), key=lambda run: pruned[run].free_energy)
    rows = data.x[test], data.y[test]
    after = judge_models([pruned[best]], *rows)
    return {
        "free_energy_before": fits[best].free_energy,
        "free_energy_after": pruned[best].free_energy,
        "pruned": pruned[best].pruned_fraction,
        "before": judge_models([fits[best]], *rows),
        "after": after,
        "averaged": judge_models(pruned, *rows) if len(pruned) > 1 else after,
    }


def judge_models(models: Sequence[Trained], x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return test RMSE, mean log-likelihood per row in nats, and coverage of the 95 % interval.

    Several models are averaged with equal weights.

    Args:
        models: Trained models.
        x: Inputs of the test rows.
        y: Targets of the test rows.
    """
    prediction = Average.from_models(models).predict(x)
    return {
        "rmse": float(np.sqrt(np.mean(np.square(prediction.mean - y)))),
        "log_likelihood": float(np.mean(prediction.log_density(y))),
        "coverage": float(np.mean(np.abs(2 * prediction.cdf(y) - 1) <= 0.95)),
    }


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return a record, if there is a complete one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) and "settings" in record else None


def _read_comparable_records(folder: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return all records of a folder with these settings, for any number of splits."""
    records = {name: _read_record(folder / f"{name}.json") for name in PUBLISHED_RESULTS}
    return {
        name: record
        for name, record in records.items()
        if record is not None and settings.items() <= record["settings"].items()
    }


def _report(progress: bool, line: str) -> None:
    if progress:
        sys.stderr.write(f"{line}\n")
