"""The commands of `secateur`; what a command needs is imported when it runs."""

from __future__ import annotations

import sys

import typer

from secateur.cli.data_command import data_commands
from secateur.cli.errors import UserError
from secateur.cli.fit_command import fit
from secateur.cli.model_commands import export, predict, report
from secateur.cli.reproduce_command import reproduce_commands

__all__ = ["app", "main"]

app = typer.Typer(
    name="secateur",
    help="Train neural networks as Bayesian ones and prune them without thresholds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (fit, predict, export, report):
    app.command()(command)
app.add_typer(data_commands, name="data")
app.add_typer(reproduce_commands, name="reproduce")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except UserError as error:
        typer.echo(f"secateur: {error}", err=True)
        sys.exit(2)
