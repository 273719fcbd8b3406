"""Programs in processes of their own."""

import os
import subprocess
import sys


def start(program, *arguments, folder=None, warnings="error", **environment):
    """Start a Python program given as text; the environment is this one's, with some changes."""
    return subprocess.Popen(
        [sys.executable, "-W", warnings, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    )


def output(process, timeout=300):
    """What a program has printed, once it has ended well."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err[-3000:]
    return out
