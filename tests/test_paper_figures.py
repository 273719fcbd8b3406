"""Figures 1 to 3: their numbers against direct formulas and against `sweep` itself."""

from __future__ import annotations

import csv
import json
from contextlib import contextmanager
from dataclasses import asdict, replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from linear_model import make_linear_model
from secateur import datasets
from secateur.cli.errors import UserError
from secateur.cli.reproduce_command import reproduce_commands
from secateur.paper import boston_sweeps, figures, protocol
from secateur.paper.boston_sweeps import SweepOptions
from secateur.pruning.curves import Curve, Sweep

pytestmark = pytest.mark.slow  # its trainings

FIGURE1 = ("figure1.png", "figure1.svg", "figure1.csv")
RATES = np.array([0.0, 0.01, 0.5, 0.9, 0.99])
OPTIONS = SweepOptions(epochs=2)
ALGORITHMS = ("moments", "global")  # one that knows moments, one that samples


def rows_of(path):
    """The note and the rows of a CSV file of ours."""
    note, *lines = path.read_text().splitlines()
    assert note.startswith("# secateur reproduce ")
    return note, list(csv.DictReader(lines))


def columns(rows, *names):
    return [np.array([float(row[name]) for row in rows]) for name in names]


def test_criteria_on_a_grid_are_the_direct_formulas():
    """Oracle: the definitions; for BMR, ln of the Gaussian integral E_q[p̃/p], by completing the
    square in precisions."""
    means, deviations = np.array([-2.0, 0.0, 0.3, 1.0]), np.array([0.1, 0.7, 1.0])
    scores = figures.score_grid(means, deviations, reduced_variance=1e-2)
    mean, deviation = np.meshgrid(means, deviations)
    np.testing.assert_allclose(scores["snr"], abs(mean) / deviation, rtol=1e-12)
    np.testing.assert_allclose(scores["spr"], abs(mean) + deviation, rtol=1e-12)
    precision = 1 / deviation**2
    total = precision + 1 / 1e-2 - 1
    log_ratio = 0.5 * np.log(precision / 1e-2 / total) + 0.5 * (
        (precision * mean) ** 2 / total - precision * mean**2
    )
    np.testing.assert_allclose(scores["bmr"], -log_ratio, rtol=1e-9, atol=1e-12)
    # The reduced prior of the paper is so narrow that the limit, Savage and Dickey's, is the same.
    limit = np.log(deviation) + 0.5 * mean**2 / deviation**2
    np.testing.assert_allclose(
        figures.score_grid(means, deviations)["bmr"], limit, rtol=1e-9, atol=1e-12
    )


@pytest.fixture
def commands():
    return lambda *arguments: CliRunner().invoke(reproduce_commands, list(arguments))


def test_commands_explain_themselves_and_refuse_unknown_data(commands, tmp_path):
    for name in ("table1", "figure1", "figure2", "figure3", "uci"):
        assert commands(name, "--help").exit_code == 0
    refused = commands("uci", "bostn", "--out", str(tmp_path))
    assert isinstance(refused.exception, UserError)
    assert str(refused.exception).startswith("no UCI set bostn; there are boston, concrete")


