"""`secateur fit`: from a table to a pruned model and a report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.errors import UserError, as_user_errors

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["INTERRUPTED", "Inference", "Missing", "Task", "What", "fit", "remove_option"]

_MAX_NAMES = 8  # of columns that were cut
INTERRUPTED = 130  # the exit code that shells give a program that Ctrl-C ended

Task = StrEnum("Task", ["regression", "classification"])
Missing = StrEnum("Missing", ["error", "drop", "mean"])
Dates = StrEnum("Dates", ["error", "parts"])
Inference = StrEnum("Inference", ["moments", "local", "global"])
Posterior = StrEnum(
    "Posterior", {"linear": "linear", "mean_field": "mean-field", "unit": "unit", "auto": "auto"}
)
LearntPriors = StrEnum("LearntPriors", ["auto", "inputs", "leaves", "none"])
What = StrEnum("What", ["weights", "units", "both"])


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, **more)


def fit(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A table: .csv, .tsv, .txt or .parquet.")
    ],
    target: Annotated[
        list[str], _option("--target", "-t", help="Column to predict; repeat it for several.")
    ],
    out: Annotated[
        Path | None,
        _option("--out", "-o", help="Folder for the results; by default NAME-run."),
    ] = None,
    drop: Annotated[
        list[str] | None, _option("--drop", help="Column to leave out; repeat it for several.")
    ] = None,
    task: Annotated[
        Task | None, _option("--task", help="Kind of target; by default inferred from its values.")
    ] = None,
    missing: Annotated[
        Missing,
        _option(
            "--missing",
            help="Missing values: an error, drop such rows, or impute the column's mean (of "
            "categories, the most frequent one) and add an input that marks missing values.",
        ),
    ] = Missing.error,
    dates: Annotated[
        Dates,
        _option(
            "--dates",
            help="Columns of dates: an error, or parts (year, day of the year, weekday, time).",
        ),
    ] = Dates.error,
    hidden: Annotated[
        str,
        _option(
            "--hidden",
            help="Units of each hidden layer: 50, or 64,32; 0 for none. By default linear, narrow "
            "and wide networks are trained and pruned, and the free energy chooses.",
        ),
    ] = "auto",
    learn_priors: Annotated[
        LearntPriors,
        _option(
            "--learn-priors",
            help="Prior variances to learn: one for each input and array of weights, one for each "
            "array, or none. By default those of inputs in wide networks.",
        ),
    ] = LearntPriors.auto,
    noise_prior: Annotated[
        tuple[float, float] | None,
        _option(
            "--noise-prior",
            metavar="SHAPE RATE",
            help="Shape and rate of the Gamma prior of the noise precision, for a standardised "
            "target; by default 1 0.01.",
        ),
    ] = None,
    inference: Annotated[
        Inference, _option("--inference", help="Inference algorithm.")
    ] = Inference.moments,
    posterior: Annotated[
        Posterior,
        _option(
            "--posterior",
            help="Weights independent of each other, or with a covariance within each unit (better "
            "with collinear inputs, and slower). linear tries both for the linear model, auto for "
            "all structures, and the free energy chooses.",
        ),
    ] = Posterior.linear,
    what: Annotated[
        What, _option("--what", help="What to prune: single weights, whole units, or both.")
    ] = What.weights,
    grow: Annotated[bool, _option("--grow", help="Let pruned weights grow back.")] = False,
    most_weights: Annotated[
        int | None,
        _option(
            "--most-weights",
            help="Largest number of weights of the pruned network; if necessary, weights "
            "are cut even though the free energy rises.",
            min=1,
        ),
    ] = None,
    least_accuracy: Annotated[
        float | None,
        _option(
            "--least-accuracy",
            help="Required accuracy on the held-out rows, such as 0.9: the model with the lowest "
            "free energy that reaches it is kept.",
            min=0,
            max=1,
        ),
    ] = None,
    most_rmse: Annotated[
        float | None,
        _option(
            "--most-rmse",
            help="Largest root-mean-square error on the held-out rows, in the target's units.",
            min=0,
        ),
    ] = None,
    seed: Annotated[int, _option("--seed", help="Random seed.", min=0)] = 0,
    restarts: Annotated[
        int,
        _option(
            "--restarts",
            help="Number of initialisations to train; the one with the lowest free energy is kept.",
            min=1,
        ),
    ] = 1,
    average: Annotated[
        bool,
        _option(
            "--average",
            help="Average the predictions of all pruned restarts, with equal weights or by their "
            "evidence: whichever predicts the held-out rows better. Exports write the best restart "
            "alone.",
        ),
    ] = False,
    minutes: Annotated[
        float | None, _option("--minutes", help="Maximum duration of the whole run.", min=0.0)
    ] = None,
    epochs: Annotated[
        int | None, _option("--epochs", help="Maximum number of epochs of each training.", min=1)
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
            "--held-out",
            help="Fraction of the rows that is held out for evaluation.",
            min=0,
            max=0.9,
        ),
    ] = 0.2,
    max_categories: Annotated[
        int,
        _option(
            "--max-categories",
            help="Maximum number of different text values in a column.",
            min=2,
        ),
    ] = 50,
    encoding: Annotated[
        str | None, _option("--encoding", help="Encoding of a text file; by default UTF-8.")
    ] = None,
    resume: Annotated[bool, _option("--resume", help="Continue an interrupted run.")] = False,
    force: Annotated[bool, _option("--force", help="Replace an existing run.")] = False,
    quiet: Annotated[
        bool, _option("--quiet", "-q", help="Print only the path of the report.")
    ] = False,
) -> None:
    """Train a Bayesian neural network on a table, prune it, and write a report.

    Ctrl-C stops after the current epoch; the same command with --resume continues.
    """
    from rich.console import Console

    import secateur as sc
    from secateur.runs.controls import RunInterrupted, RunSettings
    from secateur.runs.folder import RunFolder
    from secateur.runs.table_fit import fit_table

    folder = RunFolder(out if out is not None else Path(f"{data.stem}-run"))
    command = shlex.join(["secateur", *sys.argv[1:]])
    messages = Console(stderr=True, highlight=False, quiet=quiet, soft_wrap=True)
    settings = RunSettings(
        task=task and task.value,
        hidden=None if hidden == "auto" else parse_layers(hidden),
        learn_priors=None if learn_priors == LearntPriors.none else learn_priors.value,
        noise_prior=noise_prior,
        inference=inference.value,
        posterior=posterior.value,
        what=what.value,
        grow=grow,
        most_weights=most_weights,
        least_accuracy=least_accuracy,
        most_rmse=most_rmse,
        seed=seed,
        restarts=restarts,
        average=average,
        minutes=minutes,
        held_out=held_out,
        missing=missing.value,
        dates=dates.value,
        drop=tuple(drop or ()),
        epochs=epochs,
        batch_size=batch_size,
        max_categories=max_categories,
        encoding=encoding,
    )

    def say(sentence: str) -> None:
        is_open = task is None and len(target) == 1 and "holds texts" not in sentence
        if sentence.startswith("task: ") and is_open:
            other = "regression" if "task: classification" in sentence else "classification"
            sentence += f" (--task {other} overrides this)"
        messages.print(sentence, markup=False)

    try:
        with as_user_errors(ValueError, sc.FitError, sc.CheckpointError, OSError, command=fit):
            run = fit_table(
                data,
                target,
                settings,
                folder,
                command=remove_option(command, "--resume"),
                resume=resume,
                force=force,
                progress=not quiet,
                say=say,
            )
    except RunInterrupted:
        again = command if resume else f"{remove_option(command, '--force')} --resume"
        typer.echo(f"secateur: stopped. The progress is saved; continue with\n  {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _show_result(run.record, run.folder.report, quiet=quiet)


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the sizes of hidden layers from "50", "64,32", or "0" for none.

    Args:
        text: Value of the option `--hidden`.

    Raises:
        UserError: The text is something else.

    Example:
        >>> parse_layers("64,32"), parse_layers("0")
        ((64, 32), ())
    """
    if text.strip() == "0":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UserError(
            f"--hidden {text}: give the units of each hidden layer, such as 50 or 64,32; 0 for "
            "none; or auto."
        )
    return tuple(map(int, parts))


