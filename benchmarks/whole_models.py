"""Whole models of the test zoo under "moments": agreement with Monte Carlo, gradients, training,
units, compaction, and what it takes to compile.

    python benchmarks/whole_models.py [--only NAME] [--out FILE.csv] [--skip-structure]

For each model of tests/whole_models.py, in float64 with standard deviations of 0.1 of the weights:

- `mean`: RMS error of the mean against Monte Carlo, in standard deviations of the output;
- `ratio`: median over outputs of the standard deviation over that of Monte Carlo;
- `gradient`: whether the gradient of the free energy is finite;
- `before`, `after`: the free energy before and after 20 steps of Adam;
- `units`: number of units found; `largest`: the largest change of an output when a fifth of the
  units is cut and compacted away;
- `plain`, `moments`: seconds of the processor to trace and compile the function, and its moments;
  `times`: their quotient.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import jax

jax.config.update("jax_enable_x64", True)

from whole_model_checks import (  # noqa: E402
    agreement,
    check_removal,
    compile_seconds,
    count_units,
    train_a_little,
)
from whole_models import WHOLE  # noqa: E402

COLUMNS = ("model", "mean", "ratio", "gradient", "before", "after", "units", "largest", "plain",
           "moments", "times", "seconds")  # fmt: skip


def measure(name: str, *, structure: bool) -> dict[str, object]:
    """Return one row of the table."""
    f, params, x = WHOLE[name]()
    start = time.perf_counter()
    row: dict[str, object] = {"model": name}
    row["mean"], row["ratio"] = agreement(f, params, x)
    row["gradient"], row["before"], row["after"] = train_a_little(f, params, x)
    if structure:
        row["units"] = count_units(f, params, x)
        row["largest"] = check_removal(f, params, x)
    row["plain"], row["moments"] = compile_seconds(f, params, x)
    row["times"] = row["moments"] / row["plain"]
    row["seconds"] = time.perf_counter() - start
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", help="part of a model's name")
    parser.add_argument("--out", help="a CSV file to write")
    parser.add_argument("--skip-structure", action="store_true", help="no units and compaction")
    options = parser.parse_args()
    names = [n for n in WHOLE if not options.only or any(o in n for o in options.only)]
    rows = []
    for name in names:
        try:
            row = measure(name, structure=not options.skip_structure)
        except Exception as error:
            row = {"model": name, "mean": f"{type(error).__name__}: {error}"[:300]}
        rows.append(row)
        cells = [
            f"{row[c]:.4g}" if isinstance(row.get(c), float) else str(row.get(c, ""))
            for c in COLUMNS
        ]
        print(f"{cells[0]:46s}", *(f"{c:>10s}" for c in cells[1:]), flush=True)
    if options.out:
        with open(options.out, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
