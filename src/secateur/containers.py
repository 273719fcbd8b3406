"""Files of arrays and facts that survive a crash, notice damage and cannot run code.

One safetensors file; its metadata is one JSON string with the facts and a SHA-256 over everything.
A new file is complete on disk before it takes the old one's name.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from secateur import atomic


class Unreadable(Exception):
    """A file is truncated, was changed, or is something else; says which."""


def write(
    path: Path,
    tensors: dict[str, np.ndarray],
    facts: Any,
    *,
    kind: str,
    version: int,
    previous: Path | None = None,
) -> None:
    """Write arrays and facts so that `path` is at every moment absent, the old file or the new one.

    Args:
        path: the file.
        tensors: arrays by name.
        facts: anything JSON takes.
        kind: of file; `read` refuses others.
        version: of that kind of file.
        previous: where to keep the file that was at `path`, or None.
    """
    # safetensors 0.8 writes wrong values for arrays that are not contiguous. (NumPy's
    # ascontiguousarray would make a vector of a number.)
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    text = json.dumps(facts)
    record = {"format": f"{kind}-{version}", "facts": text, "sha256": _digest(tensors, text)}
    content = save_tensors(tensors, metadata={"secateur": json.dumps(record)})
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, content, previous=previous)


def read(path: Path, *, kind: str, version: int) -> tuple[dict[str, np.ndarray], Any]:
    """Read a file that `write` wrote.

    Raises:
        Unreadable: the file is truncated, was changed, or is something else.
        OSError: it is not there, or may not be read.
    """
    content = path.read_bytes()
    try:
        tensors = load_tensors(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        record = json.loads(header["__metadata__"]["secateur"])
        text, digest, found = record["facts"], record["sha256"], record["format"]
        same_kind, _, number = found.rpartition("-")
        matches = _digest(tensors, text) == digest
        facts = json.loads(text) if matches else None
    except (
        SafetensorError, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError,
    ) as error:  # fmt: skip
        raise Unreadable(
            f"{path} is damaged or no {kind} file ({type(error).__name__}: {error})"
        ) from error
    if same_kind != kind:
        raise Unreadable(f"{path} is a file of another kind ({found!r}), no {kind} file")
    if number != str(version):
        raise Unreadable(
            f"{path} has format {found!r} and this version reads {kind}-{version}. It was written "
            "by another version of secateur, which can read it"
        )
    if not matches:
        raise Unreadable(f"{path} is damaged: its content does not match its checksum")
    return tensors, facts


def _digest(tensors: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(repr((name, value.dtype.str, value.shape)).encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
