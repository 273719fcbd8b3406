"""`ImportedFunction`: a graph of ONNX operators as a function f(params, x)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.importing.onnx_graph import OnnxError, OnnxGraph, OnnxNode, OnnxValue
from secateur.importing.operator_rules import OPERATORS, OperatorCall
from secateur.importing.operator_rules.directions import Directions
from secateur.importing.operator_rules.operator_table import is_float

__all__ = ["GraphEvaluation", "ImportedFunction", "evaluate_node", "list_float_outputs"]

# They know what to do with the directions of a recurrent layer while these are apart.
_TAKE_DIRECTIONS = {
    "Transpose", "Reshape", "Squeeze", "Split", "Slice", "Gather", "Concat", "Shape", "Identity",
    "secateur.GRU", "secateur.LSTM", "secateur.RNN", "GRU", "LSTM", "RNN",
}  # fmt: skip
# The last step of a network for classes, which the likelihoods include themselves.
_LAST_STEPS = {"Softmax": "probabilities", "Sigmoid": "probability"}


@dataclass(frozen=True, eq=False)
class ImportedFunction:
    """A pure function f(params, x) that evaluates a graph of ONNX operators.

    With one input x is an array; with several a dict of arrays by name. With one output the
    result is an array; with several a dict by name.

    Attributes:
        graph: The operators. Its arrays are constants: shapes, tables, masks.
        weights: Names of the parameters.
        neutral: Neutral values of weights of the file that were folded into others, by name.
        last_step: The operator that was taken off the end by `without_last_step`, or None.
        outputs: Outputs of the file that belong to the graph's outputs, in order.
        origin: Size of the file in bytes.
    """

    graph: OnnxGraph
    weights: tuple[str, ...]
    neutral: dict[str, np.ndarray] = field(default_factory=dict)
    last_step: OnnxNode | None = None
    outputs: tuple[OnnxValue, ...] = ()
    origin: int = 0

    @property
    def inputs(self) -> tuple[OnnxValue, ...]:
        """Return the inputs of the file."""
        return tuple(self.graph.inputs)

    @property
    def file_rows(self) -> int | None:
        """Return the number of rows that the file was written for, or None for any."""
        lengths = {v.shape[0] for v in self.graph.inputs if v.shape}
        fixed = {n for n in lengths if isinstance(n, int)}
        return fixed.pop() if len(fixed) == 1 and len(lengths) == 1 else None

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Return the shape of a row of the one input, or None where the file does not say it."""
        if len(self.graph.inputs) != 1:
            return None
        shape = self.graph.inputs[0].shape
        if shape is None or not all(isinstance(n, int) for n in shape[1:]):
            return None
        return tuple(int(n) for n in shape[1:])  # type: ignore[arg-type]

    def finish(self, result: Any) -> Any:
        """Return the output of the file that corresponds to a result of this function.

        It is the result itself or, after `without_last_step`, the result after the last step.
        """
        if self.last_step is None:
            return result
        call = OperatorCall(self.last_step, lambda graph, inputs: [])
        return evaluate_node(call, [result])[0]

    def __call__(self, params: Any, x: Any) -> Any:
        """Return the outputs for the rows of x."""
        values = self._bind(x)
        known = {**self.graph.arrays, **{name: params[name] for name in self.weights}}
        rows = next((np.shape(v)[0] for v in values.values() if np.ndim(v)), None)
        evaluation = GraphEvaluation(self.file_rows, rows, self._other_lengths(values))
        try:
            results = evaluation.run(self.graph, {**known, **values})
            self._check(results, rows)
        except OnnxError as error:
            if self.file_rows in (None, rows):
                raise
            raise OnnxError(
                f"the file was written for batches of {self.file_rows}, and does not work with "
                f"{rows} rows: {error} Export the network with a batch axis of any length "
                "(dynamic_shapes or dynamic_axes in PyTorch)."
            ) from error
        if len(results) == 1:
            return results[0]
        return dict(zip([v.name for v in self.outputs], results, strict=True))

    def _bind(self, x: Any) -> dict[str, Any]:
        """Return the inputs by name."""
        names = [value.name for value in self.graph.inputs]
        if isinstance(x, dict):
            if set(x) != set(names):
                raise OnnxError(f"x has the inputs {sorted(x)}. The model has {sorted(names)}.")
            arrays = [x[name] for name in names]
        else:
            arrays = list(x) if isinstance(x, tuple | list) else [x]
            if len(arrays) != len(names):
                raise OnnxError(
                    f"{len(arrays)} inputs are given. The model has {len(names)}: "
                    f"{', '.join(names)}. Give a dict of arrays by name."
                )
        for value, array in zip(self.graph.inputs, arrays, strict=True):
            if value.shape is not None and len(value.shape) != np.ndim(array):
                raise OnnxError(
                    f"the input {value.name!r} has the shape {np.shape(array)}. The model needs "
                    f"{_spell(value.shape)}."
                )
        return dict(zip(names, map(jnp.asarray, arrays), strict=True))

    def _other_lengths(self, values: dict[str, Any]) -> dict[int, int]:
        """Return lengths of axes that the file fixes and the data do not have, with the data's."""
        return {
            wanted: length
            for value in self.graph.inputs
            for wanted, length in zip(
                (value.shape or ())[1:], np.shape(values[value.name])[1:], strict=False
            )
            if isinstance(wanted, int) and wanted != length
        }

    def _check(self, results: Sequence[Any], rows: int | None) -> None:
        """Refuse results that a file for a fixed number of rows has mixed."""
        fixed = self.file_rows
        if fixed is None or rows == fixed:
            return
        for value, result in zip(self.outputs, results, strict=True):
            if value.shape and value.shape[0] == fixed:
                expected = (rows, *value.shape[1:])
                given = tuple(
                    n if isinstance(n, int) else m
                    for n, m in zip(expected, np.shape(result), strict=False)
                )
                if len(expected) != np.ndim(result) or given != np.shape(result):
                    raise OnnxError(f"the output {value.name!r} has the shape {np.shape(result)}.")

    def without_last_step(self) -> ImportedFunction:
        """Return the function without a final Softmax or Sigmoid, whose operand is returned.

        Likelihoods of classes take logits. `last_step` keeps what was taken off.
        """
        if len(self.graph.outputs) != 1:
            return self
        name, nodes = self.graph.outputs[0].name, list(self.graph.nodes)
        makers = self.graph.makers()
        while name in makers and makers[name].kind == "Identity":
            name = makers[name].inputs[0]
        node = makers.get(name)
        if node is None or node.kind not in _LAST_STEPS:
            return self
        if node.kind == "Softmax" and node.attributes.get("axis", -1) not in (
            -1, len(self.outputs[0].shape or (0, 0)) - 1,
        ):  # fmt: skip
            return self
        graph = OnnxGraph(nodes, self.graph.arrays, self.graph.inputs, [OnnxValue(node.inputs[0])])
        graph.drop_unread()
        return replace(self, graph=graph, last_step=node)


