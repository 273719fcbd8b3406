"""One header and one source file for a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from secateur.exports.c import runtime
from secateur.exports.c.code import elements
from secateur.exports.c.expressions import Writer, literal, wrapped
from secateur.exports.c.fusing import groups
from secateur.exports.c.kernels import costs, taps_of
from secateur.exports.c.loops import KINDS, Loops
from secateur.exports.c.names import check_prefix, identifiers, in_comment
from secateur.exports.c.products import weight_bytes
from secateur.exports.c.scalars import Straight, straighten
from secateur.exports.c.straight import write_straight
from secateur.exports.graph import Graph

__all__ = ["Labels", "Source", "Vectors", "write_c"]

_MOST_TERMS = 20_000  # of straight code: beyond these compilers take too long
_LARGEST_TO_TRY = 60_000  # elements that are looked at to find out how much is left


_PLAIN = """\
/* Compilers like to call memcpy and memset for loops that copy; there may be no such functions. */
#if defined(__clang__)
#define SC_PLAIN __attribute__((no_builtin("memcpy", "memset")))
#elif defined(__GNUC__)
#define SC_PLAIN __attribute__((optimize("no-tree-loop-distribute-patterns")))
#else
#define SC_PLAIN
#endif
"""


@dataclass(frozen=True)
class Labels:
    """What the header tells of a model.

    Attributes:
        title: in a line.
        inputs: names, one for each input.
        outputs: names, one for each output.
        notes: sentences.
        noise: standard deviation of the observations' noise by output, in the outputs' units.
    """

    title: str = "a network"
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    notes: Sequence[str] = ()
    noise: Sequence[float] = ()


@dataclass(frozen=True)
class Vectors:
    """Inputs and the outputs that belong to them, for the self-test; frames follow each other."""

    inputs: np.ndarray
    outputs: np.ndarray
    tolerance: float


@dataclass(frozen=True)
class Source:
    """The two files, and what is known of them.

    Attributes:
        header: text of NAME.h.
        source: text of NAME.c.
        name: what all functions begin with.
        style: "straight" or "loops".
        kernels: how each product with weights is stored, of code in loops.
        multiply_adds: products with weights per call.
        state_elements: numbers that a caller keeps between frames.
        state_bytes: and their size.
        outputs: numbers that a call returns.
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
    optimise: str = "size",
    straight: bool = True,
    labels: Labels | None = None,
    vectors: Vectors | None = None,
) -> Source:
    """Write a graph of one row, or one frame, as C99.

    Args:
        graph: simplified; its first output counts.
        name: what all functions begin with.
        optimise: "size" or "speed".
        straight: whether straight-line code may be written; else it is in loops.
        labels: what the header tells.
        vectors: for the self-test, compiled if NAME_SELF_TEST is defined.
    """
    check_prefix(name)
    labels = labels or Labels()
    writer = Writer()
    program = _straight(graph, optimise) if straight else None
    kernels: list[tuple[str, str]] = []
    buffers: list[str] = []
    if program is not None:
        kind = KINDS[graph.states[0].before.dtype.name] if graph.states else "float"
        places = {index: number for number, index in enumerate(program.states)}
        states = {index: f"state->s[{number}]" for index, number in places.items()}
        body = write_straight(program, writer, states, kind)
        members = [f"{kind} s[{len(states)}];"] if states else []
        number = literal if kind == "float" else lambda v: str(int(v))
        initial = [f"state->s[{places[i]}] = {number(v)};" for i, v in program.initial.items()]
        multiply_adds = sum(len(s.args) for s in program.steps if s.op == "sum")
        count = len(states)
        size = count * (4 if kind == "float" else 2)
    else:
        arrays = [f"state->s{i}" for i in range(len(graph.states))]
        loops = Loops(graph, writer, optimise=optimise, states=arrays)
        body = loops.write()
        kernels = loops.kernels
        buffers = [
            f"static {kind} buffer_{kind.removesuffix('_t')}[{arena.size}];"
            for kind, arena in loops.arenas.items()
            if arena.size
        ]
        members = [
            f"{KINDS[s.before.dtype.name]} s{i}[{elements(s.before.shape)}];"
            for i, s in enumerate(graph.states)
        ]
        initial = _initial(graph)
        multiply_adds = _products(graph)
        count = sum(elements(s.before.shape) for s in graph.states)
        size = sum(_itemsize(s.before.dtype) * elements(s.before.shape) for s in graph.states)
    parts = _Parts(name, graph, labels, members, initial, body, buffers, writer, vectors)
    return Source(
        parts.header(), parts.source(), name, "loops" if program is None else "straight",
        kernels, multiply_adds, count, size, elements(graph.outputs[0].shape),
    )  # fmt: skip


