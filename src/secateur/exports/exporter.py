"""`secateur.export`: writes a trained model as a file that a device can run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from secateur import storage
from secateur.exports.c.c_names import check_file, check_prefix
from secateur.exports.c.model_source import ModelSource, check_options, translate_model
from secateur.exports.device import DeviceError
from secateur.exports.device.measurement import measure_source
from secateur.exports.graph import ExportError
from secateur.exports.onnx.onnx_model import OnnxModel, import_onnx, write_onnx
from secateur.exports.scoring import score_rows
from secateur.exports.sheet import Accuracy, Arithmetic, Sheet, Size
from secateur.exports.smaller_model import SmallerModel, make_smaller
from secateur.networks import Dense, Gru
from secateur.options import name_kind
from secateur.pytrees import uncertain_leaves
from secateur.trained import Trained

__all__ = ["export"]

_COMPARED_CALLS = 64  # number of calls that are compared with Python


def export(
    trained: Trained | Any,
    path: str | os.PathLike,
    *,
    inputs: Any = None,
    targets: Any = None,
    held_out: tuple[Any, Any] | None = None,
    quantise: str | None = None,
    optimise: str = "size",
    mean: str | None = None,
    keep_inputs: bool | None = None,
    name: str | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    measured: bool = True,
) -> Sheet:
    """Write a trained model as ONNX or C, and return a sheet of its size, cost and accuracy.

    Dead units are removed first (`compact`). The exported function takes raw inputs and returns
    predictions in the data's own units: standardisation is included. The sheet states the
    difference from the predictions of `Trained.predict`, on `inputs` or on random rows.

    `NAME.onnx`: mean, standard deviation and interval, probabilities or rates; see `to_onnx`.

    `NAME.c` and `NAME.h`: C99 without any library; see `to_c`.

    Args:
        trained: A trained model, from `fit`, `prune`, `update`, `load` or `compact`, or an
            estimator of `secateur.sklearn`; for an estimator, `inputs` are rows of X.
        path: File to write, ending in `.onnx` or `.c`.
        inputs: Rows like those given to `fit`. Needed for a function of your own. With `quantise`
            they determine the ranges of activations. Defaults to random rows from normal
            distributions with the inputs' means and deviations.
        targets: Targets of these rows. With them the sheet states the cost of quantisation.
        held_out: Pair of other inputs and targets on which to measure that cost.
        quantise: "int8" or "int16x8" for C in integers: weights of at most 8 bits, as many as the
            posterior requires, and activations of 8 (inputs of 16) or 16 bits. "weights8" rounds
            the weights in the same way but computes in floats; "weights16" keeps the first 16 bits
            of each float.
        optimise: "size" or "speed".
        mean: "weights" to evaluate the network at the posterior means of its weights, or
            "predictive" for the predictions of `Trained.predict`, computed by moments at several
            times the cost. Defaults to "weights" for C, and to "predictive" for ONNX if available.
        keep_inputs: Whether inputs that no weight reads remain inputs of the export. Defaults to
            False for a model of a table, whose columns are matched by name, and to True otherwise.
        name: Prefix of all C functions. Defaults to the file's name.
        input_names: Names of the model's inputs, for the header or the metadata. Defaults to those
            of its table.
        output_names: Names of the outputs. Defaults to those of its table.
        measured: Whether to compile C for a Cortex-M4F and run it in an emulator for the sheet, if
            these are installed (`pip install pyelftools unicorn ziglang`).

    Returns:
        The `Sheet`, which is also written as `NAME.c.json` or `NAME.onnx.json` beside the export.

    Raises:
        ExportError: The model cannot be exported with these options. No file is written.

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
            f"export: {name_kind(trained)} is not a trained model. Give the result of "
            "fit, prune, update, load or compact."
        )
    _check_path(path, quantise)
    check_options(quantise, optimise, mean)
    _check_rows(trained, inputs, targets)
    if held_out is not None:
        _check_rows(trained, *held_out)
    files: dict[Path, str | bytes]
    if path.suffix == ".onnx":
        import_onnx()  # before anything that takes time
        small = make_smaller(trained, inputs, keep_inputs=keep_inputs)
        model = write_onnx(
            small.model,
            original=trained,
            inputs=small.take_inputs(inputs),
            input_names=small.take_names(input_names),
            mean=mean,
        )
        sheet = _describe_onnx(small, model, path.name)
        files = {path: model.content}
    else:
        check_file(path.stem)
        prefix = check_prefix(path.stem if name is None else name)
        small = make_smaller(trained, inputs, keep_inputs=keep_inputs)
        translation = translate_model(
            small.model,
            original=trained,
            kept=small.kept,
            name=prefix,
            header=f"{path.stem}.h",
            inputs=small.take_inputs(inputs),
            quantise=quantise,
            optimise=optimise,
            mean=mean or "weights",
            input_names=small.take_names(input_names),
            output_names=output_names,
        )
        judged = held_out if targets is None or held_out is not None else (inputs, targets)
        arithmetic = Arithmetic(quantise=quantise, optimise=optimise)
        sheet = _describe_c(small, translation, path, arithmetic, mean or "weights")
        if measured:
            sheet = _add_measurement(sheet, translation, optimise)
        if judged is not None:
            sheet = _add_scores(sheet, small, translation, judged)
        files = {path: translation.source.source, path.with_suffix(".h"): translation.source.header}
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
        raise ExportError("inputs contain numbers that are not finite. Leave such rows out.")
    columns = None if scale is None else np.size(scale.shift)
    if isinstance(network, Dense | Gru):
        columns = network.inputs
    if columns not in (None, 1, rows.shape[-1]):
        raise ExportError(
            f"inputs have {rows.shape[-1]} columns, and the model has {columns} inputs."
        )
    if targets is not None and len(targets) != len(rows):
        raise ExportError(f"there are {len(rows)} rows of inputs and {len(targets)} of targets.")


