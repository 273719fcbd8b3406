"""Errors that suggest arguments, which the command line shows as its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Remedy", "UsageError"]


class Remedy(NamedTuple):
    """An argument that would resolve an error.

    Attributes:
        argument: Name of the argument.
        value: Suggested value.
        effect: Effect, as the predicate of a sentence: "leaves out such rows".
        is_advised: Whether most users want this one, so that the command line prints the whole
            command with it.
    """

    argument: str
    value: Any
    effect: str
    is_advised: bool = False


class UsageError(ValueError):
    """A request that cannot be carried out; the message says why, and which arguments would help.

    Args:
        message: Full sentences, without the arguments that would help.
        remedies: Arguments that would help.

    Example:
        >>> str(UsageError("Column 'a' is empty.", Remedy("drop", ["a"], "leaves it out")))
        "Column 'a' is empty. drop=['a'] leaves it out."
    """

    def __init__(self, message: str, *remedies: Remedy) -> None:
        super().__init__(message)
        self.message, self.remedies = message, remedies

    def describe(self, spell: Callable[[Remedy], str]) -> str:
        """Return the message and the remedies.

        Args:
            spell: Function that formats an argument with its value.
        """
        sentences = [f"{spell(remedy)} {remedy.effect}" for remedy in self.remedies]
        return f"{self.message} {'; '.join(sentences)}." if sentences else self.message

    def __str__(self) -> str:
        return self.describe(lambda remedy: f"{remedy.argument}={remedy.value!r}")
