"""Users' data as arrays: tables by the names of their columns, lists, and text.

Scaling, training and predictions work with arrays; everything here is NumPy.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# The columns of every table among the inputs; None in place of an array.
ColumnNames = tuple[tuple[str, ...] | None, ...]

_TEXT_ADVICE = {
    "inputs": "Encode text, dates and categories as numbers first, or leave them out.",
    "targets": (
        "Encode labels as integers, such as np.unique(labels, return_inverse=True)[1], or use "
        "secateur.sklearn.PrunedClassifier, which takes labels as they are."
    ),
}


def is_table(node: Any) -> bool:
    """Whether a node of the inputs is a table or a column of pandas or polars."""
    return hasattr(node, "to_numpy")


def read_names(inputs: Any) -> ColumnNames:
    """Return the names of the columns of every table among the inputs; empty without any.

    Names that are not texts (pandas numbers columns that have none) or not unique do not count.
    """
    names = [_names_of(node) for node in jax.tree.leaves(inputs, is_leaf=is_table)]
    return tuple(names) if any(names) else ()


def _names_of(node: Any) -> tuple[str, ...] | None:
    if not is_table(node) or not hasattr(node, "columns"):  # an array, or one column
        return None
    names = tuple(node.columns)
    is_named = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if is_named and names else None


def arrange_columns(inputs: Any, names: ColumnNames) -> Any:
    """Take the columns of tables by name, in the order in which the model was fitted to them.

    Arrays and tables without names stay as they are; columns of other names are left out.

    Args:
        inputs: Inputs, with tables in any place.
        names: From `read_names`, of the data that the model was fitted to.

    Raises:
        ValueError: A table lacks columns.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"b": [2.0], "a": [1.0]})
        >>> arrange_columns(table, (("a", "b"),)).to_numpy().tolist()
        [[1.0, 2.0]]
    """
    structure: Any
    leaves, structure = jax.tree.flatten(inputs, is_leaf=is_table)
    if len(leaves) != len(names):  # no names, or another structure, which is checked elsewhere
        return inputs
    pairs = zip(leaves, names, strict=True)
    return structure.unflatten([_arrange(leaf, wanted) for leaf, wanted in pairs])


def _arrange(table: Any, names: tuple[str, ...] | None) -> Any:
    own = _names_of(table)
    if names is None or own is None or own == names:
        return table
    lacking = [name for name in names if name not in own]
    if lacking:
        raise ValueError(
            f"the table lacks the columns {lacking}. The model was fitted to {list(names)}; the "
            f"table has {list(own)}. Columns are matched by name, in any order."
        )
    return table[list(names)]


# --- arrays ---------------------------------------------------------------------------------------


def make_array(values: Any, name: str) -> Any:
    """Return numbers or booleans as an array; arrays of JAX stay where they are.

    Args:
        values: An array, a table, or a list of numbers.
        name: "inputs" or "targets", for messages.

    Raises:
        TypeError: They contain text or something else that is not a number.
        ValueError: They are rows of different lengths.
    """
    if isinstance(values, jax.Array):
        return values
    if isinstance(values, dict):
        raise TypeError(f"the {name} are a dict. Give an array, rows first.")
    array = values.to_numpy() if is_table(values) else _stack(values, name)
    if array.dtype.kind == "O":
        array = _from_objects(array, name)
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"the {name} have dtype {array.dtype}{_name_text(values)}. Supported: numbers and "
            f"booleans. {_TEXT_ADVICE.get(name, '')}".rstrip()
        )
    return array


def _stack(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:  # NumPy's word for lists of lists of different lengths
        raise _make_ragged_error(values, name) from error


def _from_objects(array: np.ndarray, name: str) -> np.ndarray:
    """Return the numbers and booleans that pandas puts into one array of objects."""
    items = array.ravel().tolist()
    if all(isinstance(item, Real) for item in items):
        return array.astype(np.float64)
    if all(np.ndim(item) for item in items):
        raise _make_ragged_error(items, name)
    return array


def _name_text(values: Any) -> str:
    """Name the offending columns of a table, as a part of a sentence."""
    names = _names_of(values) or ()
    wrong = [name for name in names if values[name].to_numpy().dtype.kind not in "biuf"]
    return f" because of the columns {wrong}" if wrong else ""


def _make_ragged_error(rows: Any, name: str) -> ValueError:
    lengths = sorted({len(row) for row in rows if hasattr(row, "__len__")})
    span = f"{lengths[0]} to {lengths[-1]} steps" if lengths else "different lengths"
    return ValueError(
        f"the {name} are rows of different shapes ({span}), which are not an array. Pad them to "
        "one length, such as np.stack([np.pad(row, …) for row in rows]), and give the model "
        "their lengths or a mask as a second input."
    )


def check_rows_apart(inputs: Any, rows: int | None) -> None:
    """Refuse a list of rows in place of an array: a list is a pytree of several inputs.

    Args:
        inputs: Inputs as they were passed.
        rows: Number of targets, or None if there are none.
    """
    if not isinstance(inputs, list | tuple) or not inputs:
        return
    shapes = [_shape_of(row) for row in inputs]
    if any(shape is None for shape in shapes):
        return
    counts = {shape[0] if shape else None for shape in shapes if shape is not None}
    are_inputs = None not in counts and (counts == {rows} if rows is not None else len(counts) == 1)
    if are_inputs or (rows is not None and len(inputs) != rows):
        return
    if len(set(shapes)) > 1:
        raise _make_ragged_error(inputs, "inputs")
    raise ValueError(
        f"the inputs are a {type(inputs).__name__} of {len(inputs)} rows. Give one array, rows "
        "first: np.stack(inputs). (A list or tuple stands for several inputs of the model.)"
    )


def _shape_of(row: Any) -> tuple[int, ...] | None:
    """Return the shape of a row of numbers; None for a pytree of other things."""
    if is_table(row) or isinstance(row, np.ndarray | jax.Array | Real):
        return tuple(np.shape(row))
    if isinstance(row, list | tuple) and all(isinstance(item, Real) for item in row):
        return (len(row),)
    return None
