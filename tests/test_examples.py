"""The examples run, at small size (`make demo` has its test in test_runs.py)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LAST_LINE = {
    "classify_digits.py": r"after pruning: test accuracy \d+\.\d %",
    "to_c.py": r"int8 +\d+ multiply-adds, +\d+ bytes of source, [2-8](, [2-8])* bits per weight",
    "own_flax_model.py": r"inputs in use: \[.*\]",
    "streaming_update.py": r"batch 2: surprise +-?\d+\.\d+ nats per row, +\d+ weights, .*\]",
}
# All in one process, which imports JAX once. It says the last line of each, or how it failed.
RUN_ALL = """
import contextlib, io, json, runpy, sys, traceback
last_lines = {}
for path in sys.argv[1:]:
    sys.argv = [path, "--quick"]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(path, run_name="__main__")
        last_lines[path] = output.getvalue().splitlines()[-1]
    except BaseException:
        last_lines[path] = traceback.format_exc()
print(json.dumps(last_lines))
"""


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*LAST_LINE, "demo.py"}


@pytest.mark.slow
def test_the_examples_run_to_their_end(tmp_path):
    paths = {name: str(EXAMPLES / name) for name in LAST_LINE}
    command = [sys.executable, "-W", "error", "-c", RUN_ALL, *paths.values()]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not process.returncode, process.stderr[-3000:]
    last_lines = json.loads(process.stdout.splitlines()[-1])
    failures = {
        name: last_lines[path]
        for name, path in paths.items()
        if not re.fullmatch(LAST_LINE[name], last_lines[path])
    }
    assert not failures, "\n\n".join(f"{name}: {line}" for name, line in failures.items())
    assert not list(tmp_path.iterdir())