def test_figure1_writes_what_it_draws(commands, tmp_path):
    done = commands("figure1", "--out", str(tmp_path))
    assert done.output == f"written: {', '.join(str(tmp_path / f) for f in FIGURE1)}\n"
    assert {p.name for p in tmp_path.iterdir()} == set(FIGURE1)  # nothing half-written is left
    _, rows = rows_of(tmp_path / "figure1.csv")
    mean, deviation, bmr, snr, spr = columns(rows, "mean", "deviation", "bmr", "snr", "spr")
    assert len(rows) == len(np.unique(mean)) * len(np.unique(deviation)) > 1000
    np.testing.assert_allclose(snr, abs(mean) / deviation, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(spr, abs(mean) + deviation, rtol=1e-4)
    np.testing.assert_allclose(
        bmr, np.log(deviation) + 0.5 * (mean / deviation) ** 2, rtol=1e-4, atol=1e-5
    )
    assert (tmp_path / "figure1.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "figure1.svg").read_text()


@pytest.fixture(scope="module")
def boston_like():
    """A data set in boston's place, small enough to train in a moment."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = 3 + 2 * x[:, :1] + 0.1 * rng.normal(size=(60, 1))
    names = (("a", "b", "c"), ("y",))
    return datasets.Dataset("boston", x, y, *names, "made here", "none", "none")


@pytest.fixture(scope="module")
def drawn(boston_like, tmp_path_factory):
    """Figures 2 and 3 of a short training and few rates, and the recipes of all trainings."""
    out = tmp_path_factory.mktemp("reproduced")
    recipes = []
    fit, sweep = boston_sweeps.fit, boston_sweeps.sweep

    def fit_and_count(*arguments, **options):
        recipes.append(options["recipe"])
        return fit(*arguments, **options)

    def sweep_few_rates(trained, data, *, criteria):
        return sweep(trained, data, criteria=criteria, rates=RATES)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boston_sweeps.datasets, "load", lambda *_: boston_like)
        patch.setattr(boston_sweeps, "make_model", make_linear_model)
        patch.setattr(boston_sweeps, "ALGORITHMS", ALGORITHMS)
        patch.setattr(boston_sweeps, "fit", fit_and_count)
        patch.setattr(boston_sweeps, "sweep", sweep_few_rates)
        figures.draw_figure2(out, OPTIONS, progress=False)
        figures.draw_figure3(out, OPTIONS, progress=False)
    return out, recipes


def test_figures_2_and_3_share_their_trainings(drawn):
    out, recipes = drawn
    (recipe,) = protocol.make_recipes("boston", "paper").values()
    assert recipes == [replace(recipe, samples=10)] * len(ALGORITHMS)
    assert boston_sweeps.ALGORITHMS == ("moments", "local", "global")
    for name in ("figure2", "figure3"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()


def test_figure2_is_the_bmr_curve_of_figure3(drawn):
    out, _ = drawn
    note, second = rows_of(out / "figure2.csv")
    assert "--epochs 2" in note
    assert "global stops at " in note
    _, third = rows_of(out / "figure3.csv")
    points = len(RATES)
    assert len(second) == 2 * points
    assert len(third) == 2 * 3 * points
    bmr = [row for row in third if row["criterion"] == "bmr"]
    assert [row["actual"] for row in second] == [row["free_energy"] for row in bmr]
    complexity, accuracy, total = columns(third, "complexity", "accuracy", "free_energy")
    np.testing.assert_allclose(complexity - accuracy, total, rtol=1e-4)
    # Nothing is removed at rate 0, and under moments nothing is sampled.
    for row in second[::points]:
        assert float(row["rate"]) == 0
        assert float(row["estimated"]) == pytest.approx(float(row["actual"]), rel=1e-5)
    assert {row["standard_error"] for row in second[:points]} == {"0"}
    assert float(second[points]["standard_error"]) > 0


def test_our_own_recipe_has_files_of_its_own(drawn, monkeypatch, tmp_path):
    out, _ = drawn
    options, written = SweepOptions("default"), []
    recorded = boston_sweeps._read_sweeps(out / "sweeps.json", OPTIONS.settings)

    @contextmanager
    def draw_only(folder, name, note, size):
        written.append((folder, name))
        yield Figure(figsize=size)

    monkeypatch.setattr(figures, "write_figure", draw_only)
    monkeypatch.setattr(figures, "obtain_sweeps", lambda *_, **__: recorded)
    figures.draw_figure2(tmp_path, options, progress=False)
    text = figures.draw_figure3(tmp_path, options, progress=False)
    assert "reproduce figure3 --recipe default;" in text
    names = ["figure2-default", "figure3-default"]
    assert written == [(tmp_path, name) for name in names]
    assert {p.stem for p in tmp_path.iterdir()} == set(names)


def test_our_own_recipe_has_a_record_of_its_own(monkeypatch, tmp_path):
    recipe = protocol.make_recipes("boston", "default")["standardised targets"]
    monkeypatch.setattr(boston_sweeps, "_read_sweeps", lambda path, settings: (path, settings))
    options = SweepOptions("default")
    path, settings = boston_sweeps.obtain_sweeps(tmp_path, options, progress=False)
    assert path == tmp_path / "sweeps-default.json"
    assert settings["recipe"] == json.loads(json.dumps(asdict(recipe)))


def test_another_training_is_not_taken_for_the_one_asked_for(drawn):
    out, _ = drawn
    read = boston_sweeps._read_sweeps
    settings = json.loads((out / "sweeps.json").read_text())["settings"]
    assert settings == OPTIONS.settings
    assert list(read(out / "sweeps.json", settings)) == list(ALGORITHMS)
    assert read(out / "sweeps.json", settings | {"seed": 1}) is None
    assert read(out / "nothing.json", settings) is None
    (out / "half.json").write_text("{")
    assert read(out / "half.json", settings) is None


def test_stops_are_compared_with_the_lowest_of_all_curves():
    rates = np.array([0.0, 0.5, 0.9])

    def curve(criterion, free_energy):
        zeros = np.zeros(3)
        return Curve(criterion, rates, zeros, np.array(free_energy), zeros, zeros, zeros)

    curves = {"bmr": curve("bmr", [9.0, 5.0, 6]), "snr": curve("snr", [9.0, 7.0, 4.0])}
    text = figures.compare_stops({"moments": Sweep(curves, 0.5, 4.5, 5.0)}, "by hand")
    assert text.splitlines()[-1] == "| moments | 50.0% | 5.0 | 4.0 | snr, 90% | 25.00% |"
    # A free energy below 0: above it is still above it.
    curves = {"bmr": curve("bmr", [0.0, -4.0, -5.0])}
    text = figures.compare_stops({"local": Sweep(curves, 0.5, -4.0, -4.0)}, "by hand")
    assert text.splitlines()[-1].endswith("| bmr, 90% | 20.00% |")
