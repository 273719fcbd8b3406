"""`secateur.export`: a trained model as a file that a device can run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import secateur
from secateur import atomic
from secateur.beliefs.trees import beliefs_in
from secateur.compaction import Compacted, compact
from secateur.exports.c.files import Labels, Vectors
from secateur.exports.c.names import check_file, check_prefix
from secateur.exports.c.writing import Source, write_c
from secateur.exports.evaluate import Numbers
from secateur.exports.graph import ExportError
from secateur.exports.judging import judge
from secateur.exports.measuring import measure
from secateur.exports.models import ModelGraph, model_graph, noise_deviation
from secateur.exports.quantise import MODES, Quantised
from secateur.exports.quantise import quantise as to_integers
from secateur.exports.sheet import Sheet
from secateur.fitting.result import Trained
from secateur.likelihoods import CategoricalLikelihood
from secateur.networks import Dense, Gru
from secateur.propagation import UnsupportedOperation

__all__ = ["export"]

_TEST_VECTORS = 16
_COMPARED = 64  # rows that are held against Python
# In floats these give the same on every machine.
_EXACT = {"add", "sub", "mul", "div", "neg", "max", "min", "abs", "dequantise", "reshape",
          "transpose", "slice", "reverse", "concatenate", "pad", "expand"}  # fmt: skip
OPTIMISE = ("size", "speed")


def export(
    result: Trained,
    path: str | os.PathLike,
    *,
    inputs: Any = None,
    targets: Any = None,
    held_out: tuple[Any, Any] | None = None,
    quantise: str | None = None,
    optimise: str = "size",
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    measured: bool = True,
) -> Sheet:
    """Write a trained model as ONNX or as C, and say what became of it.

    Dead units are taken out first (`compact`). Raw inputs go in and predictions in the data's own
    units come out: standardisation is part of what is written.

    `NAME.onnx`: mean and standard deviation, probabilities or rates; see the how-to on ONNX.

    `NAME.c`, with `NAME.h` beside it: C99 that needs no library. One call per row, or per frame of
    a recurrent network. It predicts the function's value at the posterior means of the weights; of
    classes, their scores before the softmax: the largest is the most probable class.

    Args:
        result: from `fit`, `prune`, `update`, `load` or `compact`.
        path: ends in `.onnx` or `.c`.
        inputs: rows like those the model was fitted to. Needed for a function of your own; with
            `quantise` they say how large activations become; by default rows are drawn from
            normal distributions with the inputs' means and deviations.
        targets: of these rows; with them the sheet says what quantisation costs.
        held_out: other inputs and their targets, to judge that by.
        quantise: "int8" or "int16x8" for C in integers: weights of at most 8 bits, as many as the
            posterior asks for, and activations of 8 (inputs of 16) or 16. "weights8" rounds the
            weights alike and computes in floats; "weights16" keeps the first 16 bits of each.
        optimise: "size" or "speed".
        name: what all C functions begin with; by default the file's.
        input_names: for the header or the metadata; by default those of the model's table.
        output_names: likewise.
        measured: whether C is compiled for a Cortex-M4F and run in an emulator for the sheet,
            where these are installed (`pip install "secateur[device]"`).

    Returns:
        The `Sheet`, also written as `NAME.c.json` or `NAME.onnx.json` beside the export.

    Raises:
        ExportError: the model or a wish cannot be exported; nothing was written then.

    Example:
        >>> import tempfile
        >>> import jax
        >>> import secateur as sc
        >>> network, key = sc.networks.Dense(2, hidden=(3,)), jax.random.key(0)
        >>> x = np.random.default_rng(0).normal(size=(20, 2))
        >>> model = sc.BayesianModel(network, network.init(key))
        >>> fitted = sc.fit(model, (x, x[:, :1]), key=key, epochs=5, progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sheet = sc.export(fitted, f"{folder}/net.c", measured=False)
        >>> sheet.files, sheet.style
        (('net.c', 'net.h', 'net.c.json'), 'straight')
    """
    path = Path(path)
    if not isinstance(result, Trained):
        raise TypeError(
            f"export: a {type(result).__name__} is no trained model. Give what fit, prune, update, "
            "load or compact returned."
        )
    _check_wishes(path, quantise, optimise)
    _check_rows(result, inputs, targets)
    if held_out is not None:
        _check_rows(result, *held_out)
    parameters = sum(int(np.size(q.mean)) for q in beliefs_in(result.beliefs))
    small = _compacted(result, inputs)
    names = _names(result, input_names, output_names)
    if path.suffix == ".onnx":
        sheet, content = _onnx(small, path, inputs, names[0])
        sheet = replace(
            sheet,
            parameters=parameters,
            nonzeros=small.live_weights,
            notes=(*sheet.notes, *_uncompacted(small)),
        )
        _write({path: content, path.with_name(f"{path.name}.json"): sheet.to_json()})
        return sheet
    check_file(path.stem)
    name = check_prefix(path.stem if name is None else name)
    model = model_graph(small, inputs, input_factors=quantise in (None, "weights16"))
    quantised = None if quantise is None else to_integers(model, quantise)
    source = _source(small, model, quantised, name, f"{path.stem}.h", optimise, names)
    judged = held_out
    if judged is None and targets is not None:
        judged = (inputs, targets)
    device, notes = _measured(source, model, quantised, optimise) if measured else ({}, [])
    sheet = Sheet(
        files=(path.name, f"{path.stem}.h", f"{path.name}.json"),
        target="c",
        style=source.style,
        quantise=quantise,
        optimise=optimise,
        parameters=parameters,
        nonzeros=_nonzeros(model),
        multiply_adds=source.multiply_adds,
        state_bytes=source.state_bytes or None,
        tensors=tuple(quantised.tensors) if quantised else (),
        notes=(*notes, *_notes(model, quantised), *_uncompacted(small)),
        **device,
        **({} if judged is None else judge(small, model, quantised, *judged)),
    )
    _write(
        {
            path.with_suffix(".c"): source.source,
            path.with_suffix(".h"): source.header,
            path.with_name(f"{path.name}.json"): sheet.to_json(),
        }
    )
    return sheet


def _check_wishes(path: Path, quantise: str | None, optimise: str) -> None:
    if path.suffix not in (".c", ".onnx"):
        raise ExportError(f"{path.name} ends in {path.suffix!r}. Supported: .onnx and .c.")
    if quantise is not None and quantise not in MODES:
        raise ExportError(f"quantise={quantise!r}. Supported: {', '.join(MODES)}.")
    if quantise is not None and path.suffix == ".onnx":
        raise ExportError("ONNX is written in float32. Quantised networks are written as C.")
    if optimise not in OPTIMISE:
        raise ExportError(f"optimise={optimise!r}. Supported: {', '.join(OPTIMISE)}.")
    if not path.parent.is_dir():
        raise ExportError(f"there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ExportError(f"nothing can be written to {path.parent}.")
    for suffix in (".onnx",) if path.suffix == ".onnx" else (".c", ".h"):
        for made in (path.with_suffix(suffix), path.with_name(f"{path.name}.json")):
            if made.exists() and not made.is_file():
                raise ExportError(f"{made} cannot be written: it is no file.")


def _check_rows(result: Trained, inputs: Any, targets: Any) -> None:
    if inputs is None:
        if targets is not None:
            raise ExportError("targets are given without inputs. Give inputs=…, their rows.")
        return
    rows, network, scale = np.asarray(inputs), result.model.f, result.scaling.inputs
    if rows.ndim < 2 or not len(rows):
        raise ExportError(f"inputs have the shape {rows.shape}. Give rows of inputs, rows first.")
    if not np.all(np.isfinite(rows)):
        raise ExportError("inputs hold numbers that are not finite. Leave such rows out.")
    columns = None if scale is None else np.size(scale.shift)
    if isinstance(network, Dense | Gru):
        columns = network.inputs
    if columns not in (None, 1, rows.shape[-1]):
        raise ExportError(
            f"inputs have {rows.shape[-1]} columns, and the model has {columns} inputs."
        )
    if targets is not None and len(targets) != len(rows):
        raise ExportError(f"there are {len(rows)} rows of inputs and {len(targets)} of targets.")


def _compacted(result: Trained, inputs: Any) -> Trained:
    """The model without its dead units."""
    if isinstance(result, Compacted):
        return result
    if inputs is None and not isinstance(result.model.f, Dense | Gru):
        raise ExportError(
            "the shape of the model's inputs is not known. Give some rows of the data with inputs=…"
        )
    try:
        return compact(result, inputs=None if inputs is None else np.asarray(inputs)[:8])
    except UnsupportedOperation:  # of its moments; what is exported may have none
        return result


def _uncompacted(small: Trained) -> list[str]:
    if isinstance(small, Compacted):
        return []
    return ["Dead units are still in it: an operation has no moments, which compacting needs."]


def _names(
    result: Trained, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Names of inputs and outputs: those given, or those of the table that a run was made from."""
    extra = getattr(result, "extra", None)
    if isinstance(extra, dict) and "table" in extra:
        from secateur.tables import Encoding

        encoding = Encoding.from_json(extra["table"])
        if inputs is None:
            inputs = [found["name"] for found in encoding.inputs]
        if outputs is None:
            (first, *_) = encoding.targets
            outputs = first.classes or [target.name for target in encoding.targets]
    return tuple(inputs or ()), tuple(outputs or ())


def _source(
    small: Trained,
    model: ModelGraph,
    quantised: Quantised | None,
    name: str,
    header: str,
    optimise: str,
    names: tuple[Sequence[str], Sequence[str]],
) -> Source:
    graph = model.graph if quantised is None else quantised.graph
    calls, outputs = _expected(model, quantised, _TEST_VECTORS)
    # In float32 sums round differently with every compiler; integers do not.
    size = float(np.max(np.abs(outputs), initial=0.0)) or 1.0
    tolerance = _tolerance(quantised) * size
    for what, given, size in (
        ("input", names[0], calls[0].size), ("output", names[1], outputs.shape[1])
    ):  # fmt: skip
        if given and len(given) != size:
            raise ExportError(f"{len(given)} {what} names are given, and there are {size} {what}s.")
    noise = noise_deviation(small)
    labels = Labels(
        title=f"{name}: a network pruned by Bayesian model reduction, from secateur "
        f"{secateur.__version__}.",
        inputs=names[0],
        outputs=names[1],
        notes=_header_notes(small, model, quantised),
        noise=() if noise is None else tuple(np.broadcast_to(noise, outputs.shape[1:])),
    )
    vectors = Vectors(calls, outputs, tolerance)
    return write_c(graph, name, header=header, optimise=optimise, labels=labels, vectors=vectors)


def _tolerance(quantised: Quantised | None) -> float:
    """How far the self-test may be off, relative to the largest output."""
    if quantised is None or quantised.mode not in ("int8", "int16x8"):
        return 1e-5
    functions = {
        n.op for n in quantised.graph.nodes if n.output.dtype.kind == "f" and n.op not in _EXACT
    }
    if not functions:
        return 1e-6
    # A function that is off by its last digit can round to the neighbouring integer.
    return 2e-2 if quantised.mode == "int8" else 2e-4


def _header_notes(small: Trained, model: ModelGraph, quantised: Quantised | None) -> list[str]:
    notes = [
        f"Free energy {small.free_energy:.1f} nats; {_nonzeros(model)} weights in its products.",
        "Inputs and outputs are in the units of the data.",
    ]
    if isinstance(small.model.likelihood, CategoricalLikelihood):
        notes.append("Outputs are scores: the largest belongs to the most probable class.")
    if quantised is not None and quantised.mode in ("int8", "int16x8"):
        bits = "8 bits (inputs of 16)" if quantised.mode == "int8" else "16 bits"
        notes.append(f"Weights of at most 8 bits, activations of {bits}, computed in integers.")
    notes += [
        "C99; needs no library and no memory of its own but what is declared here.",
        "With -ffp-contract=fast, multiplications and additions are fused where the processor can.",
    ]
    return notes


def _nonzeros(model: ModelGraph) -> int:
    products = (n for n in model.graph.nodes if n.op in ("linear", "conv"))
    return sum(int(np.count_nonzero(n.attributes["weights"])) for n in products)


def _expected(
    model: ModelGraph, quantised: Quantised | None, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows, or the frames of the first row in their order, and what calls with them must return."""
    rows = model.rows[:1, :most] if model.by_frame else model.rows[:most]
    if quantised is None:
        outputs = model.run(rows.astype(np.float64))
    else:
        outputs = model.run(rows, Numbers(np.float32), quantised.graph)
    calls = rows.reshape(-1, *model.graph.inputs[0].shape)
    return calls, outputs.reshape(len(calls), -1)


def _measured(
    source: Source, model: ModelGraph, quantised: Quantised | None, optimise: str
) -> tuple[dict[str, Any], list[str]]:
    """What the sheet says of the device, and why it says nothing."""
    from secateur.exports.device import DeviceError

    calls, truth = _expected(model, quantised, _COMPARED)
    try:
        found = measure(source, calls, optimise=optimise)
    except DeviceError as error:
        return {}, [f"Not measured on a device: {error}"]
    facts = {
        "flash_bytes": found.flash_bytes,
        "ram_bytes": found.ram_bytes + source.state_bytes,
        "stack_bytes": found.stack_bytes,
        "instructions": found.instructions,
        "largest_difference": float(np.max(np.abs(truth - found.outputs), initial=0.0)),
    }
    return facts, ["Instructions are those of a Cortex-M4F, and not cycles."]


def _notes(model: ModelGraph, quantised: Quantised | None) -> list[str]:
    notes = []
    if quantised is not None and model.drawn and quantised.mode in ("int8", "int16x8"):
        notes.append(
            "Activations were scaled by rows drawn from normal distributions; give real rows."
        )
    if quantised is not None and quantised.in_floats:
        steps = ", ".join(sorted(set(quantised.in_floats)))
        notes.append(f"Computed in floats, for want of integer functions: {steps}.")
    return notes


def _onnx(small: Trained, path: Path, inputs: Any, names: Sequence[str]) -> tuple[Sheet, bytes]:
    from secateur.exports.onnx import write_onnx

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        written = write_onnx(small, made, inputs=inputs, names=names or None)
        content = made.read_bytes()
    meanings = [f"{name}: {meaning}" for name, meaning in written.outputs.items()]
    sheet = Sheet(
        files=(path.name, f"{path.name}.json"),
        target="onnx",
        style=", ".join(f"{count} {kind}" for kind, count in written.operators.items()),
        file_bytes=written.size,
        notes=tuple(meanings),
    )
    return sheet, content


def _write(files: dict[Path, str | bytes]) -> None:
    """Write all files; or none, where one of them cannot be written."""
    before: dict[Path, bytes | None] = {}
    for path, content in files.items():
        try:
            old = path.read_bytes() if path.exists() else None
            atomic.write(path, content)
            before[path] = old
        except OSError as error:
            for other, text in before.items():
                if text is None:
                    other.unlink(missing_ok=True)
                else:
                    atomic.write(other, text)
            reason = error.strerror or str(error)
            raise ExportError(f"{path} cannot be written: {reason}.") from error
