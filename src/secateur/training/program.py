"""The compiled training program: some hundred epochs in one call.

Everything that can change between calls (weights, masks, priors, data, rates) is data, so that
restarts, rounds of pruning and new data of the same shape reuse the compiled program. States always
have a leading axis of runs, and data a leading axis of sets: one for each run, or one for all.
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

from secateur.propagation import draws, propagate
from secateur.propagation.noise import DrawnNoise
from secateur.training.batches import deal, draw_noise, shuffle, steps_per_pass, take_noise
from secateur.training.blocks import RowBlock
from secateur.training.coordinates import Coordinates, Vectors
from secateur.training.hierarchy import PriorGroups, fit_priors, hyper_complexity
from secateur.training.layout import Layout, flat_complexity, to_numpy
from secateur.training.objective import compute_parts
from secateur.training.unit_steps import SHAPE_INTERVAL, Shapes

# Number of rows over which the running estimate of the noise averages: accurate to 5 %, and quick
# to adapt.
_NOISE_MEMORY = 1024
# Largest number of epochs in one call, and length of what one call records.
CALL_LENGTH = 256


class ProgramSpec(NamedTuple):
    """What a program is compiled for. Hashable."""

    f: Callable
    inference: str
    layout: Layout
    optimiser: optax.GradientTransformation
    batch_size: int
    prior_groups: PriorGroups | None  # whose variances are learnt; see `hierarchy`
    conjugate_noise: bool  # else q(γ) is left to the optimiser; see `free_noise`
    mesh: Mesh | None  # devices that share the rows of each step
    shard_weights: bool  # and the weights
    # Classes of the likelihood and of the priors. Structures of dataclasses that were registered
    # with JAX do not tell them apart; see `registration`.
    classes: tuple[type, ...]


class TrainingState(NamedTuple):
    """Everything that training changes, or that differs between runs."""

    weights: Coordinates
    alive: Vectors
    memory: Any  # the optimiser's
    noise: Any
    noise_steps: Any
    prior: Any
    key: Array
    epoch: Any


class Constants(NamedTuple):
    """Data that all runs share and training does not change."""

    certain: list[Array]
    likelihood: Any


class Schedule(NamedTuple):
    """Numbers that control an epoch."""

    rate: Any
    epochs_before: Any  # epochs of warming before this training
    warm_epochs: Any  # over which the weight of the complexity rises from 0 to 1
    cool_start: Any  # the epoch in which the rate begins to fall, or inf
    cool_epochs: Any
    size: Any  # number of rows of the whole data set, or the sum of their weights
    row_weight: Any  # weight of a row in its step: the number of steps in a pass over all rows


class EpochRecord(NamedTuple):
    """Means over the steps of an epoch, in nats."""

    complexity_weights: Any  # JAX arrays, or NumPy arrays once they have been fetched
    complexity_noise: Any
    accuracy: Any
    bad_step: Any  # the first step with a value that is not finite, or −1


# --- runs -----------------------------------------------------------------------------------------


def map_runs(function: Callable, *by_run: Any, data: Any = None) -> Any:
    """Apply a function to every run, within a compiled program.

    A single run is not mapped but reshaped, which costs nothing.

    Args:
        function: Takes one run of every argument and, if there are any, one set of data.
        by_run: Pytrees of arrays with a leading axis of runs.
        data: Pytree of arrays with a leading axis of sets, one for each run or one for all.
    """
    has_data = data is not None
    if _length(by_run) == 1:
        arguments = [*by_run, data] if has_data else by_run
        return jax.tree.map(_add_axis, function(*jax.tree.map(_drop_axis, arguments)))
    if not has_data:
        return jax.vmap(function)(*by_run)
    own = _length(data) > 1
    axes = (*(0 for _ in by_run), 0 if own else None)
    return jax.vmap(function, in_axes=axes)(*by_run, data if own else _drop_all(data))


def stack_runs(runs: list[Any]) -> Any:
    """Join pytrees of single runs along a new leading axis."""
    return jax.tree.map(lambda *arrays: _stack(arrays), *runs)


def take_run(tree: Any, run: int) -> Any:
    """Return one run of a pytree with a leading axis of runs, in NumPy arrays where it can."""
    return jax.tree.map(lambda a: a[run], to_numpy(tree))


def _stack(arrays: tuple[Any, ...]) -> Any:
    on_host = not any(isinstance(a, jax.Array) for a in arrays)
    if len(arrays) == 1:  # not a copy
        return np.asarray(arrays[0])[None] if on_host else _add_axis(arrays[0])
    return np.stack(arrays) if on_host else jnp.stack(arrays)


def _length(tree: Any) -> int:
    return jnp.shape(jax.tree.leaves(tree)[0])[0]


def _drop_axis(a: Any) -> Any:
    return jnp.squeeze(a, axis=0)


def _drop_all(tree: Any) -> Any:
    return jax.tree.map(_drop_axis, tree)


def _add_axis(a: Any) -> Any:
    return jnp.expand_dims(a, 0)


# --- one epoch ------------------------------------------------------------------------------------


def rate_at(schedule: Schedule, epoch: ArrayLike, xp: Any = jnp) -> Any:
    """Return the learning rate at a time in epochs: a plateau, then half a cosine down to 0.

    Args:
        schedule: Numbers of JAX, or of NumPy with `xp=np`.
        epoch: Time in epochs.
        xp: Module whose functions compute it.
    """
    cooled = xp.clip((epoch - schedule.cool_start) / schedule.cool_epochs, 0, 1)
    return schedule.rate * 0.5 * (1 + xp.cos(xp.pi * cooled))


def warmth_at(schedule: Schedule, epoch: ArrayLike) -> Array:
    """Return the weight of the complexity at a time in epochs."""
    warm_for = schedule.epochs_before + epoch
    return jnp.clip(warm_for / jnp.maximum(schedule.warm_epochs, 1e-9), 0, 1)


class Batch(NamedTuple):
    """The data of one step; with a leading axis of steps, of a whole epoch."""

    inputs: Any
    targets: Array
    counts: Array | None  # weight of a row, 0 for padding; None if every row counts once
    noise: tuple[Array, Array | None] | None  # see `draw_noise`
    rate: Array
    warmth: Array
    number: Array


def _make_batches(
    spec: ProgramSpec,
    schedule: Schedule,
    state: TrainingState,
    data: RowBlock,
    draw_count: int | None,
) -> Batch:
    """Shuffle the rows of an epoch and draw its noise, all at once."""
    rows, dtype = data.targets.shape[0], spec.layout.dtype
    batch_size = min(spec.batch_size, rows)
    batches = steps_per_pass(rows, batch_size)
    shuffle_key, noise_key = jax.random.split(jax.random.fold_in(state.key, state.epoch))
    order = shuffle(shuffle_key, rows) if batches > 1 else jnp.arange(rows)
    indices, are_rows = deal(order, batch_size)
    take = partial(_take_batches, spec, indices)
    counts = None if are_rows.all() else jnp.asarray(are_rows, dtype)
    if data.weights is not None:
        counts = take(data.weights) if counts is None else take(data.weights) * counts
    steps = jnp.arange(batches)
    return Batch(
        jax.tree.map(take, data.inputs),
        take(data.targets),
        counts,
        draw_noise(noise_key, batches, draw_count, dtype),
        rate_at(schedule, state.epoch + steps / batches).astype(dtype),
        warmth_at(schedule, state.epoch + (steps + 1) / batches).astype(dtype),
        steps,
    )


def _run_epoch(
    spec: ProgramSpec,
    constants: Constants,
    schedule: Schedule,
    first_step: Array,
    state: TrainingState,
    data: RowBlock,
) -> tuple[TrainingState, EpochRecord]:
    """Pass over the rows once, in random batches; the first step's number is that of all runs."""
    rows, dtype = data.targets.shape[0], spec.layout.dtype
    batch_size = min(spec.batch_size, rows)
    forward = propagate(spec.f, spec.inference)
    draw_count = None
    if draws(spec.inference):
        beliefs = spec.layout.beliefs(state.weights.beliefs(state.alive), constants.certain)
        example = jax.tree.map(lambda a: a[:batch_size], data.inputs)
        draw_count = DrawnNoise.length(forward, beliefs, example)
    noise_share = min(1.0, batch_size / min(_NOISE_MEMORY, rows))

    def compute_objective(
        moved: tuple[Coordinates, Any], shapes: Shapes, noise: Any, noise_steps: Array, batch: Batch
    ) -> tuple[Array, Any]:
        part, free = moved
        flat = shapes.beliefs(part, state.alive)
        beliefs = spec.layout.beliefs(flat, constants.certain)
        prediction = forward(take_noise(batch.noise, draw_count, dtype), beliefs, batch.inputs)
        targets, counts = batch.targets, batch.counts
        if spec.conjugate_noise:
            fixed = jax.lax.stop_gradient(prediction)
            update_noise = partial(constants.likelihood.update_noise, fixed, targets)
            if data.weights is None:
                fresh = update_noise(weights=counts, size=schedule.size)
            else:  # batches differ in weight; their mean is exact if all are scaled equally
                fresh = update_noise(weights=schedule.row_weight * counts)
            # A step along the natural gradient; the first steps average over all rows so far.
            share = jnp.maximum(noise_share, 1 / (1 + noise_steps))
            noise = jax.tree.map(lambda old, new: old + share * (new - old), noise, fresh)
        else:
            noise = jax.tree.map(jax.nn.softplus, free)
        divergence = flat_complexity(
            shapes.join(part), state.alive, state.prior, flat, shapes.log_determinants
        )
        likelihood = constants.likelihood
        parts = compute_parts(divergence, likelihood, noise, prediction, targets, weights=counts)
        accuracy = schedule.row_weight * parts.accuracy
        value = batch.warmth * divergence + parts.complexity_noise - accuracy
        return value / schedule.size, (noise, divergence, accuracy)

    def differentiate(moved: Any, shapes: Shapes, *rest: Any) -> Any:
        slopes, result = jax.grad(compute_objective, has_aux=True)(moved, shapes, *rest)
        return (shapes.pull_gradient(slopes[0]), slopes[1]), result, shapes

    def differentiate_all(moved: Any, shapes: Shapes, *rest: Any) -> Any:
        """Likewise, and let the shapes take a step."""

        def compute(moved: Any, factors: Vectors) -> tuple[Array, Any]:
            return compute_objective(moved, shapes.with_factors(factors), *rest)

        batch = rest[-1]
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.epoch), batch.number)
        probed = shapes.probe(key)
        both, result = jax.grad(compute, argnums=(0, 1), has_aux=True)(moved, probed)
        slopes, by_factors = both[0], jax.tree.map(lambda g: schedule.size * g, both[1])
        cooling = batch.rate / schedule.rate
        after = shapes.move(probed, by_factors, cooling, state.prior, batch.warmth)
        return (shapes.pull_gradient(slopes[0]), slopes[1]), result, after

    def step(carry: Any, batch: Batch) -> tuple[Any, None]:
        moved, shapes, memory, noise, noise_steps, sums, bad_step = carry
        if state.weights.mixing:
            is_due = (first_step + batch.number) % SHAPE_INTERVAL == 0
            at = (moved, shapes, noise, noise_steps, batch)
            found = jax.lax.cond(is_due, differentiate_all, differentiate, *at)
        else:
            found = differentiate(moved, shapes, noise, noise_steps, batch)
        gradient, (noise, divergence, accuracy), shapes = found
        update, memory = spec.optimiser.update(gradient, memory, moved)
        update = shapes.push_update(update[0]), update[1]
        moved = jax.tree.map(lambda p, u: p + batch.rate * u, moved, update)
        finite = jnp.isfinite(divergence - accuracy)
        bad_step = jnp.where((bad_step < 0) & ~finite, batch.number, bad_step)
        sums = (sums[0] + divergence, sums[1] + accuracy)
        return (moved, shapes, memory, noise, noise_steps + 1, sums, bad_step), None

    zero, no_step = jnp.zeros((), dtype), jnp.full((), -1)
    moved = select_moved(spec, state.weights, state.noise)
    shapes = Shapes.of(state.weights, state.alive)
    start = (moved, shapes, state.memory, state.noise, state.noise_steps)
    carry = (*start, (zero, zero), no_step)
    carry, _ = jax.lax.scan(step, carry, _make_batches(spec, schedule, state, data, draw_count))
    return _finish_epoch(spec, constants, state, carry, steps_per_pass(rows, batch_size))


