"""Data sets: splits, signals, images, speech. Nothing here uses the network."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from dataset_files import idx, online, wav, zipped
from secateur import datasets
from secateur.datasets import DatasetError, images, speech
from secateur.datasets.table_formats import hash_values
from uci import FOLDER

DATA = FOLDER.parent
needs_data = pytest.mark.skipif(not FOLDER.is_dir(), reason="the data are not here")
pytestmark = pytest.mark.usefixtures("offline")


# --- splits and signals


def test_the_splits_are_drawn_from_one_generator():
    rs = np.random.RandomState(1)
    for train, test in datasets.standard_splits(308):
        permutation = rs.choice(range(308), 308, replace=False)
        np.testing.assert_array_equal(train, permutation[: round(0.9 * 308)])
        np.testing.assert_array_equal(test, permutation[round(0.9 * 308) :])
    assert len(datasets.standard_splits(308)) == 20
    assert len(datasets.load("sine").splits()[19][1]) == 79


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("sine", np.sin),
        (
            "sawtooth",
            lambda x: np.sin(x) - np.sin(2 * x) / 2 + np.sin(3 * x) / 3 - np.sin(4 * x) / 4,
        ),
        (
            "square",
            lambda x: np.sin(x) + np.sin(3 * x) / 3 + np.sin(5 * x) / 5 + np.sin(7 * x) / 7,
        ),
    ],
)
def test_signals_follow_their_formulae(name, formula):
    data = datasets.load(name)
    assert data.x.shape == (792, 8, 1)
    assert data.y.shape == (792, 1)
    for row in (0, 1, 400, 791):
        times = np.pi * 0.01 * (row + np.arange(9))
        window = np.append(data.x[row, :, 0], data.y[row])
        np.testing.assert_allclose(window, formula(times), rtol=0, atol=1e-12)


# --- images and speech


def test_idx_files_are_read():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(images.read_idx(idx(array)), array)
    wide = np.array([[-2, 70000]], dtype=">i4")
    np.testing.assert_array_equal(images.read_idx(idx(wide, 0x0C)), [[-2, 70000]])
    assert images.read_idx(idx(wide, 0x0C)).dtype == np.int32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"<html>", "not an idx file"),
        (b"\0\0\x08\x03\0\0", "header of this idx file is cut off"),
        (b"\0\0\x08\x01\0\0\0\x05abcd", "4 bytes of values, not 5"),
        (idx(np.zeros((30, 30), np.uint8))[:-9], "gzip file that is damaged or cut off"),
    ],
    ids=["nothing", "a page", "half a header", "too few values", "half a gzip file"],
)
def test_damaged_idx_files_are_refused(content, message):
    with pytest.raises(DatasetError, match=message):
        images.read_idx(content)


def test_images_are_downloaded_from_the_second_address_where_the_first_fails(monkeypatch, offline):
    arrays = [np.full((3, 2, 2), 7), np.arange(3), np.full((2, 2, 2), 9), np.arange(2)]
    arrays = [array.astype(np.uint8) for array in arrays]
    files = dataclasses.replace(
        images.IMAGE_SETS["mnist"], sha256=tuple(hash_values(array) for array in arrays)
    )
    monkeypatch.setitem(images.IMAGE_SETS, "mnist", files)
    second = files.bases[1]
    served = {
        f"{second}{name}.gz": idx(array) for name, array in zip(images.FILES, arrays, strict=True)
    }
    asked = online(monkeypatch, served)
    for _ in range(2):
        data = datasets.load_images("mnist")
        loaded = [data.x_train, data.y_train, data.x_test, data.y_test]
        for got, expected in zip(loaded, arrays, strict=True):
            np.testing.assert_array_equal(got, expected)
    assert len(asked) == 1 + 4  # the silent host once
    assert datasets.status("mnist").file.path == offline / "mnist/train-images-idx3-ubyte.gz"
    (offline / "mnist/t10k-labels-idx1-ubyte.gz").unlink()
    assert datasets.status("mnist").file is None


def test_recordings_are_read_from_wav_files_and_kept_packed(monkeypatch, offline):
    rng = np.random.default_rng(0)
    labels = itertools.product((0, 7), (0, 5), (2, 10))
    takes = {(d, s, t): rng.integers(-99, 99, 5 + t) for d, s, t in labels}
    members = {
        f"fsdd-1.0.10/recordings/{d}_{speech.SPEAKERS[s]}_{t}.wav": wav(samples)
        for (d, s, t), samples in takes.items()
    }
    content = zipped({**members, "fsdd-1.0.10/README.md": b"hello"})
    with pytest.raises(DatasetError, match="other recordings \\(8 of them\\)"):
        speech.parse_fields([content])
    fields = speech.read_recordings(content)
    monkeypatch.setattr(speech, "SHA256", hash_values(*fields.values()))
    asked = online(monkeypatch, {"v1.0.10.zip": content})
    for _ in range(2):  # wav files, then our own file
        data = datasets.load_spoken_digits()
        labels = list(zip(data.digit, data.speaker, data.take, strict=True))
        # By name: "10" stands before "2".
        assert labels[:2] == [(0, 0, 10), (0, 0, 2)]
        for label, samples in zip(labels, data.audio, strict=True):
            np.testing.assert_array_equal(samples, takes[label])
        assert data.is_test.tolist() == [False, True] * 4
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"x.txt": b""}, "no wav files"),
        ({"0_nobody_1.wav": b""}, "0_nobody_1.wav is not named after a digit, a known speaker"),
        ({"0_theo_1.wav": wav(np.zeros(4))[:20]}, "0_theo_1.wav is damaged"),
        ({"0_theo_1.wav": wav(np.zeros(4), rate=16000)}, "not mono, 16 bits, 8000 Hz"),
    ],
)
def test_other_archives_than_of_recordings_are_refused(members, message):
    with pytest.raises(DatasetError, match=message):
        speech.read_recordings(zipped(members))
    with pytest.raises(DatasetError, match="not a readable archive"):
        speech.read_recordings(zipped(members)[:-9])


@needs_data
def test_images_and_recordings_are_the_published_ones():
    for name in images.IMAGE_SETS:
        data = datasets.load_images(name, DATA)
        assert data.x_train.shape == (60000, 28, 28)
        assert data.x_test.shape == (10000, 28, 28)
        assert np.bincount(data.y_test).shape == (10,)
    digits = datasets.load_spoken_digits(DATA)
    assert len(digits.audio) == 3000
    assert digits.is_test.sum() == 300
    assert np.unique(digits.digit, return_counts=True)[1].tolist() == [300] * 10
