"""The examples of README and docs run as they stand, in a user's own settings."""

import re
from pathlib import Path

import pytest

from compiling import as_users_compile
from processes import output, start

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+")


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


def run(program, folder):
    return output(start(program, folder=folder, XLA_FLAGS=as_users_compile()))


@pytest.mark.slow
def test_the_readmes_example_prints_what_the_readme_says(tmp_path):
    """Oracle: the README's text; numbers of a trained network differ a little between machines."""
    (program,), (text,) = blocks(ROOT / "README.md", "python"), blocks(ROOT / "README.md", "text")
    printed = run(program, tmp_path)
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", text)
    actual, said = ([int(n) for n in NUMBER.findall(t)] for t in (printed, text))
    full, epochs, pruned, live, *rest = actual
    assert abs(full - said[0]) <= 8
    assert 100 < epochs < 12_000
    assert abs(pruned - said[2]) <= 8
    assert abs(live - said[3]) <= 5
    assert rest == said[4:]


@pytest.mark.slow
def test_the_examples_of_the_fitting_guide_run(tmp_path):
    printed = run("\n".join(blocks(ROOT / "docs" / "fitting.md", "python")), tmp_path)
    assert "free energy" in printed
    assert "Normal(mean" in printed
    assert (tmp_path / "run.safetensors").exists()


@pytest.mark.slow
def test_the_examples_of_the_pruning_guide_run(tmp_path):
    printed = run("\n".join(blocks(ROOT / "docs" / "pruning.md", "python")), tmp_path)
    assert "divergence" in printed
    assert "20 hidden" in printed
    assert "6 input" in printed


COMMANDS = """
import shlex, sys
from secateur.cli import main
for line in {!r}.splitlines():
    sys.argv = shlex.split(line)
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""


@pytest.mark.slow
def test_the_commands_of_the_command_lines_guide_run(tmp_path):
    page = ROOT / "docs" / "command-line.md"
    commands = "".join(blocks(page, "sh"))
    printed = run("\n".join(blocks(page, "python")) + COMMANDS.format(commands), tmp_path)
    assert "Report: pumps/report.html" in printed
    assert "Columns that were cut altogether:" in printed
    header, *rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert header == "power_mean,power_sd,power_low,power_high"
    assert len(rows) == 5
    told = re.findall(r"^\| `([\w.]+)` \|", page.read_text(), re.M)
    assert sorted(told) == sorted(p.name for p in (tmp_path / "pumps").iterdir())


@pytest.mark.slow
def test_the_examples_of_the_scikit_learn_guide_run(tmp_path):
    printed = run("\n".join(blocks(ROOT / "docs" / "sklearn.md", "python")), tmp_path)
    assert "inputs in use:" in printed
    assert "['high' 'low' 'middle']" in printed
    assert "best prior variance:" in printed


@pytest.mark.slow
def test_the_examples_of_the_saving_guide_run(tmp_path):
    printed = run("\n".join(blocks(ROOT / "docs" / "saving.md", "python")), tmp_path)
    assert "['width', 'height', 'depth']" in printed
    assert "line.safetensors: the model is the function 'line'" in printed
    assert {p.name for p in tmp_path.iterdir()} == {"model.safetensors", "line.safetensors"}
