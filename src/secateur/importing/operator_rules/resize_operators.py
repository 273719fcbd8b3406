"""Operators that change the resolution of an image or signal.

Every new element is a weighted sum of old ones along an axis, and the weights depend on lengths
only: along each axis the result is a product with a certain matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.importing.onnx_graph import OnnxError
from secateur.importing.operator_rules.operator_table import (
    OperatorCall,
    axis_of,
    check_size,
    is_known,
    operator,
    whole_numbers,
)

# Place in the old array of the centre of each new element i.
_PLACES: dict[str, Callable[..., np.ndarray]] = {
    "half_pixel": lambda i, scale, old, new: (i + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda i, scale, old, new: (
        (i + 0.5) / scale - 0.5 if new > 1 else np.zeros(1)
    ),
    "asymmetric": lambda i, scale, old, new: i / scale,
    "align_corners": lambda i, scale, old, new: i * (old - 1) / max(new - 1, 1),
    "half_pixel_symmetric": lambda i, scale, old, new: (
        old / 2 * (1 - new / (scale * old)) + (i + 0.5) / scale - 0.5
    ),
}
_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@operator("Resize")
def _resize(
    call: OperatorCall, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None
) -> Any:
    call.refuse("antialias")
    call.choose("keep_aspect_ratio_policy", ("stretch",), "stretch")
    if call.version < 11:  # the operands are x and scales
        roi, scales = None, roi
    axes = [axis_of(a, x.ndim) for a in call.attribute("axes", range(x.ndim))]
    if sizes is not None and np.size(sizes):
        lengths = dict(zip(axes, whole_numbers(sizes, "the size"), strict=True))
        factors = {a: n / x.shape[a] for a, n in lengths.items()}
    else:
        if scales is None or not is_known(scales):
            raise OnnxError("the size depends on the values of the data, which cannot be traced.")
        factors = dict(zip(axes, map(float, np.ravel(scales)), strict=True))
        lengths = {a: math.floor(x.shape[a] * s) for a, s in factors.items()}
    return _resize_axes(call, x, lengths, factors)


@operator("Upsample")
def _upsample(call: OperatorCall, x: Any, scales: Any = None) -> Any:
    values = call.attribute("scales") if scales is None else scales
    if values is None or not is_known(values):
        raise OnnxError("the size depends on the values of the data, which cannot be traced.")
    factors = dict(enumerate(map(float, np.ravel(values))))
    lengths = {a: math.floor(x.shape[a] * s) for a, s in factors.items()}
    return _resize_axes(call, x, lengths, factors)


def _resize_axes(
    call: OperatorCall, x: Any, lengths: dict[int, int], factors: dict[int, float]
) -> Any:
    mode = call.choose("mode", ("nearest", "linear", "cubic"), "nearest")
    is_old = call.version < 11
    places = "asymmetric" if is_old else "half_pixel"
    places = call.choose("coordinate_transformation_mode", tuple(_PLACES), places)
    nearest = "floor" if is_old else "round_prefer_floor"
    nearest = call.choose("nearest_mode", tuple(_NEAREST), nearest)
    check_size([lengths.get(a, n) for a, n in enumerate(x.shape)])
    for axis, new in lengths.items():
        old, scale = x.shape[axis], factors[axis]
        if new == old and scale == 1:
            continue
        if not scale > 0 or not new:
            raise OnnxError(f"a scale of {scale} is not supported.")
        at = _PLACES[places](np.arange(new, dtype=np.float64), scale, old, new)
        if mode == "nearest":
            chosen = np.clip(_NEAREST[nearest](at), 0, old - 1).astype(int)
            if new == old * (new // old) and np.array_equal(chosen, np.arange(new) * old // new):
                x = _repeat(x, axis, new // old)
                continue
            matrix = np.eye(old)[chosen]
        elif mode == "linear":
            matrix = _interpolate(at, old, lambda d: np.maximum(1 - np.abs(d), 0), reach=1)
        else:
            kernel = partial(_cubic, a=call.attribute("cubic_coeff_a", -0.75))
            excluded = bool(call.attribute("exclude_outside", 0))
            matrix = _interpolate(at, old, kernel, reach=2, excluded=excluded)
        y = jnp.tensordot(x, jnp.asarray(matrix.T, x.dtype), axes=((axis,), (0,)))
        x = jnp.moveaxis(y, -1, axis)
    return x


def _repeat(x: Any, axis: int, times: int) -> Any:
    """Repeat every element along an axis."""
    wide = jnp.expand_dims(x, axis + 1)
    shape = [*x.shape[: axis + 1], times, *x.shape[axis + 1 :]]
    return jnp.broadcast_to(wide, shape).reshape(
        [*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :]]
    )


def _interpolate(
    at: np.ndarray,
    old: int,
    kernel: Callable[[np.ndarray], np.ndarray],
    *,
    reach: int,
    excluded: bool = False,
) -> np.ndarray:
    """Return the weight of each old element in each new one; the ends are repeated beyond them."""
    matrix = np.zeros((len(at), old))
    rows = np.arange(len(at))
    for offset in range(1 - reach, reach + 1):
        place = np.floor(at) + offset
        inside = (place >= 0) & (place < old)
        weights = kernel(at - place) * (inside if excluded else 1)
        np.add.at(matrix, (rows, np.clip(place, 0, old - 1).astype(int)), weights)
    return matrix / matrix.sum(1, keepdims=True) if excluded else matrix


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))
