"""`save` and `load`: trained models in safetensors files, which cannot run code."""

from secateur.files.codec import FileError
from secateur.files.model_files import load, save

__all__ = ["FileError", "load", "save"]
