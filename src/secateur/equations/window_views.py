"""Windows over the axes of an array: padding, and all elements at one place of every window."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax


def count_windows(length: int, size: int, stride: int, dilation: int) -> int:
    """Return the number of windows along an axis, which is 0 if it is too short."""
    return max(0, (length - (size - 1) * dilation - 1) // stride + 1)


class WindowViews:
    """An array prepared so that the elements at one place of every window are a plain slice.

    A slice with a stride and above all its gradient are slow on a CPU. So an axis with a stride is
    folded in two, of which the second one is as long as the stride; a slice of the first and an
    index of the second take its place.

    Args:
        x: The array, padded already.
        sizes: Sizes of the windows, one for each axis of the array.
        strides: Distances between neighbouring windows.
        dilations: Distances between neighbouring places of a window.
    """

    def __init__(
        self, x: Array, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> None:
        self.dilations = dilations
        # Where there is one window, its stride does not matter.
        self.counts = tuple(map(count_windows, x.shape, sizes, strides, dilations))
        self.strides = tuple(s if n > 1 else 1 for s, n in zip(strides, self.counts, strict=True))
        more, folded = [], list[int]()
        geometry = zip(x.shape, sizes, self.strides, dilations, self.counts, strict=True)
        for length, size, stride, dilation, count in geometry:
            blocks = ((size - 1) * dilation) // stride + count
            more.append(0 if stride == 1 else blocks * stride - length)
            folded += [length] if stride == 1 else [blocks, stride]
        if any(more):
            x = lax.pad(x, jnp.zeros((), x.dtype), [(0, n, 0) for n in more])
        self.x = lax.reshape(x, folded)

    def view(self, place: Sequence[int]) -> Array:
        """Return the elements at one place of every window."""
        starts, limits, dropped = list[int](), list[int](), list[int]()
        for number, dilation, stride, count in zip(
            place, self.dilations, self.strides, self.counts, strict=True
        ):
            block, rest = divmod(number * dilation, stride)
            starts.append(block)
            limits.append(block + count)
            if stride > 1:
                dropped.append(len(starts))
                starts.append(rest)
                limits.append(rest + 1)
        return lax.squeeze(lax.slice(self.x, starts, limits), dropped)
