"""The graph of a trained model: raw inputs in, predictions in the data's own units out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.beliefs import mean
from secateur.beliefs.trees import map_beliefs
from secateur.exports.evaluate import evaluate, run_frames
from secateur.exports.graph import ExportError, Graph
from secateur.exports.lowering import lower
from secateur.exports.simplify import simplify
from secateur.fitting.result import Trained
from secateur.likelihoods import GaussianLikelihood
from secateur.networks import Dense, Gru

__all__ = ["ModelGraph", "model_graph"]

_FRAMES = 6  # that a network by frames is tried on


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """A model at its posterior means, for one row or one frame at a time.

    Attributes:
        graph: the steps.
        deviations: for each product with weights among them, in order, the posterior's standard
            deviation of each weight in the graph's units.
        by_frame: whether it takes the frames of a sequence one after the other.
        function: the same of whole rows, in JAX.
        steps: the graph for any weights.
        rows: example inputs of shape (rows, …), drawn if none were given.
        drawn: whether the rows were drawn.
    """

    graph: Graph
    deviations: list[np.ndarray]
    by_frame: bool
    function: Callable[[Any], Any]
    steps: Callable[[Any], Graph]
    rows: np.ndarray
    drawn: bool

    def run(self, rows: np.ndarray, arithmetic: Any = None, graph: Graph | None = None) -> Any:
        """Evaluate rows in NumPy: (rows, outputs), or for frames (rows, frames, outputs)."""
        graph = graph or self.graph
        shape = graph.inputs[0].shape
        if self.by_frame:
            results = [run_frames(graph, row.reshape(-1, *shape), arithmetic) for row in rows]
            return np.stack([r.reshape(len(r), -1) for r in results])
        results = [evaluate(graph, [row.reshape(shape)], (), arithmetic)[0][0] for row in rows]
        return np.stack([np.ravel(r) for r in results])


def model_graph(trained: Trained, inputs: Any = None, *, input_factors: bool = True) -> ModelGraph:
    """Read the steps of a trained model at its posterior means.

    Args:
        trained: from `fit`, `prune`, `load` or `compact`.
        inputs: example rows; needed for a function whose input's shape is not known otherwise.
        input_factors: see `simplify`.

    Raises:
        ExportError: there is no counterpart for something in it, or its frames cannot be taken
            one by one.
    """
    shape = _row_shape(trained, inputs)
    rows, drawn = _rows(trained, inputs, shape)
    params = mean(trained.beliefs)
    shifted = map_beliefs(lambda q: q.mean + jnp.sqrt(q.variance), trained.beliefs)

    def at(params: Any) -> Callable[[Any], Any]:
        def predict(x: Any) -> Any:
            y = trained.model.f(params, trained.scaling.standard_inputs(x, x.dtype))
            return y if trained.scaling.targets is None else trained.scaling.targets.to_data(y)

        return predict

    function = at(params)
    by_frame = _is_recurrent(function, shape)
    if by_frame:
        shape = (1, *shape[1:])
    spec = jax.ShapeDtypeStruct((1, *shape), jnp.float32)

    def steps(params: Any) -> Graph:
        lowered = lower(at(params), spec, by_frame=by_frame)
        return simplify(lowered, input_factors=input_factors)

    graph = steps(params)
    if len(graph.outputs) != 1:
        raise ExportError(
            f"the model has {len(graph.outputs)} outputs. Supported: one array of outputs."
        )
    # Weights of the graph are those of the model times constants: so are their deviations.
    other = steps(shifted)
    deviations = [
        np.abs(b.attributes["weights"] - a.attributes["weights"])
        for a, b in zip(graph.nodes, other.nodes, strict=True)
        if a.op in ("linear", "conv")
    ]
    made = ModelGraph(graph, deviations, by_frame, function, steps, rows, drawn)
    _check(made)
    return made


def noise_deviation(trained: Trained) -> np.ndarray | None:
    """Standard deviation of the observations' noise by output, in the data's units, if Gaussian.

    With q(γ) = Gamma(α, β) it is √(β/(α − 1)).
    """
    if not isinstance(trained.model.likelihood, GaussianLikelihood) or trained.noise is None:
        return None
    shape, rate = (np.asarray(p, np.float64) for p in (trained.noise.shape, trained.noise.rate))
    targets = trained.scaling.targets
    scale = 1.0 if targets is None else np.asarray(targets.scale, np.float64)
    return np.atleast_1d(np.sqrt(rate / np.maximum(shape - 1, 1e-9)) * scale)


def _row_shape(trained: Trained, inputs: Any) -> tuple[int, ...]:
    if inputs is not None:
        return tuple(np.shape(inputs)[1:])
    network = trained.model.f
    if isinstance(network, Dense):
        return (network.inputs,)
    if isinstance(network, Gru):
        return (_FRAMES, network.inputs)
    raise ExportError(
        "the shape of the model's inputs is not known. Give some rows of the data with inputs=…"
    )


def _rows(trained: Trained, inputs: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    if inputs is not None:
        return np.asarray(inputs, np.float32), False
    drawn = np.random.default_rng(0).normal(size=(256, *shape))
    affine = trained.scaling.inputs
    if affine is not None:
        drawn = drawn * np.asarray(affine.scale) + np.asarray(affine.shift)
    return drawn.astype(np.float32), True


def _is_recurrent(function: Callable[[Any], Any], shape: tuple[int, ...]) -> bool:
    spec = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    return any(node.op == "recurrent" for node in lower(function, spec).nodes)


def _check(made: ModelGraph) -> None:
    """Hold the steps against the function itself, on frames in particular."""
    rows = made.rows[:8]
    if made.by_frame:
        rows = made.rows[:8, :_FRAMES]
    truth = np.asarray(made.function(jnp.asarray(rows)), np.float64)
    found = made.run(rows.astype(np.float64))
    if made.by_frame:
        whole = truth.size == found.size
        found = found if whole else found[:, -1]
    found, truth = (np.asarray(v).reshape(-1, truth.shape[-1]) for v in (found, truth))
    gap = np.max(np.abs(found - truth), axis=0)
    # JAX computes in float32: digits are lost relative to how large and how different results are.
    if np.all(gap <= 3e-7 * np.max(np.abs(truth), axis=0) + 1e-4 * np.ptp(truth, axis=0)):
        return
    if made.by_frame:
        raise ExportError(
            "the frames of this network cannot be taken one by one: what it says of a sequence is "
            "not what it says after its last frame. Supported: loops over time whose last or every "
            "state is read out."
        )
    raise ExportError(
        f"the exported steps differ from the model by {np.max(gap):.3g}: a mistake of secateur's."
    )
