"""C compiled for this computer: a library to call, or a program under sanitizers."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from secateur.exports.device.toolchain import (
    STRICT,
    CallResult,
    DeviceError,
    executable,
    folders_of,
    package,
    run_tool,
)

_REMEDY = "Install a C compiler (Debian: apt-get install gcc), or name one in the variable CC."
_SANITIZE = ("-fsanitize=undefined,address", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
             "-g")  # fmt: skip


def find() -> str:
    """Return the path of the C compiler: $CC, gcc, cc or clang."""
    names = [name for name in (os.environ.get("CC"), "gcc", "cc", "clang") if name]
    return executable(names, "compiling C", _REMEDY)


def compile_object(
    source: Path, folder: Path, *, optimise: str = "-O2", flags: Sequence[str] = ()
) -> Path:
    """Compile one C file with all warnings as errors, and return the object file."""
    out = Path(folder) / f"{Path(source).stem}.host.o"
    run_tool([find(), *STRICT, optimise, *flags, *folders_of([source]), "-c", str(source),
              "-o", str(out)])  # fmt: skip
    return out


def undefined_symbols(path: Path) -> list[str]:
    """Return the names that an object file expects others to define."""
    nm = executable(["nm"], "reading an object file", "Debian: apt-get install binutils.")
    return sorted(line.split()[-1] for line in run_tool([nm, "-u", str(path)]).splitlines() if line)


def undefined_elf_symbols(path: Path) -> list[str]:
    """Return the names that an object or ELF file expects others to define (`nm -u`)."""
    elffile = package("elftools.elf.elffile", "reading an object file")
    with open(path, "rb") as file:
        table = elffile.ELFFile(file).get_section_by_name(".symtab")
        names = {
            symbol.name
            for symbol in (table.iter_symbols() if table else ())
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name
        }
    # Made by the linker; the sanitizers and position-independent code name it.
    return sorted(names - {"_GLOBAL_OFFSET_TABLE_"})


def build_library(
    sources: Sequence[Path], folder: Path, *, optimise: str = "-O2", flags: Sequence[str] = ()
) -> Library:
    """Compile C files into a shared library, and load it."""
    out = Path(folder) / f"{Path(sources[0]).stem}.so"
    run_tool([find(), *STRICT, optimise, *flags, "-shared", "-fPIC", *folders_of(sources),
              *map(str, sources), "-o", str(out)])  # fmt: skip
    return Library(out)


class Library:
    """A shared library whose functions are called with arrays."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._library = ctypes.CDLL(str(self.path.resolve()))

    def call(self, symbol: str, *arguments: np.ndarray | int) -> CallResult:
        """Call a function with pointers to the arrays, which it may change.

        Args:
            symbol: the name of a function that is not static.
            arguments: contiguous arrays, passed as pointers; integers, passed as `int`.
        """
        try:
            function = getattr(self._library, symbol)
        except AttributeError as error:
            raise DeviceError(f"{self.path.name} has no function {symbol!r}") from error
        function.restype = ctypes.c_int
        return CallResult(returned=function(*map(_passed, arguments)))


def build_sanitized(
    sources: Sequence[Path], header: Path, functions: Mapping[str, int], folder: Path,
    *, flags: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Compile C files into a program for `run_sanitized`.

    The program stops at undefined behaviour and at any access outside of an array.

    Args:
        sources: the C files.
        header: the header that declares the functions.
        functions: the functions that will be called, and how many arguments each has, all of
            them pointers.
        folder: where the program goes.
        flags: more options.
    """
    folder = Path(folder)
    driver = folder / "sanitized_driver.c"
    driver.write_text(_driver(Path(header).name, functions), encoding="utf-8")
    out = folder / "sanitized"
    run_tool([find(), *STRICT, "-O1", *_SANITIZE, *flags, *folders_of([*sources, header]),
              *map(str, sources), str(driver), "-o", str(out)])  # fmt: skip
    return out


def run_sanitized(
    program: Path, calls: Sequence[tuple[int, Sequence[np.ndarray]]], *, timeout: float = 120.0
) -> None:
    """Make calls in a program of `build_sanitized`; the arrays get what the functions left there.

    Args:
        program: the program.
        calls: for each call the position of the function among those of `build_sanitized`, and
            its arrays. An array that comes in several calls is the same memory in all of them.
        timeout: seconds.

    Raises:
        DeviceError: with what the sanitizer says, when one stopped the program.
    """
    arrays: dict[int, tuple[int, np.ndarray]] = {}
    script = bytearray()
    for function, given in calls:
        positions = [arrays.setdefault(id(a), (len(arrays), a))[0] for a in given]
        script += struct.pack(f"={1 + len(given)}I", function, *positions)
    content = [array for _, array in arrays.values()]
    sent = bytearray(struct.pack("=2I", len(content), len(calls)))
    for array in content:
        sent += struct.pack("=I", array.nbytes) + array.tobytes()
    done = subprocess.run(
        [str(Path(program).resolve())], input=bytes(sent + script), capture_output=True,
        timeout=timeout, check=False,
    )  # fmt: skip
    if done.returncode or len(done.stdout) != sum(array.nbytes for array in content):
        complaint = done.stderr.decode(errors="replace").strip()
        raise DeviceError(f"the program failed with code {done.returncode}:\n{complaint}")
    position = 0
    for array in content:
        end = position + array.nbytes
        if array.flags.writeable:
            values = np.frombuffer(done.stdout[position:end], array.dtype)
            array[...] = values.reshape(array.shape)
        position = end


def _passed(argument: np.ndarray | int) -> ctypes.c_void_p | int:
    if isinstance(argument, int | np.integer):
        return int(argument)
    if not isinstance(argument, np.ndarray) or not argument.flags.c_contiguous:
        raise DeviceError("arguments are integers or contiguous NumPy arrays")
    return ctypes.c_void_p(argument.ctypes.data)


def _driver(header: str, functions: Mapping[str, int]) -> str:
    """Return a program that reads arrays and calls, each array in memory of its very size."""
    cases = "\n".join(
        f"        case {number}: {{ void *a[{count}]; for (k = 0; k < {count}u; k++) "
        f"a[k] = arrays[word()]; {symbol}({', '.join(f'a[{i}]' for i in range(count))}); break; }}"
        for number, (symbol, count) in enumerate(functions.items())
    )
    return f"""#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "{header}"

static void take(void *to, size_t size)
{{
    if (size && fread(to, 1, size, stdin) != size) exit(3);
}}

static uint32_t word(void)
{{
    uint32_t value;
    take(&value, sizeof value);
    return value;
}}

int main(void)
{{
    const uint32_t count = word(), calls = word();
    void **arrays = malloc((count + 1u) * sizeof *arrays);
    uint32_t *sizes = malloc((count + 1u) * sizeof *sizes);
    uint32_t i, k;
    if (!arrays || !sizes) return 4;
    for (i = 0; i < count; i++) {{
        sizes[i] = word();
        arrays[i] = malloc(sizes[i]);
        take(arrays[i], sizes[i]);
    }}
    for (i = 0; i < calls; i++) {{
        switch (word()) {{
{cases}
        default: return 5;
        }}
    }}
    for (i = 0; i < count; i++) {{
        fwrite(arrays[i], 1, sizes[i], stdout);
        free(arrays[i]);
    }}
    free(arrays);
    free(sizes);
    return 0;
}}
"""
