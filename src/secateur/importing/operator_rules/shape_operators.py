"""Operators that move elements, and those that compute with shapes."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.importing.onnx_graph import OnnxError
from secateur.importing.operator_rules.directions import Directions
from secateur.importing.operator_rules.operator_table import (
    OperatorCall,
    axis_of,
    check_size,
    is_known,
    numpy_for,
    operator,
    whole_numbers,
)


@operator("Constant")
def _constant(call: OperatorCall) -> Any:
    attributes = call.node.attributes
    if "value" in attributes:
        return attributes["value"]
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32),
                        ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if name in attributes:
            return np.asarray(attributes[name], dtype)
    raise OnnxError("a constant of a kind that is not supported.")


@operator("Shape")
def _shape(call: OperatorCall, x: Any) -> Any:
    start, end = call.attribute("start", 0), call.attribute("end")
    return np.asarray(x.shape[start:end], np.int64)


@operator("Size")
def _size(call: OperatorCall, x: Any) -> Any:
    return np.asarray(math.prod(x.shape), np.int64)


@operator("ConstantOfShape")
def _constant_of_shape(call: OperatorCall, shape: Any) -> Any:
    value = np.asarray(call.attribute("value", np.zeros(1, np.float32))).reshape(-1)[:1]
    return np.full(check_size(whole_numbers(shape, "a shape")), value[0], value.dtype)


@operator("Range")
def _range(call: OperatorCall, start: Any, limit: Any, delta: Any) -> Any:
    if not is_known(start, limit, delta):
        raise OnnxError("its length depends on the values of the data, which cannot be traced.")
    first, last, step = (np.asarray(v).reshape(()) for v in (start, limit, delta))
    count = max(math.ceil((float(last) - float(first)) / float(step)), 0)
    check_size([count])
    return (first + np.arange(count) * step).astype(first.dtype)


@operator("Reshape")
def _reshape(call: OperatorCall, x: Any, shape: Any = None) -> Any:
    target = call.attribute("shape") if shape is None else whole_numbers(shape, "a shape")
    copies = not call.attribute("allowzero", 0)
    sizes = [x.shape[i] if n == 0 and copies else n for i, n in enumerate(target)]
    sizes = _other_lengths(call, x, _other_rows(call, x, sizes))
    if isinstance(x, Directions):
        merged = x.merge_last(sizes)
        if merged is not None:
            return merged
        x = x.stack()
    return x.reshape(sizes)


def _other_rows(call: OperatorCall, x: Any, sizes: list[int]) -> list[int]:
    """Adapt a shape that was written for a fixed number of rows to the actual number.

    The result's shape is verified at the end; see `ImportedFunction`.
    """
    is_fixed = call.file_rows is not None and call.rows != call.file_rows and not is_known(x)
    if is_fixed and sizes and sizes[0] == call.file_rows and x.shape[:1] == (call.rows,):
        sizes = [call.rows, *sizes[1:]]  # type: ignore[list-item]
    return sizes


def _other_lengths(call: OperatorCall, x: Any, sizes: list[int]) -> list[int]:
    """Let a shape that was written for some number of frames hold for the number that there is.

    PyTorch's exporter writes the length of the example's sequences into the shapes within. Where
    such a shape does not fit, but would fit with one length replaced by another, it is replaced.
    """
    if not call.lengths or is_known(x):
        return sizes
    is_open = -1 in sizes  # then a wrong length may fit, too
    is_strange = any(n in call.lengths and n not in x.shape for n in sizes)
    if _fits(x, sizes) and not (is_open and is_strange):
        return sizes
    choices = [
        [*sizes[:axis], call.lengths[n], *sizes[axis + 1 :]]
        for axis, n in enumerate(sizes)
        if n in call.lengths
    ]
    fitting = [choice for choice in choices if _fits(x, choice)]
    return fitting[0] if len(fitting) == 1 else sizes


def _fits(x: Any, sizes: list[int]) -> bool:
    count, known = math.prod(x.shape), math.prod(n for n in sizes if n != -1)
    return known > 0 and count % known == 0 if -1 in sizes else count == known


@operator("Flatten")
def _flatten(call: OperatorCall, x: Any) -> Any:
    axis = call.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Transpose")
def _transpose(call: OperatorCall, x: Any) -> Any:
    order = call.attribute("perm", list(range(x.ndim))[::-1])
    return x.transpose(order)


def _axes(call: OperatorCall, axes: Any) -> list[int] | None:
    return call.attribute("axes") if axes is None else whole_numbers(axes, "a list of axes")


@operator("Squeeze")
def _squeeze(call: OperatorCall, x: Any, axes: Any = None) -> Any:
    chosen = _axes(call, axes)
    if chosen is None:
        chosen = [a for a, n in enumerate(x.shape) if n == 1]
    return x.squeeze(tuple(axis_of(a, x.ndim) for a in chosen))


@operator("Unsqueeze")
def _unsqueeze(call: OperatorCall, x: Any, axes: Any = None) -> Any:
    chosen = _axes(call, axes) or []
    rank = np.ndim(x) + len(chosen)
    return numpy_for(x).expand_dims(x, tuple(sorted(axis_of(a, rank) for a in chosen)))


@operator("Concat")
def _concat(call: OperatorCall, *values: Any) -> Any:
    axis = axis_of(call.attribute("axis"), values[0].ndim)
    if all(isinstance(v, Directions) and v.axis == axis for v in values):
        return Directions([p for v in values for p in v.parts], axis)
    values = tuple(v.stack() if isinstance(v, Directions) else v for v in values)
    return numpy_for(*values).concatenate(values, axis)


@operator("Split")
def _split(call: OperatorCall, x: Any, sizes: Any = None) -> Any:
    axis = axis_of(call.attribute("axis", 0), x.ndim)
    length = x.shape[axis]
    if sizes is not None:
        lengths = whole_numbers(sizes, "a list of lengths")
    elif call.attribute("split"):
        lengths = call.attribute("split")
    else:
        count = call.attribute("num_outputs", len(call.node.outputs))
        each = -(-length // max(count, 1))
        lengths = [each] * (count - 1) + [length - each * (count - 1)]
    if sum(lengths) != length or min(lengths, default=0) < 0:
        raise OnnxError(f"{length} elements cannot be split into {lengths}.")
    ends = [int(n) for n in np.cumsum(lengths)]
    if isinstance(x, Directions):
        starts = [0, *ends[:-1]]
        return tuple(x.cut(axis, s, e, 1) for s, e in zip(starts, ends, strict=True))
    return tuple(numpy_for(x).split(x, ends[:-1], axis))


@operator("Slice")
def _slice(
    call: OperatorCall, x: Any, starts: Any = None, ends: Any = None, axes: Any = None,
    steps: Any = None,
) -> Any:  # fmt: skip
    def read(value: Any, name: str, default: Any) -> list[int]:
        if value is not None:
            return whole_numbers(value, f"an index ({name})")
        return call.attribute(name, default)

    first, last = read(starts, "starts", []), read(ends, "ends", [])
    along, strides = read(axes, "axes", list(range(len(first)))), read(steps, "steps", None)
    strides = strides or [1] * len(first)
    if not len(first) == len(last) == len(along) == len(strides) or 0 in strides:
        raise OnnxError("its starts, ends, axes and steps do not fit together.")
    for axis, start, end, step in zip(along, first, last, strides, strict=True):
        axis = axis_of(axis, x.ndim)
        x = _cut(x, axis, start, end, step)
    return x


def _cut(x: Any, axis: int, start: int, end: int, step: int) -> Any:
    """Return a slice along one axis, with the bounds of ONNX."""
    length = x.shape[axis]
    start, end = (i + length if i < 0 else i for i in (start, end))
    if step > 0:
        start, end = min(max(start, 0), length), min(max(end, 0), length)
        bounds = slice(start, max(end, start), step)
    else:
        start, end = min(max(start, 0), length - 1), min(max(end, -1), length - 1)
        bounds = slice(start, end if end >= 0 else None, step)
    if bounds == slice(0, length, 1):
        return x
    if isinstance(x, Directions):
        return x.cut(axis, *bounds.indices(length))
    return x[(slice(None),) * axis + (bounds,)]


@operator("Gather")
def _gather(call: OperatorCall, x: Any, indices: Any) -> Any:
    axis = axis_of(call.attribute("axis", 0), x.ndim)
    length = x.shape[axis]
    if is_known(indices):
        if np.any((indices < -length) | (indices >= length)):
            raise OnnxError(f"an index is outside the {length} elements of axis {axis}.")
        indices = np.where(indices < 0, indices + length, indices)
        if indices.ndim == 0:  # one element, picked out
            start = int(indices)
            part = _cut(x, axis, start, start + 1, 1)
            return part.squeeze((axis,))
        if isinstance(x, Directions):
            x = x.stack()
        return numpy_for(x).take(x, indices, axis)
    places = jnp.where(indices < 0, indices + length, indices)
    return jnp.take(jnp.asarray(x), places, axis, mode="clip")


@operator("GatherElements")
def _gather_elements(call: OperatorCall, x: Any, indices: Any) -> Any:
    axis = axis_of(call.attribute("axis", 0), x.ndim)
    xp = numpy_for(x, indices)
    places = xp.where(indices < 0, indices + x.shape[axis], indices)
    return xp.take_along_axis(_first_elements(x, indices.shape, axis), places, axis)


def _first_elements(x: Any, shape: tuple[int, ...], axis: int) -> Any:
    return x[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(shape))]


@operator("GatherND")
def _gather_nd(call: OperatorCall, x: Any, indices: Any) -> Any:
    batch, depth = call.attribute("batch_dims", 0), indices.shape[-1]
    xp = numpy_for(x, indices)
    grids = np.ix_(*(np.arange(n) for n in indices.shape[:-1]))[:batch]
    return xp.asarray(x)[(*grids, *(indices[..., i] for i in range(depth)))]


@operator("ScatterND")
def _scatter_nd(call: OperatorCall, x: Any, indices: Any, updates: Any) -> Any:
    places = tuple(jnp.asarray(indices)[..., i] for i in range(indices.shape[-1]))
    return getattr(jnp.asarray(x).at[places], _reduction(call))(updates)


def _reduction(call: OperatorCall) -> str:
    methods = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}
    return methods[call.choose("reduction", list(methods), "none")]


@operator("ScatterElements", "Scatter")
def _scatter_elements(call: OperatorCall, x: Any, indices: Any, updates: Any) -> Any:
    axis = axis_of(call.attribute("axis", 0), x.ndim)
    places = list(np.ix_(*(np.arange(n) for n in indices.shape)))
    places[axis] = indices
    return getattr(jnp.asarray(x).at[tuple(places)], _reduction(call))(updates)


@operator("Expand")
def _expand(call: OperatorCall, x: Any, shape: Any) -> Any:
    target = tuple(whole_numbers(shape, "a shape"))
    sizes = check_size(np.broadcast_shapes(x.shape, target))
    xp = numpy_for(x)
    x = x.reshape((1,) * (len(sizes) - x.ndim) + tuple(x.shape))
    return xp.broadcast_to(x, sizes)


@operator("Tile")
def _tile(call: OperatorCall, x: Any, repeats: Any) -> Any:
    counts = whole_numbers(repeats, "a number of repeats")
    check_size([n * max(r, 0) for n, r in zip(x.shape, counts, strict=True)])
    return numpy_for(x).tile(x, counts)


@operator("Pad")
def _pad(call: OperatorCall, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    mode = call.choose("mode", ("constant", "reflect", "edge", "wrap"), "constant")
    if pads is None:
        widths = call.attribute("pads", call.attribute("paddings"))
        number = call.attribute("value", 0.0)
    else:
        widths = whole_numbers(pads, "padding")
        number = 0 if value is None else np.asarray(value).reshape(())
    along = whole_numbers(axes, "a list of axes") if axes is not None else range(x.ndim)
    config = [(0, 0)] * x.ndim
    half = len(widths) // 2
    for place, axis in enumerate(along):
        config[axis_of(axis, x.ndim)] = (widths[place], widths[half + place])
    check_size([n + max(a, 0) + max(b, 0) for n, (a, b) in zip(x.shape, config, strict=True)])
    for axis, (a, b) in enumerate(config):  # a negative width cuts
        x = _cut(x, axis, max(-a, 0), x.shape[axis] - max(-b, 0), 1)
    widths = [(max(a, 0), max(b, 0)) for a, b in config]
    options = {"constant_values": number} if mode == "constant" else {}
    return numpy_for(x).pad(x, widths, mode=mode, **options)


@operator("DepthToSpace")
def _depth_to_space(call: OperatorCall, x: Any) -> Any:
    n, c, h, w = x.shape
    b = call.attribute("blocksize")
    if call.choose("mode", ("DCR", "CRD"), "DCR") == "DCR":
        y = x.reshape(n, b, b, c // b**2, h, w).transpose((0, 3, 4, 1, 5, 2))
    else:
        y = x.reshape(n, c // b**2, b, b, h, w).transpose((0, 1, 4, 2, 5, 3))
    return y.reshape(n, c // b**2, h * b, w * b)


@operator("SpaceToDepth")
def _space_to_depth(call: OperatorCall, x: Any) -> Any:
    n, c, h, w = x.shape
    b = call.attribute("blocksize")
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    is_dcr = call.choose("mode", ("DCR", "CRD"), "DCR") == "DCR"
    y = blocks.transpose((0, 3, 5, 1, 2, 4) if is_dcr else (0, 1, 3, 5, 2, 4))
    return y.reshape(n, c * b**2, h // b, w // b)


@operator("Trilu")
def _trilu(call: OperatorCall, x: Any, k: Any = None) -> Any:
    offset = 0 if k is None else whole_numbers(k, "a diagonal")[0]
    xp = numpy_for(x)
    return xp.triu(x, offset) if call.attribute("upper", 1) else xp.tril(x, offset)


@operator("EyeLike")
def _eye_like(call: OperatorCall, x: Any) -> Any:
    rows, columns = x.shape
    return np.eye(rows, columns, k=call.attribute("k", 0), dtype=np.float32)


@operator("OneHot")
def _one_hot(call: OperatorCall, indices: Any, depth: Any, values: Any) -> Any:
    (count,) = whole_numbers(depth, "a number of classes")
    check_size([*indices.shape, count])
    rank = indices.ndim + 1
    axis = axis_of(call.attribute("axis", -1), rank)
    xp = numpy_for(indices, values)
    classes = np.arange(count).reshape([-1 if a == axis else 1 for a in range(rank)])
    hits = xp.expand_dims(xp.mod(indices, count), axis) == classes
    inside = xp.expand_dims((indices >= -count) & (indices < count), axis)
    return xp.where(hits & inside, values[1], values[0])


@operator("ai.onnx.ml.ArrayFeatureExtractor")
def _extract(call: OperatorCall, x: Any, indices: Any) -> Any:
    if is_known(x, indices):
        return np.take(x, np.ravel(indices), axis=-1)
    if x.dtype == object:
        raise OnnxError("strings are not supported; request the output with the probabilities.")
    return jnp.take(jnp.asarray(x), indices.ravel(), axis=-1)
