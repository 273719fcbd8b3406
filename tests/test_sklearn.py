"""The scikit-learn estimators, by scikit-learn's own checks and by what is ours."""

import pickle

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.linear_model import PoissonRegressor
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import secateur as sc
from compiling import compiled_programs
from secateur.report.network import find_dense_graph
from secateur.sklearn import PrunedClassifier, PrunedRegressor

# Brief trainings explain little.
pytestmark = pytest.mark.filterwarnings("ignore::secateur.caveats.CaveatWarning")

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


# Without pruning, hidden layers or covariance: everything is compiled anew for every shape of data.
TINY = {
    "hidden": (), "epochs": 20, "posterior": "mean-field", "prune": False, "random_state": 0,
}  # fmt: skip

# Trainings that have levelled off differ by rounding only; before, Adam enlarges it.
LEVEL = {"epochs": 3000}
# With pruning, those checks that look at what pruning changes or adds.
CHECKS_WITH_PRUNING = {
    "check_dict_unchanged", "check_dont_overwrite_parameters", "check_estimators_pickle",
    "check_fit2d_predict1d", "check_fit_idempotent", "check_n_features_in",
    "check_transformer_general", "check_estimators_partial_fit_n_features",
    "check_sample_weights_list",
}  # fmt: skip


@pytest.mark.slow
@parametrize_with_checks([PrunedRegressor(**TINY), PrunedClassifier(**TINY)])
def test_scikit_learns_own_checks(estimator, check):
    if "sample_weight_equivalence" in check.func.__name__:
        estimator.set_params(**LEVEL)
    if "class_weight" in check.func.__name__:
        estimator.set_params(epochs=60)  # in 20 steps a weight of 1000 is not learnt
    check(estimator)


