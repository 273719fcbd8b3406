"""The learning-rate schedule, the end of training, and the length of calls in between."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from secateur.training.recipe import Recipe

# Two-sided 95 %: a trend of fewer standard errors than this cannot be distinguished from none.
_CRITICAL = 1.96
# A Bayes factor of e is "not worth more than a bare mention" (Kass and Raftery, 1995): what another
# window of the same length would gain must be worth at least that much.
WORTH_MENTIONING = 1.0
_SHORTEST_WINDOW = 20
_FIRST_LOOK = 60
# Adam moves a weight by no more than the rate in a step. Before the free energy can count as level,
# a weight must have had time to move ten units: several times across the prior and back.
_FIRST_DISTANCE = 10.0
_BETWEEN_LOOKS = 10  # epochs, or 5 % of those so far
_SHORTEST_COOLING = 20
CALL_SECONDS = 0.25  # approximate time between two progress updates


@dataclass
class Timetable:
    """The plan of one training: a plateau of the learning rate, then (if any) a cooling to 0.

    Decisions are taken in epochs that depend on the free energies only, never on the clock: a run
    that was interrupted takes the same decisions again.

    Attributes:
        budget: Maximum number of epochs.
        cooling: Fraction of the epochs for cooling.
        stops: Whether a level free energy ends the plateau.
        warm_epochs: Number of epochs over which the weight of the complexity rises.
        epochs_before: Number of them that are over when training begins.
        cool_start: Epoch in which cooling began, or inf.
        cool_epochs: Number of epochs that cooling lasts.
        next_look: Epoch of the next look at the trend.
        plateau_reason: Why the plateau ended, in words.
        stop_reason: Why training ended, in words; empty while it has not.
        is_level: Whether the free energies of all runs were level at the end of the plateau, as far
            as that was checked.
        falling: Runs whose free energy was still falling then, where that is known.
    """

    budget: int
    cooling: float
    stops: bool
    warm_epochs: float = 0.0
    cool_start: float = math.inf
    cool_epochs: float = 1.0
    next_look: int = _FIRST_LOOK
    plateau_reason: str = ""
    stop_reason: str = ""
    is_level: bool = True
    falling: list[int] = field(default_factory=list)
    epochs_before: float = 0.0

    @classmethod
    def from_recipe(cls, recipe: Recipe, budget: int, steps: float) -> Timetable:
        """Return the timetable of a recipe, for epochs of `steps` steps."""
        warm = min(recipe.warm_steps / steps, budget / 4)
        if not recipe.stops:
            return cls(budget, recipe.cooling, False, warm, next_look=budget)
        # The trend is that of the last third, which should begin well after the warm-up.
        distance = _FIRST_DISTANCE / (recipe.rate * steps)
        look = max(_FIRST_LOOK, math.ceil(distance), math.ceil(2 * warm))
        return cls(budget, recipe.cooling, True, warm, next_look=look)

    @property
    def phase(self) -> str:
        """Return "training" or "cooling"."""
        return "training" if math.isinf(self.cool_start) else "cooling"

    @property
    def last_epoch(self) -> int:
        """Return the last epoch if no further decision is taken."""
        if math.isinf(self.cool_start):
            return self.budget
        return int(self.cool_start + self.cool_epochs)

    @property
    def next_decision(self) -> int:
        """Return the epoch before which nothing can change."""
        if not math.isinf(self.cool_start):
            return self.last_epoch
        return min(self.next_look, self._latest_cooling)

    @property
    def _latest_cooling(self) -> int:
        return self.budget - round(self.cooling * self.budget)

    def decide(self, free_energies: np.ndarray) -> None:
        """Take the decision that is due.

        Args:
            free_energies: Free energies by epoch and run, of shape (epochs, runs).
        """
        epoch = len(free_energies)
        if epoch < self.next_decision:
            return
        if not math.isinf(self.cool_start):
            cooled = f"; the learning rate then decayed to 0 over {self.cool_epochs:.0f} epochs"
            self.stop_reason = self.plateau_reason + cooled
            return
        trends = [fit_trend(run) for run in free_energies.T if np.all(np.isfinite(run))]
        known = [t for t in trends if t is not None]
        level = bool(known) and all(t.level for t in known)
        if level and self.stops and epoch >= self.next_look:
            self.plateau_reason = f"the free energy levelled off after {epoch} epochs"
        elif epoch >= self._latest_cooling:
            self.plateau_reason = f"the maximum of {self.budget} epochs was reached"
            if known and not level:
                self.is_level = not self.stops
                self.falling = find_falling_runs(free_energies)
                falling = min(t.slope for t in known)
                self.plateau_reason += (
                    f", while the free energy was still falling by {-falling:.2g} nats per epoch"
                )
        else:
            self.next_look = max(epoch + _BETWEEN_LOOKS, math.ceil(1.05 * epoch))
            return
        self._begin_cooling(epoch)

    def is_run_level(self, run: int) -> bool:
        """Whether the free energy of one run was level at the end of the plateau."""
        return self.is_level or (bool(self.falling) and run not in self.falling)

    def shorten(self, how: str, epoch: int) -> None:
        """End sooner than planned: "cool" decays the rate from now on, "stop" ends at once."""
        if self.stop_reason:
            return
        if how == "stop":
            self.stop_reason, self.is_level = f"training was stopped after {epoch} epochs", False
        elif math.isinf(self.cool_start):
            self.is_level = False
            self.plateau_reason = f"an early end was requested after {epoch} epochs"
            self._begin_cooling(epoch)

    def _begin_cooling(self, epoch: int) -> None:
        wanted = max(_SHORTEST_COOLING, epoch * self.cooling / (1 - self.cooling))
        left = self.budget - epoch
        if self.cooling and left > 0:
            self.cool_start, self.cool_epochs = float(epoch), float(min(left, round(wanted)))
        else:
            self.stop_reason = self.plateau_reason


class Trend(NamedTuple):
    """A straight line through the last epochs.

    Attributes:
        slope: Slope in nats per epoch.
        error: Standard error of the slope, with the correlation of neighbouring epochs.
        window: Number of epochs that the line was fitted to.
    """

    slope: float
    error: float
    window: int

    @property
    def level(self) -> bool:
        """Whether further training promises no gain: no significant fall, or less than a nat."""
        falling = -self.slope > _CRITICAL * self.error
        return not (falling and -self.slope * self.window > WORTH_MENTIONING)


def fit_trend(free_energies: np.ndarray) -> Trend | None:
    """Fit a line to the last third of the epochs so far; None while that is too short.

    The window grows with the run, so slow progress is compared with the time already spent on it.

    >>> falling = fit_trend(100 - np.arange(90.0))
    >>> falling.slope, falling.level
    (-1.0, False)
    >>> fit_trend(np.full(90, 7.0)).level
    True
    """
    values = np.asarray(free_energies, np.float64)
    window = len(values) // 3
    if window < _SHORTEST_WINDOW:
        return None
    y = values[-window:]
    t = np.arange(window) - (window - 1) / 2
    spread = np.sum(t**2)
    slope = np.sum(t * y) / spread
    rest = y - y.mean() - slope * t
    variance = np.sum(rest**2) / (window - 2)
    if variance > 0:
        # First-order autoregressive noise carries (1 − ρ)/(1 + ρ) of the information.
        correlation = np.clip(np.sum(rest[1:] * rest[:-1]) / np.sum(rest**2), 0.0, 0.95)
        variance *= (1 + correlation) / (1 - correlation)
    return Trend(float(round(slope, 12)), float(np.sqrt(variance / spread)), window)


def find_falling_runs(free_energies: np.ndarray) -> list[int]:
    """Return the runs whose free energy is falling at its end.

    Args:
        free_energies: Free energies by epoch and run, of shape (epochs, runs).

    Example:
        >>> find_falling_runs(np.stack([100 - np.arange(90.0), np.full(90, 7.0)], axis=1))
        [0]
    """
    trends = [fit_trend(run) if np.all(np.isfinite(run)) else None for run in free_energies.T]
    return [run for run, trend in enumerate(trends) if trend is not None and not trend.level]


class Pace:
    """Finds the number of epochs for a call of about the desired duration.

    Args:
        max_epochs: Largest number of epochs in a call.
    """

    def __init__(self, max_epochs: int) -> None:
        self._start = time.monotonic()
        self._max_epochs = max_epochs
        # Several processes must make the same calls, so none of their clocks may decide.
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
