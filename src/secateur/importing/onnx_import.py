"""`from_onnx`: a trained network from an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from secateur.importing.imported_function import ImportedFunction, list_float_outputs
from secateur.importing.onnx_file import read_onnx
from secateur.importing.onnx_graph import OnnxError, OnnxGraph
from secateur.importing.operator_rules import OPERATORS
from secateur.importing.shape_folding import fold_shapes
from secateur.importing.weights import (
    find_weights,
    fold_normalisation,
    separate_gates,
)

__all__ = ["from_onnx"]


def from_onnx(
    file: str | os.PathLike | bytes | Any, *, outputs: Sequence[str] | None = None
) -> tuple[ImportedFunction, dict[str, np.ndarray]]:
    """Read a trained network from an ONNX file, as a pure JAX function and its parameters.

    Shapes and integers are computed while JAX traces the function, everything else by JAX, so that
    the function can be jitted, differentiated, propagated, pruned, compacted and exported like one
    written by hand. The parameters have the file's own names. The gates of GRU and LSTM are
    separate parameters (`NAME/update`, …). Weights that are stored in 8 bits become floating-point
    numbers, and BatchNormalization is folded into the layer before it. Arrays that are not weights
    (shapes, tables, masks) are part of the function.

    Args:
        file: Path of the file, its bytes, or an `onnx.ModelProto`. Weights in other files are read
            from its folder, and from nowhere else.
        outputs: Names of the outputs to compute. Defaults to those of floating-point numbers.

    Returns:
        The function f(params, x), an `ImportedFunction`, and params, a dict of arrays. With
        several inputs x is a dict by name, with several outputs so is the result.

    Raises:
        OnnxError: The file is damaged, or has an operator that is not supported; the message names
            it, and what is supported.
        ImportError: The package onnx is not installed.

    Example:
        >>> from onnx import TensorProto, helper, numpy_helper
        >>> weights = numpy_helper.from_array(np.ones((3, 2), np.float32), "layer.weight")
        >>> x, y = (
        ...     helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", n])
        ...     for name, n in (("x", 3), ("y", 2))
        ... )
        >>> node = helper.make_node("MatMul", ["x", "layer.weight"], ["y"])
        >>> model = helper.make_model(helper.make_graph([node], "net", [x], [y], [weights]))
        >>> f, params = from_onnx(model)
        >>> f(params, np.ones((1, 3), np.float32)).tolist()
        [[3.0, 3.0]]
    """
    graph = read_onnx(file)
    chosen = _choose_outputs(graph, outputs)
    graph.outputs = chosen
    try:
        graph.drop_unread()
        _check_operators(graph)
        sources = fold_shapes(graph)
        neutral = fold_normalisation(graph)
        separate_gates(graph, sources)
        weights = find_weights(graph)
    except RecursionError as error:
        raise OnnxError("its graphs are nested too deeply.") from error
    params = {name: np.array(graph.arrays.pop(name)) for name in weights}
    read = {name for node in graph.nodes for name in node.inputs}
    needed = read | graph.free_names() | {n for node in graph.nodes for n in _read_inside(node)}
    graph.inputs = [value for value in graph.inputs if value.name in needed]
    size = os.path.getsize(file) if isinstance(file, str | os.PathLike) else 0
    f = ImportedFunction(graph, weights, neutral, outputs=tuple(chosen), origin=size)
    _try(f, params)
    return f, params


def _read_inside(node: Any) -> set[str]:
    return {name for graph in node.graphs() for name in graph.free_names()}


def _choose_outputs(graph: OnnxGraph, names: Sequence[str] | None) -> list[Any]:
    known = {value.name: value for value in graph.outputs}
    if not known:
        raise OnnxError("the file has no outputs.")
    if names is None:
        return list_float_outputs(graph.outputs) or graph.outputs
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise OnnxError(f"the file has no output {missing}. It has {', '.join(known)}.")
    return [known[name] for name in names]


def _check_operators(graph: OnnxGraph) -> None:
    """Refuse a graph with operators that have no rule."""
    for node in graph.nodes:
        if node.kind not in OPERATORS or node.kind.startswith("secateur."):
            names = sorted(n for n in OPERATORS if not n.startswith("secateur."))
            raise OnnxError(
                f"{node} has no rule. Supported operators: {', '.join(names)}. Export the network "
                "in other operators, or cut this one off (onnx.utils.extract_model)."
            )
        for inner in node.graphs():
            _check_operators(inner)


def _try(f: ImportedFunction, params: dict[str, np.ndarray]) -> None:
    """Evaluate the shapes of the function, where the file says those of its inputs."""
    inputs = {}
    for value in f.inputs:
        lengths = value.shape
        if lengths is None or not value.dtype or any(not isinstance(n, int) for n in lengths[1:]):
            return
        first = [n if isinstance(n, int) else 2 for n in lengths[:1]]
        inputs[value.name] = jax.ShapeDtypeStruct((*first, *lengths[1:]), np.dtype(value.dtype))
    try:
        jax.eval_shape(f, params, inputs)
    except OnnxError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OnnxError(f"the network cannot be evaluated: {reason}") from error
