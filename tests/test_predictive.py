"""The predictive distribution: its formulas, for every likelihood and algorithm, and its blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import register_dataclass
from scipy import integrate, special, stats

import secateur as sc
from secateur.beliefs import sample_weights
from secateur.likelihoods.base import WithoutNoise
from secateur.training.scaling import Affine
from trained import trained

KEY = jax.random.key(3)
RNG = np.random.default_rng(7)
X = RNG.normal(size=(6, 3))
# The data's units: their own mean and deviation for each column.
INPUTS = Affine(np.array([1.0, 0.0, -2.0]), np.array([2.0, 1.0, 0.5]))
TARGETS = Affine(np.array([300.0, -5.0]), np.array([70.0, 0.1]))
NOISE = sc.Gamma(jnp.array([3.0, 40.0]), jnp.array([2.0, 9.0]))
STANDARD_X = (X - INPUTS.shift) / INPUTS.scale


def linear(w, x):
    return x @ w


def beliefs(outputs):
    rng = np.random.default_rng(outputs)
    return sc.Normal(
        jnp.asarray(0.4 * rng.normal(size=(3, outputs))),
        jnp.asarray(rng.uniform(0.01, 0.2, size=(3, outputs))),
    )


LIKELIHOODS = {
    "gaussian": (sc.GaussianLikelihood(), 2),
    "known": (sc.GaussianLikelihood(precision=np.array([2.5, 4.0])), 2),
    "bernoulli": (sc.BernoulliLikelihood(), 2),
    "poisson": (sc.PoissonLikelihood(), 2),
    "categorical": (sc.CategoricalLikelihood(), 3),
}
every_likelihood = pytest.mark.parametrize("name", LIKELIHOODS)
with_values = pytest.mark.parametrize("name", [n for n in LIKELIHOODS if n != "categorical"])


def make_model(name, inference="moments"):
    likelihood, outputs = LIKELIHOODS[name]
    return trained(
        linear,
        beliefs(outputs),
        inference=inference,
        likelihood=likelihood,
        noise=NOISE if name == "gaussian" else None,
        inputs=INPUTS,
        targets=TARGETS if name == "gaussian" else None,
    )


def exact_outputs(name):
    """Mean and variance of the linear function, in standardised units."""
    q = beliefs(LIKELIHOODS[name][1])
    return STANDARD_X @ np.asarray(q.mean), STANDARD_X**2 @ np.asarray(q.variance)


def to_data(name, values):
    return values * TARGETS.scale + TARGETS.shift if name == "gaussian" else values


def draw_functions(name, inference, count, rng):
    """Values of the function in standardised units, from the networks that a model draws."""
    if inference == "moments":
        mean, variance = exact_outputs(name)
        return mean + np.sqrt(variance) * rng.normal(size=(count, *mean.shape))
    networks = jax.random.split(jax.random.key(0), 100)  # the key that is stored with the model
    q = beliefs(LIKELIHOODS[name][1])
    weights = np.stack([np.asarray(sample_weights(key, q)) for key in networks])
    return np.einsum("ri,sio->sro", STANDARD_X, weights)[rng.integers(0, 100, count)]


def conditional_moments(name, f, rng):
    """Mean and variance of targets given values of the function and draws of γ, by hand."""
    if name == "gaussian":
        gamma = rng.gamma(NOISE.shape, 1 / np.asarray(NOISE.rate), size=(len(f), 2))[:, None]
        return f, np.broadcast_to(1 / gamma, f.shape)
    if name == "known":
        return f, np.broadcast_to(1 / np.array([2.5, 4.0]), f.shape)
    if name == "poisson":
        return np.exp(f), np.exp(f)
    p = special.expit(f) if name == "bernoulli" else special.softmax(f, axis=-1)
    return p, p * (1 - p)


def within_error(value, draws, factor=4.5):
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(value - draws.mean(axis=0)) <= factor * error + 1e-9)


@pytest.mark.parametrize("inference", ["moments", "local"])
@every_likelihood
def test_moments(name, inference):
    """Oracle: Monte Carlo over networks and noise, within 4.5 standard errors; outputs exactly."""
    rng = np.random.default_rng(0)
    prediction = make_model(name, inference).predict(X)
    f = draw_functions(name, inference, 200_000, rng)
    mean, variance = conditional_moments(name, f, rng)
    scale = TARGETS.scale if name == "gaussian" else 1.0
    within_error(prediction.mean, to_data(name, mean))
    within_error(prediction.noise_variance, scale**2 * variance)
    centre = (prediction.mean - to_data(name, 0.0)) / scale
    # Accuracy of the softmax of Normal logits: 2e-4.
    slack = 1e-3 if name == "categorical" and inference == "moments" else 0.0
    spread = np.square(mean - centre)
    error = spread.std(axis=0) / np.sqrt(len(spread))
    difference = np.abs(prediction.weight_variance / scale**2 - spread.mean(axis=0))
    assert np.all(difference <= 4.5 * error + slack)
    np.testing.assert_allclose(
        prediction.variance, prediction.weight_variance + prediction.noise_variance
    )
    np.testing.assert_allclose(prediction.standard_deviation**2, prediction.variance)
    if inference == "moments":
        exact_mean, exact_variance = exact_outputs(name)
        np.testing.assert_allclose(prediction.outputs.mean, to_data(name, exact_mean), rtol=1e-12)
        np.testing.assert_allclose(
            prediction.outputs.variance, scale**2 * exact_variance, rtol=1e-12
        )
    else:
        within_error(prediction.outputs.mean, to_data(name, f))


def log_likelihood(name, f, y):
    """ln p(y | f) with γ integrated out, summed over the outputs, by SciPy."""
    if name == "gaussian":
        shape, rate = np.asarray(NOISE.shape), np.asarray(NOISE.rate)
        return stats.t.logpdf(y, 2 * shape, f, np.sqrt(rate / shape)).sum(-1)
    if name == "known":
        return stats.norm.logpdf(y, f, [2.5**-0.5, 0.5]).sum(-1)
    if name == "bernoulli":
        return stats.bernoulli.logpmf(y, special.expit(f)).sum(-1)
    if name == "poisson":
        return stats.poisson.logpmf(y, np.exp(f)).sum(-1)
    labels = np.broadcast_to(y, f.shape[:-1])[..., None]
    return np.take_along_axis(special.log_softmax(f, -1), labels, -1)[..., 0]


def draw_targets(name):
    rng = np.random.default_rng(4)
    mean, _ = exact_outputs(name)
    if name in ("gaussian", "known"):
        return mean + rng.normal(size=mean.shape)
    if name == "categorical":
        return rng.integers(0, 3, len(X))
    return rng.integers(0, 2, mean.shape)


@every_likelihood
def test_log_density_of_networks(name):
    """Oracle: SciPy's densities (a Student t for a learnt precision), over all networks."""
    y = draw_targets(name)
    weights = [
        np.asarray(sample_weights(key, beliefs(LIKELIHOODS[name][1])))
        for key in jax.random.split(jax.random.key(0), 100)
    ]
    densities = [log_likelihood(name, STANDARD_X @ w, y) for w in weights]
    expected = special.logsumexp(densities, axis=0) - np.log(100)
    if name == "gaussian":
        expected -= np.log(TARGETS.scale).sum()
    for inference in ("local", "global"):
        prediction = make_model(name, inference).predict(X)
        np.testing.assert_allclose(
            prediction.log_density(to_data(name, y)), expected, rtol=1e-9, atol=1e-9
        )


