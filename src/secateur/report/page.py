"""The report as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError

from secateur.report.record_file import RecordError, check_record
from secateur.storage import write_file

__all__ = ["render_page", "write_report"]

_SCRIPTS = ("base.js", "training.js", "network.js", "inputs.js", "held_out.js", "start.js")
_MINUS, _DASH, _THIN = "−", "–", "\u2009"


def write_report(record: dict[str, Any], path: str | os.PathLike) -> None:
    """Write the report of a run as one HTML file, atomically.

    Args:
        record: Record from `make_record` or `read_record`.
        path: File to write.

    Raises:
        RecordError: The record is damaged, or is not a record.
    """
    write_file(Path(path), render_page(record))


def render_page(record: dict[str, Any]) -> str:
    """Return the report as HTML."""
    check_record(record)
    style = _read_part("style.css")
    script = "(() => {\n'use strict';\n" + "".join(map(_read_part, _SCRIPTS)) + "})();\n"
    try:
        return _make_environment().get_template("page.html").render(
            record=record,
            view=_make_view(record),
            style=style,
            script=script,
            # Only our own scripts may run, and nothing from the data.
            style_hash=_hash_content(style),
            script_hash=_hash_content(script),
        )  # fmt: skip
    except (TemplateError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"the record is damaged ({type(error).__name__}: {error}). "
            "Run the fit again to make a new one."
        ) from error


def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("secateur.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Numbers that are not finite are not valid JSON.
    compact = {"allow_nan": False, "separators": (",", ":"), "ensure_ascii": False}
    environment.policies["json.dumps_kwargs"] = compact
    environment.filters |= _FILTERS
    return environment


def _read_part(name: str) -> str:
    return (resources.files("secateur.report") / "template" / name).read_text(encoding="utf-8")


def _hash_content(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


# --- contents of the page -------------------------------------------------------------------------


def _make_view(record: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of the page that are derived from the record."""
    layers = _name_leaves(record)
    inputs = sorted(record["inputs"], key=_find_worth, reverse=True)
    return {
        "leaves": layers,
        "live_inputs": [i for i in inputs if not i.get("cut")],
        "cut_inputs": [i for i in record["inputs"] if i.get("cut")],
        "measures": _make_measures(record),
        "page": _choose_chart_data(record, layers),
    }


def _name_leaves(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return readable names of the arrays, with their counts before and after."""
    layers = len(record["network"]["sizes"]) - 1 if record["network"] else 0
    arrays = []
    for leaf in record["leaves"]:
        keys = re.findall(r"\w+", leaf["path"])
        name = " › ".join(keys) or "weights"
        if layers and keys[0] == "linear":
            name = "linear path: weights"
        elif layers:
            number, kind = int(keys[1]) + 1, "biases" if keys[2] == "bias" else "weights"
            where = "output" if number == layers else f"hidden {number}"
            name = f"{where}: {kind}"
        arrays.append(
            {"name": name, "shape": " × ".join(map(str, leaf["shape"])) or "1",
             "total": math.prod(leaf["shape"]),
             "before": leaf["before"]["live"], "after": leaf["after"]["live"]}
        )  # fmt: skip
    return arrays


def _find_worth(entry: dict[str, Any]) -> float:
    return entry.get("effect") or 0.0 if "effect" in entry else entry.get("delta_f") or 0.0


def _make_measures(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the scores on held-out rows: name, text, and whether lower or higher is better."""
    if not record["held_out"]:
        return []
    known = (
        ("rmse", "root-mean-square error (RMSE)", significant, "lower is better"),
        ("mean_absolute_error", "mean absolute error", significant, "lower is better"),
        ("r_squared", "R², fraction of the variance explained", lambda v: figure(v, 3),
         "higher is better"),
        ("accuracy", "accuracy", percent, "higher is better"),
        ("base_rate", "base rate, accuracy of the most frequent class", percent, ""),
        ("log_likelihood", "log-likelihood per row, nats", lambda v: figure(v, 3),
         "higher is better"),
        ("coverage_95", "95 % coverage", percent, "95 % is ideal"),
        ("calibration_error", "calibration error", percent, "lower is better"),
    )  # fmt: skip
    stages = {
        stage: record["held_out"][stage]
        for stage in ("before", "after", "averaged")
        if stage in record["held_out"]
    }
    return [
        {"key": key, "name": name, "note": note}
        | {stage: shown(scores[key]) for stage, scores in stages.items()}
        for key, name, shown, note in known
        if key in stages["after"]
    ]


def _choose_chart_data(record: dict[str, Any], layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of the record that the charts use."""
    parts = ("task", "history", "rounds", "leaves", "network", "inputs", "targets", "held_out")
    return {name: record[name] for name in parts} | {
        "names": [leaf["name"] for leaf in layers],
        "live": [record["weights"]["before"], record["weights"]["after"]],
    }


# --- formatting of numbers ------------------------------------------------------------------------


def figure(value: float | None, digits: int = 1) -> str:
    """Format a number with thousands separators and a typographic minus sign.

    >>> figure(-1234.56), figure(None)
    ('−1\u2009234.6', '–')
    """
    if value is None:
        return _DASH
    shown = f"{float(value):,.{digits}f}".replace(",", _THIN)
    if shown.startswith("-"):
        return shown[1:] if not shown.strip("-0.") else _MINUS + shown[1:]
    return shown


def change(value: float | None, digits: int = 1) -> str:
    """Format a difference with an explicit sign."""
    shown = figure(value, digits)
    return "+" + shown if value is not None and shown[0] != _MINUS and shown.strip("0.") else shown


def significant(value: float | None, digits: int = 3) -> str:
    """Format a number with a given number of significant digits.

    >>> significant(57.32), significant(0.001234), significant(123456.0)
    ('57.3', '0.00123', '123\u2009456')
    """
    if value is None or value == 0:
        return _DASH if value is None else "0"
    size = math.floor(math.log10(abs(value)))
    if not -5 <= size <= 12:
        return f"{value:.{digits - 1}e}".replace("-", _MINUS)
    return figure(value, max(0, digits - 1 - size))


def percent(share: float | None, digits: int = 1) -> str:
    """Format a fraction as a percentage."""
    return _DASH if share is None else f"{figure(100 * share, digits)}{_THIN}%"


def duration(seconds: float | None) -> str:
    """Format a duration.

    >>> duration(9.56), duration(754)
    ('9.6 s', '12 min 34 s')
    """
    if seconds is None:
        return _DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def setting(value: Any) -> str:
    """Format the value of a setting."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(setting, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {setting(entry)}" for key, entry in value.items()) or "none"
    return str(value)


def plural(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "round"), plural(1200, "weight")
    ('1 round', '1\u2009200 weights')
    """
    return f"{figure(number, 0)} {noun if number == 1 else noun + 's'}"


_FILTERS = {
    f.__name__: f for f in (figure, change, significant, percent, duration, setting, plural)
}
