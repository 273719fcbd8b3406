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
from secateur.cli.errors import UserError

__all__ = ["app"]

app = typer.Typer(
    help="The tables and figures of the paper, with our code beside the paper's numbers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Kind = StrEnum("Kind", ["paper", "default"])
Out = Annotated[
    Path, typer.Option("--out", help="Folder for the results; what is there is not run again.")
]


@app.command()
def table1(
    out: Out = Path("reproduced"),
    recipe: Annotated[
        Kind, typer.Option(help="The paper's settings, or those we would choose.")
    ] = Kind.paper,
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
    command = shlex.join(["secateur", *sys.argv[1:]])
    try:
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
    except DatasetError as error:
        raise UserError(str(error)) from None
    except KeyboardInterrupt:
        raise UserError(f"stopped. The same command goes on from here: {command}") from None
    _show(rows)
    typer.echo(f"written to {out}/table1-{recipe.value}.md, .csv and .tex")


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
