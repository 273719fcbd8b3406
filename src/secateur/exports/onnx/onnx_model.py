"""`to_onnx`: a trained model as one ONNX model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from secateur import __version__
from secateur.exports.graph import ExportError
from secateur.exports.model_labels import ColumnLabels, find_labels
from secateur.exports.onnx.symbolic_sizes import SymbolicGraph, has_loop, lower_for_any_size
from secateur.exports.predictions import find_dtype, knows_moments, make_function
from secateur.networks import Dense, Gru
from secateur.propagation import UnsupportedOperation
from secateur.trained import Trained

__all__ = ["import_onnx", "to_onnx"]

_OPSET = 17
_IR_VERSION = 8


def to_onnx(
    trained: Trained,
    *,
    inputs: Any = None,
    input_names: Sequence[str] | None = None,
    uncertainty: bool = True,
) -> bytes:
    """Return a trained model as ONNX (opset 17, IR version 8).

    The model takes `inputs`, rows of float32 in the data's own units, any number of them (and of
    frames, for a recurrent network). It returns what `predict` says of them, in float32: `mean`,
    `standard_deviation` and the ends `lower` and `upper` of the 95 % interval in the data's units;
    `probabilities` for classes and yes or no; `rate` and `standard_deviation` for counts.

    A network of up to 20 000 weights without loops is written with its moments. A larger or
    recurrent one, or one whose inference samples, is written at the posterior means of its weights,
    with the standard deviation and interval of the noise alone. The metadata say which.

    Dead units stay in it; `export` takes them out first.

    Args:
        trained: A trained model.
        inputs: Example rows, for a function of your own, whose input's shape is not known
            otherwise, and for the ranges in the metadata.
        input_names: Names of the inputs, for the metadata. Defaults to those of the model's table.
        uncertainty: Whether the standard deviation, the interval and moments are written. Without
            them the file is smallest.

    Raises:
        ExportError: Something in the model has no counterpart.
        ImportError: The package onnx is not installed.
    """
    onnx = import_onnx()
    symbolic, meanings = _lower(trained, inputs, uncertainty)
    from secateur.exports.onnx.operators import OperatorWriter, describe_value

    writer = OperatorWriter(symbolic, "inputs")
    writer.write(list(meanings))
    graph = onnx.helper.make_graph(
        writer.nodes,
        "secateur",
        [describe_value("inputs", symbolic.shape(symbolic.graph.inputs[0]))],
        [
            describe_value(name, symbolic.shape(a))
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
    width = symbolic.graph.inputs[0].shape[-1]
    metadata = _describe(trained, width, meanings, inputs, input_names)
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def import_onnx() -> Any:
    """Return the package onnx."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "writing ONNX needs the package onnx, which is not installed: "
            "pip install 'secateur[onnx]'"
        ) from error
    return onnx


def _lower(
    trained: Trained, inputs: Any, uncertainty: bool
) -> tuple[SymbolicGraph, dict[str, str]]:
    """Return the graph to write, and the meanings of its outputs."""
    shape, dtype = _row_shape(trained, inputs), find_dtype(trained)
    plain = make_function(trained, by_moments=False, uncertainty=uncertainty, dtype=dtype)
    if has_loop(plain.function, shape, dtype):
        if len(shape) > 1:
            try:
                any_length = (None, *shape[1:])
                return lower_for_any_size(plain.function, any_length, dtype), plain.meanings
            except (ExportError, TypeError, ValueError):
                pass  # the length is part of the model, as in a dense layer over all frames
    elif uncertainty and knows_moments(trained):
        # Formulas of moments depend on the type: they are written for the float32 that ONNX has.
        single = np.dtype(np.float32)
        moments = make_function(trained, by_moments=True, uncertainty=True, dtype=single)
        try:
            return lower_for_any_size(moments.function, shape, single), moments.meanings
        except (ExportError, UnsupportedOperation):
            pass  # written without, as its meanings will say
    return lower_for_any_size(plain.function, shape, dtype), plain.meanings


def _row_shape(trained: Trained, inputs: Any) -> tuple[int | None, ...]:
    """Return the shape of a row; None for a length of time that may be any."""
    f = trained.model.f
    if isinstance(f, Dense):
        return (f.inputs,)
    if isinstance(f, Gru):
        return (None, f.inputs)
    if inputs is None:
        raise ExportError(
            "the shape of the model's input is not known. Give some rows of it: inputs=x[:5]."
        )
    shape = np.shape(inputs)
    if len(shape) < 2:
        raise ExportError(f"inputs have the shape {shape}. Give rows of inputs, rows first.")
    return shape[1:]


# --- what the file says of itself -----------------------------------------------------------------


def _describe(
    trained: Trained,
    width: int,
    meanings: dict[str, str],
    inputs: Any,
    input_names: Sequence[str] | None,
) -> dict[str, str]:
    """Return the model's metadata: texts by name; lists and numbers in JSON."""
    labels = find_labels(trained)
    if input_names is None and labels is not None:
        input_names = labels.inputs
    if input_names is not None and len(input_names) != width:
        raise ExportError(
            f"there are {len(input_names)} names for {width} inputs. Give one for each."
        )
    facts: dict[str, Any] = {
        "secateur_version": __version__,
        "free_energy_nats": float(trained.free_energy),
        "live_weights": int(trained.live_weights),
        "pruned_fraction": float(trained.pruned_fraction),
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
    facts |= {f"output_{name}": meaning for name, meaning in meanings.items()}
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}


def _fingerprint(beliefs: Any) -> str:
    """Return the SHA-256 of all that is believed of the weights, in the order of the leaves."""
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
    labels: ColumnLabels | None, inputs: Any, width: int
) -> list[list[float] | None] | None:
    """Return the least and the largest value of every input, None where they are not known."""
    if inputs is not None and np.size(inputs):
        rows = np.asarray(inputs, np.float64).reshape(-1, width)
        return np.stack([rows.min(0), rows.max(0)], axis=1).tolist()
    if labels is None:
        return None
    return [None if is_number else [0.0, 1.0] for is_number in labels.is_number]
