"""Small files in the formats in which data sets are published, and servers that bring them."""

from __future__ import annotations

import gzip
import io
import struct
import subprocess
import urllib.error
import urllib.request
import wave
import zipfile
from pathlib import Path


def text(values, separator=",", header=()):
    lines = [*header, *(separator.join(map(repr, row)) for row in values.tolist())]
    return ("\n".join(lines) + "\n").encode()


def zipped(members):
    """A zip archive (so also a wheel) of {path: content}."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path, content in members.items():
            file.writestr(path, content)
    return archive.getvalue()


def workbook(*sheets):
    """An .xlsx: each sheet is a list of rows, of numbers, texts, and None for an empty cell."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    kinds = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    numbers = range(1, len(sheets) + 1)
    listed = "".join(f'<sheet name="S{i}" sheetId="{i}" r:id="r{i}"/>' for i in numbers)
    linked = "".join(
        f'<Relationship Id="r{i}" Type="{kinds}/worksheet" Target="worksheets/sheet{i}.xml"/>'
        for i in numbers
    )
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    members = {
        "[Content_Types].xml": f'<Types xmlns="{types}"/>',
        "_rels/.rels": f'<Relationships xmlns="{relations}"><Relationship Id="r0" '
        f'Type="{kinds}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{kinds}">'
        f"<sheets>{listed}</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{relations}">{linked}'
        "</Relationships>",
    }
    for i, rows in zip(numbers, sheets, strict=True):
        body = "".join(
            f'<row r="{r}">' + "".join(_cell(r, c, v) for c, v in enumerate(row)) + "</row>"
            for r, row in enumerate(rows, 1)
        )
        members[f"xl/worksheets/sheet{i}.xml"] = (
            f'<worksheet xmlns="{main}"><sheetData>{body}</sheetData></worksheet>'
        )
    return zipped(members)


def _cell(row, column, value):
    place = f"{chr(ord('A') + column)}{row}"
    if value is None:
        return ""
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>'
    return f'<c r="{place}"><v>{value!r}</v></c>'


def idx(array, code=0x08):
    """A gzipped idx file of a uint8 array."""
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


def wav(samples, *, channels=1, rate=8000):
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(channels)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        recording.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


class Response:
    def __init__(self, content, length=None):
        self.content = content
        self.headers = {"Content-Length": str(len(content) if length is None else length)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self, amount):
        chunk, self.content = self.content[:amount], self.content[amount:]
        return chunk


def online(monkeypatch, contents):
    """Serve {part of the address: content, response or exception}; returns what was asked for."""
    asked = []

    def urlopen(request, timeout):
        asked.append(request.full_url)
        assert timeout <= 10
        for part, content in contents.items():
            if part in request.full_url:
                if isinstance(content, Exception):
                    raise content
                return content if isinstance(content, Response) else Response(content)
        raise urllib.error.URLError("no such host")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def package_index(monkeypatch, wheels):
    """Let pip find {requirement: content of the wheel}; returns the commands."""
    commands = []

    def run(command, **_):
        commands.append(command)
        wheel = next((wheels[word] for word in command if word in wheels), None)
        if wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching")
        folder = Path(command[command.index("--dest") + 1])
        (folder / "some-1-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands
