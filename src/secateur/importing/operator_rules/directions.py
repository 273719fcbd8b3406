"""The directions of a recurrent layer, kept apart.

ONNX stacks the results of both directions along an axis, and exporters then transpose and reshape
so that the units of one follow those of the other. In a stacked array unit j of one direction and
unit j of the other look like one unit. Here the axis is a list until it is merged or taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

__all__ = ["Directions"]


class Directions:
    """An array whose one axis is a list of arrays.

    Args:
        parts: Arrays of equal shape, or of shapes that differ in their last axis.
        axis: Where the axis of the list is.
    """

    def __init__(self, parts: Sequence[Any], axis: int) -> None:
        self.parts, self.axis = list(parts), axis

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the whole."""
        part = self.parts[0].shape
        return (*part[: self.axis], len(self.parts), *part[self.axis :])

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return self.parts[0].ndim + 1

    def stack(self) -> Any:
        """Return it as one array."""
        return jnp.stack(self.parts, self.axis)

    def transpose(self, order: Sequence[int]) -> Directions:
        """Return it with its axes in another order."""
        order = [int(a) for a in order]
        inner = [a - (a > self.axis) for a in order if a != self.axis]
        return Directions([p.transpose(inner) for p in self.parts], order.index(self.axis))

    def squeeze(self, axes: Sequence[int]) -> Any:
        """Return it without axes of length one."""
        inner = tuple(a - (a > self.axis) for a in axes if a != self.axis)
        parts = [p.squeeze(inner) if inner else p for p in self.parts]
        if self.axis in axes:
            if len(parts) > 1:
                raise ValueError(f"axis {self.axis} has {len(parts)} elements, not one")
            return parts[0]
        return Directions(parts, self.axis - sum(a < self.axis for a in axes))

    def cut(self, axis: int, start: int, end: int, step: int) -> Directions:
        """Return a slice along an axis."""
        bounds = slice(start, end if end >= 0 else None, step)
        if axis == self.axis:
            return Directions(self.parts[bounds], self.axis)
        inner = (slice(None),) * (axis - (axis > self.axis)) + (bounds,)
        return Directions([p[inner] for p in self.parts], self.axis)

    def merge_last(self, sizes: Sequence[int]) -> Any:
        """Return it in another shape if that only joins its list to the last axis; else None."""
        rank = self.parts[0].ndim
        if self.axis != rank - 1:
            return None
        lead = self.parts[0].shape[:-1]
        width = sum(p.shape[-1] for p in self.parts)
        if len(sizes) != rank or any(
            n not in (-1, m) for n, m in zip(sizes, (*lead, width), strict=True)
        ):
            return None
        return jnp.concatenate(self.parts, -1)
