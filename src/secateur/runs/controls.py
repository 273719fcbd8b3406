"""What controls a run: its settings, Ctrl-C and the clock."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from secateur.progress import Callback, ProgressUpdate
from secateur.tables import MAX_CATEGORIES

__all__ = ["RunClock", "RunInterrupted", "RunSettings"]

# The size of batches is doubled until an epoch has about this number of steps.
_STEPS_PER_EPOCH = 1000
_MIN_BATCH = 64


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run, beside its data and targets.

    Attributes:
        task: "regression" or "classification", or None to let the target decide.
        hidden: Number of units of every hidden layer; empty for a linear model. None lets the free
            energy choose among structures; see `secateur.selection`.
        inference: "moments", "local" or "global".
        posterior: See `secateur.selection.select_structure`.
        learn_priors: Likewise.
        noise_prior: Shape and rate of the Gamma prior of the noise's precision, in units of the
            standardised target, or None for the recipe's.
        what: What to prune: "weights", "units" or "both".
        grow: Whether pruned weights may grow back.
        most_weights: Largest number of weights of the pruned network, or None.
        least_accuracy: Required accuracy on the held-out rows, or None.
        most_rmse: Largest root-mean-square error on the held-out rows, or None.
        seed: Seed of everything random.
        restarts: Number of initialisations to train side by side.
        average: Whether predictions average all pruned restarts instead of those of the best one.
        minutes: Maximum duration of the whole run, or None.
        held_out: Fraction of the rows that are held out.
        missing: What to do with missing values: "error", "drop" or "mean".
        dates: What to do with dates: "error" or "parts".
        drop: Columns not to use.
        epochs: Maximum number of epochs of the training, and of each one between rounds of pruning.
        batch_size: Number of rows in a step, or None to choose by the number of rows.
        max_categories: Maximum number of different text values in a column of categories.
        encoding: Encoding of a text file, or None for UTF-8.
    """

    task: str | None = None
    hidden: tuple[int, ...] | None = None
    inference: str = "moments"
    posterior: str = "linear"
    learn_priors: str | None = "auto"
    noise_prior: tuple[float, float] | None = None
    what: str = "weights"
    grow: bool = False
    most_weights: int | None = None
    least_accuracy: float | None = None
    most_rmse: float | None = None
    seed: int = 0
    restarts: int = 1
    average: bool = False
    minutes: float | None = None
    held_out: float = 0.2
    missing: str = "error"
    dates: str = "error"
    drop: tuple[str, ...] = ()
    epochs: int | None = None
    batch_size: int | None = None
    max_categories: int = MAX_CATEGORIES
    encoding: str | None = None

    def choose_batch_size(self, rows: int) -> int:
        """Return the number of rows in a step: 64, doubled until an epoch has about 1000 steps."""
        if self.batch_size is not None:
            return self.batch_size
        doublings = math.ceil(math.log2(max(1.0, rows / _MIN_BATCH / _STEPS_PER_EPOCH)))
        return _MIN_BATCH * 2**doublings

    def describe(self) -> dict[str, Any]:
        """Return the settings in readable form, without those that were not set."""
        values = asdict(self)
        if self.hidden is None:
            values["hidden"] = "chosen by free energy"
        else:
            values["hidden"] = ", ".join(map(str, self.hidden)) or "none"
        if self.noise_prior is not None:
            values["noise_prior"] = "Gamma({:g}, {:g})".format(*self.noise_prior)
        values["drop"] = ", ".join(self.drop)
        return {name: value for name, value in values.items() if value not in (None, "", False)}


class RunInterrupted(Exception):
    """The user has pressed Ctrl-C; the progress is in the checkpoint."""


class RunClock:
    """Ends a run between two epochs, on Ctrl-C or when its time is over; a context.

    The first Ctrl-C lets the current epoch finish; a second one raises a KeyboardInterrupt at once.

    Args:
        minutes: Maximum duration of the run, or None.
        say: Function that is called with a sentence when the first Ctrl-C arrives.
    """

    def __init__(self, minutes: float | None, say: Callable[[str], None]) -> None:
        self._start = time.monotonic()
        self._limit = float("inf") if minutes is None else 60 * minutes
        self._say = say
        self._is_interrupted = False
        self._previous_handler: Any = None

    @property
    def seconds(self) -> float:
        """Return the time since the beginning."""
        return time.monotonic() - self._start

    def __enter__(self) -> RunClock:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGINT, self._handle_interrupt)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
            self._previous_handler = None

    def _handle_interrupt(self, number: int, frame: Any) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        self._say("stopping after this epoch; press Ctrl-C again to stop at once")

    def make_callback(self, cool: float, stop: float) -> Callback:
        """Return a callback for `fit` or `prune`.

        Args:
            cool: Fraction of the time after which the learning rate starts to decay.
            stop: Fraction of the time after which training must end.
        """

        def callback(update: ProgressUpdate) -> str | None:
            self.check()
            if self.seconds > stop * self._limit:
                return "stop"
            return "cool" if self.seconds > cool * self._limit else None

        return callback

    def check(self) -> None:
        """Raise `RunInterrupted` if Ctrl-C was pressed."""
        if self._is_interrupted:
            raise RunInterrupted
