"""Tables: read from files, and encoded as inputs and targets of a network."""

from secateur.tables.cells import TableError
from secateur.tables.columns import DATES, MAX_CATEGORIES, Column
from secateur.tables.encoding import EncodedRows, EncodedTable, Encoding, encode_table
from secateur.tables.gaps import MISSING
from secateur.tables.reading import read_table
from secateur.tables.targets import TASKS, Target

__all__ = [
    "DATES",
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
