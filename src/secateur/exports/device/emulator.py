"""An emulated Cortex-M4F that calls functions of an ELF file with arrays and counts instructions.

Instructions are counted per basic block, which always runs completely; the number of instructions
in a block is decoded once. An instruction that is skipped by its condition counts as one, as on the
device and in QEMU. Two runs with the same arrays give the same count.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from secateur.exports.device.toolchain import CallResult, DeviceError, package

__all__ = ["Emulator"]

_PAGE = 0x1000
_FLASH, _RAM, _RAM_BYTES = 0x00000000, 0x20000000, 0x00400000
# A separate page to which functions return, where the emulation ends.
_RETURN = 0x10000000
_STACK_BYTES = 0x40000
_TOP, _BOTTOM = _RAM + _RAM_BYTES, _RAM + _RAM_BYTES - _STACK_BYTES
# The pattern in the unused stack, by which the used part is found.
_PAINT = 0xA5
_ALIGN = 8


class Emulator:
    """An emulated Cortex-M4F with an ELF file in its memory.

    Static variables keep their values between calls; `reset` loads the file again.

    Args:
        elf: A file from `cortex.link`.
        most_instructions: Maximum number of instructions per call; more are an error.
    """

    def __init__(self, elf: Path, *, most_instructions: int = 10**9) -> None:
        self._unicorn = package("unicorn", "emulating a Cortex-M4")
        self._arm = package("unicorn.arm_const", "emulating a Cortex-M4")
        self._segments, self.symbols = _read(Path(elf))
        self._most = most_instructions
        self._count = 0
        self._lengths: dict[tuple[int, int], int] = {}
        self.reset()

    def reset(self) -> None:
        """Reset memory and registers to their state after start-up."""
        u, arm = self._unicorn, self._arm
        # The model is chosen before memory is mapped: choosing it restarts the processor.
        uc = u.Uc(u.UC_ARCH_ARM, u.UC_MODE_THUMB | u.UC_MODE_MCLASS)
        uc.ctl_set_cpu_model(arm.UC_CPU_ARM_CORTEX_M4)
        end_of_flash = max((a + len(b) for a, b in self._segments if a < _RAM), default=1)
        uc.mem_map(_FLASH, -(-end_of_flash // _PAGE) * _PAGE)
        uc.mem_map(_RETURN, _PAGE)
        uc.mem_map(_RAM, _RAM_BYTES)
        for address, content in self._segments:
            uc.mem_write(address, content)
        uc.mem_write(_BOTTOM, bytes([_PAINT]) * _STACK_BYTES)
        self._free = max((a + len(b) for a, b in self._segments if a >= _RAM), default=_RAM)
        uc.hook_add(u.UC_HOOK_BLOCK, self._on_block)
        self._uc = uc

    def call(self, symbol: str, *arguments: np.ndarray | int) -> CallResult:
        """Call a function with pointers to copies of the arrays, and copy the results back.

        Args:
            symbol: Name of a function that is not static.
            arguments: Contiguous arrays, passed as pointers, and integers, passed by value. Arrays
                that are not writeable are inputs only. All arrays are copied in on every call,
                including a state that is passed again.
        """
        address = self.symbols.get(symbol)
        if address is None:
            known = ", ".join(sorted(self.symbols)) or "none"
            raise DeviceError(f"the ELF file has no function {symbol!r}; it has {known}")
        uc, arm = self._uc, self._arm
        words, placed = self._place(arguments)
        rest = words[4:]
        start = (_TOP - 4 * len(rest)) & ~7
        uc.mem_write(start, struct.pack(f"<{len(rest)}I", *rest))
        for register, word in zip(
            (arm.UC_ARM_REG_R0, arm.UC_ARM_REG_R1, arm.UC_ARM_REG_R2, arm.UC_ARM_REG_R3),
            words[:4],
            strict=False,
        ):
            uc.reg_write(register, word)
        uc.reg_write(arm.UC_ARM_REG_SP, start)
        uc.reg_write(arm.UC_ARM_REG_LR, _RETURN | 1)
        self._count = 0
        try:
            uc.emu_start(address | 1, _RETURN)
        except self._unicorn.UcError as error:
            at = uc.reg_read(arm.UC_ARM_REG_PC)
            raise DeviceError(
                f"{symbol} failed on the emulated Cortex-M4 at address {at:#x}: {error}"
            ) from error
        finally:
            lowest = self._lowest_written()
        if self._count > self._most:
            raise DeviceError(f"{symbol} took more than {self._most} instructions")
        for array, where in placed:
            if array.flags.writeable:
                content = bytes(uc.mem_read(where, array.nbytes))
                array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)
        return CallResult(
            returned=struct.unpack("<i", struct.pack("<I", uc.reg_read(arm.UC_ARM_REG_R0)))[0],
            instructions=self._count,
            stack_bytes=max(start - lowest, 0),
        )

    def _lowest_written(self) -> int:
        """Return the lowest stack address that was written, and fill the stack again."""
        stack = np.frombuffer(self._uc.mem_read(_BOTTOM, _STACK_BYTES), np.uint8)
        written = np.flatnonzero(stack != _PAINT)
        depth = _STACK_BYTES - int(written[0]) if written.size else 0
        self._uc.mem_write(_TOP - depth, bytes([_PAINT]) * depth)
        return _TOP - depth

    def _place(self, arguments: Any) -> tuple[list[int], list[tuple[np.ndarray, int]]]:
        words, placed = [], []
        free = -(-self._free // _ALIGN) * _ALIGN
        for argument in arguments:
            if isinstance(argument, int | np.integer):
                words.append(int(argument) & 0xFFFFFFFF)
                continue
            if not isinstance(argument, np.ndarray) or not argument.flags.c_contiguous:
                raise DeviceError("arguments are integers or contiguous NumPy arrays")
            if free + argument.nbytes > _BOTTOM:
                raise DeviceError(f"the arrays do not fit into {_RAM_BYTES} bytes of RAM")
            self._uc.mem_write(free, argument.tobytes())
            words.append(free)
            placed.append((argument, free))
            free = -(-(free + argument.nbytes) // _ALIGN) * _ALIGN
        return words, placed

    def _on_block(self, uc: Any, address: int, size: int, _: Any) -> None:
        if address == _RETURN:
            return
        length = self._lengths.get((address, size))
        if length is None:
            length = _instructions(bytes(uc.mem_read(address, size)))
            self._lengths[address, size] = length
        self._count += length
        if self._count > self._most:
            uc.emu_stop()


def _instructions(code: bytes) -> int:
    """Return the number of Thumb instructions, of 4 or 2 bytes by their first five bits."""
    position = count = 0
    while position < len(code):
        position += 4 if code[position + 1] >> 3 in (0b11101, 0b11110, 0b11111) else 2
        count += 1
    return count


def _read(path: Path) -> tuple[list[tuple[int, bytes]], dict[str, int]]:
    """Return the initial contents of memory, zeros included, and the functions' addresses."""
    elffile = package("elftools.elf.elffile", "reading an ELF file")
    with open(path, "rb") as file:
        elf = elffile.ELFFile(file)
        segments = [
            (part["p_vaddr"], part.data().ljust(part["p_memsz"], b"\0"))
            for part in elf.iter_segments("PT_LOAD")
            if part["p_memsz"]
        ]
        functions = {
            symbol.name: symbol["st_value"] & ~1
            for symbol in elf.get_section_by_name(".symtab").iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC"
            and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK")
        }
    return segments, functions