def _straight(graph: Graph, optimise: str) -> Straight | None:
    """The graph as single numbers, if that is the better way and there are few enough of them."""
    size = max((elements(n.output.shape) for n in graph.nodes), default=0)
    if _products(graph) > 4 * _MOST_TERMS or size > _LARGEST_TO_TRY:
        return None
    program = straighten(graph)
    terms = sum(len(s.args) for s in program.steps if s.op == "sum")
    if terms > _MOST_TERMS:
        return None
    if optimise == "size" and _bytes_straight(program) > _bytes_in_loops(graph):
        return None
    return program


def _bytes_straight(program: Straight) -> float:
    """About the flash of straight-line code."""
    sizes = {"sum": lambda s: 12 * len(s.args), "x": lambda s: 4, "number": lambda s: 0}
    return sum(sizes.get(s.op, lambda s: 12)(s) for s in program.steps)


def _bytes_in_loops(graph: Graph) -> float:
    """About the flash of code in loops; one in eight bits shares a short function."""
    total = 0.0
    steps = groups(graph)
    for group in steps:
        node = group.producer or group.root
        if node.op in ("linear", "conv"):
            taps = taps_of(node)
            stored = costs(taps, weight_bytes(node)).values()
            total += 4 * len(taps.weights) + min(c.bytes for c in stored)
            total += 40 if group.producer is None or len(group.nodes) == 1 else 90
        elif node.op not in ("reshape", "slice"):
            total += 60
    return total + 100


def _products(graph: Graph) -> int:
    """Products with weights that are not 0, at all places where they are taken."""
    total = 0
    for node in graph.nodes:
        if node.op in ("linear", "conv"):
            weights = node.attributes["weights"]
            places = elements(node.output.shape) // len(weights)
            total += int(np.count_nonzero(weights)) * places
    return total


def _itemsize(dtype: np.dtype) -> int:
    """Of a number in C, where every float has four bytes."""
    return 4 if dtype.kind == "f" else dtype.itemsize


def _initial(graph: Graph) -> list[str]:
    lines = []
    for number, state in enumerate(graph.states):
        flat = state.initial.ravel()
        whole = state.before.dtype.kind == "i"
        same = flat.size == 0 or np.all(flat == flat[0])
        if same:
            value = str(int(flat[0])) if whole else literal(flat[0])
            lines.append(f"for (int i = 0; i < {flat.size}; ++i) state->s{number}[i] = {value};")
        else:
            for i, v in enumerate(flat):
                value = str(int(v)) if whole else literal(v)
                lines.append(f"state->s{number}[{i}] = {value};")
    return lines


