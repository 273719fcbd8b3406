"""The scikit-learn estimators, by scikit-learn's own checks and by what is ours."""

import pickle

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import secateur as sc
from compiling import compiled_programs
from secateur.report.network import find_dense_graph
from secateur.sklearn import PrunedClassifier, PrunedRegressor

SMALL = {"hidden": (4,), "epochs": 60, "retrain_epochs": 20, "random_state": 0}
ROWS = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3))
Y = np.stack([10 * X[:, 0], -X[:, 0]], axis=1) + [5.0, 0.5] * RNG.normal(size=(ROWS, 2))
LABELS = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly():
    """Every shape of data is a program of its own here, and runs only briefly."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# Without pruning or hidden layers: everything is compiled anew for every shape of data.
TINY = {"hidden": (), "epochs": 20, "prune": False, "random_state": 0}

# Checks of what the two estimators share, by one of them: what they do with parameters and inputs.
SHARED = {
    "check_dict_unchanged", "check_dont_overwrite_parameters", "check_dtype_object",
    "check_estimators_dtypes", "check_estimators_fit_returns_self", "check_estimators_nan_inf",
    "check_estimators_overwrite_params", "check_estimators_pickle",
    "check_f_contiguous_array_estimator", "check_fit2d_1feature", "check_fit2d_1sample",
    "check_fit2d_predict1d", "check_fit_check_is_fitted", "check_fit_idempotent",
    "check_fit_score_takes_y", "check_n_features_in", "check_n_features_in_after_fitting",
    "check_pipeline_consistency", "check_positive_only_tag_during_fit",
    "check_readonly_memmap_input",
}  # fmt: skip


def scikit_learns_checks():
    every = parametrize_with_checks([PrunedRegressor(**TINY), PrunedClassifier(**TINY)])
    names, cases = every.args
    chosen = [
        (estimator, check)
        for estimator, check in cases
        if isinstance(estimator, PrunedRegressor) or check.func.__name__ not in SHARED
    ]
    return pytest.mark.parametrize(names, chosen, **every.kwargs)


@pytest.mark.slow
@scikit_learns_checks()
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def regressor():
    settings = SMALL | {"epochs": 400, "retrain_epochs": 100}
    return PrunedRegressor(what="both", **settings).fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    return PrunedClassifier(**SMALL | {"epochs": 200}).fit(X, LABELS)


def test_what_a_regressor_says_of_itself(regressor):
    assert regressor.n_weights_ == regressor.result_.live_weights < 26
    assert regressor.pruned_fraction_ == pytest.approx(1 - regressor.n_weights_ / 26)
    assert regressor.free_energy_ == regressor.result_.free_energy
    assert regressor.rounds_[0].kept
    assert regressor.n_features_in_ == 3
    assert regressor.selected_features_.tolist() == [True, False, False]
    assert regressor.get_support(indices=True).tolist() == [0]
    assert regressor.get_feature_names_out().tolist() == ["x0"]
    assert regressor.get_feature_names_out(["a", "b", "c"]).tolist() == ["a"]


def test_the_deviation_of_a_prediction_is_that_of_the_targets(regressor):
    # Oracle: the noise that was put in, 5 and 0.5, within three standard errors of an estimate
    # from so many rows; the weights' share is small.
    mean, deviation = regressor.predict(X, return_std=True)
    assert mean.shape == deviation.shape == Y.shape
    np.testing.assert_array_equal(mean, regressor.predict(X))
    relative = np.median(deviation, axis=0) / [5.0, 0.5]
    np.testing.assert_allclose(relative, 1, atol=3 / np.sqrt(2 * ROWS) + 0.1)
    # Oracle: the moments of a Student-t and of the prediction add up.
    noise, f = regressor.result_.noise, regressor.result_.predict(X).outputs
    scale = regressor.result_.scaling.targets.scale
    variance = f.variance + np.asarray(noise.rate / (noise.shape - 1)) * scale**2
    np.testing.assert_allclose(deviation**2, variance, rtol=1e-9)
    low, high = regressor.predict_interval(X, level=0.5)
    assert low.shape == Y.shape
    # Oracle: a Student t of so many degrees of freedom is almost a Normal.
    np.testing.assert_allclose(high - low, 2 * 0.6745 * deviation, rtol=0.03)
    np.testing.assert_allclose(0.5 * (high + low), mean, rtol=1e-9, atol=1e-9)


def test_the_shape_of_the_targets_is_that_of_the_predictions(regressor):
    one = clone(regressor).set_params(epochs=3, prune=False)
    assert one.fit(X, Y[:, 0]).predict(X[:5]).shape == (5,)
    assert one.fit(X, Y[:, :1]).predict(X[:5]).shape == (5, 1)
    assert (one.pruned_fraction_, one.rounds_, one.n_weights_) == (0.0, (), 21)


def test_whole_numbers_are_numbers(regressor):
    # Integer inputs are standardised like any other.
    whole = np.round(3 * X).astype(int)
    quick = clone(regressor).set_params(epochs=3, prune=False)
    expected = clone(quick).fit(whole.astype(float), Y).predict(whole)
    np.testing.assert_array_equal(quick.fit(whole, Y).predict(whole), expected)


def test_probabilities_are_the_predictive_density(classifier):
    # Oracle: the model's own density of each class.
    found = classifier.predict_proba(X)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    for column in range(3):
        labels = np.full(ROWS, column, np.int32)
        density = np.exp(classifier.result_.predict(X).log_density(labels))
        np.testing.assert_allclose(found[:, column], density, atol=1e-3)
    assert classifier.classes_.tolist() == ["high", "low", "middle"]
    assert classifier.score(X, LABELS) > 0.8
    assert isinstance(classifier.result_.model.likelihood, sc.CategoricalLikelihood)


def test_two_classes_have_one_logit():
    estimator = PrunedClassifier(**TINY | {"epochs": 60}).fit(X, X[:, 0] > 0)
    assert isinstance(estimator.result_.model.likelihood, sc.BernoulliLikelihood)
    assert estimator.result_.model.f.outputs == 1
    assert estimator.classes_.tolist() == [False, True]
    assert estimator.predict_proba(X).shape == (ROWS, 2)
    assert estimator.score(X, X[:, 0] > 0) > 0.9


def test_rows_are_answered_alike_in_every_company(regressor):
    # One by one, padded, and over the limit of a block.
    many = np.tile(X, (150, 1))
    expected = regressor.predict(X)
    np.testing.assert_allclose(regressor.predict(many)[-ROWS:], expected, rtol=1e-12)
    np.testing.assert_allclose(regressor.predict(X[:1]), expected[:1], rtol=1e-12)


@pytest.mark.slow
def test_a_model_that_samples_gives_every_row_the_same_answer():
    estimator = PrunedRegressor(inference="local", **SMALL | {"epochs": 3, "prune": False})
    estimator.fit(X, Y)
    mean = estimator.predict(X)
    np.testing.assert_array_equal(estimator.predict(X), mean)
    np.testing.assert_allclose(estimator.predict(X[7:9]), mean[7:9], rtol=1e-12)
    assert estimator.result_.model.inference == "local"


def test_pickled_and_saved(regressor, tmp_path):
    expected = regressor.predict(X, return_std=True)
    again = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(again.predict(X, return_std=True), expected)
    sc.save(regressor.result_, tmp_path / "model")
    np.testing.assert_array_equal(sc.load(tmp_path / "model").predict(X).mean, expected[0])


def test_names_of_columns_are_kept(regressor):
    table = pd.DataFrame(X, columns=["width", "height", "depth"])
    estimator = clone(regressor).fit(table, Y)
    assert estimator.feature_names_in_.tolist() == ["width", "height", "depth"]
    assert estimator.get_feature_names_out().tolist() == ["width"]
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.predict(table[["depth", "height", "width"]])


@pytest.mark.slow
def test_a_grid_search_compiles_once_for_every_shape():
    # 6 folds of 10 rows: two shapes, 50 rows and, for the final model, all 60.
    grid = {"prior_variance": [0.5, 1.0], "epochs": [10, 20], "rate": [1e-3, 1e-2]}
    pipeline = make_pipeline(StandardScaler(), PrunedRegressor(**SMALL))
    named = {f"prunedregressor__{name}": values for name, values in grid.items()}
    search = GridSearchCV(pipeline, named, cv=KFold(6), scoring="r2", error_score="raise")
    with compiled_programs() as programs:
        search.fit(X, Y[:, 0])
    assert len(search.cv_results_["params"]) == 8
    assert "jit(train)" in programs  # the shapes are this test's own; small programs may be known
    for name in ("jit(train)", "jit(evaluate)", "jit(_cut_below)", "jit(score_weights)"):
        assert programs.count(name) <= 2, name
    assert search.predict(X).shape == (ROWS,)
    with compiled_programs() as programs:
        scores = cross_val_score(pipeline, X, Y[:, 0], cv=KFold(6))
    assert programs == []
    assert scores.shape == (6,)


@pytest.mark.parametrize(
    ("estimator", "x", "y", "message"),
    [
        (PrunedRegressor(), X[:1], [1.0], "1 sample"),
        (PrunedRegressor(), X, np.ones(ROWS), "constant"),
        (PrunedClassifier(), X, np.ones(ROWS), "one class"),
        (PrunedClassifier(), X[:1], ["a"], "1 sample"),
        (PrunedClassifier(), X, X[:, 0], "continuous"),
        (PrunedRegressor(hidden=(0,)), X, Y, "hidden=0"),
        (PrunedRegressor(inference="exact"), X, Y, "inference='exact'"),
        (PrunedRegressor(prior_variance=-1.0), X, Y, "prior_variance=-1"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_reason(estimator, x, y, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(x, y)


def test_an_input_whose_unit_leads_nowhere_is_not_in_use():
    def layer(alive):
        alive = np.array(alive, float)
        bias = np.ones(alive.shape[1])
        return {"weights": sc.Normal(alive, alive), "bias": sc.Normal(bias, bias)}

    def inputs_in_use(*layers):
        return find_dense_graph({"layers": list(layers)}).inputs_in_use.tolist()

    first = layer([[1, 0], [0, 1], [0, 0]])
    assert inputs_in_use(first, layer([[1], [0]])) == [True, False, False]
    assert inputs_in_use(first) == [True, True, False]
    assert inputs_in_use(first, layer([[0], [0]])) == [False, False, False]
