"""Code shared by all targets: finding a tool, running it, and the result of a call."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

__all__ = ["STRICT", "CallResult", "DeviceError"]

#: Warnings that generated C code must not cause.
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror")

_PACKAGES = "pip install pyelftools unicorn"


class DeviceError(RuntimeError):
    """A compiler or an emulator is missing, or failed; the message says what to do."""


@dataclass(frozen=True)
class CallResult:
    """The result and the cost of one call.

    Attributes:
        returned: Return value of an `int` function (register r0); meaningless for `void`.
        instructions: Number of instructions executed, from the first of the function to its
            return; None if they were not counted. They are not cycles: a division takes 14.
        stack_bytes: Stack depth in bytes; None if it was not measured.
    """

    returned: int
    instructions: int | None = None
    stack_bytes: int | None = None


def executable(names: Sequence[str], purpose: str, remedy: str) -> str:
    """Return the path of the first program that is installed."""
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise DeviceError(f"{purpose} needs {' or '.join(names)}, which is not on the PATH. {remedy}")


def package(name: str, purpose: str) -> ModuleType:
    """Import an optional package."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        raise DeviceError(f"{purpose} needs the package {root}: {_PACKAGES}") from error


def run_tool(command: Sequence[str], *, timeout: float = 300.0) -> str:
    """Run a tool and return its output; a failure raises a DeviceError with its messages."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{_name(command)} did not end within {timeout:g} s") from error
    if done.returncode:
        complaints = (done.stderr or done.stdout).strip()
        raise DeviceError(f"{_name(command)} failed with code {done.returncode}:\n{complaints}")
    return done.stdout


def folders_of(sources: Iterable[Path]) -> list[str]:
    """Return the options that let sources include headers in their own folders."""
    return [f"-I{folder}" for folder in dict.fromkeys(str(Path(s).parent) for s in sources)]


def _name(command: Sequence[str]) -> str:
    return " ".join(command[1:4]) if command[1:2] == ["-m"] else Path(command[0]).name