@with_values
@pytest.mark.parametrize("inference", ["moments", "global"])
def test_cdf(name, inference):
    """Oracle: the share of 200 000 targets, drawn by NumPy, that are at most each value."""
    rng = np.random.default_rng(2)
    f = draw_functions(name, inference, 200_000, rng)
    mean, variance = conditional_moments(name, f, rng)
    if name in ("gaussian", "known"):
        targets = mean + np.sqrt(variance) * rng.normal(size=f.shape)
    elif name == "poisson":
        targets = rng.poisson(mean)
    else:
        targets = (rng.uniform(size=f.shape) < mean).astype(int)
    prediction = make_model(name, inference).predict(X)
    for value in (-1.0, 0.0, 0.5, 2.0):
        found = prediction.cdf(to_data(name, np.full(mean.shape[1:], value)))
        deviation = np.sqrt(found * (1 - found) / len(targets))
        share = np.mean(targets <= value, axis=0)
        assert np.all(np.abs(found - share) <= 4.5 * deviation + 5 / len(targets))
    draws = prediction.sample(KEY, 2000)
    assert draws.shape == (2000, *mean.shape[1:])
    within_error(prediction.mean, draws)


@pytest.mark.parametrize("name", ["gaussian", "known"])
@pytest.mark.parametrize("inference", ["moments", "global"])
def test_quantiles_are_the_inverse_of_the_cdf(name, inference):
    prediction = make_model(name, inference).predict(X)
    levels = np.array([0.001, 0.025, 0.2, 0.5, 0.9, 0.999])
    quantiles = prediction.quantiles(levels)
    assert quantiles.shape == (6, *prediction.mean.shape)
    for level, values in zip(levels, quantiles, strict=True):
        np.testing.assert_allclose(prediction.cdf(values), level, atol=1e-9)
    np.testing.assert_array_equal(prediction.quantiles(0.2), quantiles[2])
    low, high = prediction.interval(0.95)
    np.testing.assert_allclose(low, quantiles[1])
    np.testing.assert_allclose(prediction.cdf(high) - prediction.cdf(low), 0.95, atol=1e-9)


