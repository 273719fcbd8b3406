"""`to_c`: a trained model as C99."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from secateur import __version__
from secateur.compaction import find_used_inputs
from secateur.exports.c.c_files import HeaderLabels, SelfTestVectors
from secateur.exports.c.c_names import check_prefix
from secateur.exports.c.source_writer import Source, count_products, write_c
from secateur.exports.c.table_code import make_fields
from secateur.exports.comparison import choose_rows, compare_with_predict
from secateur.exports.evaluator import FloatArithmetic
from secateur.exports.graph import ExportError
from secateur.exports.model_graph import ModelGraph, make_model_graph
from secateur.exports.model_labels import find_labels
from secateur.exports.predictions import check_mean, compute_noise
from secateur.exports.quantisation import MODES, QuantisedGraph, quantise_graph
from secateur.exports.sheet import Difference
from secateur.likelihoods import BernoulliLikelihood, CategoricalLikelihood
from secateur.propagation import draws
from secateur.trained import Trained

__all__ = ["OPTIMISE", "ModelSource", "check_options", "to_c", "translate_model"]

OPTIMISE = ("size", "speed")

_TEST_VECTORS = 16
# These give the same result on every machine, even in floats.
_EXACT = {"add", "sub", "mul", "div", "neg", "max", "min", "abs", "dequantise", "reshape",
          "transpose", "slice", "reverse", "concatenate", "pad", "expand"}  # fmt: skip


class ModelSource(NamedTuple):
    """A model as C, and the graphs behind it.

    Attributes:
        model: Graph of the model.
        quantised: The same graph in integers, or None.
        differences: How far predictions are from `Trained.predict`, by output.
        source: The texts.
    """

    model: ModelGraph
    quantised: QuantisedGraph | None
    differences: tuple[Difference, ...]
    source: Source

    def expect(self, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs of calls, and the expected outputs.

        Args:
            limit: Maximum number of rows, or of consecutive frames of one row.
        """
        return _expect_outputs(self.model, self.quantised, limit)


