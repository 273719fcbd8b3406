"""Graphs for an arbitrary number of rows and frames.

A function is lowered twice, for two different (large, prime, never evaluated) numbers of rows and
of frames. What is equal in both graphs belongs to the model. What differs by the ratio of rows is a
number of rows. If anything else differs, the model is not a function of one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from secateur.exports.graph import Atom, Constant, ExportError, Graph, Node, Value
from secateur.exports.lowering import lower_function
from secateur.exports.onnx.preparation import prepare_graph

__all__ = ["Dim", "SymbolicGraph", "has_loop", "lower_for_any_size"]

_ROWS = (7919, 7927)
_FRAMES = (7907, 7901)


class Dim(NamedTuple):
    """A length that is only known when the model runs: `factor` · product of `names`."""

    names: tuple[str, ...]
    factor: int

    def __str__(self) -> str:
        return "*".join([*self.names, *([str(self.factor)] if self.factor != 1 else [])])


Length = int | Dim | None


@dataclass(frozen=True, eq=False)
class SymbolicGraph:
    """A graph whose lengths may depend on the number of rows, "N", and of frames, "T".

    Attributes:
        graph: Lowered for one choice of numbers.
        shapes: Lengths of every value: an int, a `Dim`, or None where a length is neither.
        other: Lengths for the second choice of numbers.
    """

    graph: Graph
    shapes: dict[Value, tuple[Length, ...]]
    other: dict[Node, Node]

    def shape(self, atom: Atom) -> tuple[Length, ...]:
        """Return the lengths of a value's or constant's axes."""
        return self.shapes[atom]  # type: ignore[index]


class _Differs(Exception):
    """The two graphs differ."""


def lower_for_any_size(
    f: Callable[[Any], Any],
    shape: Sequence[int | None],
    dtype: Any,
    file_dtypes: tuple[Any, Any] = (np.float32, np.float32),
) -> SymbolicGraph:
    """Lower a function of rows.

    Args:
        f: The model function with its weights filled in.
        shape: Shape of its input without the rows; None as the first length means any number of
            frames.
        dtype: Dtype of its input.
        file_dtypes: Types of input and output in the file.

    Raises:
        ExportError: An operation is not supported, or rows are not independent.
    """
    graphs = [prepare_graph(_lowered(f, shape, dtype, n), file_dtypes) for n in (0, 1)]
    try:
        return _Pair(*graphs).symbolic()
    except _Differs as error:
        what = "rows or frames" if None in shape else "rows"
        raise ExportError(
            f"the model depends on the number of {what} ({error}), so it cannot be exported "
            "for an arbitrary number of them. Supported: functions of one row at a time, such as "
            "batch normalisation with running averages."
        ) from None


def has_loop(f: Callable[[Any], Any], shape: Sequence[int | None], dtype: Any) -> bool:
    """Whether a function loops over time; see `lower_for_any_size`."""
    return any(node.op == "recurrent" for node in _lowered(f, shape, dtype, 0).nodes)


def _lowered(
    f: Callable[[Any], Any], shape: Sequence[int | None], dtype: Any, choice: int
) -> Graph:
    sizes = tuple(_FRAMES[choice] if n is None else n for n in shape)
    return lower_function(f, jax.ShapeDtypeStruct((_ROWS[choice], *sizes), dtype))


def length(first: int, second: int) -> Length:
    """Return a length, given its two values."""
    if first == second:
        return first
    both = [np.prod([a, b]) for a, b in zip(_ROWS, _FRAMES, strict=True)]
    for names, (one, two) in (
        (("N", "T"), both),
        (("N",), _ROWS),
        (("T",), _FRAMES),
    ):
        if first % one == 0 and second % two == 0 and first // one == second // two:
            return Dim(names, int(first // one))
    return None


class _Pair:
    def __init__(self, first: Graph, second: Graph) -> None:
        self.first, self.second = first, second
        self.shapes: dict[Any, tuple[Length, ...]] = {}
        self.other: dict[Node, Node] = {}

    def symbolic(self) -> SymbolicGraph:
        self.graphs(self.first, self.second)
        return SymbolicGraph(self.first, self.shapes, self.other)

    def graphs(self, first: Graph, second: Graph) -> None:
        if len(first.nodes) != len(second.nodes):
            raise _Differs("a different number of steps")
        partner: dict[Value, Value] = {}
        self.enter(first.inputs, second.inputs, partner)
        for one, two in zip(first.nodes, second.nodes, strict=True):
            if one.op != two.op or len(one.inputs) != len(two.inputs):
                raise _Differs(f"a different step in {one.where}")
            self.atoms(one.inputs, two.inputs, partner, one.where)
            self.attributes(one, two)
            if one.op in ("reduce", "matmul") and self.counts_rows(one):
                raise _Differs(f"its rows are summed up in {one.where}")
            self.enter(one.outputs, two.outputs, partner)
            self.other[one] = two
        self.atoms(first.outputs, second.outputs, partner, "results")

    def counts_rows(self, node: Node) -> bool:
        """Whether a reduction or product sums over rows."""
        shape = self.shapes[node.inputs[0]]
        lengths = [shape[a] for a in node.attributes.get("axes", (-1,))]
        return any(isinstance(n, Dim) and "N" in n.names for n in lengths)

    def enter(self, first: Sequence[Value], second: Sequence[Value], partner: dict) -> None:
        for a, b in zip(first, second, strict=True):
            partner[a] = b
            self.shapes[a] = tuple(length(m, n) for m, n in zip(a.shape, b.shape, strict=True))

    def atoms(
        self, first: Sequence[Atom], second: Sequence[Atom], partner: dict, where: str
    ) -> None:
        for a, b in zip(first, second, strict=True):
            if isinstance(a, Value):
                if partner.get(a) is not b:
                    raise _Differs(f"a different operand in {where}")
            elif not isinstance(b, Constant) or not _equal(a.array, b.array):
                raise _Differs(f"a different number in {where}")
            else:
                self.shapes[a] = tuple(length(m, n) for m, n in zip(a.shape, b.shape, strict=True))

    def attributes(self, one: Node, two: Node) -> None:
        for name, a in one.attributes.items():
            b = two.attributes[name]
            if name == "body":
                self.graphs(a, b)
            elif name in ("starts", "limits"):
                continue  # compared with the lengths by the writer
            elif name == "initial":
                pairs = zip(a, b, strict=True)
                if not all(_equal(Constant.of(x).array, Constant.of(y).array) for x, y in pairs):
                    raise _Differs(f"a different initial state in {one.where}")
            elif not all(map(_equal, _leaves(a), _leaves(b))):
                raise _Differs(f"a different {name} in {one.where}")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and a.dtype.kind == "f":
        return np.array_equal(a, b, equal_nan=True)
    return np.array_equal(a, b)
