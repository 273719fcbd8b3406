"""Example rows for an export where the user gives none."""

from __future__ import annotations

from typing import Any

import numpy as np

from secateur.exports.graph import ExportError
from secateur.exports.model_labels import InputColumn, find_labels
from secateur.importing import ImportedFunction
from secateur.networks import Dense, Gru
from secateur.trained import Trained

__all__ = ["FRAMES", "draw_rows", "find_row_shape"]

FRAMES = 6  # length of random sequences
_ROWS = 256


def find_row_shape(trained: Trained, inputs: Any) -> tuple[int, ...]:
    """Return the shape of a row of inputs.

    Raises:
        ExportError: The shape is not known.
    """
    network = trained.model.f
    has_several = isinstance(network, ImportedFunction) and len(network.inputs) > 1
    if has_several or isinstance(inputs, dict):
        raise ExportError(
            "models with several inputs cannot be exported. Join them into one array, which the "
            "function takes apart."
        )
    if inputs is not None:
        return tuple(np.shape(inputs)[1:])
    if isinstance(network, Dense):
        return (network.inputs,)
    if isinstance(network, Gru):
        return (FRAMES, network.inputs)
    if isinstance(network, ImportedFunction) and network.row_shape is not None:
        kept = None if trained.compaction is None else trained.compaction.kept_inputs
        shape = network.row_shape
        return shape if kept is None else (*shape[:-1], len(kept))
    raise ExportError(
        "the shape of the model's inputs is not known. Give some rows of the data with inputs=…"
    )


def draw_rows(trained: Trained, shape: tuple[int, ...]) -> np.ndarray:
    """Draw rows with the inputs' means and deviations; for a table, within its ranges.

    Args:
        trained: A trained model.
        shape: Shape of a row.
    """
    random = np.random.default_rng(0)
    affine = trained.scaling.inputs
    means, deviations = np.zeros(shape[-1]), np.ones(shape[-1])
    if affine is not None:
        means, deviations = (means + np.asarray(p) for p in (affine.shift, affine.scale))
    labels = find_labels(trained)
    if labels is None or len(labels.inputs) != shape[-1] or affine is None:
        return (random.normal(size=(_ROWS, *shape)) * deviations + means).astype(np.float32)
    rows = np.empty((_ROWS, *shape))
    for column in labels.columns:
        places = [place for place in column.inputs if place is not None]
        rows[:, places] = _draw_column(column, random, means, deviations)
    return rows.astype(np.float32)


def _draw_column(
    column: InputColumn, random: np.random.Generator, means: np.ndarray, deviations: np.ndarray
) -> np.ndarray:
    """Draw a column's inputs: numbers within its range, 0 and 1 with their frequencies."""
    values = [place for place in column.value_inputs if place is not None]
    indicators = [p for p in column.inputs[len(column.value_inputs) :] if p is not None]
    if column.kind in ("boolean", "category"):
        drawn = _draw_choices(random, means[values])
    else:
        drawn = random.normal(means[values], deviations[values], (_ROWS, len(values)))
        drawn = drawn if column.limits is None else np.clip(drawn, *column.limits)
    return np.hstack([drawn, _draw_choices(random, means[indicators])])


def _draw_choices(random: np.random.Generator, shares: np.ndarray) -> np.ndarray:
    """Draw rows in which at most one of several inputs is 1, with the categories' frequencies."""
    shares = np.clip(shares, 0, 1)
    ends, place = np.cumsum(shares), random.uniform(size=(_ROWS, 1))
    return ((place < ends) & (place >= ends - shares)).astype(np.float64)
