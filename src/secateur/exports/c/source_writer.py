"""One header and one source file for a graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from secateur.exports.c.c_files import (
    FileTexts,
    FunctionBody,
    HeaderLabels,
    SelfTestVectors,
)
from secateur.exports.c.c_names import check_prefix
from secateur.exports.c.expressions import ExpressionWriter, count_elements, format_number
from secateur.exports.c.loop_code import KINDS, LoopWriter
from secateur.exports.c.step_fusion import fuse_steps
from secateur.exports.c.straight_code import StraightProgram, straighten_graph, write_straight
from secateur.exports.c.weight_products import compute_costs, find_taps, weight_bytes
from secateur.exports.graph import Graph

__all__ = ["Source", "count_products", "write_c"]

_MOST_TERMS = 20_000  # in straight-line code; compilers take too long beyond this
_LARGEST_TO_TRY = 60_000  # elements examined to find the number of remaining weights


@dataclass(frozen=True)
class Source:
    """The two files and their properties.

    Attributes:
        header: Text of the header.
        source: Text of the C file.
        name: Prefix of all functions.
        style: "straight" or "loops".
        kernels: Storage of each product with weights, for code in loops.
        multiply_adds: Number of multiply-adds per call.
        state_elements: Number of values that a caller keeps between frames.
        state_bytes: Size of these values.
        outputs: Number of values that a call returns.
    """

    header: str
    source: str
    name: str
    style: str
    kernels: list[tuple[str, str]] = field(default_factory=list)
    multiply_adds: int = 0
    state_elements: int = 0
    state_bytes: int = 0
    outputs: int = 1


def write_c(
    graph: Graph,
    name: str,
    *,
    header: str | None = None,
    optimise: str = "size",
    straight: bool = True,
    labels: HeaderLabels | None = None,
    vectors: SelfTestVectors | None = None,
) -> Source:
    """Write a graph of one row, or one frame, as C99.

    Args:
        graph: Simplified graph; only its first output is used.
        name: Prefix of all functions.
        header: Name of the header file. Defaults to NAME.h.
        optimise: "size" or "speed".
        straight: Whether straight-line code may be written; otherwise the code has loops.
        labels: Description of the model in the header.
        vectors: Rows of the self-test, which is compiled if NAME_SELF_TEST is defined.
    """
    check_prefix(name)
    writer = ExpressionWriter()
    program = _straight(graph, optimise) if straight else None
    code = (
        _in_loops(graph, writer, optimise) if program is None else _by_lines(graph, program, writer)
    )
    parts = FileTexts(
        name, header or f"{name}.h", graph, labels or HeaderLabels(), code, writer, vectors
    )
    return Source(
        parts.header(),
        parts.source(),
        name,
        style="loops" if program is None else "straight",
        kernels=code.kernels,
        multiply_adds=code.multiply_adds,
        state_elements=code.state_elements,
        state_bytes=code.state_bytes,
        outputs=count_elements(graph.outputs[0].shape),
    )


def _by_lines(graph: Graph, program: StraightProgram, writer: ExpressionWriter) -> FunctionBody:
    kind = KINDS[graph.states[0].before.dtype.name] if graph.states else "float"
    places = {index: number for number, index in enumerate(program.states)}
    states = {index: f"state->s[{number}]" for index, number in places.items()}
    number = format_number if kind == "float" else lambda v: str(int(v))
    return FunctionBody(
        body=write_straight(program, writer, states, kind),
        members=[f"{kind} s[{len(states)}];"] if states else [],
        initial=[f"state->s[{places[i]}] = {number(v)};" for i, v in program.initial.items()],
        buffers=[],
        kernels=[],
        multiply_adds=sum(len(s.args) for s in program.steps if s.op == "sum"),
        state_elements=len(states),
        state_bytes=len(states) * (4 if kind == "float" else 2),
    )


def _in_loops(graph: Graph, writer: ExpressionWriter, optimise: str) -> FunctionBody:
    states = [s.before for s in graph.states]
    arrays = [f"state->s{i}" for i in range(len(states))]
    loops = LoopWriter(graph, writer, optimise=optimise, states=arrays)
    body = loops.write()
    return FunctionBody(
        body=body,
        members=[
            f"{KINDS[v.dtype.name]} s{i}[{count_elements(v.shape)}];" for i, v in enumerate(states)
        ],
        initial=_initial(graph),
        buffers=[
            f"static {kind} buffer_{kind.removesuffix('_t')}[{arena.size}];"
            for kind, arena in loops.arenas.items()
            if arena.size
        ],
        kernels=loops.kernels,
        multiply_adds=count_products(graph),
        state_elements=sum(count_elements(v.shape) for v in states),
        state_bytes=sum(_itemsize(v.dtype) * count_elements(v.shape) for v in states),
    )


def _straight(graph: Graph, optimise: str) -> StraightProgram | None:
    """Return the graph as single numbers, if there are few enough and that is the better form."""
    size = max((count_elements(n.output.shape) for n in graph.nodes), default=0)
    if count_products(graph) > 4 * _MOST_TERMS or size > _LARGEST_TO_TRY:
        return None
    program = straighten_graph(graph)
    terms = sum(len(s.args) for s in program.steps if s.op == "sum")
    if terms > _MOST_TERMS:
        return None
    if optimise == "size" and _bytes_straight(program) > _bytes_in_loops(graph):
        return None
    return program


def _bytes_straight(program: StraightProgram) -> float:
    """Estimate the flash of straight-line code."""
    sizes = {"sum": lambda s: 12 * len(s.args), "x": lambda s: 4, "number": lambda s: 0}
    return sum(sizes.get(s.op, lambda s: 12)(s) for s in program.steps)


def _bytes_in_loops(graph: Graph) -> float:
    """Estimate the flash of code in loops; products with 8-bit weights share a function."""
    total = 0.0
    steps = fuse_steps(graph)
    for group in steps:
        node = group.producer or group.root
        if node.op in ("linear", "conv"):
            taps = find_taps(node)
            stored = compute_costs(taps, weight_bytes(node)).values()
            total += 4 * len(taps.weights) + min(c.bytes for c in stored)
            total += 40 if group.producer is None or len(group.nodes) == 1 else 90
        elif node.op not in ("reshape", "slice"):
            total += 60
    return total + 100


def count_products(graph: Graph) -> int:
    """Return the number of multiplications by nonzero weights, over all positions."""
    total = 0
    for node in graph.nodes:
        if node.op in ("linear", "conv"):
            weights = node.attributes["weights"]
            places = count_elements(node.output.shape) // len(weights)
            total += int(np.count_nonzero(weights)) * places
    return total


def _itemsize(dtype: np.dtype) -> int:
    """Size of a number in C, where every float has four bytes."""
    return 4 if dtype.kind == "f" else dtype.itemsize


def _initial(graph: Graph) -> list[str]:
    lines = []
    for number, state in enumerate(graph.states):
        flat = state.initial.ravel()
        whole = state.before.dtype.kind == "i"
        same = flat.size == 0 or np.all(flat == flat[0])
        if same:
            value = str(int(flat[0])) if whole else format_number(flat[0])
            lines.append(f"for (int i = 0; i < {flat.size}; ++i) state->s{number}[i] = {value};")
        else:
            for i, v in enumerate(flat):
                value = str(int(v)) if whole else format_number(v)
                lines.append(f"state->s{number}[{i}] = {value};")
    return lines
