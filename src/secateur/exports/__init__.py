"""Trained models in the forms that devices run."""

from secateur.exports.exporting import export
from secateur.exports.graph import ExportError
from secateur.exports.sheet import Sheet

__all__ = ["ExportError", "Sheet", "export"]
