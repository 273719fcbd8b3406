"""`secateur prune`: from a trained network to a smaller one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.errors import as_user_errors
from secateur.cli.fit_command import INTERRUPTED, Inference, Task, What, remove_option

__all__ = ["prune"]


def prune(
    network: Annotated[
        Path, typer.Argument(metavar="MODEL.onnx", help="A trained network, in ONNX.")
    ],
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            "-d",
            help=".npz with x (or the names of the inputs) and y; or .npy with inputs, and a "
            "second .npy with targets; or a table whose columns are the inputs. Without "
            "targets, the network's own outputs are used.",
        ),
    ],
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Target column of a table.")
    ] = None,
    task: Annotated[
        Task | None,
        typer.Option("--task", help="Kind of target; by default inferred from the network."),
    ] = None,
    what: Annotated[
        What,
        typer.Option("--what", help="What to prune: single weights, whole units, or both."),
    ] = What.weights,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the results; by default MODEL-pruned."),
    ] = None,
    inference: Annotated[
        Inference,
        typer.Option("--inference", help="Inference algorithm."),
    ] = Inference.local,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Maximum number of epochs of the fit.", min=1)
    ] = None,
    retrain_epochs: Annotated[
        int | None,
        typer.Option("--retrain-epochs", help="Maximum number of epochs after each round.", min=1),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Rows in a step; by default 128.", min=1)
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Highest learning rate; by default 0.002.")
    ] = None,
    held_out: Annotated[
        float,
        typer.Option(
            "--held-out",
            help="Fraction of the rows that is held out for evaluation.",
            min=0,
            max=0.9,
        ),
    ] = 0.2,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.", min=0)] = 0,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="Maximum duration of the whole run.", min=0.0),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the path of the results.")
    ] = False,
) -> None:
    """Prune a trained network in an ONNX file; write a smaller one, C and a report.

    Ctrl-C stops after the current epoch; the same command with --resume continues.
    """
    from rich.console import Console
    from rich.table import Table

    import secateur as sc
    from secateur.runs.controls import RunInterrupted
    from secateur.runs.folder import RunFolder
    from secateur.runs.network_prune import STAGES, NetworkSettings, prune_network

    folder = RunFolder(out if out is not None else Path(f"{network.stem}-pruned"))
    command = shlex.join(["secateur", *sys.argv[1:]])
    messages = Console(stderr=True, highlight=False, quiet=quiet, soft_wrap=True)
    settings = NetworkSettings(
        task=task and task.value,
        what=what.value,
        inference=inference.value,
        target=target,
        epochs=epochs,
        retrain_epochs=retrain_epochs,
        batch_size=batch_size,
        rate=rate,
        held_out=held_out,
        seed=seed,
        minutes=minutes,
    )
    kinds = (ValueError, sc.FitError, sc.CheckpointError, OSError, ImportError)
    try:
        with as_user_errors(*kinds, command=prune):
            run = prune_network(
                network,
                data,
                settings,
                folder,
                command=remove_option(command, "--resume"),
                resume=resume,
                force=force,
                progress=not quiet,
                say=lambda sentence: messages.print(sentence, markup=False),
            )
    except RunInterrupted:
        again = command if resume else f"{remove_option(command, '--force')} --resume"
        typer.echo(f"secateur: stopped. The progress is saved; continue with\n  {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    console = Console(highlight=False, soft_wrap=True)
    if not quiet:
        table = Table(title="The network", title_justify="left")
        for heading in ("", *STAGES):
            table.add_column(heading, justify="right" if heading else "left")
        for row in run.rows:
            table.add_row(*row)
        console.print(table)
        for note in run.notes:
            console.print(f"Note: {note}", markup=False)
    console.print(f"{'' if quiet else 'Results: '}{run.folder.path}", markup=False)
