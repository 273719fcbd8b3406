"""Names and kinds of the columns and outputs of a model that was trained on a table."""

from __future__ import annotations

from typing import Any, NamedTuple

from secateur.tables import Encoding
from secateur.trained import Trained

__all__ = ["InputColumn", "TableLabels", "find_labels", "make_labels"]


class InputColumn(NamedTuple):
    """A column of a table, and where its values go.

    Attributes:
        name: Name in the header of the table.
        kind: "number", "boolean", "category", or another kind of `secateur.tables.Column`.
        categories: Texts of a category, or ().
        fill: What the encoding puts in place of a missing value, or None if that is an error.
            Where a value makes several numbers, one for each.
        limits: Least and largest number of the rows that the model was made from, or None.
        has_indicator: Whether the last input is 1 where the value is missing, and else 0.
        input_names: Names of the inputs that it makes.
        inputs: For each of these, its position among the inputs of the model, or None if the model
            does not have it any more.
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
        """Return the positions of the inputs without the one that says that a value is missing."""
        return self.inputs[:-1] if self.has_indicator else self.inputs


class TableLabels(NamedTuple):
    """What a model's table says of its columns.

    Attributes:
        columns: Columns of which the model has an input, in the order of the inputs.
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
        """Return the names of the outputs: of classes, theirs."""
        return self.classes or self.targets


def find_labels(trained: Trained) -> TableLabels | None:
    """Return what is known of a model's table, which is saved with it, or None."""
    if not isinstance(trained.extra, dict) or "table" not in trained.extra:
        return None
    return make_labels(Encoding.from_json(trained.extra["table"]), trained)


def make_labels(encoding: Encoding, trained: Trained) -> TableLabels:
    """Return what an encoding says of the columns and outputs of a model.

    Args:
        encoding: How the inputs of the model were made.
        trained: The model, which has all of these inputs or those that `compact` has left.
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
