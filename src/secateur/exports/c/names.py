"""Names that C accepts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from secateur.exports.graph import ExportError

__all__ = ["check_file", "check_prefix", "identifiers", "in_comment"]

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
        ExportError: with a name that could.
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and name not in _KEYWORDS:
        return name
    better = identifiers([name])[0].lower()
    if better in _KEYWORDS:
        better = f"{better}_net"
    reason = "is a reserved word of C" if name in _KEYWORDS else "is no name in C"
    raise ExportError(
        f"{name!r} {reason}, and functions would begin with it. Name the file {better}.c, or give "
        f"name={better!r}."
    )


def check_file(stem: str) -> str:
    """Return the name of a source file without its ending, if a header can have it, too.

    Raises:
        ExportError: with a name that could.
    """
    if stem.lower() in _HEADERS:
        raise ExportError(
            f"{stem}.h is a header of the C library, and beside it would be taken for it. Name the "
            f"file {stem}_net.c."
        )
    if not stem.isprintable() or any(c in stem for c in '"\\'):
        better = identifiers([stem])[0].lower()
        raise ExportError(f"#include cannot name {stem + '.h'!r}. Name the file {better}.c.")
    return stem


def in_comment(text: str) -> str:
    """Return text that neither ends a comment nor draws a compiler's warning inside one."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    while "*/" in plain or "/*" in plain:
        plain = plain.replace("*/", "* /").replace("/*", "/ *")
    return plain.replace("??/", "? ?/").rstrip("\\")


def identifiers(names: Iterable[str]) -> list[str]:
    """Return one C identifier for each name, in capitals, all different.

    Example:
        >>> identifiers(["Größe (m²)", "size", "SIZE", "3rd", ""])
        ['GROSSE_M2', 'SIZE', 'SIZE_2', 'N_3RD', 'N']
    """
    made: list[str] = []
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
        made.append(candidate)
    return made
