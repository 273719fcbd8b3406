"""Sources of standard Normal noise: a key, or numbers drawn in advance."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.propagation.random_numbers import draw_normal


class FreshNoise:
    """Noise that is drawn when needed; every draw folds a new number into the key.

    Args:
        key: A JAX random key, or None for a model that should not draw.
        who: Name of the user of the noise, for the error message.
    """

    def __init__(self, key: Array | None, who: str) -> None:
        self._key, self._who = key, who
        self._draws = 0

    def key(self) -> Array:
        """Return a key that is used nowhere else."""
        if self._key is None:
            raise ValueError(
                f'propagate(f, "{self._who}") needs a key: call forward(key, beliefs, …).'
            )
        self._draws += 1
        return jax.random.fold_in(self._key, self._draws)

    def normal(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Draw standard Normal numbers."""
        return draw_normal(self.key(), shape, dtype)


class DrawnNoise:
    """Noise that was drawn in advance, used piece by piece; passed to `forward` instead of a key.

    Drawing the noise of a whole epoch, or of all steps of a loop, at once is several times faster
    than in every step.

    Args:
        numbers: A vector of standard Normal numbers, at least `DrawnNoise.length(...)` of them.
        key: A JAX random key, for consumers that need one: loops of unknown length, and very long
            ones.
    """

    def __init__(self, numbers: Array, key: Array) -> None:
        self._numbers, self._fresh = numbers, FreshNoise(key, "local")
        self._used = 0

    def key(self) -> Array:
        """Return a key that is used nowhere else."""
        return self._fresh.key()

    def normal(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Take the next standard Normal numbers."""
        start, self._used = self._used, self._used + math.prod(shape)
        return self._numbers[start : self._used].reshape(shape).astype(dtype)

    @staticmethod
    def length(forward: Any, beliefs: Any, *args: Any) -> int:
        """Return how many numbers `forward` uses."""
        counter = NoiseCounter()
        jax.eval_shape(lambda b, a: forward(counter, b, *a), beliefs, args)
        return counter.count


class NoiseCounter:
    """Counts the numbers that are drawn when a function is traced with it instead of a key."""

    def __init__(self) -> None:
        self.count = 0
        self.dtype: Any = None  # of all numbers together

    def key(self) -> Array:
        return jax.random.key(0)

    def normal(self, shape: tuple[int, ...], dtype: Any) -> Array:
        self.count += math.prod(shape)
        self.dtype = dtype if self.dtype is None else jnp.promote_types(self.dtype, dtype)
        return jnp.zeros(shape, dtype)


def noise_source(key: Any, who: str) -> Any:
    """Return a source of noise from a key, None, or a source."""
    return key if hasattr(key, "normal") else FreshNoise(key, who)
