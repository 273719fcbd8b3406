"""Options that are documented by one function and accepted by others as well."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = ["check_count", "check_key", "check_keys", "complete_options", "name_kind"]


def complete_options(
    function: Callable, names: tuple[str, ...], options: dict[str, Any], *, caller: str
) -> dict[str, Any]:
    """Complete a function's options with the defaults of another function.

    Args:
        function: The function that documents the options and has their defaults.
        names: Names of the options that both functions accept.
        options: Options that the user has given.
        caller: Name of the function that also accepts the options, for messages.

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


def name_kind(value: Any) -> str:
    """Return the name of a value's class with its article, for messages.

    Example:
        >>> name_kind(0), name_kind({})
        ('an int', 'a dict')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def check_key(key: Any, *, name: str = "key") -> Array:
    """Return a typed JAX random key, converting one of the older kind.

    Args:
        key: One key, from `jax.random.key` or `jax.random.PRNGKey`.
        name: Name of the argument, for messages.

    Raises:
        TypeError: The value is not a key, or is an array of several keys.

    Example:
        >>> check_key(jax.random.PRNGKey(0)) == jax.random.key(0)
        Array(True, dtype=bool)
    """
    advice = f"Give a JAX random key: {name}=jax.random.key(0)."
    dtype = getattr(key, "dtype", None)
    if dtype is None:
        raise TypeError(f"{name}={key!r} is {name_kind(key)}. {advice}")
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        if key.shape:
            raise TypeError(
                f"{name} holds {math.prod(key.shape)} keys (shape {key.shape}), but one is needed. "
                f"Give one of them, such as {name}=keys[0]."
            )
        return key
    if dtype == np.uint32 and np.ndim(key) == 1:
        try:
            return jax.random.wrap_key_data(jnp.asarray(key))
        except (TypeError, ValueError):
            pass  # not the size of a key
    raise TypeError(f"{name} is an array of {dtype} of shape {np.shape(key)}. {advice}")


def check_keys(keys: Any) -> list[Array]:
    """Return several JAX random keys as a list; see `check_key`.

    Example:
        >>> len(check_keys(jax.random.split(jax.random.key(0), 3)))
        3
    """
    if not isinstance(keys, Iterable) or not getattr(keys, "shape", (1,)):
        kind = "one key" if hasattr(keys, "dtype") else name_kind(keys)
        raise TypeError(
            f"keys is {kind}. Give a JAX random key for each run, such as "
            "keys=jax.random.split(jax.random.key(0), 3)."
        )
    return [check_key(key, name=f"keys[{number}]") for number, key in enumerate(keys)]


def check_count(value: Any, name: str, *, least: int = 1) -> int:
    """Return a whole number as an int, including one written as 1e2; check its minimum.

    Args:
        value: The number.
        name: Name of the argument, for messages.
        least: Minimum value.

    Raises:
        TypeError: The value is not a number.
        ValueError: The number is not whole, or is too small.

    Example:
        >>> check_count(1e2, "epochs")
        100
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(
            f"{name}={value!r} is {name_kind(value)}. Give a whole number of at least {least}."
        )
    number = float(value)
    if not number.is_integer() or number < least:
        raise ValueError(f"{name}={value}. Give a whole number of at least {least}.")
    return int(number)
