"""Trained networks from ONNX files and PyTorch modules."""

from secateur.importing.imported_function import ImportedFunction
from secateur.importing.onnx_graph import OnnxError
from secateur.importing.onnx_import import from_onnx
from secateur.importing.starting import (
    SoftLabels,
    as_trained,
    compute_targets,
    find_prior,
    make_model,
)
from secateur.importing.torch_modules import from_torch, to_torch

__all__ = [
    "ImportedFunction",
    "OnnxError",
    "SoftLabels",
    "as_trained",
    "compute_targets",
    "find_prior",
    "from_onnx",
    "from_torch",
    "make_model",
    "to_torch",
]
