"""Reading of numeric tables in the formats used by data archives."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import PurePosixPath

import numpy as np

from secateur.datasets.dataset import DatasetError

__all__ = [
    "hash_values",
    "is_archive",
    "join_targets",
    "read_member",
    "read_table",
    "round_decimals",
    "round_significant",
]

XLS = b"\xd0\xcf\x11\xe0"
ZIP = b"PK\x03\x04"


def hash_values(*arrays: np.ndarray) -> str:
    """Return the SHA-256 of shapes and values, the same on every machine."""
    result = hashlib.sha256()
    for array in arrays:
        plain = array + 0.0 if array.dtype.kind == "f" else array  # −0 is the same as 0
        little_endian = np.ascontiguousarray(plain, dtype=plain.dtype.newbyteorder("<"))
        result.update(f"{little_endian.dtype.str}{array.shape}".encode())
        result.update(little_endian.tobytes())
    return result.hexdigest()


def is_archive(content: bytes) -> bool:
    """Return whether a file is a zip archive; workbooks, which are zip files too, are not."""
    return content.startswith(ZIP) and "[Content_Types].xml" not in _open_zip(content).namelist()


def read_member(content: bytes, name: str) -> bytes:
    """Return a file of a zip archive, from any folder of the archive."""
    archive = _open_zip(content)
    pattern = str(PurePosixPath(name))
    for path in archive.namelist():
        if PurePosixPath(path).match(pattern) and not path.startswith("__MACOSX"):
            try:
                return archive.read(path)
            except (zipfile.BadZipFile, OSError, EOFError) as error:
                raise DatasetError(f"{path} in the archive is damaged: {error}") from None
    raise DatasetError(f"the archive has no {name}, only {', '.join(archive.namelist()[:8])}")


def read_table(content: bytes, *, columns: int, sheet: int = 0) -> np.ndarray:
    """Return the numbers of a text file or an Excel workbook.

    Text may be separated by spaces, commas or semicolons, and start with a line of names or an ARFF
    header. Blank lines and rows, and empty columns on the right, are ignored.

    Args:
        content: Content of the file.
        columns: Number of columns that the table must have.
        sheet: Number of the sheet in a workbook.

    Returns:
        An array of float64, (rows, columns).
    """
    is_workbook = content.startswith((XLS, ZIP))
    rows = _read_workbook(content, sheet) if is_workbook else _read_text(content)
    if not rows:
        raise DatasetError("it is empty")
    if not _is_number(rows[0][0]):
        del rows[0]
    for number, row in enumerate(rows, 1):
        if len(row) != columns:
            raise DatasetError(f"data row {number} has {len(row)} values, not {columns}")
    try:
        return np.array(rows, dtype=np.float64).reshape(-1, columns)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"not a number: {error}") from None


def join_targets(tables: Sequence[np.ndarray], targets: int) -> np.ndarray:
    """Join tables that have the same inputs and one target each."""
    if len(tables) == 1:
        return tables[0]
    inputs = tables[0][:, :-1]
    for table in tables[1:]:
        if not np.array_equal(table[:, :-1], inputs):
            raise DatasetError("the files of the targets do not have the same inputs")
    joined = np.column_stack([inputs, *(table[:, -1] for table in tables)])
    if joined.shape[1] != inputs.shape[1] + targets:
        raise DatasetError(f"{len(tables)} targets, not {targets}")
    return joined


def round_decimals(values: np.ndarray, decimals: int) -> np.ndarray:
    """Round as a spreadsheet does: the printed decimal, with halves away from zero."""
    unit = Decimal(1).scaleb(-decimals)
    rounded = [
        float(Decimal(repr(value)).quantize(unit, rounding=ROUND_HALF_UP))
        for value in values.ravel().tolist()
    ]
    return np.array(rounded).reshape(values.shape)


def round_significant(values: np.ndarray, digits: int) -> np.ndarray:
    """Round to a number of significant decimal digits."""
    rounded = [float(f"{value:.{digits - 1}e}") for value in values.ravel().tolist()]
    return np.array(rounded).reshape(values.shape)


def _open_zip(content: bytes) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(content))
    except zipfile.BadZipFile:
        raise DatasetError("it is a zip file that is damaged or cut off") from None


def _read_workbook(content: bytes, sheet: int) -> list[list[object]]:
    import python_calamine

    try:
        workbook = python_calamine.load_workbook(io.BytesIO(content))
        cells = workbook.get_sheet_by_index(sheet).to_python()
    except (python_calamine.CalamineError, python_calamine.WorksheetNotFound) as error:
        raise DatasetError(f"it is not a readable Excel workbook: {error}") from None
    rows: list[list[object]] = [[cell for cell in row if cell != ""] for row in cells]
    return [row for row in rows if row]


def _read_text(content: bytes) -> list[list[object]]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise DatasetError("it is neither text nor a workbook nor a zip file") from None
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] not in "%@"]
    separator = next((mark for mark in ";," if mark in text), None)
    return [[value.strip() for value in line.split(separator)] for line in lines]


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True