@dataclass(frozen=True)
class _Parts:
    name: str
    graph: Graph
    labels: Labels
    members: list[str]
    initial: list[str]
    body: list[str]
    buffers: list[str]
    writer: Writer
    vectors: Vectors | None

    @property
    def prototype(self) -> str:
        upper = self.name.upper()
        state = f"{self.name}_state *state, " if self.members else ""
        return (
            f"void {self.name}_predict({state}const float x[{upper}_INPUTS], "
            f"float y[{upper}_OUTPUTS])"
        )

    def header(self) -> str:
        name, upper = self.name, self.name.upper()
        labels = self.labels
        inputs = elements(self.graph.inputs[0].shape)
        outputs = elements(self.graph.outputs[0].shape)
        lines = [
            *_comment([labels.title, *labels.notes]),
            f"#ifndef {upper}_H",
            f"#define {upper}_H",
            "",
            "#include <stdint.h>",
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            f"#define {upper}_INPUTS {inputs}",
            f"#define {upper}_OUTPUTS {outputs}",
            "",
            *self._enumeration("INPUT", labels.inputs),
            *self._enumeration("OUTPUT", labels.outputs),
        ]
        if labels.noise:
            lines.append("/* Standard deviation of an observation around the prediction. */")
            lines += [f"#define {upper}_NOISE_{i} {literal(v)}" for i, v in enumerate(labels.noise)]
            lines.append("")
        if self.members:
            lines += [
                "/* What is carried from one frame to the next; it belongs to the caller. */",
                "typedef struct {",
                *(f"    {member}" for member in self.members),
                f"}} {name}_state;",
                "",
                "/* Before the first frame. */",
                f"void {name}_init({name}_state *state);",
                "",
            ]
        what = "one frame; the state goes on" if self.members else "one row"
        lines += [f"/* Predict for {what}. */", f"{self.prototype};", ""]
        if self.vectors is not None:
            lines += [
                f"#ifdef {upper}_SELF_TEST",
                "/* Run the built-in test vectors; returns how many outputs are wrong. */",
                f"int {name}_self_test(void);",
                "#endif",
                "",
            ]
        lines += ["#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
        return "\n".join(lines)

    def _enumeration(self, what: str, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        upper = self.name.upper()
        lines = ["enum {"]
        for i, (c_name, name) in enumerate(zip(identifiers(names), names, strict=True)):
            lines.append(f"    {upper}_{what}_{c_name} = {i}, /* {in_comment(name)} */")
        return [*lines, "};", ""]

    def source(self) -> str:
        name = self.name
        unused = [] if any("x[" in line for line in self.body) else ["(void)x;"]
        lines = [
            f"/* See {name}.h. Nothing but C99 and <stdint.h> is needed. */",
            f'#include "{name}.h"',
            "",
        ]
        functions = runtime.functions(self.writer.functions) if self.writer.functions else ""
        if functions:
            lines += [functions]
        lines += [*self.writer.declared_tables()]
        if self.buffers:
            lines += ["", "/* Intermediate results: one call at a time. */", *self.buffers]
        lines.append("")
        # Straight code has no loops that a compiler could take for copies.
        loops = any("for (" in line for line in [*self.body, *self.initial])
        plain = "SC_PLAIN " if loops else ""
        lines += [_PLAIN] if loops else []
        if self.members:
            lines += [
                f"{plain}void {name}_init({name}_state *state)",
                "{",
                *(f"    {line}" for line in self.initial),
                "}",
                "",
            ]
        lines += [
            f"{plain}{self.prototype}",
            "{",
            *(f"    {line}" for line in [*unused, *self.body]),
            "}",
            "",
        ]
        if self.vectors is not None:
            lines += self._self_test()
        return "\n".join(lines)

    def _self_test(self) -> list[str]:
        name, upper, vectors = self.name, self.name.upper(), self.vectors
        assert vectors is not None
        count = len(vectors.inputs)
        state = [f"{name}_state state;", f"{name}_init(&state);"] if self.members else []
        call = f"{name}_predict({'&state, ' if self.members else ''}inputs[i], y);"
        body = [
            f"float y[{upper}_OUTPUTS];",
            "int wrong = 0;",
            *state,
            f"for (int i = 0; i < {count}; ++i) {{",
            f"    {call}",
            f"    for (int j = 0; j < {upper}_OUTPUTS; ++j) {{",
            "        const float gap = y[j] - outputs[i][j];",
            f"        if (!(gap <= {literal(vectors.tolerance)} && "
            f"gap >= {literal(-vectors.tolerance)})) ++wrong;",
            "    }",
            "}",
            "return wrong;",
        ]
        return [
            f"#ifdef {upper}_SELF_TEST",
            f"int {name}_self_test(void)",
            "{",
            *_matrix("inputs", f"{upper}_INPUTS", vectors.inputs),
            *_matrix("outputs", f"{upper}_OUTPUTS", vectors.outputs),
            *(f"    {line}" for line in body),
            "}",
            "#endif",
            "",
        ]


def _matrix(name: str, columns: str, values: np.ndarray) -> list[str]:
    rows = values.reshape(len(values), -1)
    lines = [f"    static const float {name}[{len(rows)}][{columns}] = {{"]
    for row in rows:
        lines.append("    {\n" + wrapped([literal(v) for v in row]) + "\n    },")
    return [*lines, "    };"]


def _comment(sentences: Sequence[str]) -> list[str]:
    first, *rest = map(in_comment, sentences)
    return [f"/* {first}", *(f" * {s}" for s in rest), " */"]
