"""Figures 1, 2 and 3 of the paper, each with the numbers behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import PercentFormatter

from secateur.distributions import Normal
from secateur.paper.boston_sweeps import CRITERIA, SweepOptions, obtain_sweeps
from secateur.paper.result_files import describe_origin, format_csv, write_figure, write_result
from secateur.pruning.curves import Curve, Sweep
from secateur.reduction import prune_scores

__all__ = ["compare_stops", "draw_figure1", "draw_figure2", "draw_figure3", "score_grid"]

REDUCED_VARIANCE = 1e-16
ALGORITHM_TITLES = {
    "moments": "variance backpropagation",
    "local": "local reparametrisation",
    "global": "global reparametrisation",
}
CRITERION_TITLES = {
    "bmr": "Bayesian model reduction",
    "snr": "signal-to-noise ratio",
    "spr": "signal plus robustness",
}
# From Okabe and Ito's palette, which is safe for colour-blind readers.
COLOURS = {"bmr": "#0072B2", "snr": "#E69F00", "spr": "#009E73", "mark": "#D55E00"}


# --- figure 1 -------------------------------------------------------------------------------------


def score_grid(
    means: np.ndarray, deviations: np.ndarray, reduced_variance: float = REDUCED_VARIANCE
) -> dict[str, np.ndarray]:
    """Score beliefs N(mean, deviation²) under a prior N(0, 1), by criterion.

    Args:
        means: Means of the beliefs, 1-d.
        deviations: Standard deviations of the beliefs, 1-d.
        reduced_variance: Variance of the reduced prior, which replaces N(0, 1).

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


def draw_figure1(out: Path) -> None:
    """Draw the three criteria over posterior mean and deviation, and where BMR is 0.

    Writes `figure1.png`, `.svg` and `.csv`.

    Args:
        out: Folder for the results.
    """
    means, deviations = np.linspace(-3, 3, 61), np.linspace(0.05, 2, 40)
    scores = score_grid(means, deviations)
    note = describe_origin("figure1")
    looks = {
        "snr": ("cividis", np.linspace(0, 6, 25), "max", "|μ|/σ"),
        "spr": ("cividis", np.linspace(0, 5, 26), "neither", "|μ| + σ"),
        "bmr": ("PuOr", np.linspace(-4, 4, 33), "max", "ΔF, nats"),
    }
    with write_figure(out, "figure1", note, (10.5, 3.3)) as figure:
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
    write_result(out / "figure1.csv", format_csv(note, header, rows))


# --- figures 2 and 3 ------------------------------------------------------------------------------


def draw_figure2(
    out: Path, options: SweepOptions, *, data_dir: Path | None = None, progress: bool = True
) -> None:
    """Draw the free energy that BMR estimates, and the actual one, against the pruning rate.

    Boston, three algorithms, no retraining. Writes `figure2.png`, `.svg` and `.csv`
    (`figure2-default` with that recipe). Figures 2 and 3 share their trainings, which are stored
    in `sweeps.json`.

    Args:
        out: Folder for the results.
        options: How to train.
        data_dir: Folder with the data; see `secateur.datasets.load`.
        progress: Whether to report progress on standard error.
    """
    sweeps = obtain_sweeps(out, options, data_dir=data_dir, progress=progress)
    note, name = options.describe_origin("figure2"), options.name_result("figure2")
    with write_figure(out, name, note, (10.5, 3.4)) as figure:
        panels = figure.subplots(1, len(sweeps))
        for axes, (inference, result) in zip(panels, sweeps.items(), strict=True):
            curve = result.curves["bmr"]
            axes.plot(curve.rates, curve.free_energy, color=COLOURS["bmr"], label="actual")
            _shade_errors(axes, curve, curve.free_energy, COLOURS["bmr"])
            axes.plot(
                curve.rates, curve.estimated, "--", color=COLOURS["snr"], label="estimated by BMR"
            )
            _mark_stop(axes, result.stop_rate, result.stop_free_energy)
            axes.set_title(ALGORITHM_TITLES[inference])
            values = np.concatenate([curve.estimated, curve.free_energy])
            _limit_height(axes, values, float(curve.free_energy[0]))
            _label_rates(axes)
        panels[0].set_ylabel("free energy, nats")
        panels[0].legend(loc="upper left")
    columns = {"rate": "rates", "estimated": "estimated", "actual": "free_energy"}
    columns["standard_error"] = "standard_error"
    rows = (
        [inference, *numbers]
        for inference, result in sweeps.items()
        for numbers in _list_points(result.curves["bmr"], columns.values())
    )
    header = ["algorithm", *columns]
    write_result(out / f"{name}.csv", format_csv(f"{note}; {_list_stops(sweeps)}", header, rows))


