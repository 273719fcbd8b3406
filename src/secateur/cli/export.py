"""`secateur export`: a model as a file that a device can run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.errors import UserError

__all__ = ["export"]


class To(StrEnum):
    """What to write."""

    onnx = "onnx"
    c = "c"


class Quantise(StrEnum):
    """Whole numbers in the place of floats."""

    int8 = "int8"
    int16x8 = "int16x8"
    weights8 = "weights8"
    weights16 = "weights16"


class Optimise(StrEnum):
    """What matters more."""

    size = "size"
    speed = "speed"


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `secateur fit` made.")],
    to: Annotated[To, typer.Option("--to", help="ONNX, or C99 that needs no library.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="By default DIR/model.onnx or model.c."),
    ] = None,
    quantise: Annotated[
        Quantise | None,
        typer.Option(
            "--quantise",
            help="C in integers: int8 or int16x8 (activations of 8 or 16 bits), weights of at most "
            "8 bits, as many as the posterior asks for. weights8 and weights16 store weights in 8 "
            "or 16 bits and compute in floats.",
        ),
    ] = None,
    optimise: Annotated[
        Optimise, typer.Option("--optimise", help="Fewer bytes, or fewer instructions.")
    ] = Optimise.size,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="TABLE",
            help="Rows with the model's columns: for the scales of activations and, with the "
            "target, for what quantisation costs.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="What C functions begin with; by default the file's name."),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(help="Compile for a Cortex-M4F and count instructions in an emulator."),
    ] = True,
) -> None:
    """Write the pruned model as ONNX or C, and a sheet of what it costs on a device."""
    from rich.console import Console

    from secateur.runs.exporting import export_run
    from secateur.runs.folders import Folder

    path = folder / f"model.{to.value}" if out is None else out
    if path.suffix != f".{to.value}":
        raise UserError(f"--to {to.value} writes a file that ends in .{to.value}, not {path.name}.")
    doing = f"writing {path}" + (", compiling and running it" if measure and to == To.c else "")
    try:
        with Console(stderr=True).status(doing):
            sheet = export_run(
                Folder(folder),
                path,
                data=data,
                quantise=quantise and quantise.value,
                optimise=optimise.value,
                name=name,
                measured=measure,
            )
    except (ValueError, OSError, ImportError) as error:
        raise UserError(str(error)) from error
    typer.echo(sheet.table())
    typer.echo("\nWritten: " + ", ".join(str(path.with_name(file)) for file in sheet.files))
