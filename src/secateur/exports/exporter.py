"""`secateur.export`: a trained model as a file that a device can run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from secateur import storage
from secateur.compaction import compact
from secateur.exports.c.c_files import check_file, check_prefix
from secateur.exports.c.model_source import ModelSource, check_options, translate_model
from secateur.exports.device import DeviceError
from secateur.exports.device.measurement import measure_source
from secateur.exports.graph import ExportError
from secateur.exports.onnx.onnx_model import import_onnx, to_onnx
from secateur.exports.scoring import score_rows
from secateur.exports.sheet import Accuracy, Arithmetic, Sheet, Size
from secateur.networks import Dense, Gru
from secateur.propagation import UnsupportedOperation
from secateur.pytrees import uncertain_leaves
from secateur.trained import Trained

__all__ = ["export"]

_COMPARED_CALLS = 64  # that are compared with Python


def export(
    trained: Trained | Any,
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
    """Write a trained model as ONNX or as C, and return what it is in numbers.

    Dead units are taken out first (`compact`). Raw inputs go in and predictions in the data's own
    units come out: standardisation is part of what is written.

    `NAME.onnx`: mean, standard deviation and interval, probabilities or rates; see `to_onnx`.

    `NAME.c`, with `NAME.h` beside it: C99 that needs no library; see `to_c`.

    Args:
        trained: A trained model, from `fit`, `prune`, `update`, `load` or `compact`, or an
            estimator of `secateur.sklearn`, of which `inputs` are rows of X.
        path: File to write, ending in `.onnx` or `.c`.
        inputs: Rows like those the model was fitted to. Needed for a function of your own. With
            `quantise` they say how large activations become; by default rows are drawn from normal
            distributions with the inputs' means and deviations.
        targets: Targets of these rows. With them the sheet says what quantisation costs.
        held_out: Other inputs and their targets, to judge that by.
        quantise: "int8" or "int16x8" for C in integers: weights of at most 8 bits, as many as the
            posterior asks for, and activations of 8 (inputs of 16) or 16 bits. "weights8" rounds
            the weights alike and computes in floats; "weights16" keeps the first 16 bits of each.
        optimise: "size" or "speed".
        name: Prefix of all C functions. Defaults to the file's name.
        input_names: Names of the inputs, for the header or the metadata. Defaults to those of the
            model's table.
        output_names: Names of the outputs, likewise.
        measured: Whether C is compiled for a Cortex-M4F and run in an emulator for the sheet,
            where these are installed (`pip install "secateur[device]"`).

    Returns:
        The `Sheet`, which is also written as `NAME.c.json` or `NAME.onnx.json` beside the export.

    Raises:
        ExportError: The model or an option cannot be exported; nothing was written then.

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
    if not isinstance(trained, Trained) and hasattr(trained, "result_"):  # an estimator
        inputs = None if inputs is None else trained.encode(inputs)
        trained = trained.result_
    if not isinstance(trained, Trained):
        raise TypeError(
            f"export: a {type(trained).__name__} is not a trained model. Give what fit, prune, "
            "update, load or compact returned."
        )
    _check_path(path, quantise)
    check_options(quantise, optimise)
    _check_rows(trained, inputs, targets)
    if held_out is not None:
        _check_rows(trained, *held_out)
    parameters = sum(int(np.size(q.mean)) for q in uncertain_leaves(trained.beliefs))
    files: dict[Path, str | bytes]
    if path.suffix == ".onnx":
        import_onnx()  # before anything that takes time
        small = _compact(trained, inputs)
        content = to_onnx(small, inputs=inputs, input_names=input_names)
        sheet = _describe_onnx(small, content, path.name)
        files = {path: content}
    else:
        check_file(path.stem)
        prefix = check_prefix(path.stem if name is None else name)
        small = _compact(trained, inputs)
        translation = translate_model(
            small,
            name=prefix,
            header=f"{path.stem}.h",
            inputs=inputs,
            quantise=quantise,
            optimise=optimise,
            input_names=input_names,
            output_names=output_names,
        )
        judged = held_out if targets is None or held_out is not None else (inputs, targets)
        sheet = _describe_c(small, translation, path, quantise, optimise, judged, measured)
        files = {path: translation.source.source, path.with_suffix(".h"): translation.source.header}
    notes = sheet.notes
    if small.compaction is None:
        notes += (
            "Dead units are still in it: an operation has no moments, which compacting needs.",
        )
    sheet = replace(sheet, size=replace(sheet.size, parameters=parameters), notes=notes)
    _write_files(files | {path.with_name(f"{path.name}.json"): sheet.to_json()})
    return sheet


