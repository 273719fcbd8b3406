"""The command line, called within the tests' own process: programs are compiled once for all."""

import contextlib
import io
import os
import sys
from typing import NamedTuple
from unittest import mock

from secateur.cli import main

# The terminal of the tests, whatever theirs is.
TERMINAL = {"COLUMNS": "120", "LINES": "40"}
COLOURS = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


class Result(NamedTuple):
    """What a command ended with."""

    code: int
    out: str
    err: str


def secateur(*arguments):
    """Run `secateur ARGUMENTS`."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    words = ["secateur", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name not in COLOURS}
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(os.environ, environment | TERMINAL, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Result(code, out.getvalue(), err.getvalue())
