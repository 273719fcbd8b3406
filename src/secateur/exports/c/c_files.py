"""The text of the header and the source file: names, declarations and runtime functions.

The C functions that networks call are in `floats.c` and `integers.c`: C99 that needs only
`<stdint.h>`, with no library and no undefined behaviour. `collect_functions` extracts those that a
network needs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from secateur.exports.c.c_names import escape_comment, make_identifiers, quote_text
from secateur.exports.c.expressions import (
    ExpressionWriter,
    count_elements,
    format_number,
    wrap_items,
)
from secateur.exports.c.table_code import RowCode, RowField
from secateur.exports.graph import Graph

__all__ = ["FileTexts", "FunctionBody", "HeaderLabels", "SelfTestVectors", "collect_functions",
           "list_functions"]  # fmt: skip

_PLAIN = """\
/* Compilers replace copying loops by calls of memcpy and memset, which may not be available. */
#if defined(__clang__)
#define SC_PLAIN __attribute__((no_builtin("memcpy", "memset")))
#elif defined(__GNUC__)
#define SC_PLAIN __attribute__((optimize("no-tree-loop-distribute-patterns")))
#else
#define SC_PLAIN
#endif
"""


# Bodies of the functions that convert outputs to probabilities, and the functions they call.
_LINKS = {
    "softmax": """\
    float largest = y[0], sum = 0.0f;
    for (int i = 1; i < {0}_OUTPUTS; ++i) largest = y[i] > largest ? y[i] : largest;
    for (int i = 0; i < {0}_OUTPUTS; ++i) sum += p[i] = sc_exp(y[i] - largest);
    for (int i = 0; i < {0}_OUTPUTS; ++i) p[i] /= sum;""",
    "sigmoid": "    for (int i = 0; i < {0}_OUTPUTS; ++i) p[i] = sc_sigmoid(y[i]);",
}
_LINK_FUNCTIONS = {"softmax": ("exp",), "sigmoid": ("sigmoid",)}


@dataclass(frozen=True)
class HeaderLabels:
    """The description of a model in the header.

    Attributes:
        title: Title, in one line.
        inputs: Names, one for each input.
        outputs: Names, one for each output.
        notes: Remarks, in sentences.
        noise: Standard deviations of the observation noise, and half the widths of its 95 %
            interval, by output and in the outputs' units; None if it is not known.
        link: "softmax" or "sigmoid", to convert outputs to probabilities, or None.
        fields: Fields of a row of the model's table, or ().
    """

    title: str = "a network"
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    notes: Sequence[str] = ()
    noise: tuple[np.ndarray, np.ndarray] | None = None
    link: str | None = None
    fields: Sequence[RowField] = ()


@dataclass(frozen=True)
class SelfTestVectors:
    """Inputs and the corresponding outputs for the self-test; frames are in order."""

    inputs: np.ndarray
    outputs: np.ndarray
    tolerance: float


@dataclass(frozen=True)
class FunctionBody:
    """The body of the predicting function, with its declarations.

    Attributes:
        body: Lines of code.
        members: Members of the struct that holds the state.
        initial: Lines that fill the state before the first frame.
        buffers: Declarations of static memory.
        kernels, multiply_adds, state_elements, state_bytes: As in `Source`.
    """

    body: list[str]
    members: list[str]
    initial: list[str]
    buffers: list[str]
    kernels: list[tuple[str, str]]
    multiply_adds: int
    state_elements: int
    state_bytes: int


@dataclass(frozen=True, eq=False)
class FileTexts:
    """Writes the text of both files."""

    name: str
    header_file: str
    graph: Graph
    labels: HeaderLabels
    code: FunctionBody
    writer: ExpressionWriter
    vectors: SelfTestVectors | None

    @property
    def prototype(self) -> str:
        """Return the declaration of the predicting function."""
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
        inputs = count_elements(self.graph.inputs[0].shape)
        outputs = count_elements(self.graph.outputs[0].shape)
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
        lines += self._declare_noise()
        if self.code.members:
            lines += [
                "/* State carried from one frame to the next, owned by the caller. */",
                "typedef struct {",
                *(f"    {member}" for member in self.code.members),
                f"}} {name}_state;",
                "",
                "/* Set the state before the first frame. */",
                f"void {name}_init({name}_state *state);",
                "",
            ]
        what = "one frame and update the state" if self.code.members else "one row"
        lines += [f"/* Predict for {what}. */", f"{self.prototype};", ""]
        if labels.link:
            lines += [
                "/* Convert outputs to probabilities. Both may be the same array. */",
                f"{self.probabilities};",
                "",
            ]
        if self.row_code is not None:
            lines += self.row_code.declare()
        if self.vectors is not None:
            lines += [
                f"#ifdef {upper}_SELF_TEST",
                "/* Run the built-in test vectors; returns the number of wrong outputs. */",
                f"int {name}_self_test(void);",
                "#endif",
                "",
            ]
        lines += ["#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
        return "\n".join(lines)

    @property
    def probabilities(self) -> str:
        """Return the declaration of the function that converts outputs to probabilities."""
        upper = self.name.upper()
        return (
            f"void {self.name}_probabilities(const float y[{upper}_OUTPUTS], "
            f"float p[{upper}_OUTPUTS])"
        )

    @functools.cached_property
    def row_code(self) -> RowCode | None:
        """Return the writer of functions that take rows of a table, if the model has a table."""
        if not self.labels.fields:
            return None
        inputs, outputs = (make_identifiers(n) for n in (self.labels.inputs, self.labels.outputs))
        reserved = ["H", "INPUTS", "OUTPUTS", "SELF_TEST", "OUTPUT_NAMES"]
        reserved += [f"INPUT_{name}" for name in inputs]
        reserved += [f"{k}_{name}" for k in ("OUTPUT", "NOISE", "INTERVAL") for name in outputs]
        return RowCode(self.name, self.labels.fields, reserved)

    def _declare_noise(self) -> list[str]:
        upper, labels = self.name.upper(), self.labels
        lines = []
        if labels.outputs:
            texts = ", ".join(map(quote_text, labels.outputs))
            lines += ["/* Names of the outputs, in their order. */"]
            lines += [f"#define {upper}_OUTPUT_NAMES {{{texts}}}", ""]
        if labels.noise is None:
            return lines
        deviations, widths = labels.noise
        suffixes = make_identifiers(labels.outputs) or [str(i) for i in range(len(deviations))]
        for what, macro, values in (
            ("Standard deviation of an observation around the prediction", "NOISE", deviations),
            ("Half the width of its 95 % interval", "INTERVAL", widths),
        ):
            lines.append(f"/* {what}, at known weights. */")
            pairs = zip(suffixes, values, strict=True)
            lines += [f"#define {upper}_{macro}_{s} {format_number(v)}" for s, v in pairs]
        return [*lines, ""]

    def _enumeration(self, what: str, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        upper = self.name.upper()
        lines = ["enum {"]
        for i, (c_name, name) in enumerate(zip(make_identifiers(names), names, strict=True)):
            lines.append(f"    {upper}_{what}_{c_name} = {i}, /* {escape_comment(name)} */")
        return [*lines, "};", ""]

    def source(self) -> str:
        """Return the text of NAME.c."""
        name, upper = self.name, self.name.upper()
        unused = [] if any("x[" in line for line in self.code.body) else ["(void)x;"]
        lines = [
            f"/* See {self.header_file}. Needs only C99 and <stdint.h>. */",
            f'#include "{self.header_file}"',
            "",
        ]
        needed = {*self.writer.functions, *_LINK_FUNCTIONS.get(self.labels.link or "", ())}
        if self.row_code is not None:
            needed |= {"to_bits", "from_bits"}
        functions = collect_functions(needed) if needed else ""
        if functions:
            lines += [functions]
        lines += [*self.writer.declare_tables()]
        if self.code.buffers:
            lines += [
                "",
                "/* Intermediate results; the function is not reentrant. */",
                *self.code.buffers,
            ]
        lines.append("")
        # Straight-line code has no loops that a compiler could replace by library calls.
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
        if self.labels.link:
            lines += [self.probabilities, "{", _LINKS[self.labels.link].format(upper), "}", ""]
        if self.row_code is not None:
            lines += self.row_code.define()
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
            f"        if (!(gap <= {format_number(vectors.tolerance)} && "
            f"gap >= {format_number(-vectors.tolerance)})) ++wrong;",
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
        lines.append("    {\n" + wrap_items([format_number(v) for v in row]) + "\n    },")
    return [*lines, "    };"]


def _comment(sentences: Sequence[str]) -> list[str]:
    first, *rest = map(escape_comment, sentences)
    return [f"/* {first}", *(f" * {s}" for s in rest), " */"]


# --- functions of the runtime ---------------------------------------------------------------------


_PREFIX = "sc_"
# The name that a block defines, before a function's parameters or an array's size.
_DEFINES = re.compile(rf"^static [^(\[={{]*?\b{_PREFIX}(\w+)[(\[]", re.MULTILINE)
_USES = re.compile(rf"\b{_PREFIX}(\w+)\b")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


@functools.cache
def _blocks() -> dict[str, str]:
    """Return the text of each function by its name without `sc_`, callees first."""
    blocks = {}
    for file in ("floats.c", "integers.c"):
        text = (resources.files(__package__) / file).read_text(encoding="utf-8")
        for block in text.split("\n\n"):
            defined = _DEFINES.search(block)
            if defined:
                blocks[defined[1]] = block.strip("\n")
    return blocks


def list_functions() -> list[str]:
    """Return the names of all functions, without the prefix `sc_` that they have in C."""
    return list(_blocks())


def collect_functions(needed: Iterable[str]) -> str:
    """Return the C text of functions and of those they call, in an order that compiles.

    All are `static`, so request only those that are used. `#include <stdint.h>` must precede the
    text.

    Args:
        needed: Names without `sc_`, such as `"tanh"`; see `list_functions()`.

    Example:
        >>> from secateur.exports.c.c_files import collect_functions
        >>> print(collect_functions(["max"]))
        /* The larger argument: exact; nan if either is nan. */
        static inline float sc_max(float a, float b)
        {
            return a > b || a != a ? a : b;
        }
        <BLANKLINE>
    """
    blocks = _blocks()
    wanted: set[str] = set()
    waiting = list(needed)
    while waiting:
        name = waiting.pop()
        if name not in blocks:
            raise ValueError(f"there is no C function {name!r}; there are {', '.join(blocks)}")
        if name not in wanted:
            wanted.add(name)
            code = _COMMENT.sub("", blocks[name])
            waiting += [used for used in _USES.findall(code) if used in blocks]
    return "\n\n".join(text for name, text in blocks.items() if name in wanted) + "\n"
