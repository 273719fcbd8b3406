"""Options that one function explains and others take as well."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["complete_options"]


def complete_options(
    function: Callable, names: tuple[str, ...], options: dict[str, Any], *, caller: str
) -> dict[str, Any]:
    """Fill in the defaults that another function has for its options.

    Args:
        function: The function that explains the options and has their defaults.
        names: Names of the options that both functions take.
        options: Options that were given.
        caller: Name of the function that takes the options as well, for messages.

    Raises:
        TypeError: An option is not among the names.

    Example:
        >>> def train(data, *, epochs=10, rate=0.1, size=None): ...
        >>> complete_options(train, ("epochs", "rate"), {"rate": 1.0}, caller="train_many")
        {'epochs': 10, 'rate': 1.0}
    """
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise TypeError(
            f"{caller} has no option {', '.join(unknown)}. Supported, as in "
            f"{function.__name__}: {', '.join(names)}."
        )
    parameters = inspect.signature(function).parameters
    return {name: options.get(name, parameters[name].default) for name in names}
