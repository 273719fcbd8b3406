"""`to_onnx`: a trained model as one ONNX model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import jax
import numpy as np

from secateur import __version__
from secateur.beliefs import mean_weights
from secateur.compaction.smaller_function import SmallerFunction
from secateur.exports.comparison import compare_with_predict
from secateur.exports.example_rows import draw_rows, find_row_shape
from secateur.exports.graph import ExportError
from secateur.exports.model_labels import TableLabels, find_labels
from secateur.exports.onnx.symbolic_sizes import SymbolicGraph, has_loop, lower_for_any_size
from secateur.exports.predictions import (
    ExportedFunction,
    check_mean,
    find_dtype,
    knows_moments,
    make_function,
)
from secateur.exports.sheet import Difference
from secateur.importing import ImportedFunction
from secateur.networks import Dense, Gru
from secateur.propagation import UnsupportedOperation, draws
from secateur.trained import Trained

__all__ = ["OnnxModel", "import_onnx", "to_onnx", "write_onnx"]

_OPSET = 17
_IR_VERSION = 8


class OnnxModel(NamedTuple):
    """A model as ONNX, with a description.

    Attributes:
        content: Bytes of the file.
        meanings: Meaning of each output by name.
        mean: "predictive" if moments are written, "weights" for the network at posterior means.
        differences: Differences from `Trained.predict`, by output; empty if not requested.
    """

    content: bytes
    meanings: dict[str, str]
    mean: str
    differences: tuple[Difference, ...]


def to_onnx(
    trained: Trained,
    *,
    inputs: Any = None,
    input_names: Sequence[str] | None = None,
    uncertainty: bool = True,
    mean: str | None = None,
) -> bytes:
    """Return a trained model as ONNX (opset 17, IR version 8).

    The model takes `inputs`, any number of rows of float32 in the data's own units (and any number
    of frames, for a recurrent network). It returns the predictive distribution of `predict` in
    float32: `mean`, `standard_deviation` and the ends `lower` and `upper` of the 95 % interval in
    the data's units; `probabilities` for classes and binary targets; `rate` and
    `standard_deviation` for counts.

    A network of up to 20 000 weights without loops is written with its moments. A larger or
    recurrent network, or one whose inference samples, is written at the posterior means of its
    weights, with the standard deviation and interval of the noise alone. The metadata state which;
    `export` adds the difference from the predictions of `Trained.predict`.

    Dead units are included; `export` removes them first.

    Args:
        trained: A trained model.
        inputs: Example rows, for the input shape of a function of your own and for the ranges in
            the metadata.
        input_names: Names of the inputs, for the metadata. Defaults to those of the model's table.
        uncertainty: Whether to write the standard deviation, the interval and moments. Without
            them the file is smallest.
        mean: "weights" or "predictive"; see `export`.

    Raises:
        ExportError: An operation of the model is not supported.
        ImportError: The package onnx is not installed.
    """
    return write_onnx(
        trained,
        original=trained,
        inputs=inputs,
        input_names=input_names,
        uncertainty=uncertainty,
        mean=mean,
        compared=False,
    ).content


def write_onnx(
    trained: Trained,
    *,
    original: Trained,
    inputs: Any,
    input_names: Sequence[str] | None,
    uncertainty: bool = True,
    mean: str | None = None,
    compared: bool = True,
) -> OnnxModel:
    """Return a trained model as ONNX, with a description; see `to_onnx`.

    The metadata state weights and free energy of `original`, from which `trained` was made, and
    with `compared` the difference from `Trained.predict`.
    """
    onnx = import_onnx()
    check_mean(mean)
    imported = _find_imported(original, mean)
    if imported is None:
        symbolic, written = _lower(trained, inputs, uncertainty, mean)
    else:
        symbolic, written = _lower_imported(trained, imported, inputs)
    meanings = written.meanings
    source = "inputs" if imported is None else imported.inputs[0].name
    dtypes = _find_file_dtypes(imported)
    from secateur.exports.onnx.operators import OperatorWriter, describe_value

    writer = OperatorWriter(symbolic, source, dtypes)
    writer.write(list(meanings))
    graph = onnx.helper.make_graph(
        writer.nodes,
        "secateur",
        [describe_value(source, symbolic.shape(symbolic.graph.inputs[0]), dtypes[0])],
        [
            describe_value(name, symbolic.shape(a), dtypes[1])
            for name, a in zip(meanings, symbolic.graph.outputs, strict=True)
        ],
        writer.initialisers(),
    )
    model = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="secateur",
    )
    if imported is not None:
        _name_rows(model.graph, imported)
    width = symbolic.graph.inputs[0].shape[-1]
    dtype = symbolic.graph.inputs[0].dtype
    differences: tuple[Difference, ...] = ()
    if compared:
        are_scores = imported is not None and imported.last_step is None
        differences = _compare(trained, written.function, inputs, dtype, are_scores)
    metadata = _describe(trained, original, width, inputs, input_names)
    metadata |= {f"output_{name}": meaning for name, meaning in meanings.items()}
    if differences:
        metadata["difference_from_predict"] = json.dumps([asdict(d) for d in differences])
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    averaged = "predictive" if written.by_moments else "weights"
    return OnnxModel(model.SerializeToString(), meanings, averaged, differences)


# --- a network that came from an ONNX file --------------------------------------------------------


def _find_imported(original: Trained, mean: str | None) -> ImportedFunction | None:
    """Return the function of an ONNX file that a model was made of, if it is written like that."""
    f = original.model.f
    while isinstance(f, SmallerFunction):
        f = f.f
    is_plain = original.scaling.inputs is None and original.scaling.targets is None
    if not isinstance(f, ImportedFunction) or mean == "predictive" or not is_plain:
        return None
    return f if len(f.inputs) == 1 and len(f.outputs) == 1 else None


def _lower_imported(
    trained: Trained, imported: ImportedFunction, inputs: Any
) -> tuple[SymbolicGraph, ExportedFunction]:
    """Return the graph of a network at its posterior means, with the last step of its file."""
    weights, f = mean_weights(trained.beliefs), trained.model.f
    name = imported.outputs[0].name
    meanings = {name: "that of the imported network, at the posterior means of its weights"}
    function = ExportedFunction(lambda x: [imported.finish(f(weights, x))], meanings, False)
    shape = find_row_shape(trained, inputs) if imported.row_shape is None else imported.row_shape
    dtype, dtypes = find_dtype(trained), _find_file_dtypes(imported)
    if dtypes[0].kind in "iu" and dtypes[0].itemsize > 1:  # of 8 bits, they are quantised numbers
        dtype = np.dtype(np.int32)
    lengths = (imported.inputs[0].shape or ())[1:]
    if len(lengths) > 1 and not isinstance(lengths[0], int):  # a length of time
        try:
            any_length = (None, *shape[1:])
            return lower_for_any_size(function.function, any_length, dtype, dtypes), function
        except (ExportError, TypeError, ValueError):
            pass
    return lower_for_any_size(function.function, shape, dtype, dtypes), function


def _find_file_dtypes(imported: ImportedFunction | None) -> tuple[np.dtype, np.dtype]:
    """Return the types of input and output: those of the file that was read."""
    single = np.dtype(np.float32)
    if imported is None:
        return single, single
    first, last = (value.dtype or "float32" for value in (imported.inputs[0], imported.outputs[0]))
    return np.dtype(first), np.dtype(last)


def _name_rows(graph: Any, imported: ImportedFunction) -> None:
    """Give the axes of rows the names, or fixed lengths, of the file that was read."""
    pairs = ((graph.input[0], imported.inputs[0]), (graph.output[0], imported.outputs[0]))
    for proto, value in pairs:
        rows = value.shape[0] if value.shape else None
        dimension = proto.type.tensor_type.shape.dim[0]
        if isinstance(rows, int) and imported.file_rows == rows:
            dimension.dim_value = rows
        elif isinstance(rows, str):
            dimension.dim_param = rows


def _compare(
    trained: Trained,
    function: Callable[[Any], list[Any]],
    inputs: Any,
    dtype: Any,
    are_scores: bool,
) -> tuple[Difference, ...]:
    """Return the differences between an exported function and `Trained.predict`."""
    is_whole, rows = np.dtype(dtype).kind in "iu", inputs
    if rows is None:
        if is_whole:
            return ()  # which numbers are valid is not known
        rows = draw_rows(trained, find_row_shape(trained, None))
    rows = np.asarray(rows, dtype if is_whole else np.float32)
    labels = find_labels(trained)
    first = jax.jit(lambda x: function(x)[0])
    return compare_with_predict(
        trained,
        rows,
        lambda rows: first(rows.astype(dtype)),
        is_drawn=inputs is None,
        are_scores=are_scores,
        names=() if labels is None else labels.outputs,
    )


def import_onnx() -> Any:
    """Return the package onnx."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "writing ONNX needs the package onnx, which is not installed: pip install onnx"
        ) from error
    return onnx


