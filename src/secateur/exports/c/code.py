"""Lines of C with their indentation, loops over several axes, and memory for what is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

__all__ = ["Arena", "Code", "collapsed", "index", "row_major"]


class Code:
    """Lines, indented by the blocks around them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0
        self._loops = 0

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self._depth + text)

    def comment(self, text: str) -> None:
        """Add a comment, which cannot end early."""
        self.line(f"/* {text.replace('*/', '* /')} */")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what follows, between braces."""
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def loops(self, shape: Sequence[int], letter: str = "i") -> Iterator[list[str]]:
        """Go through all indices of a shape; axes of length 1 need no loop."""
        names, opened = [], 0
        for n in shape:
            if n == 1:
                names.append("0")
                continue
            name = f"{letter}{self._loops}"
            self._loops += 1
            self.line(f"for (int {name} = 0; {name} < {n}; ++{name}) {{")
            self._depth += 1
            opened += 1
            names.append(name)
        if not opened:  # braces of its own, so that names inside clash with nothing
            self.line("{")
            self._depth += 1
        yield names
        for _ in range(max(opened, 1)):
            self._depth -= 1
            self.line("}")


def row_major(shape: Sequence[int]) -> list[int]:
    """Return the strides of an array in memory, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return strides[::-1]


def index(names: Sequence[str], strides: Sequence[int], offset: int = 0) -> str:
    """Return the expression of a place in memory."""
    parts = [
        name if stride == 1 else f"{name} * {stride}"
        for name, stride in zip(names, strides, strict=True)
        if name != "0" and stride != 0
    ]
    if offset or not parts:
        parts.append(str(offset))
    return " + ".join(parts)


def collapsed(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Join axes that all operands go through as if they were one."""
    sizes: list[int] = []
    joined: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        steps = [s[axis] for s in strides]
        if n == 1:
            continue
        if sizes and all(mine[-1] == step * n for mine, step in zip(joined, steps, strict=True)):
            sizes[-1] *= n
            for mine, step in zip(joined, steps, strict=True):
                mine[-1] = step
        else:
            sizes.append(n)
            for mine, step in zip(joined, steps, strict=True):
                mine.append(step)
    return sizes, joined


class Arena:
    """One array in which intermediate results take turns."""

    def __init__(self) -> None:
        self.size = 0
        self._taken: dict[int, int] = {}

    def take(self, length: int) -> int:
        """Reserve a piece, the first that is long enough, and return where it begins."""
        start = 0
        for begin, size in sorted(self._taken.items()):
            if begin - start >= length:
                break
            start = max(start, begin + size)
        self._taken[start] = length
        self.size = max(self.size, start + length)
        return start

    def give_back(self, start: int) -> None:
        """Let others use a piece."""
        del self._taken[start]


def elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return int(np.prod(shape, dtype=int))