def _finish_epoch(
    spec: ProgramSpec, constants: Constants, state: TrainingState, carry: Any, batches: int
) -> tuple[TrainingState, EpochRecord]:
    """Return the state after the steps of an epoch, and its record."""
    (part, free), shapes, memory, noise, noise_steps, sums, bad_step = carry
    weights = shapes.join(part)
    if not spec.conjugate_noise:
        noise = jax.tree.map(jax.nn.softplus, free)
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(v)) for v in jax.tree.leaves(weights)]))
    bad_step = jnp.where((bad_step < 0) & ~is_finite, batches - 1, bad_step)
    prior, divergence, alive = state.prior, sums[0] / batches, state.alive
    if spec.prior_groups is not None:
        flat = weights.beliefs(alive)
        prior = fit_priors(spec.layout, spec.prior_groups, alive, flat, prior)
        divergence += hyper_complexity(spec.layout, spec.prior_groups, alive, prior)
    new = TrainingState(
        weights, state.alive, memory, noise, noise_steps, prior, state.key, state.epoch + 1
    )
    noise_complexity = constants.likelihood.noise_complexity(noise)
    record = EpochRecord(divergence, noise_complexity, sums[1] / batches, bad_step)
    # A run that failed keeps its last good state.
    return jax.tree.map(partial(_choose, bad_step < 0), new, state), record


