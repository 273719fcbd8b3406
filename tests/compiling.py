"""Compiled programs for tests: cheap ones, as they run once only, and counted ones."""

import contextlib
import logging
from functools import partial

import jax

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@contextlib.contextmanager
def compiled_programs():
    """Yield a list that grows by the name of every program that XLA compiles."""
    names = []

    class Listener(logging.Handler):
        def emit(self, record):
            words = record.getMessage().split()
            if words[:3] == ["Finished", "XLA", "compilation"]:
                names.append(words[4])

    logger, listener = logging.getLogger("jax._src.dispatch"), Listener(logging.DEBUG)
    before = logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield names
    finally:
        logger.removeHandler(listener)
        logger.level, logger.propagate = before
