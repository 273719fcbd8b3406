"""Standardisation of inputs and targets, and its effect on the free energy.

Networks train best on numbers around 1, but the free energy must not depend on units: with z = (y −
m)/s, p(y) = p(z)/s, so N·Σ ln s is added to the free energy of the standardised targets and it
stays −ln evidence of the targets in their own units.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal
from secateur.registration import register_dataclass
from secateur.training.devices import is_addressable
from secateur.training.table_columns import (
    ColumnNames,
    arrange_columns,
    check_rows_apart,
    is_table,
    make_array,
)

# A deviation below this part of the values' own size is rounding: the column is constant.
_RELATIVE_ROUNDING = {2: 1e-2, 4: 1e-6, 8: 1e-11}


@register_dataclass
@dataclass(frozen=True, eq=False)
class Affine:
    """The change of units z = (y − shift) / scale, per entry of the last axis."""

    shift: Any
    scale: Any

    def to_standard(self, values: Any) -> Any:
        """Convert from the data's own units, in float64 if the values are NumPy arrays."""
        if isinstance(values, jax.Array):
            dtype = jnp.result_type(values, jnp.float32)
            shift, scale = (_against(p, values).astype(dtype) for p in (self.shift, self.scale))
            return (values.astype(dtype) - shift) / scale
        return (np.asarray(values, np.float64) - self.shift) / self.scale

    def to_data(self, prediction: Normal | Array) -> Normal | Array:
        """Convert back to the data's own units."""
        if isinstance(prediction, Normal):
            scale = _against(self.scale, prediction.mean)
            shift = _against(self.shift, prediction.mean)
            return Normal(prediction.mean * scale + shift, prediction.variance * jnp.square(scale))
        return prediction * _against(self.scale, prediction) + _against(self.shift, prediction)

    def log_jacobian_per_row(self, targets: Any) -> float:
        """Σ ln s over the elements of one row of targets of this shape."""
        row = np.shape(targets)[1:]
        return float(np.sum(np.broadcast_to(np.log(np.asarray(self.scale, np.float64)), row)))


def _against(parameter: Array, values: Array) -> Array:
    """Give a per-column parameter leading axes, as strict rank promotion requires."""
    parameter = jnp.asarray(parameter)
    return parameter.reshape((1,) * (jnp.ndim(values) - parameter.ndim) + parameter.shape)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Scaling:
    """How a model's data are standardised; None where they are not.

    Attributes:
        inputs: A pytree like the inputs, with an `Affine` or None in place of each array.
        targets: An `Affine` or None.
        column_names: Names of the columns of every table among the inputs, by which later tables
            are matched; empty if there was none.
    """

    inputs: Any
    targets: Affine | None
    column_names: ColumnNames = field(default=(), metadata={"static": True})

    def arrange(self, inputs: Any) -> Any:
        """Take the columns of tables by name, and check that inputs are like those of the fit.

        Args:
            inputs: Inputs, with tables, lists or arrays of any kind in the places of arrays.

        Returns:
            The inputs as arrays.

        Raises:
            ValueError: They have another structure, other columns, or no axis of rows.
            TypeError: They hold text.
        """
        arranged = arrange_columns(inputs, self.column_names)
        check_rows_apart(arranged, None)
        arrays = jax.tree.map(lambda x: make_array(x, "inputs"), arranged, is_leaf=is_table)
        self.check_columns(arrays)
        return arrays

    @property
    def knows_columns(self) -> bool:
        """Return whether the number of columns of every input is known."""
        return all(isinstance(a, Affine) for a in jax.tree.leaves(self.inputs, is_leaf=_is_affine))

    def check_columns(self, inputs: Any) -> None:
        """Refuse inputs of another structure, or with another number of columns."""
        if self.inputs is None:
            return
        expected: Any
        structure: Any
        affines, expected = jax.tree.flatten(self.inputs, is_leaf=_is_affine)
        arrays, structure = jax.tree.flatten(inputs)
        if structure != expected:
            raise ValueError(
                f"the inputs are {_describe(structure)}, and the model was fitted to "
                f"{_describe(expected)}. Give inputs of the same structure."
            )
        for affine, values in zip(affines, arrays, strict=True):
            if affine is not None:
                _check_width(affine, np.shape(values), self.column_names)

    def standardise_inputs(self, inputs: Any, dtype: Any) -> Any:
        """Standardise inputs, and convert floating-point numbers to the dtype."""
        return jax.tree.map(
            lambda affine, x: _standardise(affine, x, dtype),
            self.inputs,
            inputs,
            is_leaf=_is_affine,
        )

    def standardise_targets(self, targets: Any, dtype: Any) -> Any:
        """Standardise targets, and convert floating-point numbers to the dtype."""
        return _standardise(self.targets, targets, dtype)

    def standardise(self, block: tuple[Any, Any], dtype: Any) -> tuple[Any, Any]:
        """Standardise inputs and targets, and convert floating-point numbers to the dtype."""
        inputs, targets = block
        return self.standardise_inputs(inputs, dtype), self.standardise_targets(targets, dtype)


