"""Folding of units that are constant over the data into biases.

    y_k = b_k + Σ_u w_uk c_u:    E[w c] = E[w] E[c]    V[w c] = V[w] (E[c]² + V[c]) + E[w]² V[c]

are added to mean and variance of the bias, and the weights w_uk are cut. Then the unit is no longer
read, and is removed like any other unread unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.compaction.analysis import Analysis, BiasedProduct
from secateur.distributions import Normal, UnitNormal
from secateur.distributions.low_rank import LowRank
from secateur.equations import compat
from secateur.propagation import UnsupportedOperation, draws
from secateur.pytrees import is_belief

# Relative difference up to which contributions to one bias count as equal.
_ROUNDING = 64


@dataclass(frozen=True, eq=False)
class Weights:
    """The beliefs about all arrays of the params, in NumPy.

    Attributes:
        means: Means of each array; 1 for values that are not real numbers, such as random keys.
        variances: Variances of each array, before factors lower them; None for an array that is
            certain.
        originals: The original arrays.
        factors: Factors of arrays whose units have a covariance; None for others.
    """

    means: tuple[np.ndarray, ...]
    variances: tuple[np.ndarray | None, ...]
    originals: tuple[Any, ...]
    factors: tuple[np.ndarray | None, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any]) -> Weights:
        """Return the weights of the arrays and Normals among the leaves of beliefs."""
        means, variances = [], []
        for leaf in leaves:
            uncertain = is_belief(leaf)
            own = leaf.mean if uncertain else leaf
            real = jnp.issubdtype(own.dtype, jnp.floating)
            means.append(np.asarray(own) if real else np.ones(own.shape))
            spread = None
            if uncertain:
                lowers = isinstance(leaf, UnitNormal) and leaf.lowers
                spread = np.asarray(leaf.own if lowers else leaf.variance)
            variances.append(None if spread is None else np.broadcast_to(spread, own.shape))
        factors = [np.asarray(q.factor) if isinstance(q, UnitNormal) else None for q in leaves]
        return cls(tuple(means), tuple(variances), tuple(leaves), tuple(factors))

    def beliefs(self) -> list[Any]:
        """Return Normals, and plain arrays where the original was one."""
        result: list[Any] = []
        columns = zip(self.means, self.variances, self.originals, self.factors, strict=True)
        for mean, variance, own, factor in columns:
            if factor is not None:
                group = {"group": own.group, "unit_axes": own.unit_axes}
                if own.lowers:
                    shape = LowRank(jnp.asarray(variance), jnp.asarray(factor))
                    result.append(UnitNormal.of_low_rank(jnp.asarray(mean), shape, **group))
                else:
                    result.append(UnitNormal.of(jnp.asarray(mean), jnp.asarray(factor), **group))
            elif variance is not None:
                result.append(Normal(jnp.asarray(mean), jnp.asarray(variance)))
            else:
                real = jnp.issubdtype(own.dtype, jnp.floating)
                result.append(jnp.asarray(mean) if real else own)
        return result

    def alive(self) -> list[np.ndarray]:
        """Return masks of where the arrays may differ from 0."""
        pairs = zip(self.means, self.variances, strict=True)
        return [(m != 0) if v is None else (m != 0) | (v != 0) for m, v in pairs]

    def cut(self, masks: Sequence[np.ndarray]) -> Weights:
        """Set elements to 0, with certainty."""
        return replace(
            self,
            means=tuple(_without(m, mask) for m, mask in zip(self.means, masks, strict=True)),
            variances=tuple(
                None if v is None else _without(v, mask)
                for v, mask in zip(self.variances, masks, strict=True)
            ),
            factors=tuple(
                None if f is None else _without(f, np.broadcast_to(mask[..., None], f.shape))
                for f, mask in zip(self.factors, masks, strict=True)
            ),
        )

    def flat(self, part: Iterable[np.ndarray | None]) -> np.ndarray:
        """Return all elements in one vector, those of certain arrays with variance 0."""
        pairs = zip(part, self.means, strict=True)
        return np.concatenate(
            [np.zeros(m.size) if v is None else v.astype(np.float64).ravel() for v, m in pairs]
        )

    def unflat(self, means: np.ndarray, variances: np.ndarray) -> Weights:
        """Split such vectors into arrays."""
        ends = np.cumsum([m.size for m in self.means])[:-1]
        new_means = [
            n.reshape(m.shape).astype(m.dtype)
            for n, m in zip(np.split(means, ends), self.means, strict=True)
        ]
        new_variances = [
            None if v is None else n.reshape(v.shape).astype(v.dtype)
            for n, v in zip(np.split(variances, ends), self.variances, strict=True)
        ]
        return replace(self, means=tuple(new_means), variances=tuple(new_variances))

    def flat_factors(self) -> np.ndarray:
        """Return the factors of all elements, one row for each; zeros where there are none."""
        widths = [0 if f is None else f.shape[-1] for f in self.factors]
        rows = [np.zeros((m.size, max(widths, default=0))) for m in self.means]
        for row, factor in zip(rows, self.factors, strict=True):
            if factor is not None:
                row[:, : factor.shape[-1]] = factor.reshape(len(row), -1)
        return np.concatenate(rows)

    def with_factors(self, rows: np.ndarray) -> Weights:
        """Return these weights with the factors of all elements."""
        ends = np.cumsum([m.size for m in self.means])[:-1]
        pairs = zip(np.split(rows, ends), self.factors, strict=True)
        return replace(
            self,
            factors=tuple(
                None if f is None else r[:, : f.shape[-1]].reshape(f.shape).astype(f.dtype)
                for r, f in pairs
            ),
        )


def _without(array: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, np.zeros((), array.dtype), array) if mask.any() else array


@dataclass(frozen=True, eq=False)
class Fold:
    """The constants of one product that can be folded into its bias.

    Attributes:
        product: The product.
        axis: Axis of its values along which the units lie.
        units: Number of the unit of each constant element along that axis; −1 for others.
        mean: Means of the constants, 0 elsewhere.
        variance: Variances of the constants, 0 elsewhere.
    """

    product: BiasedProduct
    axis: int
    units: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def find_folds(
    analysis: Analysis, weights: Weights, data: Sequence[Any], inference: str
) -> list[Fold]:
    """Find the constants, and their moments under the model's inference.

    Args:
        analysis: Analysis of the function.
        weights: Beliefs about the weights.
        data: Example inputs.
        inference: Inference algorithm of the model. If it samples, the constants are computed at
            the mean weights.
    """
    products = analysis.products
    if not products:
        return []
    nonzero, moving = analysis.influence.find_varying(weights.alive())
    if not any(np.any(n & ~m) for n, m in zip(nonzero, moving, strict=True)):
        return []
    means, variances = _moments(analysis, weights, data, inference)
    folds = []
    every = zip(products, nonzero, moving, means, variances, strict=True)
    for product, some, moves, mean, variance in every:
        labels = analysis.labelled.search.values[product.values].labels
        for axis in product.axes:
            others = tuple(a for a in range(mean.ndim) if a != axis)
            still = some.any(axis=others) & ~moves.any(axis=others)
            units = np.where(still, analysis.unit_of(labels[axis]), -1)
            if np.any(units >= 0):
                fold = Fold(product, axis, units, mean, variance)
                folds.append(leave_out(fold, np.zeros(0, bool)))
                break
    return folds


def _moments(
    analysis: Analysis, weights: Weights, data: Sequence[Any], inference: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Mean and variance of every product's values."""
    beliefs = weights.beliefs()
    certain = [b.mean if is_belief(b) else b for b in beliefs]
    if not draws(inference):
        means, variances = analysis.moments(inference, beliefs, data)
        return means, variances
    means, _ = analysis.moments("moments", certain, data)
    try:
        return means, analysis.moments("moments", beliefs, data)[1]
    except UnsupportedOperation:
        return means, [np.zeros_like(m) for m in means]


