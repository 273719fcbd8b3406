"""`save` and `load`: trained models in safetensors files, which cannot run code."""

from secateur.files.codec import FileError
from secateur.files.loaded import Loaded
from secateur.files.saving import load, save

__all__ = ["FileError", "Loaded", "load", "save"]
