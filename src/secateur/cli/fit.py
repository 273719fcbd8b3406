"""`secateur fit`: from a table to a pruned model and a report."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from secateur.cli.errors import UserError

__all__ = ["fit"]

_INTERRUPTED = 130  # what shells give a program that Ctrl-C ended

Task = StrEnum("Task", ["regression", "classification"])
Missing = StrEnum("Missing", ["error", "drop", "mean"])
Inference = StrEnum("Inference", ["moments", "local", "global"])
What = StrEnum("What", ["weights", "units", "both"])


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, **more)


def fit(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A table: .csv, .tsv, .txt or .parquet.")
    ],
    target: Annotated[
        list[str], _option("--target", "-t", help="Column to predict; several are possible.")
    ],
    out: Annotated[
        Path | None,
        _option("--out", "-o", help="Folder for the results; by default NAME-run."),
    ] = None,
    drop: Annotated[
        list[str] | None, _option("--drop", help="Column not to use; several are possible.")
    ] = None,
    task: Annotated[
        Task | None, _option("--task", help="What to do; by default the target decides.")
    ] = None,
    missing: Annotated[
        Missing,
        _option(
            "--missing",
            help="Missing values: an error, drop such rows, or fill in the column's mean (of "
            "categories, the most frequent one).",
        ),
    ] = Missing.error,
    hidden: Annotated[
        str, _option("--hidden", help="Units of each hidden layer: 50, or 64,32; 0 for none.")
    ] = "50",
    inference: Annotated[
        Inference, _option("--inference", help="How uncertainty travels through the network.")
    ] = Inference.moments,
    what: Annotated[
        What, _option("--what", help="What to prune: single weights, whole units, or both.")
    ] = What.weights,
    grow: Annotated[bool, _option("--grow", help="Let weights come back, too.")] = False,
    seed: Annotated[int, _option("--seed", help="Of everything random.", min=0)] = 0,
    restarts: Annotated[
        int, _option("--restarts", help="Train so many initialisations; keep the best.", min=1)
    ] = 1,
    minutes: Annotated[
        float | None, _option("--minutes", help="Time for the whole run, at most.", min=0.0)
    ] = None,
    epochs: Annotated[
        int | None, _option("--epochs", help="At most so many in each training.", min=1)
    ] = None,
    batch_size: Annotated[
        int | None,
        _option(
            "--batch-size", help="Rows in a step; by default 64, and more for large tables.", min=1
        ),
    ] = None,
    held_out: Annotated[
        float,
        _option(
            "--held-out", help="Share of the rows to judge by, not to learn from.", min=0, max=0.9
        ),
    ] = 0.2,
    max_categories: Annotated[
        int, _option("--max-categories", help="Different texts in a column, at most.", min=2)
    ] = 50,
    encoding: Annotated[
        str | None, _option("--encoding", help="Of the text file; by default UTF-8.")
    ] = None,
    resume: Annotated[
        bool, _option("--resume", help="Go on with a run that was interrupted.")
    ] = False,
    force: Annotated[bool, _option("--force", help="Replace a run that is there.")] = False,
    quiet: Annotated[
        bool, _option("--quiet", "-q", help="Say nothing but where the report is.")
    ] = False,
) -> None:
    """Train a Bayesian network on a table, prune it, and report.

    Ctrl-C stops after the epoch that is under way; the same command with --resume goes on.
    """
    from rich.console import Console

    import secateur as sc
    from secateur.runs.fitting import fit_table
    from secateur.runs.folders import Folder
    from secateur.runs.settings import Settings, layers
    from secateur.runs.watching import Interrupted

    folder = Folder(out if out is not None else Path(f"{data.stem}-run"))
    command = shlex.join(["secateur", *sys.argv[1:]])
    messages = Console(stderr=True, highlight=False, quiet=quiet, soft_wrap=True)
    try:
        settings = Settings(
            task=task and task.value,
            hidden=layers(hidden),
            inference=inference.value,
            what=what.value,
            grow=grow,
            seed=seed,
            restarts=restarts,
            minutes=minutes,
            held_out=held_out,
            missing=missing.value,
            drop=tuple(drop or ()),
            epochs=epochs,
            batch_size=batch_size,
            most_categories=max_categories,
            encoding=encoding,
        )
        run = fit_table(
            data,
            target,
            settings,
            folder,
            command=_without(command, "--resume"),
            resume=resume,
            force=force,
            progress=not quiet,
            say=lambda sentence: messages.print(sentence, markup=False),
        )
    except Interrupted:
        again = command if resume else f"{_without(command, '--force')} --resume"
        typer.echo(f"secateur: stopped. What was reached is kept; go on with\n  {again}", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except (ValueError, sc.FitError, sc.CheckpointError, OSError) as error:
        raise UserError(str(error)) from error
    _show(run, quiet)


def _without(command: str, option: str) -> str:
    return shlex.join(part for part in shlex.split(command) if part != option)


def _show(run: Any, quiet: bool) -> None:
    from rich.console import Console

    from secateur.runs.summary import summary, uncut_and_cut

    console = Console(highlight=False, soft_wrap=True)
    if not quiet:
        console.print(summary(run.record))
        _, cut = uncut_and_cut(run.record)
        names = ", ".join(cut) or "none"
        console.print(f"Columns that were cut altogether: {names}", markup=False)
        ends = (run.record["energy"][when]["stop_reason"] for when in ("before", "after"))
        console.print("Training: {}. Pruning: {}.".format(*ends), markup=False)
    console.print(f"{'' if quiet else 'Report: '}{run.folder.report}", markup=False)