def _choose(yes: Array, new: Array, old: Array) -> Array:
    return jax.lax.select_n(yes, old, new) if new is not old else new


def _take_batches(spec: ProgramSpec, indices: Array, values: Array) -> Array:
    """Return the rows of all batches of an epoch, divided over the mesh if there is one."""
    taken = jnp.take(values, indices, axis=0, mode="clip")
    if spec.mesh is None or indices.shape[1] % spec.mesh.size:
        return taken
    sharding = NamedSharding(spec.mesh, PartitionSpec(None, spec.mesh.axis_names))
    return jax.lax.with_sharding_constraint(taken, sharding)


def select_moved(spec: ProgramSpec, weights: Coordinates, noise: Any) -> tuple[Coordinates, Any]:
    """Return the variables of the optimiser."""
    return weights.optimised(), None if spec.conjugate_noise else free_noise(noise)


def free_noise(noise: Any) -> Any:
    """Return the parameters of q(γ) as numbers of either sign, which softplus maps back.

    Large ones move by the learning rate, not in proportion to their size. In logarithms, Adam's
    noise keeps the precision too low and the weights from settling (docs/design-notes.md).
    """
    return jax.tree.map(lambda p: p + jnp.log(-jnp.expm1(-p)), noise)


# --- compiled programs ----------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("spec",))
def restart_optimiser(spec: ProgramSpec, state: TrainingState) -> TrainingState:
    """Return a state with a fresh optimiser state, without memory of pruned weights.

    All arrays are copies, because `train` donates the memory of its state.
    """

    def restart(state: TrainingState) -> TrainingState:
        moved = select_moved(spec, state.weights, state.noise)
        memory = spec.optimiser.init(moved)
        return state._replace(memory=memory, epoch=jnp.zeros_like(state.epoch))

    # An empty optimiser state has no axis of runs, so it must not be an argument.
    return jax.tree.map(jnp.copy, map_runs(restart, state._replace(memory=None)))


