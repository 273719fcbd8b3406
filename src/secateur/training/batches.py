"""Data of a training step: random batches, pieces of equal length, and random numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.propagation.noise import DrawnNoise
from secateur.propagation.random_numbers import draw_normal

# Maximum number of rows in a piece.
_PIECE_ROWS = 2048
# Number of rounds of a shuffle: enough to leave no trace of the previous order in neighbours,
# positions and parities.
_ROUNDS = 24
# Largest number of random numbers that an epoch draws at once; beyond, each step draws its own.
_DRAWN_AT_ONCE = 4_000_000


def steps_per_pass(rows: int, batch_size: int) -> int:
    """Return the number of batches that use every row once."""
    return -(-rows // batch_size)


def deal(order: Array, batch_size: int) -> tuple[Array, np.ndarray]:
    """Deal rows to batches like cards, so that batch sizes differ by at most one.

    Returns:
        Indices of shape (batches, batch_size), and which of them count (constant): every row does,
        once. The others are padding.

    Example:
        >>> indices, counts = deal(jnp.arange(7), 3)
        >>> jnp.where(counts, indices, -1).tolist()
        [[0, 3, 6], [1, 4, -1], [2, 5, -1]]
    """
    rows = order.shape[0]
    batches = steps_per_pass(rows, batch_size)
    places = np.arange(batches * batch_size).reshape(batch_size, batches).T
    counts = places < rows
    return order[np.where(counts, places, 0)], counts


def cut_rows(data: Any) -> tuple[Any, np.ndarray]:
    """Cut the rows of arrays into pieces of equal length, to be processed one after the other.

    Returns:
        The arrays with a new first axis, and which of the rows count; the others are padding.
    """
    rows = jax.tree.leaves(data)[0].shape[0]
    pieces = steps_per_pass(rows, _PIECE_ROWS)
    length = -(-rows // pieces)

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, [(0, pieces * length - rows)] + [(0, 0)] * (x.ndim - 1), mode="edge")
        return padded.reshape(pieces, length, *x.shape[1:])

    counts = np.arange(pieces * length).reshape(pieces, length) < rows
    return jax.tree.map(cut, data), counts


def shuffle(key: Array, rows: int) -> Array:
    """Return the numbers 0 … rows − 1 in random order, at negligible cost.

    Sorting random numbers, as `jax.random.permutation` does, takes longer on a CPU than the
    training steps of the epoch.

    The swap-or-not shuffle: in each round, x is paired with (k − x) mod rows for a random k, and a
    random bit of the pair decides whether the two are swapped. Every round is elementwise and a
    permutation, so all of them together are, for any number of rows.

    Args:
        key: A JAX random key.
        rows: Number of rows.

    Reference: Hoang, Morris and Rogaway, "An enciphering scheme based on a card shuffle" (2012).

    Example:
        >>> sorted(shuffle(jax.random.key(0), 5).tolist())
        [0, 1, 2, 3, 4]
    """
    secrets = jax.random.bits(key, (_ROUNDS, 2), jnp.uint32)

    def swap_or_not(number: Array, x: Array) -> Array:
        shift, salt = secrets[number, 0] % jnp.uint32(rows), secrets[number, 1]
        partner = shift - x + jnp.where(shift < x, jnp.uint32(rows), jnp.uint32(0))
        swap = _bit(jnp.maximum(x, partner), salt)
        return jnp.where(swap, partner, x)

    start = jnp.arange(rows, dtype=jnp.uint32)
    return jax.lax.fori_loop(0, _ROUNDS, swap_or_not, start).astype(jnp.int32)


def _bit(x: Array, salt: Array) -> Array:
    """A random bit for every x: the finaliser of MurmurHash3, salted."""
    x = x ^ salt
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return ((x ^ (x >> 16)) & 1).astype(bool)


def draw_noise(
    key: Array, batches: int, draw_count: int | None, dtype: Any
) -> tuple[Array, Array | None] | None:
    """Return a key for each step of an epoch and, if they are few, its random numbers."""
    if draw_count is None:
        return None
    keys = jax.random.split(key, batches)
    if batches * draw_count > _DRAWN_AT_ONCE:
        return keys, None
    shape = (batches, draw_count)
    return keys, draw_normal(jax.random.fold_in(key, batches), shape, dtype)


def take_noise(
    drawn: tuple[Array, Array | None] | None, draw_count: int | None, dtype: Any
) -> DrawnNoise | None:
    """Return the noise of one step."""
    if drawn is None or draw_count is None:
        return None
    key, numbers = drawn
    if numbers is None:
        numbers = draw_normal(key, (draw_count,), dtype)
    return DrawnNoise(numbers, jax.random.fold_in(key, 1))
