"""`secateur fit` on a large table: peak memory and time of one million rows of 20 columns.

    python benchmarks/million_rows.py [--rows 1000000] [--columns 20] [--epochs 5] [--json FILE]

The table is generated into a temporary folder: numbers, one column of booleans and one of five
categories; a few columns matter. Then the command runs in its own process, whose peak
resident memory is read from the operating system. The claim is less than 3 GB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

LIMIT_GIGABYTES = 3.0
CHUNK = 100_000


def chunk(number: int, rows: int, columns: int) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, columns - 2))
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(columns - 2)])
    frame["flag"] = rng.random(rows) < 0.5
    frame["colour"] = rng.choice(["red", "green", "blue", "black", "white"], rows)
    signal = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * frame["flag"]
    frame["y"] = signal + (frame["colour"] == "red") + 0.3 * rng.normal(size=rows)
    return frame


def write_table(path: Path, rows: int, columns: int) -> None:
    for number, start in enumerate(range(0, rows, CHUNK)):
        part = chunk(number, min(CHUNK, rows - start), columns)
        part.to_csv(path, mode="a", header=not start, index=False, float_format="%.6g")


def measure(rows: int, columns: int, epochs: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder, "table.csv"), Path(folder, "run")
        write_table(table, rows, columns)
        program = "from secateur.cli import main; main()"
        options = ["--target", "y", "--epochs", str(epochs), "--out", str(out)]
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", program, "fit", str(table), *options], check=True)
        seconds = time.monotonic() - start
        record = json.loads((out / "run.json").read_text())
        # There was only one child process, so the maximum over all children is its peak.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        return {
            "rows": rows,
            "columns": columns,
            "epochs": epochs,
            "file_megabytes": round(table.stat().st_size / 1e6, 1),
            "peak_gigabytes": round(peak, 2),
            "seconds": round(seconds, 1),
            "report_kilobytes": round((out / "report.html").stat().st_size / 1e3, 1),
            "weights": record["weights"],
            "held_out": {k: record["held_out"][k] for k in ("before", "after")},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(options.rows, options.columns, options.epochs)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if result["peak_gigabytes"] >= LIMIT_GIGABYTES:
        sys.exit(f"peak memory is {result['peak_gigabytes']} GB, not under {LIMIT_GIGABYTES:g} GB")


if __name__ == "__main__":
    main()
