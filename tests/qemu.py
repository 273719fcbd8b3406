"""A whole program on the board MPS2 with a Cortex-M4, emulated by QEMU."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from secateur.exports.device import cortex
from secateur.exports.device.toolchain import DeviceError, executable

__all__ = ["Outcome", "build", "find", "run"]

_REMEDY = "Debian: apt-get install qemu-system-arm. The Emulator needs no such program."


@dataclass(frozen=True)
class Outcome:
    """What a program printed, and what its `main()` returned."""

    code: int
    output: str


def find() -> str:
    """Return the path of QEMU."""
    return executable(["qemu-system-arm"], "emulating a whole board", _REMEDY)


def build(
    sources: Sequence[Path],
    folder: Path,
    *,
    name: str = "program",
    compiler: str | None = None,
    optimise: str = "-O2",
    flags: Sequence[str] = (),
) -> Path:
    """Compile and link a program with an `int main(void)` for the board.

    Its sources may include `device.h` (`device_print`, `device_ticks` and others; see there).
    """
    with resources.as_file(cortex.SUPPORT) as support:
        objects = [
            cortex.compile_object(
                source, folder, compiler=compiler, optimise=optimise, flags=[f"-I{support}", *flags]
            )
            for source in sources
        ]
    return cortex.link(objects, folder, name=name, compiler=compiler, program=True)


def run(elf: Path, *, timeout: float = 60.0) -> Outcome:
    """Run a program that `build` made until its `main()` returns.

    One instruction takes 64 ns of the emulated time, so what `device_instructions_between` tells
    is exact and the same in each run.
    """
    command = [find(), "-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none",
               "-semihosting-config", "enable=on,target=native", "-icount", "shift=6",
               "-kernel", str(elf)]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, errors="replace",
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{Path(elf).name} did not end within {timeout:g} s in QEMU") from error
    # QEMU writes what the program prints to stderr.
    return Outcome(done.returncode, done.stderr)
