"""How the figures look, and how they get to disk."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from secateur.paper.writing import write_atomically

__all__ = ["ALGORITHM_TITLES", "COLOURS", "CRITERION_TITLES", "drawn"]

ALGORITHM_TITLES = {
    "moments": "variance backpropagation",
    "local": "local reparametrisation",
    "global": "global reparametrisation",
}
CRITERION_TITLES = {
    "bmr": "Bayesian model reduction",
    "snr": "signal-to-noise ratio",
    "spr": "signal plus robustness",
}
# Of Okabe and Ito's palette, which the colour-blind can tell apart.
COLOURS = {"bmr": "#0072B2", "snr": "#E69F00", "spr": "#009E73", "mark": "#D55E00"}

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
    "svg.hashsalt": "secateur",  # the same figure is the same file
}


@contextmanager
def drawn(out: Path, name: str, note: str, size: tuple[float, float]) -> Iterator[Figure]:
    """Give a figure to draw on, and write it as PNG and SVG once that is done.

    Args:
        out: folder.
        name: of the files, without their endings.
        note: where the figure comes from, kept in the files' metadata.
        size: in inches.
    """
    # A Figure of its own, without pyplot: it leaves the caller's backend and settings alone.
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        metadata = {"png": {"Description": note}, "svg": {"Description": note, "Date": None}}
        for ending, entries in metadata.items():
            content = io.BytesIO()
            figure.savefig(content, format=ending, dpi=100, metadata=entries)
            write_atomically(out / f"{name}.{ending}", content.getvalue())
