"""Convolutions and pooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.importing.onnx_graph import OnnxError
from secateur.importing.operator_rules.operator_table import (
    OperatorCall,
    along,
    check_size,
    is_float,
    operator,
    same_type,
)

Edges = list[tuple[int, int]]


def _window(call: OperatorCall, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return strides and dilations."""
    ones = [1] * len(sizes)
    strides, dilations = call.attribute("strides", ones), call.attribute("dilations", ones)
    if not len(strides) == len(dilations) == len(sizes) or min([*strides, *dilations, 1]) < 1:
        raise OnnxError("its strides or dilations do not fit its window.")
    return strides, dilations


def _padding(
    call: OperatorCall, lengths: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> Edges:
    """Return the padding of each axis; sizes are those of the dilated window."""
    mode = call.choose("auto_pad", ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""), "NOTSET")
    if mode == "VALID":
        return [(0, 0)] * len(sizes)
    if mode.startswith("SAME"):
        edges = []
        for n, k, s in zip(lengths, sizes, strides, strict=True):
            total = max((-(-n // s) - 1) * s + k - n, 0)
            less, more = total // 2, total - total // 2
            edges.append((less, more) if mode == "SAME_UPPER" else (more, less))
        return edges
    pads = call.attribute("pads", [0] * 2 * len(sizes))
    if len(pads) != 2 * len(sizes):
        raise OnnxError("its padding does not fit its window.")
    check_size([n + abs(p) for n, p in zip(lengths, pads, strict=False)])
    return list(zip(pads[: len(sizes)], pads[len(sizes) :], strict=True))


def _letters(rank: int) -> tuple[str, str, str]:
    space = "DHW"[-(rank - 2) :] if rank <= 5 else "ABCDEFG"[: rank - 2]
    return f"NC{space}", f"OI{space}", f"NC{space}"


def _add_bias(y: Any, bias: Any) -> Any:
    return y if bias is None else y + along(bias, 1, y.ndim)


@operator("Conv")
def _conv(call: OperatorCall, x: Any, w: Any, bias: Any = None) -> Any:
    x, w = same_type(x, w)
    sizes = w.shape[2:]
    strides, dilations = _window(call, sizes)
    dilated = [(k - 1) * d + 1 for k, d in zip(sizes, dilations, strict=True)]
    padding = _padding(call, x.shape[2:], dilated, strides)
    y = jax.lax.conv_general_dilated(
        x, w, strides, padding, rhs_dilation=dilations, dimension_numbers=_letters(x.ndim),
        feature_group_count=call.attribute("group", 1),
    )  # fmt: skip
    return _add_bias(y, bias)


@operator("ConvTranspose")
def _conv_transpose(call: OperatorCall, x: Any, w: Any, bias: Any = None) -> Any:
    x, w = same_type(x, w)
    sizes, groups = w.shape[2:], call.attribute("group", 1)
    strides, dilations = _window(call, sizes)
    extra = call.attribute("output_padding", [0] * len(sizes))
    reach = [(k - 1) * d for k, d in zip(sizes, dilations, strict=True)]
    edges = _transposed_padding(call, x.shape[2:], reach, strides, extra)
    check_size([n * s for n, s in zip(x.shape[2:], strides, strict=True)])
    inputs, per_group = w.shape[:2]
    w = jnp.flip(w.reshape(groups, inputs // groups, *w.shape[1:]), range(3, w.ndim + 1))
    w = w.swapaxes(1, 2).reshape(groups * per_group, inputs // groups, *sizes)
    padding = [
        (r - a, r - b + e) for r, (a, b), e in zip(reach, edges, extra, strict=True)
    ]  # fmt: skip
    y = jax.lax.conv_general_dilated(
        x, w, (1,) * len(sizes), padding, lhs_dilation=strides, rhs_dilation=dilations,
        dimension_numbers=_letters(x.ndim), feature_group_count=groups,
    )  # fmt: skip
    return _add_bias(y, bias)


def _transposed_padding(
    call: OperatorCall, lengths: Sequence[int], reach: Sequence[int], strides: Sequence[int],
    extra: Sequence[int],
) -> Edges:  # fmt: skip
    mode, shape = call.attribute("auto_pad", "NOTSET"), call.attribute("output_shape")
    if shape is None and not mode.startswith("SAME"):
        return _padding(call, lengths, [r + 1 for r in reach], strides)
    if shape is None:
        shape = [n * s for n, s in zip(lengths, strides, strict=True)]
    edges = []
    for n, r, s, e, size in zip(lengths, reach, strides, extra, shape[-len(reach) :], strict=True):
        total = s * (n - 1) + e + r + 1 - size
        less, more = total // 2, total - total // 2
        edges.append((less, more) if mode == "SAME_UPPER" else (more, less))
    return edges


# --- pooling --------------------------------------------------------------------------------------


def _pooling(call: OperatorCall, x: Any) -> tuple[list[int], list[int], list[int], Edges, Edges]:
    """Return window, strides, dilations, the given padding, and the padding with rounding up."""
    sizes = call.attribute("kernel_shape")
    if sizes is None or len(sizes) != x.ndim - 2:
        raise OnnxError("its window does not fit its operand.")
    strides, dilations = _window(call, sizes)
    lengths = x.shape[2:]
    dilated = [(k - 1) * d + 1 for k, d in zip(sizes, dilations, strict=True)]
    edges = _padding(call, lengths, dilated, strides)
    reached = []
    for n, k, s, (a, b) in zip(lengths, dilated, strides, edges, strict=True):
        count = (n + a + b - k) / s
        steps = math.ceil(count) if call.attribute("ceil_mode", 0) else math.floor(count)
        if steps * s >= n + a:  # a window would begin behind the elements
            steps -= 1
        reached.append((a, max(b, steps * s + k - n - a)))
    return sizes, strides, dilations, edges, reached


def _reduce_window(
    x: Any, start: Any, function: Any, sizes: Any, strides: Any, dilations: Any, edges: Edges
) -> Any:
    return jax.lax.reduce_window(
        x, np.asarray(start, x.dtype), function, (1, 1, *sizes), (1, 1, *strides),
        [(0, 0), (0, 0), *edges], window_dilation=(1, 1, *dilations),
    )  # fmt: skip


@operator("MaxPool")
def _max_pool(call: OperatorCall, x: Any) -> Any:
    if len(call.node.outputs) > 1 and call.node.outputs[1]:
        raise OnnxError("the indices of the maxima are not supported.")
    sizes, strides, dilations, _, reached = _pooling(call, x)
    least = -np.inf if is_float(x) else np.iinfo(x.dtype).min
    x = jnp.asarray(x)
    return _reduce_window(x, least, jax.lax.max, sizes, strides, dilations, reached)


@operator("AveragePool")
def _average_pool(call: OperatorCall, x: Any) -> Any:
    sizes, strides, dilations, edges, reached = _pooling(call, x)
    x = jnp.asarray(x)
    total = _reduce_window(x, 0, jax.lax.add, sizes, strides, dilations, reached)
    includes_padding = bool(call.attribute("count_include_pad", 0))
    counts = []
    for axis, n in enumerate(x.shape[2:]):
        (a, b), (_, far) = edges[axis], reached[axis]
        counted = np.zeros(n + a + far)
        counted[slice(0, n + a + b) if includes_padding else slice(a, a + n)] = 1
        starts = np.arange(total.shape[2 + axis]) * strides[axis]
        steps = np.arange(sizes[axis]) * dilations[axis]
        counts.append(counted[np.add.outer(starts, steps)].sum(1))
    number = functools.reduce(np.multiply.outer, counts).astype(x.dtype)
    if np.all(number == number.flat[0]):
        return total / number.flat[0]
    return total / number[None, None]


@operator("LpPool")
def _lp_pool(call: OperatorCall, x: Any) -> Any:
    sizes, strides, dilations, _, reached = _pooling(call, x)
    p = call.attribute("p", 2)
    powers = jnp.abs(x) ** p
    total = _reduce_window(powers, 0, jax.lax.add, sizes, strides, dilations, reached)
    return total ** (1 / p)


def _space(x: Any) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool")
def _global_average(call: OperatorCall, x: Any) -> Any:
    return jnp.mean(x, _space(x), keepdims=True)


@operator("GlobalMaxPool")
def _global_max(call: OperatorCall, x: Any) -> Any:
    return jnp.max(x, _space(x), keepdims=True)
