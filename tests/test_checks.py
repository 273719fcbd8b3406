"""Mistakes of use: each is refused or warned of, in words that say what to give instead."""

import warnings
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from flax import linen, nnx

import secateur as sc
from secateur.model import StateNote
from secateur.options import check_count, check_key, check_keys
from secateur.training.function_checks import find_mistakes
from secateur.training.recipe import RECIPES

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X[:, :1] - 2 * X[:, 1:2] + 0.1 * RNG.normal(size=(40, 1))
LABELS = (X[:, 0] > 0).astype(int)
BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"


def linear(weights, x):
    return x @ weights


def make_model(outputs=1, **options):
    return sc.BayesianModel(linear, jnp.zeros((3, outputs)), **options)


def fit(model, data=(X, Y), **options):
    return sc.fit(model, data, **{"key": KEY, "epochs": 5, "progress": False} | options)


@pytest.fixture(scope="module")
def fitted():
    return fit(make_model())


@pytest.fixture(scope="module")
def classifier():
    return fit(make_model(2, likelihood=sc.CategoricalLikelihood()), (X, LABELS))


@pytest.fixture
def nothing_trains(monkeypatch):
    """Fail if a training program is asked for."""

    def refuse(*args, **options):
        raise AssertionError("training began")

    monkeypatch.setattr("secateur.training.program.train", refuse)


