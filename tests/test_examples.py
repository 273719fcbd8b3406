"""The examples run, at small size (`make demo` has its test in test_runs.py)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LAST_LINE = {
    "classify_digits.py": r"after pruning: \d+\.\d % of the test images right",
    "to_c.py": r"int8 +\d+ multiply-adds, +\d+ bytes of source, [2-8](, [2-8])* bits per weight",
    "own_flax_model.py": r"inputs in use: \[.*\]",
    "streaming_update.py": r"batch 2: surprise +-?\d+\.\d+ nats per row, +\d+ weights, .*\]",
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*LAST_LINE, "demo.py"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST_LINE)
def test_an_example_runs_to_its_end(name, tmp_path):
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    assert re.fullmatch(LAST_LINE[name], done.stdout.splitlines()[-1])
    assert not list(tmp_path.iterdir())
