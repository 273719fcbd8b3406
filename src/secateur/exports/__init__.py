"""Export of trained models to formats that devices can run."""

from secateur.exports.c.model_source import to_c
from secateur.exports.c.source_writer import Source
from secateur.exports.exporter import export
from secateur.exports.graph import ExportError
from secateur.exports.onnx.onnx_model import to_onnx
from secateur.exports.sheet import Sheet

__all__ = ["ExportError", "Sheet", "Source", "export", "to_c", "to_onnx"]
