"""How labels pass through lookups, updates, orderings and primitives without operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from secateur.equations import Equation, Slot, primitives
from secateur.structure.label_rules import LabelRules
from secateur.structure.labels import ANY, DATA, AxisLabels

declare = LabelRules.rules.declare


@declare("gather")
def _gather(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    """Whole slices keep their labels: the features of an embedding, say."""
    x, _ = values
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape = equation.outputs[0].shape
    labels = [np.full(n, DATA) for n in shape]
    vanishes = [False] * len(shape)
    left_out = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [a for a in range(len(x.labels)) if a not in left_out]
    for place, axis in zip(numbers.offset_dims, kept, strict=True):
        if sizes[axis] == len(x.labels[axis]) and axis not in numbers.start_index_map:
            labels[place], vanishes[place] = x.labels[axis], x.vanishes[axis]
        else:
            search.partition.freeze(x.labels[axis])
    for axis in left_out:
        search.partition.freeze(x.labels[axis])
    return [AxisLabels(tuple(labels), tuple(vanishes))]


@declare("dynamic_slice")
def _dynamic_slice(
    search: LabelRules, equation: Equation, values: list[AxisLabels]
) -> list[AxisLabels]:
    x, *_ = values
    labels = [
        a if len(a) == n else search.partition.freeze(a)[:n]
        for a, n in zip(x.labels, equation.params["slice_sizes"], strict=True)
    ]
    return [replace(x, labels=tuple(labels))]


@declare(*primitives.UPDATES, *primitives.SEGMENT_EXTREMA)
def _update(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    """Whole slices keep their labels: the features that are summed over a node's edges, say."""
    x, update = values[0], values[1 if equation.name == "dynamic_update_slice" else 2]
    pairs = update_axes(equation)
    labels, vanishes = list(x.labels), [False] * len(x.labels)
    for axis in range(len(labels)):
        place = pairs.get(axis)
        if place is None:
            labels[axis] = search.partition.freeze(x.labels[axis])
        else:
            labels[axis] = search.partition.unify(x.labels[axis], update.labels[place])
            vanishes[axis] = x.vanishes[axis] and update.vanishes[place]
    for place in set(range(len(update.labels))) - set(pairs.values()):
        search.partition.freeze(update.labels[place])
    return [AxisLabels(tuple(labels), tuple(vanishes))]


def update_axes(equation: Equation) -> dict[int, int]:
    """Return the axes that an update has in full: of the operand, and of the update."""
    x, update = equation.inputs[0], equation.inputs[-1]
    shape, size = shape_of(x), shape_of(update)
    if equation.name == "dynamic_update_slice":
        size = shape_of(equation.inputs[1])
        return {axis: axis for axis, n in enumerate(shape) if size[axis] == n}
    numbers = equation.params["dimension_numbers"]
    left_out = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [axis for axis in range(len(shape)) if axis not in left_out]
    return {
        axis: place
        for axis, place in zip(kept, numbers.update_window_dims, strict=True)
        if size[place] == shape[axis] and axis not in numbers.scatter_dims_to_operand_dims
    }


def shape_of(atom: Any) -> tuple[int, ...]:
    """Return the shape of an operand of an equation."""
    return atom.shape if isinstance(atom, Slot) else np.shape(atom.value)


@declare("sort")
def _sort(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    labels = list(values[0].labels)
    for value in values[1:]:
        labels = [search.partition.unify(a, b) for a, b in zip(labels, value.labels, strict=True)]
    axis = equation.params["dimension"]
    labels[axis] = search.partition.freeze(labels[axis])
    return [replace(value, labels=tuple(labels)) for value in values]


@declare("top_k")
def _top_k(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    (x,) = values
    axis = equation.params.get("axis", len(x.labels) - 1)
    search.partition.freeze(x.labels[axis])
    labels = list(x.labels)
    labels[axis] = np.full(equation.params["k"], DATA)
    return [replace(x, labels=tuple(labels)), AxisLabels(tuple(labels), (False,) * len(labels))]


@declare("fft")
def _fft(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    (x,) = values
    labels = list(x.labels)
    for axis in range(len(labels) - len(equation.params["fft_lengths"]), len(labels)):
        search.partition.freeze(labels[axis])
        labels[axis] = np.full(equation.outputs[0].shape[axis], DATA)
    return [replace(x, labels=tuple(labels))]


@declare(*primitives.GENERATORS)
def _constant(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    for value in values:
        for labels in value.labels:
            search.partition.freeze(labels)
    return [
        AxisLabels(tuple(np.full(n, ANY) for n in slot.shape), (False,) * len(slot.shape))
        for slot in equation.outputs
    ]
