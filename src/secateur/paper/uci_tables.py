"""Tables of the results on held-out data beside published results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from secateur.paper.protocol import PUBLISHED_METHODS, PUBLISHED_RESULTS
from secateur.paper.result_files import format_csv

__all__ = ["list_shortfalls", "to_csv", "to_markdown"]

_MEASURES = ("rmse", "log_likelihood", "coverage")
_COVERAGE = (0.90, 0.98)  # the goal for the 95 % interval
# What is evaluated: the best restart before and after pruning, and all restarts after pruning.
_STAGES = ("before", "after", "averaged")
_TITLES = {"after": "One network", "averaged": "All restarts averaged"}

Records = dict[str, dict[str, Any]]


def to_csv(records: Records, note: str) -> str:
    """Return one row for each data set and split."""
    stages = [(stage, measure) for stage in _STAGES for measure in _MEASURES]
    plain = ("split", "recipe", "free_energy_before", "free_energy_after", "pruned")
    header = ["data", *plain, *(f"{measure}_{stage}" for stage, measure in stages)]
    return format_csv(
        note,
        header,
        (
            [name, *(split[column] for column in plain), *(split[s][m] for s, m in stages)]
            for name, record in records.items()
            for split in record["splits"]
        ),
    )


def to_markdown(records: Records, note: str) -> str:
    """Return tables of log-likelihood, error and coverage, and the goals that were missed."""
    stages, methods = " | ".join(_STAGES), " | ".join(PUBLISHED_METHODS)
    parts = [
        "# Held-out data\n",
        f"`{note}`\n",
        "One hidden layer of 50 ReLU units, inference by moments, default recipe, the prior's "
        "variances learnt with the weights (as in PBP and DVI); mean ± standard error over the "
        "standard train/test splits. *Before* and *after* pruning: the restart with the lowest "
        "free energy after pruning, without regard to test rows; the recipe (targets standardised, "
        "or as they are) is chosen in the same way on the first two splits. *Averaged*: all pruned "
        "restarts as a mixture with equal weights. PBP, MC dropout and DVI (homoscedastic) as "
        "published, means of 20 splits. Energy and naval: first target only.\n",
        "## Log-likelihood of test rows, nats per row (higher is better)\n",
        f"| data | splits | restarts | {stages} | {methods} |",
        "|---|---|---|" + "---|" * len((*_STAGES, *PUBLISHED_METHODS)),
        *(
            f"| {name} | {len(record['splits'])} | {record['settings']['restarts']} | "
            f"{_format_stages(record, 'log_likelihood', 3)} | "
            + " | ".join(
                f"{PUBLISHED_RESULTS[name][m].log_likelihood:.2f}" for m in PUBLISHED_METHODS
            )
            + " |"
            for name, record in records.items()
        ),
        "\n## Test RMSE, in the targets' units (lower is better)\n",
        f"| data | {stages} | PBP | MC dropout |",
        "|---|---|---|---|---|---|",
        *(_format_rmse_row(name, record) for name, record in records.items()),
        "\n## Coverage of the 95 % interval, and size\n",
        "| data | covered before, % | after, % | averaged, % | weights pruned, % | free energy "
        "before, nats | after, nats | recipe |",
        "|---|---|---|---|---|---|---|---|",
        *(_format_size_row(name, record) for name, record in records.items()),
        "\n## Goals\n",
        "After pruning: log-likelihood at least that of PBP and of DVI, RMSE at most that of PBP, "
        "coverage of 90 to 98 %. Means are compared at the published precision, two decimals.\n",
        *_format_verdicts(records),
    ]
    return "\n".join(parts) + "\n"


def list_shortfalls(name: str, record: dict[str, Any], stage: str = "after") -> list[str]:
    """Return the goals that a data set misses, in words.

    Args:
        name: Name of the data set.
        record: Record of its splits.
        stage: "after" for one network, "averaged" for all restarts.
    """
    log_likelihood, rmse, coverage = (
        float(np.mean(_values(record, stage, measure)))
        for measure in ("log_likelihood", "rmse", "coverage")
    )
    published, misses = PUBLISHED_RESULTS[name], []
    for method in ("PBP", "DVI"):
        theirs = published[method].log_likelihood
        if round(log_likelihood, 2) < theirs:
            misses.append(f"log-likelihood {log_likelihood:.3f}, {method} {theirs:.2f}")
    theirs_rmse = published["PBP"].rmse
    if theirs_rmse is not None and round(rmse, 2) > theirs_rmse:
        misses.append(f"RMSE {rmse:.3g}, PBP {theirs_rmse:.2f}")
    if not _COVERAGE[0] <= coverage <= _COVERAGE[1]:
        misses.append(f"coverage {100 * coverage:.1f} %")
    return misses


def _format_verdicts(records: Records) -> list[str]:
    lines = []
    several = any(record["settings"]["restarts"] > 1 for record in records.values())
    for stage, title in _TITLES.items():
        if stage == "after" or several:
            misses = {name: list_shortfalls(name, r, stage) for name, r in records.items()}
            reached = sum(not any("log-likelihood" in m for m in ms) for ms in misses.values())
            end = "." if any(misses.values()) else "; all other goals too."
            lines.append(
                f"{title}: log-likelihood reached on {reached} of {len(records)} data sets{end}\n"
            )
            lines += [f"- {name}: {miss}." for name, ms in misses.items() for miss in ms]
            lines.append("")
    fewer = [name for name, record in records.items() if len(record["splits"]) < 20]
    if fewer:
        lines.append(f"Fewer than 20 splits were run of: {', '.join(fewer)}.")
    return lines


def _values(record: dict[str, Any], stage: str, measure: str) -> np.ndarray:
    return np.array([split[stage][measure] for split in record["splits"]])


def _format_mean(values: np.ndarray, digits: int) -> str:
    """Return mean ± standard error, or the mean alone if there is one value."""
    if len(values) < 2:
        return f"{np.mean(values):.{digits}f}"
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.{digits}f} ± {error:.{digits}f}"


def _format_stages(record: dict[str, Any], measure: str, digits: int, scale: float = 1.0) -> str:
    stages = (scale * _values(record, stage, measure) for stage in _STAGES)
    return " | ".join(_format_mean(values, digits) for values in stages)


def _format_rmse_row(name: str, record: dict[str, Any]) -> str:
    size = np.mean(_values(record, "after", "rmse"))
    digits = max(2, 2 - int(np.floor(np.log10(size))))  # three significant ones
    theirs = " | ".join(f"{PUBLISHED_RESULTS[name][m].rmse:.2f}" for m in ("PBP", "MC dropout"))
    return f"| {name} | {_format_stages(record, 'rmse', digits)} | {theirs} |"


def _format_size_row(name: str, record: dict[str, Any]) -> str:
    splits = record["splits"]
    pruned = _format_mean(np.array([100 * s["pruned"] for s in splits]), 1)
    energies = " | ".join(
        f"{np.mean([s[f'free_energy_{stage}'] for s in splits]):.1f}"
        for stage in ("before", "after")
    )
    counts = Counter(s["recipe"] for s in splits)
    chosen = ", ".join(f"{recipe} ({count})" for recipe, count in counts.most_common())
    coverage = _format_stages(record, "coverage", 1, 100)
    return f"| {name} | {coverage} | {pruned} | {energies} | {chosen} |"
