"""Held-out data, where the paper is silent: the 20 standard splits of the UCI sets."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from secateur import __version__, datasets
from secateur.fitting.fit import fit_many
from secateur.fitting.recipes import Recipe
from secateur.fitting.result import Fitted
from secateur.paper.published import PUBLISHED
from secateur.paper.setup import model, recipes
from secateur.paper.uci_tables import as_markdown, csv_of
from secateur.paper.writing import made_by, write_atomically
from secateur.pruning.prune import prune_many
from secateur.report.predicting import log_densities, predict_numbers

__all__ = ["judge", "run_splits", "uci"]

SPLITS = 20
# Splits on which all recipes are tried; the others get the one that did best there.
_PILOTS = 2
QUICK_SPLITS, QUICK_EPOCHS = 3, 100


def uci(
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
        out: folder for the results.
        sets: names of UCI sets; all eight if none is given.
        splits: how many of the 20, from the first.
        restarts: initialisations for each split; judged are the one of least free energy, and all
            of them averaged.
        epochs: at most so many in each training; by default the recipe's.
        seed: of everything random but the splits.
        data_dir: where the data are; see `secateur.datasets.load`.
        quick: boston only, three splits, few epochs; to `uci-quick`.
        progress: whether to say on standard error how far it is.

    Returns:
        The tables, in Markdown.

    Raises:
        DatasetError: there is no such set, or the data are not to be had.
        ValueError: there are not so many splits.
    """
    name = "uci-quick" if quick else "uci"
    if quick:
        sets, splits, epochs = sets or ("boston",), QUICK_SPLITS, epochs or QUICK_EPOCHS
    if unknown := [s for s in sets if s not in PUBLISHED]:
        there_are = ", ".join(PUBLISHED)
        raise datasets.DatasetError(f"no UCI set {', '.join(unknown)}; there are {there_are}")
    if not 1 <= splits <= SPLITS:
        raise ValueError(
            f"splits={splits}. There are {SPLITS} standard splits; give 1 to {SPLITS}."
        )
    wanted = sets or tuple(PUBLISHED)
    settings = {"version": __version__, "epochs": epochs, "seed": seed, "prior": "learnt"}
    for number, each in enumerate(wanted, 1):
        tried = recipes(each, "default")
        own = settings | {
            "splits": splits,
            "restarts": restarts,
            "recipes": {n: asdict(r) for n, r in tried.items()},
        }
        place = out / name / f"{each}.json"
        known = _record(place)
        if known is not None and known["settings"] == own:
            _say(progress, f"[{number}/{len(wanted)}] {each}: done already")
            continue
        _say(progress, f"[{number}/{len(wanted)}] {each}: {splits} splits")
        begun = time.perf_counter()
        data = datasets.load(each, data_dir)
        data = replace(data, y=data.y[:, :1], target_names=data.target_names[:1])
        found = run_splits(
            data,
            data.splits()[:splits],
            tried,
            restarts=restarts,
            epochs=epochs,
            seed=seed,
            progress=progress,
        )
        seconds = time.perf_counter() - begun
        record = {"settings": own, "seconds": seconds, "rows": len(data.y), "splits": found}
        write_atomically(place, json.dumps(record, indent=1, allow_nan=False))
        _say(progress, f"[{number}/{len(wanted)}] {each}: {seconds:.0f} s")
    records = _comparable(out / name, settings)
    options = {"restarts": restarts if restarts > 1 else None, "seed": seed or None}
    note = made_by("uci --quick" if quick else "uci", **options, epochs=epochs)
    table = as_markdown(records, note)
    write_atomically(out / f"{name}.csv", csv_of(records, note))
    write_atomically(out / f"{name}.md", table)
    return table


