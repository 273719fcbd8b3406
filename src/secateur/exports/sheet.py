"""`Sheet`: the size, arithmetic and accuracy of an export.

For readers of a sheet (report, command line, records of runs):

    sheet.files, .target ("c" or "onnx"), .style, .notes
    sheet.size        .parameters .weights .stored .file_bytes .flash_bytes .ram_bytes .state_bytes
                      .stack_bytes
    sheet.arithmetic  .quantise .optimise .multiply_adds .instructions .tensors
    sheet.accuracy    .mean .from_predict .largest_rounding .exact .quantised; `.from_predict` is a
                      tuple of `Difference`s (.output .largest .rms .changed_classes .rows
                      .is_drawn); the last two are `Scores` (.free_energy .log_density .correct) or
                      None
    sheet.title, sheet.rows() -> [(what, number as text)], sheet.table(), sheet.to_dict(),
    sheet.to_json()

JSON has the same nesting: {"files": …, "target": …, "size": {…}, "arithmetic": {…},
"accuracy": {…, "exact": {…}, "quantised": {…}}, "notes": […], …}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Accuracy", "Arithmetic", "Difference", "Scores", "Sheet", "Size", "TensorBits"]


@dataclass(frozen=True)
class Size:
    """The size of an export; None for what does not apply or was not measured.

    Attributes:
        parameters: Number of elements of the trained network's arrays, before compacting.
        weights: Number of weights after pruning: `Trained.live_weights` of the exported model, as
            in the report and on the command line.
        stored: Number of factors that C stores. It differs from the number of weights: biases are
            terms, weights of dead units are not written, and moments need variances.
        file_bytes: Size of the ONNX file.
        flash_bytes: Code and constants, compiled for a Cortex-M4F.
        ram_bytes: Static memory and state.
        state_bytes: Size of the state that the caller of a recurrent network provides.
        stack_bytes: Maximum stack depth of a call.
    """

    parameters: int | None = None
    weights: int | None = None
    stored: int | None = None
    file_bytes: int | None = None
    flash_bytes: int | None = None
    ram_bytes: int | None = None
    state_bytes: int | None = None
    stack_bytes: int | None = None


@dataclass(frozen=True)
class TensorBits:
    """Rounding of the weights of one product.

    Attributes:
        weights: Number of remaining weights.
        bits: Number of bits per weight.
        step: Spacing of the values in the graph's units; for 16 bits, relative to the weight.
        noise: Mean of (step²/12)/σ², with the posterior's variance σ² of each weight.
    """

    weights: int
    bits: int
    step: float
    noise: float


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of an export.

    Attributes:
        quantise: Name of the quantisation mode, or None for float32.
        optimise: "size" or "speed" for C, or None.
        multiply_adds: Number of multiply-adds per call.
        instructions: Number of instructions of a call on the emulated Cortex-M4F; not cycles.
        tensors: Rounding of the weights of each product.
    """

    quantise: str | None = None
    optimise: str | None = None
    multiply_adds: int | None = None
    instructions: int | None = None
    tensors: tuple[TensorBits, ...] = ()


@dataclass(frozen=True)
class Scores:
    """Scores of a network on rows with targets.

    Attributes:
        free_energy: Free energy of these rows in nats, or None if it is not known.
        log_density: Mean log-density of the targets in nats.
        correct: Accuracy, for classification; otherwise None.
    """

    free_energy: float | None
    log_density: float
    correct: float | None


