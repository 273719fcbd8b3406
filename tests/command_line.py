"""The command line, called within the tests' own process: programs are compiled once for all."""

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

from secateur.cli import main


class Result(NamedTuple):
    """What a command ended with."""

    code: int
    out: str
    err: str


def secateur(*arguments):
    """Run `secateur ARGUMENTS`."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    words = ["secateur", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Result(code, out.getvalue(), err.getvalue())
