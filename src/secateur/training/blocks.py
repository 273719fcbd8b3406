"""Rows of data with their weights, as sources yield them and programs train on them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.training.devices import is_addressable
from secateur.training.scaling import Columns, Scaling

__all__ = ["RowBlock", "check_same_kind", "check_weights"]


class RowBlock(NamedTuple):
    """Rows of inputs and targets.

    Attributes:
        inputs: Pytree of arrays, rows first.
        targets: Array, rows first.
        weights: Weight w_n ≥ 0 of each row, or None: every row counts once. A row of weight 2
            counts as two rows, a row of weight 0 is left out:
            accuracy = Σ_n w_n E[ln p(y_n | f_n, γ)].
    """

    inputs: Any
    targets: Any
    weights: Any = None

    @property
    def total_weight(self) -> float:
        """Sum of the weights, or the number of rows if there are no weights."""
        if self.weights is None:
            return float(len(self.targets))
        if is_addressable(self.weights):
            return float(np.sum(np.asarray(self.weights, np.float64)))
        return float(jnp.sum(self.weights))

    def standardise(self, scaling: Scaling, dtype: Any) -> RowBlock:
        """Return standardised inputs and targets, with floating-point numbers of the dtype."""
        weights = None if self.weights is None else self.weights.astype(dtype)
        return RowBlock(*scaling.standardise((self.inputs, self.targets), dtype), weights)

    def summarise(self) -> tuple[Any, Columns]:
        """Return the statistics of inputs (None for tokens and other integers) and of targets."""

        def summarise_inputs(x: Any) -> Columns | None:
            is_number = jnp.issubdtype(x.dtype, jnp.floating)
            return Columns(x, self.weights) if is_number else None

        return jax.tree.map(summarise_inputs, self.inputs), Columns(self.targets, self.weights)


def check_weights(weights: Any, rows: int) -> Any:
    """Check that there is one weight w_n ≥ 0 for each row, and return them as an array."""
    if weights is None:
        return None
    if hasattr(weights, "to_numpy"):  # pandas, polars
        weights = weights.to_numpy()
    array: np.ndarray | Array = weights
    if not isinstance(weights, jax.Array):
        array = np.asarray(weights)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"the weights of the rows have dtype {array.dtype}. Give numbers.")
        array = array.astype(np.float64)
    if array.shape != (rows,):
        raise ValueError(
            f"the weights of the rows have shape {array.shape}, and there are {rows} rows. Give "
            f"one weight per row, of shape ({rows},)."
        )
    if not is_addressable(array):
        return array
    values = np.asarray(array)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise ValueError(
            f"the weight of row {bad[0]} is {values[bad[0]]}. A weight is a finite number, at "
            "least 0."
        )
    return array


def check_same_kind(first: RowBlock, other: RowBlock) -> None:
    """Check that either all batches of a stream have weights or none has."""
    if (first.weights is None) != (other.weights is None):
        raise ValueError(
            "some batches of the stream are pairs (x, y) and others have weights. Give weights "
            "with every batch, 1 for rows that count once."
        )