@dataclass(frozen=True)
class Difference:
    """Difference between predictions of an export and those of `Trained.predict` on some rows.

    Attributes:
        output: Name of the output, or None.
        largest: Largest difference, of means in the units of the target or of probabilities.
        rms: Root mean square of the differences.
        changed_classes: Number of rows whose most probable class differs; None if there are no
            classes.
        rows: Number of rows.
        is_drawn: Whether the rows were drawn at random, because none were given.
    """

    output: str | None
    largest: float
    rms: float
    changed_classes: int | None
    rows: int
    is_drawn: bool

    def describe(self) -> str:
        """Return a sentence for the header of a C file."""
        what = "the mean" if self.changed_classes is None else "a probability"
        of = "" if self.output is None else f" of {self.output}"
        classes = ""
        if self.changed_classes is not None:
            classes = f"; a different class in {self.changed_classes} rows"
        kind = "drawn at random" if self.is_drawn else "of data"
        return (
            f"Difference of {what}{of} from Trained.predict on {self.rows} rows {kind}: at most "
            f"{self.largest:.2g}, root mean square {self.rms:.2g}{classes}."
        )


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of an export compared with the model.

    Attributes:
        mean: "weights" if the network is evaluated at the posterior means of its weights,
            "predictive" if predictions are averaged over the posterior.
        from_predict: Difference from `Trained.predict`, by output; empty if it is not known.
        largest_rounding: Largest difference between the emulated device and the same computation
            in Python, in the units of the outputs, or None.
        exact: Scores of the network before quantisation, or None without targets.
        quantised: Scores of the quantised network, or None.
    """

    mean: str = "weights"
    from_predict: tuple[Difference, ...] = ()
    largest_rounding: float | None = None
    exact: Scores | None = None
    quantised: Scores | None = None


@dataclass(frozen=True)
class Sheet:
    """The size, arithmetic and accuracy of one export.

    Attributes:
        files: Names of the files that were written.
        target: "c" or "onnx".
        style: "straight" (one line of code per number) or "loops" for C; the operators for ONNX.
        size: Size of the export.
        arithmetic: Operations and number format.
        accuracy: Difference from the model.
        notes: Remarks for the reader, in sentences.
    """

    files: tuple[str, ...]
    target: str
    style: str
    size: Size = field(default_factory=Size)
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    accuracy: Accuracy = field(default_factory=Accuracy)
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return a short title."""
        if self.target == "onnx":
            return "ONNX"
        return f"C, {self.arithmetic.quantise or 'float32'}, for {self.arithmetic.optimise}"

    def rows(self) -> list[tuple[str, str]]:
        """Return the known entries as pairs of label and formatted number."""
        return [
            (what, f"{number:{form}}")
            for what, number, form in self._numbers()
            if number is not None
        ]

    def _numbers(self) -> Iterator[tuple[str, float | None, str]]:
        size, arithmetic, accuracy = self.size, self.arithmetic, self.accuracy
        yield "parameters of the trained network", size.parameters, ","
        yield "remaining weights", size.weights, ","
        yield "stored factors", size.stored, ","
        yield "flash, bytes", size.flash_bytes, ","
        yield "RAM, bytes", size.ram_bytes, ","
        yield "of which state, kept by the caller", size.state_bytes, ","
        yield "stack, bytes", size.stack_bytes, ","
        yield "file, bytes", size.file_bytes, ","
        yield "multiply-adds per inference", arithmetic.multiply_adds, ","
        yield "instructions per inference", arithmetic.instructions, ","
        yield "largest rounding error on the device", accuracy.largest_rounding, ".2g"
        for difference in accuracy.from_predict:
            of = "" if difference.output is None else f" ({difference.output})"
            yield f"difference from predict{of}, largest", difference.largest, ".2g"
            yield "  root mean square", difference.rms, ".2g"
            yield "  rows with a different class", difference.changed_classes, ","
            yield "  on rows", difference.rows, ","
        for what, name, form in (
            ("free energy of the given rows, nats", "free_energy", ".2f"),
            ("log-density per row, nats", "log_density", ".4f"),
            ("correct classes", "correct", ".2%"),
        ):
            for label, scores in (
                (what, accuracy.exact),
                ("  after quantisation", accuracy.quantised),
            ):
                yield label, None if scores is None else vars(scores)[name], form

    def table(self) -> str:
        """Return the sheet as text."""
        rows = self.rows()
        width = max((len(what) for what, _ in rows), default=0)
        number = max((len(value) for _, value in rows), default=0)
        lines = [f"{what:<{width}}  {value:>{number}}" for what, value in rows]
        if self.arithmetic.tensors:
            lines += ["", "weights   bits   step       noise of rounding / of the posterior"]
            lines += [
                f"{t.weights:7d} {t.bits:6d}   {t.step:<9.3g}  {t.noise:.3g}"
                for t in self.arithmetic.tensors
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
