"""C compiled for a Cortex-M4F, and how much of its memory that takes.

Either of two compilers serves: `arm-none-eabi-gcc`, as Debian has it, or the Clang in the package
`ziglang`, which needs no root.
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
    undefined_symbols,
)

__all__ = [
    "SectionSizes",
    "available",
    "compile_object",
    "frames",
    "link",
    "sizes",
    "undefined_symbols",
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
        text: instructions, with the constants among them.
        constants: read-only data.
        data: variables with a value at the start, which are in flash and in RAM.
        bss: variables that start at zero.
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
    """Return the compilers that are here: some of `"gcc"`, `"zig"`, the preferred one first."""
    found = ["gcc"] if shutil.which(_GCC) else []
    return found + (["zig"] if importlib.util.find_spec("ziglang") else [])


def compile_object(
    source: Path,
    folder: Path,
    *,
    compiler: str | None = None,
    optimise: str = "-O2",
    flags: Sequence[str] = (),
) -> Path:
    """Compile one C file with all warnings as errors, and return the object file.

    With gcc there is a `.su` file beside it that `frames` reads.

    Args:
        source: the C file; headers beside it are found.
        folder: where the object file goes.
        compiler: `"gcc"` or `"zig"`; by default the first of `available()`.
        optimise: the compiler's level.
        flags: more options.
    """
    name = _chosen(compiler)
    out = Path(folder) / f"{Path(source).stem}.{name}.o"
    usage = ("-fstack-usage",) if name == "gcc" else ()
    run_tool([*_command(name), *_TARGET[name], *STRICT, *_CODE, *usage, optimise, *flags,
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
        objects: what `compile_object` made, with the same compiler.
        folder: where the file goes.
        name: of the file.
        compiler: as for `compile_object`.
        program: with the start-up code that calls the objects' `main()`, as QEMU needs it;
            without, functions can be called in the `Emulator`.
        libraries: such as `"-lm"`, where the compiler has them (gcc's newlib).
    """
    chosen = _chosen(compiler)
    out = Path(folder) / f"{name}.{chosen}.elf"
    built = [Path(path) for path in objects]
    with resources.as_file(SUPPORT) as support:
        for part in ("memory.c", "startup.c")[: 1 + program]:
            built.append(compile_object(support / part, Path(folder), compiler=chosen))
        # gcc's own functions (division of 64 bits); Zig brings its own along.
        own = ("-lgcc",) if chosen == "gcc" else ()
        entry = "device_reset" if program else "0"
        run_tool([*_command(chosen), *_TARGET[chosen], "-nostdlib", "-static",
                  f"-Wl,-T,{support / 'mps2.ld'}", f"-Wl,-e,{entry}", *map(str, built),
                  *libraries, *own, "-o", str(out)])  # fmt: skip
    return out


def sizes(path: Path) -> SectionSizes:
    """Return what an object or ELF file takes on the device."""
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


def frames(path: Path) -> dict[str, int]:
    """Return the stack frame in bytes of each function of an object file, as gcc tells it.

    The depth of the whole stack is measured by the `Emulator`.
    """
    usage = Path(path).with_suffix(".su")
    if not usage.exists():
        raise DeviceError(
            f"there is no {usage.name} beside {Path(path).name}: only {_GCC} tells the stack "
            "frames. Install gcc-arm-none-eabi, or measure the stack with the Emulator."
        )
    rows = (line.split("\t") for line in usage.read_text(encoding="utf-8").splitlines())
    return {where.rsplit(":", 1)[-1]: int(size) for where, size, _kind in rows}


def _chosen(compiler: str | None) -> str:
    found = available()
    if compiler is not None and compiler not in _TARGET:
        raise DeviceError(f"no compiler {compiler!r}: there are 'gcc' and 'zig'")
    if not found or (compiler is not None and compiler not in found):
        raise DeviceError(
            f"compiling for a Cortex-M4 needs {_GCC} on the PATH (Debian: apt-get install "
            'gcc-arm-none-eabi) or, without root, pip install "secateur[device]"'
            + (f"; {compiler} is not here, {' and '.join(found)} is" if found else "")
        )
    return compiler or found[0]


@functools.cache
def _command(compiler: str) -> tuple[str, ...]:
    return (_GCC,) if compiler == "gcc" else (sys.executable, "-m", "ziglang", "cc")
