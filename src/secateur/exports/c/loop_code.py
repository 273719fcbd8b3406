"""Code with loops over arrays, for networks that are too large for straight-line code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secateur.exports.c.expressions import (
    Arena,
    CodeLines,
    ExpressionWriter,
    collapse_axes,
    count_elements,
    format_index,
    format_number,
    row_major_strides,
)
from secateur.exports.c.step_fusion import FusedSteps, fuse_steps
from secateur.exports.c.weight_products import write_product
from secateur.exports.graph import Atom, Constant, ExportError, Graph, Node, Value

__all__ = ["KINDS", "LoopWriter", "MemoryPlace"]

KINDS = {"float32": "float", "float64": "float", "int8": "int8_t", "int16": "int16_t",
         "int32": "int32_t", "bool": "int8_t"}  # fmt: skip


@dataclass(frozen=True)
class MemoryPlace:
    """Location of an array: the name of a C array and an offset in it."""

    array: str
    offset: int = 0

    def at(self, names: Sequence[str], strides: Sequence[int], shift: int = 0) -> str:
        """Return the expression of an element."""
        return f"{self.array}[{format_index(names, strides, self.offset + shift)}]"


class LoopWriter:
    """Writes the body of a function for a graph.

    Args:
        graph: Graph to write; only its first output is used.
        writer: Writer of expressions, which collects functions and tables.
        optimise: "size" or "speed".
        states: The C array of each state.
    """

    def __init__(
        self, graph: Graph, writer: ExpressionWriter, *, optimise: str, states: Sequence[str] = ()
    ) -> None:
        self.graph, self.writer, self.optimise = graph, writer, optimise
        self.code = CodeLines()
        self.arenas: dict[str, Arena] = {}
        self.places: dict[Value, MemoryPlace] = {graph.inputs[0]: MemoryPlace("x")}
        self.kernels: list[tuple[str, str]] = []  # for the sheet: step and its storage
        self._roots: dict[Value, Value] = {}
        self._owned: dict[Value, tuple[str, int]] = {}
        for state, array in zip(graph.states, states, strict=True):
            self.places[state.before] = MemoryPlace(array)
        self._states = list(states)

    def write(self) -> list[str]:
        """Return the statements."""
        steps = fuse_steps(self.graph)
        last = self._last_uses(steps)
        output = self.graph.outputs[0]
        for number, group in enumerate(steps):
            self._step(group, output)
            for value, end in last.items():
                if end == number and value in self._owned:
                    kind, start = self._owned.pop(value)
                    self.arenas[kind].free(start)
        if self.places.get(output) != MemoryPlace("y"):  # type: ignore[arg-type]
            self._copy(output, MemoryPlace("y"))
        self._store_states()
        return self.code.lines

    def _store_states(self) -> None:
        """Write the states last: all code above reads the previous state."""
        changed = [
            (state.after, MemoryPlace(array))
            for state, array in zip(self.graph.states, self._states, strict=True)
            if state.after is not state.before
        ]
        kept: dict[Atom, MemoryPlace] = {}
        for after, target in changed:
            source = self.places[after] if isinstance(after, Value) else target
            if source.array in self._states and source.array != target.array:
                # The value is another state, which may be overwritten before it is read here.
                kept[after], _ = self.scratch(after.dtype, count_elements(after.shape))
                self._copy(after, kept[after])
        for after, target in changed:
            if isinstance(after, Value) and after in kept:
                self.places[after] = kept[after]
            self._copy(after, target)

    def _last_uses(self, steps: list[FusedSteps]) -> dict[Value, int]:
        """For every array with memory of its own, find the step that reads it last."""
        for group in steps:
            node = group.root
            if is_alias(node) and isinstance(node.inputs[0], Value):
                self._roots[node.output] = self.root(node.inputs[0])
        last: dict[Value, int] = {}
        for number, group in enumerate(steps):
            last.setdefault(group.root.output, number)
            for atom in group.leaves:
                if isinstance(atom, Value):
                    last[self.root(atom)] = number
        for atom in self.graph.results():
            if isinstance(atom, Value):
                last[self.root(atom)] = len(steps)
        return last

    def root(self, value: Value) -> Value:
        """Return the array that owns the memory of a value."""
        return self._roots.get(value, value)

    # --- memory -----------------------------------------------------------------------------------

    def reserve(self, value: Value, output: Atom) -> MemoryPlace:
        """Reserve memory for a result; the output uses the caller's."""
        if value is output:
            place = MemoryPlace("y")
        else:
            kind = KINDS[value.dtype.name]
            arena = self.arenas.setdefault(kind, Arena())
            start = arena.reserve(count_elements(value.shape))
            self._owned[value] = (kind, start)
            place = MemoryPlace(f"buffer_{kind.removesuffix('_t')}", start)
        self.places[value] = place
        return place

    def scratch(self, dtype: np.dtype, length: int) -> tuple[MemoryPlace, Callable[[], None]]:
        """Reserve memory for the duration of one step."""
        kind = KINDS[dtype.name]
        arena = self.arenas.setdefault(kind, Arena())
        start = arena.reserve(length)
        return MemoryPlace(f"buffer_{kind.removesuffix('_t')}", start), lambda: arena.free(start)

    def locate(self, atom: Atom) -> tuple[MemoryPlace, list[int]]:
        """Return the location and strides of an operand; broadcast axes have stride 0."""
        if isinstance(atom, Value):
            strides = row_major_strides(atom.shape)
            steps = [0 if n == 1 else s for n, s in zip(atom.shape, strides, strict=True)]
            return self.places[atom], steps
        array = atom.array
        strides = row_major_strides(array.shape)
        steps = [0 if n == 1 else s for n, s in zip(array.shape, strides, strict=True)]
        if array.dtype.kind == "f":
            name = self.writer.table("float", np.array([format_number(v) for v in array.ravel()]))
        else:
            name = self.writer.table(KINDS[array.dtype.name], array.ravel())
        return MemoryPlace(name), steps

    def _copy(self, atom: Atom, target: MemoryPlace) -> None:
        shape = atom.shape
        source, strides = self.locate(atom)
        sizes, (read, write) = collapse_axes(shape, [strides, row_major_strides(shape)])
        with self.code.loops(sizes) as names:
            self.code.line(f"{target.at(names, write)} = {source.at(names, read)};")

    # --- steps ------------------------------------------------------------------------------------

    def _step(self, group: FusedSteps, output: Atom) -> None:
        node = group.root
        if is_alias(node):
            self._alias(node)
        elif group.producer is not None or node.op in ("linear", "conv"):
            write_product(self, group, output)
        elif group.elementwise:
            self._elementwise(group, output)
        else:
            writer = getattr(self, f"_{node.op}", None)
            if writer is None:
                raise ExportError(f"'{node.op}' cannot be written in C ({node.where}).")
            writer(node, self.reserve(node.output, output))

    def _alias(self, node: Node) -> None:
        (x,) = node.inputs
        assert isinstance(x, Value)
        place = self.places[x]
        offset = 0
        if node.op == "slice":
            strides = row_major_strides(x.shape)
            offset = sum(a * s for a, s in zip(node.attributes["starts"], strides, strict=True))
        self.places[node.output] = MemoryPlace(place.array, place.offset + offset)

    def _elementwise(self, group: FusedSteps, output: Atom) -> None:
        node = group.root
        target = self.reserve(node.output, output)
        leaves = [a for a in group.leaves if not (isinstance(a, Constant) and a.number is not None)]
        located = [self.locate(a) for a in leaves]
        shape = node.output.shape
        strides = [s for _, s in located]
        sizes, (write, *reads) = collapse_axes(shape, [row_major_strides(shape), *strides])
        with self.code.loops(sizes) as names:
            operands = {
                leaf: place.at(names, read)
                for leaf, (place, _), read in zip(leaves, located, reads, strict=True)
            }
            self.assign(group, operands, target.at(names, write), node.output)

    def assign(
        self, group: FusedSteps, operands: dict[Atom, str], target: str, value: Value
    ) -> None:
        """Write the functions of a group for one element, and store the result."""
        texts: dict[Atom, str] = dict(operands)
        for node in group.nodes:
            names = [self._text(a, texts) for a in node.inputs]
            known = [a.number if isinstance(a, Constant) else None for a in node.inputs]
            expression = self.writer.apply(node.op, names, node.attributes, known)
            if node is group.root:
                self.store(target, expression, value)
                return
            kind = "int" if node.output.dtype.kind in "bi" else "float"
            kind = "int32_t" if node.output.dtype.kind == "i" else kind
            name = f"t{len(texts)}"
            self.code.line(f"const {kind} {name} = {expression};")
            texts[node.output] = name
        (only,) = operands.values()
        self.store(target, only, value)

    def store(self, target: str, expression: str, value: Value) -> None:
        """Write an assignment, with a conversion if the array holds integers."""
        kind = KINDS[value.dtype.name]
        cast = f"({kind})({expression})" if kind in ("int8_t", "int16_t") else expression
        self.code.line(f"{target} = {cast};")

    @staticmethod
    def _text(atom: Atom, texts: dict[Atom, str]) -> str:
        if isinstance(atom, Constant) and atom.number is not None:
            return format_number(atom.number) if atom.dtype.kind == "f" else str(int(atom.number))
        return texts[atom]

    def _moved(self, node: Node, target: MemoryPlace, strides: list[int], shift: int = 0) -> None:
        """Copy the operand, read with other strides."""
        shape = node.output.shape
        source, _ = self.locate(node.inputs[0])
        sizes, (write, read) = collapse_axes(shape, [row_major_strides(shape), strides])
        with self.code.loops(sizes) as names:
            self.code.line(f"{target.at(names, write)} = {source.at(names, read, shift)};")

    def _transpose(self, node: Node, target: MemoryPlace) -> None:
        _, strides = self.locate(node.inputs[0])
        self._moved(node, target, [strides[i] for i in node.attributes["order"]])

    def _expand(self, node: Node, target: MemoryPlace) -> None:
        self._moved(node, target, self.locate(node.inputs[0])[1])

    def _slice(self, node: Node, target: MemoryPlace) -> None:
        _, strides = self.locate(node.inputs[0])
        attributes = node.attributes
        shift = sum(a * s for a, s in zip(attributes["starts"], strides, strict=True))
        steps = [s * k for s, k in zip(strides, attributes["steps"], strict=True)]
        self._moved(node, target, steps, shift)

    def _reverse(self, node: Node, target: MemoryPlace) -> None:
        _, strides = self.locate(node.inputs[0])
        axes = node.attributes["axes"]
        shape = node.output.shape
        shift = sum((shape[a] - 1) * strides[a] for a in axes)
        steps = [-s if a in axes else s for a, s in enumerate(strides)]
        self._moved(node, target, steps, shift)

    def _concatenate(self, node: Node, target: MemoryPlace) -> None:
        axis = node.attributes["axis"]
        strides = row_major_strides(node.output.shape)
        start = 0
        for atom in node.inputs:
            source, read = self.locate(atom)
            sizes, (write, read) = collapse_axes(atom.shape, [strides, read])
            with self.code.loops(sizes) as names:
                at = target.at(names, write, start * strides[axis])
                self.code.line(f"{at} = {source.at(names, read)};")
            start += atom.shape[axis]

    def _pad(self, node: Node, target: MemoryPlace) -> None:
        self.padded(node.inputs[0], node.attributes["padding"], node.attributes["value"], target)

    def padded(self, atom: Atom, padding: Any, value: float, target: MemoryPlace) -> None:
        """Copy an array into a larger one."""
        shape = [n + a + b for n, (a, b) in zip(atom.shape, padding, strict=True)]
        source, read = self.locate(atom)
        strides = row_major_strides(shape)
        shift = sum(a * s for (a, _), s in zip(padding, strides, strict=True))
        filling = format_number(value) if atom.dtype.kind == "f" else str(int(value))
        with self.code.loops([count_elements(shape)]) as names:
            self.code.line(f"{target.at(names, [1])} = {filling};")
        sizes, (write, read) = collapse_axes(atom.shape, [strides, read])
        with self.code.loops(sizes) as names:
            self.code.line(f"{target.at(names, write, shift)} = {source.at(names, read)};")

    def _reduce(self, node: Node, target: MemoryPlace) -> None:
        (x,) = node.inputs
        axes = node.attributes["axes"]
        kept = [a for a in range(len(x.shape)) if a not in axes]
        source, strides = self.locate(x)
        shape = [x.shape[a] for a in kept]
        with self.code.loops(shape) as outer:
            first = source.at(outer, [strides[a] for a in kept])
            whole = x.dtype.kind == "i"
            kind, zero, one = ("int32_t", "0", "1") if whole else ("float", "0.0f", "1.0f")
            start = {"sum": zero, "prod": one}.get(node.attributes["kind"], first)
            self.code.line(f"{kind} result = {start};")
            with self.code.loops([x.shape[a] for a in axes]) as inner:
                names = [outer[kept.index(a)] if a in kept else inner[list(axes).index(a)]
                         for a in range(len(x.shape))]  # fmt: skip
                self._accumulate(node.attributes["kind"], source.at(names, strides))
            self.store(target.at(outer, row_major_strides(shape)), "result", node.output)

    def _accumulate(self, kind: str, element: str) -> None:
        if kind in ("sum", "prod"):
            self.code.line(f"result {'+' if kind == 'sum' else '*'}= {element};")
        else:
            sign = ">" if kind == "max" else "<"
            self.code.line(f"if ({element} {sign} result) result = {element};")

    def _pool(self, node: Node, target: MemoryPlace) -> None:
        (x,) = node.inputs
        attributes = node.attributes
        window, steps, padding = (attributes[k] for k in ("window", "strides", "padding"))
        source, strides = self.locate(x)
        shape = node.output.shape
        moving = [a for a, n in enumerate(window) if n > 1]
        guarded = [a for a in moving if any(padding[a])]
        if any(any(padding[a]) for a in range(len(window)) if a not in moving):
            raise ExportError(f"padding of an axis without a window ({node.where}).")
        whole = x.dtype.kind == "i"
        kind = "int32_t" if whole else "float"
        lowest = (
            str(np.iinfo(x.dtype).min) if whole else format_number(-float(np.finfo(np.float32).max))
        )
        start = lowest if attributes["kind"] == "max" else ("0" if whole else "0.0f")
        with self.code.loops(shape) as outer:
            self.code.line(f"{kind} result = {start};")
            with self.code.loops([window[a] for a in moving], "k") as inner:
                names = []
                for axis, name in enumerate(outer):
                    place = name if steps[axis] == 1 or name == "0" else f"{name} * {steps[axis]}"
                    if axis in moving:
                        offset = inner[moving.index(axis)]
                        low = f" - {padding[axis][0]}" if padding[axis][0] else ""
                        place = f"{place} + {offset}{low}" if place != "0" else f"{offset}{low}"
                        self.code.line(f"const int p{axis} = {place};")
                        place = f"p{axis}"
                    elif place != name:
                        place = f"({place})"
                    names.append(place)
                inside = [f"p{a} >= 0 && p{a} < {x.shape[a]}" for a in guarded]
                if inside:
                    with self.code.block(f"if ({' && '.join(inside)})"):
                        self._accumulate(attributes["kind"], source.at(names, strides))
                else:
                    self._accumulate(attributes["kind"], source.at(names, strides))
            self.store(target.at(outer, row_major_strides(shape)), "result", node.output)


def is_alias(node: Node) -> bool:
    """Whether a step only reinterprets memory: another shape, or a contiguous part."""
    if not isinstance(node.inputs[0], Value):
        return False
    if node.op == "reshape":
        return True
    if node.op != "slice" or any(s != 1 for s in node.attributes["steps"]):
        return False
    # A slice is contiguous if it cuts only the first axis that is longer than 1.
    before, after = node.inputs[0].shape, node.output.shape
    cut = [a for a, (n, m) in enumerate(zip(before, after, strict=True)) if n != m]
    return not cut or (len(cut) == 1 and all(n == 1 for n in before[: cut[0]]))
