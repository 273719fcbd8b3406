"""Averages of several trained models: in Python, `secateur fit --average`, and the estimators."""

import io
import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp, softmax

import secateur as sc
from command_line import secateur
from secateur.averaging import Mixture, choose_average
from secateur.caveats import find_caveats
from secateur.networks import Dense
from secateur.runs.folder import FILES, RunFolder
from secateur.runs.table_model import load_model, save_model
from secateur.sklearn import PrunedRegressor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("averaging"),
    pytest.mark.filterwarnings("ignore::secateur.caveats.CaveatWarning"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 2))
Y = np.sin(2 * X[:, :1]) + 0.3 * RNG.normal(size=(50, 1))
COUNTS = RNG.poisson(np.exp(1 + X[:, :1]))


def fit_three(y, likelihood):
    network = Dense(2, (3,))
    model = sc.BayesianModel(network, network.init(jax.random.key(0)), likelihood=likelihood)
    keys = jax.random.split(jax.random.key(1), 3)
    fits = sc.fit_many(model, [(X, y)] * 3, keys=keys, epochs=30, progress=False)
    # Free energies so near each other that no weight is 0 or 1.
    return [replace(f, free_energy=40.0 + 0.5 * k) for k, f in enumerate(fits)]


@pytest.fixture(scope="module")
def models():
    return fit_three(Y, sc.GaussianLikelihood())


@pytest.fixture(scope="module")
def counters():
    return fit_three(COUNTS, sc.PoissonLikelihood())


def test_weights(models):
    equal, evidence = (sc.Average.from_models(models, w) for w in ("equal", "evidence"))
    assert equal.weights.tolist() == [1 / 3] * 3
    np.testing.assert_allclose(evidence.weights, softmax([-40.0, -40.5, -41.0]), rtol=1e-12)
    failed = replace(models[0], free_energy=np.nan)
    assert len(sc.Average.from_models([failed, *models[1:]]).models) == 2
    with pytest.raises(ValueError, match="no model to average"):
        sc.Average.from_models([failed])
    with pytest.raises(ValueError, match=r"'best'\. Supported: equal, evidence"):
        sc.Average.from_models(models, "best")
    with pytest.raises(TypeError, match="a dict is not a trained model"):
        sc.Average.from_models([{}])


def test_a_mixture_of_densities(models):
    """Oracles: the definition; Monte Carlo for the moments."""
    average = sc.Average.from_models(models, "evidence")
    mixture, parts = average.predict(X), [model.predict(X) for model in models]
    assert len(mixture) == 50
    own = np.stack([part.log_density(Y) for part in parts])
    expected = logsumexp(own + np.log(average.weights)[:, None], axis=0)
    np.testing.assert_allclose(mixture.log_density(Y), expected, rtol=1e-12)
    np.testing.assert_allclose(
        mixture.variance, mixture.weight_variance + mixture.noise_variance, rtol=1e-12
    )
    count = 4000
    draws = mixture.sample(jax.random.key(2), count)
    assert draws.shape == (count, 50, 1)
    error = draws.std(axis=0) / np.sqrt(count)
    assert np.abs((draws.mean(axis=0) - mixture.mean) / error).max() < 4.5
    squares = np.square(draws - mixture.mean)
    error = squares.std(axis=0) / np.sqrt(count)
    assert np.abs((squares.mean(axis=0) - mixture.variance) / error).max() < 4.5
    # The function has the same mean as the targets, and the variance without the noise.
    np.testing.assert_allclose(mixture.outputs.mean, mixture.mean, rtol=1e-6)
    np.testing.assert_allclose(mixture.outputs.variance, mixture.weight_variance, rtol=1e-5)


def test_quantiles_of_numbers(models):
    mixture = sc.Average.from_models(models, "evidence").predict(X)
    levels = [0.025, 0.5, 0.9]
    values = mixture.quantiles(levels)
    assert values.shape == (3, 50, 1)
    for level, own in zip(levels, values, strict=True):
        np.testing.assert_allclose(mixture.cdf(own), level, atol=1e-7)
    np.testing.assert_allclose(mixture.quantiles(0.5), values[1], rtol=1e-12)
    low, high = mixture.interval(0.95)
    np.testing.assert_allclose(low, values[0], rtol=1e-12)
    assert (high > values[2]).all()


def test_quantiles_of_counts(counters):
    """Oracle: the first of all counts whose cumulative probability reaches the level."""
    mixture = sc.Average.from_models(counters).predict(X[np.abs(X).max(axis=1) < 1])
    table = np.stack([mixture.cdf(float(k)) for k in range(100)])
    assert (table[-1] > 0.95).all()
    for level in (0.05, 0.5, 0.95):
        np.testing.assert_array_equal(mixture.quantiles(level), np.argmax(table >= level, axis=0))


def test_held_out_rows_choose_the_weights(models):
    good, bad = models[0], replace(models[1], free_energy=100.0)
    # A model that is sure of something else: with equal weights, it has a third of the say.
    noise = replace(good.noise, rate=1e-4 * good.noise.rate)
    bad = replace(bad, noise=noise)
    chosen = choose_average([good, bad], (X, Y))
    scores = {
        weighting: Mixture([good.predict(X), bad.predict(X)], weights).log_density(Y).mean()
        for weighting, weights in (("equal", [0.5, 0.5]), ("evidence", softmax([-40.0, -100.0])))
    }
    assert chosen.weighting == max(scores, key=scores.get)
    assert choose_average([good, bad], None).weighting == "equal"