def _describe(structure: Any) -> str:
    name = str(structure).removeprefix("PyTreeDef(").removesuffix(")")
    return "one array" if name == "*" else f"the pytree {name}"


def _check_width(affine: Affine, shape: tuple[int, ...], names: ColumnNames) -> None:
    """Refuse an array whose number of columns (its last axis) has changed."""
    columns = np.shape(affine.shift)
    if not columns and len(shape) == 1:
        return
    if not columns or len(shape) < 2:
        expected = f"(rows, …, {columns[0]})" if columns else "(rows,)"
        advice = " A single row needs an axis of rows: row[None]." if columns == shape else ""
        raise ValueError(
            f"the inputs have shape {shape}, and the model was fitted to inputs of shape "
            f"{expected}, rows first.{advice}"
        )
    if shape[-1] != columns[0]:
        known = [list(n) for n in names if n is not None and len(n) == columns[0]]
        order = f", in this order: {known[0]}" if known else ""
        raise ValueError(
            f"the inputs have {shape[-1]} {'column' if shape[-1] == 1 else 'columns'} (shape "
            f"{shape}), and the model was fitted to {columns[0]}. Give the same columns{order}."
        )


def _standardise(affine: Affine | None, values: Any, dtype: Any) -> Any:
    values = values if isinstance(values, jax.Array) else np.asarray(values)
    if affine is not None:
        values = affine.to_standard(values)
    return values.astype(dtype) if jnp.issubdtype(values.dtype, jnp.floating) else values


def _is_affine(node: Any) -> bool:
    return node is None or isinstance(node, Affine)


def _summarise(xp: Any, values: Any) -> tuple[Any, Any, Any]:
    """Mean, sum of squared deviations and largest size of every column, by NumPy or by JAX."""
    flat = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    mean = xp.mean(flat, axis=0)
    return mean, xp.sum(xp.square(flat - mean[None]), axis=0), xp.max(xp.abs(flat), axis=0)


def _summarise_weighted(xp: Any, values: Any, weights: Any) -> tuple[Any, Any, Any]:
    """The same for rows with weights; rows of weight 0 are ignored."""
    flat = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    column = xp.repeat(weights, len(flat) // len(values))[:, None]
    total = xp.sum(column)
    mean = xp.sum(column * flat, axis=0) / xp.where(total > 0, total, 1)
    squares = xp.sum(column * xp.square(flat - mean[None]), axis=0)
    return mean, squares, xp.max(xp.where(column > 0, xp.abs(flat), 0), axis=0)


class Columns:
    """Running count, mean and sum of squared deviations per column, in float64 (Chan et al.).

    Args:
        values: Rows of numbers.
        weights: Weight of each row; by default all count once.
    """

    def __init__(self, values: Any, weights: Any = None) -> None:
        self.itemsize = values.dtype.itemsize
        self.rows = len(values)
        self.vector = values.ndim == 1
        self.count: float = values.size // max(1, values.shape[-1] if values.ndim > 1 else 1)
        summarise = _summarise if weights is None else _summarise_weighted
        arrays: tuple[Any, ...] = (values,) if weights is None else (values, weights)
        if all(map(is_addressable, arrays)):
            arrays = tuple(np.asarray(a).astype(np.float64) for a in arrays)
            summary = summarise(np, *arrays)
        else:
            summary = jax.tree.map(np.asarray, summarise(jnp, *arrays))
        if weights is not None:
            self.count *= float(arrays[1].sum()) / self.rows
        self.mean, self.squares, self.largest = summary

    def join(self, other: Columns) -> None:
        """Add another block of rows."""
        total = self.count + other.count
        gap = other.mean - self.mean
        if total:  # rows of weight 0 have no mean
            self.mean = self.mean + gap * (other.count / total)
            between = gap**2 * (self.count * other.count / total)
            self.squares = self.squares + other.squares + between
        self.largest = np.maximum(self.largest, other.largest)
        self.count, self.rows = total, self.rows + other.rows

    @property
    def constant(self) -> np.ndarray:
        """Which columns have only one value, except for rounding."""
        rounding = _RELATIVE_ROUNDING.get(self.itemsize, 1e-6)
        return self.deviation <= rounding * self.largest

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviation per column."""
        return np.sqrt(self.squares / self.count) if self.count else np.zeros_like(self.squares)

    def affine(self) -> Affine:
        """Return the change of units that makes every column that varies mean 0, deviation 1."""
        scale = np.where(self.constant, 1.0, self.deviation)
        shape = () if self.vector else scale.shape
        return Affine(self.mean.reshape(shape), scale.reshape(shape))
