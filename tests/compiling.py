"""Compiled programs for tests, which run once: what saves time is compiling less."""

from functools import partial

import jax

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
