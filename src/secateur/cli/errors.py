"""Mistakes that the user can correct: a message without a traceback."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from secateur.remedies import Remedy, UsageError

__all__ = ["UserError", "as_user_errors"]


class UserError(Exception):
    """A usage error: `main` prints its message to stderr and exits with code 2."""


@contextmanager
def as_user_errors(
    *kinds: type[Exception], command: Callable[..., None] | None = None
) -> Iterator[None]:
    """Turn errors whose message is meant for the user into usage errors.

    Arguments that an error suggests are written as options, if the command has them; a second line
    repeats the typed command with the recommended option added.

    Args:
        kinds: Kinds of errors, beside `UsageError`, whose message is meant for the user.
        command: The command that runs; its parameters are its options. Without it, all arguments
            are taken for options, and no line is added.
    """
    try:
        yield
    except UsageError as error:
        remedies = error.remedies
        if command is not None:
            options = inspect.signature(command).parameters
            remedies = tuple(remedy for remedy in remedies if remedy.argument in options)
        message = UsageError(error.message, *remedies).describe(spell_option)
        advice = next((remedy for remedy in remedies if remedy.is_advised), None)
        if command is not None and advice is not None:
            typed = shlex.join(["secateur", *sys.argv[1:]])
            message += f"\nTry: {typed} {spell_option(advice)}"
        raise UserError(message) from error
    except kinds as error:
        raise UserError(str(error)) from error


def spell_option(remedy: Remedy) -> str:
    """Return an argument as an option: its name with hyphens, then its value or values."""
    option = f"--{remedy.argument.replace('_', '-')}"
    if remedy.value is True:
        return option
    values = remedy.value if isinstance(remedy.value, list) else [remedy.value]
    return " ".join(f"{option} {shlex.quote(str(value))}" for value in values)