def test_a_training_that_was_not_finished_is_a_caveat(models):
    first = "the free energy had not levelled off when training ended"
    unfinished, finished = (
        find_caveats(replace(models[0], is_level=is_level), (X, Y)) for is_level in (False, True)
    )
    assert unfinished[0].startswith(first)
    assert unfinished[1:] == finished


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "table.csv"
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y[:, 0]})
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "out"
    options = ("--hidden", 3, "--epochs", 30, "--restarts", 3, "--average")
    done = secateur("fit", table, "-t", "y", "-o", folder, *options)
    assert done.code == 0, done.err
    return folder, done


def read(result):
    assert result.code == 0, result.err
    return pd.read_csv(io.StringIO(result.out))


def test_a_run_predicts_with_all_restarts(run, table):
    folder, done = run
    assert "average of 3 pruned restarts: " in done.err
    assert "average of 3" in done.out
    average = load_model(RunFolder(folder))
    assert isinstance(average, sc.Average)
    assert len(average.models) == 3
    unpruned = sc.load(folder / "unpruned.safetensors")
    is_level = {model.is_level for model in (unpruned, *average.models)}
    assert len(is_level) == 1  # pruning does not change that
    assert ("not levelled off when training ended" in done.out) == (not unpruned.is_level)
    energies = [model.free_energy for model in average.models]
    assert energies == sorted(energies) == sorted(average.models[0].restarts)
    said = read(secateur("predict", folder, table))
    frame = pd.read_csv(table)
    prediction = average.predict(frame[["a", "b"]].to_numpy())
    low, high = prediction.interval()
    oracle = (prediction.mean, prediction.standard_deviation, low, high)
    np.testing.assert_allclose(said, np.hstack(oracle), rtol=1e-5, atol=1e-6)
    alone = read(secateur("predict", folder, table, "--at-means"))
    best = average.models[0].predict(frame[["a", "b"]].to_numpy(), at_means=True)
    np.testing.assert_allclose(alone["y_mean"], best.mean[:, 0], rtol=1e-5, atol=1e-6)


def test_scores_are_those_of_the_average(run, table):
    folder, _ = run
    record = json.loads((folder / "run.json").read_text())
    average = load_model(RunFolder(folder))
    assert record["average"] == {
        "models": 3,
        "weighting": average.weighting,
        "weights": sum(model.live_weights for model in average.models),
    }
    assert record["held_out"]["averaged"].keys() == record["held_out"]["after"].keys()
    assert "averages the 3 pruned restarts" in (folder / "report.html").read_text()
    scores = json.loads(secateur("evaluate", folder, table, "--json").out)
    frame = pd.read_csv(table)
    prediction = average.predict(frame[["a", "b"]].to_numpy())
    expected = prediction.log_density(frame[["y"]].to_numpy()).mean()
    assert scores["log_likelihood"] == pytest.approx(expected, rel=1e-5)


def test_an_export_is_the_best_restart(run, tmp_path):
    folder, _ = run
    done = secateur("export", folder, "--to", "c", "-o", tmp_path / "m.c", "--no-measure")
    assert done.code == 0, done.err
    note = "Predictions of the run or estimator average 3 models."
    assert note in done.out
    notes = json.loads((tmp_path / "m.c.json").read_text())["notes"]
    assert any(text.startswith(note) for text in notes)


def test_what_cannot_be_averaged_is_refused(run, table, tmp_path):
    done = secateur("fit", table, "-t", "y", "-o", tmp_path / "no", "--average")
    assert done.code == 2
    assert "there is only one. --restarts 5 trains five" in done.err
    assert done.err.rstrip().endswith("--average --restarts 5")
    assert not (tmp_path / "no").exists()
    folder, _ = run
    file = folder / "restarts" / "3.safetensors"
    content = file.read_bytes()
    file.unlink()
    done = secateur("predict", folder, table)
    file.write_bytes(content)
    assert done.code == 2
    assert "averages 3 networks, and" in done.err


def test_another_run_leaves_no_restarts_behind(run, models, tmp_path):
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(run[0], folder.path)
    folder.claim(resume=False, force=True)
    with folder.write_results() as results:
        for name in FILES:
            shutil.copy(run[0] / name, results.path / name)
        save_model(models[0], results, {})
    assert sorted(path.name for path in folder.path.iterdir()) == sorted(FILES)
    assert isinstance(load_model(folder), sc.Trained)


# --- the estimators -------------------------------------------------------------------------------


def test_estimators_average():
    settings = {"hidden": (3,), "epochs": 30, "retrain_epochs": 10, "random_state": 0}
    with pytest.raises(ValueError, match=r"average='equal' needs several restarts"):
        PrunedRegressor(average="equal", **settings).fit(X, Y)
    estimator = PrunedRegressor(average="equal", restarts=2, **settings).fit(X, Y)
    models = estimator.average_.models
    assert estimator.result_ is models[0]
    assert estimator.result_.extra["average"] == {"weighting": "equal", "models": 2}
    mean = np.mean([model.predict(X).mean for model in models], axis=0)
    np.testing.assert_allclose(estimator.predict(X), mean, rtol=1e-12)
    used = [sc.count(model.beliefs).live > 0 for model in models]
    assert estimator.selected_features_.any() == any(used)
    before = [model.free_energy for model in models]
    estimator.partial_fit(X[:20], Y[:20])
    after = estimator.average_
    expected = -np.array(before) - [model.free_energy for model in after.models]
    np.testing.assert_allclose(after.log_evidence, expected, rtol=1e-12)
    assert (np.ndim(estimator.predict(X)), estimator.result_) == (2, after.models[0])
