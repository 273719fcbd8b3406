"""What an export is: its size, its speed, and how far it is from the model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from secateur.exports.bits import TensorBits

__all__ = ["Sheet"]

# Rows of the table: what is shown, the field, and how its number is written.
_ROWS = (
    ("parameters of the trained network", "parameters", ","),
    ("weights that are left", "nonzeros", ","),
    ("flash, bytes", "flash_bytes", ","),
    ("RAM, bytes", "ram_bytes", ","),
    ("of which state, kept by the caller", "state_bytes", ","),
    ("stack, bytes", "stack_bytes", ","),
    ("file, bytes", "file_bytes", ","),
    ("multiply-adds per inference", "multiply_adds", ","),
    ("instructions per inference", "instructions", ","),
    ("largest difference from Python", "largest_difference", ".2g"),
    ("free energy on the rows given, nats", "free_energy", ".2f"),
    ("  after quantisation", "free_energy_quantised", ".2f"),
    ("log-density per row, nats", "log_density", ".4f"),
    ("  after quantisation", "log_density_quantised", ".4f"),
    ("correct classes", "correct", ".2%"),
    ("  after quantisation", "correct_quantised", ".2%"),
)


@dataclass(frozen=True)
class Sheet:
    """One export in numbers; None where something was not measured.

    Attributes:
        files: that were written.
        target: "c" or "onnx".
        style: of C: "straight" (a line for every number) or "loops"; of ONNX what was written.
        quantise: None, or one of `MODES`.
        optimise: "size" or "speed".
        parameters: elements of the trained network's arrays, before pruning and compacting.
        nonzeros: weights that are not 0 in what was written.
        flash_bytes: code and constants, compiled for a Cortex-M4F.
        ram_bytes: static memory and state.
        state_bytes: what a recurrent network's caller keeps.
        stack_bytes: the deepest stack of a call.
        file_bytes: of the ONNX file.
        multiply_adds: products with weights.
        instructions: of one call on the emulated Cortex-M4F. They are not cycles.
        largest_difference: over the test vectors, in the outputs' units.
        free_energy: on the rows given, in nats.
        free_energy_quantised: the same with the rounded weights.
        log_density: mean over the rows given, of the network as exported without quantisation.
        log_density_quantised: the same of the integers' network.
        correct: share of the rows whose class is right.
        correct_quantised: the same of the integers' network.
        tensors: how each product's weights were rounded.
        notes: what a reader should know.
    """

    files: tuple[str, ...]
    target: str
    style: str
    quantise: str | None = None
    optimise: str | None = None
    parameters: int | None = None
    nonzeros: int | None = None
    flash_bytes: int | None = None
    ram_bytes: int | None = None
    state_bytes: int | None = None
    stack_bytes: int | None = None
    file_bytes: int | None = None
    multiply_adds: int | None = None
    instructions: int | None = None
    largest_difference: float | None = None
    free_energy: float | None = None
    free_energy_quantised: float | None = None
    log_density: float | None = None
    log_density_quantised: float | None = None
    correct: float | None = None
    correct_quantised: float | None = None
    tensors: tuple[TensorBits, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def title(self) -> str:
        """Return what it is, in a few words."""
        if self.target == "onnx":
            return "ONNX"
        return f"C, {self.quantise or 'float32'}, for {self.optimise}"

    def rows(self) -> list[tuple[str, str]]:
        """Return what was measured, and the number as text."""
        return [
            (what, f"{getattr(self, name):{form}}")
            for what, name, form in _ROWS
            if getattr(self, name) is not None
        ]

    def table(self) -> str:
        """Return the sheet as text."""
        rows = self.rows()
        width = max((len(what) for what, _ in rows), default=0)
        number = max((len(value) for _, value in rows), default=0)
        lines = [f"{what:<{width}}  {value:>{number}}" for what, value in rows]
        if self.tensors:
            lines += ["", "weights   bits   step       noise of rounding / of the posterior"]
            lines += [
                f"{t.weights:7d} {t.bits:6d}   {t.step:<9.3g}  {t.noise:.3g}" for t in self.tensors
            ]
        return "\n".join([*lines, *(("", *self.notes) if self.notes else ())])

    def __str__(self) -> str:
        return self.table()

    def to_json(self) -> str:
        """Return the sheet as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the sheet as plain values."""
        return asdict(self)
