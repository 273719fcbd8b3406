"""Measurement of exported C on a Cortex-M4F, compiled and run in an emulator."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secateur.exports.c.source_writer import Source
from secateur.exports.device import cortex, emulator

__all__ = ["DeviceMeasurement", "measure_source"]

_STATE = 1 << 16  # bytes reserved for a state, more than any needs


@dataclass(frozen=True)
class DeviceMeasurement:
    """Sizes, and the cost and results of calls.

    Attributes:
        flash_bytes: Code and constants.
        ram_bytes: Static memory.
        stack_bytes: Maximum stack depth of a call.
        instructions: Number of instructions of a call, on average over the rows or frames.
        outputs: Outputs of every row or frame.
    """

    flash_bytes: int
    ram_bytes: int
    stack_bytes: int
    instructions: int
    outputs: np.ndarray


def measure_source(
    source: Source, frames: np.ndarray, *, optimise: str = "size", compiler: str | None = None
) -> DeviceMeasurement:
    """Compile C for a Cortex-M4F and run it on rows, or on consecutive frames.

    Args:
        source: The files.
        frames: Inputs of shape (calls, inputs).
        optimise: "size" compiles with -Os, "speed" with -O2.
        compiler: "gcc" or "zig". Defaults to the one that is installed.

    Raises:
        DeviceError: A compiler or the emulator is missing; the message says what to install.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / f"{source.name}.h").write_text(source.header, encoding="utf-8")
        (folder / f"{source.name}.c").write_text(source.source, encoding="utf-8")
        compiled = cortex.compile_object(
            folder / f"{source.name}.c",
            folder,
            compiler=compiler,
            optimise="-Os" if optimise == "size" else "-O2",
        )
        sizes = cortex.sizes(compiled)
        machine = emulator.Emulator(cortex.link([compiled], folder, compiler=compiler))
        states = []
        if source.state_elements:
            states = [np.zeros(_STATE // 4, np.float32)]
            machine.call(f"{source.name}_init", *states)
        outputs, counts, deepest = [], [], 0
        for frame in frames.reshape(len(frames), -1):
            x = np.ascontiguousarray(frame, np.float32)
            y = np.zeros(source.outputs, np.float32)
            run = machine.call(f"{source.name}_predict", *states, x, y)
            outputs.append(y)
            counts.append(run.instructions or 0)
            deepest = max(deepest, run.stack_bytes or 0)
    return DeviceMeasurement(
        sizes.flash, sizes.ram, deepest, round(float(np.mean(counts))), np.stack(outputs)
    )