def remove_option(command: str, option: str) -> str:
    """Return a command without one of its options that takes no value."""
    return shlex.join(part for part in shlex.split(command) if part != option)


# --- the end of a run -----------------------------------------------------------------------------


def _show_result(record: dict[str, Any], path: Path, *, quiet: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    if not quiet:
        if len(record["candidates"]) > 1:
            console.print(tabulate_candidates(record["candidates"]))
        console.print(tabulate_record(record))
        _, cut = find_cut_columns(record)
        console.print(f"Columns removed completely: {shorten_list(cut)}", markup=False)
        ends = (record["energy"][when]["stop_reason"] for when in ("before", "after"))
        console.print("Training: {}. Pruning: {}.".format(*ends), markup=False)
        for caveat in record["caveats"]:
            console.print(f"Caution: {caveat}.", markup=False)
    console.print(f"{'' if quiet else 'Report: '}{path}", markup=False)


def tabulate_candidates(candidates: list[dict[str, Any]]) -> Table:
    """Return a table of the structures that were compared, with the chosen one marked.

    Args:
        candidates: What `secateur.selection.Selection.table` returns.
    """
    from rich.table import Table

    table = Table(title="Structures compared, by free energy after pruning", title_justify="left")
    table.add_column("structure")
    for heading in ("weights", "free energy before", "after (nats)", ""):
        table.add_column(heading, justify="right")
    for row in candidates:
        table.add_row(
            row["structure"],
            f"{row['weights_before']:,} → {row['weights_after']:,}",
            f"{row['free_energy_before']:,.1f}",
            f"{row['free_energy_after']:,.1f}",
            "chosen" if row["chosen"] else "",
        )
    return table


def tabulate_record(record: dict[str, Any]) -> Table:
    """Return a table that compares the model before and after pruning.

    Args:
        record: Record from `secateur.report.make_record`.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Before and after pruning", title_justify="left")
    table.add_column("")
    average = record.get("average")
    headings = ("before", "after", *([f"average of {average['models']}"] if average else []))
    for heading in headings:
        table.add_column(heading, justify="right")
    weights, energy, held_out = record["weights"], record["energy"], record["held_out"]
    counts = [weights["before"], weights["after"], *([average["weights"]] if average else [])]
    table.add_row("weights", *(f"{count:,}" for count in counts))
    if weights["hidden_before"]:
        hidden = (f"{weights[f'hidden_{when}']:,}" for when in ("before", "after"))
        table.add_row("hidden units", *hidden)
    used, cut = find_cut_columns(record)
    table.add_row("columns in use", str(len(used) + len(cut)), str(len(used)))
    sizes = (f"{4 * weights[when]:,}" for when in ("before", "after"))
    table.add_row("bytes of the weights (4 each)", *sizes)
    table.add_row("free energy (nats)", *_format_all(energy, "free_energy", ",.1f"))
    if held_out is not None:
        table.add_section()
        table.add_row(f"{held_out['rows']:,} rows held out:", "", "")
        for heading, *scores in _list_scores(held_out, len(record["targets"])):
            table.add_row(Text(f"  {heading}"), *scores)
    return table


def _list_scores(held_out: dict[str, Any], targets: int) -> Iterator[tuple[str, ...]]:
    """Yield heading and score at every stage; errors of several targets are listed separately."""
    errors = (("rmse", "root-mean-square error", ".4g"), ("r_squared", "R²", ".3f"))
    if targets > 1:
        for entry in held_out["targets"]:
            for name, heading, form in errors:
                yield f"{heading}, {entry['name']}", *_format_all(entry, name, form)
        if targets > len(held_out["targets"]):
            yield (f"… and {targets - len(held_out['targets'])} more targets",)
    for name, heading, form in (
        *(errors if targets == 1 else ()),
        ("accuracy", "accuracy", ".1%"),
        ("base_rate", "base rate (most frequent class)", ".1%"),
        ("log_likelihood", "log-likelihood (nats per row)", ".3f"),
        ("coverage_95", "95 % coverage", ".1%"),
    ):
        if name in held_out["before"]:
            yield heading, *_format_all(held_out, name, form)


def shorten_list(names: Sequence[str], limit: int = _MAX_NAMES) -> str:
    """Return names for a sentence, the first few of them if there are many.

    Args:
        names: The names.
        limit: Maximum number of names; one more is not cut off.

    Example:
        >>> shorten_list("abcdef", 3), shorten_list([])
        ('a, b, c and 3 more', 'none')
    """
    if len(names) <= limit + 1:
        return ", ".join(names) or "none"
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def find_cut_columns(record: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the columns that still have an influence, and those that have none."""
    is_used: dict[str, bool] = {}
    for entry in record["inputs"]:
        column = entry["column"]
        is_used[column] = is_used.get(column, False) or not entry.get("cut", False)
    return [c for c in is_used if is_used[c]], [c for c in is_used if not is_used[c]]


def _format_all(parts: dict[str, Any], name: str, form: str) -> list[str]:
    """Return a figure before and after pruning and, if there is one, that of an average."""
    stages = (when for when in ("before", "after", "averaged") if when in parts)
    values = (parts[when].get(name) for when in stages)
    return ["–" if value is None else format(value, form) for value in values]
