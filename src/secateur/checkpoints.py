"""Files of arrays and facts that survive a crash, notice damage and cannot run code.

One safetensors file; its metadata is one JSON string with the facts and a SHA-256 over everything.
A new file is complete on disk before it takes the old one's name, and the old one is kept beside it
as `NAME.previous`: whenever the process dies, a whole checkpoint is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

__all__ = ["CheckpointError", "CheckpointWarning", "load", "newest", "save"]

_FORMAT = "secateur-checkpoint-1"


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
    # safetensors 0.8 writes wrong values for arrays that are not contiguous. (NumPy's
    # ascontiguousarray would make a vector of a number.)
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    text = json.dumps(facts, sort_keys=True)
    record = json.dumps({"format": _FORMAT, "facts": text, "sha256": _digest(tensors, text)})
    content = save_tensors(tensors, metadata={"secateur": record})
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished-{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.replace(path, previous_of(path))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_folder(path.parent)


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
    content = Path(path).read_bytes()
    try:
        tensors = load_tensors(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        record = json.loads(header["__metadata__"]["secateur"])
        text, digest, name = record["facts"], record["sha256"], record["format"]
    except (SafetensorError, ValueError, KeyError, TypeError, EOFError) as error:
        raise CheckpointError(
            f"{path} is damaged or no checkpoint of secateur ({type(error).__name__}: {error}). "
            "Delete it to start anew, or put a good copy in its place."
        ) from error
    if name != _FORMAT:
        raise CheckpointError(f"{path} has format {name!r}. This version reads {_FORMAT!r}.")
    if _digest(tensors, text) != digest:
        raise CheckpointError(
            f"{path} is damaged: its content does not match its checksum. Delete it to start anew, "
            "or put a good copy in its place."
        )
    return tensors, json.loads(text)


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


def _digest(tensors: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename last; only POSIX systems can, and need, to be asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
