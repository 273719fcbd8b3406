"""When the learning rate falls and when training ends, decided from the free energies so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from secateur.fitting.levelling import trend
from secateur.fitting.recipes import Recipe

_FIRST_LOOK = 60
# Adam moves a weight by no more than the rate in a step. Before the free energy may be called
# level, a weight must have had time to go ten units: several times across the prior and back.
_FIRST_DISTANCE = 10.0
_BETWEEN_LOOKS = 10  # epochs, or 5 % of those so far
_SHORTEST_COOLING = 20


@dataclass
class Timetable:
    """The plan of one training: a plateau of the rate, then (if any) a cooling to 0.

    Decisions fall in epochs that depend on the free energies only, never on the clock: a run that
    was interrupted takes the same ones again.

    Attributes:
        budget: epochs at most.
        cooling: share of the epochs for cooling.
        stops: whether a level free energy ends the plateau.
        warm_epochs: over which the weight of the complexity rises.
        cool_start: the epoch in which cooling began, or inf.
        cool_epochs: how long it lasts.
        ended: why training has ended, in words; empty while it has not.
    """

    budget: int
    cooling: float
    stops: bool
    warm_epochs: float = 0.0
    cool_start: float = math.inf
    cool_epochs: float = 1.0
    next_look: int = _FIRST_LOOK
    why: str = ""
    ended: str = ""

    @classmethod
    def of(cls, recipe: Recipe, budget: int, steps: float) -> Timetable:
        """Return the plan of a recipe, for epochs of so many steps."""
        warm = min(recipe.warm_steps / steps, budget / 4)
        if not recipe.stops:
            return cls(budget, recipe.cooling, False, warm, next_look=budget)
        # The trend is that of the last third, which should lie well after the warming.
        distance = _FIRST_DISTANCE / (recipe.rate * steps)
        look = max(_FIRST_LOOK, math.ceil(distance), math.ceil(2 * warm))
        return cls(budget, recipe.cooling, True, warm, next_look=look)

    @property
    def phase(self) -> str:
        """Return "training" or "cooling"."""
        return "training" if math.isinf(self.cool_start) else "cooling"

    @property
    def last_epoch(self) -> int:
        """Return where training ends if nothing more is decided."""
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
            free_energies: by epoch and run, of shape (epochs, runs).
        """
        epoch = len(free_energies)
        if epoch < self.next_decision:
            return
        if not math.isinf(self.cool_start):
            cooled = f"; the rate then fell to 0 over {self.cool_epochs:.0f}"
            self.ended = self.why + cooled
            return
        trends = [trend(run) for run in free_energies.T if np.all(np.isfinite(run))]
        known = [t for t in trends if t is not None]
        level = bool(known) and all(t.level for t in known)
        if level and self.stops and epoch >= self.next_look:
            self.why = f"the free energy was level after {epoch} epochs"
        elif epoch >= self._latest_cooling:
            self.why = f"the budget of {self.budget} epochs was used"
            if known and not level:
                falling = min(t.slope for t in known)
                self.why += f", with the free energy falling by {-falling:.2g} nats per epoch"
        else:
            self.next_look = max(epoch + _BETWEEN_LOOKS, math.ceil(1.05 * epoch))
            return
        self._begin_cooling(epoch)

    def shorten(self, how: str, epoch: int) -> None:
        """End sooner than planned: "cool" lets the rate fall from now on, "stop" ends at once."""
        if self.ended:
            return
        if how == "stop":
            self.ended = f"it was stopped after {epoch} epochs"
        elif math.isinf(self.cool_start):
            self.why = f"it was told to end after {epoch} epochs"
            self._begin_cooling(epoch)

    def _begin_cooling(self, epoch: int) -> None:
        wanted = max(_SHORTEST_COOLING, epoch * self.cooling / (1 - self.cooling))
        left = self.budget - epoch
        if self.cooling and left > 0:
            self.cool_start, self.cool_epochs = float(epoch), float(min(left, round(wanted)))
        else:
            self.ended = self.why
