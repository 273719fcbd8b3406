"""C code compiled and run: on this computer, and on an emulated Cortex-M4F."""

from secateur.exports.device.toolchain import CallResult, DeviceError

__all__ = ["CallResult", "DeviceError"]
