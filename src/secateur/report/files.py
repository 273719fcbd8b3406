"""Records on disk: written whole or not at all, and checked when they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "VERSION", "RecordError", "read_record"]

FORMAT = "secateur run"
VERSION = 1

_PARTS: dict[str, Any] = {
    "command": str, "created": str, "data": dict, "energy": dict, "history": dict, "inputs": list,
    "leaves": list, "model": dict, "rounds": list, "seconds": (int, float, type(None)),
    "settings": dict, "targets": list, "task": str, "weights": dict,
}  # fmt: skip


class RecordError(ValueError):
    """A record that cannot be read, or is none."""


def read_record(path: str | os.PathLike) -> dict[str, Any]:
    """Read a record that was saved as JSON (a run's `run.json`).

    Raises:
        RecordError: it is damaged, something else, or of a later version.
        FileNotFoundError: there is none.
    """
    path = Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{path} is damaged or no record of a run ({error}). "
            "Run `secateur fit` again to make a new one."
        ) from error
    check(record, str(path))
    return record


def check(record: Any, name: str = "the record") -> None:
    """Raise a RecordError unless it is a record that this version can show."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RecordError(
            f"{name} is no record of a run: its format is not {FORMAT!r}. Give the folder that "
            "`secateur fit --out DIR` made."
        )
    version = record.get("version")
    if version != VERSION:
        made_by = record.get("secateur", "another version")
        raise RecordError(
            f"{name} has version {version!r}, written by secateur {made_by}. This one reads "
            f"version {VERSION}: install the other, or run `secateur fit` again."
        )
    for part, kind in _PARTS.items():
        if not isinstance(record.get(part), kind):
            raise RecordError(
                f"{name} is damaged: its part {part!r} is missing or of the wrong kind. "
                "Run `secateur fit` again to make a new one."
            )


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
