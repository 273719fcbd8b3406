"""Products and sums of values with covariance within their units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from secateur.propagation.uncertain_values import Uncertain
from secateur.propagation.unit_factors import (
    UnitFactor,
    UnitLabels,
    factor_of,
    over_sources,
    with_factor,
)


class UnitProduct(NamedTuple):
    """The factors that a product inherits from one of its operands.

    Attributes:
        on_left: Whether that operand is the first.
        factor: Factors of the product; its mean does not matter.
        variance: Variance of the product through that operand alone.
    """

    on_left: bool
    factor: UnitFactor
    variance: Array

    def attach(self, value: Uncertain, more: Array | None) -> Uncertain:
        """Return the product with its factors.

        Args:
            value: The product.
            more: Variance through the other operand; None if that is certain.
        """
        array, labels, rest = self.factor.array, self.factor.labels, self.factor.rest
        if more is not None:
            rest = more if rest is None else rest + more
        return with_factor(value, array, labels, self.factor, is_raw=False, rest=rest)


def find_unit_product(call: Any, x: Any, w: Any) -> UnitProduct | None:
    """Return the factors that a product inherits from an operand; None if no unit stays whole.

    Var[Σ_i a_i w_i] = Σ_k (Σ_i a_i factor_ik)²        for the means a of the other operand
    """
    factors = factor_of(x), factor_of(w)
    raw = [f is not None and f.is_raw for f in factors]
    if all(raw):
        return None
    order = (True, False) if raw[0] else (False, True)
    for on_left in order:
        factor = factors[0] if on_left else factors[1]
        if factor is None:
            continue
        labels = _product_labels(call, factor.labels, _ndim(x), _ndim(w), on_left)
        if labels is not None:
            return _multiply(call, x, w, on_left, factor, labels)
    return None


def _multiply(
    call: Any, x: Any, w: Any, on_left: bool, factor: UnitFactor, labels: UnitLabels
) -> UnitProduct:
    other = w if on_left else x
    signal = other.mean if isinstance(other, Uncertain) else jnp.asarray(other)

    def product(array: Array, by: Array) -> Array:
        return call.bind(array, by) if on_left else call.bind(by, array)

    array = over_sources(lambda column: product(column, signal), factor.array)
    rest = None if factor.rest is None else product(factor.rest, signal * signal)
    variance = factor.total(array, rest)
    return UnitProduct(on_left, replace(factor, array=array, labels=labels, rest=rest), variance)


def _ndim(value: Any) -> int:
    return jnp.ndim(value.mean if isinstance(value, Uncertain) else value)


def _product_labels(
    call: Any, labels: UnitLabels, rank_x: int, rank_w: int, on_left: bool
) -> UnitLabels | None:
    """Labels of a product that sums only over weights of single units."""
    if call.name == "conv_general_dilated":
        numbers, params = call.params["dimension_numbers"], call.params
        out_feature = numbers.rhs_spec[0]
        if on_left or params["batch_group_count"] != 1 or labels.labelled() - {out_feature}:
            return None
        axes: list[Any] = [None] * len(numbers.out_spec)
        axes[numbers.out_spec[1]] = labels.axes[out_feature]
        return replace(labels, axes=tuple(axes))
    (contract_x, contract_w), (batch_x, batch_w) = call.params["dimension_numbers"]
    contract, batch = (contract_x, batch_x) if on_left else (contract_w, batch_w)
    if labels.labelled() & set(contract):
        return None
    free_x = rank_x - len(contract_x) - len(batch_x)
    free_w = rank_w - len(contract_w) - len(batch_w)
    free = [n for a, n in enumerate(labels.axes) if a not in {*contract, *batch}]
    shared = [labels.axes[a] for a in batch]
    if on_left:
        return replace(labels, axes=(*shared, *free, *[None] * free_w))
    return replace(labels, axes=(*shared, *[None] * free_x, *free))


def sum_factors(call: Any, x: Uncertain, summed: set[int], result: Uncertain) -> Uncertain:
    """Return the sum of elements with its factors, if no two units are added up."""
    factor = factor_of(x)
    if factor is None or factor.labels.labelled() & summed:
        return result
    labels = factor.labels
    if call.name == "reduce_sum":
        kept = tuple(n for a, n in enumerate(labels.axes) if a not in summed)
        labels = replace(labels, axes=kept)
    array = over_sources(call.bind, factor.array)
    rest = None
    if factor.rest is None:
        call.note("exact")
    else:
        rest = call.bind(factor.rest)
    variance = factor.total(array, rest)
    return with_factor(replace(result, variance=variance), array, labels, factor, rest=rest)
