"""C code compiled and run: on this computer, and on an emulated Cortex-M4F."""

from .tools import DeviceError, Run

__all__ = ["DeviceError", "Run"]
