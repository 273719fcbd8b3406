"""Bayesian model reduction: the posterior and the free energy under a different prior.

Sign and unit everywhere: `delta_f = f_reduced - f_full`, in nats; negative means that the reduced
model is the better one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from secateur.distributions import Distribution, ExponentialFamily, MultivariateNormal, Normal
from secateur.distributions.special import broadcast, cholesky_of_live, log_det, safe_sqrt


def reduce(posterior: Any, prior: Any, reduced_prior: Any) -> tuple[Any, jax.Array]:
    """Replace the prior of a posterior without using the data again.

    η̃_q = η_q + η_p̃ − η_p        delta_f = A(η_q) + A(η_p̃) − A(η_p) − A(η̃_q) = −ln E_q[p̃/p]

    The same formula serves Normal, MultivariateNormal, Gamma, Beta, Dirichlet and any other
    `ExponentialFamily`. The two Normals evaluate it in means and variances, without cancellation
    or overflow: `Normal(0.0, 1e-16)` is safe in float32, and a reduced variance of exactly 0
    is the limit of pruning (see `savage_dickey`), also for single MultivariateNormal coordinates.

    Args:
        posterior: The belief q under the full prior.
        prior: The full prior p, of the same family; parameters broadcast.
        reduced_prior: The prior p̃ that replaces it, of the same family.

    Returns:
        The reduced posterior, and `delta_f` for each member of the batch. Where η̃_q is not a valid
        parameter the reduction does not exist: `delta_f` is +inf and the posterior is unchanged.

    Example:
        >>> reduced, delta_f = reduce(Normal(0.1, 0.9), Normal(0.0, 1.0), Normal(0.0, 0.0))
        >>> f"{delta_f:.4f}", float(reduced.mean), float(reduced.variance)
        ('-0.0471', 0.0, 0.0)

    Reference:
        Beckers et al., "Principled Pruning of Bayesian Neural Networks", equations (10a), (10b),
        (18), (19); the sign here is the one under which "prune where ≤ 0" holds.
    """
    family = type(posterior)
    if not isinstance(posterior, ExponentialFamily) or not (
        isinstance(prior, family) and isinstance(reduced_prior, family)
    ):
        names = ", ".join(type(d).__name__ for d in (posterior, prior, reduced_prior))
        raise TypeError(
            f"reduce needs posterior, prior and reduced prior of one family; got {names}. "
            "Supported: Normal, MultivariateNormal, Gamma, Beta, Dirichlet, or a subclass of "
            "ExponentialFamily. To remove a parameter under any other prior, use savage_dickey."
        )
    return _reduce(posterior, prior, reduced_prior)


@functools.singledispatch
def _reduce(posterior: Any, prior: Any, reduced_prior: Any) -> tuple[Any, jax.Array]:
    family = type(posterior)
    natural = [d.natural_parameters for d in (posterior, prior, reduced_prior)]
    of_q, of_p, of_reduced = zip(
        *(broadcast(*eta) for eta in zip(*natural, strict=True)), strict=True
    )
    step = tuple(new - old for new, old in zip(of_reduced, of_p, strict=True))
    moved = tuple(eta + change for eta, change in zip(of_q, step, strict=True))
    valid = family.is_valid_natural(moved)
    # Where no reduction exists, evaluate the identity: no nan in values or gradients.
    moved = tuple(_choose(valid, new, old) for new, old in zip(moved, of_q, strict=True))
    difference = family.log_partition_difference
    delta_f = difference(of_reduced, of_p) - difference(moved, of_q)
    return family.from_natural(moved), jnp.where(valid, delta_f, jnp.inf)


def _choose(mask: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)


@_reduce.register
def _(posterior: Normal, prior: Any, reduced_prior: Any) -> tuple[Normal, jax.Array]:
    """The formula multiplied out, with r = σ_q²/σ_p², s = σ̃_p²/σ_p² and κ = r + s − r s.

    delta_f = ½ ln κ + ((μ_q − μ̃)² − s (μ_q − μ_p)² − r (μ_p − μ̃)²) / (2 κ σ_p²)   where κ > 0

    It contains only differences of means, and never inverts a variance that may be 0.
    """
    mean, variance, mean_p, variance_p, mean_r, variance_r = broadcast(
        *(posterior.mean, posterior.variance),
        *(prior.mean, prior.variance),
        *(reduced_prior.mean, reduced_prior.variance),
    )
    largest = jnp.finfo(mean.dtype).max
    r = jnp.minimum(variance / variance_p, largest)
    s = jnp.minimum(variance_r / variance_p, largest)
    # In this order all terms are positive unless both exceed 1, so small ones keep their digits.
    low = jnp.minimum(r, s)
    kappa = jnp.maximum(r, s) * (1 - low) + low
    valid = kappa > 0
    kappa = jnp.where(valid, kappa, 1)

    q_r, q_p, p_r = mean - mean_r, mean - mean_p, mean_p - mean_r
    # Squares relative to the largest distance: the result may overflow, its parts never do.
    unit = jnp.maximum(jnp.maximum(jnp.abs(q_r), jnp.abs(q_p)), jnp.abs(p_r))
    unit = jax.lax.stop_gradient(jnp.where(unit > 0, unit, 1))
    squares = jnp.square(q_r / unit) - s * jnp.square(q_p / unit) - r * jnp.square(p_r / unit)
    scale = jnp.minimum(unit / jnp.sqrt(variance_p), largest)
    safe_squares = jnp.where(valid, squares, 0)
    delta_f = 0.5 * (jnp.log(kappa) + scale * (scale * (safe_squares / kappa)))

    # κ ≥ max (1 − min), so the quotients cannot overflow in this order.
    weights = (s / kappa, low * (jnp.maximum(r, s) / kappa))
    weight, weight_p = (jnp.minimum(x, largest / 4) for x in weights)
    reduced_mean = mean_r + unit * (weight * (q_r / unit) - weight_p * (p_r / unit))
    reduced = Normal(
        jnp.where(valid, reduced_mean, mean), jnp.where(valid, (r / kappa) * variance_r, variance)
    )
    return reduced, jnp.where(valid, delta_f, jnp.inf)


@_reduce.register
def _(
    posterior: MultivariateNormal, prior: Any, reduced_prior: Any
) -> tuple[MultivariateNormal, jax.Array]:
    """With Σ̃_p = B Bᵀ and M = I + Bᵀ (Σ_q⁻¹ − Σ_p⁻¹) B: Σ̃_q = B M⁻¹ Bᵀ, valid where M is positive.

    B may be singular, so that certain coordinates of the reduced prior need no limit.
    """
    mvns = (posterior, prior, reduced_prior)
    vectors = broadcast(*(d.mean for d in mvns), *(jnp.asarray(d.covariance)[..., 0] for d in mvns))
    mean, mean_p, mean_r = vectors[:3]
    square = (*mean.shape, mean.shape[-1])
    covariances = [jnp.broadcast_to(jnp.asarray(d.covariance, mean.dtype), square) for d in mvns]
    (factor, certain), (factor_p, certain_p), (factor_r, certain_r) = map(
        cholesky_of_live, covariances
    )
    identity = jnp.broadcast_to(jnp.eye(square[-1], dtype=mean.dtype), square)
    inverse, inverse_p = (solve_triangular(f, identity, lower=True) for f in (factor, factor_p))
    root = jnp.where(certain_r[..., None], 0, factor_r)
    inverse_root, inverse_root_p = inverse @ root, inverse_p @ root
    inner = identity + inverse_root.mT @ inverse_root - inverse_root_p.mT @ inverse_root_p

    # A coordinate that is already certain stays certain and drops out of all four terms.
    kept = certain_r & (mean == mean_p) & (mean == mean_r)
    exists = jnp.all((certain == certain_p) & (~certain_p | kept), -1)
    definite = jnp.isfinite(jnp.linalg.cholesky(jax.lax.stop_gradient(inner))).all((-2, -1))
    valid = exists & definite
    inner_factor = jnp.linalg.cholesky(jnp.where(valid[..., None, None], inner, identity))
    half = solve_triangular(inner_factor, root.mT, lower=True)

    z_q, z_p = _times(inverse, mean - mean_r), _times(inverse_p, mean_p - mean_r)
    pull = _times(half, _times(inverse.mT, z_q) - _times(inverse_p.mT, z_p))
    squares = (jnp.square(z_q) - jnp.square(z_p) - jnp.square(pull)).sum(-1)
    log_dets = log_det(factor) - log_det(factor_p) + log_det(inner_factor)
    reduced = MultivariateNormal(
        jnp.where(valid[..., None], mean_r + _times(half.mT, pull), mean),
        jnp.where(valid[..., None, None], half.mT @ half, covariances[0]),
    )
    return reduced, jnp.where(valid, 0.5 * (log_dets + squares), jnp.inf)


def _times(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    return jnp.einsum("...ij,...j->...i", matrix, vector)


def savage_dickey(
    posterior: Any, prior: Any, at: ArrayLike = 0.0, *, coordinates: Any = None
) -> jax.Array:
    """Score the removal of a parameter by fixing it at one value, under any prior and posterior.

    delta_f = ln p(at) − ln q(at);   Normals: ½ ln(σ_q²/σ_p²) + μ_q²/(2σ_q²) − μ_p²/(2σ_p²) at 0

    It is the limit of `reduce` for a reduced prior that concentrates at that value.

    Args:
        posterior: Any distribution with `log_prob`.
        prior: Any distribution with `log_prob`; it need not be of the same family.
        at: Value at which the parameter is fixed.
        coordinates: Coordinates to remove from a MultivariateNormal posterior and prior, as
            indices or a mask. The densities are then those of their marginals, and
            `condition_on_zero` gives the belief about the rest. Defaults to all coordinates.

    Returns:
        `delta_f`, elementwise; +inf (never nan) where both densities are 0 or both are infinite.

    Example:
        >>> from secateur.distributions import Laplace
        >>> delta_f = savage_dickey(Normal(jnp.array([0.0, 2.0]), 0.25), Laplace(0.0, 1.0))
        >>> [round(x, 3) for x in delta_f.tolist()]
        [-0.467, 7.533]

    Reference:
        Dickey, "The weighted likelihood ratio, linear hypotheses on normal location parameters"
        (1971); the limit ε → 0 of equation (10b) in Beckers et al.
    """
    log_q, log_p = broadcast(
        _log_prob_at(posterior, at, coordinates), _log_prob_at(prior, at, coordinates)
    )
    exists = jnp.isfinite(log_p) | jnp.isfinite(log_q) | (log_p == -log_q)
    return jnp.where(exists, log_p - jnp.where(exists, log_q, 0), jnp.inf)


def _log_prob_at(distribution: Any, at: ArrayLike, coordinates: Any) -> jax.Array:
    if not isinstance(distribution, MultivariateNormal):
        if coordinates is not None:
            raise TypeError(
                f"coordinates= needs MultivariateNormals; got {type(distribution).__name__}. "
                "Elementwise distributions are already scored element by element."
            )
        return distribution.log_prob(at)
    mean, covariance = jnp.asarray(distribution.mean), jnp.asarray(distribution.covariance)
    size = covariance.shape[-1]
    mask = jnp.ones(size, bool) if coordinates is None else _mask_of(coordinates, size)
    # The other coordinates become independent, with unit variance and at their mean, which
    # contributes the same factor to p and q.
    marginal = MultivariateNormal(mean, _select(mask, covariance, jnp.eye(size)))
    mask, value, mean = jnp.broadcast_arrays(mask, jnp.asarray(at, mean.dtype), mean)
    return marginal.log_prob(jnp.where(mask, value, mean))


def _mask_of(coordinates: Any, size: int) -> jax.Array:
    chosen = jnp.asarray(coordinates)
    if chosen.dtype == bool:
        return chosen
    return jnp.zeros(size, bool).at[chosen.astype(int)].set(True)


def _select(mask: jax.Array, inside: jax.Array, outside: ArrayLike) -> jax.Array:
    """Return `inside` where row and column are both in the mask, `outside` elsewhere."""
    both = mask[..., :, None] & mask[..., None, :]
    both, inside, outside = jnp.broadcast_arrays(both, inside, jnp.asarray(outside, inside.dtype))
    return jnp.where(both, inside, outside)


def condition_on_zero(distribution: MultivariateNormal, coordinates: Any) -> MultivariateNormal:
    """Fix some coordinates of a MultivariateNormal at exactly 0 and update the belief in the rest.

    μ_R − Σ_RS Σ_SS⁻¹ μ_S,   Σ_RR − Σ_RS Σ_SS⁻¹ Σ_SR        S removed, R the rest

    Applied to a prior it gives the reduced prior, to a posterior the reduced posterior:
    `reduce(q, p, condition_on_zero(p, S))` is `condition_on_zero(q, S)` with a `delta_f` equal to
    `savage_dickey(q, p, coordinates=S)`.

    Args:
        distribution: The belief.
        coordinates: Indices of the coordinates to remove, or a boolean mask. The mask may be
            traced, so all 2^k sub-models are one `vmap`.

    Returns:
        A distribution of the same dimension, with mean, rows and columns of 0 at the removed
        coordinates.

    Example:
        >>> full = MultivariateNormal(jnp.array([1.0, 2.0]), jnp.array([[2.0, 1.0], [1.0, 1.0]]))
        >>> rest = condition_on_zero(full, [1])
        >>> rest.mean.tolist(), rest.variance.tolist()
        ([-1.0, 0.0], [1.0, 0.0])
    """
    covariance = jnp.asarray(distribution.covariance)
    size = covariance.shape[-1]
    removed = _mask_of(coordinates, size)
    mean = jnp.asarray(distribution.mean)
    mean, rows, removed = jnp.broadcast_arrays(mean, covariance[..., 0], removed)
    covariance = jnp.broadcast_to(covariance, (*rows.shape, size))
    factor, _ = cholesky_of_live(_select(removed, covariance, jnp.eye(size)))
    fixed = jnp.concatenate([covariance, mean[..., None]], -1)
    whitened = solve_triangular(factor, jnp.where(removed[..., None], fixed, 0), lower=True)
    cross, offset = whitened[..., :-1], whitened[..., -1]
    return MultivariateNormal(
        jnp.where(removed, 0, mean - _times(cross.mT, offset)),
        _select(~removed, covariance - cross.mT @ cross, 0.0),
    )


def _bmr(posterior: Any, prior: Any, reduced_variance: Any) -> jax.Array:
    if reduced_variance is None:
        return savage_dickey(posterior, prior)
    return reduce(posterior, prior, Normal(0.0, reduced_variance))[1]


_SCORES: dict[str, Callable[[Any, Any, Any], jax.Array]] = {
    "bmr": _bmr,
    "snr": lambda q, *_: jnp.abs(q.mean) / safe_sqrt(q.variance),
    "spr": lambda q, *_: jnp.abs(q.mean) + safe_sqrt(q.variance),
    "magnitude": lambda q, *_: jnp.abs(q.mean),
}

CRITERIA = tuple(_SCORES)


def prune_scores(
    posterior: Any, prior: Any, criterion: str = "bmr", *, reduced_variance: Any = None
) -> Any:
    """Score every weight for removal; the lowest scores are removed first.

    "bmr": delta_f of removing the weight, ln p(0) − ln q(0); remove where ≤ 0
    "snr": |μ|/σ     "spr": |μ| + σ     "magnitude": |μ|     (rankings without a stopping rule)

    Args:
        posterior: One distribution, or a pytree of beliefs with distributions at uncertain leaves
            and anything else at certain ones.
        prior: One distribution for all leaves, or a pytree like `posterior` with one for each leaf.
        criterion: "bmr", "snr", "spr" or "magnitude".
        reduced_variance: For "bmr", the variance ε of the reduced prior N(0, ε), as in the paper
            (1e-16). None is the limit ε → 0.

    Returns:
        Scores with the shape of the posterior's mean (or a pytree of them, None at certain leaves).
        Elements with a variance of exactly 0 are no longer parameters and score +inf under every
        criterion; all others are finite, clipped where the number format would overflow.

    Example:
        >>> beliefs = {"w": Normal(jnp.array([0.1, 3.0, 0.0]), jnp.array([0.5, 0.5, 0.0])), "n": 7}
        >>> scores = prune_scores(beliefs, Normal(0.0, 1.0))
        >>> scores["n"], [round(x, 3) for x in scores["w"].tolist()]
        (None, [-0.337, 8.653, inf])

    Reference:
        Beckers et al., equations (10b), (11), (12) and Algorithm 1.
    """
    if criterion not in _SCORES:
        raise ValueError(f"criterion {criterion!r} is unknown. Supported: {', '.join(_SCORES)}.")
    if reduced_variance is not None and criterion != "bmr":
        raise ValueError(f"reduced_variance applies to criterion 'bmr' only; got {criterion!r}.")

    def score(path: Any, belief: Any, belief_prior: Any) -> jax.Array | None:
        if not isinstance(belief, Distribution):
            return None
        if criterion == "bmr" and not hasattr(belief_prior, "log_prob"):
            raise TypeError(
                f"the belief at {jax.tree_util.keystr(path) or 'the root'} has no prior: got "
                f"{type(belief_prior).__name__}. Give a distribution there, or one for all leaves."
            )
        belief, belief_prior = _elementwise(belief), _elementwise(belief_prior)
        mean, variance = broadcast(belief.mean, belief.variance)
        live = variance > 0
        if isinstance(belief, Normal):  # also keeps removed weights out of the gradient
            belief = Normal(mean, jnp.where(live, variance, 1))
        scores = _SCORES[criterion](belief, belief_prior, reduced_variance)
        largest = jnp.finfo(scores.dtype).max
        return jnp.where(live, jnp.clip(scores, -largest, largest), jnp.inf)

    def is_belief(node: Any) -> bool:
        return isinstance(node, Distribution)

    if prior is None or hasattr(prior, "log_prob"):
        prior = jax.tree.map(lambda _, shared=prior: shared, posterior, is_leaf=is_belief)
    return jax.tree_util.tree_map_with_path(score, posterior, prior, is_leaf=is_belief)


def _elementwise(distribution: Any) -> Any:
    """Replace a MultivariateNormal by its marginals, which decide single removals."""
    if isinstance(distribution, MultivariateNormal):
        return Normal(distribution.mean, distribution.variance)
    return distribution


def group_scores(scores: Any, groups: Any, *, num_groups: int) -> jax.Array:
    """Sum the `delta_f` of weights over groups removed as a whole: units, channels, filters.

    delta_f of a group = Σ delta_f of its weights; remove the group where ≤ 0

    Args:
        scores: Array or pytree from `prune_scores` (None leaves are skipped).
        groups: For each leaf, the integer group of each element, in a shape that broadcasts to the
            leaf's: `jnp.arange(n)[:, None]` for one group per row. −1 or a None leaf
            means that the element belongs to no group.
        num_groups: Number of groups.

    Returns:
        A vector of `num_groups` sums. Removed elements (score +inf) add nothing. A group with no
        elements left scores +inf, so that it is not removed again.

    Example:
        >>> scores = {"w": jnp.array([[1.0, -3.0], [2.0, jnp.inf]]), "b": jnp.array([0.5, -1.0])}
        >>> groups = {"w": jnp.arange(2)[:, None], "b": jnp.arange(2)}
        >>> group_scores(scores, groups, num_groups=2).tolist()
        [-1.5, 1.0]
    """
    ids_of: list[jax.Array] = [jnp.zeros(0, int)]
    scores_of: list[jax.Array] = [jnp.zeros(0, jnp.result_type(*jax.tree.leaves(scores), float))]

    def collect(path: Any, leaf: Any, ids: Any) -> None:
        if leaf is None or ids is None:
            return
        if not isinstance(ids, jax.core.Tracer) and np.any(np.asarray(ids) >= num_groups):
            raise ValueError(
                f"groups{jax.tree_util.keystr(path)} contains group {int(np.max(ids))}; with "
                f"num_groups={num_groups} the groups are 0 to {num_groups - 1}, and -1 for none."
            )
        ids_of.append(jnp.broadcast_to(jnp.asarray(ids), jnp.shape(leaf)).ravel())
        scores_of.append(jnp.ravel(leaf))

    jax.tree_util.tree_map_with_path(collect, scores, groups, is_leaf=lambda leaf: leaf is None)
    ids, flat = jnp.concatenate(ids_of), jnp.concatenate(scores_of)
    live = (ids >= 0) & (flat < jnp.inf)
    ids = jnp.where(live, ids, num_groups)  # an index past the end is dropped
    sums = jnp.zeros(num_groups, flat.dtype).at[ids].add(jnp.where(live, flat, 0), mode="drop")
    members = jnp.zeros(num_groups, int).at[ids].add(1, mode="drop")
    return jnp.where(members > 0, sums, jnp.inf)
