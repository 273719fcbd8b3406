"""Progress of long computations: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

__all__ = ["Callback", "Progress", "ProgressUpdate"]

_PATIENCE = 2.0  # seconds before anything is shown
_BETWEEN_LINES = 5.0


class ProgressUpdate(NamedTuple):
    """The state of a training in progress.

    Attributes:
        epoch: Number of passes over the data so far.
        epochs: Maximum number of passes that is planned.
        free_energy: Free energy of the last epoch in nats, averaged over its steps; with several
            restarts, that of the best.
        complexity: Complexity part of the free energy, in nats.
        accuracy: Accuracy part, in nats; free_energy = complexity − accuracy.
        rate: Learning rate of the last epoch.
        phase: "training", or "cooling" while the learning rate decays to 0.
        seconds: Time since the start of this call.
        seconds_left: Estimated time until all planned epochs are done; nan while unknown.
    """

    epoch: int
    epochs: int
    free_energy: float
    complexity: float
    accuracy: float
    rate: float
    phase: str
    seconds: float
    seconds_left: float

    @property
    def short(self) -> str:
        """Return a description that fits beside a bar on a terminal of 80 columns."""
        return (
            f"epoch {self.epoch}/{self.epochs} F {self.free_energy:.1f} = {self.complexity:.1f} − "
            f"{self.accuracy:.1f} rate {self.rate:.2g}{_duration(self.seconds_left, ' {} left')}"
        )

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch}/{self.epochs}  free energy {self.free_energy:.1f} nats = "
            f"complexity {self.complexity:.1f} − accuracy {self.accuracy:.1f}  "
            f"rate {self.rate:.2g}  {self.phase}"
            f"{_duration(self.seconds_left, ', at most {} left')}"
        )


def _duration(seconds: float, words: str) -> str:
    """Return text with a duration in it, or nothing if it is not known yet."""
    if math.isnan(seconds):
        return ""
    if seconds < 90:
        return words.format(f"{seconds:.0f} s")
    minutes = seconds / 60
    return words.format(f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h")


Callback = Callable[[ProgressUpdate], str | None]
_ANSWERS = ("cool", "stop")


class Progress:
    """Shows progress, as a bar on a terminal or as lines, and passes it to a callback.

    Args:
        title: Name of the work in progress.
        show: Whether to show anything.
        callback: Function that is called with every `ProgressUpdate`, shown or not. It may return
            "cool" (decay the learning rate to 0 from now on, then end) or "stop" (end now).
        file: Stream for the lines; a bar is drawn if it is a terminal. Defaults to standard error.
    """

    def __init__(
        self,
        title: str,
        *,
        show: bool = True,
        callback: Callback | None = None,
        file: TextIO | None = None,
    ) -> None:
        self._title = title
        self._callback = callback
        self._file = sys.stderr if file is None else file
        self._show = show
        self._begun = self._last = time.monotonic()
        self._bar: tuple | None = None
        self._lines = 0
        self.stopped = False  # whether the callback has returned "stop"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar:
            self._bar[0].stop()

    def retitle(self, title: str) -> None:
        """Start showing another part of the work."""
        self._title = title
        if self._bar:
            self._bar[0].stop()
            self._bar = None

    def update(self, report: ProgressUpdate) -> str | None:
        """Show an update and return the callback's answer: "cool", "stop" or None."""
        self._show_report(report)
        answer = None if self._callback is None else self._callback(report)
        if answer is not None and answer not in _ANSWERS:
            raise ValueError(
                f"the callback returned {answer!r}. Supported: None, {' and '.join(_ANSWERS)}."
            )
        self.stopped |= answer == "stop"
        return answer

    def _show_report(self, report: ProgressUpdate) -> None:
        now = time.monotonic()
        if not self._show or now - self._begun < _PATIENCE:
            return
        if self._file.isatty():
            self._draw(report)
        elif not self._lines or now - self._last >= _BETWEEN_LINES:
            self._line(f"{self._title}: {report}")
            self._last = now

    def finish(self, sentence: str) -> None:
        """Print a closing line, if anything was shown before."""
        if self._bar:
            self._bar[0].stop()
            self._bar = None
            self._line(sentence)
        elif self._lines:
            self._line(sentence)

    def _line(self, text: str) -> None:
        print(text, file=self._file, flush=True)
        self._lines += 1

    def _draw(self, report: ProgressUpdate) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        if self._bar is None:
            bar = Bar(
                BarColumn(bar_width=16),
                TextColumn("{task.description}"),
                console=Console(file=self._file, highlight=False),
                transient=True,
            )
            self._bar = (bar, bar.add_task(self._title, total=report.epochs))
            bar.start()
            bar.console.print(self._title)  # remains after the bar has disappeared
        bar, task = self._bar
        bar.update(task, completed=report.epoch, total=report.epochs, description=report.short)