def apply_folds(weights: Weights, folds: Iterable[Fold]) -> Weights:
    """Fold the constants into the biases."""
    means, variances = weights.flat(weights.means), weights.flat(weights.variances)
    certain = np.concatenate(
        [np.full(m.size, v is None) for m, v in zip(weights.means, weights.variances, strict=True)]
    )
    factors = weights.flat_factors()
    for fold in folds:
        biases = fold.product.biases.ravel()
        mean, variance = _contribution(fold, means, variances)
        targets, first = np.unique(biases, return_index=True)
        if np.any(certain[targets] & (variance[first] > 0)):
            continue  # a certain bias cannot take a variance
        if not (_same_everywhere(biases, mean) and _same_everywhere(biases, variance)):
            continue  # not uniform, for example because of zero padding
        means[targets] += mean[first]
        variances[targets] += variance[first]
        folded = _weights_of(fold)
        for source in range(factors.shape[1]):  # (what varies has no place among them)
            moved = _product(fold, fold.mean, factors[fold.product.weights, source])
            factors[targets, source] += moved[first]
        means[folded] = variances[folded] = factors[folded] = 0
    return weights.unflat(means, variances).with_factors(factors)


def _contribution(
    fold: Fold, means: np.ndarray, variances: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the constants' contribution to each element of the product."""
    own_mean, own_variance = means[fold.product.weights], variances[fold.product.weights]

    mean = _product(fold, fold.mean, own_mean)
    variance = _product(fold, np.square(fold.mean) + fold.variance, own_variance)
    return mean, variance + _product(fold, fold.variance, np.square(own_mean))


def _product(fold: Fold, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return each element of a product of constants with weights."""
    equation = fold.product.equation
    operands = [values, weights] if fold.product.side == 0 else [weights, values]
    avals = [v.aval for v in equation.eqn.invars]
    arrays = [jnp.asarray(o, a.dtype) for o, a in zip(operands, avals, strict=True)]
    return np.asarray(compat.bind(equation.eqn, *arrays)[0], np.float64).ravel()


def _same_everywhere(biases: np.ndarray, values: np.ndarray) -> bool:
    low, high = (np.full(biases.max() + 1, start) for start in (np.inf, -np.inf))
    np.minimum.at(low, biases, values)
    np.maximum.at(high, biases, values)
    used = np.isfinite(low)
    limit = _ROUNDING * np.finfo(np.float32).eps * np.max(np.abs(values), initial=0)
    return bool(np.all(high[used] - low[used] <= limit))


def _weights_of(fold: Fold) -> np.ndarray:
    """Numbers of the weights that read the constants."""
    product = fold.product
    numbers = product.equation.params["dimension_numbers"]
    if product.equation.name == "dot_general":
        own, other = numbers[0][product.side], numbers[0][1 - product.side]
        where = other[tuple(own).index(fold.axis)]
    else:
        where = numbers.rhs_spec[1]
    return np.compress(fold.units >= 0, product.weights, axis=where).ravel()


def leave_out(fold: Fold, units: np.ndarray) -> Fold:
    """Exclude some units from folding."""
    stay = (fold.units >= 0) & np.isin(fold.units, np.flatnonzero(units))
    left = np.where(stay, -1, fold.units)
    column = (left >= 0).reshape([-1 if a == fold.axis else 1 for a in range(fold.mean.ndim)])
    return replace(fold, units=left, mean=fold.mean * column, variance=fold.variance * column)
