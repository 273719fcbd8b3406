"""What the user can put right: said in a line, without a traceback."""

from __future__ import annotations

__all__ = ["UserError"]


class UserError(Exception):
    """A mistake of use: `main` prints its message to stderr and ends with exit code 2."""