@pytest.mark.parametrize("name", ["bernoulli", "poisson"])
@pytest.mark.parametrize("inference", ["moments", "global"])
def test_quantiles_of_counts_are_the_least_that_reach_the_level(name, inference):
    prediction = make_model(name, inference).predict(X)
    for level in (0.01, 0.3, 0.5, 0.95):
        counts = prediction.quantiles(level)
        assert np.all(prediction.cdf(counts) >= level)
        assert np.all(prediction.cdf(counts - 1) < level)


@pytest.mark.parametrize("shape", [1.5, 3.0, 40.0, 1e4])
def test_intervals_between_a_normal_and_a_student_t(shape):
    """Oracle: SciPy's quantiles without variance; its adaptive quadrature over γ with one."""
    likelihood = sc.GaussianLikelihood()
    noise = sc.Gamma(jnp.array([shape]), jnp.array([0.5 * shape]))
    variance = np.array([0.0, 1e-3, 0.3, 4.0, 1e5])
    f = sc.Normal(np.zeros((1, 5, 1)), variance[None, :, None])
    low, high = likelihood.predictive_interval(noise, f, 0.9)
    np.testing.assert_allclose(low, -high)
    exact = stats.t.ppf(0.95, 2 * shape) * np.sqrt(0.5)
    np.testing.assert_allclose(high[0, 0, 0], exact, rtol=1e-7)
    gamma = stats.gamma(shape, scale=1 / (0.5 * shape))
    for v, end in zip(variance[1:], high[0, 1:, 0], strict=True):
        level, _ = integrate.quad(
            lambda p, v=v, end=end: stats.norm.cdf(end, 0, np.sqrt(v + 1 / gamma.ppf(p))),
            0,
            1,
            limit=200,
        )
        np.testing.assert_allclose(level, 0.95, atol=2e-6)


def test_a_certain_network_has_the_student_t_of_its_noise():
    """Oracle: SciPy's Student t, in the units of the data."""
    model = make_model("gaussian")
    model = replace(model, beliefs=sc.Normal(model.beliefs.mean, jnp.zeros((3, 2))))
    prediction = model.predict(X)
    shape, rate = np.asarray(NOISE.shape), np.asarray(NOISE.rate)
    exact = stats.t(2 * shape, prediction.outputs.mean, TARGETS.scale * np.sqrt(rate / shape))
    y = prediction.mean + TARGETS.scale * np.array([0.7, -0.2])
    np.testing.assert_allclose(prediction.mean, exact.mean())
    np.testing.assert_allclose(prediction.variance, exact.var())
    np.testing.assert_allclose(prediction.cdf(y), exact.cdf(y), rtol=1e-9)
    np.testing.assert_allclose(prediction.log_density(y), exact.logpdf(y).sum(-1), rtol=1e-9)
    np.testing.assert_allclose(prediction.interval(0.8), exact.interval(0.8), rtol=1e-9)
    np.testing.assert_array_equal(prediction.weight_variance, 0)


def test_log_density_is_the_derivative_of_the_cdf():
    """Oracle: central differences, which also know the units of the data."""
    model = make_model("gaussian")
    first = sc.Gamma(NOISE.shape[:1], NOISE.rate[:1])
    one = trained(
        lambda w, x: linear(w, x)[:, :1],
        model.beliefs,
        inference="moments",
        noise=first,
        inputs=INPUTS,
        targets=Affine(TARGETS.shift[:1], TARGETS.scale[:1]),
    )
    prediction = one.predict(X)
    y, step = prediction.mean + 30.0, 0.01
    slope = (prediction.cdf(y + step) - prediction.cdf(y - step)) / (2 * step)
    np.testing.assert_allclose(prediction.log_density(y), np.log(slope[:, 0]), atol=1e-6)


# --- one answer -----------------------------------------------------------------------------------


