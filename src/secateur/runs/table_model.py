"""Uses of the model of a finished run: predictions for other tables, and exports."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import secateur as sc
from secateur import report
from secateur.averaging import Average
from secateur.compaction import find_used_inputs
from secateur.exports import Sheet, export
from secateur.exports.model_labels import make_labels
from secateur.importing import ImportedFunction
from secateur.remedies import Remedy
from secateur.report.performance import find_class_probabilities
from secateur.runs.folder import FolderError, RunFolder
from secateur.tables import EncodedRows, Encoding, TableError, read_table

__all__ = [
    "encode_used_columns",
    "export_run",
    "load_model",
    "predict_rows",
    "predict_table",
    "save_model",
]


def save_model(model: sc.Trained | Average, folder: RunFolder, extra: dict[str, Any]) -> None:
    """Write the model of a run to its folder; of an average, all of its models.

    Args:
        model: The pruned model, or several of them that predict together, the best one first.
        folder: The folder.
        extra: Further facts to be saved with it.
    """
    if isinstance(model, sc.Trained):
        sc.save(model, folder.model, extra=extra)
        return
    first, *others = model.models
    sc.save(first, folder.model, extra=extra | {"average": model.describe()})
    folder.restarts.mkdir()
    for number, other in enumerate(others, 2):
        sc.save(other, folder.restarts / f"{number}.safetensors", extra=extra)


def load_model(folder: RunFolder) -> sc.Trained | Average:
    """Load the model of a run, or all restarts that it averages.

    Args:
        folder: The folder of a finished run.

    Raises:
        FolderError: The folder contains no model, or a model of the average is missing.
        FileError: A file is damaged.
    """
    model = sc.load(folder.find_model())
    average = model.extra.get("average") if isinstance(model.extra, dict) else None
    if average is None:
        return model
    numbers = range(2, average["models"] + 1)
    paths = [folder.restarts / f"{number}.safetensors" for number in numbers]
    absent = [path for path in paths if not path.is_file()]
    if absent:
        raise FolderError(
            f"the run averages {average['models']} networks, and {absent[0]} is missing. Copy the "
            "whole folder of the run, or fit again."
        )
    return Average.from_models([model, *map(sc.load, paths)], average["weighting"])


def list_models(model: sc.Trained | Average) -> tuple[sc.Trained, ...]:
    """Return the models that predict together, the best one first."""
    return model.models if isinstance(model, Average) else (model,)


def predict_table(
    model: sc.Trained | Average,
    path: str | os.PathLike,
    *,
    interval: float = 0.95,
    missing: str | None = None,
    encoding: str | None = None,
    at_means: bool = False,
) -> tuple[pd.DataFrame, list[str]]:
    """Predict the rows of a table in a file, in its order; see `predict_rows`.

    Columns that the model does not use may be missing or contain anything.

    Args:
        model: Model of a run, from `load_model`.
        path: Path of the table; its columns are matched by name.
        interval: Probability of the interval.
        missing: "error"; "mean"; or "drop", which leaves the predictions of such rows empty.
            Defaults to the setting of the fit.
        encoding: Encoding of a text file. Defaults to UTF-8.
        at_means: As in `Trained.predict`; of an average, for its best model alone.

    Returns:
        The predictions, and messages for the user.

    Raises:
        TableError: The table does not have what the model needs, or the model was not made from a
            table.
    """
    if at_means:
        model = list_models(model)[0]
    columns = find_encoding(model)
    frame = read_table(path, text=columns.text_columns, encoding=encoding)
    encoded = encode_used_columns(model, columns, frame, missing=missing)
    if not len(encoded.rows):
        raise TableError(
            f"no row of {path} is complete.",
            Remedy("missing", "mean", "fills in the mean, or the most frequent category"),
        )
    predictions = predict_rows(model, columns, encoded.x, interval=interval, at_means=at_means)
    predictions.index = encoded.rows
    return predictions.reindex(np.arange(len(frame))), encoded.notes


def encode_used_columns(
    model: sc.Trained | Average,
    encoding: Encoding,
    frame: pd.DataFrame,
    *,
    missing: str | None = None,
) -> EncodedRows:
    """Encode the columns of a table that a model uses; its other inputs get their means.

    A pruned weight is exactly 0, so predictions do not depend at all on the value of an unused
    input.

    Args:
        model: A trained model, or an average.
        encoding: Encoding of its inputs.
        frame: A table from `read_table`, with `encoding.text_columns` as text.
        missing: As in `Encoding.encode`.

    Raises:
        TableError: A column that is used is missing, or its values are of a different kind.
    """
    models = list_models(model)
    labels = make_labels(encoding, models[0])
    used = np.any([find_used_inputs(own) for own in models], axis=0)
    columns = [c for c in labels.columns if any(used[i] for i in c.inputs if i is not None)]
    needed = {column.name for column in columns}
    partial = replace(
        encoding,
        columns=tuple(c for c in encoding.columns if c.name in needed),
        unused=(*encoding.unused, *(c.name for c in encoding.columns if c.name not in needed)),
    )
    encoded = partial.encode(frame, missing=missing)
    affine = models[0].scaling.inputs
    means = np.zeros(len(used)) if affine is None else np.asarray(affine.shift, np.float64)
    x = np.tile(means, (len(encoded.rows), 1))
    places = [place for column in columns for place in column.inputs]
    for number, place in enumerate(places):
        if place is not None:
            x[:, place] = encoded.x[:, number]
    return encoded._replace(x=x)


def predict_rows(
    model: sc.Trained | Average,
    encoding: Encoding,
    x: np.ndarray,
    *,
    interval: float = 0.95,
    at_means: bool = False,
) -> pd.DataFrame:
    """Return the predictions of a model as a table.

    Numbers: for each target its mean, standard deviation and central interval, noise included.
    Classes: the most probable one, and the probability of each. See `secateur.Predictive`.

    Args:
        model: A trained model, or an average.
        encoding: Encoding of its inputs.
        x: Inputs, of shape (rows, inputs).
        interval: Probability of the interval.
        at_means: As in `Trained.predict`; of an average, for its best model alone.
    """
    if at_means:
        prediction = list_models(model)[0].predict(x, at_means=True)
    else:
        prediction = model.predict(x)
    if encoding.task == "classification":
        (target,) = encoding.targets
        classes = target.classes or ()
        probabilities = find_class_probabilities(prediction)
        best = np.asarray(classes, object)[probabilities.argmax(axis=1)]
        columns = {f"{target.name}={c}": p for c, p in zip(classes, probabilities.T, strict=True)}
        return pd.DataFrame({target.name: best} | columns)
    low, high = prediction.interval(interval)
    parts = {"mean": prediction.mean, "sd": prediction.standard_deviation, "low": low, "high": high}
    return pd.DataFrame(
        {
            f"{target.name}_{part}": values[:, number]
            for number, target in enumerate(encoding.targets)
            for part, values in parts.items()
        }
    )


def export_run(
    folder: RunFolder, path: Path, *, data: str | os.PathLike | None = None, **options: Any
) -> Sheet:
    """Export the model of a run, and add the sheet to its record and its report.

    Args:
        folder: Folder of the run.
        path: File to write, which ends in `.onnx` or `.c`.
        data: A table with the same columns, for the scales of activations and, if it has the
            targets, for the cost of quantisation.
        options: Options of `secateur.export`.

    Raises:
        FolderError, TableError, FileError, ExportError: An error that the user can correct.
    """
    model = sc.load(folder.find_model())
    rows = {} if data is None else _read_rows(model, data)
    if any(isinstance(m.model.f, ImportedFunction) for m in list_models(model)):
        options["keep_inputs"] = None  # there are no columns to leave out
    sheet = export(model, path, **rows, **options)
    if folder.record.is_file():
        record = report.read_record(folder.record)
        others = [s for s in record.get("exports", []) if s["files"] != list(sheet.files)]
        shown = {"title": sheet.title, "rows": sheet.rows()}
        record["exports"] = [*others, json.loads(sheet.to_json()) | shown]
        folder.write_record(record)
        report.write_report(record, folder.report)
    return sheet


def find_encoding(model: sc.Trained | Average) -> Encoding:
    """Return the encoding of the inputs and targets of a model of a table.

    Raises:
        TableError: The model was not made from a table.
    """
    extra = list_models(model)[0].extra
    if not isinstance(extra, dict) or "table" not in extra:
        raise TableError(
            "the model was not made from a table, so it does not know which columns it needs."
        )
    return Encoding.from_json(extra["table"])


def _read_rows(model: sc.Trained, path: str | os.PathLike) -> dict[str, Any]:
    """Return the inputs of a table and, if it has them, the targets, as `export` takes them."""
    encoding = find_encoding(model)
    frame = read_table(path, text=encoding.text_columns)
    encoded = encode_used_columns(model, encoding, frame)
    if not len(encoded.rows):
        raise TableError(f"no row of {path} is complete.")
    rows: dict[str, Any] = {"inputs": encoded.x}
    frame = frame.iloc[encoded.rows]
    names = [target.name for target in encoding.targets]
    if any(name not in frame for name in names):
        return rows
    is_known = frame[names].notna().all(axis=1).to_numpy()
    targets = encoding.encode_targets(frame[is_known]) if is_known.any() else None
    if targets is None:
        return rows
    if is_known.all():
        return rows | {"targets": targets}
    return rows | {"held_out": (encoded.x[is_known], targets)}
