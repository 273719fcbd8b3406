"""How many epochs to give a compiled program at a time, so that progress can be shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

CALL_SECONDS = 0.25  # the time between two progress updates, about


class Pace:
    """Finds how many epochs make a call of about the wanted length.

    Args:
        max_epochs: Largest number of epochs in a call.
    """

    def __init__(self, max_epochs: int) -> None:
        self._start = time.monotonic()
        self._max_epochs = max_epochs
        # Several processes must make the same calls, so no clock of theirs may decide.
        self._alone = jax.process_count() == 1
        self.epochs = 1 if self._alone else max_epochs
        self.seconds_per_epoch = float("nan")
        self._calls = 0

    @property
    def seconds(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self._start

    @contextmanager
    def measure(self, count: int) -> Iterator[None]:
        """Measure a call of `count` epochs."""
        start = time.monotonic()
        yield
        seconds = max(time.monotonic() - start, 1e-9)
        self._calls += 1
        if self._calls == 1:
            return  # it may have compiled
        self.seconds_per_epoch = seconds / count
        if self._alone:
            self.epochs = max(1, min(self._max_epochs, int(CALL_SECONDS * count / seconds)))
