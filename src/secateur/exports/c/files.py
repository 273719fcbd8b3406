"""The texts of the header and the source file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secateur.exports.c import runtime
from secateur.exports.c.code import elements
from secateur.exports.c.expressions import Writer, literal, wrapped
from secateur.exports.c.names import identifiers, in_comment
from secateur.exports.graph import Graph

__all__ = ["Body", "Files", "Labels", "Vectors"]

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
class Body:
    """The body of the function that predicts, and what belongs to it.

    Attributes:
        body: its lines.
        members: of the struct that holds the state.
        initial: lines that fill the state before the first frame.
        buffers: declarations of static memory.
        kernels, multiply_adds, state_elements, state_bytes: as in `Source`.
    """

    body: list[str]
    members: list[str]
    initial: list[str]
    buffers: list[str]
    kernels: list[tuple[str, str]]
    multiply_adds: int
    state_elements: int
    state_bytes: int


@dataclass(frozen=True)
class Files:
    """Makes the text of both files."""

    name: str
    header_file: str
    graph: Graph
    labels: Labels
    code: Body
    writer: Writer
    vectors: Vectors | None

    @property
    def prototype(self) -> str:
        """Return the declaration of the function that predicts."""
        upper = self.name.upper()
        state = f"{self.name}_state *state, " if self.code.members else ""
        return (
            f"void {self.name}_predict({state}const float x[{upper}_INPUTS], "
            f"float y[{upper}_OUTPUTS])"
        )

    def header(self) -> str:
        """Return the text of NAME.h."""
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
        if self.code.members:
            lines += [
                "/* What is carried from one frame to the next; it belongs to the caller. */",
                "typedef struct {",
                *(f"    {member}" for member in self.code.members),
                f"}} {name}_state;",
                "",
                "/* Before the first frame. */",
                f"void {name}_init({name}_state *state);",
                "",
            ]
        what = "one frame; the state goes on" if self.code.members else "one row"
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
        """Return the text of NAME.c."""
        name = self.name
        unused = [] if any("x[" in line for line in self.code.body) else ["(void)x;"]
        lines = [
            f"/* See {self.header_file}. Nothing but C99 and <stdint.h> is needed. */",
            f'#include "{self.header_file}"',
            "",
        ]
        functions = runtime.functions(self.writer.functions) if self.writer.functions else ""
        if functions:
            lines += [functions]
        lines += [*self.writer.declared_tables()]
        if self.code.buffers:
            lines += ["", "/* Intermediate results: one call at a time. */", *self.code.buffers]
        lines.append("")
        # Straight code has no loops that a compiler could take for copies.
        loops = any("for (" in line for line in [*self.code.body, *self.code.initial])
        plain = "SC_PLAIN " if loops else ""
        lines += [_PLAIN] if loops else []
        if self.code.members:
            lines += [
                f"{plain}void {name}_init({name}_state *state)",
                "{",
                *(f"    {line}" for line in self.code.initial),
                "}",
                "",
            ]
        lines += [
            f"{plain}{self.prototype}",
            "{",
            *(f"    {line}" for line in [*unused, *self.code.body]),
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
        state = [f"{name}_state state;", f"{name}_init(&state);"] if self.code.members else []
        call = f"{name}_predict({'&state, ' if self.code.members else ''}inputs[i], y);"
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
