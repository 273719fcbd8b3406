"""Scores of the model of a run on another table that has the target."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pandas as pd

import secateur as sc
from secateur.averaging import Average
from secateur.remedies import Remedy
from secateur.report.performance import score_prediction, score_targets
from secateur.runs.table_model import encode_used_columns, find_encoding, list_models
from secateur.tables import Encoding, TableError, read_table
from secateur.tables.cells import quote_names
from secateur.tables.gaps import find_gaps, make_missing_error

__all__ = ["score_table"]


def score_table(
    model: sc.Trained | Average,
    path: str | os.PathLike,
    *,
    missing: str | None = None,
    encoding: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Compare the predictions of a model for the rows of a table with the targets.

    Columns that the model does not use may be missing or contain anything.

    Args:
        model: Model of a run, from `secateur.runs.table_model.load_model`.
        path: Path of the table; its columns are matched by name.
        missing: "error"; "drop"; or "mean", which fills in inputs. Rows without a target are an
            error, or are left out. Defaults to the setting of the fit.
        encoding: Encoding of a text file. Defaults to UTF-8.

    Returns:
        The scores of `secateur.report.performance.score_prediction` with the number of `rows`, the
        `task` and, for numbers, the scores of each of the `targets`; for classes also `log_loss`,
        which is −log_likelihood. Second, messages for the user.

    Raises:
        TableError: The table does not have the target or what the model needs, holds a class that
            the model does not know, or the model was not made from a table.
    """
    columns = find_encoding(model)
    frame = read_table(path, text=columns.text_columns, encoding=encoding)
    missing = columns.missing if missing is None else missing
    frame, notes = _choose_rows(columns, frame, missing)
    encoded = encode_used_columns(model, columns, frame, missing=missing)
    frame = frame.iloc[encoded.rows]
    if not len(frame):
        raise TableError(
            f"no row of {path} is complete.",
            Remedy("missing", "mean", "fills in the mean, or the most frequent category"),
        )
    y = columns.encode_targets(frame)
    assert y is not None  # _choose_rows has seen the targets
    prediction = model.predict(encoded.x)
    likelihood = list_models(model)[0].model.likelihood
    scores = score_prediction(prediction, y, likelihood=likelihood)
    result: dict[str, Any] = {"rows": len(y), "task": columns.task, **scores}
    if columns.task == "classification":
        value = scores["log_likelihood"]
        result["log_loss"] = None if value is None else -value
    else:
        result["targets"] = [
            {"name": target.name, **own}
            for target, own in zip(columns.targets, score_targets(prediction, y), strict=True)
        ]
    return result, [*notes, *encoded.notes]


def _choose_rows(
    columns: Encoding, frame: pd.DataFrame, missing: str
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows that have the targets, and a note on the others."""
    names = [target.name for target in columns.targets]
    absent = [name for name in names if name not in frame]
    if absent:
        raise TableError(
            f"the table has no column {absent[0]!r}, which is the target of the model. It has "
            f"{quote_names(list(frame.columns), 20)}. Add the target, which the predictions are "
            "compared with."
        )
    gaps = find_gaps(frame[names])
    if not gaps:
        return frame, []
    if missing == "error":
        raise make_missing_error(gaps, "target")
    is_incomplete = np.any(list(gaps.values()), axis=0)
    note = f"{int(is_incomplete.sum())} rows without a target are left out"
    return frame[~is_incomplete], [note]
