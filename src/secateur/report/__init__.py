"""The report of a run: a record of its contents, and one HTML file."""

import lazy_loader

# Writing a report and reading a record do not need JAX, so `secateur report` starts quickly.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
