"""The model to be written, without dead units and unused inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from secateur.compaction import compact, find_used_inputs
from secateur.exports.example_rows import find_row_shape
from secateur.exports.graph import ExportError
from secateur.exports.model_labels import find_labels
from secateur.networks import Dense, Gru
from secateur.propagation import UnsupportedOperation
from secateur.trained import Trained

__all__ = ["SmallerModel", "make_smaller"]


class SmallerModel(NamedTuple):
    """A model without its dead units.

    Attributes:
        model: The model. `model.compaction.kept_inputs` are positions among the inputs with which
            the model was trained.
        original: The model from which it was made.
        kept: Positions of the remaining inputs among those of the original, or None for all.
    """

    model: Trained
    original: Trained
    kept: np.ndarray | None

    def take_inputs(self, rows: Any) -> Any:
        """Return the remaining inputs of rows for the original; None stays None."""
        return rows if rows is None or self.kept is None else np.asarray(rows)[..., self.kept]

    def take_names(self, names: Sequence[str] | None) -> Sequence[str] | None:
        """Return the names of the remaining inputs, given the names of all inputs or of these."""
        if names is None or self.kept is None or len(names) == len(self.kept):
            return names
        if self.kept.max() >= len(names):
            raise ExportError(
                f"{len(names)} input names are given. Give one for each of the model's inputs."
            )
        return [names[i] for i in self.kept]


def make_smaller(trained: Trained, inputs: Any, *, keep_inputs: bool | None) -> SmallerModel:
    """Return a model without its dead units.

    Args:
        trained: A trained model.
        inputs: Rows for it, or None for a network whose inputs are known.
        keep_inputs: As in `secateur.export`.
    """
    if inputs is None and not isinstance(trained.model.f, Dense | Gru):
        inputs = np.zeros((2, *find_row_shape(trained, None)), np.float32)
    if keep_inputs is None:
        keep_inputs = find_labels(trained) is None
    rows = None if inputs is None else np.asarray(inputs)[:8]
    before = trained.compaction
    if before is not None and (keep_inputs or find_used_inputs(trained, inputs=rows).all()):
        return SmallerModel(trained, trained, None)
    try:
        small = compact(trained, drop_inputs=not keep_inputs, inputs=rows)
    except UnsupportedOperation:  # moments are missing; the export may not need them
        return SmallerModel(trained, trained, None)
    compaction = small.compaction
    assert compaction is not None
    kept = None if keep_inputs else compaction.kept_inputs
    if before is not None and before.kept_inputs is not None:
        positions = np.asarray(before.kept_inputs)[np.asarray(compaction.kept_inputs)]
        small = replace(small, compaction=replace(compaction, kept_inputs=positions))
    return SmallerModel(small, trained, kept)
