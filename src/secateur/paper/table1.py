"""Table 1: free energies before and after pruning, ours beside the paper's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secateur.paper.job_pool import run_jobs
from secateur.paper.protocol import (
    ALGORITHMS,
    PAPER_RESULTS,
    PAPER_SETTINGS,
    SIGNALS,
    PaperResult,
)
from secateur.paper.result_files import describe_origin, format_csv, write_result
from secateur.paper.table1_jobs import Job

__all__ = [
    "QUICK_EPOCHS",
    "Table1Row",
    "make_jobs",
    "make_rows",
    "reproduce_table1",
    "to_csv",
    "to_latex",
    "to_markdown",
]

QUICK_EPOCHS = 40

# Marks of the paper's numbers that are not free energies, so that ours cannot be compared.
TWO_OUTPUTS, RECURRENT = "*", "†"
REASONS = {
    TWO_OUTPUTS: "with two outputs the authors' code counts the normalising terms of the "
    "likelihood (ln 2π and E[ln γ]) twice",
    RECURRENT: "in recurrent networks the authors' local reparametrisation scales its noise by "
    "variances instead of deviations and leaves out the reset gate, and their variance "
    "backpropagation confuses the variances of the gates",
}
# Rough costs, to run the longest first.
_COST = {"sine": 9, "naval": 2, "powerplant": 2, "kin8nm": 2, "concrete": 1}
_SLOWER = {"moments": 4, "local": 2, "global": 1}


@dataclass(frozen=True)
class Table1Row:
    """One row of the table: medians over seeds, and the spread of the last column.

    Attributes:
        dataset: Name of the data set.
        inference: Algorithm.
        start: Free energy of the full network, in nats.
        one: Free energy after one cut, without training.
        one_pruned: Percentage of the weights removed by this cut.
        iterative: Free energy after iterative pruning.
        lowest: Lowest free energy of all seeds.
        highest: Highest free energy of all seeds.
        pruned: Percentage of the weights that are removed in the end.
        seeds: Number of seeds.
        paper: The paper's row.
        recipe: Name of the best seed's recipe.
    """

    dataset: str
    inference: str
    start: float
    one: float
    one_pruned: float
    iterative: float
    lowest: float
    highest: float
    pruned: float
    seeds: int
    paper: PaperResult
    recipe: str


def make_jobs(
    sets: Iterable[str], algorithms: Iterable[str], kind: str, seeds: int, epochs: int = 0
) -> list[Job]:
    """Return the jobs of a table, the longest first.

    All seeds of a data set share a program. The signals share one as well, with a single seed: more
    recurrent networks side by side do not fit into a core's cache, and are not faster.
    """
    names = list(sets)
    signals = tuple(name for name in names if name in SIGNALS)
    groups: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
        ((name,), tuple(range(seeds))) for name in names if name not in SIGNALS
    ]
    if signals:
        groups += [(signals, (seed,)) for seed in range(seeds)]
    jobs = [
        Job(group, inference, kind, group_seeds, epochs)
        for group, group_seeds in groups
        for inference in algorithms
    ]
    return sorted(jobs, key=lambda job: -_COST.get(job.sets[0], 0.5) * _SLOWER[job.inference])


def make_rows(records: Iterable[dict[str, Any]]) -> list[Table1Row]:
    """Return the rows of the table in the paper's order, from the records of its jobs."""
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        for name, seed_results in record["outcomes"].items():
            results.setdefault((name, record["job"]["inference"]), []).extend(seed_results)
    order = ((name, inference) for name in PAPER_SETTINGS for inference in ALGORITHMS)
    return [_make_row(*row, results[row]) for row in order if row in results]


def _make_row(name: str, inference: str, seed_results: Sequence[dict[str, Any]]) -> Table1Row:
    column = {key: np.array([result[key] for result in seed_results]) for key in seed_results[0]}
    ends = column["iterative"]
    return Table1Row(
        name,
        inference,
        float(np.median(column["start"])),
        float(np.median(column["one"])),
        100 * float(np.median(column["one_pruned"])),
        float(np.median(ends)),
        float(ends.min()),
        float(ends.max()),
        100 * float(np.median(column["pruned"])),
        len(seed_results),
        PAPER_RESULTS[name, inference],
        str(column["recipe"][ends.argmin()]),
    )


_HEADINGS = ("data", "inference", "start", "one cut", "%", "end", "lowest–highest", "%",
          "paper: start", "one cut", "%", "end", "%")  # fmt: skip


def _mark(r: Table1Row) -> str:
    """Return the footnote mark of the paper's numbers in a row, one of REASONS, or ""."""
    if r.dataset in ("energy", "naval"):
        return TWO_OUTPUTS
    return RECURRENT if r.dataset in SIGNALS and r.inference != "global" else ""


