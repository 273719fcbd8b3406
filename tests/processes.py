"""Programs in processes of their own."""

import os
import subprocess
import sys

# A runner that ignores Ctrl-C (nohup, or & in a shell) would otherwise hand that on.
TAKE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def start(program, *arguments, folder=None, warnings="error", **environment):
    """Start a Python program given as text; the environment is this one's, with some changes.

    It takes Ctrl-C (SIGINT) as a KeyboardInterrupt, whatever this process does.
    """
    return subprocess.Popen(
        [sys.executable, "-W", warnings, "-c", TAKE_INTERRUPTS + program, *map(str, arguments)],
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
