"""What goes wrong with tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TableError(ValueError):
    """A table cannot be used as it is; the message says where, and the way out."""


def quoted(names: Sequence[Any], most: int = 5) -> str:
    """Return names for a sentence, the first few of them."""
    shown = ", ".join(repr(_shortened(str(name))) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def rows_of(positions: Any, most: int = 5) -> str:
    """Return row numbers for a sentence: from 1, the header not counted."""
    shown = ", ".join(str(int(p) + 1) for p in positions[:most])
    more = "" if len(positions) <= most else f" and {len(positions) - most} more"
    return f"row{'s' if len(positions) > 1 else ''} {shown}{more}"


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
