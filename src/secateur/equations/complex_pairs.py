"""Complex numbers as pairs of real ones: what each primitive is, written with real primitives.

A Fourier transform is a product with a matrix, so that it is as exact under uncertainty as any
other linear map; it takes n² operations for n elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from secateur.equations import compat, primitives


class ComplexPair(NamedTuple):
    """Real and imaginary part; a pytree."""

    real: Array
    imag: Array


def split(value: Array) -> ComplexPair:
    """Return a complex array as a pair."""
    return ComplexPair(jnp.real(value), jnp.imag(value))


def join(pair: ComplexPair) -> Array:
    """Return a pair as a complex array."""
    return lax.complex(pair.real, pair.imag)


Rule = Callable[..., Any]
PAIR_RULES: dict[str, Rule] = {}


def _declare(*names: str) -> Callable[[Rule], Rule]:
    def decorate(rule: Rule) -> Rule:
        PAIR_RULES.update(dict.fromkeys(names, rule))
        return rule

    return decorate


@_declare(
    "add", "sub", "neg", "add_any", "stop_gradient",
    *primitives.FIXED_MOVES, *primitives.JOINS, *primitives.ADDITIONS, *primitives.COPIES,
)  # fmt: skip
def _part_by_part(eqn: Any, *operands: ComplexPair) -> Any:
    """Linear in all operands together."""
    real = compat.bind(eqn, *(o.real for o in operands))
    imag = compat.bind(eqn, *(o.imag for o in operands))
    return [ComplexPair(r, i) for r, i in zip(real, imag, strict=True)]


@_declare(*primitives.LOOKUPS, "dynamic_update_slice", "select_n")
def _with_places(eqn: Any, *operands: Any) -> list[ComplexPair]:
    """Like `_part_by_part`; operands that are not complex are positions."""
    parts = [
        compat.bind(eqn, *(getattr(o, part) if isinstance(o, ComplexPair) else o for o in operands))
        for part in ("real", "imag")
    ]
    return [ComplexPair(r, i) for r, i in zip(*parts, strict=True)]


@_declare("convert_element_type")
def _convert(eqn: Any, x: Any) -> Any:
    dtype = np.dtype(eqn.params["new_dtype"])
    if dtype.kind != "c":
        return lax.convert_element_type(x.real, dtype)
    part = np.zeros(0, dtype).real.dtype
    pair = x if isinstance(x, ComplexPair) else ComplexPair(x, jnp.zeros(jnp.shape(x), part))
    return ComplexPair(*(lax.convert_element_type(p, part) for p in pair))


@_declare("complex")
def _complex(eqn: Any, real: Array, imag: Array) -> ComplexPair:
    return ComplexPair(real, imag)


@_declare("real")
def _real(eqn: Any, x: ComplexPair) -> Array:
    return x.real


@_declare("imag")
def _imag(eqn: Any, x: ComplexPair) -> Array:
    return x.imag


@_declare("conj")
def _conj(eqn: Any, x: Any) -> ComplexPair:
    return (
        ComplexPair(x.real, -x.imag)
        if isinstance(x, ComplexPair)
        else ComplexPair(x, jnp.zeros_like(x))
    )


def _times(x: ComplexPair, y: ComplexPair) -> ComplexPair:
    return ComplexPair(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


@_declare("mul")
def _mul(eqn: Any, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    return _times(x, y)


@_declare("div")
def _div(eqn: Any, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    size = y.real * y.real + y.imag * y.imag
    top = _times(x, ComplexPair(y.real, -y.imag))
    return ComplexPair(top.real / size, top.imag / size)


@_declare("square")
def _square(eqn: Any, x: ComplexPair) -> ComplexPair:
    return ComplexPair(x.real * x.real - x.imag * x.imag, 2 * x.real * x.imag)


@_declare("integer_pow")
def _power(eqn: Any, x: ComplexPair) -> ComplexPair:
    power = eqn.params["y"]
    result = x if power else ComplexPair(jnp.ones_like(x.real), jnp.zeros_like(x.real))
    for _ in range(abs(power) - 1):
        result = _times(result, x)
    one = ComplexPair(jnp.ones_like(x.real), jnp.zeros_like(x.real))
    return _div(eqn, one, result) if power < 0 else result


@_declare("abs")
def _abs(eqn: Any, x: ComplexPair) -> Array:
    return jnp.sqrt(x.real * x.real + x.imag * x.imag)


@_declare("exp")
def _exp(eqn: Any, x: ComplexPair) -> ComplexPair:
    size = jnp.exp(x.real)
    return ComplexPair(size * jnp.cos(x.imag), size * jnp.sin(x.imag))


@_declare("dot_general")
def _dot(eqn: Any, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    real = {**eqn.params, "preferred_element_type": None}

    def product(a: Array, b: Array) -> Array:
        return compat.bind(eqn.replace(params=real), a, b)[0]

    return ComplexPair(
        product(x.real, y.real) - product(x.imag, y.imag),
        product(x.real, y.imag) + product(x.imag, y.real),
    )


@_declare("eq", "ne")
def _compare(eqn: Any, x: ComplexPair, y: ComplexPair) -> Array:
    same = (x.real == y.real) & (x.imag == y.imag)
    return same if eqn.primitive.name == "eq" else ~same


@_declare("is_finite")
def _is_finite(eqn: Any, x: ComplexPair) -> Array:
    return jnp.isfinite(x.real) & jnp.isfinite(x.imag)


# --- Fourier transforms ---------------------------------------------------------------------------


def _turns(rows: int, columns: int, n: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of 2π·row·column/n."""
    angle = 2.0 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % n) / n
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def _along_last(x: Array, matrix: np.ndarray) -> Array:
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    return lax.dot_general(x, jnp.asarray(matrix), numbers, precision=lax.Precision.HIGHEST)


def _transform(x: ComplexPair, axis: int, sign: float) -> ComplexPair:
    """Σ_t x_t e^{sign·2πi k t/n} along an axis."""
    n = x.real.shape[axis]
    cos, sin = _turns(n, n, n, x.real.dtype)
    real, imag = (jnp.moveaxis(part, axis, -1) for part in x)
    result = (
        _along_last(real, cos) - sign * _along_last(imag, sin),
        sign * _along_last(real, sin) + _along_last(imag, cos),
    )
    scale = 1.0 if sign < 0 else 1.0 / n
    return ComplexPair(*(scale * jnp.moveaxis(part, -1, axis) for part in result))


@_declare("fft")
def _fft(eqn: Any, x: Any) -> Any:
    kind, lengths = int(eqn.params["fft_type"]), eqn.params["fft_lengths"]
    axes = list(range(-len(lengths), 0))
    if kind == 2:  # real to complex
        cos, sin = _turns(lengths[-1], lengths[-1] // 2 + 1, lengths[-1], x.dtype)
        x = ComplexPair(_along_last(x, cos), -_along_last(x, sin))
        axes = axes[:-1]
    if kind in (0, 2):
        for axis in axes:
            x = _transform(x, axis, -1.0)
        return x
    for axis in axes if kind == 1 else axes[:-1]:
        x = _transform(x, axis, 1.0)
    if kind == 1:
        return x
    n = lengths[-1]
    count = n // 2 + 1
    cos, sin = _turns(count, n, n, x.real.dtype)
    times = np.full((count, 1), 2.0 / n, cos.dtype)  # each frequency and its conjugate
    times[0] = 1.0 / n
    if n % 2 == 0:
        times[-1] = 1.0 / n
    return _along_last(x.real, times * cos) - _along_last(x.imag, times * sin)
