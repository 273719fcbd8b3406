"""Training, pruning and updating with covariance within units.

Oracle: linear regression with known noise, whose posterior and evidence are closed forms.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import secateur as sc
from secateur.distributions.unit_normal import unit_covariance

pytestmark = pytest.mark.slow
ROWS, INPUTS, PRECISION, SETS = 40, 5, 4.0, 10
KEY = jax.random.key(0)
RECIPE = replace(
    sc.Recipe(), standardise_inputs=False, standardise_targets=False, epochs=6000, warm_steps=0,
    retrain_epochs=600, stops=False,
)  # fmt: skip


def predict(params, x):
    return x @ params["w"] + params["b"][None]


def make_data(seed):
    """Ten data sets with correlated inputs of which some do not matter."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(INPUTS) + 0.8 * rng.normal(size=(INPUTS, INPUTS))
    x = 0.3 + rng.normal(size=(ROWS, INPUTS)) @ mixing
    weights = rng.normal(size=INPUTS) * (rng.uniform(size=INPUTS) < 0.5)
    return x, (x @ weights + rng.normal(size=ROWS) / np.sqrt(PRECISION))[:, None]


def solve(x, y):
    """Posterior of bias and weights, and −ln p(y), under N(0, 1)."""
    rows = np.c_[np.ones(len(x)), x]
    covariance = np.linalg.inv(np.eye(rows.shape[1]) + PRECISION * rows.T @ rows)
    mean = covariance @ (PRECISION * rows.T @ y[:, 0])
    of_y = np.eye(len(x)) / PRECISION + rows @ rows.T
    return mean, covariance, -stats.multivariate_normal(np.zeros(len(x)), of_y).logpdf(y[:, 0])


def make_model(posterior):
    params = {"b": jnp.zeros(1), "w": jnp.zeros((INPUTS, 1))}
    likelihood = sc.GaussianLikelihood(precision=PRECISION)
    return sc.BayesianModel(predict, params, likelihood=likelihood, posterior=posterior)


def moments(trained):
    b, w = trained.beliefs["b"], trained.beliefs["w"]
    return np.r_[np.asarray(b.mean), np.asarray(w.mean)[:, 0]], np.asarray(unit_covariance(b, w))


DATA = [make_data(seed) for seed in range(SETS)]


@pytest.fixture(scope="module")
def fits():
    keys = jax.random.split(KEY, SETS)
    return sc.fit_many(make_model("unit"), DATA, keys=keys, recipe=RECIPE, progress=False)


@pytest.fixture(scope="module")
def pruned(fits):
    return sc.prune_many(fits, DATA, key=KEY, progress=False)


def test_training_ends_at_the_exact_posterior(fits):
    gaps = []
    for trained, (x, y) in zip(fits, DATA, strict=True):
        mean, covariance, evidence = solve(x, y)
        own_mean, own_covariance = moments(trained)
        np.testing.assert_allclose(trained.free_energy, evidence, atol=1e-3)
        np.testing.assert_allclose(own_mean, mean, atol=1e-3)
        np.testing.assert_allclose(own_covariance, covariance, atol=1e-3)
        # The best independent posterior has the same mean and the diagonal of the precision.
        precision = np.linalg.inv(covariance)
        gaps.append(0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1]))
    assert min(gaps) > 0.1  # mean field cannot say this
    x, y = DATA[0]
    mean_field = sc.fit(make_model("mean-field"), DATA[0], key=KEY, recipe=RECIPE, progress=False)
    np.testing.assert_allclose(mean_field.free_energy, solve(x, y)[2] + gaps[0], atol=1e-2)


def test_pruning_takes_the_path_of_exact_evidence(fits, pruned):
    """Oracle: `prune_exactly`, and the evidence of the model that is left."""
    for before, after, (x, y) in zip(fits, pruned, DATA, strict=True):
        mean, covariance, _ = solve(x, y)
        q = sc.MultivariateNormal(jnp.asarray(mean), jnp.asarray(covariance))
        p = sc.MultivariateNormal(jnp.zeros(INPUTS + 1), jnp.eye(INPUTS + 1))
        exact = sc.prune_exactly(q, p)
        b, w = after.beliefs["b"], after.beliefs["w"]
        kept = np.r_[np.asarray(b.variance) > 0, np.asarray(w.variance)[:, 0] > 0]
        np.testing.assert_array_equal(kept, exact.kept)
        np.testing.assert_allclose(after.free_energy - before.free_energy, exact.delta_f, atol=2e-3)
        own_mean, own_covariance = moments(after)
        np.testing.assert_allclose(own_mean, exact.posterior.mean, atol=1e-3)
        np.testing.assert_allclose(own_covariance, exact.posterior.covariance, atol=1e-3)
        if after.rounds:  # what was promised comes true at once
            assert abs(after.rounds[0].divergence) < 1e-3


