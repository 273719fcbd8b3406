"""Rows of a table as the structs of an exported C header, and what compiled functions say of them.

Numbers are `float` and all others `int`, of four bytes each, in the order of the columns.
"""

import numpy as np

# Types of the members of a struct.
CODES = {"number": np.float32, "boolean": np.int32, "category": np.int32, "presence": np.int32}


def make_rows(columns, frame):
    """Return the structs of a table's rows, as one array for each row, with missing values as such.

    Args:
        columns: `InputColumn`s of the exported model.
        frame: The table as pandas reads it.
    """
    kinds = np.dtype([(f"m{i}", CODES[column.kind]) for i, column in enumerate(columns)])
    rows = np.zeros(len(frame), kinds)
    for number, column in enumerate(columns):
        values, is_missing = frame[column.name], frame[column.name].isna().to_numpy()
        pairs = list(zip(values, is_missing, strict=True))
        if column.kind == "number":
            encoded = values.to_numpy(np.float64, na_value=np.nan)
        elif column.kind == "category":
            texts = [None if gone else str(value).strip() for value, gone in pairs]
            encoded = [-1 if t is None else column.categories.index(t) for t in texts]
        elif column.kind == "boolean":
            words = {"true": 1, "false": 0, "1": 1, "0": 0}
            encoded = [-1 if gone else words[str(value).lower()] for value, gone in pairs]
        else:
            encoded = ~is_missing
        rows[f"m{number}"] = encoded
    return [np.atleast_1d(row) for row in rows]


def predict_rows(library, name, rows, outputs):
    """Return what `NAME_predict_row` returns, and the outputs, of shape (rows, outputs)."""
    codes, predictions = [], []
    for row in rows:
        y = np.zeros(outputs, np.float32)
        codes.append(library.call(f"{name}_predict_row", row, y).returned)
        predictions.append(y)
    return np.array(codes), np.array(predictions)


def make_probabilities(library, name, outputs):
    """Return what `NAME_probabilities` makes of outputs."""
    probabilities = np.zeros_like(outputs)
    for y, p in zip(outputs, probabilities, strict=True):
        library.call(f"{name}_probabilities", np.ascontiguousarray(y), p)
    return probabilities


def check_ranges(library, name, rows):
    """Return what `NAME_in_range` says of each row."""
    return np.array([library.call(f"{name}_in_range", row).returned for row in rows])
