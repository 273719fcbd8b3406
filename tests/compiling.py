"""Programs of tests run for a moment and compile for seconds: XLA is told to optimise them less.

What is verified stays: the same equations in the same precision, by plainer machine code. Measured
on 2 cores with JAX 0.10, this halves the time of most modules.
"""

import contextlib
import logging
import os
import subprocess
import sys
from typing import Any

LESS = "--xla_backend_optimization_level=0"
NO_FUSION_EMITTERS = (
    "--xla_cpu_use_fusion_emitters=false"  # saves most, but JAX 0.12 has it no more
)


def xla_knows(flags: str) -> bool:
    """Whether XLA accepts the flags: it ends the process where it does not."""
    probe = "from jaxlib import xla_client; xla_client.CompileOptions()"
    process = [sys.executable, "-c", probe]
    return not subprocess.run(
        process, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, check=False
    ).returncode


def compile_quickly() -> None:
    """Set the flags for this process, unless it has them from the one that started it."""
    given = os.environ.get("XLA_FLAGS", "")
    if LESS not in given:
        flags = f"{given} {LESS}"
        more = f"{flags} {NO_FUSION_EMITTERS}"
        os.environ["XLA_FLAGS"] = more if xla_knows(more) else flags


def as_users_compile() -> str:
    """The flags that tests were started with."""
    flags = os.environ["XLA_FLAGS"].split()
    return " ".join(flag for flag in flags if flag not in (LESS, NO_FUSION_EMITTERS))


def run_bound(monkeypatch: Any) -> None:
    """Let `fit` and `prune` compile as users do, for a test that trains longer than it compiles."""
    import jax

    from secateur.training import evaluation, program, trainer

    options = {"xla_backend_optimization_level": 3}
    if NO_FUSION_EMITTERS in os.environ["XLA_FLAGS"]:
        options["xla_cpu_use_fusion_emitters"] = True
    train = jax.jit(
        program.train.__wrapped__,
        compiler_options=options,
        static_argnames=("spec",),
        donate_argnames=("state",),
    )
    evaluate = jax.jit(
        evaluation.evaluate.__wrapped__,
        compiler_options=options,
        static_argnames=("spec", "samples"),
    )
    monkeypatch.setattr(program, "train", train)
    monkeypatch.setattr(trainer, "evaluate", evaluate)


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
