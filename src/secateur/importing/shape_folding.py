"""Values that a graph computes from shapes, if they are the same for any number of rows.

PyTorch's exporter reads the shape of an array even where the length is fixed, and uses it to split
the gates of a recurrent layer. The graph is traced for two choices of all unknown lengths; a number
that is the same in both traces is a constant.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from secateur.importing.imported_function import GraphEvaluation
from secateur.importing.onnx_graph import OnnxError, OnnxGraph, OnnxNode
from secateur.importing.operator_rules.operator_table import is_known
from secateur.importing.weights import Sources, fold_constants

__all__ = ["fold_shapes"]

_LENGTHS = ((7, 11, 13, 17), (19, 23, 29, 31))


def fold_shapes(graph: OnnxGraph) -> Sources:
    """Evaluate everything that depends on the file alone and on fixed lengths.

    Returns:
        For every array of floating-point numbers the arrays of the file that it is made of.
    """
    sources = fold_constants(graph)
    if not any(node.kind in ("Shape", "Size") for node in graph.nodes):
        return sources
    try:
        first, second = (_known_values(graph, choice) for choice in (0, 1))
    except Exception:  # it may hold only for lengths that are not known here
        return sources
    fixed = {
        name: value for name, value in first.items()
        if name in second and np.array_equal(value, second[name])
        and (value.dtype.kind in "iub" or not np.any(value != value.ravel()[:1]))
    }  # fmt: skip
    graph.arrays |= fixed
    graph.nodes = [n for n in graph.nodes if not {*n.outputs} - {""} <= set(fixed)]
    graph.drop_unread()
    return sources | fold_constants(graph, sources)


class _Recorder(GraphEvaluation):
    """An evaluation that keeps every value that is known while tracing."""

    def __init__(self, rows: int) -> None:
        super().__init__(None, rows)
        self.known: dict[str, np.ndarray] = {}

    def step(self, node: OnnxNode, values: dict[str, Any]) -> tuple[Any, ...]:
        results = super().step(node, values)
        for name, value in zip(node.outputs, results, strict=False):
            if name and is_known(value):
                self.known[name] = np.asarray(value)
        return results


def _known_values(graph: OnnxGraph, choice: int) -> dict[str, np.ndarray]:
    lengths = _LENGTHS[choice]
    inputs = {}
    for value in graph.inputs:
        if value.shape is None or not value.dtype:
            raise OnnxError("the shape of an input is not known.")
        sizes = [
            n if isinstance(n, int) and axis else lengths[axis % len(lengths)]
            for axis, n in enumerate(value.shape)
        ]
        inputs[value.name] = jax.ShapeDtypeStruct(tuple(sizes), np.dtype(value.dtype))
    recorder = _Recorder(lengths[0])
    jax.eval_shape(lambda values: recorder.run(graph, values), inputs)
    return recorder.known
