"""What the user can put right: said in a line, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UserError", "as_user_errors"]


class UserError(Exception):
    """A mistake of use: `main` prints its message to stderr and ends with exit code 2."""


@contextmanager
def as_user_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors whose message is meant for the user into mistakes of use."""
    try:
        yield
    except kinds as error:
        raise UserError(str(error)) from error