def _lower(
    trained: Trained, inputs: Any, uncertainty: bool, mean: str | None
) -> tuple[SymbolicGraph, ExportedFunction]:
    """Return the graph to write, and its function."""
    shape, dtype = _row_shape(trained, inputs), find_dtype(trained)
    plain = make_function(trained, by_moments=False, uncertainty=uncertainty, dtype=dtype)
    reason = "with uncertainty=False the network is written at the posterior means of its weights"
    if has_loop(plain.function, shape, dtype):
        reason = "moments of a loop over time cannot be written in ONNX"
        if len(shape) > 1 and mean != "predictive":
            try:
                any_length = (None, *shape[1:])
                return lower_for_any_size(plain.function, any_length, dtype), plain
            except (ExportError, TypeError, ValueError):
                pass  # the length is part of the model, as in a dense layer over all frames
    elif uncertainty and mean != "weights":
        reason = "its predictions average networks that are drawn from the posterior"
        if knows_moments(trained) or (mean == "predictive" and not draws(trained.model.inference)):
            # Formulas of moments depend on the dtype: they are written for the float32 of ONNX.
            single = np.dtype(np.float32)
            moments = make_function(trained, by_moments=True, uncertainty=True, dtype=single)
            try:
                return lower_for_any_size(moments.function, shape, single), moments
            except (ExportError, UnsupportedOperation) as error:
                reason = str(error)  # written without moments, as the meanings will state
    if mean == "predictive":
        raise ExportError(
            f"mean='predictive' cannot be written for this model: {reason.rstrip('.')}. "
            "mean='weights' writes the network at the posterior means of its weights."
        )
    return lower_for_any_size(plain.function, shape, dtype), plain


