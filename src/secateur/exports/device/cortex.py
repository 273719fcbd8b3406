"""Compilation of C for a Cortex-M4F, and its memory requirements.

Either of two compilers is used: `arm-none-eabi-gcc`, from Debian, or the Clang in the package
`ziglang`, which needs no root privileges.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from secateur.exports.device.toolchain import (
    STRICT,
    DeviceError,
    folders_of,
    package,
    run_tool,
)

__all__ = [
    "SectionSizes",
    "available",
    "compile_object",
    "link",
    "sizes",
]

_GCC = "arm-none-eabi-gcc"
_TARGET = {
    "gcc": ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    # Zig would otherwise add checks for undefined behaviour.
    "zig": ("-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m4+vfp4d16sp",
            "-fno-sanitize=undefined"),
}  # fmt: skip
# -std=c99 alone would forbid gcc to fuse a multiplication with an addition.
_CODE = ("-ffreestanding", "-ffp-contract=fast", "-fno-unwind-tables",
         "-fno-asynchronous-unwind-tables")  # fmt: skip
SUPPORT = resources.files(__package__) / "support"


@dataclass(frozen=True)
class SectionSizes:
    """Bytes of an object or ELF file on the device.

    Attributes:
        text: Instructions, with the constants among them.
        constants: Read-only data.
        data: Variables with a value at the start, which are in flash and in RAM.
        bss: Variables that start at zero.
    """

    text: int
    constants: int
    data: int
    bss: int

    @property
    def flash(self) -> int:
        """Bytes of flash."""
        return self.text + self.constants + self.data

    @property
    def ram(self) -> int:
        """Bytes of RAM, without the stack and without what the caller owns."""
        return self.data + self.bss


def available() -> list[str]:
    """Return the installed compilers among `"gcc"` and `"zig"`, the preferred one first."""
    compilers = ["gcc"] if shutil.which(_GCC) else []
    return compilers + (["zig"] if importlib.util.find_spec("ziglang") else [])


def compile_object(
    source: Path,
    folder: Path,
    *,
    compiler: str | None = None,
    optimise: str = "-O2",
    flags: Sequence[str] = (),
) -> Path:
    """Compile one C file with all warnings as errors, and return the object file.

    Args:
        source: The C file; headers in the same folder are found.
        folder: Folder for the object file.
        compiler: `"gcc"` or `"zig"`. Defaults to the first of `available()`.
        optimise: Optimisation level of the compiler.
        flags: Further options.
    """
    name = _chosen(compiler)
    out = Path(folder) / f"{Path(source).stem}.{name}.o"
    run_tool([*_command(name), *_TARGET[name], *STRICT, *_CODE, optimise, *flags,
              *folders_of([source]), "-c", str(source), "-o", str(out)])  # fmt: skip
    return out


def link(
    objects: Sequence[Path],
    folder: Path,
    *,
    name: str = "device",
    compiler: str | None = None,
    program: bool = False,
    libraries: Sequence[str] = (),
) -> Path:
    """Link objects for the board, and return the ELF file.

    Args:
        objects: Object files from `compile_object`, by the same compiler.
        folder: Folder for the file.
        name: Name of the file.
        compiler: As for `compile_object`.
        program: Whether to include the start-up code that calls the objects' `main()`, for QEMU.
            Without it, functions can be called in the `Emulator`.
        libraries: Options such as `"-lm"`, if the compiler supports them (gcc with newlib).
    """
    chosen = _chosen(compiler)
    out = Path(folder) / f"{name}.{chosen}.elf"
    built = [Path(path) for path in objects]
    with resources.as_file(SUPPORT) as support:
        for part in ("memory.c", "startup.c")[: 1 + program]:
            built.append(compile_object(support / part, Path(folder), compiler=chosen))
        # gcc's runtime library (64-bit division); Zig includes its own.
        own = ("-lgcc",) if chosen == "gcc" else ()
        entry = "device_reset" if program else "0"
        run_tool([*_command(chosen), *_TARGET[chosen], "-nostdlib", "-static",
                  f"-Wl,-T,{support / 'mps2.ld'}", f"-Wl,-e,{entry}", *map(str, built),
                  *libraries, *own, "-o", str(out)])  # fmt: skip
    return out


def sizes(path: Path) -> SectionSizes:
    """Return the memory that an object or ELF file needs on the device."""
    elffile = package("elftools.elf.elffile", "measuring an object file")
    parts = {"text": 0, "constants": 0, "data": 0, "bss": 0}
    with open(path, "rb") as file:
        for section in elffile.ELFFile(file).iter_sections():
            flags = section["sh_flags"]
            allocated, writable, code = flags & 2, flags & 1, flags & 4
            if not allocated or section.name.startswith(".ARM.ex"):
                continue
            if section["sh_type"] == "SHT_NOBITS":
                kind = "bss"
            else:
                kind = "data" if writable else "text" if code else "constants"
            parts[kind] += section["sh_size"]
    return SectionSizes(**parts)


def _chosen(compiler: str | None) -> str:
    compilers = available()
    if compiler is not None and compiler not in _TARGET:
        raise DeviceError(f"no compiler {compiler!r}: there are 'gcc' and 'zig'")
    if not compilers or (compiler is not None and compiler not in compilers):
        raise DeviceError(
            f"compiling for a Cortex-M4 needs {_GCC} on the PATH (Debian: apt-get install "
            "gcc-arm-none-eabi) or, without root, pip install ziglang"
            + (f"; {compiler} is not installed, {' and '.join(compilers)} is" if compilers else "")
        )
    return compiler or compilers[0]


@functools.cache
def _command(compiler: str) -> tuple[str, ...]:
    return (_GCC,) if compiler == "gcc" else (sys.executable, "-m", "ziglang", "cc")
