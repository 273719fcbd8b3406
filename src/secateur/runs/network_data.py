"""Data for a trained network: arrays from .npz or .npy files, or the columns of a table."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from secateur.importing import ImportedFunction
from secateur.remedies import Remedy, UsageError
from secateur.tables import read_table

__all__ = ["NetworkData", "read_network_data"]


class NetworkData(NamedTuple):
    """Rows for a network.

    Attributes:
        x: Inputs: an array, or a dict by name.
        y: Targets, or None where there are none.
        name: Name of the file.
    """

    x: Any
    y: np.ndarray | None
    name: str


def read_network_data(
    paths: Sequence[str | os.PathLike], f: ImportedFunction, *, target: str | None = None
) -> NetworkData:
    """Read inputs and, if there are any, targets.

    Args:
        paths: A .npz file with `x` (or arrays with the names of the inputs) and, for targets, `y`;
            two .npy files, inputs and targets, or one; or a table whose columns, except the
            target, are the inputs in order.
        f: The network.
        target: Column of a table that is the target.

    Raises:
        UsageError: The files do not contain what the network needs.
    """
    first = Path(paths[0])
    if not first.is_file():
        raise UsageError(f"there is no file {first}.")
    names = [value.name for value in f.inputs]
    if first.suffix == ".npz":
        arrays = _read_npz(first)
        y = arrays.get("y")
        if set(names) <= set(arrays):
            x: Any = {name: arrays[name] for name in names}
            x = x[names[0]] if len(names) == 1 else x
        elif "x" in arrays and len(names) == 1:
            x = arrays["x"]
        else:
            raise UsageError(
                f"{first} holds the arrays {', '.join(sorted(arrays))}. Give the inputs as "
                f"{'x or ' if len(names) == 1 else ''}{', '.join(names)}, and targets as y."
            )
    elif first.suffix == ".npy":
        x, y = _read_npy(first), _read_npy(Path(paths[1])) if len(paths) > 1 else None
    else:
        x, y = _read_columns(first, target)
    if len(paths) > 1 and first.suffix != ".npy":
        raise UsageError("Two files are for .npy arrays: inputs, then targets.")
    x = _fit_inputs(x, f)
    rows = {len(a) for a in (x.values() if isinstance(x, dict) else [x])}
    if y is not None:
        rows.add(len(y))
    if len(rows) != 1 or min(rows) < 10:
        raise UsageError(
            f"inputs and targets have {sorted(rows)} rows. Give at least 10 rows, and the same "
            "number of each."
        )
    return NetworkData(x, y, first.name)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{path} cannot be read as .npz: {error}.") from error


def _read_npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} cannot be read as .npy: {error}.") from error


def _read_columns(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    frame = read_table(path)
    y = None
    if target is not None:
        if target not in frame:
            raise UsageError(f"{path} has no column {target!r}.")
        y = frame.pop(target).to_numpy()
    texts = [str(c) for c in frame.columns if frame[c].dtype.kind not in "fiub"]
    if texts:
        raise UsageError(
            f"the columns {', '.join(texts[:5])} of {path} are not numeric, so the trained network "
            "cannot use them. Leave them out, or encode them as in its training.",
            Remedy("target", texts[0], "names the target"),
        )
    return frame.to_numpy(np.float32), y


def _fit_inputs(x: Any, f: ImportedFunction) -> Any:
    """Convert arrays to the types of the network's inputs, and check their shapes."""

    def check(array: np.ndarray, place: int) -> np.ndarray:
        value = f.inputs[place]
        shape = value.shape
        if array.dtype.kind not in "fiub":
            raise UsageError(f"the input {value.name!r} holds {array.dtype}, not numbers.")
        wanted = None if shape is None else shape[1:]
        is_wrong = wanted is not None and (
            len(wanted) != array.ndim - 1
            or any(
                isinstance(n, int) and n != m for n, m in zip(wanted, array.shape[1:], strict=True)
            )
        )
        if is_wrong:
            spelled = ", ".join("any" if not isinstance(n, int) else str(n) for n in wanted or ())
            raise UsageError(
                f"the rows of {value.name!r} have the shape {array.shape[1:]}. The network needs "
                f"({spelled})."
            )
        if not np.all(np.isfinite(array)):
            raise UsageError(f"the input {value.name!r} holds numbers that are not finite.")
        return array.astype(value.dtype) if value.dtype else array

    if isinstance(x, dict):
        return {v.name: check(x[v.name], i) for i, v in enumerate(f.inputs)}
    if len(f.inputs) != 1:
        raise UsageError(f"the network has the inputs {', '.join(v.name for v in f.inputs)}.")
    return check(np.asarray(x), 0)