def to_c(
    trained: Trained,
    *,
    name: str = "net",
    header: str | None = None,
    inputs: Any = None,
    quantise: str | None = None,
    optimise: str = "size",
    mean: str = "weights",
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Source:
    """Return a trained model as C99 that needs no library.

    The C function takes raw inputs and returns predictions in the data's own units. It is called
    once per row, or once per frame of a recurrent network. Predictions are the function's value at
    the posterior means of the weights; for classes, scores before the softmax, which a separate
    function converts to probabilities. For a model of a table there are also functions that take
    rows of the table. The header states the difference from the predictions of `Trained.predict`,
    the standard deviation of the noise and half the width of its 95 % interval. Dead units are
    included; `export` removes them first.

    Args:
        trained: A trained model.
        name: Prefix of all C functions.
        header: Name of the header file. Defaults to NAME.h.
        inputs: Rows like those given to `fit`. Needed for a function of your own. With `quantise`
            they determine the ranges of activations. Defaults to random rows from normal
            distributions with the inputs' means and deviations.
        quantise: "int8", "int16x8", "weights8" or "weights16"; see `export`.
        optimise: "size" or "speed".
        mean: "weights" or "predictive"; see `export`.
        input_names: Names of the inputs, for the header. Defaults to those of the model's table.
        output_names: Names of the outputs. Defaults to those of the model's table.

    Raises:
        ExportError: The model or an option cannot be exported.
    """
    check_options(quantise, optimise, mean)
    return translate_model(
        trained,
        original=trained,
        kept=None,
        name=name,
        header=header or f"{name}.h",
        inputs=inputs,
        quantise=quantise,
        optimise=optimise,
        mean=mean,
        input_names=input_names,
        output_names=output_names,
    ).source


def check_options(quantise: str | None, optimise: str, mean: str | None = None) -> None:
    """Check that options are supported.

    Raises:
        ExportError: An option is not supported.
    """
    if quantise is not None and quantise not in MODES:
        raise ExportError(f"quantise={quantise!r}. Supported: {', '.join(MODES)}.")
    if optimise not in OPTIMISE:
        raise ExportError(f"optimise={optimise!r}. Supported: {', '.join(OPTIMISE)}.")
    check_mean(mean)
    if quantise is not None and mean == "predictive":
        raise ExportError(
            "mean='predictive' is available in float32 only. Leave quantise out, or "
            "give mean='weights'."
        )


def translate_model(
    trained: Trained,
    *,
    original: Trained,
    kept: np.ndarray | None,
    name: str,
    header: str,
    inputs: Any,
    quantise: str | None,
    optimise: str,
    mean: str,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> ModelSource:
    """Return a trained model as C, with its graphs; see `to_c`.

    The header states weights and free energy of `original`, from which `trained` was made by
    keeping the inputs `kept`, or all of them.
    """
    check_prefix(name)
    labels = find_labels(trained)
    if labels is not None:
        input_names = labels.inputs if input_names is None else input_names
        output_names = labels.outputs if output_names is None else output_names
    factors = quantise in (None, "weights16")
    model = make_model_graph(trained, inputs, input_factors=factors, mean=mean)
    quantised = None if quantise is None else quantise_graph(model, quantise)
    calls, outputs = _expect_outputs(model, quantised, _TEST_VECTORS)
    for what, names, size in (
        ("input", input_names, calls[0].size), ("output", output_names, outputs.shape[1])
    ):  # fmt: skip
        if names and len(names) != size:
            raise ExportError(f"{what} names: {len(names)} are given, and {size} needed.")
    differences = _compare(trained, model, quantised, output_names or ())
    fields = []
    if labels is not None and not model.by_frame:
        used = find_used_inputs(original, inputs=inputs if kept is None else None)
        fields = make_fields(labels.columns, used if kept is None else used[kept])
    # In float32 the rounding of sums depends on the compiler; integers do not round.
    largest = float(np.max(np.abs(outputs), initial=0.0)) or 1.0
    source = write_c(
        model.graph if quantised is None else quantised.graph,
        name,
        header=header,
        optimise=optimise,
        labels=HeaderLabels(
            title=f"{name}: a network pruned by Bayesian model reduction, from secateur "
            f"{__version__}.",
            inputs=tuple(input_names or ()),
            outputs=tuple(output_names or ()),
            notes=_header_notes(original, mean, quantised, differences),
            noise=compute_noise(trained, outputs.shape[1]),
            link=_find_link(trained),
            fields=fields,
        ),
        vectors=SelfTestVectors(calls, outputs, _tolerance(quantised) * largest),
    )
    return ModelSource(model, quantised, differences, source)


def _compare(
    trained: Trained, model: ModelGraph, quantised: QuantisedGraph | None, names: Sequence[str]
) -> tuple[Difference, ...]:
    """Return the differences between the C code and `Trained.predict`."""
    frames = model.rows.shape[1] if model.by_frame else 1
    rows = choose_rows(model.rows, frames * count_products(model.graph))
    return compare_with_predict(
        trained,
        rows,
        lambda rows: _run(model, quantised, rows),
        is_drawn=model.is_drawn,
        are_scores=True,
        names=names,
    )


def _find_link(trained: Trained) -> str | None:
    links = {CategoricalLikelihood: "softmax", BernoulliLikelihood: "sigmoid"}
    return next((n for k, n in links.items() if isinstance(trained.model.likelihood, k)), None)


def _run(model: ModelGraph, quantised: QuantisedGraph | None, rows: np.ndarray) -> np.ndarray:
    if quantised is None:
        return model.run(rows.astype(np.float64))
    return model.run(rows, FloatArithmetic(np.float32), quantised.graph)


def _expect_outputs(
    model: ModelGraph, quantised: QuantisedGraph | None, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    rows = model.rows[:1, :limit] if model.by_frame else model.rows[:limit]
    outputs = _run(model, quantised, rows)
    calls = rows.reshape(-1, *model.graph.inputs[0].shape)
    return calls, outputs.reshape(len(calls), -1)


def _tolerance(quantised: QuantisedGraph | None) -> float:
    """Return the largest error of the self-test, relative to the largest output."""
    if quantised is None or quantised.mode not in ("int8", "int16x8"):
        return 1e-5
    functions = {
        n.op for n in quantised.graph.nodes if n.output.dtype.kind == "f" and n.op not in _EXACT
    }
    if not functions:
        return 1e-6
    # An error in the last digit of a function can change the integer to which it rounds.
    return 2e-2 if quantised.mode == "int8" else 2e-4


def _header_notes(
    trained: Trained,
    mean: str,
    quantised: QuantisedGraph | None,
    differences: Sequence[Difference],
) -> list[str]:
    notes = [
        f"Free energy {trained.free_energy:.1f} nats; {trained.live_weights} weights.",
        "Inputs and outputs are in the units of the data.",
    ]
    if mean == "predictive":
        notes.append("Outputs are averaged over the posterior of the weights, by moments.")
    else:
        notes.append("Outputs are those of the network at the posterior means of its weights.")
        how = "networks that are drawn from" if draws(trained.model.inference) else "over"
        notes.append(f"The model itself averages {how} the posterior.")
    notes += [difference.describe() for difference in differences]
    if isinstance(trained.model.likelihood, CategoricalLikelihood):
        notes.append("Outputs are scores; the largest belongs to the most probable class.")
    if quantised is not None and quantised.mode in ("int8", "int16x8"):
        bits = "8 bits (inputs of 16)" if quantised.mode == "int8" else "16 bits"
        notes.append(f"Weights of at most 8 bits, activations of {bits}, computed in integers.")
    notes += [
        "C99; needs no library, and only the memory that is declared here.",
        "With -ffp-contract=fast, multiplications and additions are fused where supported.",
    ]
    return notes
