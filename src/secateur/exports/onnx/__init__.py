"""Trained models as ONNX files."""

from secateur.exports.onnx.exporting import Written, write_onnx

__all__ = ["Written", "write_onnx"]