def refuses(error, *parts):
    """Expect an error whose message holds all parts."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*{part})" for part in parts))


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [0, None, np.int64(3), "seed"])
def test_a_seed_is_not_a_key(fitted, key, nothing_trains):
    calls = (
        lambda: sc.fit(make_model(), (X, Y), key=key),
        lambda: sc.prune(fitted, (X, Y), key=key),
        lambda: sc.update(fitted, (X, Y), key=key),
        lambda: sc.fit_many(make_model(), [(X, Y)], keys=[key]),
        lambda: sc.prune_many([fitted], [(X, Y)], key=key),
        lambda: fitted.predict(X).sample(key),
    )
    for call in calls:
        with refuses(TypeError, "jax.random.key"):
            call()
    if key is not None:  # which stands for the model's own
        with refuses(TypeError, "jax.random.key"):
            fitted.predict(X, key=key)


def test_several_keys_are_not_one_and_one_is_not_several(nothing_trains):
    keys = jax.random.split(KEY, 3)
    with refuses(TypeError, "holds 3 keys", r"keys\[0\]"):
        sc.fit(make_model(), (X, Y), key=keys)
    for one in (KEY, 2):
        with refuses(TypeError, "a JAX random key for each run"):
            sc.fit_many(make_model(), [(X, Y)], keys=one)
    with refuses(TypeError, r"keys\[1\]=1", "jax.random.key"):
        check_keys([KEY, 1])


def test_keys_of_the_older_kind_give_the_same_result():
    new = fit(make_model(), key=jax.random.key(7))
    old = fit(make_model(), key=jax.random.PRNGKey(7))
    assert np.array_equal(new.beliefs.mean, old.beliefs.mean)
    (many,) = sc.fit_many(
        make_model(), [(X, Y)], keys=jax.random.PRNGKey(7)[None], epochs=5, progress=False
    )
    assert np.array_equal(new.beliefs.mean, many.beliefs.mean)
    with refuses(TypeError, "array of uint32", r"shape \(3,\)"):
        check_key(np.zeros(3, np.uint32))


# --- numbers --------------------------------------------------------------------------------------


def test_whole_numbers_may_be_written_as_floats(fitted):
    assert fit(make_model(), epochs=5.0).epochs == fitted.epochs
    assert check_count(1e2, "epochs") == 100
    assert isinstance(check_count(np.int32(3), "epochs"), int)


@pytest.mark.parametrize("epochs", [0, -1, 2.5, np.nan, np.inf])
def test_epochs_that_are_not_a_positive_whole_number(fitted, epochs, nothing_trains):
    for call in (
        lambda: fit(make_model(), epochs=epochs),
        lambda: sc.prune(fitted, (X, Y), key=KEY, epochs=epochs),
        lambda: sc.update(fitted, (X, Y), key=KEY, epochs=epochs),
        lambda: sc.fit_many(make_model(), [(X, Y)], keys=[KEY], epochs=epochs),
    ):
        with refuses(ValueError, f"epochs={epochs}", "at least 1"):
            call()


@pytest.mark.parametrize("value", ["10", True, [1]])
def test_epochs_that_are_not_a_number(value, nothing_trains):
    with refuses(TypeError, "epochs=", "whole number"):
        fit(make_model(), epochs=value)


def test_rates_and_restarts(nothing_trains):
    for rate in (0.0, -1.0, np.nan, np.inf):
        with refuses(ValueError, "rate="):
            fit(make_model(), rate=rate)
    with refuses(ValueError, "restarts=0"):
        fit(make_model(), restarts=0)


# --- models ---------------------------------------------------------------------------------------


def test_a_likelihood_is_an_instance(nothing_trains):
    with refuses(TypeError, "'categorical'", r"CategoricalLikelihood\(\)"):
        make_model(likelihood="categorical")
    with refuses(TypeError, "is a class", r"PoissonLikelihood\(\)"):
        make_model(likelihood=sc.PoissonLikelihood)
    with refuses(TypeError, "lacks .*update_noise", r"GaussianLikelihood\(\)"):
        fit(make_model(likelihood=object()))


@pytest.mark.parametrize(
    ("likelihood", "words"),
    [
        (sc.GaussianLikelihood(sc.Gamma(0.0, 1.0)), "shape of the prior of the precision is 0"),
        (sc.GaussianLikelihood(sc.Gamma(1.0, -1.0)), "rate of the prior of the precision is -1"),
        (sc.GaussianLikelihood(precision=-2.0), "the precision is -2"),
    ],
)
def test_parameters_of_the_noise_are_positive(likelihood, words, nothing_trains):
    with refuses(ValueError, words, "positive, finite"):
        fit(make_model(likelihood=likelihood))


def test_a_prior_is_an_instance():
    with refuses(TypeError, "Normal is not a distribution", r"Normal\(0.0, 1.0\)"):
        make_model(prior=sc.Normal)
    with refuses(TypeError, "prior=normal"):
        make_model(prior="normal")


@pytest.mark.parametrize(
    ("prior", "parameter"),
    [
        (sc.Normal(0.0, -1.0), "variance is -1"),
        (sc.Normal(0.0, 0.0), "variance is 0"),
        (sc.Normal(0.0, np.array([[1.0], [np.nan], [1.0]])), "variance is nan"),
        (sc.Laplace(0.0, -0.5), "scale is -0.5"),
        (sc.ScaleMixture(0.5, 1.0, -1e-3), "narrow is -0.001"),
    ],
)
def test_a_prior_has_a_positive_width(prior, parameter, nothing_trains):
    with refuses(ValueError, parameter, "positive, finite"):
        fit(make_model(prior=prior))


def test_a_function_for_priors_gets_the_arrays():
    seen = []

    def prior(path, leaf):
        seen.append((path, leaf))
        return sc.Normal(0.0, 1.0 / leaf.shape[0])

    model = sc.BayesianModel(lambda p, x: x @ p["w"], {"w": jnp.zeros((3, 1))}, prior=prior)
    trained = fit(model)
    ((path, leaf),) = seen
    assert path == "['w']"
    assert isinstance(leaf, jax.Array)
    assert leaf.shape == (3, 1)
    assert np.allclose(trained.priors["w"].variance, 1 / 3)


def test_what_is_not_trained_cannot_be_pruned(nothing_trains):
    model = make_model()
    for work in (sc.prune, sc.update):
        with refuses(TypeError, "BayesianModel is not a trained model", "fit"):
            work(model, (X, Y), key=KEY)
    with refuses(TypeError, "BayesianModel is not a trained model", "fit"):
        sc.prune_many([model], [(X, Y)], key=KEY)
    with refuses(TypeError, "BayesianModel is not a trained model"):
        sc.sweep(model, (X, Y))
    with refuses(TypeError, "dict is not a trained model", "load"):
        sc.prune({}, (X, Y), key=KEY)


def test_what_is_trained_is_not_a_model(fitted, nothing_trains):
    with refuses(TypeError, "Trained is not a model", "trained.model", "update"):
        fit(fitted)
    with refuses(TypeError, "function is not a model", "BayesianModel"):
        fit(linear)


# --- data -----------------------------------------------------------------------------------------


def test_containers_that_are_not_a_pair(fitted, nothing_trains):
    table = pd.DataFrame(np.c_[X, Y], columns=["a", "b", "c", "y"])
    cases = [
        ({"x": X, "y": Y}, "dict with 'x', 'y'"),
        (table, "one DataFrame"),
        (X, "one ndarray"),
        ([X, Y], "list of ndarray"),
        ((X,), "a tuple of 1"),
        (3.0, "data are a float"),
    ]
    for data, words in cases:
        for call in (lambda data: fit(make_model(), data), prune_fitted(fitted)):
            with refuses(TypeError, words, "pair of arrays"):
                call(data)
    with refuses(TypeError, "batch of the stream is a ndarray", "pair"):
        fit(make_model(), lambda: iter([X]))
    with refuses(TypeError, "one ndarray", "pair of arrays"):  # a pair in the place of pairs
        sc.fit_many(make_model(), (X, Y), keys=[KEY, KEY])


def prune_fitted(fitted):
    return lambda data: sc.prune(fitted, data, key=KEY)


def test_text_in_the_targets(classifier, nothing_trains):
    words = np.array(["no", "yes"])[LABELS]
    model = make_model(2, likelihood=sc.CategoricalLikelihood())
    for targets in (words, words.astype(object), list(words), pd.Series(words)):
        with refuses(TypeError, "the targets have dtype", "np.unique", "PrunedClassifier"):
            fit(model, (X, targets))
        with refuses(TypeError, "the targets have dtype", "np.unique"):
            classifier.predict(X).log_density(targets)


def test_text_in_the_inputs_is_named():
    table = pd.DataFrame({"a": X[:, 0], "city": "x", "b": X[:, 1]})
    with refuses(TypeError, r"because of the columns \['city'\]", "Encode"):
        fit(make_model(), (table, Y))


def test_numbers_and_booleans_in_one_table():
    """pandas makes an array of objects of them."""
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1] > 0, "c": X[:, 2]})
    assert table.to_numpy().dtype == object
    as_numbers = fit(make_model(), (table.astype(float), Y))
    assert fit(make_model(), (table, Y)).free_energy == as_numbers.free_energy


@pytest.mark.parametrize("wrong", [-1, 2])
def test_labels_outside_the_classes(classifier, wrong, nothing_trains):
    labels = LABELS.copy()
    labels[7] = wrong
    with refuses(ValueError, "labels range from", "2 classes, 0 to 1"):
        fit(make_model(2, likelihood=sc.CategoricalLikelihood()), (X, labels))
    with refuses(ValueError, "labels range from", "2 classes, 0 to 1"):
        classifier.predict(X).log_density(labels)


def test_counts(nothing_trains):
    model = make_model(likelihood=sc.PoissonLikelihood())
    counts = np.ones((40, 1))
    counts[:20] = 4
    for wrong, words in ((-1.0, "first of them -1"), (0.5, "first of them 0.5")):
        bad = counts.copy()
        bad[3] = wrong
        with refuses(ValueError, "1 of 40 targets are not counts", words, "GaussianLikelihood"):
            fit(model, (X, bad))
    with refuses(AssertionError, "training began"):
        fit(model, (X, counts))


def test_answers_that_are_not_0_or_1(nothing_trains):
    model = make_model(likelihood=sc.BernoulliLikelihood())
    with refuses(ValueError, "from -1 to 1", "0 and 1"):
        fit(model, (X, 2 * LABELS[:, None] - 1))


def test_values_are_checked_by_log_density_too():
    counts = np.random.default_rng(1).poisson(2.0, size=(40, 1))
    trained = fit(make_model(likelihood=sc.PoissonLikelihood()), (X, counts))
    with refuses(ValueError, "not counts"):
        trained.predict(X).log_density(counts - 0.5)
    assert np.isfinite(trained.predict(X).log_density(counts)).all()


def test_ragged_sequences(nothing_trains):
    sequences = [RNG.normal(size=(length, 3)) for length in (5, 7, 6)]
    for inputs in (
        sequences,
        np.array(sequences, dtype=object),
        [list(s[:, 0]) for s in sequences],
    ):
        with refuses(ValueError, "different shapes", "5 to 7 steps", "Pad them"):
            fit(make_model(), (inputs, np.zeros((3, 1))))
    with refuses(ValueError, "different shapes", "Pad them"):
        fit(make_model(), (X[:3], [[1.0], [2.0, 3.0], [4.0]]))


def test_a_list_of_rows_is_not_an_array(fitted, nothing_trains):
    with refuses(ValueError, "list of 40 rows", "np.stack"):
        fit(make_model(), (list(X), Y))
    with refuses(ValueError, "list of 40 rows", "np.stack"):
        fit(make_model(), (X.tolist(), Y))


def test_a_list_of_inputs_is_several_inputs():
    model = sc.BayesianModel(
        lambda w, x: x[0] @ w + 0.0 * x[1], jnp.zeros((3, 1)), prior=sc.Normal(0.0, 1.0)
    )
    both = [X, X[:, :1]]
    trained = fit(model, (both, Y))
    assert trained.predict(both).mean.shape == (40, 1)
    with refuses(ValueError, "one array", r"the pytree \[\*, \*\]"):
        trained.predict(X)


# --- columns --------------------------------------------------------------------------------------


def test_another_number_of_columns(fitted, nothing_trains):
    for call in (
        fitted.predict,
        lambda x: sc.prune(fitted, (x, Y), key=KEY),
        lambda x: sc.update(fitted, (x, Y), key=KEY),
    ):
        with refuses(ValueError, "2 columns", "fitted to 3"):
            call(X[:, :2])
    with refuses(ValueError, r"shape \(3,\)", r"row\[None\]"):
        fitted.predict(X[0])
    with refuses(ValueError, "5 columns"):
        fitted.predict(np.zeros((2, 5)))


def test_columns_that_are_not_standardised():
    """Then their number is known to the function alone."""
    recipe = replace(RECIPES["default"], standardise_inputs=False, epochs=5)
    trained = sc.fit(make_model(), (X, Y), key=KEY, recipe=recipe, progress=False)
    for call in (
        lambda x: trained.predict(x).mean,
        lambda x: trained.predict(x).log_density(Y),
        lambda x: sc.prune(trained, (x, Y), key=KEY),
        lambda x: sc.update(trained, (x, Y), key=KEY),
    ):
        with refuses(ValueError, "fails for", "like those that the model was fitted to"):
            call(X[:, :2])


@pytest.fixture(scope="module")
def table():
    return pd.DataFrame(X, columns=["a", "b", "c"])


@pytest.fixture(scope="module")
def by_name(table):
    return fit(make_model(), (table, Y))


def test_columns_are_matched_by_name(fitted, by_name, table, tmp_path):
    mixed = table[["c", "a", "b"]].assign(more=1.0)
    expected = by_name.predict(table).mean
    assert np.allclose(expected, fitted.predict(X).mean)
    assert np.array_equal(by_name.predict(mixed).mean, expected)
    assert np.array_equal(by_name.predict(X).mean, expected)  # an array has no names
    assert np.allclose(fitted.predict(table).mean, expected)
    sc.save(by_name, tmp_path / "model", extra=None)
    loaded = sc.load(tmp_path / "model", f=linear)
    assert np.array_equal(loaded.predict(mixed).mean, expected)


def test_columns_that_are_missing_are_named(by_name, table):
    for call in (
        by_name.predict,
        lambda x: sc.prune(by_name, (x, Y), key=KEY),
        lambda x: sc.update(by_name, (x, Y), key=KEY),
        lambda x: sc.prune_many([by_name], [(x, Y)], key=KEY),
    ):
        with refuses(ValueError, r"lacks the columns \['b'\]", "'a', 'b', 'c'"):
            call(table[["a", "c"]])
    with refuses(ValueError, "2 columns", "in this order: .'a', 'b', 'c'"):
        by_name.predict(X[:, :2])


def test_pruning_and_streams_match_by_name(by_name, table):
    mixed = table[["b", "c", "a"]]
    options = {"key": KEY, "epochs": 5, "progress": False}
    pruned = sc.prune(by_name, (table, Y), **options)
    for data in ((mixed, Y), lambda: iter([(mixed[:25], Y[:25]), (table[25:], Y[25:])])):
        again = sc.prune(by_name, data, **options)
        assert again.free_energy == pytest.approx(pruned.free_energy)
        assert again.live_weights == pruned.live_weights
    stream = fit(make_model(), lambda: iter([(table[:25], Y[:25]), (mixed[25:], Y[25:])]))
    assert stream.scaling.column_names == (("a", "b", "c"),)
    assert stream.free_energy == pytest.approx(by_name.free_energy)


def test_compact_keeps_the_names_of_the_inputs_that_are_left(by_name, table):
    beliefs = sc.cut(by_name.beliefs, jnp.array([[True], [False], [True]]))
    cut = replace(by_name, beliefs=beliefs)
    small = sc.compact(cut, inputs=X[:4], drop_inputs=True)
    assert small.scaling.column_names == (("a", "c"),)
    assert np.allclose(small.predict(table).mean, cut.predict(table).mean)


# --- functions ------------------------------------------------------------------------------------


class Net(nnx.Module):
    def __init__(self, *, dropout=0.0, normalise=False):
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs) if normalise else None
        self.dropout = nnx.Dropout(dropout, rngs=rngs) if dropout else None

    def __call__(self, x):
        x = self.first(x)
        for layer in (self.norm, self.dropout):
            x = x if layer is None else layer(x)
        return self.last(nnx.relu(x))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"normalise": True}, "batch normalisation is in training mode.*does not read.*'mean'"),
        ({"dropout": 0.5}, "dropout is in training mode.*random numbers"),
    ],
)
def test_training_mode_is_refused(options, words, nothing_trains):
    module = Net(**options)
    likelihood = sc.CategoricalLikelihood()
    graph, state = nnx.split(module)
    f = lambda state, x: nnx.merge(graph, state)(x)  # noqa: E731
    with pytest.warns(StateNote, match=r"BatchStat|RngCount|RngKey"):
        model = sc.BayesianModel(f, state, likelihood=likelihood, inference="global")
    with refuses(ValueError, words, r"model\.eval\(\)"):
        fit(model, (X, LABELS))
    # With the state outside of the weights, Flax itself refuses to change it.
    graph, weights, rest = nnx.split(module, nnx.Param, ...)
    f = lambda weights, x: nnx.merge(graph, weights, rest)(x)  # noqa: E731
    with refuses(ValueError, "changes its own state", r"model\.eval\(\)"):
        find_mistakes(f, weights, X[:2].astype(np.float32), likelihood)
    module.eval()
    graph, weights, rest = nnx.split(module, nnx.Param, ...)
    assert not find_mistakes(f, weights, X[:2].astype(np.float32), likelihood)


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):
        x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x))
        return linen.Dense(1)(linen.Dropout(0.5, deterministic=not train)(linen.relu(x)))


def test_a_linen_module_keeps_its_statistics_certain():
    module = LinenNet()
    variables = module.init(KEY, X.astype(np.float32))
    with pytest.warns(StateNote, match="batch_stats in the params is state"):
        model = sc.BayesianModel(module.apply, variables)
    beliefs = sc.believe(model.params, variance=1.0, where=model.where)
    assert not isinstance(beliefs["batch_stats"]["BatchNorm_0"]["mean"], sc.Normal)
    assert isinstance(beliefs["params"]["Dense_0"]["kernel"], sc.Normal)


@pytest.mark.parametrize(
    ("part", "rngs", "words"),
    [
        (slice(None), {"dropout": KEY}, "returns its updated state"),
        (0, {"dropout": KEY}, "batch normalisation is in training mode"),
        (0, None, "needs a random key"),
    ],
)
def test_training_mode_of_linen_is_refused(part, rngs, words, nothing_trains):
    module = LinenNet()
    variables = module.init(KEY, X.astype(np.float32))

    def f(variables, x):
        return module.apply(variables, x, train=True, mutable=["batch_stats"], rngs=rngs)[part]

    where = {"params": True, "batch_stats": False}
    with refuses(ValueError, words, "use_running_average=True"):
        fit(sc.BayesianModel(f, variables, where=where))


def test_the_warning_names_the_line_of_the_caller(nothing_trains):
    model = sc.BayesianModel(lambda w, x: (x - jnp.mean(x, axis=0)[None]) @ w, jnp.zeros((3, 1)))
    with pytest.warns(UserWarning, match=r"test_checks.py") as seen, pytest.raises(AssertionError):
        sc.fit(model, (X, Y), key=KEY)
    assert seen[0].filename == __file__


def softmax_by_hand(x):
    exponentials = jnp.exp(x)
    return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "last",
    [
        jax.nn.softmax,
        softmax_by_hand,
        lambda x: jnp.exp(jax.nn.log_softmax(x)),
        jax.vmap(jax.nn.softmax),
    ],
)
def test_a_softmax_before_a_categorical_likelihood(last, nothing_trains):
    model = sc.BayesianModel(
        lambda w, x: last(x @ w),
        jnp.zeros((3, 2)),
        likelihood=sc.CategoricalLikelihood(),
        inference="global",
    )
    with pytest.warns(UserWarning, match="ends in a softmax"), pytest.raises(AssertionError):
        fit(model, (X, LABELS))


def test_a_sigmoid_before_a_bernoulli_likelihood():
    (mistake,) = find_mistakes(
        lambda w, x: jax.nn.sigmoid(x @ w), jnp.zeros((3, 1)), X[:2], sc.BernoulliLikelihood()
    )
    assert "ends in a sigmoid" in mistake


def attend(w, x):
    """Attention over positions within a row, and a softmax that is not the last operation."""
    scores = jax.nn.softmax(jnp.einsum("nic,njc->nij", x, x))
    return jnp.einsum("nij,njc->nc", scores, x) @ w


@pytest.mark.parametrize(
    ("f", "params", "x"),
    [
        (lambda w, x: jax.nn.log_softmax(x @ w), jnp.zeros((3, 2)), X),
        (attend, jnp.zeros((3, 2)), np.ones((2, 5, 3))),
        (lambda w, x: jax.nn.standardize(x @ w), jnp.zeros((3, 2)), X),  # LayerNorm
        (lambda w, x: jnp.mean(x, axis=(1, 2)) @ w, jnp.zeros((3, 2)), np.ones((2, 4, 4, 3))),
        (lambda w, x: jax.lax.map(lambda row: row @ w, x), jnp.zeros((3, 2)), X),
        (lambda w, x: jnp.stack([row @ w for row in x]), jnp.zeros((3, 2)), X),
        (lambda w, x: x @ jax.random.normal(jax.random.key(0), (3, 4)) @ w, jnp.zeros((4, 2)), X),
        (lambda w, x: x @ w, jnp.zeros((61, 2)), np.ones((2, 61))),  # a size that is a row count
        (sc.networks.Dense(3, hidden=(4,), outputs=2), None, X),
    ],
)
def test_functions_without_a_mistake(f, params, x):
    params = f.init(KEY) if params is None else params
    assert not find_mistakes(f, params, x[:2], sc.CategoricalLikelihood())


def test_an_equinox_module_needs_vmap(nothing_trains):
    module = eqx.nn.MLP(3, 1, 4, 1, key=KEY)
    with refuses(ValueError, "one row at a time", r"jax.vmap\(module\)"):
        fit(sc.BayesianModel(lambda m, x: m(x), module))
    square = eqx.nn.Linear(2, 2, key=KEY)  # which two rows of two columns would not give away
    with refuses(ValueError, "one row at a time", "jax.vmap"):
        fit(sc.BayesianModel(lambda m, x: m(x), square), (X[:, :2], Y @ np.ones((1, 2))))
    f = lambda m, x: jax.vmap(m)(x)  # noqa: E731
    with refuses(AssertionError, "training began"):
        fit(sc.BayesianModel(f, module))


def test_dropout_without_a_key(nothing_trains):
    class Dropped(eqx.Module):
        linear: eqx.nn.Linear
        dropout: eqx.nn.Dropout

        def __call__(self, x):
            return self.dropout(self.linear(x))

    module = Dropped(eqx.nn.Linear(3, 1, key=KEY), eqx.nn.Dropout(0.5))
    f = lambda m, x: jax.vmap(m)(x)  # noqa: E731
    with refuses(ValueError, "random key", "inference_mode"):
        fit(sc.BayesianModel(f, module))
    with refuses(AssertionError, "training began"):
        fit(sc.BayesianModel(f, eqx.nn.inference_mode(module)))


def test_an_error_of_the_function_itself_stays_what_it_is(nothing_trains):
    def broken(w, x):
        raise KeyError("layer 3")

    with pytest.raises(KeyError, match="layer 3"):
        fit(sc.BayesianModel(broken, jnp.zeros((3, 1))))


def test_the_checks_compile_nothing():
    """They trace, which takes milliseconds; a network of its own shape is compiled nowhere else."""
    network = sc.networks.Dense(3, hidden=(17, 13), outputs=2)
    params = network.init(KEY)
    count = 0

    def listen(event, duration, **facts):
        nonlocal count
        count += event == BACKEND_COMPILE

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda x: x + 17.25)(1.0)
        assert count  # the event has this name
        count = 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            find_mistakes(network, params, X[:2], sc.CategoricalLikelihood())
        assert not count
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
