"""`secateur report`: the story of a run, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.errors import UserError

__all__ = ["report"]


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, made by `secateur fit`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to; by default DIR/report.html."),
    ] = None,
) -> None:
    """Write the report of a run: one HTML file that opens anywhere."""
    from secateur.report import RecordError, read_record, write

    path = folder / "run.json"
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder. Give the one that `secateur fit --out DIR` made.")
    try:
        record = read_record(path)
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} has no run.json, so no finished run is in it. Give the folder that "
            "`secateur fit --out DIR` made."
        ) from error
    except (RecordError, OSError) as error:
        raise UserError(str(error)) from error
    target = folder / "report.html" if out is None else out
    try:
        write(record, target)
    except RecordError as error:
        raise UserError(f"{path}: {error}") from error
    except OSError as error:
        raise UserError(f"the report cannot be written to {target} ({error}).") from error
    typer.echo(str(target))
