"""Whole units of a network: what belongs together, found from the function itself."""

from secateur.units.find import Unit, Units, units

__all__ = ["Unit", "Units", "units"]
