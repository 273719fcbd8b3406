"""Files that are written atomically, detect damage and cannot run code.

`write_file` replaces a file completely or not at all. A container is one safetensors file with
arrays and facts; its metadata is a JSON string with the facts and a SHA-256 checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

__all__ = ["OtherVersion", "UnreadableFile", "read_container", "write_container", "write_file"]


class UnreadableFile(Exception):
    """A file is truncated, modified, or of another kind; the message says which."""


class OtherVersion(UnreadableFile):
    """A file of the right kind, written by a version of secateur with a different format."""


def write_file(path: Path, content: str | bytes, *, previous: Path | None = None) -> None:
    """Write a file atomically: `path` is always absent, the complete old file or the new one.

    Args:
        path: The file. Its folder must exist.
        content: Content of the file; text is encoded as UTF-8.
        previous: Path to which the old file is moved, or None to replace it.
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
    """Flush a rename to disk; only POSIX systems need and support this."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_container(
    path: Path,
    tensors: dict[str, np.ndarray],
    facts: Any,
    *,
    kind: str,
    version: int,
    previous: Path | None = None,
) -> None:
    """Write arrays and facts with `write_file`.

    Args:
        path: The file; its folder is created if necessary.
        tensors: Arrays by name.
        facts: Any JSON value.
        kind: Kind of file; `read_container` checks it.
        version: Version of the file format.
        previous: Path to which the old file is moved, or None to replace it.
    """
    # safetensors 0.8 writes wrong values for non-contiguous arrays. (NumPy's
    # ascontiguousarray would turn a scalar into a vector.)
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    text = json.dumps(facts)
    record = {"format": f"{kind}-{version}", "facts": text, "sha256": _digest(tensors, text)}
    content = save_tensors(tensors, metadata={"secateur": json.dumps(record)})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content, previous=previous)


def read_container(path: Path, *, kind: str, version: int) -> tuple[dict[str, np.ndarray], Any]:
    """Read the arrays and facts that `write_container` wrote.

    Raises:
        UnreadableFile: The file is truncated, modified, or of another kind.
        OtherVersion: The file was written by a version of secateur with a different format.
        OSError: The file does not exist or cannot be read.
    """
    content = path.read_bytes()
    try:
        tensors = load_tensors(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        record = json.loads(header["__metadata__"]["secateur"])
        text, digest, file_format = record["facts"], record["sha256"], record["format"]
        file_kind, _, file_version = file_format.rpartition("-")
        is_intact = _digest(tensors, text) == digest
        facts = json.loads(text) if is_intact else None
    except (
        SafetensorError, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError,
    ) as error:  # fmt: skip
        raise UnreadableFile(
            f"{path} is damaged or not a {kind} file ({type(error).__name__}: {error})"
        ) from error
    if file_kind != kind:
        raise UnreadableFile(f"{path} is a file of another kind ({file_format!r}), not a {kind}")
    if file_version != str(version):
        raise OtherVersion(
            f"{path} has the format {file_format!r} of another version of secateur; this version "
            f"reads {kind}-{version}"
        )
    if not is_intact:
        raise UnreadableFile(f"{path} is damaged: its content does not match its checksum")
    return tensors, facts


def _digest(tensors: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
