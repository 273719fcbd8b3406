"""Classes as pytrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax

__all__ = ["register_dataclass"]

T = TypeVar("T")


def register_dataclass(
    cls: type[T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
) -> type[T]:
    """Register a dataclass as a pytree, so that it can enter compiled programs.

    This is `jax.tree_util.register_dataclass`, except that the class is part of the structure. JAX
    considers the structures of two dataclasses equal if they agree in the number of their data
    fields and in their meta fields (seen in versions 0.10 and 0.12), and their hashes differ.
    Whether a program that was compiled for one is used for the other is then a matter of chance: 1
    in 128 times or more often, a Poisson likelihood was computed as a Bernoulli likelihood.

    Args:
        cls: The dataclass.
        data_fields: Names of the fields that hold arrays, or pytrees of arrays. Defaults to all
            but the `meta_fields`.
        meta_fields: Names of the fields that are part of the structure. Defaults to those declared
            with `field(metadata={"static": True})`.

    Returns:
        The class, so that this can be a decorator.

    Example:
        >>> @register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class Offset:
        ...     value: float
        >>> @register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class Scale:
        ...     value: float
        >>> jax.tree.structure(Offset(1.0)) == jax.tree.structure(Scale(1.0))
        False
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    if meta_fields is None:
        meta_fields = [field.name for field in fields if field.metadata.get("static", False)]
    if data_fields is None:
        data_fields = [field.name for field in fields if field.name not in meta_fields]
    missing = {field.name for field in fields} ^ {*data_fields, *meta_fields}
    if missing:
        raise ValueError(
            f"{cls.__name__}: data_fields and meta_fields together must name every field of the "
            f"dataclass, and no other. Check: {', '.join(sorted(missing))}."
        )
    names, meta_names = tuple(data_fields), tuple(meta_fields)
    keys = tuple(map(jax.tree_util.GetAttrKey, names))

    def flatten(value: Any) -> tuple[tuple[Any, ...], Any]:
        meta = tuple([getattr(value, name) for name in meta_names])
        return tuple([getattr(value, name) for name in names]), (cls, meta)

    def flatten_with_keys(value: Any) -> tuple[Any, Any]:
        children, structure = flatten(value)
        return tuple(zip(keys, children, strict=True)), structure

    def unflatten(structure: Any, children: Any) -> Any:
        return cls(**dict(zip(names, children)), **dict(zip(meta_names, structure[1])))  # noqa: B905

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
