"""Rearrangements: the same equation on means, on variances and on loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import primitives
from secateur.propagation.covariances import (
    NO_LOADS,
    Neighbours,
    merge_equal_sources,
    move_neighbours,
    spread_neighbours,
)
from secateur.propagation.rules.choices import mix
from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.uncertain_values import (
    Uncertain,
    as_uncertain,
    map_axes,
    merge_static,
    move_entangled,
    rename_source,
)
from secateur.propagation.unit_factors import (
    factor_of,
    join_labels,
    move_labels,
    over_sources,
    pad_sources,
    with_factor,
)


@declare("rearrangement", *sorted(primitives.REARRANGEMENTS), linear=True)
def move(call: Call, *operands: Any) -> Any:
    """Elements change places; none is computed with another."""
    name = call.name
    if name == "select_n" and isinstance(operands[0], Uncertain):
        return mix(call, *operands)
    places = range(1, len(operands)) if name == "select_n" else range(len(operands))
    data = primitives.DATA_OPERANDS.get(name, tuple(places))
    for position, operand in enumerate(operands):
        if isinstance(operand, Uncertain) and position not in data:
            call.walk.no_rule(call.equation, "an uncertain index or predicate")
    if name == "convert_element_type" and not jnp.issubdtype(
        call.params["new_dtype"], jnp.floating
    ):
        call.walk.no_rule(call.equation, f"conversion to {np.dtype(call.params['new_dtype'])}")

    def apply(pick, default) -> list:
        arrays = [
            (pick(o) if isinstance(o, Uncertain) else default(o)) if i in data else o
            for i, o in enumerate(operands)
        ]
        result = call.bind(*arrays)
        return result if isinstance(result, list) else [result]

    def zeros(array: Any) -> Any:
        return jnp.zeros_like(jnp.asarray(array))

    def move_array(array: Array) -> list:
        return apply(lambda o: array, zeros)

    means = apply(lambda o: o.mean, lambda o: o)
    variances = apply(lambda o: o.variance, zeros)
    uncertain = [o for o in operands if isinstance(o, Uncertain)]
    if name in primitives.SEGMENT_SUMS and as_uncertain(operands[2]).entangled:
        call.note("independent", "its terms are correlated")
    sources = tuple(dict.fromkeys(key for o in uncertain for key in o.loads.keys))
    loads = [NO_LOADS for _ in means]
    if sources:

        def move_loads(rows: list[Array]) -> list:
            remaining = iter(rows)
            return apply(lambda o: next(remaining), zeros)

        stacks = jax.vmap(move_loads)([o.loads.rows(sources, o.mean) for o in uncertain])
        renamed = [
            [rename_source(k, name, call.params, i, stack.shape[1:]) for k in sources]
            for i, stack in enumerate(stacks)
        ]
        for index, stack in enumerate(stacks):
            # Two sources may become the same in this layout; from here on they are merged.
            loads[index], more = merge_equal_sources(renamed[index], stack)
            if more is not None:
                variances[index] = jnp.maximum(variances[index] + more, 0.0)
        if call.walk.recurrence is not None and len(data) == 1:
            for key, names in zip(sources, zip(*renamed, strict=True), strict=True):
                call.walk.recurrence.follow(key, move_array, names)
    inputs = [as_uncertain(operands[i]) for i in data if isinstance(operands[i], Uncertain)]
    merged = merge_static(inputs)
    results: list[Any] = []
    for index, (mean, variance, load) in enumerate(zip(means, variances, loads, strict=True)):
        if isinstance(mean, jax.Array) and not jnp.issubdtype(mean.dtype, jnp.floating):
            results.append(mean)
            continue
        entangled = move_entangled(name, call.params, inputs[0].shape, mean.shape, merged.entangled)
        nearby = _neighbours(call, inputs, variance, partial(_pick, move_array, index))
        results.append(replace(merged, mean=mean, variance=variance, loads=load,
                               entangled=entangled, neighbours=nearby))  # fmt: skip
    results = _move_factors(call, operands, results, move_array)
    return results if call.equation.eqn.primitive.multiple_results else results[0]


def _move_factors(
    call: Call, operands: Any, results: list[Any], move_array: Callable[[Array], list]
) -> list[Any]:
    """Give the results the factors of the operand, or of operands that are joined."""
    factors = [factor_of(o) for o in operands]
    first = next((f for f in factors if f is not None), None)
    if first is None:
        return results
    if call.name == "concatenate":
        known = [f for f in factors if f is not None]
        axis = call.params["dimension"]
        labels = join_labels([f.labels for f in known], axis)
        if len(known) < len(factors) or any(
            (f.is_raw, f.lowers) != (first.is_raw, first.lowers) for f in known
        ):
            return results
        array = jnp.concatenate(pad_sources(*(f.array for f in known)), axis=axis)
        rest = None
        if not all(f.is_whole for f in known):
            rests = [jnp.zeros_like(f.mean) if f.rest is None else f.rest for f in known]
            rest = jnp.concatenate(rests, axis=axis)
        return [with_factor(results[0], array, labels, first, rest=rest)]
    if len(operands) > 1:
        return results
    shape = operands[0].shape
    moved = [
        move_labels(call.name, call.params, shape, r.mean.shape, first.labels, index)
        if isinstance(r, Uncertain)
        else None
        for index, r in enumerate(results)
    ]
    if all(labels is None for labels in moved):
        return results
    arrays = over_sources(move_array, first.array)
    moved_rests: list[Any] = [None] * len(results) if first.rest is None else move_array(first.rest)
    return [
        with_factor(r, array, labels, first, rest=rest)
        for r, array, labels, rest in zip(results, arrays, moved, moved_rests, strict=True)
    ]


def _pick(move_array: Callable[[Array], list], index: int, array: Array) -> Array:
    return move_array(array)[index]


def _neighbours(
    call: Call, inputs: list[Uncertain], variance: Array, move_array: Callable[[Array], Array]
) -> Neighbours | None:
    if len(inputs) != 1 or len(call.equation.inputs) != 1:
        return None
    (value,) = inputs
    mapping = map_axes(call.name, call.params, value.shape, variance.shape)
    known = move_neighbours(value.neighbours, move_array, mapping)
    if call.name != "broadcast_in_dim" or mapping is None:
        return known
    places = set(mapping.values())
    before = tuple(n if a in places else 1 for a, n in enumerate(variance.shape))
    return spread_neighbours(known, variance, before, variance.shape)
