"""Results on disk: whole or not at all, each with a line on where it comes from."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from secateur import __version__, atomic

__all__ = ["as_csv", "made_by", "write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a result whole, or not at all, into a folder that may have to be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, content)


def made_by(command: str, **options: object) -> str:
    """Return a line on command, versions and date.

    Args:
        command: as typed, without "secateur reproduce".
        options: as typed; those that are None were not.
    """
    given = {name: value for name, value in options.items() if value is not None}
    command = " ".join([command, *(f"--{name} {value}" for name, value in given.items())])
    today = datetime.now(UTC).date().isoformat()
    return (
        f"secateur reproduce {command}; secateur {__version__}, jax {jax.__version__}, "
        f"Python {platform.python_version()}, {jax.default_backend()}; {today}"
    )


def as_csv(note: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as text, with the note as a comment before it; numbers have six digits.

    Example:
        >>> print(as_csv("by hand", ["rate", "free_energy"], [[0.01, 1234.5678]]), end="")
        # by hand
        rate,free_energy
        0.01,1234.57
    """
    text = io.StringIO()
    text.write(f"# {note}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in rows)
    return text.getvalue()