# --- the sheet ------------------------------------------------------------------------------------


def _describe_size(small: SmallerModel, **known: int | None) -> Size:
    beliefs = small.original.beliefs
    return Size(
        parameters=sum(int(np.size(q.mean)) for q in uncertain_leaves(beliefs)),
        weights=small.original.live_weights,
        **known,
    )


def _list_notes(small: SmallerModel) -> tuple[str, ...]:
    notes, extra = [], small.original.extra
    if isinstance(extra, dict) and "average" in extra:
        count = extra["average"]["models"]
        notes.append(
            f"Predictions of the run or estimator average {count} models. This is the one with "
            "the lowest free energy; differences from predict are those from its own predictions."
        )
    if small.model.compaction is None:
        notes.append(
            "Dead units were not removed: compacting needs moments, which an operation lacks."
        )
    return tuple(notes)


def _describe_onnx(small: SmallerModel, model: OnnxModel, file: str) -> Sheet:
    graph = import_onnx().load_from_string(model.content).graph
    operators = Counter(node.op_type for node in graph.node)
    return Sheet(
        files=(file, f"{file}.json"),
        target="onnx",
        style=", ".join(f"{count} {kind}" for kind, count in operators.items()),
        size=_describe_size(small, file_bytes=len(model.content)),
        accuracy=Accuracy(mean=model.mean, from_predict=model.differences),
        notes=(*(f"{k}: {meaning}" for k, meaning in model.meanings.items()), *_list_notes(small)),
    )


def _describe_c(
    small: SmallerModel, translation: ModelSource, path: Path, arithmetic: Arithmetic, mean: str
) -> Sheet:
    model, quantised, differences, source = translation
    notes = []
    if mean == "weights":
        notes.append(
            "It predicts with the network at the posterior means of its weights, while predict "
            "averages over the posterior."
        )
    if quantised is not None and model.is_drawn and quantised.mode in ("int8", "int16x8"):
        notes.append(
            "Activations were scaled by rows drawn from normal distributions; give real rows."
        )
    elif model.is_drawn and differences:
        notes.append(
            "The difference from predict was measured on rows drawn at random; give real rows."
        )
    if quantised is not None and quantised.in_floats:
        steps = ", ".join(sorted(set(quantised.in_floats)))
        notes.append(f"Computed in floats, as there is no integer version: {steps}.")
    return Sheet(
        files=(path.name, f"{path.stem}.h", f"{path.name}.json"),
        target="c",
        style=source.style,
        size=_describe_size(small, stored=model.nonzeros, state_bytes=source.state_bytes or None),
        arithmetic=replace(
            arithmetic,
            multiply_adds=source.multiply_adds,
            tensors=tuple(quantised.tensors) if quantised else (),
        ),
        accuracy=Accuracy(mean=mean, from_predict=differences),
        notes=(*notes, *_list_notes(small)),
    )


def _add_scores(
    sheet: Sheet, small: SmallerModel, translation: ModelSource, judged: tuple[Any, Any]
) -> Sheet:
    rows, targets = small.take_inputs(judged[0]), judged[1]
    exact, after = score_rows(small.model, translation.model, translation.quantised, rows, targets)
    return replace(sheet, accuracy=replace(sheet.accuracy, exact=exact, quantised=after))


def _add_measurement(sheet: Sheet, translation: ModelSource, optimise: str) -> Sheet:
    """Add the measurements on the emulated device to the sheet, or why there are none."""
    source = translation.source
    calls, truth = translation.expect(_COMPARED_CALLS)
    try:
        device = measure_source(source, calls, optimise=optimise)
    except DeviceError as error:
        return replace(sheet, notes=(f"Not measured on a device: {error}", *sheet.notes))
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
        accuracy=replace(sheet.accuracy, largest_rounding=difference),
        notes=("Instructions are counted for a Cortex-M4F; they are not cycles.", *sheet.notes),
    )


def _write_files(files: dict[Path, str | bytes]) -> None:
    """Write all files, or none if one of them cannot be written."""
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
