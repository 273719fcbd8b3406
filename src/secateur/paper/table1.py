"""Table 1: free energies before and after pruning, ours beside the paper's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secateur.paper.experiment import Job
from secateur.paper.jobs import run_all
from secateur.paper.setup import ALGORITHMS, PAPER, SETS, SIGNALS, Row
from secateur.paper.writing import as_csv, made_by, write_atomically

__all__ = ["Line", "csv", "jobs_for", "latex", "lines", "markdown", "table1"]

# Numbers of the paper that are no free energies, so that ours cannot be compared with them.
TWO_OUTPUTS, RECURRENT = "*", "†"
REASONS = {
    TWO_OUTPUTS: "with two outputs the authors' code counts the normalising terms of the "
    "likelihood (ln 2π and E[ln γ]) twice",
    RECURRENT: "in recurrent networks the authors' local reparametrisation scales its noise by "
    "variances instead of deviations and leaves out the reset gate, and their variance "
    "backpropagation mixes up the gates' variances",
}
# Rough costs, for putting the longest first.
_COST = {"sine": 9, "naval": 2, "powerplant": 2, "kin8nm": 2, "concrete": 1}
_SLOWER = {"moments": 4, "local": 2, "global": 1}


@dataclass(frozen=True)
class Line:
    """One row of the table: medians over seeds, and the spread of the last column.

    Attributes:
        dataset: its name.
        inference: algorithm.
        start: free energy of the full network, nats.
        one: after one cut, without training.
        one_pruned: percent of the weights that it took.
        iterative: after pruning to the end.
        lowest: the least of all seeds.
        highest: the most.
        pruned: percent of the weights gone at the end.
        seeds: how many.
        paper: the paper's row.
        recipe: which recipe the best seed had.
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
    paper: Row
    recipe: str


def jobs_for(
    sets: Iterable[str], algorithms: Iterable[str], kind: str, seeds: int, epochs: int = 0
) -> list[Job]:
    """Return the jobs of a table, the longest first.

    All seeds of a data set share a program. So do the signals, but with one seed: more recurrent
    networks side by side do not fit into a core's cache, and gain nothing.
    """
    wanted = list(sets)
    signals = tuple(name for name in wanted if name in SIGNALS)
    groups: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
        ((name,), tuple(range(seeds))) for name in wanted if name not in SIGNALS
    ]
    if signals:
        groups += [(signals, (seed,)) for seed in range(seeds)]
    jobs = [Job(names, how, kind, own, epochs) for names, own in groups for how in algorithms]
    return sorted(jobs, key=lambda job: -_COST.get(job.sets[0], 0.5) * _SLOWER[job.inference])


def lines(records: Iterable[dict[str, Any]]) -> list[Line]:
    """Return the rows of the table, in the paper's order."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        for name, outcomes in record["outcomes"].items():
            found.setdefault((name, record["job"]["inference"]), []).extend(outcomes)
    order = ((name, how) for name in SETS for how in ALGORITHMS)
    return [_line(*row, found[row]) for row in order if row in found]


def _line(name: str, how: str, outcomes: Sequence[dict[str, Any]]) -> Line:
    column = {key: np.array([o[key] for o in outcomes]) for key in outcomes[0]}
    ends = column["iterative"]
    return Line(
        name,
        how,
        float(np.median(column["start"])),
        float(np.median(column["one"])),
        100 * float(np.median(column["one_pruned"])),
        float(np.median(ends)),
        float(ends.min()),
        float(ends.max()),
        100 * float(np.median(column["pruned"])),
        len(outcomes),
        PAPER[name, how],
        str(column["recipe"][ends.argmin()]),
    )


_HEADS = ("data", "inference", "start", "one cut", "%", "end", "lowest–highest", "%",
          "paper: start", "one cut", "%", "end", "%")  # fmt: skip


def _mark(r: Line) -> str:
    """The mark of the paper's numbers in a row, one of REASONS, or nothing."""
    if r.dataset in ("energy", "naval"):
        return TWO_OUTPUTS
    return RECURRENT if r.dataset in SIGNALS and r.inference != "global" else ""


