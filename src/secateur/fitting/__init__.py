"""Compiled training that stops by itself and survives being killed."""

from secateur.fitting.fit import fit, fit_many
from secateur.fitting.recipes import RECIPES, Recipe
from secateur.fitting.result import FitError, Fitted, History

__all__ = ["RECIPES", "FitError", "Fitted", "History", "Recipe", "fit", "fit_many"]
