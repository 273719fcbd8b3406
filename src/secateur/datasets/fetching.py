"""Which data sets there are, where they are now, and getting them before they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from secateur.datasets.catalogue import UCI
from secateur.datasets.dataset import DatasetError
from secateur.datasets.downloading import Downloader
from secateur.datasets.images import IMAGES
from secateur.datasets.resources import DataDir, Found, Resource, find, obtain
from secateur.datasets.signals import SIGNALS, make_signal
from secateur.datasets.speech import DESCRIPTION, LICENCE, RECORDINGS, SPOKEN_DIGITS

__all__ = ["Status", "fetch", "names", "status"]


@dataclass(frozen=True)
class Status:
    """What a data set is, and where.

    Attributes:
        name: of the data set.
        rows: how many examples.
        inputs: of one example: how many, or their shape.
        targets: how many, or what kind.
        licence: of the data.
        description: one sentence.
        found: the first file of it, or None if it is not here; signals have none, and need none.
        is_made: whether it is made here, so that there is nothing to fetch.
    """

    name: str
    rows: int
    inputs: str
    targets: str
    licence: str
    description: str
    found: Found | None
    is_made: bool = False


def names() -> tuple[str, ...]:
    """All names: the eight UCI sets, the signals, the images and the spoken digits."""
    return (*UCI, *SIGNALS, *IMAGES, SPOKEN_DIGITS.name)


def status(name: str, data_dir: DataDir = None) -> Status:
    """What is known about a data set without reading it."""
    if name in SIGNALS:
        signal = make_signal(name)
        rows, *shape = signal.x.shape
        inputs = "×".join(map(str, shape))
        return Status(name, rows, inputs, "1", signal.licence, signal.description, None, True)
    found = [next(find(resource, data_dir), None) for resource in _resources(name)]
    where = None if None in found else found[0]
    if name in UCI:
        table = UCI[name]
        columns = (str(len(table.inputs)), str(len(table.targets)))
        return Status(name, table.rows, *columns, table.licence, table.description, where)
    if name in IMAGES:
        files = IMAGES[name]
        classes = f"{len(files.class_names)} classes"
        return Status(name, 70000, "28×28", classes, files.licence, files.description, where)
    return Status(name, RECORDINGS, "audio", "10 classes", LICENCE, DESCRIPTION, where)


def fetch(
    name: str,
    data_dir: DataDir = None,
    *,
    downloader: Downloader | None = None,
) -> Path | None:
    """Make sure that a data set is here, and is what it should be.

    Args:
        name: of the data set.
        data_dir: the folder to have it in, made if need be; None for SECATEUR_DATA if it is
            there, else the user's cache.
        downloader: to be shared by several calls, so that a host that does not answer is asked
            once, and a file that serves several data sets is downloaded once.

    Returns:
        The (first) file of it; None for a signal, which has none.

    Raises:
        DatasetError: the data are not to be had, or are not what they should be.
    """
    if name in SIGNALS:
        return None
    downloader = downloader or Downloader()
    kept = [
        obtain(resource, data_dir, downloader, keep_in=data_dir)[1] for resource in _resources(name)
    ]
    return kept[0].path


def _resources(name: str) -> list[Resource]:
    makers: dict[str, Callable[[], list[Resource]]] = {
        **{key: lambda table=table: [table.resource()] for key, table in UCI.items()},  # type: ignore[misc]
        **{key: files.resources for key, files in IMAGES.items()},
        SPOKEN_DIGITS.name: lambda: [SPOKEN_DIGITS],
    }
    if name not in makers:
        raise DatasetError(f"no data set {name!r}; there are {', '.join(names())}")
    return makers[name]()
