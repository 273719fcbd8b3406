"""Convolutions as products of matrices with patches of the signal.

XLA's own convolutions are many times slower on a CPU, especially within a compiled loop; with
groups, they are slower by two orders of magnitude. Here, the elements that a kernel sees are
written side by side (a patch), some rows at a time, so that the patches stay in a processor's
cache: memory beyond what the result takes is bounded. Gradients follow from those of slices and
products.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from secateur.equations.window_views import WindowViews, count_windows

# Bytes of patches in memory at a time, per processor (but at least the size of the kernels, which
# every product reads).
_PATCH_BYTES = 2**19
# Kernels with more positions than this are not written out as sums over positions.
_MOST_TERMS = 64


class Geometry(NamedTuple):
    """A convolution without its operands; hashable."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]
    groups: int
    precision: Any
    dtype: Any  # in which products are added up, or None
    patch_bytes: int  # of the patches at a time

    @classmethod
    def of(cls, params: dict[str, Any]) -> Geometry:
        """Return the geometry that the parameters of the primitive describe."""
        numbers = params["dimension_numbers"]
        return cls(
            strides=tuple(params["window_strides"]),
            padding=tuple((low, high) for low, high in params["padding"]),
            lhs_dilation=tuple(params["lhs_dilation"]),
            rhs_dilation=tuple(params["rhs_dilation"]),
            lhs_spec=tuple(numbers.lhs_spec),
            rhs_spec=tuple(numbers.rhs_spec),
            out_spec=tuple(numbers.out_spec),
            groups=params["feature_group_count"],
            precision=params["precision"],
            dtype=params["preferred_element_type"],
            patch_bytes=_PATCH_BYTES * (os.cpu_count() or 1),
        )


def can_convolve(params: dict[str, Any], x: Array, kernel: Array) -> bool:
    """Whether a convolution can be written as products with patches."""
    is_floating = all(jnp.issubdtype(a.dtype, jnp.floating) for a in (x, kernel))
    empty = 0 in x.shape or 0 in kernel.shape
    return is_floating and params["batch_group_count"] == 1 and x.ndim > 2 and not empty


@functools.partial(jax.jit, static_argnums=0)  # for calls outside of a compiled program
def convolve(
    geometry: Geometry, x: Array, kernels: Sequence[Array], square_kernels: Sequence[Array] = ()
) -> list[Array]:
    """Return a signal convolved with some kernels, and its square with others.

    Args:
        geometry: The convolution.
        x: The signal.
        kernels: Kernels, all of one shape.
        square_kernels: Kernels of the same shape for the square of the signal.

    Returns:
        The results in the order of the kernels, those for the square last.
    """
    before, after = geometry.lhs_spec, geometry.rhs_spec
    x = lax.transpose(x, (before[0], *before[2:], before[1]))
    kernels = [lax.transpose(k, (*after[2:], after[1], after[0])) for k in kernels]
    square_kernels = [lax.transpose(k, (*after[2:], after[1], after[0])) for k in square_kernels]
    edges = [(low, high, d - 1) for (low, high), d in zip(
        geometry.padding, geometry.lhs_dilation, strict=True)]  # fmt: skip
    if any(map(any, edges)):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
    sums = _Products(geometry, (*kernels, *square_kernels)[0].shape).apply_in_pieces(
        x, kernels, square_kernels
    )
    rank, out = x.ndim, geometry.out_spec
    order = [0] * rank
    for place, axis in zip(out, (0, rank - 1, *range(1, rank - 1)), strict=True):
        order[place] = axis
    return [lax.transpose(y, order) for y in sums]


class _Products:
    """Products of patches, for signals of shape (rows, *places, channels), padded already."""

    def __init__(self, geometry: Geometry, kernel_shape: tuple[int, ...]) -> None:
        self.sizes, self.fan_in = kernel_shape[:-2], kernel_shape[-2]
        self.kernel_elements = math.prod(kernel_shape)
        self.strides, self.dilations = geometry.strides, geometry.rhs_dilation
        self.groups = geometry.groups
        self.precision, self.dtype = geometry.precision, geometry.dtype
        self.patch_bytes = geometry.patch_bytes
        places = math.prod(self.sizes)
        self.is_depthwise = self.fan_in == 1 and self.groups > 1 and places <= _MOST_TERMS

    def counts(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return how many places the result has along each axis."""
        return tuple(map(count_windows, shape[1:-1], self.sizes, self.strides, self.dilations))

    def apply_in_pieces(
        self, x: Array, kernels: Sequence[Array], square_kernels: Sequence[Array]
    ) -> list[Array]:
        """Return the products; many rows are processed in pieces, or in bands of rows.

        Args:
            x: The signal.
            kernels: Kernels for it, of shape (*sizes, fan-in, channels).
            square_kernels: Kernels for its square.
        """
        counts = self.counts(x.shape)
        elements = math.prod(counts) * x.shape[-1]  # of the patches of a row
        if not self.is_depthwise:
            elements *= math.prod(self.sizes)
        if math.prod(self.sizes) == 1:
            elements = 0  # they are the signal itself
        limit = max(self.patch_bytes // x.dtype.itemsize, self.kernel_elements)
        rows, bands = x.shape[0], _Bands.of(self, counts, elements, limit)
        if bands is not None:
            x, elements = bands.cut(x), elements // bands.number
        pieces = -(-x.shape[0] // max(1, limit // max(1, elements)))

        def multiply(piece: Array) -> list[Array]:
            return self.apply(piece, kernels, square_kernels)

        if pieces <= 1:
            results = multiply(x)
        else:
            length = -(-x.shape[0] // pieces)
            pieces = -(-x.shape[0] // length)
            padded = _resize(x, 0, pieces * length).reshape(pieces, length, *x.shape[1:])
            # Recomputing a piece for its gradient is cheaper than storing it.
            stacked = lax.map(jax.checkpoint(multiply, prevent_cse=False), padded)
            results = [y.reshape(-1, *y.shape[2:])[: x.shape[0]] for y in stacked]
        return results if bands is None else [bands.join(y, rows) for y in results]

    def apply(
        self, x: Array, kernels: Sequence[Array], square_kernels: Sequence[Array]
    ) -> list[Array]:
        """Return the products of all rows at once."""
        multiply, prepared = self.prepare(x)
        squares = [p * p for p in prepared] if square_kernels else []
        results = [multiply(prepared, k) for k in kernels]
        return [*results, *(multiply(squares, k) for k in square_kernels)]

    def prepare(self, x: Array) -> Any:
        """Return the function for the product, and the operands that it takes from the signal."""
        if self.is_depthwise:
            ones, strides, dilations = ((1, *v, 1) for v in (
                self.sizes, self.strides, self.dilations))  # fmt: skip
            views = WindowViews(x, ones, strides, dilations)
            return self.multiply_places, [views.view(p) for p in _places(ones)]
        if self.groups == 1:
            return self.multiply_patches, [self.patches(x)]
        split = x.reshape(*x.shape[:-1], self.groups, self.fan_in)
        return self.multiply_groups, [self.patches(jnp.moveaxis(split, -2, 0))]

    def patches(self, x: Array) -> Array:
        """Place the elements that a kernel sees side by side, axis by axis, starting with the last.

        Args:
            x: Signal of shape (…, *places, channels).
        """
        ndim = len(self.sizes)
        for axis in reversed(range(ndim)):
            size, stride = self.sizes[axis], self.strides[axis]
            if size == stride == 1:
                continue
            place = x.ndim - 1 - ndim + axis

            def along(value: int, place: int = place, rank: int = x.ndim) -> list[int]:
                return [value if a == place else 1 for a in range(rank)]

            views = WindowViews(x, along(size), along(stride), along(self.dilations[axis]))
            parts = [views.view([i if a == place else 0 for a in range(x.ndim)])
                     for i in range(size)]  # fmt: skip
            x = lax.concatenate(parts, x.ndim - 1) if size > 1 else parts[0]
        return x

    def multiply_patches(self, prepared: list[Array], kernel: Array) -> Array:
        (patches,) = prepared
        shape = (*patches.shape[:-1], kernel.shape[-1])
        flat = patches.reshape(-1, patches.shape[-1])
        weights = kernel.reshape(-1, kernel.shape[-1])
        return self.dot(flat, weights, ((1,), (0,)), ((), ())).reshape(shape)

    def multiply_groups(self, prepared: list[Array], kernel: Array) -> Array:
        (patches,) = prepared  # (groups, rows, *places, elements)
        split = kernel.reshape(*kernel.shape[:-1], self.groups, -1)
        weights = jnp.moveaxis(split, -2, 0).reshape(self.groups, -1, split.shape[-1])
        flat = patches.reshape(self.groups, -1, patches.shape[-1])
        y = self.dot(flat, weights, ((2,), (1,)), ((0,), (0,)))
        y = jnp.moveaxis(y, 0, 1)
        return y.reshape(*patches.shape[1:-1], kernel.shape[-1])

    def multiply_places(self, prepared: list[Array], kernel: Array) -> Array:
        """A sum over the places of the kernel: every channel has its own."""
        split = kernel.reshape(-1, self.groups, kernel.shape[-1] // self.groups)
        dtype = self.dtype or prepared[0].dtype
        ones = (1,) * (prepared[0].ndim - 1)
        terms = [
            (x[..., None] * w.reshape(*ones, *w.shape)).astype(dtype)
            for x, w in zip(prepared, split, strict=True)
        ]
        total = functools.reduce(lax.add, terms)
        return total.reshape(*total.shape[:-2], -1)

    def dot(self, x: Array, w: Array, contracted: Any, batch: Any) -> Array:
        return lax.dot_general(
            x, w, (contracted, batch), precision=self.precision, preferred_element_type=self.dtype
        )


def _places(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, sizes)))


def _resize(x: Array, axis: int, length: int) -> Array:
    """Cut an axis or lengthen it with zeros."""
    more = [(0, length - x.shape[axis] if a == axis else 0, 0) for a in range(x.ndim)]
    return lax.pad(x, jnp.zeros((), x.dtype), more) if any(map(any, more)) else x


class _Bands(NamedTuple):
    """The division along an axis of rows whose patches exceed the memory limit."""

    axis: int
    number: int
    places: int  # of the result along the axis, in all bands together
    length: int  # places of the result in a band
    stride: int
    span: int  # elements that a kernel reaches over

    @classmethod
    def of(
        cls, products: _Products, counts: tuple[int, ...], elements: int, limit: int
    ) -> _Bands | None:
        """Return the bands along the longest axis, or None if whole rows are small enough."""
        axis = max(range(len(counts)), key=lambda a: counts[a])
        stride = products.strides[axis]
        span = (products.sizes[axis] - 1) * products.dilations[axis] + 1
        # A band must not read beyond the next one.
        length = max(counts[axis] * limit // max(1, elements), -(-span // stride))
        number = -(-counts[axis] // length)
        if number <= 1:
            return None
        return cls(axis + 1, number, counts[axis], length, stride, span)

    def cut(self, x: Array) -> Array:
        """Turn every band into a row, including the elements that it reads of the next one."""
        step = self.length * self.stride
        x = _resize(x, self.axis, (self.number + 1) * step)
        shape = (*x.shape[: self.axis], self.number + 1, step, *x.shape[self.axis + 1 :])
        blocks = x.reshape(shape)
        own = lax.slice_in_dim(blocks, 0, self.number, axis=self.axis)
        next_one = lax.slice_in_dim(blocks, 1, self.number + 1, axis=self.axis)
        reach = max(0, self.span - self.stride)
        more = lax.slice_in_dim(next_one, 0, reach, axis=self.axis + 1)
        bands = lax.concatenate([own, more], self.axis + 1)
        bands = jnp.moveaxis(bands, self.axis, 1)
        return bands.reshape(-1, *bands.shape[2:])

    def join(self, y: Array, rows: int) -> Array:
        """Join the results of the bands."""
        split = y.reshape(rows, self.number, *y.shape[1:])
        apart = jnp.moveaxis(split, 1, self.axis)
        shape = (*apart.shape[: self.axis], -1, *apart.shape[self.axis + 2 :])
        return lax.slice_in_dim(apart.reshape(shape), 0, self.places, axis=self.axis)
