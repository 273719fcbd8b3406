"""Whole units of a network: what belongs together, found from the function itself."""

from secateur.structure.unit_search import Unit, Units, units

__all__ = ["Unit", "Units", "units"]
