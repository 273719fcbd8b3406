"""Operators that sum over axes, or choose along them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.importing.onnx_graph import OnnxError
from secateur.importing.operator_rules.operator_table import (
    OPERATORS,
    OperatorCall,
    along,
    axis_of,
    is_known,
    numpy_for,
    operator,
    whole_numbers,
)

_REDUCTIONS: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "ReduceSum": lambda xp, x, o: xp.sum(x, **o),
    "ReduceMean": lambda xp, x, o: xp.mean(x, **o),
    "ReduceMax": lambda xp, x, o: xp.max(x, **o),
    "ReduceMin": lambda xp, x, o: xp.min(x, **o),
    "ReduceProd": lambda xp, x, o: xp.prod(x, **o),
    "ReduceL1": lambda xp, x, o: xp.sum(xp.abs(x), **o),
    "ReduceL2": lambda xp, x, o: xp.sqrt(xp.sum(x * x, **o)),
    "ReduceSumSquare": lambda xp, x, o: xp.sum(x * x, **o),
    "ReduceLogSum": lambda xp, x, o: xp.log(xp.sum(x, **o)),
    "ReduceLogSumExp": lambda xp, x, o: jax.scipy.special.logsumexp(jnp.asarray(x), **o),
}


def _reduce(call: OperatorCall, x: Any, axes: Any = None, *, function: Any) -> Any:
    chosen = call.attribute("axes") if axes is None else whole_numbers(axes, "a list of axes")
    if not chosen:
        if call.attribute("noop_with_empty_axes", 0):
            return function(numpy_for(x), x, {"axis": (), "keepdims": True})
        chosen = range(x.ndim)
    options = {
        "axis": tuple(axis_of(a, x.ndim) for a in chosen),
        "keepdims": bool(call.attribute("keepdims", 1)),
    }
    if 0 in x.shape and call.node.kind in ("ReduceMax", "ReduceMin"):
        low, high = _limits(x.dtype)
        options["initial"] = low if call.node.kind == "ReduceMax" else high
    with np.errstate(all="ignore"):
        return function(numpy_for(x), x, options).astype(x.dtype)


def _limits(dtype: Any) -> tuple[Any, Any]:
    if jnp.issubdtype(dtype, jnp.bool_):
        return False, True
    if jnp.issubdtype(dtype, jnp.floating):
        return -math.inf, math.inf
    info = np.iinfo(dtype)
    return info.min, info.max


for _kind, _function in _REDUCTIONS.items():
    OPERATORS[_kind] = functools.partial(_reduce, function=_function)


@operator("ArgMax", "ArgMin")
def _arg(call: OperatorCall, x: Any) -> Any:
    axis = axis_of(call.attribute("axis", 0), x.ndim)
    xp = numpy_for(x)
    function = xp.argmax if call.node.kind == "ArgMax" else xp.argmin
    if call.attribute("select_last_index", 0):
        places = x.shape[axis] - 1 - function(xp.flip(x, axis), axis)
    else:
        places = function(x, axis)
    return xp.expand_dims(places, axis) if call.attribute("keepdims", 1) else places


@operator("CumSum")
def _cumsum(call: OperatorCall, x: Any, axis: Any) -> Any:
    (place,) = whole_numbers(axis, "an axis")
    place, xp = axis_of(place, x.ndim), numpy_for(x)
    reverse = call.attribute("reverse", 0)
    y = xp.flip(x, place) if reverse else x
    total = xp.cumsum(y, place)
    if call.attribute("exclusive", 0):
        total = total - y
    return (xp.flip(total, place) if reverse else total).astype(x.dtype)


@operator("Softmax", "LogSoftmax")
def _softmax(call: OperatorCall, x: Any) -> Any:
    function = jax.nn.softmax if call.node.kind == "Softmax" else jax.nn.log_softmax
    x = jnp.asarray(x)
    axis = axis_of(call.attribute("axis", -1 if call.version >= 13 else 1), x.ndim)
    if call.version < 13 and axis != x.ndim - 1:  # all axes from this one on
        flat = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return function(flat, axis=1).reshape(x.shape)
    return function(x, axis=axis)


# --- products -------------------------------------------------------------------------------------


@operator("MatMul")
def _matmul(call: OperatorCall, x: Any, y: Any) -> Any:
    rank = max(x.ndim, y.ndim)
    if min(x.ndim, y.ndim) > 2:  # stacks of matrices
        x, y = (v.reshape((1,) * (rank - v.ndim) + tuple(v.shape)) for v in (x, y))
    elif x.ndim == 2 < y.ndim:
        x = x.reshape((1,) * (rank - 2) + tuple(x.shape))
    return numpy_for(x, y).matmul(x, y)


@operator("Gemm")
def _gemm(call: OperatorCall, x: Any, w: Any, bias: Any = None) -> Any:
    x = x.transpose((1, 0)) if call.attribute("transA", 0) else x
    w = w.transpose((1, 0)) if call.attribute("transB", 0) else w
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    y = numpy_for(x, w).matmul(x, w)
    y = y if alpha == 1 else y * np.asarray(alpha, y.dtype)
    if bias is None:
        return y
    bias = bias if beta == 1 else bias * np.asarray(beta, bias.dtype)
    return y + (along(bias, 1, 2) if bias.ndim == 1 else bias)


@operator("Einsum")
def _einsum(call: OperatorCall, *values: Any) -> Any:
    return jnp.einsum(call.attribute("equation").replace(" ", ""), *values)


# --- normalisation --------------------------------------------------------------------------------


@operator("BatchNormalization")
def _batch_norm(call: OperatorCall, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    if call.attribute("training_mode", 0) or (call.version < 7 and not call.attribute("is_test")):
        raise OnnxError("it is in training mode. Export the network for inference.")
    xp = numpy_for(variance)
    root = xp.sqrt(variance + np.asarray(call.attribute("epsilon", 1e-5), variance.dtype))
    centred = x - along(mean, 1, x.ndim)
    return centred * along(scale / root, 1, x.ndim) + along(bias, 1, x.ndim)


def _standardised(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    centred = x - jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(centred * centred, axes, keepdims=True)
    return centred / jnp.sqrt(variance + epsilon)


@operator("LayerNormalization")
def _layer_norm(call: OperatorCall, x: Any, scale: Any, bias: Any = None) -> Any:
    axis = axis_of(call.attribute("axis", -1), x.ndim)
    axes = tuple(range(axis, x.ndim))
    lead = (1,) * (x.ndim - scale.ndim)
    epsilon = call.attribute("epsilon", 1e-5)
    centred = x - jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(centred * centred, axes, keepdims=True)
    inverse = 1 / jnp.sqrt(variance + epsilon)
    y = centred * inverse * scale.reshape(lead + tuple(scale.shape))
    y = y if bias is None else y + bias.reshape(lead + tuple(bias.shape))
    return y, jnp.mean(x, axes, keepdims=True), inverse


@operator("RMSNormalization")
def _rms_norm(call: OperatorCall, x: Any, scale: Any) -> Any:
    axes = tuple(range(axis_of(call.attribute("axis", -1), x.ndim), x.ndim))
    square = jnp.mean(x * x, axes, keepdims=True)
    y = x / jnp.sqrt(square + call.attribute("epsilon", 1e-5))
    return y * scale.reshape((1,) * (x.ndim - scale.ndim) + tuple(scale.shape))


@operator("InstanceNormalization")
def _instance_norm(call: OperatorCall, x: Any, scale: Any, bias: Any) -> Any:
    y = _standardised(x, tuple(range(2, x.ndim)), call.attribute("epsilon", 1e-5))
    return y * along(scale, 1, x.ndim) + along(bias, 1, x.ndim)


@operator("GroupNormalization")
def _group_norm(call: OperatorCall, x: Any, scale: Any, bias: Any) -> Any:
    groups, (rows, channels) = call.attribute("num_groups"), x.shape[:2]
    grouped = x.reshape(rows, groups, channels // groups, *x.shape[2:])
    y = _standardised(grouped, tuple(range(2, x.ndim + 1)), call.attribute("epsilon", 1e-5))
    if call.version < 21 and scale.shape[0] == groups:  # one for each group
        scale, bias = (numpy_for(v).repeat(v, channels // groups) for v in (scale, bias))
    return y.reshape(x.shape) * along(scale, 1, x.ndim) + along(bias, 1, x.ndim)


@operator("LpNormalization")
def _lp_norm(call: OperatorCall, x: Any) -> Any:
    axis, p = call.attribute("axis", -1), call.choose("p", (1, 2), 2)
    size = jnp.abs(x) if p == 1 else x * x
    total = jnp.sum(size, axis, keepdims=True)
    norm = total if p == 1 else jnp.sqrt(total)
    return jnp.where(norm == 0, 0, x / jnp.where(norm == 0, 1, norm))


@operator("MeanVarianceNormalization")
def _mean_variance_norm(call: OperatorCall, x: Any) -> Any:
    axes = tuple(call.attribute("axes", [0, 2, 3]))
    return _standardised(x, axes, 1e-9)


@operator("LRN")
def _local_response_norm(call: OperatorCall, x: Any) -> Any:
    size = call.attribute("size")
    before = (size - 1) // 2
    window = (1, size, *(1,) * (x.ndim - 2))
    padding = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    square = jnp.asarray(x * x)
    total = jax.lax.reduce_window(
        square, np.zeros((), square.dtype), jax.lax.add, window, (1,) * x.ndim, padding
    )
    alpha, beta = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75)
    return x / (call.attribute("bias", 1.0) + alpha / size * total) ** beta


@operator("TopK")
def _top_k(call: OperatorCall, x: Any, k: Any = None) -> Any:
    count = call.attribute("k") if k is None else whole_numbers(k, "a number of elements")[0]
    axis, xp = axis_of(call.attribute("axis", -1), x.ndim), numpy_for(x)
    largest = call.attribute("largest", 1)
    order = xp.argsort(-x if largest and x.dtype.kind != "u" else (~x if largest else x), axis)
    if is_known(x):
        order = np.argsort(-x.astype(float) if largest else x, axis, kind="stable")
    places = jax.lax.slice_in_dim(jnp.asarray(order), 0, count, axis=axis) if xp is jnp else (
        np.take(order, np.arange(count), axis)
    )  # fmt: skip
    return xp.take_along_axis(x, places, axis), places.astype(np.int64 if xp is np else order.dtype)
