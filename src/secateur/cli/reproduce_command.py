"""`secateur reproduce`: the paper's tables and figures with our code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.data_command import DataDirOption
from secateur.cli.errors import UserError, as_user_errors

if TYPE_CHECKING:
    from secateur.paper.boston_sweeps import SweepOptions

__all__ = ["reproduce_commands"]

reproduce_commands = typer.Typer(
    help="Reproduce the paper's tables and figures, beside its published numbers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

RecipeKind = StrEnum("RecipeKind", ["paper", "default"])
OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="Folder for the results; finished parts are not repeated.",
        file_okay=False,
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Random seed.", min=0)]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        help="Maximum number of epochs of each training. Defaults to the recipe's.",
        min=1,
        show_default=False,
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        "--samples",
        help="Number of samples that each free energy of a sampling algorithm averages. Defaults "
        "to 10, as in the paper.",
        min=2,
        show_default=False,
    ),
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Train for a few epochs only, as a quick check.")
]
RecipeOption = Annotated[
    RecipeKind, typer.Option("--recipe", help="The paper's settings, or this library's defaults.")
]
_RESULTS = Path("reproduced")


@reproduce_commands.command("table1")
def run_table1(
    out: OutOption = _RESULTS,
    recipe: RecipeOption = RecipeKind.paper,
    sets: Annotated[
        str, typer.Option("--sets", help="Names, separated by commas. Defaults to all eleven.")
    ] = "",
    algorithms: Annotated[
        str, typer.Option(help="Names, separated by commas.")
    ] = "moments,local,global",
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of initialisations; the table shows medians.")
    ] = 1,
    workers: Annotated[
        int, typer.Option(min=0, help="Number of parallel processes; 0 means one per core.")
    ] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run boston only, with 40 epochs, in a few seconds.")
    ] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Reproduce Table 1: free energies before and after pruning. A repeated call continues."""
    from secateur.datasets import DatasetError
    from secateur.paper import table1
    from secateur.paper.protocol import ALGORITHMS, PAPER_SETTINGS

    names = ["boston"] if quick and not sets else _split_names(sets, PAPER_SETTINGS, "data set")
    inference = _split_names(algorithms, ALGORITHMS, "algorithm")
    command = shlex.join(sys.argv[2:])
    try:
        with as_user_errors(DatasetError):
            rows = table1.reproduce_table1(
                out,
                kind=recipe.value,
                sets=names,
                algorithms=inference,
                seeds=seeds,
                epochs=table1.QUICK_EPOCHS if quick else 0,
                data_dir=None if data_dir is None else str(data_dir),
                workers=workers or None,
                command=command,
            )
    except KeyboardInterrupt:
        raise UserError(
            f"stopped. The same command continues from here: secateur reproduce {command}"
        ) from None
    _print_table1(rows)
    _print_paths(out, f"table1-{recipe.value}", "md", "csv", "tex")


@reproduce_commands.command("figure1")
def run_figure1(out: OutOption = _RESULTS) -> None:
    """Plot the three pruning criteria over posterior mean and deviation, and where BMR is 0."""
    from secateur.paper import figures

    figures.draw_figure1(out)
    _print_paths(out, "figure1", "png", "svg", "csv")


@reproduce_commands.command("figure2")
def run_figure2(
    out: OutOption = _RESULTS,
    recipe: RecipeOption = RecipeKind.paper,
    seed: SeedOption = 0,
    epochs: EpochsOption = None,
    samples: SamplesOption = None,
    data_dir: DataDirOption = None,
    quick: QuickOption = False,
) -> None:
    """Plot estimated (by BMR) and actual free energy against the pruning rate.

    Boston, three algorithms, no retraining. figure2 and figure3 share their trainings if they write
    to the same folder.
    """
    from secateur.datasets import DatasetError
    from secateur.paper import figures

    options = _sweep_options(recipe, seed, epochs, samples, quick)
    with as_user_errors(DatasetError):
        figures.draw_figure2(out, options, data_dir=data_dir)
    _print_paths(out, options.name_result("figure2"), "png", "svg", "csv")


