"""Natural-gradient steps for covariances whose precision is a diagonal and a few directions.

A step goes a share ρ of the way from the precision Λ to its stationary point T = 2 ∂F/∂Σ, of which
no more is known than what it does to a few directions (the probes) and its diagonal. In units of
D^½, with an orthonormal basis Q of the old directions and some random ones,

    M = (1 − ρ)(Λ − D) + ρ(T − D_prior)        M + I ≈ Y (Qᵀ Y)⁻¹ Yᵀ,  Y = M Q + Q        (Nyström)

The largest eigenvalues of M become the new directions, as in SLANG (Mishkin et al. 2018); the rest
of its diagonal joins D, so that the diagonal of Λ is exactly what the step asks for.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.distributions.jacobi import decompose_symmetric
from secateur.distributions.low_rank import LowRank, from_precision

# Random directions beside those that are known, in which a step looks for new ones.
_PROBES = 4
# Size of the probes, in deviations of a weight. They lower variances by its square.
_PROBE_SIZE = 1e-3
# Eigenvalue of M + I below which a probe says nothing: it is 0, for example.
_SMALLEST = 0.1
# Share of the largest square below which a column depends on the others.
_DEPENDENT = 1e-4
# Smallest factor of the diagonal in one step.
_LARGEST_FALL = 0.3


def add_probes(shape: LowRank, key: Array) -> LowRank:
    """Return the covariances with more columns, by which the gradient tells what T does to them."""
    directions = shape.directions
    units, size, _ = directions.shape
    random = jax.random.normal(key, (units, size, _PROBES), directions.dtype)
    random = jnp.where((shape.own > 0)[:, :, None], random, 0)
    basis = _orthonormalise(jnp.concatenate([directions, random], axis=2))
    probes = _PROBE_SIZE * jnp.sqrt(shape.own)[:, :, None] * basis
    return LowRank(shape.own, jnp.concatenate([shape.factor, probes], axis=2))


def move_low_rank(
    shape: LowRank,
    root: Array,
    probed: LowRank,
    slope: LowRank,
    share: Any,
    prior_precision: Array,
) -> LowRank:
    """Return the covariances after a natural-gradient step.

    Args:
        shape: Covariances before.
        root: Their T.
        probed: The same with probes.
        slope: Derivatives, by the probed ones, of the free energy without the entropy of q.
        share: Share of the way to the stationary point.
        prior_precision: Diagonal of the prior's precision, as much as it counts now.
    """
    live = shape.own > 0
    rank = shape.factor.shape[2]
    deviation = jnp.sqrt(shape.own)
    column = deviation[:, :, None]
    basis = probed.factor[:, :, rank:] / jnp.where(live, _PROBE_SIZE * deviation, 1)[:, :, None]
    # T and Λ, and their diagonals, in units of D^½; ∂F/∂P = −T P for probes P.
    target = -column * slope.factor[:, :, rank:] / _PROBE_SIZE
    target_diagonal = 2 * slope.own * shape.own
    columns = column * shape.columns()
    present = basis + columns @ (_swap(columns) @ basis)
    present_diagonal = jnp.where(live, 1 + jnp.sum(jnp.square(columns), axis=2), 0)
    prior = prior_precision * shape.own

    excess = target - present
    rho = _find_share(shape, root, basis, excess, target_diagonal, present_diagonal, share)
    mixed = rho[:, None, None]
    moved = (1 - mixed) * (present - basis) + mixed * (target - prior[:, :, None] * basis)
    values, vectors = _find_directions(moved + basis, basis, rank)
    scaled = vectors * jnp.sqrt(jnp.maximum(values - 1, 0))[:, None, :]
    step = rho[:, None]
    diagonal = (1 - step) * present_diagonal + step * target_diagonal
    rest = diagonal - jnp.sum(jnp.square(scaled), axis=2)
    rest = jnp.where(rest > 1, rest, jnp.exp(rest - 1))  # positive, and the same to first order
    rest = jnp.maximum(rest, _LARGEST_FALL)
    precision = rest / jnp.where(live, shape.own, 1)
    back = scaled / jnp.where(live, deviation, 1)[:, :, None]
    return from_precision(precision, jnp.where(live[:, :, None], back, 0), live)


def _find_share(
    shape: LowRank,
    root: Array,
    basis: Array,
    excess: Array,
    target: Array,
    present: Array,
    share: Any,
) -> Array:
    """ρ by unit: smaller where the step is large in terms of Λ itself."""
    directions = shape.directions
    inside = _swap(basis) @ directions
    half = _swap(basis) @ basis - inside @ root @ _swap(inside)
    block = half @ (_swap(basis) @ excess) @ half
    ratios = jnp.where(present > 0, target / jnp.where(present > 0, present, 1) - 1, 0)
    square = jnp.sum(jnp.square(block), axis=(1, 2)) + jnp.sum(jnp.square(ratios), axis=1)
    return share / (1 + share * jnp.sqrt(square))


def _find_directions(product: Array, basis: Array, rank: int) -> tuple[Array, Array]:
    """Largest eigenvalues, and their vectors, of a matrix known by its product with a basis."""
    core = _swap(basis) @ product
    values, vectors = decompose_symmetric(0.5 * (core + _swap(core)))
    used = values > _SMALLEST
    scale = jnp.where(used, 1 / jnp.sqrt(jnp.where(used, values, 1)), 0)
    half = product @ (vectors * scale[:, None, :])
    squares, turn = decompose_symmetric(_swap(half) @ half)
    squares, turn = squares[:, -rank:], turn[:, :, -rank:]
    length = jnp.sqrt(jnp.maximum(squares, _SMALLEST))
    return squares, half @ (turn / length[:, None, :])


def _orthonormalise(columns: Array) -> Array:
    """Return an orthonormal basis of some columns; zeros for those that depend on others.

    (A QR decomposition takes hundreds of times as long.)
    """
    length = jnp.sqrt(jnp.sum(jnp.square(columns), axis=1, keepdims=True))
    scaled = columns / jnp.where(length > 0, length, 1)
    squares, turn = decompose_symmetric(_swap(scaled) @ scaled)
    used = squares > _DEPENDENT * squares[:, -1:]
    scale = jnp.where(used, 1 / jnp.sqrt(jnp.where(used, squares, 1)), 0)
    return scaled @ (turn * scale[:, None, :])


def _swap(array: Array) -> Array:
    return jnp.swapaxes(array, 1, 2)
