"""How much work to give a compiled program at a time, so that it shows signs of life."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

CALL_SECONDS = 0.25  # how long training goes on without a sign of life


class Pace:
    """How many epochs make a call of about the wanted length.

    Args:
        most: epochs in a call at most.
    """

    def __init__(self, most: int) -> None:
        self._begun = time.monotonic()
        self._most = most
        # Several processes must make the same calls, so no clock of theirs may decide.
        self._alone = jax.process_count() == 1
        self.epochs = 1 if self._alone else most
        self.seconds_per_epoch = float("nan")
        self._calls = 0

    @property
    def seconds(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self._begun

    @contextmanager
    def measured(self, count: int) -> Iterator[None]:
        """Measure a call of so many epochs."""
        begun = time.monotonic()
        yield
        seconds = max(time.monotonic() - begun, 1e-9)
        self._calls += 1
        if self._calls == 1:
            return  # it may have compiled
        self.seconds_per_epoch = seconds / count
        if self._alone:
            self.epochs = max(1, min(self._most, int(CALL_SECONDS * count / seconds)))
