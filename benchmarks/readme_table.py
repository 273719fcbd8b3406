"""The table of results in README.md and on the home page, made from the pages under docs/results.

    python benchmarks/readme_table.py            write the table into both pages
    python benchmarks/readme_table.py --check    exit with 1 if one of them has another table

Nothing is measured here. Every number is read from a table of `docs/results/*.md` or from a file in
CSV or JSON there; run this after they change. Data sets that have not been measured are left
out.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
# Pages, and what links to the documentation begin with there.
PAGES = {ROOT / "README.md": "docs/", ROOT / "docs" / "index.md": ""}
BEGIN, END = "<!-- from benchmarks/readme_table.py -->\n", "\n<!-- until here -->"

TABLES = {"tecator": "ridge", "diabetes": "ridge", "concrete": "ridge", "breast_cancer": "logistic"}
NETWORKS = {"boston": "13-50-1 network", "GRU": "GRU of 16 units"}
PAPER = ("boston", "concrete")

Row = dict[str, str]
Line = tuple[str, str, str]


def read_tables(name: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield the tables of a page of results: the heading above, and rows by column."""
    heading, lines = "", []
    for line in [*(RESULTS / name).read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if lines:
            columns, _, *rows = lines
            yield heading, [dict(zip(columns, row, strict=True)) for row in rows]
            lines = []
        if line.startswith("#"):
            heading = line.strip("# ")


def find_row(name: str, heading: str, **cells: str) -> Row | None:
    """Return the first row with these cells, of the tables whose heading begins like this."""
    for title, rows in read_tables(name):
        for row in rows:
            if title.startswith(heading) and cells.items() <= row.items():
                return row
    return None


def describe_tables(docs: str) -> Iterator[Line]:
    """Yield test error or accuracy and number of weights, beside three of scikit-learn's models."""
    for name, linear in TABLES.items():
        is_classes = linear == "logistic"
        score = find_row("tables.md", "Accuracy" if is_classes else "RMSE", table=name)
        weights = find_row("tables.md", "Number of weights", table=name)
        if score is None or weights is None or score["secateur, pruned"] == "–":
            continue
        peers = {linear: "linear", "MLP": "MLP", "boosting": "boosting"}
        others = [f"{peer} {score[key]} ({weights[key]})" for peer, key in peers.items()]
        measure = "accuracy" if is_classes else "RMSE"
        yield (
            f"[{name.replace('_', ' ')}]({docs}results/tables.md), {measure}",
            f"**{score['secateur, pruned']}** ({weights['secateur, pruned']})",
            ", ".join(others),
        )


def describe_device(docs: str) -> Iterator[Line]:
    """Yield bytes of flash and instructions, beside code for the network before pruning."""
    for name, shown in NETWORKS.items():
        costs = {}
        for code in ("ours, size", "dense float loop", "emlearn"):
            if row := find_row("device.md", "", network=name, code=code):
                costs[code] = f"{row['flash, B']} B", f"({row['instructions']})"
        flash, instructions = costs.pop("ours, size")
        yield (
            f"[{shown}]({docs}results/device.md), flash",
            f"**{flash}** {instructions}",
            ", ".join(
                f"{code.removeprefix('dense ')} {' '.join(cost)}" for code, cost in costs.items()
            ),
        )


def describe_speech(docs: str) -> Iterator[Line]:
    """Yield the accuracy of a GRU before and after pruning."""
    found = json.loads((RESULTS / "vowels.json").read_text(encoding="utf-8"))
    before, after = (f"{100 * found[key]:.1f} %" for key in ("accuracy_before", "accuracy"))
    yield (
        f"[speech GRU]({docs}how-to/sequences.md#a-real-example), accuracy",
        f"**{after}** ({found['after']})",
        f"before pruning {before} ({found['before']:,})",
    )


def describe_paper(docs: str) -> Iterator[Line]:
    """Yield free energies after pruning beside the lowest of the paper's three algorithms."""
    ours, paper = (read_csv(f"table1-{recipe}.csv") for recipe in ("default", "paper"))
    for name in PAPER:
        own = next(row for row in ours if row["dataset"] == name)
        theirs = [row for row in paper if row["dataset"] == name]
        best = min(theirs, key=lambda row: float(row["paper_iterative"]))
        yield (
            f"[{name}]({docs}results/table1.md), free energy",
            f"**{float(own['iterative']):.0f}** ({float(own['pruned']):.0f} %)",
            f"the paper's Table 1: {best['paper_iterative']} ({best['paper_iterative_pruned']} %)",
        )


def read_csv(name: str) -> list[Row]:
    text = (RESULTS / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def make_table(docs: str) -> str:
    """Return the table, with links to the documentation."""
    parts = (describe_tables, describe_device, describe_speech, describe_paper)
    lines = [line for part in parts for line in part(docs)]
    head = [("measured", "secateur", "compared with"), ("---",) * 3]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [*head, *lines])
    # Lines break between models only.
    before_unit, before_brackets = r"(?<=\d) (?=%|B\b)", r" (?=\([\d,. ]+%?\))"
    after_name = r"(?<=[a-zA-Z]) (?=\d[\d,.]* )"
    fixed = "|".join((before_unit, before_brackets, after_name))
    return re.sub(fixed, "\N{NO-BREAK SPACE}", table)


def with_table(page: str, docs: str) -> str:
    """Return a page with the table between its two marks."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.S)
    assert pattern.search(page), f"{BEGIN.strip()} and {END.strip()} are missing"
    return pattern.sub(lambda _: "\n" + make_table(docs) + "\n", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for path, docs in PAGES.items():
        page = path.read_text(encoding="utf-8")
        new = with_table(page, docs)
        if new != page and options.check:
            sys.exit(f"{path.name} is not up to date: run python benchmarks/readme_table.py")
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
