"""Files that are at every moment absent, the old ones or the new ones; never half of either."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write"]


def write(path: Path, content: str | bytes, *, previous: Path | None = None) -> None:
    """Write a file whole, or not at all, so that it lasts.

    Args:
        path: the file, in a folder that is there.
        content: text is written as UTF-8.
        previous: where to keep the file that was at `path`, or None.
    """
    unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename last; only POSIX systems can, and need, to be asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
