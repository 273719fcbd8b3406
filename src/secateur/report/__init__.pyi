from .files import FORMAT, VERSION, RecordError, read_record
from .page import write
from .record import make_record

__all__ = ["FORMAT", "VERSION", "RecordError", "make_record", "read_record", "write"]
