"""Ctrl-C and the clock: both end a run between two epochs, never within one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from secateur.progress import Callback, Report

__all__ = ["Interrupted", "Watch"]


class Interrupted(Exception):
    """The user has asked to stop; what was reached is in the checkpoint."""


class Watch:
    """Watches for Ctrl-C and the end of the time while training runs; a context.

    The first Ctrl-C lets the epoch come to its end; a second one is a KeyboardInterrupt at once.

    Args:
        minutes: for all, or None.
        say: called with a sentence when the first Ctrl-C arrives.
    """

    def __init__(self, minutes: float | None, say: Callable[[str], None]) -> None:
        self._begun = time.monotonic()
        self._limit = float("inf") if minutes is None else 60 * minutes
        self._say = say
        self._asked = False
        self._before: Any = None

    @property
    def seconds(self) -> float:
        """Return the time since the beginning."""
        return time.monotonic() - self._begun

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _note(self, number: int, frame: Any) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._say("stopping after this epoch; Ctrl-C again stops at once")

    def until(self, cool: float, stop: float) -> Callback:
        """Return a callback for `fit` or `prune`.

        Args:
            cool: share of the time after which training is told to let its rate fall.
            stop: share of the time after which it must end.
        """

        def callback(report: Report) -> str | None:
            self.check()
            if self.seconds > stop * self._limit:
                return "stop"
            return "cool" if self.seconds > cool * self._limit else None

        return callback

    def check(self) -> None:
        """Raise `Interrupted` if Ctrl-C was pressed."""
        if self._asked:
            raise Interrupted
