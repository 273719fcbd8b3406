"""Standard Normal numbers: those of `jax.random.normal`, bit by bit, in one pass over memory.

On a CPU, JAX's generator makes a pass over memory for each of five groups of rounds, which
dominates for millions of numbers. Written out, XLA fuses generator and inverse error function into
one loop.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from secateur.equations.execution import prefers_fast_forms

# Of Threefry-2x32: rotations of even and odd groups of rounds, and the parity of its key schedule.
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)
# From this size, the numbers exceed a cache, and a single pass is faster.
_MANY = 2**17
# Number of values drawn at a time.
_PIECE = 2**14


def draw_normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return `jax.random.normal(key, shape, dtype)`."""
    size = math.prod(shape)
    is_usual = (
        jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
        and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        and str(jax.random.key_impl(key)) == "threefry2x32"
    )
    if not is_usual or dtype != jnp.float32 or not _MANY <= size < 2**32:
        return jax.random.normal(key, shape, dtype)
    return _draw(shape, key) if prefers_fast_forms() else jax.random.normal(key, shape, dtype)


@partial(jax.jit, static_argnums=0)
def _draw(shape: tuple[int, ...], key: Array) -> Array:
    size = math.prod(shape)
    first, second = jax.random.key_data(key)

    def draw_piece(start: Array) -> Array:
        return _count_to_normal(first, second, start + lax.iota(jnp.uint32, _PIECE))

    # A loop, because XLA would otherwise draw the same numbers again wherever they are used.
    pieces = lax.map(draw_piece, jnp.arange(0, size, _PIECE, dtype=jnp.uint32))
    return pieces.reshape(-1)[:size].reshape(shape)


def _count_to_normal(first: Array, second: Array, counts: Array) -> Array:
    one, other = _threefry(first, second, jnp.zeros_like(counts), counts)
    fraction = ((one ^ other) >> np.uint32(9)) | np.uint32(0x3F800000)  # a float from 1 to 2
    low = np.nextafter(np.float32(-1), np.float32(0), dtype=np.float32)
    uniform = lax.bitcast_convert_type(fraction, jnp.float32) - np.float32(1)
    uniform = jnp.maximum(low, uniform * (np.float32(1) - low) + low)
    return np.float32(np.sqrt(2)) * lax.erf_inv(uniform)


def _threefry(key_0: Array, key_1: Array, x: Array, y: Array) -> tuple[Array, Array]:
    keys = key_0, key_1, key_0 ^ key_1 ^ _PARITY
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x, y = x + keys[(group + 1) % 3], y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y