def _format_cells(r: Table1Row) -> list[str]:
    mark, p = _mark(r), r.paper
    ours = (f"{r.start:.0f}", f"{r.one:.0f}", f"{r.one_pruned:.0f}", f"{r.iterative:.0f}",
            f"{r.lowest:.0f} … {r.highest:.0f}", f"{r.pruned:.0f}")  # fmt: skip
    theirs = (p.start, p.one, p.one_pruned, p.iterative, p.iterative_pruned)
    return [r.dataset, r.inference, *ours, *(f"{v:.0f}{mark}" for v in theirs)]


def to_markdown(rows: Sequence[Table1Row], note: str) -> str:
    """Return the table in Markdown, with notes on how to read it."""
    table = ["| " + " | ".join(_HEADINGS) + " |", "|---|---|" + "---:|" * (len(_HEADINGS) - 2)]
    table += ["| " + " | ".join(_format_cells(r)) + " |" for r in rows]
    seeds = max(r.seeds for r in rows)
    notes = [
        note,
        "",
        f"Free energies in nats on the whole data set, lower is better; medians of {seeds} seed"
        f"{'s' if seeds > 1 else ''}; % is the percentage of the weights removed. 'One cut' is "
        "before any training.",
    ]
    for mark, reason in REASONS.items():
        if any(_mark(r) == mark for r in rows):
            shown = mark.replace("*", r"\*")
            notes += ["", f"{shown} Not comparable: {reason}. These are not free energies."]
    if any(r.dataset in SIGNALS and r.inference == "moments" for r in rows):
        notes += ["", 'For the signals, "moments" treats the steps of the GRU as independent.']
    return "\n".join([*table, "", *notes, ""])


_TO_LATEX = str.maketrans(
    {"%": r"\%", "–": "--", "…": r"\dots", TWO_OUTPUTS: r"$^\ast$", RECURRENT: r"$^\dagger$"}
)


def to_latex(rows: Sequence[Table1Row], note: str) -> str:
    """Return the table in LaTeX (booktabs)."""
    rules = {0: r"\toprule", 1: r"\midrule"}
    body = [_HEADINGS, *map(_format_cells, rows)]
    text = [f"% {note}", r"\begin{tabular}{ll" + "r" * (len(_HEADINGS) - 2) + "}"]
    for number, cells in enumerate(body):
        text += [rules[number]] if number in rules else []
        text.append(" & ".join(cells).translate(_TO_LATEX) + r" \\")
    return "\n".join([*text, r"\bottomrule", r"\end{tabular}", ""])


def to_csv(rows: Sequence[Table1Row], note: str) -> str:
    """Return the table as comma-separated values, with full precision."""
    theirs = ("start", "one", "one_pruned", "iterative", "iterative_pruned")
    ours = ("dataset", "inference", "start", "one", "one_pruned", "iterative", "lowest",
            "highest", "pruned", "seeds", "recipe")  # fmt: skip
    header = (*ours, *(f"paper_{name}" for name in theirs))
    values = [
        (*map(r.__getattribute__, ours), *map(r.paper.__getattribute__, theirs)) for r in rows
    ]
    return format_csv(note, header, values)


def reproduce_table1(
    out: Path,
    *,
    kind: str = "paper",
    sets: Sequence[str] = tuple(PAPER_SETTINGS),
    algorithms: Sequence[str] = ALGORITHMS,
    seeds: int = 1,
    epochs: int = 0,
    data_dir: str | None = None,
    workers: int | None = None,
    command: str = "table1",
    progress: bool = True,
) -> list[Table1Row]:
    """Run the missing parts of the table and write it as CSV, Markdown and LaTeX.

    Args:
        out: Folder of the results. Existing results are not computed again.
        kind: Kind of recipe, "paper" or "default".
        sets: Names of data sets.
        algorithms: Inference algorithms.
        seeds: Number of initialisations, all in one program.
        epochs: Maximum number of epochs of each training, for a quick test; 0 is the recipe's.
        data_dir: Folder with the data; see `secateur.datasets.load`.
        workers: Number of processes at a time. Defaults to the number of cores.
        command: Command as typed after "secateur reproduce", for the results.
        progress: Whether to show the progress of the processes.
    """
    records = run_jobs(
        make_jobs(sets, algorithms, kind, seeds, epochs),
        out / "table1",
        data_dir=data_dir,
        workers=workers or os.cpu_count() or 1,
        progress=progress,
    )
    rows, note = make_rows(records), describe_origin(command)
    for ending, text in {
        "csv": to_csv(rows, note),
        "md": to_markdown(rows, note),
        "tex": to_latex(rows, note),
    }.items():
        write_result(out / f"table1-{kind}.{ending}", text)
    return rows
