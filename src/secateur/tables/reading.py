"""From a file to a table: CSV, TSV or Parquet, or a sentence that says why not."""

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

from secateur.tables.errors import TableError, quoted, rows_of

__all__ = ["read"]

_DELIMITERS = {".tsv": "\t", ".tab": "\t", ".csv": "", ".txt": ""}  # "" is found from the header
_CANDIDATES = ",;\t|"
_SAMPLE = 1 << 16  # characters looked at to find the delimiter and the decimal sign
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\x28\xb5\x2f\xfd": "", b"\x1f\x8b": ""}


def read(
    path: str | os.PathLike, *, text: Sequence[str] = (), encoding: str | None = None
) -> pd.DataFrame:
    r"""Read a table with named columns.

    The delimiter of a CSV file is the one of comma, semicolon, tab and bar that cuts its header
    into most names; where it is not the comma, numbers may have a decimal comma.

    Args:
        path: a file whose name ends in .csv, .tsv, .tab, .txt or .parquet.
        text: columns whose values are taken as text even if they look like numbers; names that are
            not there are passed over.
        encoding: of a text file; UTF-8 by default, with or without a mark.

    Returns:
        The table, rows numbered from 0.

    Raises:
        TableError: the file cannot be read, or is no table.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.csv"
        >>> _ = path.write_text("size;colour\n1,5;red\n2;blue\n")
        >>> read(path).to_dict("list")
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
            frame = _parquet(path, text)
        else:
            frame = _delimited(path, _DELIMITERS[ending], text, encoding or "utf-8-sig")
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not len(frame):
        raise TableError(f"{path} has a header and no rows. Give at least a few rows of data.")
    return frame


def _parquet(path: Path, text: Sequence[str]) -> pd.DataFrame:
    if not path.exists():
        raise TableError(f"there is no file {path}.")
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise TableError(
            "Parquet files need pyarrow: pip install 'secateur[parquet]', or save the table as CSV."
        ) from error
    except OSError:
        raise
    except Exception as error:  # pyarrow's own errors, of many kinds
        raise TableError(f"{path} is no Parquet file, or is damaged ({error}).") from error
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    frame.columns = _checked_names(path, [str(name) for name in frame.columns])
    for name in set(text) & set(frame.columns):
        values = frame[name]
        frame[name] = values.astype(object).where(values.isna(), values.map(str))
    return frame.reset_index(drop=True)


def _delimited(path: Path, delimiter: str, text: Sequence[str], encoding: str) -> pd.DataFrame:
    sample = _sample(path, encoding)
    lines = io.StringIO(sample, newline="")
    delimiter = delimiter or _found_delimiter(path, sample)
    try:
        header = next((row for row in csv.reader(lines, delimiter=delimiter) if row), None)
    except csv.Error as error:
        raise TableError(f"{path}: the header cannot be read ({error}).") from error
    if header is None:
        raise TableError(f"{path} is empty. Give a table with a header and rows.")
    names = _checked_names(path, header)
    comma = delimiter != "," and re.search(r"\d,\d", sample) and not re.search(r"\d\.\d", sample)
    try:
        with warnings.catch_warnings():
            # Rows longer than the header, all of them, are only warned of.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                sep=delimiter,
                header=0,
                names=names,
                index_col=False,
                dtype={name: str for name in text if name in names},
                decimal="," if comma else ".",
                encoding=encoding,
                low_memory=False,
                skipinitialspace=True,
            )
    except UnicodeDecodeError as error:
        raise _not_decoded(path, encoding, error) from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        raise _ragged(path, delimiter, encoding, len(names), error) from error
    except pd.errors.EmptyDataError as error:
        raise TableError(f"{path} is empty. Give a table with a header and rows.") from error
    # A row that is too short has nothing in its last column, which may also be missing by right.
    if len(names) > 1 and frame[names[-1]].isna().any():
        short = _ragged_rows(path, delimiter, encoding, len(names))
        if short:
            raise _ragged(path, delimiter, encoding, len(names), None)
    return frame


def _sample(path: Path, encoding: str) -> str:
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
                    f"{path} is not UTF-8 but {known.upper()}. Say so with --encoding {known}."
                )
    try:
        with open(path, encoding=encoding, newline="") as file:
            sample = file.read(_SAMPLE)
    except UnicodeError as error:
        raise _not_decoded(path, encoding, error) from error
    except LookupError as error:
        raise TableError(
            f"--encoding {encoding} is not known to Python. Usual ones: utf-8, latin-1, cp1252, "
            "utf-16."
        ) from error
    if "\0" in sample:
        raise TableError(
            f"{path} holds NUL characters, so it is no text in {_plain(encoding)}. Give a CSV "
            "file, or its --encoding."
        )
    return sample


def _found_delimiter(path: Path, sample: str) -> str:
    first = next((line for line in sample.splitlines() if line.strip()), "")
    if not first:
        raise TableError(f"{path} is empty. Give a table with a header and rows.")

    def names(delimiter: str) -> int:
        try:
            return len(next(csv.reader([first], delimiter=delimiter)))
        except csv.Error:
            return 0

    return max(_CANDIDATES, key=names)  # the first of several that are equal


def _checked_names(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip() for name in header]
    if "" in names:
        raise TableError(
            f"{path}: column {names.index('') + 1} has no name. Name it in the header (a table "
            "needs one), or remove the column."
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(
            f"{path}: the column name {quoted(twice)} stands more than once in the header. Give "
            "every column its own name."
        )
    return names


def _not_decoded(path: Path, encoding: str, error: UnicodeError) -> TableError:
    where = ""
    if isinstance(error, UnicodeDecodeError):
        where = f" (byte 0x{error.object[error.start]:02x})"
    return TableError(
        f"{path} is not {_plain(encoding)}{where}. Say its encoding, such as --encoding latin-1 or "
        "--encoding cp1252, or save it as UTF-8."
    )


def _plain(encoding: str) -> str:
    return "UTF-8" if encoding == "utf-8-sig" else encoding


def _ragged_rows(
    path: Path, delimiter: str, encoding: str, wanted: int
) -> list[tuple[int, int]] | None:
    """Return position and length of the rows of another length than the header."""
    found = []
    try:
        with open(path, encoding=encoding, newline="") as file:
            rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            filled = (row for row in rows if len(row) > 1 or (row and row[0].strip()))
            for position, row in enumerate(filled, -1):
                # One delimiter more at the end of a line is harmless.
                if len(row) != wanted and not (len(row) == wanted + 1 and not row[-1]):
                    found.append((position, len(row)))
    except (csv.Error, UnicodeError):
        return None
    return found


def _ragged(path: Path, delimiter: str, encoding: str, wanted: int, error: Any) -> TableError:
    found = _ragged_rows(path, delimiter, encoding, wanted)
    if not found:
        reason = " ".join(str(error).split()) or type(error).__name__
        return TableError(
            f"{path} cannot be read as a table: {reason}. Look for a quotation mark that is not "
            "closed, or a line that is cut short."
        )
    position, fields = found[0]
    others = f" (so are {len(found) - 1} more)" if len(found) > 1 else ""
    return TableError(
        f"{path}: {rows_of([position])} has {fields} field{'s' if fields != 1 else ''} and the "
        f"header {wanted}{others}. Give every row as many; a field that holds {delimiter!r} needs "
        "quotation marks."
    )
