"""Checkpoints: whenever the process dies, a whole one is there.

The file before the newest is kept beside it as `NAME.previous`; see `secateur.containers`.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from secateur import containers

__all__ = ["CheckpointError", "CheckpointWarning", "load", "newest", "save"]

_KIND, _VERSION = "secateur-checkpoint", 1


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, or is that of another run."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was passed over for the one before it."""


def save(path: str | os.PathLike, tensors: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    """Write arrays and facts so that `path` is at every moment absent, the old file or the new one.

    Args:
        path: the file; its predecessor is kept as `path` + ".previous".
        tensors: arrays by name.
        facts: anything JSON takes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/a", {"x": np.arange(3)}, {"epoch": 7})
        ...     tensors, facts = load(f"{folder}/a")
        >>> tensors["x"].tolist(), facts
        ([0, 1, 2], {'epoch': 7})
    """
    path = Path(path)
    containers.write(path, tensors, facts, kind=_KIND, version=_VERSION, previous=previous_of(path))


def save_or_warn(
    path: str | os.PathLike, tensors: dict[str, np.ndarray], facts: dict[str, Any]
) -> None:
    """Write like `save`; if that fails, say so and let the work go on."""
    try:
        save(path, tensors, facts)
    except OSError as error:
        warnings.warn(
            f"could not write the checkpoint {path} ({error}). The work goes on without.",
            CheckpointWarning,
            stacklevel=2,
        )


def load(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a file that `save` wrote.

    Raises:
        CheckpointError: the file is truncated, was changed, or is something else.
        FileNotFoundError: there is none.
    """
    try:
        return containers.read(Path(path), kind=_KIND, version=_VERSION)
    except containers.Unreadable as error:
        raise CheckpointError(
            f"{error}. Delete it to start anew, or put a good copy in its place."
        ) from error


def newest(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Read the checkpoint at `path`, or the one before it if that is damaged; None if none is.

    A damaged file is set aside as `NAME.damaged`, so that it never displaces a good one.

    Raises:
        CheckpointError: there are checkpoints, and all of them are damaged.
    """
    path = Path(path)
    trouble: list[CheckpointError] = []
    for candidate in (path, previous_of(path)):
        try:
            found = load(candidate)
        except FileNotFoundError:
            continue
        except CheckpointError as error:
            trouble.append(error)
            continue
        if trouble:
            aside = path.with_name(f"{path.name}.damaged")
            os.replace(path, aside)
            warnings.warn(
                f"{trouble[0]} Going on from {candidate.name}, the checkpoint before it; the "
                f"damaged file is now {aside.name}.",
                CheckpointWarning,
                stacklevel=3,
            )
        return found
    if trouble:
        raise trouble[0]
    return None


def previous_of(path: Path) -> Path:
    """Where the predecessor of a checkpoint is kept."""
    return path.with_name(f"{path.name}.previous")