def _cells(r: Line) -> list[str]:
    mark, p = _mark(r), r.paper
    ours = (f"{r.start:.0f}", f"{r.one:.0f}", f"{r.one_pruned:.0f}", f"{r.iterative:.0f}",
            f"{r.lowest:.0f} … {r.highest:.0f}", f"{r.pruned:.0f}")  # fmt: skip
    theirs = (p.start, p.one, p.one_pruned, p.iterative, p.iterative_pruned)
    return [r.dataset, r.inference, *ours, *(f"{v:.0f}{mark}" for v in theirs)]


def markdown(rows: Sequence[Line], about: str) -> str:
    """Return the table in Markdown, with what has to be said of it."""
    table = ["| " + " | ".join(_HEADS) + " |", "|---|---|" + "---:|" * (len(_HEADS) - 2)]
    table += ["| " + " | ".join(_cells(r)) + " |" for r in rows]
    seeds = max(r.seeds for r in rows)
    notes = [
        about,
        "",
        f"Free energies in nats on the whole data set, lower is better; medians of {seeds} seed"
        f"{'s' if seeds > 1 else ''}; % is the share of the weights removed. 'One cut' is "
        "before any training.",
    ]
    for mark, reason in REASONS.items():
        if any(_mark(r) == mark for r in rows):
            shown = mark.replace("*", r"\*")
            notes += ["", f"{shown} Not comparable: {reason}. These are no free energies."]
    if any(r.dataset in SIGNALS and r.inference == "moments" for r in rows):
        notes += ["", 'For the signals, "moments" counts the steps of the GRU as independent.']
    return "\n".join([*table, "", *notes, ""])


_TO_LATEX = str.maketrans(
    {"%": r"\%", "–": "--", "…": r"\dots", TWO_OUTPUTS: r"$^\ast$", RECURRENT: r"$^\dagger$"}
)


def latex(rows: Sequence[Line], about: str) -> str:
    """Return the table in LaTeX (booktabs)."""
    rules = {0: r"\toprule", 1: r"\midrule"}
    body = [_HEADS, *map(_cells, rows)]
    text = [f"% {about}", r"\begin{tabular}{ll" + "r" * (len(_HEADS) - 2) + "}"]
    for number, cells in enumerate(body):
        text += [rules[number]] if number in rules else []
        text.append(" & ".join(cells).translate(_TO_LATEX) + r" \\")
    return "\n".join([*text, r"\bottomrule", r"\end{tabular}", ""])


def csv(rows: Sequence[Line], about: str) -> str:
    """Return the table as comma-separated values, with full precision."""
    theirs = ("start", "one", "one_pruned", "iterative", "iterative_pruned")
    ours = ("dataset", "inference", "start", "one", "one_pruned", "iterative", "lowest",
            "highest", "pruned", "seeds", "recipe")  # fmt: skip
    header = (*ours, *(f"paper_{name}" for name in theirs))
    values = [
        (*map(r.__getattribute__, ours), *map(r.paper.__getattribute__, theirs)) for r in rows
    ]
    return as_csv(about, header, values)


def table1(
    out: Path,
    *,
    kind: str = "paper",
    sets: Sequence[str] = tuple(SETS),
    algorithms: Sequence[str] = ALGORITHMS,
    seeds: int = 1,
    epochs: int = 0,
    data_dir: str | None = None,
    workers: int | None = None,
    command: str = "table1",
    progress: bool = True,
) -> list[Line]:
    """Run what is missing of the table and write it as CSV, Markdown and LaTeX.

    Args:
        out: folder of the results; what it holds already is not run again.
        kind: of recipe, "paper" or "default".
        sets: names of data sets.
        algorithms: inference algorithms.
        seeds: how many initialisations, all in one program.
        epochs: instead of the recipe's, for a quick look.
        data_dir: where the data are.
        workers: processes at a time; by default as many as there are cores.
        command: as typed after "secateur reproduce", to be named in the results.
        progress: whether to show what is going on.
    """
    jobs = jobs_for(sets, algorithms, kind, seeds, epochs)
    records = run_all(
        jobs,
        out / "table1",
        data_dir=data_dir,
        workers=workers or os.cpu_count() or 1,
        progress=progress,
    )
    rows, about = lines(records), made_by(command)
    name = f"table1-{kind}"
    write_atomically(out / f"{name}.csv", csv(rows, about))
    write_atomically(out / f"{name}.md", markdown(rows, about))
    write_atomically(out / f"{name}.tex", latex(rows, about))
    return rows
