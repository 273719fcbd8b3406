"""What all targets share: finding a tool, running it, and what a call reports."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

__all__ = ["STRICT", "CallResult", "DeviceError"]

#: Every warning that C code from here has to be free of.
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror")

_PACKAGES = 'pip install "secateur[device]"'


class DeviceError(RuntimeError):
    """A compiler or an emulator is missing, or refused; the message says what to do."""


@dataclass(frozen=True)
class CallResult:
    """What one call did.

    Attributes:
        returned: What an `int` function returned (register r0); without meaning for `void`.
        instructions: Instructions executed, from the first of the function to its return; None
            where they are not counted. They are not cycles: a division takes 14 of those.
        stack_bytes: How deep the stack was written, in bytes; None where it is not measured.
    """

    returned: int
    instructions: int | None = None
    stack_bytes: int | None = None


def executable(names: Sequence[str], purpose: str, remedy: str) -> str:
    """Return the path of the first program that is there."""
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
        raise DeviceError(f"{purpose} needs the package {name}: {_PACKAGES}") from error


def run_tool(command: Sequence[str], *, timeout: float = 300.0) -> str:
    """Run a compiler or the like, and return what it prints; its complaints are a DeviceError."""
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
    """Return the options that let sources include the headers beside them."""
    return [f"-I{folder}" for folder in dict.fromkeys(str(Path(s).parent) for s in sources)]


def _name(command: Sequence[str]) -> str:
    return " ".join(command[1:4]) if command[1:2] == ["-m"] else Path(command[0]).name
