"""Held-out results: the pipeline on a small data set, recomputed by other means."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, stats

from linear_model import make_linear_model
from secateur import datasets
from secateur.datasets import standard_splits
from secateur.paper import protocol, uci_splits, uci_tables

EPOCHS = 15


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = 5 + 10 * x[:, :1] + 0.5 * rng.normal(size=(120, 1))
    # A second target, which must be left out, as for energy and naval.
    both = np.concatenate([y, rng.normal(size=y.shape)], axis=1)
    return datasets.Dataset("yacht", x, both, ("a", "b", "c"), ("y", "z"), "made", "none", "none")


@pytest.fixture(scope="module")
def results(data, tmp_path_factory):
    """A run of two splits: the folder, what it returned, and every model that was judged."""
    out, judged = tmp_path_factory.mktemp("reproduced"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uci_splits.datasets, "load", lambda *_: data)
        patch.setattr(uci_splits, "make_model", make_linear_model)
        judge = uci_splits.judge_models

        def judge_and_record(models, x, y):
            (fitted,) = models
            measures = judge(models, x, y)
            judged.append((fitted, x, y, measures))
            return measures

        patch.setattr(uci_splits, "judge_models", judge_and_record)
        table = uci_splits.reproduce_uci(
            out, sets=["yacht"], splits=2, epochs=EPOCHS, progress=False
        )
        record = json.loads((out / "uci/yacht.json").read_text())
        # The same again: nothing to do, so that nothing may be loaded.
        patch.setattr(uci_splits.datasets, "load", lambda *_: pytest.fail("it is done already"))
        again = uci_splits.reproduce_uci(
            out, sets=["yacht"], splits=2, epochs=EPOCHS, progress=False
        )
    assert again == table
    return out, table, record, judged


def test_the_measures_are_those_of_the_predictive_density(results, data):
    """Oracle: quadrature over the noise of the data's own Normal, without our likelihood."""
    _, _, _, judged = results
    assert len(judged) == 2 * 2 * 2  # recipes, splits; after and before
    for fitted, x, y, measures in judged[:3]:
        f = fitted.predict(x).outputs
        mean, variance = f.mean[:, 0], f.variance[:, 0]
        scaling = fitted.scaling.targets
        unit = 1.0 if scaling is None else float(np.squeeze(scaling.scale))
        shape, rate = (float(np.squeeze(v)) for v in (fitted.noise.shape, fitted.noise.rate))
        precision = stats.gamma(shape, scale=1 / rate)
        chances = (np.arange(2000) + 0.5) / 2000
        noise = unit**2 / precision.ppf(chances)  # equally probable values of 1/γ
        deviation = np.sqrt(variance[:, None] + noise)
        z = (y - mean[:, None]) / deviation
        density = np.mean(stats.norm.pdf(z) / deviation, axis=1)
        below = np.mean(stats.norm.cdf(z), axis=1)
        assert measures["rmse"] == pytest.approx(np.sqrt(np.mean((mean - y[:, 0]) ** 2)), rel=1e-6)
        assert measures["log_likelihood"] == pytest.approx(np.mean(np.log(density)), abs=2e-3)
        assert measures["coverage"] == np.mean((below >= 0.025) & (below <= 0.975))
        # The density integrates to one: it is in the targets' own units.
        grid = np.linspace(mean[0] - 12 * deviation[0, 0], mean[0] + 12 * deviation[0, 0], 401)
        same = np.repeat(x[:1], len(grid), axis=0)
        log_density = fitted.predict(same).log_density(grid[:, None])
        area = integrate.simpson(np.exp(log_density), x=grid)
        assert area == pytest.approx(1, abs=2e-3)


