"""Data sets by their names."""

from __future__ import annotations

from secateur.datasets.catalogue import UCI
from secateur.datasets.dataset import Dataset, DatasetError
from secateur.datasets.downloading import Downloader
from secateur.datasets.resources import DataDir, obtain
from secateur.datasets.signals import SIGNALS, make_signal

__all__ = ["load"]


def load(name: str, data_dir: DataDir = None) -> Dataset:
    """Load one of the paper's data sets, its values and the order of its rows as in the paper.

    It is looked for in `data_dir`, in the folder that the environment variable SECATEUR_DATA
    names, and in the user's cache; and else downloaded into that cache. Wherever it comes from,
    its values are checked.

    Args:
        name: "boston", "concrete", "energy", "kin8nm", "naval", "powerplant", "wine" or "yacht",
            or a signal: "sine", "sawtooth" or "square".
        data_dir: a folder to look into first.

    Returns:
        Inputs and targets, with the names of their columns.

    Raises:
        DatasetError: the data are not to be had, or are not what they should be.

    Example:
        >>> square = load("square")
        >>> square.x.shape, square.y.shape
        ((792, 8, 1), (792, 1))
    """
    if name in SIGNALS:
        return make_signal(name)
    if name not in UCI:
        raise DatasetError(f"no data set {name!r}; there are {', '.join((*UCI, *SIGNALS))}")
    values, _ = obtain(UCI[name].resource(), data_dir, Downloader())
    return UCI[name].dataset(values)