def _spell(shape: Sequence[Any]) -> str:
    return f"({', '.join('any' if n is None else str(n) for n in shape)})"


class GraphEvaluation:
    """One evaluation of a graph.

    Args:
        file_rows: Number of rows that the file was written for, or None.
        rows: Number of rows of the input.
        lengths: See `OperatorCall`.
    """

    def __init__(
        self, file_rows: int | None, rows: int | None, lengths: dict[int, int] | None = None
    ) -> None:
        self.file_rows, self.rows, self.lengths = file_rows, rows, lengths or {}

    def run(self, graph: OnnxGraph, values: dict[str, Any]) -> list[Any]:
        """Return the outputs of a graph; values are those of its inputs, and of names outside."""
        values = {**graph.arrays, **values}
        for node in graph.nodes:
            results = self.step(node, values)
            for name, result in zip(node.outputs, results, strict=False):
                if name:
                    values[name] = result
        missing = [v.name for v in graph.outputs if v.name not in values]
        if missing:
            raise OnnxError(f"nothing computes the output {missing[0]!r}; the file is damaged.")
        outputs = [values[v.name] for v in graph.outputs]
        return [r.stack() if isinstance(r, Directions) else r for r in outputs]

    def step(self, node: OnnxNode, values: dict[str, Any]) -> tuple[Any, ...]:
        """Return the results of a node."""
        operands = []
        for name in node.inputs:
            if name and name not in values:
                raise OnnxError(f"{node}: nothing computes {name!r}; the file is damaged.")
            value = values[name] if name else None
            if isinstance(value, Directions) and node.kind not in _TAKE_DIRECTIONS:
                value = value.stack()
            operands.append(value)
        while operands and operands[-1] is None:
            operands.pop()

        def run(graph: OnnxGraph, inputs: Sequence[Any]) -> list[Any]:
            names = [v.name for v in graph.inputs]
            return self.run(graph, {**values, **dict(zip(names, inputs, strict=True))})

        return evaluate_node(
            OperatorCall(node, run, self.file_rows, self.rows, self.lengths), operands
        )


def evaluate_node(call: OperatorCall, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of one operator.

    Args:
        call: The operator.
        operands: Values of its operands; None for one that is left out.

    Raises:
        OnnxError: The operator cannot be evaluated on them; names the node.
    """
    try:
        results = OPERATORS[call.node.kind](call, *operands)
    except OnnxError as error:
        message = str(error)
        if message.startswith(f"{call.node}"):
            raise
        raise OnnxError(f"{call.node}: {message}") from error
    except jax.errors.JAXTypeError:
        raise  # a value was needed that is only traced; JAX explains it best
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        shapes = [tuple(np.shape(o)) if hasattr(o, "dtype") else None for o in operands]
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OnnxError(
            f"{call.node}: operands of the shapes {shapes} do not fit it ({reason})."
        ) from error
    return results if isinstance(results, tuple) else (results,)


def list_float_outputs(outputs: Sequence[OnnxValue]) -> list[OnnxValue]:
    """Return the outputs that hold floating-point numbers, or whose type is not known."""
    return [v for v in outputs if not v.dtype or is_float(np.zeros(0, v.dtype))]
