"""The commands, one module each; what a command needs is imported when it runs."""

from __future__ import annotations

import sys

import typer

from secateur.cli import data, reproduce
from secateur.cli.errors import UserError
from secateur.cli.export import export
from secateur.cli.fit import fit
from secateur.cli.predict import predict
from secateur.cli.report import report

__all__ = ["app", "main"]

app = typer.Typer(
    name="secateur",
    help="Train neural networks as Bayesian ones and prune them without thresholds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(fit)
app.command()(predict)
app.command()(export)
app.command()(report)
app.add_typer(data.app, name="data")
app.add_typer(reproduce.app, name="reproduce")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except UserError as error:
        typer.echo(f"secateur: {error}", err=True)
        sys.exit(2)
