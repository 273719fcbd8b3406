"""The report of a run: a record of everything that it shows, and one HTML file."""

import lazy_loader

# Writing a report and reading a record need no JAX, so `secateur report` does not wait for it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
