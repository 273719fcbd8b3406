"""`secateur reproduce`: the paper's tables and figures with our code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from secateur.cli.data import DataDir
from secateur.cli.errors import UserError, as_user_errors

__all__ = ["app"]

app = typer.Typer(
    help="The tables and figures of the paper, with our code beside the paper's numbers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Kind = StrEnum("Kind", ["paper", "default"])
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="Folder for the results; what is done is not run again.",
        file_okay=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random.", min=0)]
Epochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        help="Of each training, at most; by default as the recipe says.",
        min=1,
        show_default=False,
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        "--samples",
        help="That each free energy of a sampling algorithm averages; by default 10, as in the "
        "paper.",
        min=2,
        show_default=False,
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="A few epochs, to see that it works.")]
Recipe = Annotated[
    Kind, typer.Option("--recipe", help="The paper's settings, or those we would choose.")
]
_RESULTS = Path("reproduced")


@app.command()
def table1(
    out: Out = _RESULTS,
    recipe: Recipe = Kind.paper,
    sets: Annotated[
        str, typer.Option("--sets", help="Names with commas; all eleven if not given.")
    ] = "",
    algorithms: Annotated[str, typer.Option(help="Names with commas.")] = "moments,local,global",
    seeds: Annotated[int, typer.Option(min=1, help="Initialisations; the median counts.")] = 1,
    workers: Annotated[int, typer.Option(min=0, help="Processes at a time; 0: one per core.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Boston only, 40 epochs: seconds.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Table 1: free energies before and after pruning. If stopped, it goes on when repeated."""
    from secateur.datasets import DatasetError
    from secateur.paper.setup import ALGORITHMS, SETS
    from secateur.paper.table1 import table1 as run

    wanted = ["boston"] if quick and not sets else _names(sets, tuple(SETS), "data set")
    how = _names(algorithms, ALGORITHMS, "algorithm")
    command = shlex.join(sys.argv[2:])
    try:
        with as_user_errors(DatasetError):
            rows = run(
                out,
                kind=recipe.value,
                sets=wanted,
                algorithms=how,
                seeds=seeds,
                epochs=40 if quick else 0,
                data_dir=None if data_dir is None else str(data_dir),
                workers=workers or None,
                command=command,
            )
    except KeyboardInterrupt:
        raise UserError(
            f"stopped. The same command goes on from here: secateur reproduce {command}"
        ) from None
    _show(rows)
    _say_where(out, f"table1-{recipe.value}", "md", "csv", "tex")


@app.command()
def figure1(out: Out = _RESULTS) -> None:
    """The three pruning criteria over posterior mean and deviation, and where BMR is 0."""
    from secateur.paper import figures

    figures.figure1(out)
    _say_where(out, "figure1", "png", "svg", "csv")


@app.command()
def figure2(
    out: Out = _RESULTS,
    recipe: Recipe = Kind.paper,
    seed: Seed = 0,
    epochs: Epochs = None,
    samples: Samples = None,
    data_dir: DataDir = None,
    quick: Quick = False,
) -> None:
    """Free energy that BMR estimates, and the actual one, against the pruning rate.

    Boston, three algorithms, no retraining. The trainings are shared with figure3 where
    both write to the same folder.
    """
    from secateur.datasets import DatasetError
    from secateur.paper import figures

    with as_user_errors(DatasetError):
        figures.figure2(
            out,
            kind=recipe.value,
            seed=seed,
            epochs=epochs,
            samples=samples,
            data_dir=data_dir,
            quick=quick,
        )
    _say_where(out, figures.named("figure2", recipe.value), "png", "svg", "csv")


@app.command()
def figure3(
    out: Out = _RESULTS,
    recipe: Recipe = Kind.paper,
    seed: Seed = 0,
    epochs: Epochs = None,
    samples: Samples = None,
    data_dir: DataDir = None,
    quick: Quick = False,
) -> None:
    """Free energy and negative accuracy against the pruning rate, for BMR, SNR and SPR.

    As figure2; also says how far BMR's own stopping point is from the lowest free energy of any
    rate and criterion.
    """
    from secateur.datasets import DatasetError
    from secateur.paper import figures

    with as_user_errors(DatasetError):
        text = figures.figure3(
            out,
            kind=recipe.value,
            seed=seed,
            epochs=epochs,
            samples=samples,
            data_dir=data_dir,
            quick=quick,
        )
    typer.echo(text)
    _say_where(out, figures.named("figure3", recipe.value), "png", "svg", "csv", "md")


@app.command()
def uci(
    sets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="UCI sets; all eight if none is given.", show_default=False
        ),
    ] = None,
    out: Out = _RESULTS,
    splits: Annotated[
        int, typer.Option("--splits", help="How many of the 20 standard splits.", min=1, max=20)
    ] = 20,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts",
            help="Initialisations for each split: the one of least free energy is judged, and all "
            "of them averaged.",
            min=1,
        ),
    ] = 1,
    epochs: Epochs = None,
    seed: Seed = 0,
    data_dir: DataDir = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Boston only, three splits, a few epochs.")
    ] = False,
) -> None:
    """Test error, log-likelihood and 95 % coverage on the standard splits, beside published ones.

    The default recipe, before and after pruning. A data set that is finished is not run again
    with the same settings; the table shows all that are finished.
    """
    from secateur.datasets import DatasetError
    from secateur.paper import uci as held_out

    with as_user_errors(DatasetError):
        table = held_out.uci(
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
    _say_where(out, "uci-quick" if quick else "uci", "md", "csv")


def _show(rows: Sequence[Any]) -> None:
    """Print the table so that it fits a terminal; the files say more."""
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


def _names(given: str, known: tuple[str, ...], what: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"no {what} {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    return names or list(known)


def _say_where(out: Path, name: str, *endings: str) -> None:
    typer.echo(f"written: {', '.join(str(out / f'{name}.{ending}') for ending in endings)}")
