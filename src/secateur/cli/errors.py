"""Mistakes that the user can correct: one line, without a traceback."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from secateur.remedies import Remedy, UsageError

__all__ = ["UserError", "as_user_errors"]


class UserError(Exception):
    """A mistake of use: `main` prints its message to stderr and ends with exit code 2."""


@contextmanager
def as_user_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors whose message is meant for the user into mistakes of use.

    Args:
        kinds: Kinds of errors, beside `UsageError`, whose arguments become options.
    """
    try:
        yield
    except UsageError as error:
        raise UserError(error.describe(_spell_option)) from error
    except kinds as error:
        raise UserError(str(error)) from error


def _spell_option(remedy: Remedy) -> str:
    """Return an argument as an option: its name with hyphens, then its value or values."""
    option = f"--{remedy.argument.replace('_', '-')}"
    if remedy.value is True:
        return option
    values = remedy.value if isinstance(remedy.value, list) else [remedy.value]
    return " ".join(f"{option} {shlex.quote(str(value))}" for value in values)
