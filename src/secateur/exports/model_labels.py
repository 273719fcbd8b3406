"""Names and kinds of the columns and outputs of a model that was trained on a table."""

from __future__ import annotations

from typing import Any, NamedTuple

from secateur.tables import Encoding
from secateur.trained import Trained

__all__ = ["InputColumn", "TableLabels", "find_labels", "make_labels"]


class InputColumn(NamedTuple):
    """A column of a table and the inputs made from it.

    Attributes:
        name: Name in the header of the table.
        kind: "number", "boolean", "category", or another kind of `secateur.tables.Column`.
        categories: Categories of a categorical column, or ().
        fill: Value by which the encoding replaces a missing value (one for each number that the
            column is encoded as), or None if a missing value is an error.
        limits: Smallest and largest number in the training data, or None.
        has_indicator: Whether the last input is an indicator of missing values.
        input_names: Names of the inputs that the column is encoded as.
        inputs: For each of these, its position among the inputs of the model, or None if the model
            no longer has it.
    """

    name: str
    kind: str
    categories: tuple[str, ...]
    fill: Any
    limits: tuple[float, float] | None
    has_indicator: bool
    input_names: tuple[str, ...]
    inputs: tuple[int | None, ...]

    @property
    def value_inputs(self) -> tuple[int | None, ...]:
        """Return the positions of the inputs other than the indicator of missing values."""
        return self.inputs[:-1] if self.has_indicator else self.inputs


class TableLabels(NamedTuple):
    """Names and kinds of the columns of a model's table.

    Attributes:
        columns: Columns with an input in the model, in the order of the inputs.
        targets: Names of the targets.
        classes: Names of the classes, or None.
    """

    columns: list[InputColumn]
    targets: list[str]
    classes: list[str] | None

    @property
    def inputs(self) -> list[str]:
        """Return the names of the model's inputs."""
        return [
            name
            for column in self.columns
            for name, place in zip(column.input_names, column.inputs, strict=True)
            if place is not None
        ]

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs; for classification, the names of the classes."""
        return self.classes or self.targets


def find_labels(trained: Trained) -> TableLabels | None:
    """Return the labels of a model's table, which are saved with the model, or None."""
    if not isinstance(trained.extra, dict) or "table" not in trained.extra:
        return None
    return make_labels(Encoding.from_json(trained.extra["table"]), trained)


def make_labels(encoding: Encoding, trained: Trained) -> TableLabels:
    """Return the labels of a model's columns and outputs, from the encoding of its table.

    Args:
        encoding: Encoding of the table.
        trained: The model, with all inputs of the encoding or those that `compact` has kept.
    """
    kept: Any = None if trained.compaction is None else trained.compaction.kept_inputs
    total = len(encoding.inputs)
    places = {int(old): new for new, old in enumerate(range(total) if kept is None else kept)}
    columns, start = [], 0
    for column in encoding.columns:
        names = column.inputs
        inputs = tuple(places.get(start + number) for number in range(len(names)))
        start += len(names)
        if any(place is not None for place in inputs):
            columns.append(
                InputColumn(
                    name=column.name,
                    kind=column.kind,
                    categories=column.categories,
                    fill=column.fill if encoding.missing == "mean" else None,
                    limits=column.limits,
                    has_indicator=column.has_indicator,
                    input_names=tuple(names),
                    inputs=inputs,
                )
            )
    classes = encoding.targets[0].classes
    return TableLabels(
        columns,
        [target.name for target in encoding.targets],
        None if classes is None else list(classes),
    )