def draw_figure3(
    out: Path, options: SweepOptions, *, data_dir: Path | None = None, progress: bool = True
) -> str:
    """Draw free energy and negative accuracy against the pruning rate, for BMR, SNR and SPR.

    Boston, three algorithms, no retraining. Writes `figure3.png`, `.svg`, `.csv` and `.md`; see
    `draw_figure2`, also for the arguments.

    Returns:
        The text of `figure3.md`; see `compare_stops`.
    """
    sweeps = obtain_sweeps(out, options, data_dir=data_dir, progress=progress)
    note, name = options.describe_origin("figure3"), options.name_result("figure3")
    with write_figure(out, name, note, (9.2, 4.8)) as figure:
        panels = figure.subplots(2, len(sweeps), sharex=True)
        for column, (inference, result) in zip(panels.T, sweeps.items(), strict=True):
            _draw_criteria(column, result)
            column[0].set_title(ALGORITHM_TITLES[inference])
        panels[0, 0].set_ylabel("free energy, nats")
        panels[1, 0].set_ylabel("negative accuracy, nats")
        panels[1, 0].legend(loc="upper left")
    columns = ("rates", "free_energy", "complexity", "accuracy", "standard_error")
    rows = (
        [inference, criterion, *numbers]
        for inference, result in sweeps.items()
        for criterion, curve in result.curves.items()
        for numbers in _list_points(curve, columns)
    )
    header = ["algorithm", "criterion", "rate", *columns[1:]]
    write_result(out / f"{name}.csv", format_csv(f"{note}; {_list_stops(sweeps)}", header, rows))
    text = compare_stops(sweeps, note)
    write_result(out / f"{name}.md", text)
    return text


def compare_stops(sweeps: dict[str, Sweep], note: str) -> str:
    """Compare BMR's own stopping point with the lowest free energy of any rate and criterion.

    Args:
        sweeps: Sweeps by algorithm.
        note: Line on their origin.

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
    for inference, result in sweeps.items():
        best = min(result.curves.values(), key=lambda c: c.free_energy[c.best])
        lowest, error = best.free_energy[best.best], best.standard_error[best.best]
        noise = f" ± {error:.1f}" if error else ""
        above = (result.stop_free_energy - lowest) / abs(lowest)
        lines.append(
            f"| {inference} | {result.stop_rate:.1%} | {result.stop_free_energy:.1f} | "
            f"{lowest:.1f}{noise} | {best.criterion}, {best.rates[best.best]:.0%} | {above:.2%} |"
        )
    return "\n".join(lines) + "\n"


def _draw_criteria(column: Any, result: Sweep) -> None:
    """Draw free energy (above) and negative accuracy (below) by criterion."""
    upper, lower = column
    curves = result.curves.values()
    for curve in curves:
        colour, label = COLOURS[curve.criterion], CRITERION_TITLES[curve.criterion]
        for axes, values in ((upper, curve.free_energy), (lower, -curve.accuracy)):
            axes.plot(curve.rates, values, color=colour, label=label)
            _shade_errors(axes, curve, values, colour)
    _mark_stop(upper, result.stop_rate, result.stop_free_energy)
    lower.axvline(result.stop_rate, color=COLOURS["mark"], linewidth=1, linestyle=":")
    free_energies = np.concatenate([c.free_energy for c in curves])
    _limit_height(upper, free_energies, float(result.curves["bmr"].free_energy[0]))
    errors = np.concatenate([-c.accuracy for c in curves])
    _limit_height(lower, errors, float(np.min(errors)) * 1.25)
    upper.tick_params(labelbottom=False)
    _label_rates(lower)


def _list_points(curve: Curve, columns: Any) -> list[list[float]]:
    arrays = (getattr(curve, column) for column in columns)
    return [list(map(float, values)) for values in zip(*arrays, strict=True)]


def _list_stops(sweeps: dict[str, Sweep]) -> str:
    return ", ".join(f"{name} stops at {result.stop_rate:.4f}" for name, result in sweeps.items())


def _shade_errors(axes: Any, curve: Curve, values: np.ndarray, colour: str) -> None:
    """Shade two standard errors, where there are any."""
    if np.any(curve.standard_error):
        reach = 2 * curve.standard_error
        axes.fill_between(
            curve.rates, values - reach, values + reach, color=colour, alpha=0.2, lw=0
        )


def _mark_stop(axes: Any, rate: float, free_energy: float) -> None:
    label = "where BMR stops"
    axes.plot([rate], [free_energy], "o", color=COLOURS["mark"], label=label, zorder=3)
    axes.axvline(rate, color=COLOURS["mark"], linewidth=1, linestyle=":")


def _limit_height(axes: Any, values: np.ndarray, upper: float) -> None:
    """Limit the axis to a little above the upper value; worse values are not shown."""
    low = float(np.min(values))
    high = max(upper, low + 1e-9)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.12 * (high - low))


def _label_rates(axes: Any) -> None:
    axes.set_xlabel("weights removed")
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
