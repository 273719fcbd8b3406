"""`secateur data` as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from secateur import cli
from secateur.datasets.downloads import Downloader


@pytest.fixture
def run(offline, monkeypatch, capsys):
    """Run the command line; returns exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["secateur", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return run


def test_list_says_where_the_data_are(run, tmp_path):
    folder = tmp_path / "mine"
    (folder / "uci").mkdir(parents=True)
    (folder / "uci/yacht.csv").write_text("not read by list")
    code, out, _ = run("data", "list", "--data-dir", str(folder))
    lines = {line.split()[0]: re.split(r"\s{2,}", line.strip()) for line in out.splitlines()}
    assert code == 0
    assert lines["yacht"] == ["yacht", "308", "6", "1", "data folder", "CC BY 4.0"]
    assert lines["naval"] == ["naval", "11934", "16", "2", "not here", "CC BY 4.0"]
    assert lines["square"][-2] == "made here"
    assert {"mnist", "fashion_mnist", "spoken_digits"} < set(lines)


def test_fetch_reports_each_and_ends_with_what_failed(run, tmp_path, monkeypatch):
    content = np.random.default_rng(0).bytes(9)
    monkeypatch.setattr(Downloader, "download", lambda self, url, name: content)
    code, out, err = run("data", "fetch", "sine", "naval", "kin8nm")
    assert code == 2
    assert out == "sine: generated when loaded, nothing to download\n"
    assert err.startswith("secateur: naval was not found and cannot be downloaded. Tried:")
    assert "kin8nm was not found" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "fetch", "boston", "wein"], "secateur: no data set 'wein'; there are boston,"),
        (["data", "fetch", "naval"], "archive.ics.uci.edu is not reachable: no network in tests"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert message in err


def test_help_says_where_data_come_from(run):
    code, out, _ = run("data", "fetch", "--help")
    assert code == 0
    assert "package index" in re.sub(r"\s+", " ", out)
    assert "--data-dir" in out


def test_neither_the_commands_nor_the_data_sets_import_jax():
    imports = "import sys, secateur.cli.application, secateur.datasets"
    check = f"{imports}; print({{'jax', 'pandas'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_package_is_the_command():
    command = [sys.executable, "-m", "secateur", "data", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "fetch" in done.stdout