def checks_with_pruning():
    settings = TINY | {"prune": True, "retrain_epochs": 5}
    every = parametrize_with_checks([PrunedRegressor(**settings), PrunedClassifier(**settings)])
    names, cases = every.args
    chosen = [case for case in cases if case[1].func.__name__ in CHECKS_WITH_PRUNING]
    assert {case[1].func.__name__ for case in chosen} == CHECKS_WITH_PRUNING
    return pytest.mark.parametrize(names, chosen, **every.kwargs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No features were selected")
@checks_with_pruning()
def test_scikit_learns_checks_with_pruning(estimator, check):
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
    estimator = PrunedClassifier(**TINY | {"epochs": 300}).fit(X, X[:, 0] > 0)
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


# --- weights --------------------------------------------------------------------------------------

WEIGHTS = np.arange(ROWS) % 3
REPEATED = np.repeat(np.arange(ROWS), WEIGHTS)


def make_holes(x, share, value):
    is_hole = np.random.default_rng(1).random(x.shape) < share
    return np.where(is_hole, value, x)


@pytest.mark.parametrize("estimator", [PrunedRegressor, PrunedClassifier])
def test_a_row_of_weight_two_is_two_rows(estimator):
    """Oracle: repeated rows, also in the means that missing values become."""
    y = Y[:, 0] if estimator is PrunedRegressor else LABELS
    x = make_holes(X, 0.1, np.nan)
    settings = TINY | {"batch_size": 200, "epochs": 300}
    weighted = estimator(**settings).fit(x, y, sample_weight=WEIGHTS)
    repeated = estimator(**settings).fit(x[REPEATED], y[REPEATED])
    assert weighted.free_energy_ == pytest.approx(repeated.free_energy_, rel=1e-9)
    method = "predict" if estimator is PrunedRegressor else "predict_proba"
    expected = getattr(repeated, method)(x)
    np.testing.assert_allclose(getattr(weighted, method)(x), expected, rtol=1e-5, atol=1e-6)


def test_weights_of_classes():
    """Oracle: the same weights by row."""
    fits = {}
    sizes = {label: np.sum(label == LABELS) for label in np.unique(LABELS)}
    balanced = np.array([ROWS / (3 * sizes[label]) for label in LABELS])
    by_name = {"low": 2.0, "high": 0.5}
    for name, class_weight, sample_weight in [
        ("balanced", "balanced", None),
        ("balanced by row", None, balanced),
        ("by name", by_name, np.full(ROWS, 3.0)),
        ("by name by row", None, 3.0 * np.array([by_name.get(v, 1.0) for v in LABELS])),
    ]:
        estimator = PrunedClassifier(class_weight=class_weight, **TINY)
        fits[name] = estimator.fit(X, LABELS, sample_weight=sample_weight)
    for name in ("balanced", "by name"):
        assert fits[name].free_energy_ == pytest.approx(fits[f"{name} by row"].free_energy_)
    assert fits["balanced"].free_energy_ != pytest.approx(fits["by name"].free_energy_)
    # Oracle: repeated rows have the same balance as rows with whole weights.
    estimator = PrunedClassifier(class_weight="balanced", **TINY | {"batch_size": 200})
    free_energy = clone(estimator).fit(X, LABELS, WEIGHTS).free_energy_
    repeated = clone(estimator).fit(X[REPEATED], LABELS[REPEATED]).free_energy_
    assert free_energy == pytest.approx(repeated, rel=1e-6)


def test_no_weights_compile_no_weights():
    estimator = PrunedRegressor(**TINY).fit(X, Y)
    with compiled_programs() as programs:
        clone(estimator).fit(X, Y, sample_weight=None)
    assert programs == []


# --- features -------------------------------------------------------------------------------------


def test_selected_columns(regressor):
    np.testing.assert_array_equal(regressor.transform(X), X[:, :1])
    back = regressor.inverse_transform(X[:, :1])
    np.testing.assert_array_equal(back, X * [1, 0, 0])
    table = pd.DataFrame(X, columns=["width", "height", "depth"])
    estimator = clone(regressor).set_output(transform="pandas")
    pd.testing.assert_frame_equal(estimator.fit_transform(table, Y), table[["width"]])


def test_sparse_matrices_are_the_same_numbers():
    x = make_holes(X, 0.5, 0.0)
    dense = PrunedRegressor(**TINY).fit(x, Y)
    for kind in (scipy.sparse.csr_array, scipy.sparse.csc_matrix):
        sparse = PrunedRegressor(**TINY).fit(kind(x), Y)
        assert sparse.free_energy_ == dense.free_energy_
        np.testing.assert_array_equal(sparse.predict(kind(x)), dense.predict(x))
    assert scipy.sparse.issparse(dense.transform(scipy.sparse.csr_array(x)))


def test_missing_values():
    """Oracle: scikit-learn's imputer, with its indicators."""
    x = X.copy()
    x[::7, 0] = np.nan
    x[::5, 2] = np.nan
    imputer = SimpleImputer(add_indicator=True)
    filled = PrunedRegressor(**TINY).fit(imputer.fit_transform(x), Y)
    estimator = PrunedRegressor(**TINY).fit(x, Y)
    assert estimator.input_names_ == ["x0", "x1", "x2", "x0 is missing", "x2 is missing"]
    assert estimator.n_features_in_ == len(estimator.selected_features_) == 3
    new = make_holes(X, 0.3, np.nan)
    with_mean = np.where(np.isnan(new[:, 1]), X[:, 1].mean(), new[:, 1])
    expected = imputer.transform(np.column_stack([new[:, 0], with_mean, new[:, 2]]))
    np.testing.assert_allclose(estimator.encode(new), expected, rtol=1e-12)
    np.testing.assert_array_equal(estimator.predict(new), filled.predict(estimator.encode(new)))
    np.testing.assert_array_equal(estimator.transform(x), x)
    with pytest.raises(ValueError, match="NaN"):
        PrunedRegressor(missing="error", **TINY).fit(x, Y)
    with pytest.raises(ValueError, match="missing='drop'"):
        PrunedRegressor(missing="drop", **TINY).fit(x, Y)
    with pytest.raises(ValueError, match="infinity"):
        estimator.predict(np.full((1, 3), np.inf))


def make_table(rows=ROWS):
    number = X[:rows, 0]
    return pd.DataFrame(
        {
            "colour": np.array(["red", "green", "blue"])[np.digitize(number, [-0.5, 0.5])],
            "size": number,
            "wide": np.array(["yes", "no"])[np.arange(rows) % 2],
            "grade": pd.Categorical([3, 1, 2] * (rows // 3), categories=[1, 2, 3, 4]),
            "open": pd.array([True, None, False] * (rows // 3), dtype="boolean"),
        }
    )


def test_categories():
    """Oracle: pandas's indicators of categories."""
    table = make_table()
    table.loc[0, "colour"] = None
    by_hand = pd.DataFrame(index=table.index)
    for colour in ("blue", "green", "red"):
        by_hand[f"colour={colour}"] = table["colour"].fillna("red") == colour
    by_hand["size"] = table["size"]
    by_hand["wide=yes"] = table["wide"] == "yes"
    for grade in (1, 2, 3):
        by_hand[f"grade={grade}"] = table["grade"] == grade
    by_hand["open"] = table["open"].astype(float).fillna(0.5)
    by_hand["colour is missing"] = table["colour"].isna()
    by_hand["open is missing"] = table["open"].isna()
    estimator = PrunedRegressor(**TINY).fit(table, Y)
    assert table["colour"].value_counts().idxmax() == "red"
    assert estimator.input_names_ == list(by_hand)
    np.testing.assert_array_equal(estimator.encode(table), by_hand.astype(float))
    array = np.ascontiguousarray(by_hand.to_numpy(float))
    expected = PrunedRegressor(**TINY).fit(array, Y).predict(array)
    np.testing.assert_array_equal(estimator.predict(table), expected)
    assert estimator.feature_names_in_.tolist() == list(table)
    assert estimator.get_feature_names_out().tolist() == list(table)
    # Categories that did not occur in training are like missing ones.
    new = table[:4].assign(colour=["blue", "pink", "blue", None])
    with pytest.warns(UserWarning, match=r"'colour' holds \['pink'\]"):
        encoded = estimator.encode(new)
    np.testing.assert_array_equal(encoded[:, 0:3], np.eye(3)[[0, 2, 0, 2]])
    np.testing.assert_array_equal(encoded[:, -2], [0, 1, 0, 1])
    with pytest.raises(ValueError, match="did not occur in training, in row 1"):
        estimator.set_params(missing="error").encode(new)


def test_a_column_of_categories_is_selected_as_one():
    table = make_table()[["wide", "colour"]]
    y = np.where(table["colour"] == "red", 3.0, -3.0) + 0.1 * X[:, 2]
    estimator = PrunedRegressor(**SMALL | {"hidden": (), "epochs": 400}).fit(table, y)
    assert estimator.selected_features_.tolist() == [False, True]
    assert estimator.get_feature_names_out().tolist() == ["colour"]
    assert estimator.transform(table).shape == (ROWS, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": pd.Timestamp("2024-01-31")}, "'size' has dtype datetime"),
        ({"colour": [str(k) for k in range(ROWS)]}, "60 different text values"),
        ({"size": [[1]] * ROWS}, "'size' has dtype object"),
        ({"grade": pd.Categorical([1, "1"] * (ROWS // 2))}, "categories with the same name"),
    ],
)
def test_columns_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        PrunedRegressor(**TINY).fit(make_table().assign(**change), Y)


def test_tables_stay_tables():
    estimator = PrunedRegressor(**TINY).fit(make_table(), Y)
    with pytest.raises(ValueError, match=r"X is a ndarray, .* Give a pandas.DataFrame"):
        estimator.predict(make_table().to_numpy())
    with pytest.raises(ValueError, match="'size' contains values that are not numbers"):
        estimator.predict(make_table().assign(size="large"))
    numbers = PrunedRegressor(**TINY).fit(X, Y)
    with pytest.raises(ValueError, match="not numbers"):
        numbers.predict(pd.DataFrame(X).astype({2: object}).replace({2: {X[0, 2]: "large"}}))


# --- more rows ------------------------------------------------------------------------------------


def test_partial_fit_updates(regressor):
    """Oracle: `secateur.update` of the first fit, with the same key."""
    first, second = slice(0, 30), slice(30, ROWS)
    estimator = clone(regressor).set_params(epochs=20, retrain_epochs=5)
    expected = clone(estimator).fit(X[first], Y[first])
    estimator.partial_fit(X[first], Y[first])
    assert estimator.free_energy_ == expected.free_energy_
    epochs = estimator.n_iter_
    assert epochs == expected.result_.epochs >= 20 + 5
    estimator.partial_fit(X[second], Y[second], sample_weight=np.ones(30))
    seed = np.random.RandomState(0).randint(2**31)
    key = jax.random.fold_in(jax.random.key(seed), epochs)
    data = (X[second], Y[second], np.ones(30))
    updated = sc.update(expected.result_, data, key=key, epochs=20, progress=False)
    assert estimator.free_energy_ == updated.free_energy
    assert estimator.n_iter_ == epochs + updated.epochs
    assert estimator.pruned_fraction_ == expected.pruned_fraction_
    assert len(estimator.rounds_) == len(expected.rounds_) > 0
    with pytest.raises(ValueError, match=r"y has shape \(30,\)"):
        estimator.partial_fit(X[second], Y[second, 0])


def test_partial_fit_of_classes():
    estimator = PrunedClassifier(**TINY)
    some = LABELS != "high"
    estimator.partial_fit(X[some], LABELS[some], classes=["low", "middle", "high"])
    assert estimator.classes_.tolist() == ["high", "low", "middle"]
    before = estimator.predict_proba(X[~some])[:, 0].mean()
    estimator.partial_fit(X[~some], LABELS[~some])
    assert estimator.predict_proba(X[~some])[:, 0].mean() > before
    with pytest.raises(ValueError, match="'huge' in row 0, which is not one of the classes"):
        estimator.partial_fit(X[:2], ["huge", "low"])
    with pytest.raises(ValueError, match="They cannot change"):
        estimator.partial_fit(X[:2], ["high", "low"], classes=["high", "low"])
    with pytest.raises(ValueError, match="Give a dict of weights"):
        PrunedClassifier(class_weight="balanced").partial_fit(X, LABELS)


def test_an_estimator_without_weights_learns_on():
    # What is left of the targets once X has explained all it can.
    nothing = Y[:, 1:] - X @ np.linalg.lstsq(X, Y[:, 1:])[0]
    estimator = PrunedRegressor(**SMALL | {"hidden": ()}).fit(X, nothing)
    assert estimator.n_weights_ == 0
    estimator.partial_fit(X, nothing)
    assert estimator.predict(X).shape == (ROWS, 1)
    with pytest.warns(UserWarning, match="No features were selected"):
        assert estimator.transform(X).shape == (ROWS, 0)


# --- counts ---------------------------------------------------------------------------------------


def test_counts():
    """Oracle: scikit-learn's Poisson regression, which has no prior."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 2))
    rates = np.exp(1 + 0.5 * x[:, 0] - 0.3 * x[:, 1])
    counts = rng.poisson(rates)
    estimator = PrunedRegressor(likelihood="poisson", **TINY | {"epochs": 300}).fit(x, counts)
    expected = PoissonRegressor(alpha=0).fit(x, counts).predict(x)
    mean, deviation = estimator.predict(x, return_std=True)
    np.testing.assert_allclose(mean, expected, rtol=0.05)
    np.testing.assert_allclose(deviation, np.sqrt(mean), rtol=0.05)
    low, high = estimator.predict_interval(x, level=0.9)
    assert np.all(low == np.floor(low))
    assert 0.9 <= np.mean((counts >= low) & (counts <= high)) < 0.99
    assert isinstance(estimator.result_.model.likelihood, sc.PoissonLikelihood)
    for wrong in (-1, 0.5):
        with pytest.raises(ValueError, match=f"y is {wrong} in row 399"):
            estimator.fit(x, np.append(counts[:-1], wrong))
    with pytest.raises(ValueError, match="likelihood='gamma'"):
        PrunedRegressor(likelihood="gamma").fit(x, counts)


# --- export ---------------------------------------------------------------------------------------


def test_export_with_names(tmp_path):
    table, y = make_table(), pd.Series(Y[:, 0], name="price")
    estimator = PrunedRegressor(**TINY).fit(table, y)
    sc.export(estimator, tmp_path / "net.c", inputs=table, measured=False)
    header = (tmp_path / "net.h").read_text()
    for name in ("NET_INPUT_COLOUR_RED", "NET_INPUT_SIZE", "NET_OUTPUT_PRICE"):
        assert name in header
    sc.save(estimator.result_, tmp_path / "model")
    assert sc.load(tmp_path / "model").extra == estimator.result_.extra


def test_export_of_classes(tmp_path):
    onnx = pytest.importorskip("onnx")
    for labels, target in ((LABELS, ["y"]), (LABELS == "low", ["y=True"])):
        estimator = PrunedClassifier(**TINY).fit(pd.DataFrame(X, columns=list("abc")), labels)
        sc.export(estimator, tmp_path / "net.onnx")
        model = onnx.load(tmp_path / "net.onnx")
        facts = {p.key: p.value for p in model.metadata_props}
        text = " ".join(facts.values())
        assert all(f'"{name}"' in text for name in ("a", "b", "c", *target))
        if labels is LABELS:
            assert all(f'"{name}"' in text for name in ("high", "low", "middle"))
