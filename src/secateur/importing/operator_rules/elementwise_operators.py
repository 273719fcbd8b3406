"""Operators that act element by element."""

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
    align,
    along,
    axis_of,
    is_float,
    is_known,
    numpy_for,
    operator,
)

# ELEMENT_TYPES[number in the file] is a NumPy type.
ELEMENT_TYPES = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64,
    9: np.bool_, 10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64,
    16: jnp.bfloat16,
}  # fmt: skip

# --- functions of one value: NumPy's for known values, JAX's for others ---------------------------

_NAMED = {
    "Abs": "abs", "Neg": "negative", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Floor": "floor",
    "Ceil": "ceil", "Sign": "sign", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "arcsin",
    "Acos": "arccos", "Atan": "arctan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "arcsinh",
    "Acosh": "arccosh", "Atanh": "arctanh", "Tanh": "tanh", "Not": "logical_not", "IsNaN": "isnan",
    "Round": "round",
}  # fmt: skip
for _kind, _name in _NAMED.items():
    OPERATORS[_kind] = lambda call, x, _name=_name: getattr(numpy_for(x), _name)(x)

# --- activations: (x, attributes …) by name and default -------------------------------------------

_Activation = tuple[Callable[..., Any], dict[str, float]]
_ACTIVATIONS: dict[str, _Activation] = {
    "Relu": (lambda x: jnp.maximum(x, jnp.zeros((), x.dtype)), {}),
    "Sigmoid": (jax.nn.sigmoid, {}),
    "Softplus": (jax.nn.softplus, {}),
    "Softsign": (lambda x: x / (1 + jnp.abs(x)), {}),
    "Erf": (jax.scipy.special.erf, {}),
    "Reciprocal": (lambda x: 1 / x, {}),
    "LeakyRelu": (lambda x, alpha: jnp.where(x >= 0, x, alpha * x), {"alpha": 0.01}),
    "ThresholdedRelu": (lambda x, alpha: jnp.where(x > alpha, x, 0), {"alpha": 1.0}),
    "Elu": (lambda x, alpha: jax.nn.elu(x, alpha), {"alpha": 1.0}),
    "Celu": (lambda x, alpha: jax.nn.celu(x, alpha), {"alpha": 1.0}),
    "Selu": (
        lambda x, alpha, gamma: gamma * jax.nn.elu(x, alpha),
        {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    ),
    "HardSigmoid": (
        lambda x, alpha, beta: jnp.minimum(jnp.maximum(alpha * x + beta, 0), 1),
        {"alpha": 0.2, "beta": 0.5},
    ),
    "HardSwish": (lambda x: x * jnp.minimum(jnp.maximum(x / 6 + 0.5, 0), 1), {}),
    "Mish": (lambda x: x * jnp.tanh(jax.nn.softplus(x)), {}),
    "Swish": (lambda x, alpha: x * jax.nn.sigmoid(alpha * x), {"alpha": 1.0}),
    "Shrink": (
        lambda x, lambd, bias: jnp.where(
            x < -lambd, x + bias, jnp.where(x > lambd, x - bias, jnp.zeros((), x.dtype))
        ),
        {"lambd": 0.5, "bias": 0.0},
    ),
}


def _activation(call: OperatorCall, x: Any, *, function: Any, defaults: dict[str, float]) -> Any:
    options = [call.attribute(name, value) for name, value in defaults.items()]
    return function(jnp.asarray(x), *options).astype(x.dtype)


for _kind, (_function, _defaults) in _ACTIVATIONS.items():
    OPERATORS[_kind] = functools.partial(_activation, function=_function, defaults=_defaults)


@operator("Gelu")
def _gelu(call: OperatorCall, x: Any) -> Any:
    approximate = call.choose("approximate", ("none", "tanh"), "none") == "tanh"
    return jax.nn.gelu(x, approximate=approximate)


@operator("PRelu")
def _prelu(call: OperatorCall, x: Any, slope: Any) -> Any:
    x, slope = align(x, slope)
    return jnp.where(x >= 0, x, slope * x)


@operator("Clip")
def _clip(call: OperatorCall, x: Any, low: Any = None, high: Any = None) -> Any:
    xp = numpy_for(x, low, high)
    low = call.attribute("min") if low is None else low.reshape(())
    high = call.attribute("max") if high is None else high.reshape(())
    y = x if low is None else xp.maximum(x, xp.asarray(low, x.dtype))
    return y if high is None else xp.minimum(y, xp.asarray(high, x.dtype))


@operator("Identity")
def _identity(call: OperatorCall, x: Any) -> Any:
    return x


@operator("ai.onnx.ml.ZipMap")
def _zip_map(call: OperatorCall, x: Any) -> Any:
    """Return the probabilities as they are: one column for each class."""
    return x


@operator("Dropout")
def _dropout(call: OperatorCall, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """Return the input: dropout has no effect in inference."""
    if training is not None and not (is_known(training) and not np.any(training)):
        raise OnnxError("it is in training mode. Export the network for inference.")
    return (x, np.ones(x.shape, bool))


@operator("IsInf")
def _is_inf(call: OperatorCall, x: Any) -> Any:
    xp = numpy_for(x)
    up, down = call.attribute("detect_positive", 1), call.attribute("detect_negative", 1)
    return xp.isinf(x) & ((x > 0) & bool(up) | (x < 0) & bool(down))


@operator("Cast", "CastLike")
def _cast(call: OperatorCall, x: Any, like: Any = None) -> Any:
    if like is not None:
        dtype = like.dtype
    elif call.attribute("to") in ELEMENT_TYPES:
        dtype = np.dtype(ELEMENT_TYPES[call.attribute("to")])
    else:
        raise OnnxError("a type that is not supported: only numbers of 8 to 64 bits, and bool.")
    if is_known(x):
        if x.dtype == object:
            raise OnnxError("strings are not supported.")
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(x).astype(dtype)
    return x.astype(jax.dtypes.canonicalize_dtype(dtype))


# --- functions of two values ----------------------------------------------------------------------


def _divide(xp: Any, x: Any, y: Any) -> Any:
    if is_float(x):
        return xp.divide(x, y)
    if xp is np and not np.all(y):
        raise OnnxError("an integer is divided by 0.")
    # Whole numbers are cut off towards 0.
    return (xp.sign(x) * xp.sign(y) * (xp.abs(x) // xp.abs(y))).astype(x.dtype)


def _power(xp: Any, x: Any, y: Any) -> Any:
    if xp is jnp and is_known(y) and np.size(y) == 1 and float(y.ravel()[0]) in (2.0, 3.0, 0.5):
        exponent = float(y.ravel()[0])
        return jnp.sqrt(x) if exponent == 0.5 else x ** int(exponent)
    with np.errstate(all="ignore"):
        return xp.power(x, y).astype(x.dtype)


_BINARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "Add": lambda xp, x, y: xp.add(x, y),
    "Sub": lambda xp, x, y: xp.subtract(x, y),
    "Mul": lambda xp, x, y: xp.multiply(x, y),
    "Div": _divide,
    "Pow": _power,
    "And": lambda xp, x, y: xp.logical_and(x, y),
    "Or": lambda xp, x, y: xp.logical_or(x, y),
    "Xor": lambda xp, x, y: xp.logical_xor(x, y),
    "Equal": lambda xp, x, y: xp.equal(x, y),
    "Greater": lambda xp, x, y: xp.greater(x, y),
    "GreaterOrEqual": lambda xp, x, y: xp.greater_equal(x, y),
    "Less": lambda xp, x, y: xp.less(x, y),
    "LessOrEqual": lambda xp, x, y: xp.less_equal(x, y),
}


def _binary(call: OperatorCall, x: Any, y: Any, *, function: Any) -> Any:
    if call.version < 7 and call.attribute("broadcast") and np.ndim(y):
        start = axis_of(call.attribute("axis", np.ndim(x) - np.ndim(y)), np.ndim(x))
        y = y.reshape(y.shape + (1,) * (np.ndim(x) - start - np.ndim(y)))
    x, y = align(x, y)
    if is_known(x, y):
        with np.errstate(all="ignore"):
            return np.asarray(function(np, x, y))
    return function(jnp, x, y)


for _kind, _function in _BINARY.items():
    OPERATORS[_kind] = functools.partial(_binary, function=_function)


@operator("Mod")
def _mod(call: OperatorCall, x: Any, y: Any) -> Any:
    x, y = align(x, y)
    xp = numpy_for(x, y)
    if xp is np and not is_float(x) and not np.all(y):
        raise OnnxError("an integer is divided by 0.")
    return xp.fmod(x, y) if call.attribute("fmod", 0) else xp.mod(x, y)


_VARIADIC: dict[str, str] = {"Sum": "add", "Mean": "add", "Max": "maximum", "Min": "minimum"}


@operator(*_VARIADIC)
def _variadic(call: OperatorCall, *values: Any) -> Any:
    values = tuple(align(*values))
    step = getattr(numpy_for(*values), _VARIADIC[call.node.kind])
    total = functools.reduce(step, values)
    return total / len(values) if call.node.kind == "Mean" else total


@operator("Where")
def _where(call: OperatorCall, condition: Any, x: Any, y: Any) -> Any:
    condition, x, y = align(condition, x, y)
    return numpy_for(condition, x, y).where(condition, x, y)


# --- quantised values -----------------------------------------------------------------------------


def _per_channel(call: OperatorCall, x: Any, scale: Any, zero: Any) -> tuple[Any, Any]:
    if call.attribute("block_size"):
        raise OnnxError("blocks are not supported.")
    axis = axis_of(call.attribute("axis", 1), max(np.ndim(x), 2))
    if np.size(scale) > 1:
        scale = along(scale, axis, np.ndim(x))
        zero = zero if zero is None else along(zero, axis, np.ndim(x))
    elif np.ndim(scale):
        scale, zero = scale.reshape(()), zero if zero is None else zero.reshape(())
    return scale, zero


@operator("DequantizeLinear")
def _dequantise(call: OperatorCall, x: Any, scale: Any, zero: Any = None) -> Any:
    scale, zero = _per_channel(call, x, scale, zero)
    xp = numpy_for(x, scale, zero)
    dtype = scale.dtype if not is_float(x) else jnp.result_type(scale, x)
    y = x if is_float(x) else x.astype(dtype)
    return (
        y if zero is None or (is_known(zero) and not np.any(zero)) else y - xp.asarray(zero, dtype)
    ) * scale


@operator("QuantizeLinear")
def _quantise(call: OperatorCall, x: Any, scale: Any, zero: Any = None) -> Any:
    """Return rounded values.

    Inside a network they stay floating-point numbers, whose rounding counts as the identity where
    gradients are taken.
    """
    dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    if "output_dtype" in call.node.attributes and zero is None:
        dtype = np.dtype(ELEMENT_TYPES.get(call.attribute("output_dtype"), object))
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        raise OnnxError(f"the type {dtype} is not supported.")
    scale, zero = _per_channel(call, x, scale, zero)
    limits = np.iinfo(dtype)
    xp = numpy_for(x, scale, zero)
    ratio = x / scale
    rounded = xp.round(ratio) if xp is np else round_straight(ratio)
    y = rounded if zero is None else rounded + xp.asarray(zero, ratio.dtype)
    y = xp.minimum(xp.maximum(y, float(limits.min)), float(limits.max))
    return y.astype(dtype) if xp is np else y


@jax.custom_jvp
def round_straight(x: Any) -> Any:
    """Round to the nearest integer; the derivative counts as 1."""
    return jnp.round(x)


@round_straight.defjvp
def _round_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return jnp.round(primals[0]), tangents[0]


@operator("ai.onnx.ml.Scaler")
def _scaler(call: OperatorCall, x: Any) -> Any:
    offset = np.asarray(call.attribute("offset", [0.0]), np.float32)
    scale = np.asarray(call.attribute("scale", [1.0]), np.float32)
    x, offset, scale = align(x.astype(np.float32) if is_known(x) else x, offset, scale)
    return (x - offset) * scale


@operator("ai.onnx.ml.Normalizer")
def _normalise(call: OperatorCall, x: Any) -> Any:
    kind = call.choose("norm", ("MAX", "L1", "L2"), "MAX")
    if kind == "MAX":
        return x / jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    power = jnp.abs(x) if kind == "L1" else x * x
    total = jnp.sum(power, axis=-1, keepdims=True)
    return x / (total if kind == "L1" else jnp.sqrt(total))


@operator("Hardmax")
def _hardmax(call: OperatorCall, x: Any) -> Any:
    axis = axis_of(call.attribute("axis", -1 if call.version >= 13 else 1), x.ndim)
    if call.version < 13 and axis != x.ndim - 1:
        flat = x.reshape(math.prod(x.shape[:axis]), -1)
        return jax.nn.one_hot(flat.argmax(-1), flat.shape[-1], dtype=x.dtype).reshape(x.shape)
    return jax.nn.one_hot(jnp.argmax(x, axis), x.shape[axis], axis=axis, dtype=x.dtype)
