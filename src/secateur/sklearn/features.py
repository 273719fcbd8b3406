"""Encoding of the columns of X as inputs of a network: numbers, categories and missing values."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from secateur.tables import MAX_CATEGORIES, Column

__all__ = ["FeatureEncoding", "has_categories"]

_NUMBERS = {"integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty"}


def has_categories(X: Any) -> bool:
    """Whether X is a table with columns of a dtype that is not numeric."""
    return isinstance(X, pd.DataFrame) and not all(map(_is_number_dtype, X.dtypes))


def _is_number_dtype(dtype: Any) -> bool:
    return bool(pd.api.types.is_numeric_dtype(dtype))


@dataclass(frozen=True)
class FeatureEncoding:
    """The encoding of each column of X, learnt from the rows of the first `fit`.

    A column of numbers or booleans is one input. A column of categories is one input of 0 and 1
    for each category, or a single one for two categories. Missing numbers become the mean of the
    column, missing categories the most frequent one, and every column with missing values in the
    training data has an additional input, which is 1 where the value is missing. These inputs come
    last.

    Attributes:
        columns: The columns, with the replacement for a missing value.
        indicators: Positions of the columns in which values were missing.

    Example:
        >>> table = pd.DataFrame({"size": [1.0, np.nan, 3.0], "colour": ["red", "blue", "green"]})
        >>> encoding = FeatureEncoding.from_rows(table, list(table.columns))
        >>> encoding.input_names
        ['size', 'colour=blue', 'colour=green', 'colour=red', 'size is missing']
        >>> encoding.encode(table).tolist()[1]
        [2.0, 1.0, 0.0, 0.0, 1.0]
    """

    columns: tuple[Column, ...]
    indicators: tuple[int, ...]

    @classmethod
    def from_rows(
        cls, X: Any, names: Sequence[str], weights: np.ndarray | None = None
    ) -> FeatureEncoding:
        """Learn the encoding of a table or of an array of numbers.

        Args:
            X: The rows; numbers may be missing (nan).
            names: Names of the columns.
            weights: Weights of the rows, which count in means and frequencies.
        """
        if isinstance(X, np.ndarray):
            columns = [Column(name, "number") for name in names]
        else:
            columns = [_describe_column(name, X.iloc[:, k]) for k, name in enumerate(names)]
        matrix = cls(tuple(columns), ())._make_matrix(X)
        is_missing = np.isnan(matrix)
        counts = np.ones(len(matrix)) if weights is None else weights
        present = np.where(is_missing, 0.0, counts[:, None])
        total = present.sum(axis=0)
        means = (present * np.where(is_missing, 0.0, matrix)).sum(axis=0)
        means = means / np.where(total > 0, total, 1.0)
        filled, gaps, start = [], [], 0
        for place, column in enumerate(columns):
            here = slice(start, start + len(column.inputs))
            filled.append(replace(column, fill=_choose_fill(column, means[here])))
            if is_missing[:, start].any() and not is_missing[:, start].all():
                gaps.append(place)
            start = here.stop
        return cls(tuple(filled), tuple(gaps))

    @property
    def input_names(self) -> list[str]:
        """Return the names of the network's inputs."""
        return [name for column in self.input_columns for name in column.inputs]

    @property
    def input_columns(self) -> tuple[Column, ...]:
        """Return all columns of inputs: those of X, and those that mark missing values."""
        names = (self.columns[place].name for place in self.indicators)
        return (*self.columns, *(Column(f"{name} is missing", "boolean") for name in names))

    @property
    def has_categories(self) -> bool:
        """Return whether some column holds categories."""
        return any(column.kind == "category" for column in self.columns)

    @property
    def sources(self) -> np.ndarray:
        """Return the position of the column of X that each input comes from."""
        lengths = [len(column.inputs) for column in self.columns]
        places = np.repeat(np.arange(len(self.columns)), lengths)
        return np.concatenate([places, np.asarray(self.indicators, int)])

    @cached_property
    def _fills(self) -> np.ndarray:
        return np.concatenate([_spread_fill(column) for column in self.columns])

    def needs_table(self, X: Any) -> bool:
        """Whether rows must be read as a table, not as an array of numbers.

        Raises:
            ValueError: They must be, and are not a table.
        """
        if self.has_categories and not isinstance(X, pd.DataFrame):
            names = [column.name for column in self.columns if column.kind == "category"]
            raise ValueError(
                f"X is a {type(X).__name__}, and the estimator was fitted to a table with "
                f"categories, in {names}. Give a pandas.DataFrame with the same columns."
            )
        return self.has_categories or has_categories(X)

    def encode(self, X: Any, *, missing: str = "mean") -> np.ndarray:
        """Return the inputs of the network, in float64.

        Args:
            X: Rows like those from which the encoding was learnt.
            missing: "mean" to impute missing values, or "error".

        Raises:
            ValueError: A value is missing, infinite, or of a different kind than before.
        """
        matrix = self._make_matrix(X, warn=missing == "mean")
        if np.isinf(matrix).any():
            raise ValueError("X contains infinite values. Correct them, or leave them empty.")
        is_missing = np.isnan(matrix)
        if not is_missing.any() and not self.indicators:
            return matrix
        if is_missing.any() and missing == "error":
            row, place = np.argwhere(is_missing)[0]
            name = self.columns[self.sources[place]].name
            raise ValueError(
                f"column {name!r} has no value, or one that did not occur in training, in row "
                f"{row}. Fill it in, or set missing='mean'."
            )
        starts = np.cumsum([0, *(len(column.inputs) for column in self.columns)])
        marks = is_missing[:, starts[list(self.indicators)]].astype(np.float64)
        return np.hstack([np.where(is_missing, self._fills, matrix), marks])

    def _make_matrix(self, X: Any, *, warn: bool = True) -> np.ndarray:
        """Return the columns as numbers, with nan where a value is missing or unknown."""
        if isinstance(X, np.ndarray):
            return X
        parts = [
            _encode_column(column, X.iloc[:, place], warn)
            for place, column in enumerate(self.columns)
        ]
        return np.hstack(parts)


