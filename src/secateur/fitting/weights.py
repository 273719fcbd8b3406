"""All uncertain weights as two flat vectors, so that an optimiser's step is a handful of kernels.

Unlike `secateur.beliefs.ravel`, pruned weights keep their places and a mask says which are alive:
masks are data, so one compiled program serves every round of pruning.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs import complexity
from secateur.beliefs.trees import PyTree, aligned, flatten, is_belief
from secateur.distributions import Normal


class Weights(NamedTuple):
    """What an optimiser moves: means, and logarithms of standard deviations."""

    means: Array
    log_deviations: Array

    @classmethod
    def of(cls, q: Normal) -> Weights:
        """Return the coordinates of a flat belief; a pruned weight's are 0."""
        alive = q.variance > 0
        return cls(q.mean, 0.5 * jnp.log(jnp.where(alive, q.variance, 1)))

    def belief(self, alive: Array) -> Normal:
        """Return the flat belief; weights that are not alive are exactly 0, and certain."""
        return Normal(
            jnp.where(alive, self.means, 0), jnp.where(alive, jnp.exp(2 * self.log_deviations), 0)
        )


class Place(NamedTuple):
    """An uncertain leaf's place in the vectors."""

    start: int
    shape: tuple[int, ...]
    dtype: Any

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


class _CertainArray:
    """Marks the place of an array that is certain."""


_CERTAIN = _CertainArray()


class Layout(NamedTuple):
    """Where each leaf of the beliefs is; hashable, so that compiled programs can be found again."""

    treedef: Any
    leaves: tuple[Any, ...]  # a Place, _CERTAIN, or an object that is no array
    dtype: Any
    size: int  # of the vectors; past the last place, they are padding that is not alive

    @property
    def places(self) -> list[Place]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Place)]

    def beliefs(self, q: Normal, certain: list[Array]) -> PyTree:
        """Put a flat belief and the certain arrays back into the user's pytree."""
        arrays = iter(certain)
        uncertain = iter(zip(_parts(self, q.mean), _parts(self, q.variance), strict=True))
        new = []
        for leaf in self.leaves:
            if isinstance(leaf, Place):
                new.append(Normal(*next(uncertain)))
            else:
                new.append(next(arrays) if leaf is _CERTAIN else leaf)
        return self.treedef.unflatten(new)

    def part(self, vector: Array, place: Place) -> Array:
        return vector[place.start : place.stop].reshape(place.shape).astype(place.dtype)

    def vector(self, leaves: list[Any], *, padding: float = 0.0) -> Array:
        """Concatenate arrays, one for each uncertain leaf, broadcast to its shape."""
        parts = [
            jnp.ravel(jnp.broadcast_to(jnp.asarray(value, self.dtype), place.shape))
            for value, place in zip(leaves, self.places, strict=True)
        ]
        rest = self.size - self.places[-1].stop
        return jnp.concatenate([*parts, jnp.full(rest, padding, self.dtype)])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _parts(layout: Layout, vector: Array) -> list[Array]:
    """Cut a vector into the shapes of the leaves.

    Its gradient is one concatenation. Left to JAX it would be a sum of vectors of full length, one
    for each leaf, nearly all of them zeros.
    """
    return [layout.part(vector, place) for place in layout.places]


def _parts_forward(layout: Layout, vector: Array) -> tuple[list[Array], None]:
    return _parts(layout, vector), None


def _parts_backward(layout: Layout, _: None, gradients: list[Array]) -> tuple[Array]:
    return (layout.vector(gradients),)


_parts.defvjp(_parts_forward, _parts_backward)


def lay_out(beliefs: PyTree, *, multiple: int = 1) -> tuple[Layout, Normal, list[Array]]:
    """Return the layout of beliefs, the flat belief, and the certain arrays.

    Args:
        beliefs: see `secateur.believe`.
        multiple: the vectors' length is padded to a multiple of this.
    """
    leaves, _, treedef = flatten(beliefs)
    found: list[Any] = []
    start = 0
    for leaf in leaves:
        if is_belief(leaf):
            place = Place(start, jnp.shape(leaf.mean), jnp.result_type(leaf.mean))
            start = place.stop
            found.append(place)
        else:
            found.append(_CERTAIN if isinstance(leaf, jax.Array | np.ndarray) else leaf)
    uncertain = [leaf for leaf in leaves if is_belief(leaf)]
    dtype = jnp.result_type(*(q.mean for q in uncertain))
    layout = Layout(treedef, tuple(found), dtype, -(-start // multiple) * multiple)
    flat = Normal(
        layout.vector([q.mean for q in uncertain]), layout.vector([q.variance for q in uncertain])
    )
    certain = [jnp.asarray(x) for x, y in zip(leaves, found, strict=True) if y is _CERTAIN]
    return layout, flat, certain


def flat_priors(layout: Layout, priors: PyTree) -> Any:
    """Return one distribution over all weights if the priors are of one kind, else a list.

    A parameter that is the same for all weights stays a number.
    """
    found = [p for p in aligned(priors, layout.treedef, "priors") if p is not None]
    structures = {jax.tree.structure(p) for p in found}
    if len(structures) > 1 or not jax.tree.leaves(found[0]) or _is_opaque(found[0]):
        return found

    def join(*parameters: Any) -> Array:
        values = [np.asarray(p) for p in parameters]
        first = values[0].flat[0] if values[0].size else 0.0
        if all(np.all(v == first) for v in values):
            return jnp.asarray(first, layout.dtype)
        return layout.vector(list(parameters), padding=1.0)

    return jax.tree.map(join, *found)


def _is_opaque(prior: Any) -> bool:
    return jax.tree.leaves(prior)[0] is prior


def unflat_priors(layout: Layout, prior: Any) -> PyTree:
    """Return one prior for each uncertain leaf, None in other places."""
    own = iter(prior) if isinstance(prior, list) else None

    def of(place: Place) -> Any:
        if own is not None:
            return next(own)
        return jax.tree.map(
            lambda p: layout.part(p, place)
            if jnp.ndim(p)
            else jnp.broadcast_to(p.astype(place.dtype), place.shape),
            prior,
        )

    return layout.treedef.unflatten(
        [of(leaf) if isinstance(leaf, Place) else None for leaf in layout.leaves]
    )


def flat_complexity(layout: Layout, weights: Weights, alive: Array, prior: Any) -> Array:
    """KL[q ‖ p] over the live weights, in nats."""
    q = weights.belief(alive)
    if isinstance(prior, list):
        beliefs = [Normal(layout.part(q.mean, p), layout.part(q.variance, p)) for p in layout.places]
        return complexity(beliefs, prior)
    if not isinstance(prior, Normal):
        return complexity(q, prior)
    # The closed form from ln σ as it is, without a logarithm per weight and step.
    square = q.variance + jnp.square(weights.means - prior.mean)
    logarithm = 2 * weights.log_deviations - jnp.log(prior.variance)
    return 0.5 * jnp.sum(jnp.where(alive, square / prior.variance - 1 - logarithm, 0))