@partial(jax.jit, static_argnames=("spec",), donate_argnames=("state",))
def train(
    spec: ProgramSpec,
    state: TrainingState,
    constants: Constants,
    data: RowBlock,
    schedule: Schedule,
    epochs: Array,
) -> tuple[TrainingState, EpochRecord]:
    """Train for some epochs, at most CALL_LENGTH; stop early if no run can continue.

    Returns:
        The state, and a record for each epoch and run (the rest of CALL_LENGTH is zero).
    """
    rows = data.targets.shape[1]
    is_single = state.epoch.shape[0] == 1
    if is_single:  # the axis of runs is dropped once, not in every epoch
        state, data = _drop_all((state, data))
    # (Asking JAX for the shapes of a record would trace an epoch twice.)
    dtype = spec.layout.dtype
    dtypes = EpochRecord(dtype, dtype, dtype, jnp.int32)
    shape = (CALL_LENGTH, *state.epoch.shape)
    records = EpochRecord(*(jnp.zeros(shape, kind) for kind in dtypes))

    def should_go_on(carry: Any) -> Array:
        number, _, _, ok = carry
        return (number < epochs) & ok

    def body(carry: Any) -> Any:
        number, state, records, _ = carry
        batches = steps_per_pass(rows, min(spec.batch_size, rows))
        run_epoch = partial(_run_epoch, spec, constants, schedule, jnp.max(state.epoch) * batches)
        if is_single:
            state, record = run_epoch(state, data)
        else:
            state, record = map_runs(run_epoch, state, data=data)
        pairs = zip(records, record, strict=True)
        records = EpochRecord(*(all_.at[number].set(new.astype(all_.dtype)) for all_, new in pairs))
        return number + 1, state, records, jnp.any(record.bad_step < 0)

    _, state, records, _ = jax.lax.while_loop(should_go_on, body, (0, state, records, True))
    if is_single:
        state = jax.tree.map(_add_axis, state)
        records = EpochRecord(*(r[:, None] for r in records))
    if spec.mesh is not None:
        places = placement(spec, (state, records))
        state, records = jax.lax.with_sharding_constraint((state, records), places)
    return state, records


def placement(spec: ProgramSpec, tree: Any) -> Any:
    """Shardings of arrays: replicated, except for weights that are divided over the mesh."""
    assert spec.mesh is not None
    mesh, sizes = spec.mesh, spec.layout.sizes

    def place(leaf: Any) -> NamedSharding:
        shape = jnp.shape(leaf)
        divisible = shape[-1:] and shape[-1] in sizes and shape[-1] % mesh.size == 0
        if spec.shard_weights and divisible:
            axes = [None] * (len(shape) - 1)
            return NamedSharding(mesh, PartitionSpec(*axes, mesh.axis_names))
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree.map(place, tree)
