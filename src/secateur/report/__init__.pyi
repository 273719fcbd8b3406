from .page import write_report
from .record import make_record
from .record_file import FORMAT, VERSION, RecordError, read_record

__all__ = ["FORMAT", "VERSION", "RecordError", "make_record", "read_record", "write_report"]
