"""A trained network from elsewhere: ONNX files and PyTorch modules."""

from secateur.importing.imported_function import ImportedFunction
from secateur.importing.onnx_graph import OnnxError
from secateur.importing.onnx_import import from_onnx

__all__ = ["ImportedFunction", "OnnxError", "from_onnx"]
