"""The README's example runs as it stands, in a user's own settings, and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

NUMBER = re.compile(r"-?\d+\.\d+")
README = Path(__file__).parent.parent / "README.md"


def block(language):
    (found,) = re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    return found


def numbers(text):
    return [float(number) for number in NUMBER.findall(text)]


@pytest.mark.slow
def test_example_prints_what_the_readme_says():
    """Oracle: the README's text; for its sampled numbers, which depend on JAX's release, "moments".

    That is exact for this network, whose hidden units are independent. The tolerances are four
    standard errors, from the spread over nine keys (0.6 nats for "global", 0.07 for "local").
    """
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", block("python")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert NUMBER.sub("#", run.stdout) == NUMBER.sub("#", block("text"))
    for text in (run.stdout, block("text")):
        in_global, in_local, in_moments = numbers(text)[:3]
        assert in_global == pytest.approx(in_moments, abs=2.4)
        assert in_local == pytest.approx(in_moments, abs=0.3)
    # Printed to 0.1, so the last digit may fall either way.
    assert numbers(run.stdout)[2:] == pytest.approx(numbers(block("text"))[2:], abs=0.11)
