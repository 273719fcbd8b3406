"""The commands of `secateur`; what a command needs is imported when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from secateur.cli.data_command import data_commands
from secateur.cli.errors import UserError
from secateur.cli.evaluate_command import evaluate
from secateur.cli.fit_command import fit
from secateur.cli.model_commands import export, predict, report
from secateur.cli.prune_command import prune
from secateur.cli.reproduce_command import reproduce_commands

__all__ = ["app", "main"]

app = typer.Typer(
    name="secateur",
    help="Train Bayesian neural networks, and prune them without thresholds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (fit, prune, predict, evaluate, export, report):
    app.command()(command)
app.add_typer(data_commands, name="data")
app.add_typer(reproduce_commands, name="reproduce")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from secateur import __version__

        typer.echo(f"secateur {__version__}")
        raise typer.Exit


@app.callback()
def set_up(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Train Bayesian neural networks, and prune them without thresholds."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    except UserError as error:
        typer.echo(f"secateur: {error}", err=True)
        sys.exit(2)
