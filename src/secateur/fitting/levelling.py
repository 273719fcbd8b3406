"""Has the free energy levelled off? A test of its trend against its own noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Two-sided 95 %: a trend below this many standard errors is not told from none.
_CRITICAL = 1.96
# A Bayes factor of e is "not worth more than a bare mention" (Kass and Raftery, 1995): what another
# window of the same length would gain must be worth at least that much.
WORTH_MENTIONING = 1.0
_SHORTEST_WINDOW = 20


class Trend(NamedTuple):
    """A straight line through the last epochs.

    Attributes:
        slope: nats per epoch.
        error: its standard error; neighbouring epochs are correlated, and this counts it.
        window: how many epochs it was fitted to.
    """

    slope: float
    error: float
    window: int

    @property
    def level(self) -> bool:
        """Whether going on as before promises nothing: no fall, or none worth a nat."""
        falling = -self.slope > _CRITICAL * self.error
        return not (falling and -self.slope * self.window > WORTH_MENTIONING)


def trend(free_energies: np.ndarray) -> Trend | None:
    """Fit the last third of the epochs so far; None while that is too short to say anything.

    The window grows with the run, so slow progress is compared with the time already spent on it.

    >>> falling = trend(100 - np.arange(90.0))
    >>> falling.slope, falling.level
    (-1.0, False)
    >>> trend(np.full(90, 7.0)).level
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
