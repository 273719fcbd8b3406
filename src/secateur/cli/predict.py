"""`secateur predict`: what a model says of new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from secateur import atomic
from secateur.cli.errors import UserError
from secateur.cli.fit import Missing

__all__ = ["predict"]


def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `secateur fit` made.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A table with the same columns.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write to; by default standard output."),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", help="Probability of the interval.", min=0.01, max=0.999)
    ] = 0.95,
    missing: Annotated[
        Missing | None,
        typer.Option(
            "--missing",
            help="Missing values: an error, drop (such rows are left empty), or the mean of the "
            "data that the model was made from; by default as for `fit`.",
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Of the text file; by default UTF-8.")
    ] = None,
) -> None:
    """Predict the target for every row of a table, in the same order, as CSV.

    Numbers get a mean, a standard deviation and an interval; classes their probabilities. Columns
    are found by their names.
    """
    import secateur as sc
    from secateur.runs.folders import Folder
    from secateur.runs.predicting import predict_file

    try:
        model = sc.load(Folder(folder).finished_model())
        found, notes = predict_file(
            model, new, interval=interval, missing=missing and missing.value, encoding=encoding
        )
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error
    for note in notes:
        typer.echo(f"secateur: {note}", err=True)
    text = found.to_csv(index=False, float_format="%.7g", lineterminator="\n")
    if out is None:
        sys.stdout.write(text)
        return
    try:
        atomic.write(out, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}.") from error