def answers(prediction, name):
    """Everything that a prediction says."""
    y = to_data(name, draw_targets(name))
    parts = [prediction.mean, prediction.variance, prediction.weight_variance]
    parts += [prediction.outputs.mean, prediction.outputs.variance, prediction.log_density(y)]
    parts += [prediction.sample(KEY, 3)]
    if name == "categorical":
        return [*parts, prediction.probabilities]
    return [*parts, prediction.quantiles([0.1, 0.7]), prediction.cdf(to_data(name, 0.4))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "inference"),
    [
        *((name, inference) for name in LIKELIHOODS for inference in ("moments", "local")),
        *(("gaussian", inference) for inference in ("independent", "global")),
    ],
)
def test_blocks_and_repetition_change_nothing(name, inference, monkeypatch):
    model = make_model(name, inference)
    whole = answers(model.predict(X), name)
    again = answers(model.predict(X), name)
    monkeypatch.setattr("secateur.predictive._MIN_ROWS", 2)
    monkeypatch.setattr("secateur.predictive._MAX_ROWS", 4)
    prediction = model.predict(X)
    in_blocks = answers(prediction, name)
    assert len(prediction._kept) == 2
    monkeypatch.setattr("secateur.predictive._MAX_KEPT", 0)
    prediction = model.predict(X)
    not_kept = answers(prediction, name)
    assert prediction._kept is None
    for one, two, three, four in zip(whole, again, in_blocks, not_kept, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(three, one, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(four, three)


def test_a_key_chooses_the_networks_whatever_the_rows():
    model = make_model("gaussian", "global")
    whole, own = model.predict(X), model.predict(X, key=model.key)
    np.testing.assert_array_equal(whole.mean, own.mean)
    np.testing.assert_allclose(model.predict(X[2:4]).mean, whole.mean[2:4], rtol=1e-12)
    assert not np.array_equal(model.predict(X, key=KEY).mean, whole.mean)
    assert not np.array_equal(replace(model, key=KEY).predict(X).mean, whole.mean)
    few = model.predict(X, samples=7)
    assert repr(few) == "<Predictive: 6 rows, from 7 networks>"
    assert repr(make_model("gaussian").predict(X)) == "<Predictive: 6 rows, by moments>"


def test_rows_of_one_draw_share_the_noise_and_the_network():
    """Oracle: rows that are all alike, and noise that is nearly none, differ by nothing."""
    noise = sc.Gamma(jnp.full(2, 1e12), jnp.ones(2))
    model = replace(make_model("gaussian", "global"), noise=noise)
    draws = model.predict(np.repeat(X[:1], 5, axis=0)).sample(KEY, 10)
    np.testing.assert_allclose(draws, draws[:, :1].repeat(5, axis=1), rtol=1e-4)
    assert draws[:, 0].std(axis=0).min() > 1e-3


def test_no_rows_and_tables():
    import pandas

    model = make_model("gaussian")
    nothing = model.predict(X[:0])
    assert nothing.mean.shape == nothing.interval()[0].shape == (0, 2)
    frame = pandas.DataFrame(X, columns=list("abc"))
    np.testing.assert_array_equal(model.predict(frame).mean, model.predict(X).mean)


# --- what cannot be answered ----------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True, eq=False)
class Own(WithoutNoise):
    """A likelihood of the user's own, with no more than training needs."""

    def expected_log_likelihood(self, noise, prediction, targets):
        return self.predictive_log_density(noise, prediction, targets)

    def predictive_log_density(self, noise, prediction, targets):
        mean = prediction.mean if isinstance(prediction, sc.Normal) else prediction
        return -jnp.sum(jnp.abs(targets - mean), axis=-1)


def test_a_likelihood_without_predictive_methods_has_log_densities():
    model = trained(linear, beliefs(2), inference="moments", likelihood=Own(), inputs=INPUTS)
    prediction = model.predict(X)
    mean, _ = exact_outputs("known")
    np.testing.assert_allclose(prediction.outputs.mean, mean)
    np.testing.assert_allclose(prediction.log_density(mean + 1), -2.0)
    for ask in (
        lambda: prediction.mean,
        lambda: prediction.interval(),
        lambda: prediction.cdf(0.0),
        lambda: prediction.sample(KEY),
    ):
        with pytest.raises(TypeError, match="Own has no method"):
            ask()


def test_what_makes_no_sense_is_refused():
    model = make_model("gaussian")
    prediction = model.predict(X)
    with pytest.raises(TypeError, match="has no classes"):
        _ = prediction.probabilities
    with pytest.raises(TypeError, match="no method predictive_quantile"):
        make_model("categorical").predict(X).interval()
    with pytest.raises(ValueError, match="samples=0"):
        model.predict(X, samples=0)
    for level in (0.0, 1.0, 95):
        with pytest.raises(ValueError, match="between 0 and 1"):
            prediction.interval(level)
    with pytest.raises(ValueError, match="between 0 and 1"):
        prediction.quantiles([0.5, 1.0])
    with pytest.raises(ValueError, match="6 rows of inputs and 3 targets"):
        prediction.log_density(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="rows first"):
        model.predict(3.0)