def _row_shape(trained: Trained, inputs: Any) -> tuple[int | None, ...]:
    """Return the shape of a row; None for an arbitrary number of frames."""
    f = trained.model.f
    if isinstance(f, Dense):
        return (f.inputs,)
    if isinstance(f, Gru):
        return (None, f.inputs)
    if isinstance(f, ImportedFunction) and f.row_shape is not None:
        return f.row_shape
    if inputs is None:
        raise ExportError(
            "the shape of the model's input is not known. Give some rows of it: inputs=x[:5]."
        )
    shape = np.shape(inputs)
    if len(shape) < 2:
        raise ExportError(f"inputs have the shape {shape}. Give rows of inputs, rows first.")
    return shape[1:]


# --- metadata -------------------------------------------------------------------------------------


def _describe(
    trained: Trained,
    original: Trained,
    width: int,
    inputs: Any,
    input_names: Sequence[str] | None,
) -> dict[str, str]:
    """Return the model's metadata: strings by name; lists and numbers in JSON."""
    labels = find_labels(trained)
    if input_names is None and labels is not None:
        input_names = labels.inputs
    if input_names is not None and len(input_names) != width:
        raise ExportError(
            f"there are {len(input_names)} names for {width} inputs. Give one for each."
        )
    facts: dict[str, Any] = {
        "secateur_version": __version__,
        "free_energy_nats": float(original.free_energy),
        "live_weights": int(original.live_weights),
        "pruned_fraction": float(original.pruned_fraction),
        "weights_sha256": _fingerprint(trained.beliefs),
    }
    if input_names is not None:
        facts["input_names"] = list(map(str, input_names))
    ranges = _find_ranges(labels, inputs, width)
    if ranges is not None:
        facts["input_ranges"] = ranges
    if labels is not None:
        facts["targets"] = labels.targets
        if labels.classes is not None:
            facts["classes"] = labels.classes
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}


def _fingerprint(beliefs: Any) -> str:
    """Return the SHA-256 of the beliefs about the weights, in the order of the leaves."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(beliefs):
        if not isinstance(leaf, jax.Array | np.ndarray):
            continue
        array = np.asarray(leaf)
        array = array.astype(array.dtype.newbyteorder("<"))
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _find_ranges(
    labels: TableLabels | None, inputs: Any, width: int
) -> list[list[float] | None] | None:
    """Return the smallest and largest value of every input, None if unknown."""
    if inputs is not None and np.size(inputs):
        rows = np.asarray(inputs, np.float64).reshape(-1, width)
        return np.stack([rows.min(0), rows.max(0)], axis=1).tolist()
    if labels is None:
        return None
    ranges: list[list[float] | None] = [None] * width
    for column in labels.columns:
        is_number = column.kind not in ("boolean", "category", "presence")
        for place in column.inputs:
            if place is not None and not is_number:
                ranges[place] = [0.0, 1.0]
        if column.kind == "number" and column.limits and column.inputs[0] is not None:
            ranges[column.inputs[0]] = list(column.limits)
    return ranges
