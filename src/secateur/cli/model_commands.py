"""`secateur predict`, `export` and `report`: commands for the folder of a finished run."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.errors import UserError, as_user_errors
from secateur.cli.fit_command import Missing

__all__ = ["export", "predict", "report"]

ExportTarget = StrEnum("ExportTarget", ["onnx", "c"])
Quantisation = StrEnum("Quantisation", ["int8", "int16x8", "weights8", "weights16"])
Goal = StrEnum("Goal", ["size", "speed"])
PredictedMean = StrEnum("PredictedMean", ["weights", "predictive"])
RunPath = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of a run, made by `secateur fit`.")
]


def predict(
    folder: RunPath,
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="A table with the columns that the model uses.")
    ],
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
            help="Missing values: an error, drop (the predictions of such rows are empty), or the "
            "mean of the training data; by default as for `fit`.",
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Encoding of a text file; by default UTF-8.")
    ] = None,
    at_means: Annotated[
        bool,
        typer.Option(
            "--at-means",
            help="Fix every weight at its posterior mean, as exported C does, instead of averaging "
            "over the posterior, and predict with the best restart alone. The noise is "
            "still included.",
        ),
    ] = False,
) -> None:
    """Predict the target for every row of a table, in the same order, as CSV.

    Numbers get a mean, a standard deviation and an interval; classes their probabilities. Columns
    are matched by name; those that the model does not use may be missing.
    """
    from secateur.runs.folder import RunFolder
    from secateur.runs.table_model import load_model, predict_table
    from secateur.storage import write_file

    with as_user_errors(ValueError, OSError, command=predict):
        model = load_model(RunFolder(folder))
        predictions, notes = predict_table(
            model,
            new,
            interval=interval,
            missing=missing and missing.value,
            encoding=encoding,
            at_means=at_means,
        )
    for note in notes:
        typer.echo(f"secateur: {note}", err=True)
    text = predictions.to_csv(index=False, float_format="%.7g", lineterminator="\n")
    if out is None:
        sys.stdout.write(text)
        return
    try:
        write_file(out, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}.") from error


def export(
    folder: RunPath,
    to: Annotated[ExportTarget, typer.Option("--to", help="ONNX, or C99 that needs no library.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File to write; by default DIR/model.onnx or DIR/model.c.",
        ),
    ] = None,
    quantise: Annotated[
        Quantisation | None,
        typer.Option(
            "--quantise",
            help="int8 and int16x8: compute in integers, with activations of 8 or 16 bits, and as "
            "many bits per weight as the posterior requires, up to 8 (C only). weights8 and "
            "weights16: store weights in 8 or 16 bits, and compute in floats.",
        ),
    ] = None,
    optimise: Annotated[
        Goal, typer.Option("--optimise", help="Whether to minimise code size or instructions.")
    ] = Goal.size,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="TABLE",
            help="Rows with the model's columns. They are used to measure the difference from "
            "`predict`, to set the scales of activations and, if they have the target, to "
            "measure the cost of quantisation.",
        ),
    ] = None,
    mean: Annotated[
        PredictedMean | None,
        typer.Option(
            "--mean",
            help="weights: evaluate the network at the posterior means of its weights. predictive: "
            "average over the posterior like `secateur predict`, which takes more code. By "
            "default weights for C, and predictive for ONNX if available.",
        ),
    ] = None,
    keep_inputs: Annotated[
        bool,
        typer.Option("--keep-inputs", help="Keep unused columns as inputs of the exported model."),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Prefix of C functions; by default the file's name."),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(help="Compile for a Cortex-M4F and count instructions in an emulator."),
    ] = True,
) -> None:
    """Write the pruned model as ONNX or C, and a sheet of its costs on a device."""
    from rich.console import Console

    from secateur.runs.folder import RunFolder
    from secateur.runs.table_model import export_run

    path = folder / f"model.{to.value}" if out is None else out
    if path.suffix != f".{to.value}":
        raise UserError(f"--to {to.value} writes a file that ends in .{to.value}, not {path.name}.")
    is_run = measure and to == ExportTarget.c
    status = f"writing {path}" + (", compiling and running it" if is_run else "")
    errors = as_user_errors(ValueError, OSError, ImportError, command=export)
    with errors, Console(stderr=True).status(status):
        sheet = export_run(
            RunFolder(folder),
            path,
            data=data,
            quantise=quantise and quantise.value,
            optimise=optimise.value,
            mean=mean and mean.value,
            keep_inputs=keep_inputs,
            name=name,
            measured=measure,
        )
    typer.echo(sheet.table())
    typer.echo("\nWritten: " + ", ".join(str(path.with_name(file)) for file in sheet.files))


def report(
    folder: RunPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write; by default DIR/report.html."),
    ] = None,
) -> None:
    """Write the report of a run, a single HTML file."""
    from secateur.report import RecordError, read_record, write_report

    path = folder / "run.json"
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Give the one that `secateur fit` made.")
    try:
        record = read_record(path)
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} has no run.json, so there is no finished run in it. Give the folder that "
            "`secateur fit` made."
        ) from error
    except (RecordError, OSError) as error:
        raise UserError(str(error)) from error
    target = folder / "report.html" if out is None else out
    try:
        write_report(record, target)
    except RecordError as error:
        raise UserError(f"{path}: {error}") from error
    except OSError as error:
        raise UserError(f"the report cannot be written to {target} ({error}).") from error
    typer.echo(str(target))
