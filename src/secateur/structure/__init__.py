"""Whole units of a network, from the function itself; a module `units` would clash with `units`."""

from secateur.structure.unit_search import Unit, Units, units

__all__ = ["Unit", "Units", "units"]
