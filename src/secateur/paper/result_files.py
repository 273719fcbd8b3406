"""Result files, written atomically, each with a line on its origin."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
from matplotlib.figure import Figure

from secateur import __version__
from secateur.storage import write_file

__all__ = ["describe_origin", "format_csv", "write_figure", "write_result"]

_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "secateur",  # equal figures give equal files
}


def write_result(path: Path, content: str | bytes) -> None:
    """Write a result, creating its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)


def describe_origin(command: str, **options: object) -> str:
    """Return a line with the command, the versions and the date.

    Args:
        command: Command as typed, without "secateur reproduce".
        options: Options as typed. Those that are None or False are left out; True has no value.
    """
    typed = [
        f"--{name}" if value is True else f"--{name} {value}"
        for name, value in options.items()
        if value is not None and value is not False
    ]
    today = datetime.now(UTC).date().isoformat()
    return (
        f"secateur reproduce {' '.join([command, *typed])}; secateur {__version__}, "
        f"jax {jax.__version__}, Python {platform.python_version()}, {jax.default_backend()}; "
        f"{today}"
    )


def format_csv(note: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as text, with a note as a comment before it; numbers have six digits.

    Example:
        >>> print(format_csv("by hand", ["rate", "free_energy"], [[0.01, 1234.5678]]), end="")
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


@contextmanager
def write_figure(out: Path, name: str, note: str, size: tuple[float, float]) -> Iterator[Figure]:
    """Yield a figure to draw on, and write it as PNG and SVG once that is done.

    Args:
        out: Folder.
        name: Name of the files, without their endings.
        note: Line on the figure's origin, stored in the files' metadata.
        size: Width and height in inches.
    """
    # Without pyplot, so that the caller's backend and settings are not changed.
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        metadata = {"png": {"Description": note}, "svg": {"Description": note, "Date": None}}
        for ending, entries in metadata.items():
            content = io.BytesIO()
            figure.savefig(content, format=ending, dpi=100, metadata=entries)
            write_result(out / f"{name}.{ending}", content.getvalue())
