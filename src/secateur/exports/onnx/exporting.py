"""`write_onnx`: a trained model as one ONNX file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secateur import atomic
from secateur.exports.graph import ExportError
from secateur.exports.onnx import predictions
from secateur.exports.onnx.description import describe
from secateur.exports.onnx.symbols import Symbolic, has_loop, lower_for_any_size
from secateur.networks import Dense, Gru
from secateur.propagation import UnsupportedOperation

__all__ = ["Written", "write_onnx"]

_OPSET = 17
_IR_VERSION = 8


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        path: of the file.
        size: in bytes.
        operators: how many of each kind.
        outputs: what each output is, by name.
        metadata: what the file says of itself.
    """

    path: Path
    size: int
    operators: dict[str, int]
    outputs: dict[str, str]
    metadata: dict[str, str]


def write_onnx(
    trained: Any,
    path: str | os.PathLike,
    *,
    inputs: Any = None,
    names: Sequence[str] | None = None,
    deviation: bool = True,
) -> Written:
    """Write a trained model as ONNX (opset 17, IR version 8).

    The model takes `inputs`, rows of float32 in the data's own units, any number of them (and of
    frames, for a recurrent network), and returns `mean` and `standard_deviation` in the data's
    units; `probabilities` for classes and yes or no; `rate` for counts.

    A network of up to 20 000 weights without loops is written with its moments: mean and standard
    deviation are those of `predict`, and of its noise. A larger or recurrent one, or one whose
    inference samples, is written at the posterior means of its weights, with the standard deviation
    of the noise alone. The metadata say which.

    Args:
        trained: from `fit`, `prune`, `load` or `compact`.
        path: of the file.
        inputs: example rows, for a function of your own, whose input's shape is not known
            otherwise, and for the ranges in the metadata.
        names: of the inputs, for the metadata; by default those of the model's table.
        deviation: False leaves the standard deviation and the moments out: the smallest file.

    Raises:
        ExportError: something in the model has no counterpart, or the file cannot be written; there
            is no file then, or the one from before.
        ImportError: the package onnx is not installed.
    """
    onnx = _package()
    path = Path(path)
    if not path.parent.is_dir():
        raise ExportError(f"{path} cannot be written: there is no folder {path.parent}.")
    found, meanings = _lowered(trained, inputs, deviation)
    from secateur.exports.onnx.writer import Writer, value_info

    writer = Writer(found, "inputs")
    writer.write(list(meanings))
    graph = onnx.helper.make_graph(
        writer.nodes,
        "secateur",
        [value_info("inputs", found.shape(found.graph.inputs[0]))],
        [
            value_info(name, found.shape(a))
            for name, a in zip(meanings, found.graph.outputs, strict=True)
        ],
        writer.initialisers(),
    )
    model = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="secateur",
    )
    width = found.graph.inputs[0].shape[-1]
    metadata = describe(trained, width=width, meanings=meanings, inputs=inputs, names=names)
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    try:
        atomic.write(path, content)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}.") from error
    operators = dict(Counter(node.op_type for node in graph.node))
    return Written(path, len(content), operators, dict(meanings), metadata)


def _package() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "writing ONNX needs the package onnx, which is not installed: "
            "pip install 'secateur[onnx]'"
        ) from error
    return onnx


def _lowered(trained: Any, inputs: Any, deviation: bool) -> tuple[Symbolic, dict[str, str]]:
    """The graph to write, and the meanings of its outputs."""
    shape = _shape(trained, inputs)
    plain = predictions.answer(trained, moments=False, deviation=deviation)
    dtype = predictions.input_dtype(trained, moments=False)
    if has_loop(plain.function, shape, dtype):
        if len(shape) > 1:
            try:
                any_length = (None, *shape[1:])
                return lower_for_any_size(plain.function, any_length, dtype), plain.meanings
            except (ExportError, TypeError, ValueError):
                pass  # the length is part of the model, as in a dense layer over all frames
    elif deviation and predictions.can_have_moments(trained):
        moments = predictions.answer(trained, moments=True, deviation=deviation)
        single = predictions.input_dtype(trained, moments=True)
        try:
            return lower_for_any_size(moments.function, shape, single), moments.meanings
        except (ExportError, UnsupportedOperation):
            pass  # written without, as its meanings will say
    return lower_for_any_size(plain.function, shape, dtype), plain.meanings


def _shape(trained: Any, inputs: Any) -> tuple[int | None, ...]:
    """The shape of a row; None for a length of time that may be any."""
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
