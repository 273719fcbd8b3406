"""Trained models as ONNX."""