def _check_path(path: Path, quantise: str | None) -> None:
    if path.suffix not in (".c", ".onnx"):
        raise ExportError(f"{path.name} ends in {path.suffix!r}. Supported: .onnx and .c.")
    if quantise is not None and path.suffix == ".onnx":
        raise ExportError("ONNX is written in float32. Quantised networks are written as C.")
    if not path.parent.is_dir():
        raise ExportError(f"there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ExportError(f"nothing can be written to {path.parent}.")
    for suffix in (".onnx",) if path.suffix == ".onnx" else (".c", ".h"):
        for file in (path.with_suffix(suffix), path.with_name(f"{path.name}.json")):
            if file.exists() and not file.is_file():
                raise ExportError(f"{file} cannot be written: it is not a file.")


def _check_rows(trained: Trained, inputs: Any, targets: Any) -> None:
    if inputs is None:
        if targets is not None:
            raise ExportError("targets are given without inputs. Give inputs=…, their rows.")
        return
    rows, network, scale = np.asarray(inputs), trained.model.f, trained.scaling.inputs
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


def _compact(trained: Trained, inputs: Any) -> Trained:
    """Return the model without its dead units."""
    if trained.compaction is not None:
        return trained
    if inputs is None and not isinstance(trained.model.f, Dense | Gru):
        raise ExportError(
            "the shape of the model's inputs is not known. Give some rows of the data with inputs=…"
        )
    try:
        return compact(trained, inputs=None if inputs is None else np.asarray(inputs)[:8])
    except UnsupportedOperation:  # of its moments; what is exported may have none
        return trained


# --- what the sheet says --------------------------------------------------------------------------


def _describe_onnx(small: Trained, content: bytes, file: str) -> Sheet:
    model = import_onnx().load_from_string(content)
    operators = Counter(node.op_type for node in model.graph.node)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    return Sheet(
        files=(file, f"{file}.json"),
        target="onnx",
        style=", ".join(f"{count} {kind}" for kind, count in operators.items()),
        size=Size(nonzeros=small.live_weights, file_bytes=len(content)),
        notes=tuple(f"{o.name}: {facts[f'output_{o.name}']}" for o in model.graph.output),
    )


def _describe_c(
    small: Trained,
    translation: ModelSource,
    path: Path,
    quantise: str | None,
    optimise: str,
    judged: tuple[Any, Any] | None,
    measured: bool,
) -> Sheet:
    model, quantised, source = translation
    sheet = Sheet(
        files=(path.name, f"{path.stem}.h", f"{path.name}.json"),
        target="c",
        style=source.style,
        size=Size(nonzeros=model.nonzeros, state_bytes=source.state_bytes or None),
        arithmetic=Arithmetic(
            quantise=quantise,
            optimise=optimise,
            multiply_adds=source.multiply_adds,
            tensors=tuple(quantised.tensors) if quantised else (),
        ),
    )
    if measured:
        sheet = _add_measurement(sheet, translation, optimise)
    notes = []
    if quantised is not None and model.is_drawn and quantised.mode in ("int8", "int16x8"):
        notes.append(
            "Activations were scaled by rows drawn from normal distributions; give real rows."
        )
    if quantised is not None and quantised.in_floats:
        steps = ", ".join(sorted(set(quantised.in_floats)))
        notes.append(f"Computed in floats, for want of integer functions: {steps}.")
    accuracy = sheet.accuracy
    if judged is not None:
        exact, after = score_rows(small, model, quantised, *judged)
        accuracy = replace(accuracy, exact=exact, quantised=after)
    return replace(sheet, accuracy=accuracy, notes=(*sheet.notes, *notes))


def _add_measurement(sheet: Sheet, translation: ModelSource, optimise: str) -> Sheet:
    """Return the sheet with what the emulated device says, or why it says nothing."""
    source = translation.source
    calls, truth = translation.expect(_COMPARED_CALLS)
    try:
        device = measure_source(source, calls, optimise=optimise)
    except DeviceError as error:
        return replace(sheet, notes=(f"Not measured on a device: {error}",))
    difference = float(np.max(np.abs(truth - device.outputs), initial=0.0))
    return replace(
        sheet,
        size=replace(
            sheet.size,
            flash_bytes=device.flash_bytes,
            ram_bytes=device.ram_bytes + source.state_bytes,
            stack_bytes=device.stack_bytes,
        ),
        arithmetic=replace(sheet.arithmetic, instructions=device.instructions),
        accuracy=Accuracy(largest_difference=difference),
        notes=("Instructions are those of a Cortex-M4F, and not cycles.",),
    )


def _write_files(files: dict[Path, str | bytes]) -> None:
    """Write all files; or none, where one of them cannot be written."""
    before: dict[Path, bytes | None] = {}
    for path, content in files.items():
        try:
            old = path.read_bytes() if path.exists() else None
            storage.write_file(path, content)
            before[path] = old
        except OSError as error:
            for other, text in before.items():
                if text is None:
                    other.unlink(missing_ok=True)
                else:
                    storage.write_file(other, text)
            reason = error.strerror or str(error)
            raise ExportError(f"{path} cannot be written: {reason}.") from error
