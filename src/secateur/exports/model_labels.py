"""Names of the inputs and outputs of a model that was trained on a table."""

from __future__ import annotations

from typing import NamedTuple

from secateur.tables import Encoding
from secateur.trained import Trained

__all__ = ["ColumnLabels", "find_labels"]


class ColumnLabels(NamedTuple):
    """What a model's table says of its columns.

    Attributes:
        inputs: Names of the inputs.
        is_number: For each input, whether it is a number; else it is 0 or 1.
        targets: Names of the targets.
        classes: Names of the classes, or None.
    """

    inputs: list[str]
    is_number: list[bool]
    targets: list[str]
    classes: list[str] | None

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs: of classes, theirs."""
        return self.classes or self.targets


def find_labels(trained: Trained) -> ColumnLabels | None:
    """Return the names of a model's table, which is saved with it, or None."""
    if not isinstance(trained.extra, dict) or "table" not in trained.extra:
        return None
    encoding = Encoding.from_json(trained.extra["table"])
    classes = encoding.targets[0].classes
    return ColumnLabels(
        inputs=[column["name"] for column in encoding.inputs],
        is_number=[column["kind"] == "number" for column in encoding.inputs],
        targets=[target.name for target in encoding.targets],
        classes=None if classes is None else list(classes),
    )
