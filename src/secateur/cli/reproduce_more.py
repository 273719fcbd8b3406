"""`secateur reproduce figure1 | figure2 | figure3 | uci`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.data import DataDir
from secateur.cli.errors import UserError

__all__ = ["figure1", "figure2", "figure3", "uci"]

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.", file_okay=False)]
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
RESULTS = Path("reproduced")


def figure1(out: Out = RESULTS) -> None:
    """The three pruning criteria over posterior mean and deviation, and where BMR is 0."""
    from secateur.paper import figures

    figures.figure1(out)
    _say_where(out, "figure1", "png", "svg", "csv")


def figure2(
    out: Out = RESULTS,
    seed: Seed = 0,
    epochs: Epochs = None,
    samples: Samples = None,
    data_dir: DataDir = None,
    quick: Quick = False,
) -> None:
    """Free energy that BMR estimates, and the actual one, against the pruning rate.

    Boston, three algorithms, the paper's recipe, no retraining. The trainings are shared with
    figure3 where both write to the same folder.
    """
    from secateur.datasets import DatasetError
    from secateur.paper import figures

    try:
        figures.figure2(
            out, seed=seed, epochs=epochs, samples=samples, data_dir=data_dir, quick=quick
        )
    except DatasetError as error:
        raise UserError(str(error)) from None
    _say_where(out, "figure2", "png", "svg", "csv")


def figure3(
    out: Out = RESULTS,
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

    try:
        text = figures.figure3(
            out, seed=seed, epochs=epochs, samples=samples, data_dir=data_dir, quick=quick
        )
    except DatasetError as error:
        raise UserError(str(error)) from None
    typer.echo(text)
    _say_where(out, "figure3", "png", "svg", "csv", "md")


def uci(
    sets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="UCI sets; all eight if none is given.", show_default=False
        ),
    ] = None,
    out: Out = RESULTS,
    splits: Annotated[
        int, typer.Option("--splits", help="How many of the 20 standard splits.", min=1, max=20)
    ] = 20,
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

    try:
        table = held_out.uci(
            out,
            sets=sets or (),
            splits=splits,
            epochs=epochs,
            seed=seed,
            data_dir=data_dir,
            quick=quick,
        )
    except DatasetError as error:
        raise UserError(str(error)) from None
    typer.echo(table)
    _say_where(out, "uci-quick" if quick else "uci", "md", "csv")


def _say_where(out: Path, name: str, *endings: str) -> None:
    typer.echo(f"written: {', '.join(str(out / f'{name}.{ending}') for ending in endings)}")
