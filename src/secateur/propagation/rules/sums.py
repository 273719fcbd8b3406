"""Products with weights (dot, convolution) and sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import primitives
from secateur.propagation.covariances import (
    NO_LOADS,
    Key,
    Loads,
    Neighbours,
    combine_loads,
    compute_covariance,
    product_neighbours,
)
from secateur.propagation.rules.maxima import LARGEST_WINDOW, sum_of_covariances
from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.uncertain_values import (
    Uncertain,
    as_uncertain,
    merge_static,
    rename_source,
)
from secateur.propagation.unit_products import find_unit_product, sum_factors

_ENTANGLED = "its terms are correlated"


@declare("sum", *primitives.ADDITIONS, linear=True)
def add_up(call: Call, x: Uncertain) -> Uncertain:
    """Sums of elements: variances add for independent ones."""
    mean, variance = call.bind(x.mean), call.bind(x.variance)
    correlated = "independent", _ENTANGLED
    if call.name == "reduce_sum":
        summed = set(call.params["axes"])
        left = [a for a in range(len(x.shape)) if a not in summed]
        entangled = frozenset(i for i, a in enumerate(left) if a in x.entangled)
    elif call.name == "cumsum":
        summed = {call.params["axis"]}
        entangled = x.entangled | summed
    else:
        windows = call.params["window_dimensions"]
        summed = {a for a, size in enumerate(windows) if size > 1}
        entangled = x.entangled | summed
        if x.neighbours is not None and np.prod(windows) <= LARGEST_WINDOW:
            variance = variance + sum_of_covariances(call.params, x, mean.shape)
            correlated = "first-order", "covariance of neighbours kept to first order"
    if x.entangled & summed:
        call.note(*correlated)
    total = replace(x, mean=mean, variance=variance, loads=NO_LOADS, entangled=frozenset(entangled),
                    sums_to_one=None, neighbours=None)  # fmt: skip
    return sum_factors(call, x, summed, total)


def _one_side(uncertain: list[bool]) -> bool:
    return sum(uncertain) == 1


@declare("product with weights", *primitives.PRODUCTS, linear=_one_side)
def bilinear(call: Call, x: Any, w: Any) -> Uncertain:
    """Sums of products, exact for independent factors.

    E = x̄·w̄        Var = Var[x]·(w̄² + Var[w]) + x̄²·Var[w]
    """
    units = find_unit_product(call, x, w)
    more = None  # variance other than that through the units
    if not isinstance(w, Uncertain):
        mean = call.bind(x.mean, w)
        variance = call.bind(x.variance, w * w) if units is None else units.variance
    elif not isinstance(x, Uncertain):
        if units is None:
            mean, variance = call.bind_moments(x, w)
        else:
            mean, variance = call.bind(x, w.mean), units.variance
    else:
        if units is None:
            mean, own = call.bind_moments(x.mean, w)
        else:
            mean, own = call.bind(x.mean, w.mean), units.variance
        if units is not None and units.on_left:
            more = call.bind(x.variance + x.mean * x.mean, w.variance)
        else:
            more = call.bind(x.variance, w.mean * w.mean + w.variance)
        variance = more + own
        if x.sums_to_one is not None or w.sums_to_one is not None:
            variance = variance - _common_part(call, x, w, mean)
    contracted, entangled = _structure(call, x, w)
    parts = [v for v in (x, w) if isinstance(v, Uncertain)]
    shares = len(parts) == 2 and parts[0].ancestors & parts[1].ancestors
    if shares:
        call.note("independent", "its factors depend on the same weights")
    elif contracted and not (units is not None and units.factor.is_whole and len(parts) == 1):
        call.note("independent", _ENTANGLED)
    merged = merge_static(parts)
    loads = NO_LOADS
    if call.walk.recurrence is not None and not (units is not None and units.factor.is_steady):
        loads = call.walk.recurrence.product_loads(call, x, w, mean.shape)
    same_unit = diagonal_loads(call, x, w, mean.shape)
    shared = compute_covariance(loads, same_unit)
    if shared is not None:
        variance = jnp.maximum(variance + 2.0 * shared, 0.0)
    loads = combine_loads(loads, same_unit, 1.0, 1.0)
    total = replace(merged, mean=mean, variance=variance, loads=loads, entangled=entangled,
                    steady=merged.steady and len(parts) == 2,
                    neighbours=_neighbours(call, x, w))  # fmt: skip
    return total if units is None else units.attach(total, more)


def _neighbours(call: Call, x: Any, w: Any) -> Neighbours | None:
    """Covariance of positions through shared weights, for a certain signal on the left or right."""
    if isinstance(x, Uncertain) == isinstance(w, Uncertain):
        return None
    left = isinstance(w, Uncertain)
    signal = jnp.asarray(x if left else w)

    def product(factor: Array) -> Array:
        return call.bind(factor, w.variance) if left else call.bind(x.variance, factor)

    if call.name == "conv_general_dilated":
        numbers, params = call.params["dimension_numbers"], call.params
        if not left or params["batch_group_count"] != 1 or set(params["lhs_dilation"]) != {1}:
            return None
        strides = params["window_strides"]
        axis_of = {
            out: (lhs, stride)
            for out, lhs, stride in zip(
                numbers.out_spec[2:], numbers.lhs_spec[2:], strides, strict=True
            )
        }
        return product_neighbours(product, signal, axis_of)
    (contract_x, contract_w), (batch_x, batch_w) = call.params["dimension_numbers"]
    contract, batch = (contract_x, batch_x) if left else (contract_w, batch_w)
    free = [a for a in range(signal.ndim) if a not in {*contract, *batch}]
    other_rank = (w if left else x).mean.ndim
    first = len(batch) if left else len(batch) + other_rank - len(contract) - len(batch)
    return product_neighbours(product, signal, {first + i: (a, 1) for i, a in enumerate(free)})


def _common_part(call: Call, x: Uncertain, w: Uncertain, mean: Array) -> Array:
    """The excess of the independent formula if the weights x sum to one.

    A weighted average changes only through differences of its terms from the average o: Σ Var[x_j]
    (w̄_j − o)² in place of Σ Var[x_j] w̄_j².
    """
    if call.name != "dot_general":
        return jnp.zeros_like(mean)
    ((contract_x, contract_w), _) = call.params["dimension_numbers"]
    if x.sums_to_one is not None and contract_x == (x.sums_to_one,):
        spread = call.bind(x.variance, w.mean)
        total = call.bind(x.variance, jnp.ones_like(w.mean))
    elif w.sums_to_one is not None and contract_w == (w.sums_to_one,):
        spread = call.bind(x.mean, w.variance)
        total = call.bind(jnp.ones_like(x.mean), w.variance)
    else:
        return jnp.zeros_like(mean)
    return 2.0 * mean * spread - mean * mean * total


def _structure(call: Call, x: Any, w: Any) -> tuple[bool, frozenset[int]]:
    """Whether correlated terms are summed, and the entangled axes of the result."""
    left, right = isinstance(x, Uncertain), isinstance(w, Uncertain)
    x, w = as_uncertain(x), as_uncertain(w)
    if call.name == "conv_general_dilated":
        numbers = call.params["dimension_numbers"]
        feature_out = numbers.out_spec[1]
        mixed = bool(x.entangled - {numbers.lhs_spec[0]}) or bool(w.entangled)
        every = set(range(len(numbers.out_spec)))
        entangled = every if left else every - {feature_out}
        return mixed, frozenset(entangled)
    (contract_x, contract_w), (batch_x, batch_w) = call.params["dimension_numbers"]
    mixed = bool(x.entangled & set(contract_x)) or bool(w.entangled & set(contract_w))
    free_x = [a for a in range(x.mean.ndim) if a not in {*contract_x, *batch_x}]
    free_w = [a for a in range(w.mean.ndim) if a not in {*contract_w, *batch_w}]
    entangled = {i for i, (a, b) in enumerate(zip(batch_x, batch_w, strict=True))
                 if a in x.entangled or b in w.entangled}  # fmt: skip
    first = len(batch_x)
    entangled |= {first + i for i, a in enumerate(free_x) if right or a in x.entangled}
    first += len(free_x)
    entangled |= {first + i for i, a in enumerate(free_w) if left or a in w.entangled}
    return mixed, frozenset(entangled)


def diagonal_loads(call: Call, x: Any, w: Any, shape: tuple[int, ...]) -> Loads:
    """The dependence of an element of the result on the *same* element of an operand.

    For a product with a square matrix (or several side by side), result element j depends on
    operand element j through the matrix' diagonal; the other elements are treated as independent.
    """
    if call.name != "dot_general" or call.walk.how == "independent":
        return NO_LOADS
    (contract_x, contract_w), (batch_x, _) = call.params["dimension_numbers"]
    if batch_x or len(contract_x) != 1:
        return NO_LOADS
    for value, matrix, contract_v, contract_m, value_first in (
        (x, w, contract_x[0], contract_w[0], True),
        (w, x, contract_w[0], contract_x[0], False),
    ):
        if not isinstance(value, Uncertain) or not value.loads or value.steady:
            continue
        means = matrix.mean if isinstance(matrix, Uncertain) else matrix
        if means.ndim != 2:
            continue
        rows = means if contract_m == 0 else means.T  # (width, free)
        if rows.shape[1] % rows.shape[0] == 0:
            return _through_diagonal(value, rows, contract_v, value_first, shape)
    return NO_LOADS


def _through_diagonal(
    value: Uncertain, rows: Array, contracted: int, value_first: bool, shape: tuple[int, ...]
) -> Loads:
    width, free = rows.shape
    tiles = free // width
    diagonal = jnp.concatenate([jnp.diagonal(rows, k * width) for k in range(tiles)])[:free]
    rank = value.mean.ndim
    # The result's axes, as axes of the operand: the free ones keep their order, the matrix'
    # free axis stands last (value first) or first (matrix first) for the contracted one.
    others = [a for a in range(rank) if a != contracted]
    order = (*others, contracted) if value_first else (contracted, *others)
    place = order.index(contracted)
    column = tuple(-1 if a == place else 1 for a in range(rank))

    def renamed(key: Key) -> Key:
        key = rename_source(key, "transpose", {"permutation": order}, 0, shape)
        return (key, ("tile", place, width)) if tiles > 1 else key

    def carried(load: Array) -> Array:
        tiled = jnp.concatenate([jnp.transpose(load, order)] * tiles, axis=place)
        return tiled * diagonal.reshape(column)

    return value.loads.mapped(jax.vmap(carried), tuple(map(renamed, value.loads.keys)))
