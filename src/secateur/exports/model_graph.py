"""The graph of a trained model, from raw inputs to predictions in the data's own units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.beliefs import mean_weights
from secateur.exports.evaluator import evaluate_graph, run_frames
from secateur.exports.example_rows import FRAMES, draw_rows, find_row_shape
from secateur.exports.graph import ExportError, Graph, Node
from secateur.exports.lowering import lower_function, lower_model
from secateur.exports.predictions import make_score_function, standardise_exactly
from secateur.exports.simplification import simplify_graph, spread_products
from secateur.importing import ImportedFunction
from secateur.propagation import UnsupportedOperation
from secateur.pytrees import flatten_beliefs, is_belief
from secateur.trained import Trained
from secateur.training.scaling import Affine

__all__ = ["ModelGraph", "make_model_graph"]

_WHOLE = ("int16", "int32", "int64", "uint16", "uint32", "uint64")


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """A model as steps that process one row or one frame at a time.

    Attributes:
        graph: The steps.
        deviations: For each product with weights among them, in order, the posterior's standard
            deviation of each weight in the graph's units; 0 where a weight is not a constant
            multiple of a single parameter.
        by_frame: Whether it takes the frames of a sequence one at a time.
        function: The same function of whole rows, in JAX.
        rows: Example inputs of shape (rows, …).
        is_drawn: Whether the rows were drawn, because none were given.
    """

    graph: Graph
    deviations: list[np.ndarray]
    by_frame: bool
    function: Callable[[Any], Any]
    rows: np.ndarray
    is_drawn: bool

    @property
    def nonzeros(self) -> int:
        """Return the number of weights in products that are not 0."""
        return sum(int(np.count_nonzero(n.attributes["weights"])) for n in self.graph.products())

    def run(self, rows: np.ndarray, arithmetic: Any = None, graph: Graph | None = None) -> Any:
        """Evaluate rows in NumPy: (rows, outputs), or for frames (rows, frames, outputs)."""
        graph = graph or self.graph
        shape = graph.inputs[0].shape
        if self.by_frame:
            results = [run_frames(graph, row.reshape(-1, *shape), arithmetic) for row in rows]
            return np.stack([r.reshape(len(r), -1) for r in results])
        results = [
            evaluate_graph(graph, [row.reshape(shape)], (), arithmetic)[0][0] for row in rows
        ]
        return np.stack([np.ravel(r) for r in results])


def make_model_graph(
    trained: Trained, inputs: Any = None, *, input_factors: bool = True, mean: str = "weights"
) -> ModelGraph:
    """Read the steps of a trained model.

    Args:
        trained: A trained model.
        inputs: Example rows; needed if the shape of the function's input is not known.
        input_factors: See `simplify_graph`.
        mean: "weights" for the network at the posterior means of its weights, "predictive" for
            the mean of `predict`; see `make_score_function`.

    Raises:
        ExportError: An operation of the model is not supported, or its frames cannot be processed
            one by one.
    """
    f = trained.model.f
    if isinstance(f, ImportedFunction) and any(v.dtype in _WHOLE for v in f.inputs):
        raise ExportError("networks that take integers as inputs cannot be written in C.")
    shape = find_row_shape(trained, inputs)
    rows = draw_rows(trained, shape) if inputs is None else np.asarray(inputs, np.float32)
    if mean == "predictive":
        graph, function = _lower_averaged(trained, shape)
        by_frame = False
    else:
        graph, function, by_frame = _lower_at_means(trained, shape, is_exact=input_factors)
    spread_products(graph)
    graph = simplify_graph(graph, input_factors=input_factors)
    if len(graph.outputs) != 1:
        raise ExportError(
            f"the model has {len(graph.outputs)} outputs. Supported: one array of outputs."
        )
    leaves = flatten_beliefs(trained.beliefs)[0]
    deviations = [_find_deviations(node, leaves) for node in graph.products()]
    model = ModelGraph(graph, deviations, by_frame, function, rows, inputs is None)
    _compare_with_function(model)
    return model


def _lower_at_means(
    trained: Trained, shape: tuple[int, ...], *, is_exact: bool
) -> tuple[Graph, Callable[[Any], Any], bool]:
    """Return the steps at the posterior means, the function, and whether it takes frames.

    With `is_exact`, means of inputs keep all their digits through a second shift, which is folded
    into a bias unless standardisation is a step of its own.
    """
    params = mean_weights(trained.beliefs)

    def predict(params: Any, x: Any) -> Any:
        units = trained.scaling.inputs
        if is_exact and isinstance(units, Affine):
            z = standardise_exactly(units, x)
        else:
            z = trained.scaling.standardise_inputs(x, x.dtype)
        y = trained.model.f(params, z)
        return y if trained.scaling.targets is None else trained.scaling.targets.to_data(y)

    def function(x: Any) -> Any:
        return predict(params, x)

    by_frame = _is_recurrent(function, shape)
    if by_frame:
        shape = (1, *shape[1:])
    spec = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    return lower_model(predict, params, spec, by_frame=by_frame), function, by_frame


def _lower_averaged(trained: Trained, shape: tuple[int, ...]) -> tuple[Graph, Callable[[Any], Any]]:
    """Return the steps of the prediction averaged over the posterior, and the function."""
    function = make_score_function(trained)
    try:
        graph = lower_function(function, jax.ShapeDtypeStruct((1, *shape), jnp.float32))
    except (ExportError, UnsupportedOperation) as error:
        raise ExportError(
            f"mean='predictive' cannot be written for this model: {error} mean='weights' writes "
            "the network at the posterior means of its weights."
        ) from error
    if any(node.op == "recurrent" for node in graph.nodes):
        raise ExportError(
            "mean='predictive' cannot be written for a recurrent network. mean='weights' writes it "
            "at the posterior means of its weights."
        )
    return graph, function


def _find_deviations(node: Node, leaves: list[Any]) -> np.ndarray:
    """Return each weight's posterior deviation: its parameter's deviation times the factor."""
    deviations, origin = np.zeros(node.attributes["weights"].shape), node.attributes["origin"]
    if origin is None:
        return deviations
    for number, leaf in enumerate(leaves):
        if is_belief(leaf):
            here = origin.leaf == number
            variance = np.ravel(np.asarray(leaf.variance, np.float64))
            if here.any():
                deviations[here] = np.sqrt(variance[origin.place[here]])
    return deviations * np.abs(origin.factor)


def _is_recurrent(function: Callable[[Any], Any], shape: tuple[int, ...]) -> bool:
    spec = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    return any(node.op == "recurrent" for node in lower_function(function, spec).nodes)


def _compare_with_function(model: ModelGraph) -> None:
    """Compare the steps with the function itself, on frames in particular."""
    rows = model.rows[:8, :FRAMES] if model.by_frame else model.rows[:8]
    truth = np.asarray(jax.jit(model.function)(jnp.asarray(rows)), np.float64)
    outputs = model.run(rows.astype(np.float64))
    if model.by_frame and truth.size != outputs.size:
        outputs = outputs[:, -1]
    outputs, truth = (np.asarray(v).reshape(-1, truth.shape[-1]) for v in (outputs, truth))
    gap = np.max(np.abs(outputs - truth), axis=0)
    # JAX computes in float32: rounding scales with the size and the spread of the results.
    if np.all(gap <= 3e-7 * np.max(np.abs(truth), axis=0) + 1e-4 * np.ptp(truth, axis=0)):
        return
    if model.by_frame:
        raise ExportError(
            "this network cannot process frames one by one: its prediction for a sequence "
            "differs from its prediction after the last frame. Supported: loops over time of "
            "which the last state, or every state, is read out."
        )
    raise ExportError(
        f"the exported steps differ from the model by {np.max(gap):.3g}. This is a defect of "
        "secateur; please report it."
    )