def test_the_expected_change_counts_precisions_that_are_no_longer_needed():
    """Oracle: the free energy at once, with a learnt prior variance for each input."""
    x, y = DATA[0]
    many = np.c_[x, np.random.default_rng(1).normal(size=(ROWS, 5))]  # five do not matter
    params = {"b": jnp.zeros(1), "w": jnp.zeros((INPUTS + 5, 1))}
    for posterior in ("mean-field", "unit"):
        model = replace(make_model(posterior), params=params)
        options = {"key": KEY, "progress": False}
        fitted = sc.fit(model, (many, y), recipe=RECIPE, learn_priors="inputs", **options)
        first = sc.prune(fitted, (many, y), epochs=100, **options).rounds[0]
        assert first.changed > 2
        assert abs(first.divergence) < 0.2 * abs(first.at_once), posterior


def test_an_update_loses_nothing(fits, pruned):
    """Oracle: all rows at once, before pruning and after."""
    number = next(i for i, trained in enumerate(pruned) if 2 <= trained.live_weights <= 4)
    x, y = DATA[number]
    half = ROWS // 2
    model = make_model("unit")
    first = sc.fit(model, (x[:half], y[:half]), key=KEY, recipe=RECIPE, progress=False)
    new = x[half:], y[half:]
    both = sc.update(first, new, key=KEY, progress=False)
    np.testing.assert_allclose(
        first.free_energy + both.free_energy, fits[number].free_energy, atol=1e-3
    )
    for own, whole in zip(moments(both), moments(fits[number]), strict=True):
        np.testing.assert_allclose(own, whole, atol=1e-3)
    result = sc.prune(both, new, key=KEY, progress=False)
    for own, whole in zip(moments(result), moments(pruned[number]), strict=True):
        np.testing.assert_allclose(own, whole, atol=1e-3)


def test_a_file_brings_everything_back(pruned, tmp_path):
    sc.save(pruned[0], tmp_path / "model.safetensors")
    loaded = sc.load(tmp_path / "model.safetensors", f=predict)
    assert loaded.model.posterior == "unit"
    for own, before in zip(moments(loaded), moments(pruned[0]), strict=True):
        np.testing.assert_array_equal(own, before)
    x, _ = DATA[0]
    np.testing.assert_array_equal(loaded.predict(x).variance, pruned[0].predict(x).variance)


def find_gain(x, y, lost):
    """What an input that is missing is worth where the other weights stay: g²/2λ − ½ ln λ."""
    others = np.delete(x, lost, axis=1)
    mean, _, _ = solve(others, y)
    rest = y[:, 0] - mean[0] - others @ mean[1:]
    gradient = PRECISION * x[:, lost] @ rest
    precision = 1 + PRECISION * x[:, lost] @ x[:, lost]
    return gradient**2 / (2 * precision) - 0.5 * np.log(precision)


def test_weights_come_back_where_the_data_ask_for_them(fits):
    """Oracle: the model that was trained with the input that the start has lost."""
    gains = [[find_gain(*data, i) for i in range(INPUTS)] for data in DATA]
    number, lost = np.unravel_index(np.argmax(gains), (SETS, INPUTS))
    fitted, (x, y) = fits[number], DATA[number]
    keep = {"b": None, "w": (np.arange(INPUTS) != lost)[:, None]}
    maimed = replace(fitted, beliefs=sc.cut(fitted.beliefs, keep))
    result = sc.prune(maimed, (x, y), key=KEY, grow=True, epochs=2000, progress=False)
    assert result.beliefs["w"].variance[lost, 0] > 0
    assert result.free_energy <= fitted.free_energy + 1e-3


def test_priors_without_a_closed_form_are_an_error():
    model = replace(make_model("unit"), prior=sc.Laplace(0.0, 1.0))
    with pytest.raises(ValueError, match="needs Normal priors"):
        sc.fit(model, DATA[0], key=KEY, progress=False)
