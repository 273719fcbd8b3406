"""Errors and instructions of the C functions that exported networks call, beside newlib's.

    python benchmarks/c_math.py [--stride 61]

Errors are the largest over every 61st float32 of each range, against float64, without and with
fused multiplication and addition. Instructions are the mean number per call on the emulated
Cortex-M4F (unicorn) over arguments from -6 to 6, without call and return; flash includes all
functions that are called. newlib is measured as well if arm-none-eabi-gcc is installed.
Instructions are not cycles.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special

from secateur.exports import integers
from secateur.exports.c.c_files import collect_functions
from secateur.exports.device import cortex
from secateur.exports.device.emulator import Emulator

# C is compiled for this computer by a module of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import c_host as host


@dataclass(frozen=True)
class Case:
    """A function, its truth, the range of its stated error, newlib's name for it."""

    name: str
    truth: Callable[[np.ndarray], np.ndarray]
    lowest: float
    highest: float
    newlib: str | None


CASES = [
    Case("exp", np.exp, -86.98, 88.72, "expf"),
    Case("expm1", np.expm1, -86.98, 88.72, "expm1f"),
    Case("log", np.log, 1e-45, 3.4e38, "logf"),
    Case("log1p", np.log1p, -0.9999999, 3.4e38, "log1pf"),
    Case("asinh", np.arcsinh, -3.4e38, 3.4e38, "asinhf"),
    Case("tanh", np.tanh, -20, 20, "tanhf"),
    Case("sigmoid", special.expit, -40, 40, None),
    Case("erf", special.erf, -8, 8, "erff"),
    Case("erfc", special.erfc, -8, 8, "erfcf"),
    Case("sqrt", np.sqrt, 0, 3.4e38, "sqrtf"),
    Case("rsqrt", lambda x: 1 / np.sqrt(x), 1e-38, 3.4e38, None),
    Case("sin", np.sin, -10000, 10000, "sinf"),
    Case("cos", np.cos, -10000, 10000, "cosf"),
    Case("floor", np.floor, -3.4e38, 3.4e38, "floorf"),
    Case("round", np.rint, -3.4e38, 3.4e38, "rintf"),
]
CHUNK = 1 << 22


def arguments(lowest: float, highest: float, stride: int) -> Iterator[np.ndarray]:
    """All float32 of a range, or every stride-th, in pieces; both ends are there."""
    for begin, end, sign in (
        (max(lowest, 0.0), highest, 0),
        (max(-highest, 0.0), -lowest, 1 << 31),
    ):
        if end < 0:
            continue
        bits = [int(np.float32(v).view(np.uint32)) for v in (begin, end)]
        for first in range(bits[0], bits[1] + 1, CHUNK * stride):
            last = min(first + CHUNK * stride, bits[1] + 1)
            piece = np.arange(first, last, stride, dtype=np.uint64)
            yield (np.append(piece, bits[1]).astype(np.uint32) | np.uint32(sign)).view(np.float32)


def source(folder: Path, name: str, call: str, body: str, kind: str = "float") -> Path:
    """A file with one function over arrays: y[i] = call(x[i])."""
    path = folder / f"{name}.c"
    path.write_text(
        f"#include <stdint.h>\n\n{body}\n"
        f"static __attribute__((noinline)) {kind} once({kind} x)\n{{\n    return {call}(x);\n}}\n\n"
        f"void run_{name}(const {kind} *x, {kind} *y, int32_t count);\n"
        f"void run_{name}(const {kind} *x, {kind} *y, int32_t count)\n"
        f"{{\n    int32_t i;\n    for (i = 0; i < count; i++) y[i] = once(x[i]);\n}}\n",
        encoding="utf-8",
    )
    return path


def library(case: Case, folder: Path, flags: tuple[str, ...]) -> host.Library:
    """The function for this computer; in a folder of its own, as libraries are loaded by path."""
    place = folder / ("plain" if not flags else flags[0].strip("-"))
    place.mkdir(exist_ok=True)
    body = collect_functions([case.name])
    return host.build_library(
        [source(place, case.name, f"sc_{case.name}", body)], place, flags=flags
    )


def errors(case: Case, built: host.Library, stride: int) -> tuple[float, float]:
    """The largest absolute and relative error, where the true value is neither 0 nor too large."""
    absolute = relative = 0.0
    for x in arguments(case.lowest, case.highest, stride):
        y = np.empty_like(x)
        built.call(f"run_{case.name}", x, y, x.size)
        with np.errstate(all="ignore"):
            truth = case.truth(x.astype(np.float64))
        keep = np.isfinite(truth.astype(np.float32))
        difference = np.abs(y[keep] - truth[keep])
        absolute = max(absolute, float(difference.max(initial=0)))
        # Below the smallest normal float32, every result lacks digits.
        normal = np.abs(truth[keep]) > 1.2e-38
        relative = max(
            relative, float((difference[normal] / np.abs(truth[keep][normal])).max(initial=0))
        )
    return absolute, relative


def instructions(
    folder: Path, call: str, body: str, x: np.ndarray, libraries: tuple[str, ...] = ()
) -> tuple[float, int]:
    """Instructions of one call, and bytes of flash of the function with all that it calls."""
    kind = "float" if x.dtype == np.float32 else "int16_t"
    measured = []
    for name, called, text in (("f", call, body), ("g", "", "")):
        path = source(folder, name, called, text, kind)
        built = cortex.compile_object(path, folder, flags=["-fno-builtin"])
        elf = cortex.link([built], folder, name=name, libraries=libraries)
        run = Emulator(elf).call(f"run_{name}", x, np.empty_like(x), x.size)
        measured.append((run.instructions, cortex.sizes(elf).flash))
    (count, flash), (empty_count, empty_flash) = measured
    return (count - empty_count) / x.size, flash - empty_flash


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stride", type=int, default=61, help="stride through the float32 values")
    options = parser.parse_args()
    with_fma = ("-mfma", "-ffp-contract=fast") if platform.machine() == "x86_64" else ()
    print("| | range | absolute error | relative error | instructions | flash |", end="")
    print(" newlib: instructions | flash |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in CASES:
            found = [errors(case, library(case, folder, flags), options.stride)
                     for flags in {(), with_fma}]  # fmt: skip
            absolute, relative = map(max, zip(*found, strict=True))
            x = np.linspace(max(case.lowest, -6), min(case.highest, 6), 500, dtype=np.float32)
            body = collect_functions([case.name])
            count, flash = instructions(folder, f"sc_{case.name}", body, x)
            beside = "| |"
            if case.newlib and cortex.available()[0] == "gcc":
                declared = f"float {case.newlib}(float);\n"
                theirs = instructions(folder, case.newlib, declared, x, ("-lm", "-lc"))
                beside = f"{theirs[0]:.0f} | {theirs[1]} |"
            print(
                f"| {case.name} | {case.lowest:g} … {case.highest:g} | {absolute:.2e} | "
                f"{relative:.2e} | {count:.0f} | {flash} | {beside}",
                flush=True,
            )
        every = np.arange(-32768, 32768).astype(np.int16)
        for name, truth in (("tanh_q15", np.tanh(every / 4096)),
                            ("sigmoid_q15", special.expit(every / 2048))):  # fmt: skip
            error = np.abs(getattr(integers, name)(every) - 32768 * truth).max()
            call = instructions(folder, f"sc_{name}", collect_functions([name]), every[::64].copy())
            print(f"| {name} | all | {error:.2f} units | | {call[0]:.0f} | {call[1]} | | |")


if __name__ == "__main__":
    main()