def run_splits(
    data: datasets.Dataset,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    tried: Mapping[str, Recipe],
    *,
    restarts: int = 1,
    epochs: int | None,
    seed: int,
    progress: bool,
) -> list[dict[str, Any]]:
    """Train, prune and judge all splits; keep for each what has the least free energy.

    That is the free energy after pruning, which knows nothing of the test rows. Every recipe is
    tried on the first splits, the better one on the others.

    Args:
        data: with one target.
        splits: pairs of indices, to train on and to test on, all of equal sizes.
        tried: recipes by name.
        restarts: initialisations for each split.
        epochs: at most so many in each training; None is the recipe's.
        seed: of initialisations and batches.
        progress: whether to say on standard error how far it is.

    Returns:
        A record for each split: recipe, free energies in nats and share of the weights pruned of
        the best restart; and what `judge` says of it before and after pruning ("before", "after"),
        and of all restarts together after pruning ("averaged").
    """

    def run(name: str, start: int, stop: int) -> list[dict[str, Any]]:
        _say(progress, f"  {name}, splits {start + 1} to {stop}")
        key = jax.random.fold_in(jax.random.key(seed), start)
        return _run(data, splits[start:stop], name, tried[name], restarts, epochs, key, progress)

    pilots = min(_PILOTS, len(splits))
    found = {name: run(name, 0, pilots) for name in tried}
    best = min(found, key=lambda name: sum(r["free_energy_after"] for r in found[name]))
    records = [_lowest(each) for each in zip(*found.values(), strict=True)]
    if len(splits) > pilots:
        records += run(best, pilots, len(splits))
    return [record | {"split": number} for number, record in enumerate(records)]


def _lowest(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return min(records, key=lambda record: record["free_energy_after"])


def _run(
    data: datasets.Dataset,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    name: str,
    recipe: Recipe,
    restarts: int,
    epochs: int | None,
    key: jax.Array,
    progress: bool,
) -> list[dict[str, Any]]:
    """Run one recipe on some splits, all in one program; a record for each.

    The variances of the prior are learnt with the weights, one for each leaf, as in PBP and DVI.
    """
    network = model(data.name, data, "moments")
    train = [(data.x[rows], data.y[rows]) for rows, _ in splits for _ in range(restarts)]
    first, second = jax.random.split(key)
    fits = fit_many(
        network,
        train,
        keys=list(jax.random.split(first, len(train))),
        recipe=recipe,
        epochs=epochs,
        empirical_bayes=True,
        progress=progress,
    )
    pruned = prune_many(fits, train, key=second, epochs=epochs, progress=progress)
    records = []
    for number, (_, test) in enumerate(splits):
        own = range(number * restarts, (number + 1) * restarts)
        best = min(own, key=lambda run: pruned[run].free_energy)
        before, after = fits[best], pruned[best]
        rows = data.x[test], data.y[test]
        judged = judge([after], *rows)
        records.append(
            {
                "recipe": name,
                "free_energy_before": before.free_energy,
                "free_energy_after": after.free_energy,
                "pruned": after.pruned_fraction,
                "before": judge([before], *rows),
                "after": judged,
                "averaged": judge([pruned[r] for r in own], *rows) if restarts > 1 else judged,
            }
        )
    return records


def judge(models: Sequence[Fitted], x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return test RMSE, mean log-likelihood per row in nats, and coverage of the 95 % interval.

    The noise is integrated out: an observation is N(μ, v + 1/γ) with γ ~ q(γ). Several models make
    a mixture with equal weights.
    """
    found = [predict_numbers(fitted, x, y, seed=0) for fitted in models]
    mean, below = (np.mean([getattr(n, part) for n in found], axis=0) for part in ("mean", "below"))
    numbers = found[0]._replace(mean=mean, below=below)
    densities = [log_densities(fitted, x, y, seed=0).astype(np.float64) for fitted in models]
    return {
        "rmse": float(np.sqrt(np.mean(np.square(mean - y)))),
        "log_likelihood": float(np.mean(logsumexp(densities, axis=0)) - np.log(len(models))),
        "coverage": float(np.mean(numbers.covered_by <= 0.95)),
    }


def _record(place: Path) -> dict[str, Any] | None:
    """A record, if a whole one is there."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and "settings" in found else None


def _comparable(folder: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All records in the folder that differ, if at all, in the number of splits."""
    places = {name: _record(folder / f"{name}.json") for name in PUBLISHED}
    return {
        name: record
        for name, record in places.items()
        if record is not None and settings.items() <= record["settings"].items()
    }


def _say(progress: bool, line: str) -> None:
    if progress:
        sys.stderr.write(f"{line}\n")