def _describe_column(name: str, values: pd.Series) -> Column:
    """Return the kind of a column of a table, by its dtype or, if that is `object`, its values."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        present = set(values.dropna())
        levels = [str(level) for level in values.dtype.categories if level in present]
    elif _is_number_dtype(values.dtype):
        is_boolean = pd.api.types.is_bool_dtype(values.dtype)
        return Column(name, "boolean" if is_boolean else "number")
    else:
        content = pd.api.types.infer_dtype(values, skipna=True)
        if content in _NUMBERS:
            return Column(name, "boolean" if content == "boolean" else "number")
        if content != "string":
            raise ValueError(
                f"column {name!r} has dtype {values.dtype} and holds values of the kind "
                f"{content!r}. Supported: numbers, booleans, text and pandas categories."
            )
        levels = sorted({str(value) for value in values.dropna()})
        if len(levels) > MAX_CATEGORIES:
            raise ValueError(
                f"column {name!r} has {len(levels)} different text values, such as {levels[0]!r}, "
                "and "
                f"at most {MAX_CATEGORIES} are taken as categories. Leave the column out, or "
                "convert it to the dtype 'category', of which there may be any number."
            )
    if len(set(levels)) < len(levels):
        raise ValueError(
            f"column {name!r} has categories with the same name. Give each a different name."
        )
    return Column(name, "category" if levels else "number", tuple(levels))


def _encode_column(column: Column, values: pd.Series, warn: bool) -> np.ndarray:
    """Return the inputs of a column, of shape (rows, inputs), with nan where a value is missing."""
    if column.kind != "category":
        try:
            return values.to_numpy(np.float64, na_value=np.nan)[:, None]
        except (TypeError, ValueError):
            raise ValueError(
                f"column {column.name!r} contains values that are not numbers, but contained "
                "numbers when the estimator was fitted. Correct them, or leave them empty."
            ) from None
    is_missing = values.isna().to_numpy(bool)
    labels = np.array([None if gap else str(v) for v, gap in zip(values, is_missing, strict=True)])
    codes = pd.Index(column.categories, dtype=object).get_indexer(labels.astype(object))
    unknown = np.flatnonzero((codes < 0) & ~is_missing)
    if len(unknown) and warn:
        texts = sorted(set(labels[unknown].tolist()))
        warnings.warn(
            f"column {column.name!r} holds {texts[:5]}, which the training data did not, in "
            f"{len(unknown)} rows. They are treated as missing.",
            stacklevel=6,
        )
    hot = np.full((len(codes), len(column.categories)), np.nan)
    hot[codes >= 0] = np.eye(len(column.categories))[codes[codes >= 0]]
    return hot[:, 1:] if len(column.categories) == 2 else hot


def _choose_fill(column: Column, means: np.ndarray) -> float | str:
    """Return the mean of a column of numbers, or the most frequent category."""
    if column.kind != "category":
        return float(means[0])
    if len(column.categories) == 2:
        return column.categories[int(means[0] > 0.5)]
    return column.categories[int(np.argmax(means))]


def _spread_fill(column: Column) -> np.ndarray:
    """Return the replacement for a missing value in each input of a column."""
    if column.kind != "category":
        assert isinstance(column.fill, float)
        return np.array([column.fill])
    hot = np.array([float(category == column.fill) for category in column.categories])
    return hot[1:] if len(hot) == 2 else hot
