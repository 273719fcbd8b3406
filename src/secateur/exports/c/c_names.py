"""Identifiers and strings that are valid in C."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from secateur.exports.graph import ExportError

__all__ = ["KEYWORDS", "check_file", "check_prefix", "escape_comment", "make_identifiers",
           "make_members", "quote_text"]  # fmt: skip

KEYWORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if
    inline int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while _Bool _Complex _Imaginary asm bool class delete export false friend
    mutable namespace new operator private protected public template this throw true try typename
    using virtual wchar_t main""".split()  # noqa: SIM905 (as a list it is a page long)
)


# More keywords of C++, and macros of common compilers, which cannot name a member of a struct.
_NOT_MEMBERS = KEYWORDS | frozenset(
    """alignas alignof and and_eq bitand bitor catch char16_t char32_t char8_t compl concept
    const_cast consteval constexpr constinit co_await co_return co_yield decltype dynamic_cast errno
    explicit far i386 linux near noexcept not not_eq nullptr or or_eq reinterpret_cast requires
    static_assert static_cast thread_local typeid typeof unix xor xor_eq""".split()  # noqa: SIM905
)


# A file with such a name in the same folder would shadow the library's header.
_HEADERS = frozenset(
    """assert complex ctype errno fenv float inttypes iso646 limits locale math memory setjmp signal
    stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings tgmath
    threads time uchar unistd wchar wctype""".split()  # noqa: SIM905
)


def check_prefix(name: str) -> str:
    """Check the prefix of all function names, and return it.

    Raises:
        ExportError: The prefix is not valid; the message suggests another.
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and name not in KEYWORDS:
        return name
    better = make_identifiers([name])[0].lower()
    if better in KEYWORDS:
        better = f"{better}_net"
    reason = "is a reserved word of C" if name in KEYWORDS else "is not a name in C"
    raise ExportError(
        f"{name!r} {reason}, and functions would begin with it. Name the file {better}.c, or give "
        f"name={better!r}."
    )


def check_file(stem: str) -> str:
    """Check that the name of a source file also suits a header, and return it without its suffix.

    Raises:
        ExportError: The name is not suitable; the message suggests another.
    """
    if stem.lower() in _HEADERS:
        raise ExportError(
            f"{stem}.h is the name of a header of the C library, which it would shadow. Name the "
            f"file {stem}_net.c."
        )
    if not stem.isprintable() or any(c in stem for c in '"\\'):
        better = make_identifiers([stem])[0].lower()
        raise ExportError(f"#include cannot name {stem + '.h'!r}. Name the file {better}.c.")
    return stem


def escape_comment(text: str) -> str:
    """Return text that neither ends a comment nor triggers a compiler warning inside one."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    while "*/" in plain or "/*" in plain:
        plain = plain.replace("*/", "* /").replace("/*", "/ *")
    return plain.replace("??/", "? ?/").rstrip("\\")


def make_identifiers(names: Iterable[str]) -> list[str]:
    """Return a C identifier for each name, in capitals, all different.

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


def make_members(names: Iterable[str]) -> list[str]:
    """Return the name of a struct member for each name, in lower case, all different.

    Example:
        >>> make_members(["Fare (£)", "class", "class_", "and"])
        ['fare', 'class_', 'class_2', 'and_']
    """
    members = [name.lower() for name in make_identifiers(names)]
    return [f"{name}_" if name in _NOT_MEMBERS else name for name in members]


def quote_text(text: str) -> str:
    r"""Return a text as a C string, in UTF-8.

    Example:
        >>> print(quote_text('a "b"?'))
        "a \"b\"\?"
    """
    plain = {"\\": "\\\\", '"': '\\"', "?": "\\?"}
    quoted = (
        plain.get(c, c)
        if c.isprintable()
        else "".join(f"\\{b:03o}" for b in c.encode(errors="replace"))
        for c in text
    )
    return f'"{"".join(quoted)}"'
