"""The story of a run: a record of all that is told, and one HTML file that tells it."""

import lazy_loader

# `write` and `read_record` need no JAX, so `secateur report` does not wait for it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
