"""All data sets by name: listing, locating and loading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secateur.datasets.dataset import Dataset, DatasetError
from secateur.datasets.downloads import Downloader
from secateur.datasets.images import IMAGE_SETS
from secateur.datasets.resources import (
    DataDir,
    DataFile,
    Resource,
    find_files,
    obtain_values,
)
from secateur.datasets.speech import DESCRIPTION, LICENCE, RECORDINGS, SPOKEN_DIGITS
from secateur.datasets.uci_sets import UCI_SETS

__all__ = ["Status", "fetch", "load", "make_signal", "names", "status"]

# The paper's three signals: frequency → amplitude of each sine; cut-off Fourier series, no noise.
SIGNALS: dict[str, dict[int, float]] = {
    "sine": {1: 1.0},
    "sawtooth": {1: 1.0, 2: -1 / 2, 3: 1 / 3, 4: -1 / 4},
    "square": {1: 1.0, 3: 1 / 3, 5: 1 / 5, 7: 1 / 7},
}
SAMPLES = 800
WINDOW = 8


@dataclass(frozen=True)
class Status:
    """Description and location of a data set.

    Attributes:
        name: Name of the data set.
        rows: Number of examples.
        inputs: Number of inputs of an example, or their shape.
        targets: Number of targets, or their kind.
        licence: Licence of the data.
        description: Description in one sentence.
        file: First file of the data set, or None if it has not been downloaded. Signals have none.
        is_generated: Whether it is generated when it is loaded, so that nothing is downloaded.
    """

    name: str
    rows: int
    inputs: str
    targets: str
    licence: str
    description: str
    file: DataFile | None
    is_generated: bool = False


def names() -> tuple[str, ...]:
    """Return all names: the eight UCI sets, the signals, the images and the spoken digits."""
    return (*UCI_SETS, *SIGNALS, *IMAGE_SETS, SPOKEN_DIGITS.name)


def status(name: str, data_dir: DataDir = None) -> Status:
    """Return a description of a data set without reading it.

    Args:
        name: Name of the data set.
        data_dir: Folder to search first.

    Raises:
        DatasetError: The data set does not exist.
    """
    if name in SIGNALS:
        signal = make_signal(name)
        rows, *shape = signal.x.shape
        inputs = "×".join(map(str, shape))
        return Status(name, rows, inputs, "1", signal.licence, signal.description, None, True)
    files = [next(find_files(resource, data_dir), None) for resource in _make_resources(name)]
    first = None if None in files else files[0]
    if name in UCI_SETS:
        uci = UCI_SETS[name]
        columns = (str(len(uci.inputs)), str(len(uci.targets)))
        return Status(name, uci.rows, *columns, uci.licence, uci.description, first)
    if name in IMAGE_SETS:
        images = IMAGE_SETS[name]
        classes = f"{len(images.class_names)} classes"
        return Status(name, 70000, "28×28", classes, images.licence, images.description, first)
    return Status(name, RECORDINGS, "audio", "10 classes", LICENCE, DESCRIPTION, first)


def fetch(
    name: str, data_dir: DataDir = None, *, downloader: Downloader | None = None
) -> Path | None:
    """Download a data set if necessary, and check it.

    Args:
        name: Name of the data set.
        data_dir: Folder in which to store it, created if necessary. Defaults to SECATEUR_DATA if
            set, else to the user's cache.
        downloader: Downloader shared by several calls, so that a host that does not respond is
            contacted once, and a file that contains several data sets is downloaded once.

    Returns:
        Its (first) file; None for a signal, which has none.

    Raises:
        DatasetError: The data cannot be obtained, or are not the expected ones.
    """
    if name in SIGNALS:
        return None
    downloader = downloader or Downloader()
    files = [
        obtain_values(resource, data_dir, downloader, keep_in=data_dir)[1]
        for resource in _make_resources(name)
    ]
    return files[0].path


def load(name: str, data_dir: DataDir = None) -> Dataset:
    """Load one of the paper's data sets, with the same values and order of rows as in the paper.

    The search order is `data_dir`, the folder named by the environment variable SECATEUR_DATA, and
    the user's cache. If the data set is in none of them, it is downloaded into the cache. Its
    values are checked in every case.

    Args:
        name: "boston", "concrete", "energy", "kin8nm", "naval", "powerplant", "wine" or "yacht",
            or a signal: "sine", "sawtooth" or "square".
        data_dir: Folder to search first.

    Returns:
        Inputs and targets, with the names of their columns.

    Raises:
        DatasetError: The data cannot be obtained, or are not the expected ones.

    Example:
        >>> square = load("square")
        >>> square.x.shape, square.y.shape
        ((792, 8, 1), (792, 1))
    """
    if name in SIGNALS:
        return make_signal(name)
    if name not in UCI_SETS:
        raise DatasetError(f"no data set {name!r}; there are {', '.join((*UCI_SETS, *SIGNALS))}")
    uci = UCI_SETS[name]
    values, _ = obtain_values(uci.make_resource(), data_dir, Downloader())
    return uci.make_dataset(values)


def make_signal(name: str) -> Dataset:
    """Return windows of one of the paper's signals, and the samples that follow them."""
    time = np.pi * np.arange(SAMPLES) / 100
    waves = [amplitude * np.sin(k * time) for k, amplitude in SIGNALS[name].items()]
    signal = np.sum(waves, axis=0)
    windows = np.lib.stride_tricks.sliding_window_view(signal, WINDOW)[: SAMPLES - WINDOW]
    return Dataset(
        name=name,
        x=windows[:, :, None].copy(),
        y=signal[WINDOW:, None].copy(),
        input_names=("signal",),
        target_names=("next sample",),
        description=f"{WINDOW} samples of a {name} wave predict the next one; no noise.",
        source="made by secateur, as in the paper",
        licence="none needed",
    )


def _make_resources(name: str) -> list[Resource]:
    if name in UCI_SETS:
        return [UCI_SETS[name].make_resource()]
    if name in IMAGE_SETS:
        return [*IMAGE_SETS[name].make_resources()]
    if name == SPOKEN_DIGITS.name:
        return [SPOKEN_DIGITS]
    raise DatasetError(f"no data set {name!r}; there are {', '.join(names())}")