@reproduce_commands.command("figure3")
def run_figure3(
    out: OutOption = _RESULTS,
    recipe: RecipeOption = RecipeKind.paper,
    seed: SeedOption = 0,
    epochs: EpochsOption = None,
    samples: SamplesOption = None,
    data_dir: DataDirOption = None,
    quick: QuickOption = False,
) -> None:
    """Plot free energy and negative accuracy against the pruning rate, for BMR, SNR and SPR.

    Like figure2, and reports how far the stopping point of BMR is from the lowest free energy over
    all rates and criteria.
    """
    from secateur.datasets import DatasetError
    from secateur.paper import figures

    options = _sweep_options(recipe, seed, epochs, samples, quick)
    with as_user_errors(DatasetError):
        text = figures.draw_figure3(out, options, data_dir=data_dir)
    typer.echo(text)
    _print_paths(out, options.name_result("figure3"), "png", "svg", "csv", "md")


@reproduce_commands.command("uci")
def run_uci(
    sets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Names of UCI sets. Defaults to all eight.",
            show_default=False,
        ),
    ] = None,
    out: OutOption = _RESULTS,
    splits: Annotated[
        int, typer.Option("--splits", help="Number of standard splits, of 20.", min=1, max=20)
    ] = 20,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts",
            help="Number of initialisations for each split. The one with the lowest free "
            "energy is evaluated, and so is the average of all.",
            min=1,
        ),
    ] = 1,
    epochs: EpochsOption = None,
    seed: SeedOption = 0,
    data_dir: DataDirOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run boston only, with three splits and a few epochs.")
    ] = False,
) -> None:
    """Compare error, log-likelihood and coverage on the standard UCI splits with published results.

    Uses the default recipe, before and after pruning. Finished data sets are not run again with the
    same settings; the table shows all finished ones.
    """
    from secateur.datasets import DatasetError
    from secateur.paper.uci_splits import reproduce_uci

    with as_user_errors(DatasetError):
        table = reproduce_uci(
            out,
            sets=sets or (),
            splits=splits,
            restarts=restarts,
            epochs=epochs,
            seed=seed,
            data_dir=data_dir,
            quick=quick,
        )
    typer.echo(table)
    _print_paths(out, "uci-quick" if quick else "uci", "md", "csv")


def _print_table1(rows: Sequence[Any]) -> None:
    """Print the table so that it fits a terminal; the files contain more."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    heads = ("data", "inference", "start", "one cut", "end", "paper:", "one cut", "end")
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < 2 else "right", no_wrap=True)
    for r in rows:
        paper = r.paper
        table.add_row(
            r.dataset,
            r.inference,
            f"{r.start:.0f}",
            f"{r.one:.0f} ({r.one_pruned:.0f} %)",
            f"{r.iterative:.0f} ({r.pruned:.0f} %)",
            f"{paper.start:.0f}",
            f"{paper.one:.0f} ({paper.one_pruned:.0f} %)",
            f"{paper.iterative:.0f} ({paper.iterative_pruned:.0f} %)",
        )
    Console().print(table)


def _sweep_options(
    recipe: RecipeKind, seed: int, epochs: int | None, samples: int | None, quick: bool
) -> SweepOptions:
    from secateur.paper.boston_sweeps import QUICK_EPOCHS, SweepOptions

    epochs = epochs or (QUICK_EPOCHS if quick else None)
    return SweepOptions(recipe.value, seed, epochs, samples)


def _split_names(text: str, known: Iterable[str], kind: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"no {kind} {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    return names or list(known)


def _print_paths(out: Path, name: str, *endings: str) -> None:
    typer.echo(f"written: {', '.join(str(out / f'{name}.{ending}') for ending in endings)}")
