"""Whole units of a network: what belongs together, found from the function itself."""

from secateur.structure.find import Unit, Units, units

__all__ = ["Unit", "Units", "units"]
