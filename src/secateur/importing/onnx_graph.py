"""An ONNX model as plain Python: nodes, arrays and names, without protocol buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["OnnxError", "OnnxGraph", "OnnxNode", "OnnxValue"]


class OnnxError(ValueError):
    """An ONNX file cannot be read, or holds something that is not supported."""


@dataclass(frozen=True)
class OnnxValue:
    """An input or output of a graph.

    Attributes:
        name: Its name.
        dtype: Type of its elements, by the name of the NumPy type; empty if it is not an array.
        shape: Lengths of its axes: a number, a name, or None where the file says nothing; None
            altogether for a shape that is not known.
    """

    name: str
    dtype: str = ""
    shape: tuple[int | str | None, ...] | None = None


@dataclass(eq=False)
class OnnxNode:
    """One operator of a graph.

    Attributes:
        kind: Name of the operator, with its domain in front if that is not ONNX's own.
        inputs: Names of its operands; "" for one that is left out.
        outputs: Names of its results; "" for one that is not read.
        attributes: Numbers, texts, lists of these, arrays and graphs by name.
        version: Version of the operator set.
        name: Name of the node in the file.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    version: int = 17
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} (node {self.name or self.outputs[0]!r})"

    def graphs(self) -> Iterator[OnnxGraph]:
        """Yield the graphs among its attributes."""
        for value in self.attributes.values():
            if isinstance(value, OnnxGraph):
                yield value


@dataclass(eq=False)
class OnnxGraph:
    """Operators in order, with the inputs and outputs of the graph.

    Attributes:
        nodes: Operators, each after those whose results it reads.
        arrays: Known arrays by name (the file's initialisers).
        inputs: Inputs.
        outputs: Outputs.
    """

    nodes: list[OnnxNode]
    arrays: dict[str, np.ndarray]
    inputs: list[OnnxValue]
    outputs: list[OnnxValue]

    def drop_unread(self) -> None:
        """Leave out nodes and arrays that no output depends on."""
        needed = {value.name for value in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs) - {""}:
                kept.append(node)
                needed.update(node.inputs)
                for graph in node.graphs():
                    needed |= graph.free_names()
        self.nodes = kept[::-1]
        self.arrays = {name: a for name, a in self.arrays.items() if name in needed}

    def free_names(self) -> set[str]:
        """Return the names that the graph reads and does not define itself."""
        known = {*self.arrays, *(value.name for value in self.inputs), ""}
        free: set[str] = set()
        for node in self.nodes:
            free |= {*node.inputs} - known
            for graph in node.graphs():
                free |= graph.free_names() - known
            known |= {*node.outputs}
        return free | ({value.name for value in self.outputs} - known)

    def readers(self) -> dict[str, list[OnnxNode]]:
        """Return the nodes that read each name; a graph's output counts as None."""
        readers: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in {*node.inputs, *(n for g in node.graphs() for n in g.free_names())}:
                readers.setdefault(name, []).append(node)
        for value in self.outputs:
            readers.setdefault(value.name, []).append(None)
        return readers

    def makers(self) -> dict[str, OnnxNode]:
        """Return the node that computes each name."""
        return {name: node for node in self.nodes for name in node.outputs if name}
