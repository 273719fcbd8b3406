"""Reading a table from a file: CSV, TSV or Parquet."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from secateur.remedies import Remedy
from secateur.tables.cells import UNNAMED, TableError, number_rows, quote_names, write_value

__all__ = ["read_table"]

_DELIMITERS = {".tsv": "\t", ".tab": "\t", ".csv": "", ".txt": ""}  # "" is found from the header
_CANDIDATES = ",;\t|"
_SAMPLE = 1 << 16  # number of characters examined to find the delimiter and the decimal sign
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\x28\xb5\x2f\xfd": "", b"\x1f\x8b": ""}


def read_table(
    path: str | os.PathLike,
    *,
    text: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
) -> pd.DataFrame:
    r"""Read a table with named columns.

    The delimiter of a CSV file is the comma, semicolon, tab or bar that divides its header into
    most names; unless it is the comma, numbers may have a decimal comma. A first column without a
    name, as pandas and R write it for row numbers, is called "Unnamed: 0".

    Args:
        path: File whose name ends in .csv, .tsv, .tab, .txt or .parquet.
        text: Columns whose values are read literally as text, even if they look like numbers. Names
            that are not in the table are ignored.
        columns: Columns to read. Defaults to all.
        encoding: Encoding of a text file. Defaults to UTF-8, with or without a mark.

    Returns:
        The table, rows numbered from 0.

    Raises:
        TableError: The file cannot be read, or is not a table.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.csv"
        >>> _ = path.write_text("size;colour\n1,5;red\n2;blue\n")
        >>> read_table(path).to_dict("list")
        {'size': [1.5, 2.0], 'colour': ['red', 'blue']}
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in (*_DELIMITERS, ".parquet"):
        raise TableError(
            f"{path} does not end in {', '.join(_DELIMITERS)} or .parquet. Save the table as one "
            "of these."
        )
    if path.is_dir():
        raise TableError(f"{path} is a folder. Give a file.")
    try:
        if ending == ".parquet":
            frame = _read_parquet(path, text, columns)
        else:
            separator = _DELIMITERS[ending]
            frame = _read_delimited(path, separator, text, columns, encoding or "utf-8-sig")
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not len(frame):
        raise TableError(f"{path} has a header but no rows. Give at least a few rows of data.")
    return frame


def _read_parquet(path: Path, text: Sequence[str], columns: Sequence[str] | None) -> pd.DataFrame:
    if not path.exists():
        raise TableError(f"there is no file {path}.")
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise TableError(
            "Parquet files need pyarrow: pip install pyarrow, or save the table as CSV."
        ) from error
    except OSError:
        raise
    except Exception as error:  # pyarrow's own errors, of many kinds
        raise TableError(f"{path} is not a Parquet file, or is damaged ({error}).") from error
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    frame.columns = _check_names(path, [str(name) for name in frame.columns])
    if columns is not None:
        frame = frame[[name for name in frame.columns if name in columns]]
    for name in set(text) & set(frame.columns):
        values = frame[name]
        frame[name] = values.astype(object).where(values.isna(), values.map(write_value))
    return frame.reset_index(drop=True)


def _read_delimited(
    path: Path,
    delimiter: str,
    text: Sequence[str],
    columns: Sequence[str] | None,
    encoding: str,
) -> pd.DataFrame:
    sample = _read_sample(path, encoding)
    lines = io.StringIO(sample, newline="")
    delimiter = delimiter or _find_delimiter(path, sample)
    try:
        header = next((row for row in csv.reader(lines, delimiter=delimiter) if row), None)
    except csv.Error as error:
        raise TableError(f"{path}: the header cannot be read ({error}).") from error
    if header is None:
        raise TableError(f"{path} is empty. Give a table with a header and rows.")
    names = _check_names(path, header)
    comma = delimiter != "," and re.search(r"\d,\d", sample) and not re.search(r"\d\.\d", sample)
    try:
        with warnings.catch_warnings():
            # pandas only warns if all rows are longer than the header.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                sep=delimiter,
                header=0,
                names=names,
                index_col=False,
                usecols=None if columns is None else [n for n in names if n in columns],
                dtype={name: str for name in text if name in names},
                decimal="," if comma else ".",
                encoding=encoding,
                low_memory=False,
                skipinitialspace=True,
            )
    except UnicodeDecodeError as error:
        raise _make_decoding_error(path, encoding, error) from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        raise _make_ragged_error(path, delimiter, encoding, len(names), error) from error
    except pd.errors.EmptyDataError as error:
        raise TableError(f"{path} is empty. Give a table with a header and rows.") from error
    # A row that is too short has nothing in its last column, which may also be missing by right.
    may_be_ragged = len(names) > 1 and names[-1] in frame and frame[names[-1]].isna().any()
    if may_be_ragged and _find_ragged_rows(path, delimiter, encoding, len(names)):
        raise _make_ragged_error(path, delimiter, encoding, len(names), None)
    return frame


