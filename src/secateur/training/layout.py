"""All uncertain weights in a few flat vectors, so that an optimiser's step is a handful of kernels.

Small leaves share a vector; a large one has its own, to avoid copies, because it needs few kernels
in any case. Pruned weights keep their places, and a mask marks the live ones: masks are data, so
one compiled program serves every round of pruning.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.beliefs import complexity
from secateur.correlations import join_leaves, join_low_rank
from secateur.distributions import Normal, UnitNormal
from secateur.distributions.low_rank import LowRank
from secateur.distributions.unit_normal import from_units, to_units
from secateur.pytrees import PyTree, align_tree, flatten_beliefs, is_belief
from secateur.training.coordinates import (
    Coordinates,
    Vectors,
    divergence_of_units,
    flat_shape,
    flatten_low_rank,
    make_triangular,
)

# Number of weights from which a leaf has a vector of its own.
_LARGE = 16_384


class UnitPlace(NamedTuple):
    """The place of a leaf's weights in a vector of units: a contiguous piece of each unit.

    Attributes:
        group: Name of the leaves that are in this vector.
        axes: Axes of the leaf that count units.
        units: Number of units.
        size: Number of weights of a unit, of all leaves together.
    """

    group: str
    axes: tuple[int, ...]
    units: int
    size: int


class Place(NamedTuple):
    """The place of an uncertain leaf: its vector, and its start (in every unit of that)."""

    vector: int
    start: int
    shape: tuple[int, ...]
    dtype: Any
    unit: UnitPlace | None = None

    @property
    def size(self) -> int:
        """Return the number of weights."""
        return math.prod(self.shape)

    def take(self, vectors: Vectors) -> Array:
        """Cut the leaf out of the vectors."""
        return self.cut(vectors[self.vector]).astype(self.dtype)

    def cut(self, whole: Any) -> Any:
        """Cut the leaf out of its vector; the vector may have more axes behind."""
        if self.unit is None:
            return whole[self.start : self.start + self.size].reshape(self.shape)
        extra = whole.shape[1:]
        rows = whole.reshape(self.unit.units, self.unit.size, *extra)
        own = rows[:, self.start : self.start + self.size // self.unit.units]
        units = tuple(self.shape[a] for a in self.unit.axes)
        return from_units(own.reshape(*units, -1, *extra), self.shape, self.unit.axes)

    def cut_factor(self, q: UnitNormal) -> Any:
        """Cut the leaf's factors out of a flat belief."""
        assert self.unit is not None
        if not q.lowers:
            return self.cut(q.factor)
        rank = len(self.shape)
        own = q.factor[self.start : self.start + self.size // self.unit.units]
        others = [a for a in range(rank) if a not in self.unit.axes]
        order = [*others, *self.unit.axes]
        rows = own.reshape(*(self.shape[a] for a in order), own.shape[-1])
        return rows.transpose(*(order.index(a) for a in range(rank)), rank)

    def assign(self, whole: np.ndarray, value: Any) -> None:
        """Write the leaf's values into its vector, a NumPy array."""
        value = np.broadcast_to(value, self.shape)
        if self.unit is None:
            whole[self.start : self.start + self.size] = value.ravel()
            return
        rows = to_units(value, self.unit.axes).reshape(self.unit.units, -1)
        into = whole.reshape(self.unit.units, self.unit.size)
        into[:, self.start : self.start + rows.shape[1]] = rows


class _CertainArray:
    """Marks the place of an array that is certain."""


_CERTAIN = _CertainArray()


class Layout(NamedTuple):
    """The place of each leaf of the beliefs; hashable, so that compiled programs are reused."""

    treedef: Any
    leaves: tuple[Any, ...]  # a Place, _CERTAIN, or an object that is not an array
    dtype: Any  # of the vectors: the leaves', but float32 at least
    sizes: tuple[int, ...]  # of the vectors; past their last place is padding that is not alive

    @property
    def places(self) -> list[Place]:
        """Return the places of the uncertain leaves, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Place)]

    def beliefs(self, flat: tuple[Normal, ...], certain: list[Array]) -> PyTree:
        """Assemble flat beliefs and the certain arrays into the user's pytree."""
        return self.build_tree(self.split_beliefs(flat), certain)

    def split_beliefs(self, flat: tuple[Normal, ...]) -> list[Normal]:
        """Cut flat beliefs into those of the leaves."""
        means = _split(self, tuple(q.mean for q in flat))
        variances = _split(self, tuple(q.variance for q in flat))
        beliefs = list(map(Normal, means, variances))
        for number, place in enumerate(self.places):
            q = flat[place.vector]
            if place.unit is not None and isinstance(q, UnitNormal):
                factor = place.cut_factor(q).astype(place.dtype)
                own = place.unit.group, place.unit.axes, q.is_whole, q.lowers
                beliefs[number] = UnitNormal(means[number], variances[number], factor, *own)
        return beliefs

    def build_tree(self, uncertain: list[Any], certain: list[Any] | None) -> PyTree:
        """Put one object for each uncertain leaf, and the certain arrays, into the user's pytree.

        Without certain arrays, there is None in all other places.
        """
        objects, arrays = iter(uncertain), iter(certain or ())
        new: list[Any] = []
        for leaf in self.leaves:
            if isinstance(leaf, Place):
                new.append(next(objects))
            elif certain is None:
                new.append(None)
            else:
                new.append(next(arrays) if leaf is _CERTAIN else leaf)
        return self.treedef.unflatten(new)

    def vectors(self, leaves: list[Any], *, padding: float = 0.0) -> Vectors:
        """Put arrays, one for each uncertain leaf and broadcast to its shape, into vectors.

        NumPy arrays stay NumPy arrays: there is nothing to compile.
        """
        xp: Any = jnp if any(isinstance(value, jax.Array) for value in leaves) else np
        parts: list[list[Any]] = [[] for _ in self.sizes]
        for value, place in zip(leaves, self.places, strict=True):
            value = xp.broadcast_to(xp.asarray(value, self.dtype), place.shape)
            if place.unit is None:
                parts[place.vector].append(xp.ravel(value))
            else:
                rows = to_units(value, place.unit.axes).reshape(place.unit.units, -1)
                parts[place.vector].append(rows)
        for number, (part, size) in enumerate(zip(parts, self.sizes, strict=True)):
            if part[0].ndim > 1:  # units, each with its weights of all leaves
                parts[number] = [xp.concatenate(part, axis=1).ravel()]
                continue
            rest = size - sum(p.size for p in part)
            if rest:
                part.append(xp.full(rest, padding, self.dtype))
        return tuple(p[0] if len(p) == 1 else xp.concatenate(p) for p in parts)

    def masks(self) -> list[np.ndarray]:
        """Return, by vector, which elements are weights and not padding."""
        masks = [np.zeros(size, bool) for size in self.sizes]
        for place in self.places:
            place.assign(masks[place.vector], True)
        return masks


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _split(layout: Layout, vectors: Vectors) -> list[Array]:
    """Cut vectors into the shapes of the leaves.

    The gradient is one concatenation per vector. JAX's own gradient would be a sum of full-length
    vectors, one for each leaf, with nearly all elements zero.
    """
    return [place.take(vectors) for place in layout.places]


def _split_forward(layout: Layout, vectors: Vectors) -> tuple[list[Array], None]:
    return _split(layout, vectors), None


def _split_backward(layout: Layout, _: None, gradients: list[Array]) -> tuple[Vectors]:
    return (layout.vectors(gradients),)


_split.defvjp(_split_forward, _split_backward)


@partial(jax.jit, static_argnums=0)
def assemble(
    layout: Layout, weights: Coordinates, alive: Vectors, priors: tuple[Any, ...]
) -> tuple[list[Normal], list[Any]]:
    """Return belief and prior of every uncertain leaf: one program instead of one per leaf."""
    leaf_priors = [_take_prior(place, priors[place.vector]) for place in layout.places]
    return layout.split_beliefs(weights.beliefs(alive)), leaf_priors


def _take_prior(place: Place, prior: Any) -> Any:
    def cut(parameter: Array) -> Array:
        if jnp.ndim(parameter):
            return place.cut(parameter).astype(place.dtype)
        return jnp.broadcast_to(parameter.astype(place.dtype), place.shape)

    if isinstance(prior, UnitNormal) and place.unit is not None:
        mean, variance = cut(prior.mean), cut(prior.variance)
        factor = place.cut_factor(prior).astype(place.dtype)
        own = place.unit.group, place.unit.axes, prior.is_whole, prior.lowers
        return UnitNormal(mean, variance, factor, *own)
    return jax.tree.map(cut, prior)


def lay_out(
    beliefs: PyTree, priors: PyTree = None, *, multiple: int = 1
) -> tuple[Layout, tuple[Normal, ...], list[Array]]:
    """Return the layout of beliefs, the flat beliefs, and the certain arrays.

    Args:
        beliefs: See `secateur.believe`.
        priors: Their priors. Where these are of several classes, every leaf has its own vector.
        multiple: The lengths of the vectors are padded to multiples of this number.
    """
    leaves, _, treedef = flatten_beliefs(beliefs)
    apart = priors is not None and not _of_one_class(align_tree(priors, treedef, "priors"))
    uncertain = [leaf for leaf in leaves if is_belief(leaf)]
    lengths: list[int] = []
    shared: int | None = None
    slots: list[Any] = []
    vector_of: dict[str, int] = {}  # by group of units
    fan_in: Counter[str] = Counter()  # likewise
    for leaf in leaves:
        if isinstance(leaf, UnitNormal):
            fan_in[leaf.group] += math.prod(jnp.shape(leaf.mean)) // math.prod(leaf.unit_shape)
    for leaf in leaves:
        if not is_belief(leaf):
            slots.append(_CERTAIN if isinstance(leaf, jax.Array | np.ndarray) else leaf)
            continue
        shape = jnp.shape(leaf.mean)
        if isinstance(leaf, UnitNormal):
            if leaf.group not in vector_of:
                vector_of[leaf.group] = len(lengths)
                lengths.append(0)
            slots.append(_place_units(leaf, vector_of[leaf.group], lengths, fan_in[leaf.group]))
            lengths[vector_of[leaf.group]] += math.prod(shape)
            continue
        own = apart or math.prod(shape) >= _LARGE
        if own or shared is None:
            vector = len(lengths)
            lengths.append(0)
            shared = shared if own else vector
        else:
            vector = shared
        slots.append(Place(vector, lengths[vector], shape, jnp.result_type(leaf.mean)))
        lengths[vector] += math.prod(shape)
    numbers = [q.mean for q in uncertain] or [x for x in leaves if _is_floating(x)]
    dtype = jnp.result_type(jnp.float32, *numbers)
    sizes = tuple(
        length if v in vector_of.values() else -(-length // multiple) * multiple
        for v, length in enumerate(lengths)
    )
    layout = Layout(treedef, tuple(slots), dtype, sizes)
    means = layout.vectors([q.mean for q in uncertain])
    variances = layout.vectors([q.variance for q in uncertain])
    certain = [jnp.asarray(x) for x, y in zip(leaves, slots, strict=True) if y is _CERTAIN]
    flat = list(map(Normal, means, variances))
    for group, vector in vector_of.items():
        members = [q for q in uncertain if isinstance(q, UnitNormal) and q.group == group]
        flat[vector] = _flatten_units(means[vector], members, dtype)
    return layout, tuple(flat), certain


def _place_units(leaf: UnitNormal, vector: int, lengths: list[int], size: int) -> Place:
    """Return the place of a leaf in the vector of its group."""
    shape, count = np.shape(leaf.mean), math.prod(leaf.unit_shape)
    unit = UnitPlace(leaf.group, leaf.unit_axes, count, size)
    return Place(vector, lengths[vector] // count, shape, jnp.result_type(leaf.mean), unit)


def _flatten_units(mean: Any, members: list[UnitNormal], dtype: Any) -> UnitNormal:
    """Return the flat belief about a group of leaves."""
    if members[0].lowers:
        shape = join_low_rank(members)[1]
        return flatten_low_rank(mean, LowRank(*(a.astype(dtype) for a in shape)))
    return UnitNormal.of(mean, _join_factors(members, dtype))


def _join_factors(leaves: list[UnitNormal], dtype: Any) -> Any:
    """Return the factors of all leaves of a group as one triangular L for each unit, flat."""
    _, factor = join_leaves(leaves)
    if isinstance(factor, np.ndarray):
        factor = make_triangular(factor)
    return factor.astype(dtype).reshape(-1, factor.shape[-1])


def _is_floating(leaf: Any) -> bool:
    is_array = isinstance(leaf, jax.Array | np.ndarray)
    return is_array and jnp.issubdtype(leaf.dtype, jnp.floating)


def to_numpy(tree: PyTree) -> PyTree:
    """Return arrays as NumPy arrays where this process can see all of them: nothing is compiled."""

    def convert(leaf: Any) -> Any:
        is_local = isinstance(leaf, jax.Array) and leaf.is_fully_addressable
        is_number = is_local and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(leaf) if is_number else leaf

    return jax.tree.map(convert, tree)


def _of_one_class(priors: list[Any]) -> bool:
    """Whether all priors are distributions of one class, so that leaves can share a vector."""
    shared = [p for p in priors if p is not None and not isinstance(p, UnitNormal)]
    return len({jax.tree.structure(p) for p in shared}) <= 1


def flatten_priors(layout: Layout, priors: PyTree, *, expand: bool = False) -> tuple[Any, ...]:
    """Return one prior for each vector.

    Args:
        layout: Layout of the beliefs.
        priors: A pytree with a prior for each uncertain leaf.
        expand: Whether to repeat a parameter that is the same throughout, instead of keeping it as
            one number.
    """
    leaf_priors = [p for p in align_tree(priors, layout.treedef, "priors") if p is not None]
    for prior in leaf_priors:
        parameters = jax.tree.leaves(prior)
        if not parameters or parameters[0] is prior:
            raise TypeError(
                f"the prior {prior!r} is not a pytree of numbers, so it cannot enter a compiled "
                "program. Register its class with secateur.register_dataclass."
            )
    pairs = list(zip(layout.places, leaf_priors, strict=True))
    flat = []
    for vector, size in enumerate(layout.sizes):
        own = [(place, prior) for place, prior in pairs if place.vector == vector]
        places = [place for place, _ in own]
        if isinstance(own[0][1], UnitNormal):  # the posterior before an update
            flat.append(_join_unit_priors(layout, places, [prior for _, prior in own]))
            continue
        structure: Any = jax.tree.structure(own[0][1])
        columns = zip(*(jax.tree.leaves(prior) for _, prior in own), strict=True)
        parameters = [_join_parameter(places, c, size, layout.dtype, expand) for c in columns]
        flat.append(structure.unflatten(parameters))
    return tuple(flat)


def _join_unit_priors(
    layout: Layout, places: list[Place], leaf_priors: list[UnitNormal]
) -> UnitNormal:
    """Return the flat prior of a vector of units with covariance."""
    (vector,) = {place.vector for place in places}
    mean = np.zeros(layout.sizes[vector], layout.dtype)
    for place, prior in zip(places, leaf_priors, strict=True):
        place.assign(mean, np.asarray(prior.mean))
    own = [jax.tree.map(np.asarray, prior) for prior in leaf_priors]
    return _flatten_units(mean, own, layout.dtype)


def _join_parameter(
    places: list[Place], parameters: tuple[Any, ...], size: int, dtype: Any, expand: bool
) -> np.ndarray[Any, Any]:
    """Join one parameter of the priors of several leaves; one number if it is the same for all."""
    values = [np.asarray(p, dtype) for p in parameters]
    first = next((v.flat[0] for v in values if v.size), np.zeros((), dtype))
    if all(np.all(v == first) for v in values):
        return np.full(size if expand else (), first, dtype)
    whole = np.ones(size, dtype)
    for place, value in zip(places, values, strict=True):
        place.assign(whole, value)
    return whole


def flat_complexity(
    weights: Coordinates,
    alive: Vectors,
    priors: tuple[Any, ...],
    flat: tuple[Normal, ...] | None = None,
    log_determinants: Vectors | None = None,
) -> Array:
    """KL[q ‖ p] over the live weights, in nats.

    Args:
        weights: What the optimiser moves.
        alive: Which weights are alive.
        priors: Priors by vector.
        flat: Their beliefs, if those are known.
        log_determinants: Sums of ln |Σ| over the units of vectors with a precision of low rank, if
            those are known; None for other vectors.
    """
    flat = weights.beliefs(alive) if flat is None else flat
    known = log_determinants or (None,) * len(flat)
    columns = zip(flat, weights.means, weights.log_deviations, alive, priors, known, strict=True)
    return sum(itertools.starmap(_complexity, columns), start=jnp.zeros((), flat[0].mean.dtype))


def _complexity(
    q: Normal,
    mean: Array,
    log_deviation: Array,
    alive: Array,
    prior: Any,
    log_determinant: Array | None,
) -> Array:
    if not isinstance(prior, Normal):
        return complexity(q, prior)
    if isinstance(prior, UnitNormal):
        return divergence_of_units(q, mean, log_deviation, alive, prior, log_determinant)
    # The closed form from ln σ as it is, without a logarithm per weight and step.
    square = q.variance + jnp.square(mean - prior.mean)
    if isinstance(q, UnitNormal) and q.lowers:
        if log_determinant is None:
            log_determinant = jnp.sum(flat_shape(q).log_determinant())
        own = square / prior.variance - 1 + jnp.log(prior.variance)
        return 0.5 * (jnp.sum(jnp.where(alive, own, 0)) - log_determinant)
    logarithm = 2 * log_deviation - jnp.log(prior.variance)
    return 0.5 * jnp.sum(jnp.where(alive, square / prior.variance - 1 - logarithm, 0))
