"""`secateur export` without its command line: from a run's folder to files for a device."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import secateur as sc
from secateur import atomic, report
from secateur.exports import Sheet, export
from secateur.runs.folders import Folder
from secateur.tables import Encoding, TableError, read
from secateur.tables.values import numbers, texts

__all__ = ["export_run"]


def export_run(
    folder: Folder, path: Path, *, data: str | os.PathLike | None = None, **wishes: Any
) -> Sheet:
    """Export the model of a run, and add the sheet to its record and its report.

    Args:
        folder: of the run.
        path: the file to write; ends in `.onnx` or `.c`.
        data: a table with the same columns, for the scales of activations and, if it has the
            targets, for what quantisation costs.
        wishes: of `secateur.export`.

    Raises:
        FolderError, TableError, FileError, ExportError: what the user can put right.
    """
    model = sc.load(folder.finished_model())
    rows = {} if data is None else _rows(model, data)
    sheet = export(model, path, **rows, **wishes)
    record_path = folder.path / "run.json"
    if record_path.is_file():
        record = report.read_record(record_path)
        others = [s for s in record.get("exports", []) if s["files"] != list(sheet.files)]
        shown = {"title": sheet.title, "rows": sheet.rows()}
        record["exports"] = [*others, json.loads(sheet.to_json()) | shown]
        atomic.write(record_path, json.dumps(record, allow_nan=False))
        report.write(record, folder.report)
    return sheet


def _rows(model: Any, path: str | os.PathLike) -> dict[str, Any]:
    extra = model.extra if isinstance(model.extra, dict) else {}
    if "table" not in extra:
        raise TableError("the model was not made from a table by `secateur fit`.")
    encoding = Encoding.from_json(extra["table"])
    frame = read(path, text=encoding.text_columns)
    found = encoding.encode(frame)
    if not len(found.rows):
        raise TableError(f"no row of {path} is complete.")
    if any(target.name not in frame for target in encoding.targets):
        return {"inputs": found.x}
    return {"inputs": found.x, "targets": _targets(encoding, frame.iloc[found.rows])}


def _targets(encoding: Encoding, frame: pd.DataFrame) -> np.ndarray:
    first = encoding.targets[0]
    if first.classes is None:
        return np.stack([numbers(t.name, frame[t.name]) for t in encoding.targets], axis=1)
    shown = [_as_class(v) for v in texts(frame[first.name])]
    unknown = sorted({str(v) for v in shown} - {*first.classes})
    if unknown:
        raise TableError(f"target {first.name!r} holds classes the model does not know: {unknown}.")
    return np.array([first.classes.index(v) for v in shown], np.int32)


def _as_class(value: Any) -> str:
    """A class as the model's table has it: 3 and not 3.0, true and not True."""
    text = str(value)
    if text in ("True", "False"):
        return text.lower()
    return text.removesuffix(".0")