def _read_sample(path: Path, encoding: str) -> str:
    """Return the beginning of a text file, whole lines if it has more than one."""
    if not path.exists():
        raise TableError(f"there is no file {path}.")
    with open(path, "rb") as file:
        mark = file.read(4)
    if encoding == "utf-8-sig":
        for begin, known in _MARKS.items():
            if mark.startswith(begin) and not known:
                raise TableError(f"{path} is compressed. Unpack it first.")
            if mark.startswith(begin):
                raise TableError(
                    f"{path} is not UTF-8 but {known.upper()}.",
                    Remedy("encoding", known, "reads it", is_advised=True),
                )
    try:
        with open(path, encoding=encoding, newline="") as file:
            sample = file.read(_SAMPLE)
    except UnicodeError as error:
        raise _make_decoding_error(path, encoding, error) from error
    except LookupError as error:
        raise TableError(
            f"the encoding {encoding!r} is not known to Python. Common ones: utf-8, latin-1, "
            "cp1252, utf-16."
        ) from error
    if "\0" in sample:
        raise TableError(
            f"{path} holds NUL characters, so it is not text in {_name_encoding(encoding)}. Give a "
            "CSV file, or specify its encoding."
        )
    return sample


def _find_delimiter(path: Path, sample: str) -> str:
    first = next((line for line in sample.splitlines() if line.strip()), "")
    if not first:
        raise TableError(f"{path} is empty. Give a table with a header and rows.")

    def names(delimiter: str) -> int:
        try:
            return len(next(csv.reader([first], delimiter=delimiter)))
        except csv.Error:
            return 0

    return max(_CANDIDATES, key=names)  # the first of several that are equal


def _check_names(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip() for name in header]
    if len(names) > 1 and names[0] == "" and UNNAMED not in names:
        names[0] = UNNAMED  # row numbers or row names, as pandas and R write them
    if "" in names:
        raise TableError(
            f"{path}: column {names.index('') + 1} has no name. Name it in the header (a table "
            "needs one), or remove the column."
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TableError(
            f"{path}: the column name {quote_names(repeated)} occurs more than once in the header. "
            "Give every column a different name."
        )
    return names


def _make_decoding_error(path: Path, encoding: str, error: UnicodeError) -> TableError:
    where = ""
    if isinstance(error, UnicodeDecodeError):
        where = f" (byte 0x{error.object[error.start]:02x})"
    return TableError(
        f"{path} is not {_name_encoding(encoding)}{where}. Specify its encoding, such as cp1252, "
        "or save it as UTF-8.",
        Remedy("encoding", "latin-1", "is a common one", is_advised=True),
    )


def _name_encoding(encoding: str) -> str:
    return "UTF-8" if encoding == "utf-8-sig" else encoding


def _find_ragged_rows(
    path: Path, delimiter: str, encoding: str, wanted: int
) -> list[tuple[int, int]] | None:
    """Return position and length of the rows that are longer or shorter than the header."""
    ragged = []
    try:
        with open(path, encoding=encoding, newline="") as file:
            rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            filled = (row for row in rows if len(row) > 1 or (row and row[0].strip()))
            for position, row in enumerate(filled, -1):
                # One additional delimiter at the end of a line is harmless.
                if len(row) != wanted and not (len(row) == wanted + 1 and not row[-1]):
                    ragged.append((position, len(row)))
    except (csv.Error, UnicodeError):
        return None
    return ragged


def _make_ragged_error(
    path: Path, delimiter: str, encoding: str, wanted: int, error: Any
) -> TableError:
    ragged = _find_ragged_rows(path, delimiter, encoding, wanted)
    if not ragged:
        reason = " ".join(str(error).split()) or type(error).__name__
        return TableError(
            f"{path} cannot be read as a table: {reason}. Look for an unclosed quotation mark, or "
            "a truncated line."
        )
    position, fields = ragged[0]
    others = f" (so are {len(ragged) - 1} more)" if len(ragged) > 1 else ""
    return TableError(
        f"{path}: {number_rows([position])} has {fields} field{'s' if fields != 1 else ''} and the "
        f"header {wanted}{others}. Give every row the same number of fields; a field that contains "
        f"{delimiter!r} needs "
        "quotation marks."
    )
