"""How long each training of a recipe is, and how the weight of the complexity rises in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from secateur.training.recipe import Recipe
from secateur.training.timetable import Timetable

__all__ = ["Planner"]


@dataclass(frozen=True)
class Planner:
    """Makes the timetables of a fit and of the rounds of pruning after it.

    Attributes:
        recipe: See `Recipe`.
        steps: Number of steps in a pass over the data.
        blocks: Number of blocks in a pass over the data. Timetables count blocks as epochs.
        repeatable: Whether the data can be read more than once.
    """

    recipe: Recipe
    steps: int
    blocks: int
    repeatable: bool

    def plan_training(self, *, warm: bool = True) -> Timetable:
        """Return the timetable of a whole training.

        Args:
            warm: Whether the weight of the complexity rises slowly, as the recipe says. Where the
                prior is what was learnt before, it should count from the beginning.
        """
        if not warm:
            return self._plan(replace(self.recipe, warm_steps=0))
        if not self.recipe.gradual_rounds:
            return self._plan(self.recipe)
        budget = self._count(self.recipe)
        warm_epochs = budget + self.recipe.gradual_rounds * self._gradual_epochs
        return Timetable(budget, 0.0, False, warm_epochs, next_look=budget)

    def plan_retraining(self, epochs: int | None) -> Timetable:
        """Return the timetable for weights that have been trained before.

        Args:
            epochs: Maximum number of epochs. None is the recipe's.
        """
        recipe = self.recipe
        epochs = recipe.retrain_epochs if epochs is None else epochs
        steps = recipe.retrain_steps
        return self._plan(replace(recipe, epochs=epochs, steps=steps, warm_steps=0))

    def plan_gradual_round(self, number: int, fit_epochs: int) -> Timetable:
        """Return the timetable of a round of cutting while the complexity's weight rises.

        Args:
            number: Number of such rounds before this one.
            fit_epochs: Number of epochs of the fit.
        """
        budget, before = self._gradual_epochs, fit_epochs * self.blocks
        warm_epochs = before + self.recipe.gradual_rounds * budget
        done = before + number * budget
        return Timetable(
            budget, 0.0, False, warm_epochs, next_look=budget, epochs_before=float(done)
        )

    @property
    def _gradual_epochs(self) -> int:
        """Length of a gradual round."""
        return self._count(replace(self.recipe, epochs=None, steps=self.recipe.gradual_steps))

    def _plan(self, recipe: Recipe) -> Timetable:
        return Timetable.from_recipe(recipe, self._count(recipe), self.steps / self.blocks)

    def _count(self, recipe: Recipe) -> int:
        """Return the length of a training."""
        blocks = self.blocks
        if recipe.epochs is not None:
            budget = recipe.epochs * blocks
        else:
            budget = max(recipe.fewest_epochs, blocks, recipe.steps * blocks // self.steps)
        return budget if self.repeatable else min(budget, blocks)
