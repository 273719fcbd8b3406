"""A record as one HTML file that needs nothing else: no network, no library."""

from __future__ import annotations

import base64
import hashlib
import os
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError

from secateur import atomic
from secateur.report.files import RecordError, check
from secateur.report.telling import FILTERS, tell

__all__ = ["html", "write"]

_SCRIPTS = ("base.js", "story.js", "network.js", "inputs.js", "held_out.js", "start.js")


def write(record: dict[str, Any], path: str | os.PathLike) -> None:
    """Write the report of a run: one HTML file, whole or not at all.

    Args:
        record: from `make_record`, or `read_record`.
        path: of the file.

    Raises:
        RecordError: it is no record, or a damaged one.
    """
    atomic.write(Path(path), html(record))


def html(record: dict[str, Any]) -> str:
    """Return the report as text."""
    check(record)
    style = _part("style.css")
    script = "(() => {\n'use strict';\n" + "".join(map(_part, _SCRIPTS)) + "})();\n"
    try:
        return _environment().get_template("page.html").render(
            record=record,
            story=tell(record),
            style=style,
            script=script,
            # Only what we wrote may run, so that nothing from the data ever can.
            style_hash=_digest(style),
            script_hash=_digest(script),
        )  # fmt: skip
    except (TemplateError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"the record is damaged ({type(error).__name__}: {error}). "
            "Run `secateur fit` again to make a new one."
        ) from error


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("secateur.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # What is not finite is no JSON; a browser would refuse it.
    compact = {"allow_nan": False, "separators": (",", ":"), "ensure_ascii": False}
    environment.policies["json.dumps_kwargs"] = compact
    environment.filters |= FILTERS
    return environment


def _part(name: str) -> str:
    return (resources.files("secateur.report") / "template" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
