"""Lowering of products of two computed arrays, and of looking up rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from secateur.equations import Equation
from secateur.exports.graph import Atom, Constant, ExportError

if TYPE_CHECKING:
    from secateur.exports.lowering import Lowering

__all__ = ["lower_lookup", "lower_product"]


def lower_product(lowering: Lowering, left: Atom, right: Atom, node: Equation) -> Atom:
    """Return the product of two arrays as one of matrices, of which there are many."""
    (left_sums, right_sums), (left_batch, right_batch) = node.params["dimension_numbers"]

    def as_matrices(atom: Atom, batch: Any, sums: Any, *, sums_last: bool) -> Atom:
        free = [a for a in range(len(atom.shape)) if a not in (*batch, *sums)]
        order = [*batch, *free, *sums] if sums_last else [*batch, *sums, *free]
        sizes = [int(np.prod([atom.shape[a] for a in axes], dtype=int))
                 for axes in ((free, sums) if sums_last else (sums, free))]  # fmt: skip
        shape = [*(atom.shape[a] for a in batch), *sizes]
        return lowering.reshape(lowering.transpose(atom, order, node), shape, node)

    first = as_matrices(left, left_batch, left_sums, sums_last=True)
    second = as_matrices(right, right_batch, right_sums, sums_last=False)
    out = node.outputs[0]
    shape = [*first.shape[:-1], second.shape[-1]]
    return lowering.reshape(
        lowering.add("matmul", [first, second], shape, out.dtype, node), out.shape, node
    )


def lower_lookup(lowering: Lowering, operands: Sequence[Atom], node: Equation) -> Atom:
    """Return whole slices of a table, picked along one axis."""
    table, places = operands
    numbers, sizes = node.params["dimension_numbers"], node.params["slice_sizes"]
    axes, rank = tuple(numbers.start_index_map), len(places.shape) - 1
    picked = [n if a not in axes else 1 for a, n in enumerate(table.shape)]
    axis = axes[0]
    if (
        not isinstance(table, Constant) or numbers.operand_batching_dims or len(axes) != 1
        or tuple(numbers.collapsed_slice_dims) != axes or list(sizes) != picked
    ):  # fmt: skip
        raise ExportError(
            f"an index that is computed cannot be exported ({node.where}). Supported: looking "
            "up whole rows of a table, as embeddings do."
        )
    places = lowering.reshape(places, places.shape[:-1], node)
    kept = [n for a, n in enumerate(table.shape) if a != axis]
    shape = [*places.shape, *kept]
    y: Atom = lowering.add("gather", [places], shape, node.outputs[0].dtype, node,
                       table=np.moveaxis(table.full(), axis, 0))  # fmt: skip
    offsets, order = list(numbers.offset_dims), list(range(rank))
    ends = [offsets.index(a) + rank if a in offsets else order.pop(0)
            for a in range(len(shape))]  # fmt: skip
    return lowering.transpose(y, ends, node)