def test_rows_are_those_of_the_standard_splits_and_the_first_target(results, data):
    _, _, _, judged = results
    splits = standard_splits(len(data.x))[:2]
    for number, (_, x, y, _) in enumerate(judged):
        _, test = splits[number // 2 % 2]
        np.testing.assert_array_equal(x, data.x[test])
        np.testing.assert_array_equal(y, data.y[test, :1])


def test_the_recipe_of_lower_free_energy_after_pruning_is_kept(results):
    _, _, record, judged = results
    names = list(protocol.make_recipes("yacht", "default"))
    for number, split in enumerate(record["splits"]):
        after = [judged[4 * r + 2 * number] for r in range(2)]
        energies = [fitted.free_energy for fitted, *_ in after]
        best = int(np.argmin(energies))
        assert split["recipe"] == names[best]
        assert split["free_energy_after"] == energies[best]
        assert split["after"] == after[best][-1]
        assert split["before"] == judged[4 * best + 2 * number + 1][-1]
        assert split["averaged"] == split["after"]  # of one restart
        assert split["pruned"] == after[best][0].pruned_fraction


@pytest.mark.slow
def test_the_recipe_is_chosen_on_the_first_splits_and_the_best_restart_by_free_energy(
    data, monkeypatch
):
    asked = []

    def make(free_energy):
        return SimpleNamespace(free_energy=free_energy, pruned_fraction=0.5)

    def fit_many(network, train, *, keys, recipe, **options):
        assert len(keys) == len(train)
        asked.append((recipe, len(train)))
        return [make(1000.0)] * len(train)

    def prune_many(fits, train, **options):
        worse = 100.0 * (asked[-1][0] == "a")
        return [make(worse + abs(number - 4)) for number in range(len(train))]

    monkeypatch.setattr(uci_splits, "fit_many", fit_many)
    monkeypatch.setattr(uci_splits, "prune_many", prune_many)

    def judge_models(models, x, y):
        return [m.free_energy for m in models]

    monkeypatch.setattr(uci_splits, "judge_models", judge_models)
    splits = standard_splits(len(data.x))[:5]
    records = uci_splits.run_splits(
        data, splits, {"A": "a", "B": "b"}, restarts=3, epochs=None, seed=0, progress=False
    )
    assert asked == [("a", 6), ("b", 6), ("b", 9)]
    assert [record["split"] for record in records] == [0, 1, 2, 3, 4]
    assert {record["recipe"] for record in records} == {"B"}
    # Of the restarts 0–2, 3–5 and 6–8, those nearest to 4.
    assert [r["free_energy_after"] for r in records] == [2, 0, 2, 0, 2]
    assert [r["after"] for r in records] == [[2], [0], [2], [0], [2]]
    assert [r["averaged"] for r in records[2:]] == [[4, 3, 2], [1, 0, 1], [2, 3, 4]]


def test_table_and_csv_hold_means_and_errors_over_splits(results):
    out, table, record, _ = results
    assert (out / "uci.md").read_text() == table
    values = [split["after"]["log_likelihood"] for split in record["splits"]]
    error = abs(values[0] - values[1]) / 2  # the standard error of two
    (row,) = [line for line in table.splitlines() if line.startswith("| yacht | 2 | 1 |")]
    both = f"{np.mean(values):.3f} ± {error:.3f}"  # the best restart, and all: there is one
    assert f"| {both} | {both} | -1.63 | -1.55 | -1.41 |" in row
    assert "Fewer than 20 splits were run of: yacht." in table
    note, *lines = (out / "uci.csv").read_text().splitlines()
    assert f"reproduce uci --epochs {EPOCHS};" in note
    rows = list(csv.DictReader(lines))
    assert [float(r["log_likelihood_after"]) for r in rows] == pytest.approx(values, rel=1e-5)
    assert {r["data"] for r in rows} == {"yacht"}


def test_other_settings_are_run_again(results, data, monkeypatch):
    out, _, _, _ = results
    asked = []

    def run_splits(data, splits, recipes, **options):
        asked.append((len(splits), options["epochs"]))
        return json.loads((out / "uci/yacht.json").read_text())["splits"][: len(splits)]

    monkeypatch.setattr(uci_splits.datasets, "load", lambda *_: data)
    monkeypatch.setattr(uci_splits, "run_splits", run_splits)
    copy = out / "other"
    (copy / "uci").mkdir(parents=True)
    (copy / "uci/yacht.json").write_text((out / "uci/yacht.json").read_text())
    # A damaged record counts as none.
    (copy / "uci/boston.json").write_text('{"settings": ')
    table = uci_splits.reproduce_uci(copy, sets=["boston"], splits=1, epochs=EPOCHS, progress=False)
    assert "| yacht | 2 |" in table  # whatever is finished is shown
    assert "| boston | 1 |" in table
    table = uci_splits.reproduce_uci(
        copy, sets=["yacht"], splits=1, epochs=EPOCHS + 1, progress=False
    )
    assert "boston" not in table  # of another number of epochs
    assert asked == [(1, EPOCHS), (1, EPOCHS + 1)]


def test_quick_is_boston_with_three_splits(data, monkeypatch, tmp_path, capsys):
    asked = []

    def run_splits(data, splits, recipes, **options):
        asked.append((len(splits), options["epochs"]))
        return [_split(1.0, 1.0, 0.95)] * len(splits)

    monkeypatch.setattr(uci_splits.datasets, "load", lambda *_: data)
    monkeypatch.setattr(uci_splits, "run_splits", run_splits)
    uci_splits.reproduce_uci(tmp_path, quick=True)
    assert asked == [(3, uci_splits.QUICK_EPOCHS)]
    assert "[1/1] boston: 3 splits" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {"uci-quick", "uci-quick.csv", "uci-quick.md"}


def test_unknown_sets_and_too_many_splits_are_refused(tmp_path):
    with pytest.raises(datasets.DatasetError, match="no UCI set sine; there are boston"):
        uci_splits.reproduce_uci(tmp_path, sets=["sine"])
    with pytest.raises(ValueError, match="give 1 to 20"):
        uci_splits.reproduce_uci(tmp_path, splits=21)


def _split(rmse, log_likelihood, coverage):
    measures = {"rmse": rmse, "log_likelihood": log_likelihood, "coverage": coverage}
    return {
        "split": 0, "recipe": "r", "free_energy_before": 2.0, "free_energy_after": 1.0,
        "pruned": 0.5, "before": measures, "after": measures, "averaged": measures,
    }  # fmt: skip


def test_goals_are_compared_at_the_published_precision():
    def record(*measures):
        return {"splits": [_split(*measures)], "settings": {"restarts": 1}}

    assert uci_tables.list_shortfalls("boston", record(3.014, -2.574, 0.95)) == []
    assert uci_tables.list_shortfalls("boston", record(3.016, -2.576, 0.981)) == [
        "log-likelihood -2.576, PBP -2.57",
        "RMSE 3.02, PBP 3.01",
        "coverage 98.1 %",
    ]
    assert uci_tables.list_shortfalls("naval", record(0.001, 5.0, 0.95)) == [
        "log-likelihood 5.000, DVI 5.84"
    ]
    table = uci_tables.to_markdown({"naval": record(0.00123, 5.0, 0.95)}, "by hand")
    assert "| naval | 0.00123 | 0.00123 | 0.00123 | 0.01 | 0.01 |" in table
    assert "One network: log-likelihood reached on 0 of 1 data sets." in table
    assert "averaged:" not in table
    several = record(0.00123, 5.0, 0.95) | {"settings": {"restarts": 2}}
    several["splits"][0]["averaged"] = {"rmse": 0.001, "log_likelihood": 6.0, "coverage": 0.95}
    table = uci_tables.to_markdown({"naval": several}, "by hand")
    assert "reached on 0 of 1" in table
    assert "averaged: log-likelihood reached on 1 of 1 data sets; all other goals too." in table


def test_published_numbers_are_there_for_every_uci_set():
    published = protocol.PUBLISHED_RESULTS
    assert set(published) == set(protocol.PAPER_SETTINGS) - set(protocol.SIGNALS)
    for row in published.values():
        assert tuple(row) == protocol.PUBLISHED_METHODS
        assert row["DVI"].rmse is None
        assert row["PBP"].rmse > 0
    # Two that are well known, from the papers' tables.
    assert published["boston"]["PBP"] == (3.01, -2.57)
    assert published["kin8nm"]["MC dropout"] == (0.10, 0.95)


def test_commands_are_listed_without_waiting_for_jax():
    check = "import sys, secateur.cli.reproduce_command; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
