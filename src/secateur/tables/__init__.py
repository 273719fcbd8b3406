"""Tables: read from files, and encoded as inputs and targets of a network."""

from secateur.tables.columns import MAX_CATEGORIES, Column, TableError
from secateur.tables.encoding import MISSING, EncodedRows, EncodedTable, Encoding, encode_table
from secateur.tables.reading import read_table
from secateur.tables.targets import TASKS, Target

__all__ = [
    "MAX_CATEGORIES",
    "MISSING",
    "TASKS",
    "Column",
    "EncodedRows",
    "EncodedTable",
    "Encoding",
    "TableError",
    "Target",
    "encode_table",
    "read_table",
]
