"""Random permutations that cost next to nothing.

Sorting random numbers, as `jax.random.permutation` does, takes longer on a CPU than the steps of
training that it is for.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

# Enough that neighbours, positions and parities show no trace of the order before.
_ROUNDS = 24


def shuffle(key: Array, rows: int) -> Array:
    """Return the numbers 0 … rows − 1 in random order.

    The swap-or-not shuffle: in each round, x is paired with (k − x) mod rows for a random k, and a
    random bit of the pair decides whether the two change places. Every round is elementwise and a
    permutation, so all of them together are, for any number of rows.

    Args:
        key: a JAX random key.
        rows: how many.

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
