"""The compiled programs of training: many epochs in one call, and the final evaluation.

Everything that can change between calls (weights, masks, priors, data, rates) is data, so that
restarts, rounds of pruning and new data of the same shape find the program already compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from secateur.distributions import Normal
from secateur.energy import FreeEnergy, accuracy
from secateur.fitting.shuffling import shuffle
from secateur.fitting.weights import Layout, Vectors, Weights, flat_complexity
from secateur.propagation import draws, propagate
from secateur.propagation.noise import Tape

# Rows of which a running estimate of the noise is made up: 5 % accurate, and soon renewed.
_NOISE_MEMORY = 1024
# Epochs in one call at most; what one call records has this length.
CALL_LENGTH = 256
# Random numbers that an epoch draws at once, at most; beyond, its steps draw their own.
_DRAWN_AT_ONCE = 4_000_000
# Rows that an evaluation looks at at a time.
_EVALUATION_ROWS = 2048
# Folded into the key where epochs fold in their numbers.
_EVALUATION = 2**32 - 1


class Settings(NamedTuple):
    """What a program is compiled for. Hashable."""

    f: Callable
    inference: str
    layout: Layout
    optimiser: optax.GradientTransformation
    batch_size: int
    empirical_bayes: bool
    conjugate_noise: bool  # else q(γ) is left to the optimiser; see `free_noise`
    many: bool  # states have a leading axis of runs
    own_data: bool  # and so have the data
    mesh: Mesh | None  # devices that share the rows of each step
    shard_weights: bool  # and the weights


class State(NamedTuple):
    """All that training changes, and what tells one run from another."""

    weights: Weights
    alive: Vectors
    memory: Any  # the optimiser's
    noise: Any
    noise_steps: Array
    prior: Any
    key: Array
    epoch: Array


class Fixed(NamedTuple):
    """What all runs share and training leaves alone."""

    certain: list[Array]
    likelihood: Any


class Plan(NamedTuple):
    """Numbers that steer an epoch."""

    rate: Any
    warm_epochs: Any  # over which the weight of the complexity rises from 0 to 1
    cool_start: Any  # the epoch in which the rate begins to fall, or inf
    cool_epochs: Any
    size: Any  # rows of the whole data set
    row_weight: Any  # what a row counts in its step: the number of steps in a pass over all rows


class Record(NamedTuple):
    """What an epoch says of itself: means over its steps, in nats."""

    complexity_weights: Any  # arrays of JAX, or of NumPy once they have been fetched
    complexity_noise: Any
    accuracy: Any
    bad_step: Any  # the first step with a value that is not finite, or −1


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


def rate_at(plan: Plan, epoch: ArrayLike, xp: Any = jnp) -> Any:
    """Return the learning rate at a time in epochs: a plateau, then half a cosine down to 0.

    Args:
        plan: numbers of JAX, or of NumPy with `xp=np`.
        epoch: the time.
        xp: whose functions compute it.
    """
    cooled = xp.clip((epoch - plan.cool_start) / plan.cool_epochs, 0, 1)
    return plan.rate * 0.5 * (1 + xp.cos(xp.pi * cooled))


def warmth_at(plan: Plan, epoch: ArrayLike) -> Array:
    """Return the weight of the complexity at a time in epochs."""
    return jnp.clip(epoch / jnp.maximum(plan.warm_epochs, 1e-9), 0, 1)


def _epoch(
    settings: Settings, fixed: Fixed, plan: Plan, state: State, data: tuple[Any, Array]
) -> tuple[State, Record]:
    """One pass over the rows in random batches."""
    inputs, targets = data
    rows = targets.shape[0]
    batch_size = min(settings.batch_size, rows)
    batches = steps_per_pass(rows, batch_size)
    shuffle_key, noise_key = jax.random.split(jax.random.fold_in(state.key, state.epoch))
    if batches > 1:
        order = shuffle(shuffle_key, rows)
    else:
        order = jnp.arange(rows)
    indices, counts = deal(order, batch_size)

    def take(values: Array) -> Array:
        taken = jnp.take(values, indices, axis=0, mode="clip")
        if settings.mesh is None or batch_size % settings.mesh.size:
            return taken
        spec = PartitionSpec(None, settings.mesh.axis_names)
        return jax.lax.with_sharding_constraint(taken, NamedSharding(settings.mesh, spec))

    dtype = settings.layout.dtype
    forward = propagate(settings.f, settings.inference)
    taken = None
    if draws(settings.inference):
        beliefs = settings.layout.beliefs(state.weights.beliefs(state.alive), fixed.certain)
        taken = Tape.length(forward, beliefs, jax.tree.map(lambda a: a[:batch_size], inputs))
    steps = jnp.arange(batches)
    each_step = (
        jax.tree.map(take, inputs),
        take(targets),
        None if counts.all() else jnp.asarray(counts, dtype),
        _noise(noise_key, batches, taken, dtype),
        rate_at(plan, state.epoch + steps / batches).astype(dtype),
        warmth_at(plan, state.epoch + (steps + 1) / batches).astype(dtype),
        steps,
    )
    noise_share = min(1.0, batch_size / min(_NOISE_MEMORY, rows))

    def step(carry: Any, batch: Any) -> tuple[Any, None]:
        moved, memory, noise, noise_steps, sums, bad_step = carry
        x, y, count, drawn, rate, warmth, number = batch

        def objective(moved: tuple[Weights, Any]) -> tuple[Array, Any]:
            weights, free = moved
            beliefs = settings.layout.beliefs(weights.beliefs(state.alive), fixed.certain)
            prediction = forward(_tape(drawn, taken, dtype), beliefs, x)
            if settings.conjugate_noise:
                fresh = fixed.likelihood.update_noise(
                    jax.lax.stop_gradient(prediction), y, weights=count, size=plan.size
                )
                # A step along the natural gradient; the first ones average what has been seen.
                share = jnp.maximum(noise_share, 1 / (1 + noise_steps))
                current = jax.tree.map(lambda old, new: old + share * (new - old), noise, fresh)
                noise_complexity = 0.0
            else:
                current = jax.tree.map(jax.nn.softplus, free)
                noise_complexity = fixed.likelihood.noise_complexity(current)
            good = accuracy(fixed.likelihood, current, prediction, y, weights=count)
            good = plan.row_weight * good
            bad = flat_complexity(weights, state.alive, state.prior)
            return (warmth * bad + noise_complexity - good) / plan.size, (current, bad, good)

        gradient, (noise, bad, good) = jax.grad(objective, has_aux=True)(moved)
        update, memory = settings.optimiser.update(gradient, memory, moved)
        moved = jax.tree.map(lambda p, u: p + rate * u, moved, update)
        finite = jnp.isfinite(bad - good)
        bad_step = jnp.where((bad_step < 0) & ~finite, number, bad_step)
        sums = (sums[0] + bad, sums[1] + good)
        return (moved, memory, noise, noise_steps + 1, sums, bad_step), None

    zero = jnp.zeros((), dtype)
    moved = to_optimise(settings, state.weights, state.noise)
    no_step = jnp.full((), -1)
    carry = (moved, state.memory, state.noise, state.noise_steps, (zero, zero), no_step)
    carry, _ = jax.lax.scan(step, carry, each_step)
    (weights, free), memory, noise, noise_steps, sums, bad_step = carry
    if not settings.conjugate_noise:
        noise = jax.tree.map(jax.nn.softplus, free)
    last = jnp.all(jnp.stack([jnp.all(jnp.isfinite(v)) for v in jax.tree.leaves(weights)]))
    bad_step = jnp.where((bad_step < 0) & ~last, batches - 1, bad_step)
    prior = state.prior
    if settings.empirical_bayes:
        prior = best_priors(settings.layout, weights.beliefs(state.alive), prior)
    new = State(weights, state.alive, memory, noise, noise_steps, prior, state.key, state.epoch + 1)
    record = Record(
        sums[0] / batches, fixed.likelihood.noise_complexity(noise), sums[1] / batches, bad_step
    )
    # A run that failed keeps its last good state.
    kept = jax.tree.map(partial(_choose, bad_step < 0), new, state)
    return kept, record


def _noise(
    key: Array, batches: int, taken: int | None, dtype: Any
) -> tuple[Array, Array | None] | None:
    """What the steps of an epoch need to draw: a key for each and, if they are few, the numbers."""
    if taken is None:
        return None
    keys = jax.random.split(key, batches)
    if batches * taken > _DRAWN_AT_ONCE:
        return keys, None
    return keys, jax.random.normal(jax.random.fold_in(key, batches), (batches, taken), dtype)


def _tape(drawn: tuple[Array, Array | None] | None, taken: int | None, dtype: Any) -> Tape | None:
    """The noise of one step."""
    if drawn is None or taken is None:
        return None
    key, numbers = drawn
    if numbers is None:
        numbers = jax.random.normal(key, (taken,), dtype)
    return Tape(numbers, jax.random.fold_in(key, 1))


def to_optimise(settings: Settings, weights: Weights, noise: Any) -> tuple[Weights, Any]:
    """Return what the optimiser moves."""
    return weights, None if settings.conjugate_noise else free_noise(noise)


def free_noise(noise: Any) -> Any:
    """Return the parameters of q(γ) as numbers of either sign, of which softplus makes them again.

    Large ones move by the learning rate, not in proportion to their size. In logarithms, Adam's
    noise keeps the precision too low, and the weights from settling (docs/design-notes.md).
    """
    return jax.tree.map(lambda p: p + jnp.log(-jnp.expm1(-p)), noise)


@partial(jax.jit, static_argnames=("settings",))
def restarted(settings: Settings, state: State) -> State:
    """Return a state whose optimiser remembers nothing, least of all weights that are gone."""

    def one(state: State) -> State:
        moved = to_optimise(settings, state.weights, state.noise)
        return state._replace(
            memory=settings.optimiser.init(moved), epoch=jnp.zeros_like(state.epoch)
        )

    return (jax.vmap(one) if settings.many else one)(state)


def _choose(yes: Array, new: Array, old: Array) -> Array:
    return jax.lax.select_n(yes, old, new) if new is not old else new


def best_priors(
    layout: Layout, flat: tuple[Normal, ...], priors: tuple[Normal, ...]
) -> tuple[Normal, ...]:
    """Return, for every leaf, the prior variance of least complexity.

    Empirical Bayes: ∂KL/∂σ_p² = 0 where σ_p² is the mean over live weights of σ² + (μ − μ_p)².
    """
    best = []
    for place in layout.places:
        q, prior = flat[place.vector], priors[place.vector]
        alive = q.variance > 0
        square = jnp.where(alive, q.variance + jnp.square(q.mean - prior.mean), 0)
        here = slice(place.start, place.start + place.size)
        live = jnp.sum(alive[here])
        mean = jnp.sum(square[here]) / jnp.maximum(live, 1)
        best.append(jnp.where(live > 0, mean, prior.variance[place.start]))
    variances = layout.vectors(best, padding=1.0)
    return tuple(Normal(p.mean, v) for p, v in zip(priors, variances, strict=True))


@partial(jax.jit, static_argnames=("settings",), donate_argnames=("state",))
def train(
    settings: Settings, state: State, fixed: Fixed, data: tuple, plan: Plan, epochs: Array
) -> tuple[State, Record]:
    """Train for some epochs, at most CALL_LENGTH; stop early if no run can go on.

    Returns:
        The state, and a record per epoch (the rest of CALL_LENGTH is zero).
    """
    one = partial(_epoch, settings, fixed, plan)
    if settings.many:
        one = jax.vmap(one, in_axes=(0, 0 if settings.own_data else None))
    # (Asking JAX for the shapes of a record would mean to trace an epoch twice.)
    dtype = settings.layout.dtype
    kinds = Record(dtype, dtype, dtype, jnp.int32)
    records = Record(*(jnp.zeros((CALL_LENGTH, *state.epoch.shape), kind) for kind in kinds))

    def go_on(carry: Any) -> Array:
        number, _, _, ok = carry
        return (number < epochs) & ok

    def body(carry: Any) -> Any:
        number, state, records, _ = carry
        state, record = one(state, data)
        pairs = zip(records, record, strict=True)
        records = Record(*(all_.at[number].set(new.astype(all_.dtype)) for all_, new in pairs))
        return number + 1, state, records, jnp.any(record.bad_step < 0)

    _, state, records, _ = jax.lax.while_loop(go_on, body, (0, state, records, True))
    if settings.mesh is not None:
        places = placement(settings, (state, records))
        state, records = jax.lax.with_sharding_constraint((state, records), places)
    return state, records


def placement(settings: Settings, tree: Any) -> Any:
    """Where arrays live on the mesh: whole everywhere, but for weights that are to be divided."""
    assert settings.mesh is not None
    mesh, sizes = settings.mesh, settings.layout.sizes

    def of(leaf: Any) -> NamedSharding:
        shape = jnp.shape(leaf)
        if settings.shard_weights and shape[-1:] and shape[-1] in sizes:
            axes = [None] * (len(shape) - 1)
            return NamedSharding(mesh, PartitionSpec(*axes, mesh.axis_names))
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree.map(of, tree)


class Evaluation(NamedTuple):
    """A free energy at the best q(γ), that q(γ), and the standard error if it was sampled."""

    free_energy: FreeEnergy
    noise: Any
    standard_error: Array


@partial(jax.jit, static_argnames=("settings", "samples"))
def evaluate(
    settings: Settings,
    state: State,
    fixed: Fixed,
    data: tuple,
    noise: Any = None,
    *,
    samples: int,
) -> Evaluation:
    """Free energy on the given rows; sampling algorithms average `samples` predictions.

    The q(γ) is the conjugate one for these rows, unless it is given.
    """

    def one(state: State, data: tuple, noise: Any) -> Evaluation:
        targets = data[1]
        predictions = _predict(settings, fixed, samples, state, data[0])
        if noise is None:
            flat = jax.tree.map(lambda p: p.reshape(-1, *p.shape[2:]), predictions)
            repeated = jnp.tile(targets, (samples,) + (1,) * (targets.ndim - 1))
            counts = jnp.full(repeated.shape[0], 1 / samples, settings.layout.dtype)
            noise = fixed.likelihood.update_noise(flat, repeated, weights=counts)
        each = jax.vmap(lambda p: accuracy(fixed.likelihood, noise, p, targets))(predictions)
        result = FreeEnergy(
            flat_complexity(state.weights, state.alive, state.prior),
            fixed.likelihood.noise_complexity(noise),
            jnp.mean(each),
        )
        spread = jnp.std(each, ddof=1) if samples > 1 else jnp.zeros_like(result.accuracy)
        return Evaluation(result, noise, spread / np.sqrt(samples).astype(spread.dtype))

    if settings.many:
        one = jax.vmap(one, in_axes=(0, 0 if settings.own_data else None, 0))
    return one(state, data, noise)


def _predict(
    settings: Settings, fixed: Fixed, samples: int, state: State, inputs: Any
) -> Normal | Array:
    """Predictions for all rows, some at a time; the first axis counts samples."""
    forward = propagate(settings.f, settings.inference)
    beliefs = settings.layout.beliefs(state.weights.beliefs(state.alive), fixed.certain)
    key = jax.random.fold_in(state.key, _EVALUATION)
    pieces, counts = in_pieces(inputs)
    rows = jax.tree.leaves(inputs)[0].shape[0]

    def piece(x_and_number: Any) -> Any:
        x, number = x_and_number
        keys = jax.random.split(jax.random.fold_in(key, number), samples)
        return jax.vmap(lambda k: forward(k, beliefs, x))(keys)

    def joined(p: Array) -> Array:
        p = jnp.moveaxis(p, 0, 1)  # samples, pieces, rows
        return p.reshape(samples, -1, *p.shape[3:])[:, :rows]

    made = jax.lax.map(piece, (pieces, jnp.arange(len(counts))))
    return jax.tree.map(joined, made)


def in_pieces(data: Any) -> tuple[Any, np.ndarray]:
    """Cut the rows of arrays into pieces of equal length, to be looked at one after the other.

    Returns:
        The arrays with a new first axis, and which of the rows count; the others are padding.
    """
    rows = jax.tree.leaves(data)[0].shape[0]
    pieces = steps_per_pass(rows, _EVALUATION_ROWS)
    length = -(-rows // pieces)

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, [(0, pieces * length - rows)] + [(0, 0)] * (x.ndim - 1), mode="edge")
        return padded.reshape(pieces, length, *x.shape[1:])

    counts = np.arange(pieces * length).reshape(pieces, length) < rows
    return jax.tree.map(cut, data), counts
