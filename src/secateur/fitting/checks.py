"""Data that cannot be fitted are refused before anything is compiled, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.distributions import Normal
from secateur.fitting.devices import is_here
from secateur.fitting.scaling import Columns

Block = tuple[Any, Any]


def as_arrays(inputs: Any, targets: Any) -> Block:
    """Check a pair of inputs and targets, and make arrays of what is none."""
    inputs = jax.tree.map(lambda x: _array(x, "inputs"), inputs, is_leaf=_is_table)
    targets = _array(targets, "targets")
    if not jax.tree.leaves(inputs):
        raise ValueError("the inputs hold no array.")
    for name, x in (("targets", targets), *(("inputs", x) for x in jax.tree.leaves(inputs))):
        if np.ndim(x) == 0:
            raise ValueError(f"the {name} are a single number. Their first axis must count rows.")
        if len(x) == 0:
            raise ValueError(f"the {name} are empty: shape {np.shape(x)}. Give at least one row.")
        if len(x) != len(targets):
            raise ValueError(
                f"the inputs have {len(x)} rows (shape {np.shape(x)}) and the targets "
                f"{len(targets)} (shape {np.shape(targets)}). Give one target row per input row."
            )
        _all_finite(x, name)
    return inputs, targets


def equal_shapes(sets: list[Block]) -> None:
    """Check that several data sets can share one program."""
    shapes = [jax.tree.map(np.shape, one) for one in sets]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"data set {number} has shapes {shape} and data set 0 has {shapes[0]}. Only data "
                "sets of equal shapes can be fitted together; fit these one by one."
            )


def varying_targets(columns: Columns) -> None:
    """Refuse targets with nothing to learn: an output, or one class only."""
    if columns.rows > 1 and np.any(columns.constant):
        which = np.flatnonzero(columns.constant)
        column = "the targets are" if columns.vector else f"target column(s) {which.tolist()} are"
        raise ValueError(
            f"{column} constant (value {columns.mean[which[0]]:.6g} in all {columns.rows} rows): "
            "there is nothing to learn. Leave them out, or check how the data were read."
        )


def rehearse(forward: Callable[[Any], Any], likelihood: Any, sample: Block, targets: Any) -> None:
    """Check that model, data and likelihood fit together: shapes by tracing, labels by looking.

    Args:
        forward: from inputs to a prediction.
        likelihood: the model's.
        sample: a few rows.
        targets: all there are. The values of labels and counts matter, so the least and the largest
            are tried, against a prediction that is no work to make.
    """
    inputs, some = sample
    shape = jax.eval_shape(forward, inputs)
    if not isinstance(shape, Normal | jax.ShapeDtypeStruct):
        raise TypeError(
            f"the model returns {jax.tree.structure(shape)}. Supported: one array, rows first. "
            "Choose one output, or join them."
        )
    example = shape.mean if isinstance(shape, Normal) else shape
    if example.shape[:1] != (len(some),):
        raise ValueError(
            f"for {len(some)} rows of inputs the model returns shape {example.shape}. Its first "
            "axis must count rows."
        )
    whole = jax.ShapeDtypeStruct((len(targets), *example.shape[1:]), example.dtype)
    likelihood_of = partial(_likelihood_of, likelihood)
    dtype = jax.dtypes.canonicalize_dtype(targets.dtype)
    jax.eval_shape(likelihood_of, whole, jax.ShapeDtypeStruct(targets.shape, dtype))
    if jnp.issubdtype(targets.dtype, jnp.integer) and likelihood.initial_noise(targets) is None:
        values = np.asarray(targets).reshape(len(targets), -1)
        extremes = np.array([values.min(axis=1).argmin(), values.max(axis=1).argmax()])
        zeros = jnp.zeros((2, *example.shape[1:]), example.dtype)
        likelihood_of(zeros, np.asarray(targets)[extremes])


def _likelihood_of(likelihood: Any, prediction: Any, targets: Any) -> Any:
    noise = likelihood.initial_noise(prediction)
    return likelihood.expected_log_likelihood(noise, prediction, targets)


def _is_table(node: Any) -> bool:
    return hasattr(node, "to_numpy")


def _array(values: Any, name: str) -> Any:
    if _is_table(values):  # pandas, polars
        values = values.to_numpy()
    if isinstance(values, jax.Array):
        return values
    values = np.asarray(values)
    if values.dtype.kind not in "biuf" and not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(
            f"the {name} have dtype {values.dtype}. Supported: numbers and booleans. Encode text, "
            "dates and categories as numbers first."
        )
    return values


def _all_finite(values: Any, name: str) -> None:
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return
    if not is_here(values):
        if not bool(jnp.all(jnp.isfinite(values))):
            raise ValueError(f"the {name} hold values that are not finite (nan or inf).")
        return
    bad = ~np.isfinite(np.asarray(values))
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"the {name} hold {int(bad.sum())} values that are not finite, the first "
            f"({np.asarray(values)[first]}) at index {first}. Remove those rows, or fill in values."
        )
