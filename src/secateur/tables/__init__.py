"""Tables: read from files, and encoded as inputs and targets of a network."""

from secateur.tables.encoding import MISSING, Column, Encoded, Encoding, Target
from secateur.tables.errors import TableError
from secateur.tables.kinds import MOST_CATEGORIES
from secateur.tables.preparing import Prepared, prepare
from secateur.tables.reading import read
from secateur.tables.targets import TASKS

__all__ = [
    "MISSING",
    "MOST_CATEGORIES",
    "TASKS",
    "Column",
    "Encoded",
    "Encoding",
    "Prepared",
    "TableError",
    "Target",
    "prepare",
    "read",
]
