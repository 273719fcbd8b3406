"""Eigenvalues of many small symmetric matrices, without a call of LAPACK.

XLA's decompositions on the CPU can wait for one another forever when several of them run side by
side in a loop (jaxlib 0.10.2, two threads); here are nothing but elementwise operations.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = ["decompose_symmetric"]

# Sweeps over all pairs; convergence is quadratic, and float32 needs five or six.
_SWEEPS = 7


def decompose_symmetric(matrix: Array) -> tuple[Array, Array]:
    """Return eigenvalues in ascending order, and eigenvectors as columns, of symmetric matrices.

    Jacobi's method: all disjoint pairs of rows are rotated at once, then partners change as in a
    tournament.

    Args:
        matrix: Shape (…, size, size).

    Example:
        >>> values, vectors = decompose_symmetric(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> values.round(4).tolist()
        [1.0, 3.0]
    """
    size = matrix.shape[-1]
    even = size + size % 2
    if even != size:
        matrix = jnp.pad(matrix, [(0, 0)] * (matrix.ndim - 2) + [(0, 1), (0, 1)])
    half = even // 2
    order = _next_partners(even)
    eye = jnp.broadcast_to(jnp.eye(even, dtype=matrix.dtype), matrix.shape)

    def turn(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        matrix, vectors = carry
        diagonal = jnp.diagonal(matrix, axis1=-2, axis2=-1)
        across = jnp.diagonal(matrix[..., :half, half:], axis1=-2, axis2=-1)
        cosine, sine = _find_rotation(diagonal[..., :half], diagonal[..., half:], across)
        matrix = _rotate(_rotate(matrix, cosine, sine).swapaxes(-1, -2), cosine, sine)
        vectors = _rotate(vectors, cosine, sine)
        return matrix[..., order, :][..., order], vectors[..., order, :]

    matrix, vectors = jax.lax.fori_loop(0, _SWEEPS * (even - 1), turn, (matrix, eye))
    values = jnp.diagonal(matrix, axis1=-2, axis2=-1)
    if even != size:  # the added row is an eigenvector of its own, and goes to the end
        values = jnp.where(jnp.abs(vectors[..., -1]) > 0.5, jnp.inf, values)
    ranks = jnp.argsort(values, axis=-1)[..., :size]
    rows = jnp.take_along_axis(vectors, ranks[..., None], axis=-2)[..., :size]
    return jnp.take_along_axis(values, ranks, axis=-1), rows.swapaxes(-1, -2)


def _find_rotation(first: Array, second: Array, across: Array) -> tuple[Array, Array]:
    """Cosine and sine of the smaller angle that makes the elements across vanish."""
    needed = across != 0
    ratio = (second - first) / (2 * jnp.where(needed, across, 1))
    sign = jnp.where(ratio < 0, -1, 1)
    # (|r| + √(1 + r²) without overflow.)
    size = jnp.minimum(jnp.abs(ratio), 1e15)
    tangent = jnp.where(needed, sign / (size + jnp.sqrt(1 + size * size)), 0)
    cosine = 1 / jnp.sqrt(1 + tangent * tangent)
    return cosine, tangent * cosine


def _rotate(rows: Array, cosine: Array, sine: Array) -> Array:
    """Rotate the rows of the first half with those of the second."""
    half = rows.shape[-2] // 2
    first, second = rows[..., :half, :], rows[..., half:, :]
    c, s = cosine[..., None], sine[..., None]
    return jnp.concatenate([c * first - s * second, s * first + c * second], axis=-2)


def _next_partners(size: int) -> np.ndarray:
    """Return where each row comes from for the next round: row 0 stays, the others move on."""
    half = size // 2
    if half == 1:
        return np.arange(size)
    first = [0, half, *range(1, half - 1)]
    second = [*range(half + 1, size), half - 1]
    return np.array(first + second)
