"""Figures 1, 2 and 3 of the paper, each with the numbers behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import PercentFormatter

from secateur.distributions import Normal
from secateur.paper.drawing import ALGORITHM_TITLES, COLOURS, CRITERION_TITLES, drawn
from secateur.paper.sweeping import CRITERIA, QUICK_EPOCHS, named, sweeps
from secateur.paper.writing import as_csv, made_by, write_atomically
from secateur.pruning.sweep import Sweep
from secateur.reduction import prune_scores

__all__ = ["criteria_on_grid", "figure1", "figure2", "figure3", "gaps"]

REDUCED_VARIANCE = 1e-16


def criteria_on_grid(
    means: np.ndarray, deviations: np.ndarray, reduced_variance: float = REDUCED_VARIANCE
) -> dict[str, np.ndarray]:
    """Score beliefs N(mean, deviation²) under a prior N(0, 1), by criterion.

    Args:
        means: of the beliefs, 1-d.
        deviations: of the beliefs, 1-d.
        reduced_variance: of the prior that Bayesian model reduction puts in the place of N(0, 1).

    Returns:
        Arrays of shape (deviations, means); "bmr" in nats.
    """
    mean, deviation = np.meshgrid(means, deviations)
    belief, prior = Normal(mean, np.square(deviation)), Normal(0.0, 1.0)
    options: dict[str, dict[str, Any]] = {"bmr": {"reduced_variance": reduced_variance}}
    return {
        name: np.asarray(prune_scores(belief, prior, name, **options.get(name, {})))
        for name in ("snr", "spr", "bmr")
    }


def figure1(out: Path) -> None:
    """Draw the three criteria over posterior mean and deviation, and where BMR is 0.

    Writes `figure1.png`, `.svg` and `.csv`.

    Args:
        out: folder for the results.
    """
    means, deviations = np.linspace(-3, 3, 61), np.linspace(0.05, 2, 40)
    scores = criteria_on_grid(means, deviations)
    note = made_by("figure1")
    looks = {
        "snr": ("cividis", np.linspace(0, 6, 25), "max", "|μ|/σ"),
        "spr": ("cividis", np.linspace(0, 5, 26), "neither", "|μ| + σ"),
        "bmr": ("PuOr", np.linspace(-4, 4, 33), "max", "ΔF, nats"),
    }
    with drawn(out, "figure1", note, (10.5, 3.3)) as figure:
        panels = figure.subplots(1, 3, sharey=True)
        for axes, (name, (colours, levels, beyond, label)) in zip(
            panels, looks.items(), strict=True
        ):
            field = (means, deviations, scores[name])
            image = axes.contourf(*field, levels, cmap=colours, extend=beyond)
            axes.contour(means, deviations, scores["bmr"], [0], colors=COLOURS["mark"])
            axes.set_title(CRITERION_TITLES[name])
            axes.set_xlabel("posterior mean μ")
            axes.grid(visible=False)
            bar = figure.colorbar(image, ax=axes, label=label)
            bar.set_ticks(list(range(int(levels[0]), int(levels[-1]) + 1)))
        panels[0].set_ylabel("posterior standard deviation σ")
        panels[2].annotate("ΔF = 0", (0.55, 0.8), (1.3, 1.2), arrowprops={"arrowstyle": "-"})
    rows = (
        [float(mean), float(deviation), *(float(scores[c][i, j]) for c in CRITERIA)]
        for i, deviation in enumerate(deviations)
        for j, mean in enumerate(means)
    )
    header = ["mean", "deviation", *CRITERIA]
    write_atomically(out / "figure1.csv", as_csv(note, header, rows))


def figure2(
    out: Path,
    *,
    kind: str = "paper",
    seed: int = 0,
    epochs: int | None = None,
    samples: int | None = None,
    data_dir: Path | None = None,
    quick: bool = False,
    progress: bool = True,
) -> None:
    """Draw the free energy that BMR estimates, and the actual one, against the pruning rate.

    Boston, three algorithms, no retraining. Writes `figure2.png`, `.svg` and `.csv`
    (`figure2-default` with that recipe). The trainings are those of `figure3`: whichever comes
    first leaves them in `sweeps.json`.

    Args:
        out: folder for the results.
        kind: of recipe, "paper" or "default".
        seed: of the trainings.
        epochs: of each training; by default the recipe's.
        samples: that each free energy of a sampling algorithm averages; by default 10.
        data_dir: where the data are; see `secateur.datasets.load`.
        quick: few epochs.
        progress: whether to say on standard error how far it is.
    """
    epochs = epochs or (QUICK_EPOCHS if quick else None)
    options: dict[str, Any] = {"seed": seed, "epochs": epochs, "samples": samples}
    found = sweeps(out, kind=kind, data_dir=data_dir, progress=progress, **options)
    note, name = _note("figure2", kind, **options), named("figure2", kind)
    with drawn(out, name, note, (10.5, 3.4)) as figure:
        panels = figure.subplots(1, len(found))
        for axes, (inference, each) in zip(panels, found.items(), strict=True):
            curve = each.curves["bmr"]
            axes.plot(curve.rates, curve.free_energy, color=COLOURS["bmr"], label="actual")
            _shade(axes, curve, curve.free_energy, COLOURS["bmr"])
            axes.plot(
                curve.rates, curve.estimated, "--", color=COLOURS["snr"], label="estimated by BMR"
            )
            _mark_stop(axes, each.stop_rate, each.stop_free_energy)
            axes.set_title(ALGORITHM_TITLES[inference])
            shown = np.concatenate([curve.estimated, curve.free_energy])
            _limit(axes, shown, float(curve.free_energy[0]))
            _rates(axes)
        panels[0].set_ylabel("free energy, nats")
        panels[0].legend(loc="upper left")
    rows = (
        [inference, *map(float, values)]
        for inference, each in found.items()
        for values in zip(
            *(
                getattr(each.curves["bmr"], column)
                for column in ("rates", "estimated", "free_energy", "standard_error")
            ),
            strict=True,
        )
    )
    header = ["algorithm", "rate", "estimated", "actual", "standard_error"]
    write_atomically(out / f"{name}.csv", as_csv(f"{note}; {_stops(found)}", header, rows))


def figure3(
    out: Path,
    *,
    kind: str = "paper",
    seed: int = 0,
    epochs: int | None = None,
    samples: int | None = None,
    data_dir: Path | None = None,
    quick: bool = False,
    progress: bool = True,
) -> str:
    """Draw free energy and negative accuracy against the pruning rate, for BMR, SNR and SPR.

    Boston, three algorithms, no retraining. Writes `figure3.png`, `.svg`,
    `.csv` and `.md`; see `figure2`, also for the arguments.

    Returns:
        What `figure3.md` says: how far BMR's own stopping point is from the lowest free energy of
        any rate and criterion.
    """
    epochs = epochs or (QUICK_EPOCHS if quick else None)
    options: dict[str, Any] = {"seed": seed, "epochs": epochs, "samples": samples}
    found = sweeps(out, kind=kind, data_dir=data_dir, progress=progress, **options)
    note, name = _note("figure3", kind, **options), named("figure3", kind)
    with drawn(out, name, note, (9.2, 4.8)) as figure:
        panels = figure.subplots(2, len(found), sharex=True)
        for column, (inference, each) in zip(panels.T, found.items(), strict=True):
            for criterion, curve in each.curves.items():
                values = (curve.free_energy, -curve.accuracy)
                for axes, value in zip(column, values, strict=True):
                    label = CRITERION_TITLES[criterion]
                    axes.plot(curve.rates, value, color=COLOURS[criterion], label=label)
                    _shade(axes, curve, value, COLOURS[criterion])
            _mark_stop(column[0], each.stop_rate, each.stop_free_energy)
            column[1].axvline(each.stop_rate, color=COLOURS["mark"], linewidth=1, linestyle=":")
            curves = each.curves.values()
            _limit(
                column[0],
                np.concatenate([c.free_energy for c in curves]),
                float(each.curves["bmr"].free_energy[0]),
            )
            errors = np.concatenate([-c.accuracy for c in curves])
            _limit(column[1], errors, float(np.min(errors)) * 1.25)
            column[0].set_title(ALGORITHM_TITLES[inference])
            column[0].tick_params(labelbottom=False)
            _rates(column[1])
        panels[0, 0].set_ylabel("free energy, nats")
        panels[1, 0].set_ylabel("negative accuracy, nats")
        panels[1, 0].legend(loc="upper left")
    columns = ("rates", "free_energy", "complexity", "accuracy", "standard_error")
    rows = (
        [inference, criterion, *map(float, values)]
        for inference, each in found.items()
        for criterion, curve in each.curves.items()
        for values in zip(*(getattr(curve, c) for c in columns), strict=True)
    )
    header = ["algorithm", "criterion", "rate", *columns[1:]]
    write_atomically(out / f"{name}.csv", as_csv(f"{note}; {_stops(found)}", header, rows))
    text = gaps(found, note)
    write_atomically(out / f"{name}.md", text)
    return text


def gaps(found: dict[str, Sweep], note: str) -> str:
    """Compare BMR's own stopping point with the lowest free energy of any rate and criterion.

    Args:
        found: sweeps by algorithm.
        note: on where they come from.

    Returns:
        A table in Markdown.
    """
    lines = [
        f"`{note}`\n",
        "Free energies in nats. With sampling algorithms they are means of the recipe's number "
        "of samples, ± standard error; the lowest of 300 noisy values is a little too low.\n",
        "| algorithm | BMR stops at | free energy there | lowest of all | found by, at | above "
        "it |",
        "|---|---|---|---|---|---|",
    ]
    for inference, each in found.items():
        best = min(each.curves.values(), key=lambda c: c.free_energy[c.best])
        lowest, error = best.free_energy[best.best], best.standard_error[best.best]
        noise = f" ± {error:.1f}" if error else ""
        above = (each.stop_free_energy - lowest) / abs(lowest)
        lines.append(
            f"| {inference} | {each.stop_rate:.1%} | {each.stop_free_energy:.1f} | "
            f"{lowest:.1f}{noise} | {best.criterion}, {best.rates[best.best]:.0%} | {above:.2%} |"
        )
    return "\n".join(lines) + "\n"


def _note(command: str, kind: str, *, seed: int, **options: Any) -> str:
    recipe = None if kind == "paper" else kind
    return made_by(command, recipe=recipe, seed=seed or None, **options)


def _stops(found: dict[str, Sweep]) -> str:
    return ", ".join(f"{name} stops at {each.stop_rate:.4f}" for name, each in found.items())


def _shade(axes: Any, curve: Any, value: np.ndarray, colour: str) -> None:
    """Two standard errors, where there are any."""
    if np.any(curve.standard_error):
        reach = 2 * curve.standard_error
        axes.fill_between(curve.rates, value - reach, value + reach, color=colour, alpha=0.2, lw=0)


def _mark_stop(axes: Any, rate: float, free_energy: float) -> None:
    label = "where BMR stops"
    axes.plot([rate], [free_energy], "o", color=COLOURS["mark"], label=label, zorder=3)
    axes.axvline(rate, color=COLOURS["mark"], linewidth=1, linestyle=":")


def _limit(axes: Any, shown: np.ndarray, upper: float) -> None:
    """Show all that lies below the upper value, and a little more: what is worse needs no room."""
    low = float(np.min(shown))
    high = max(upper, low + 1e-9)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.12 * (high - low))


def _rates(axes: Any) -> None:
    axes.set_xlabel("weights removed")
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
