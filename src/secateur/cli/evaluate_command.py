"""`secateur evaluate`: how good the model of a finished run is on another table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.errors import as_user_errors
from secateur.cli.fit_command import Missing
from secateur.cli.model_commands import RunPath

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["evaluate"]


def evaluate(
    folder: RunPath,
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE", help="A table with the columns that the model uses, and the target."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    missing: Annotated[
        Missing | None,
        typer.Option(
            "--missing",
            help="Missing values: an error, drop such rows, or the mean of the training data; "
            "by default as for `fit`.",
        ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Encoding of a text file; by default UTF-8.")
    ] = None,
) -> None:
    """Score a run's model on a table that has the target, such as rows that were set aside.

    Regression: RMSE and R². Classification: accuracy, base rate and log-loss. Both: log-likelihood
    and the coverage of 95 % intervals.
    """
    from rich.console import Console

    from secateur.runs.folder import RunFolder
    from secateur.runs.table_model import load_model
    from secateur.runs.table_scores import score_table

    with as_user_errors(ValueError, OSError, command=evaluate):
        model = load_model(RunFolder(folder))
        scores, notes = score_table(
            model, table, missing=missing and missing.value, encoding=encoding
        )
    for note in notes:
        typer.echo(f"secateur: {note}", err=True)
    if as_json:
        typer.echo(json.dumps(scores, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        Console(highlight=False, soft_wrap=True).print(tabulate_scores(scores))


def tabulate_scores(scores: dict[str, Any]) -> Table:
    """Return scores as a table for the terminal.

    Args:
        scores: Scores from `secateur.runs.table_scores.score_table`.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("rows", f"{scores['rows']:,}")
    targets = scores.get("targets", [])
    for target in targets:
        suffix = f", {target['name']}" if len(targets) > 1 else ""
        for name, heading, form in (
            ("rmse", "root-mean-square error", ".4g"),
            ("r_squared", "R²", ".3f"),
            ("mean_absolute_error", "mean absolute error", ".4g"),
            *([("coverage_95", "95 % coverage", ".1%")] if suffix else []),
        ):
            table.add_row(Text(heading + suffix), _format(target[name], form))
    for name, heading, form in (
        ("accuracy", "accuracy", ".1%"),
        ("base_rate", "base rate (most frequent class)", ".1%"),
        ("log_loss", "log-loss (nats per row)", ".4f"),
        ("log_likelihood", "log-likelihood (nats per row)", ".4f"),
        ("coverage_95", "95 % coverage", ".1%"),
    ):
        if name in scores:
            table.add_row(heading, _format(scores[name], form))
    return table


def _format(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
