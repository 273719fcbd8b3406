"""The texts of the header and the source file: names, declarations, the functions they need.

The C functions that networks call are in `floats.c` and `integers.c`: C99 that needs only
`<stdint.h>`, with no library and no undefined behaviour. `collect_functions` takes from there what
a network needs.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from secateur.exports.c.expressions import (
    ExpressionWriter,
    count_elements,
    format_number,
    wrap_items,
)
from secateur.exports.graph import ExportError, Graph

__all__ = ["FileTexts", "FunctionBody", "HeaderLabels", "SelfTestVectors", "check_file",
           "check_prefix", "collect_functions", "list_functions"]  # fmt: skip

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
class HeaderLabels:
    """What the header tells of a model.

    Attributes:
        title: In a line.
        inputs: Names, one for each input.
        outputs: Names, one for each output.
        notes: Sentences.
        noise: Standard deviations of the observations' noise, and half the widths of its 95 %
            interval, by output and in the outputs' units; None if it is not known.
    """

    title: str = "a network"
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    notes: Sequence[str] = ()
    noise: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class SelfTestVectors:
    """Inputs and the outputs that belong to them, for the self-test; frames follow each other."""

    inputs: np.ndarray
    outputs: np.ndarray
    tolerance: float


@dataclass(frozen=True)
class FunctionBody:
    """The body of the function that predicts, and what belongs to it.

    Attributes:
        body: Its lines.
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


@dataclass(frozen=True)
class FileTexts:
    """Makes the text of both files."""

    name: str
    header_file: str
    graph: Graph
    labels: HeaderLabels
    code: FunctionBody
    writer: ExpressionWriter
    vectors: SelfTestVectors | None

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
        if labels.noise is not None:
            for what, macro, values in (
                (
                    "Standard deviation of an observation around the prediction",
                    "NOISE",
                    labels.noise[0],
                ),
                ("Half the width of its 95 % interval", "INTERVAL", labels.noise[1]),
            ):
                lines.append(f"/* {what}, at known weights. */")
                lines += [
                    f"#define {upper}_{macro}_{i} {format_number(v)}" for i, v in enumerate(values)
                ]
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
        for i, (c_name, name) in enumerate(zip(make_identifiers(names), names, strict=True)):
            lines.append(f"    {upper}_{what}_{c_name} = {i}, /* {escape_comment(name)} */")
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
        functions = collect_functions(self.writer.functions) if self.writer.functions else ""
        if functions:
            lines += [functions]
        lines += [*self.writer.declare_tables()]
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


# --- names that C accepts -------------------------------------------------------------------------


_KEYWORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if
    inline int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while _Bool _Complex _Imaginary asm bool class delete export false friend
    mutable namespace new operator private protected public template this throw true try typename
    using virtual wchar_t main""".split()  # noqa: SIM905 (as a list it is a page long)
)


# A file beside the others with such a name would take the place of the library's.
_HEADERS = frozenset(
    """assert complex ctype errno fenv float inttypes iso646 limits locale math memory setjmp signal
    stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings tgmath
    threads time uchar unistd wchar wctype""".split()  # noqa: SIM905
)


def check_prefix(name: str) -> str:
    """Return the name that all functions begin with, if it can be one.

    Raises:
        ExportError: It cannot; the message names one that could.
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and name not in _KEYWORDS:
        return name
    better = make_identifiers([name])[0].lower()
    if better in _KEYWORDS:
        better = f"{better}_net"
    reason = "is a reserved word of C" if name in _KEYWORDS else "is not a name in C"
    raise ExportError(
        f"{name!r} {reason}, and functions would begin with it. Name the file {better}.c, or give "
        f"name={better!r}."
    )


def check_file(stem: str) -> str:
    """Return the name of a source file without its ending, if a header can have it, too.

    Raises:
        ExportError: It cannot; the message names one that could.
    """
    if stem.lower() in _HEADERS:
        raise ExportError(
            f"{stem}.h is a header of the C library, and beside it would be taken for it. Name the "
            f"file {stem}_net.c."
        )
    if not stem.isprintable() or any(c in stem for c in '"\\'):
        better = make_identifiers([stem])[0].lower()
        raise ExportError(f"#include cannot name {stem + '.h'!r}. Name the file {better}.c.")
    return stem


def escape_comment(text: str) -> str:
    """Return text that neither ends a comment nor draws a compiler's warning inside one."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    while "*/" in plain or "/*" in plain:
        plain = plain.replace("*/", "* /").replace("/*", "/ *")
    return plain.replace("??/", "? ?/").rstrip("\\")


def make_identifiers(names: Iterable[str]) -> list[str]:
    """Return one C identifier for each name, in capitals, all different.

    Example:
        >>> make_identifiers(["Größe (m²)", "size", "SIZE", "3rd", ""])
        ['GROSSE_M2', 'SIZE', 'SIZE_2', 'N_3RD', 'N']
    """
    identifiers: list[str] = []
    taken: set[str] = set()
    for name in names:
        plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
        ascii_only = plain.encode("ascii", "ignore").decode()
        base = re.sub(r"[^A-Za-z0-9]+", "_", ascii_only).strip("_").upper()
        if not base or base[0].isdigit():
            base = f"N_{base}".rstrip("_")
        candidate, number = base, 2
        while candidate in taken:
            candidate, number = f"{base}_{number}", number + 1
        taken.add(candidate)
        identifiers.append(candidate)
    return identifiers


# --- functions of the runtime ---------------------------------------------------------------------


_PREFIX = "sc_"
# What a block defines: the name before the parameters of a function or the size of an array.
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
    """Return the functions there are, without the `sc_` that each has in C."""
    return list(_blocks())


def collect_functions(needed: Iterable[str]) -> str:
    """Return the C text of these functions and of those they call, in an order that compiles.

    All are `static`, so what is not needed is best not asked for. The text expects
    `#include <stdint.h>` before it.

    Args:
        needed: Names without `sc_`, such as `"tanh"`; `list_functions()` has all.

    Example:
        >>> from secateur.exports.c.c_files import collect_functions
        >>> print(collect_functions(["max"]))
        /* The greater one: exact; a nan if either is. */
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
