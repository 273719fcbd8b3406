"""Likelihoods against Monte Carlo, quadrature with SciPy's densities, and closed forms."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import oracles
from secateur.distributions import Gamma, Normal
from secateur.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
    sampled_predictive_log_density,
)
from secateur.likelihoods.gumbel import expected_logsumexp, log_expected_softmax
from secateur.likelihoods.integrals import log_expectation_exp

RNG = np.random.default_rng(20240517)
MEANS = np.array([-10.0, -3.0, -0.5, 0.0, 1.0, 4.0, 10.0])
VARIANCES = np.array([0.0, 1e-8, 0.01, 1.0, 5.0, 25.0])
GRID = tuple(a.ravel() for a in np.meshgrid(MEANS, VARIANCES))


def gaussian_case(rows=5, outputs=2):
    prediction = Normal(
        jnp.asarray(RNG.normal(size=(rows, outputs))),
        jnp.asarray(RNG.uniform(0, 2, size=(rows, outputs))),
    )
    noise = Gamma(jnp.asarray([3.0, 40.0][:outputs]), jnp.asarray([2.0, 9.0][:outputs]))
    return noise, prediction, jnp.asarray(RNG.normal(size=(rows, outputs)))


def cases():
    """Each likelihood with a q(γ), a Normal prediction and targets; all share one set of tests."""
    logits = Normal(
        jnp.asarray(RNG.normal(size=(4, 3)) * 2), jnp.asarray(RNG.uniform(0, 3, size=(4, 3)))
    )
    noise, prediction, targets = gaussian_case()
    return {
        "gaussian": (GaussianLikelihood(), noise, prediction, targets),
        "known": (GaussianLikelihood(precision=2.5), None, prediction, targets),
        "bernoulli": (BernoulliLikelihood(), None, logits, jnp.asarray(RNG.integers(0, 2, (4, 3)))),
        "poisson": (
            PoissonLikelihood(),
            None,
            Normal(logits.mean / 2, logits.variance / 2),
            jnp.asarray(RNG.poisson(2.0, (4, 3))),
        ),
        "categorical": (CategoricalLikelihood(), None, logits, jnp.asarray([0, 2, 1, 1])),
    }


CASES = cases()
every_likelihood = pytest.mark.parametrize("name", CASES)


def log_likelihood(name, f, y, gamma):
    """ln p(y | f, γ) per row, by SciPy; f and γ may have leading axes."""
    if name in ("gaussian", "known"):
        return stats.norm.logpdf(y, f, 1 / np.sqrt(gamma)).sum(-1)
    if name == "bernoulli":
        return (y * special.log_expit(f) + (1 - y) * special.log_expit(-f)).sum(-1)
    if name == "poisson":
        return stats.poisson.logpmf(y, np.exp(f)).sum(-1)
    return np.take_along_axis(
        special.log_softmax(f, -1), np.broadcast_to(y, f.shape[:-1])[..., None], -1
    )[..., 0]


@jax.jit
def predict(likelihood, noise, prediction, targets):
    return likelihood.predictive_log_density(noise, prediction, targets)


@jax.jit
def expect(likelihood, noise, prediction, targets):
    return likelihood.expected_log_likelihood(noise, prediction, targets)


@functools.cache
def draws(name, count):
    """Log-likelihoods for draws of f and γ, shape (count, rows)."""
    _, noise, prediction, targets = CASES[name]
    rng = np.random.default_rng(1)
    mean, deviation = np.asarray(prediction.mean), np.sqrt(prediction.variance)
    f = mean + deviation * rng.normal(size=(count, *mean.shape))
    gamma = np.array(2.5)
    if noise is not None:
        gamma = rng.gamma(noise.shape, 1 / np.asarray(noise.rate), size=(count, 2))[:, None]
    return log_likelihood(name, f, np.asarray(targets), gamma)


@every_likelihood
def test_protocol(name):
    likelihood, noise, prediction, targets = CASES[name]
    assert isinstance(likelihood, Likelihood)
    start = likelihood.initial_noise(targets)
    updated = likelihood.update_noise(prediction, targets)
    assert jax.tree.structure(start) == jax.tree.structure(updated) == jax.tree.structure(noise)
    assert jnp.shape(likelihood.noise_complexity(start)) == ()
    assert float(likelihood.noise_complexity(start)) == 0.0
    leaves, treedef = jax.tree.flatten(likelihood)  # may be an argument of a jitted function
    assert type(treedef.unflatten(leaves)) is type(likelihood)


# Eagerly as well for one of those that integrate, and for the one that does not.
with_jit = pytest.mark.parametrize(
    ("name", "jit"), [*((name, True) for name in CASES), ("known", False), ("bernoulli", False)]
)


@with_jit
def test_expected_log_likelihood_of_a_normal_prediction(name, jit):
    """Oracle: Monte Carlo over f and γ, within 4.5 standard errors, row by row."""
    likelihood, noise, prediction, targets = CASES[name]
    function = likelihood.expected_log_likelihood
    given = (
        expect(likelihood, noise, prediction, targets)
        if jit
        else function(noise, prediction, targets)
    )
    values = draws(name, 400_000)
    error = values.std(0) / math.sqrt(len(values))
    assert given.shape == (len(targets),)
    assert np.all(np.abs(given - values.mean(0)) < 4.5 * error)


@with_jit
def test_predictive_log_density_of_a_normal_prediction(name, jit):
    """Oracle: Monte Carlo over f and γ, within 4.5 standard errors of the density, row by row.

    Outputs of one row are independent under the prediction, and so are their γ.
    """
    likelihood, noise, prediction, targets = CASES[name]
    function = likelihood.predictive_log_density
    given = (
        predict(likelihood, noise, prediction, targets)
        if jit
        else function(noise, prediction, targets)
    )
    values = np.exp(draws(name, 400_000))
    error = values.std(0) / math.sqrt(len(values))
    assert given.shape == (len(targets),)
    assert np.all(np.abs(np.exp(given) - values.mean(0)) < 4.5 * error)


@every_likelihood
def test_a_sample_is_a_prediction_without_variance(name):
    """Oracle: SciPy's log-density; also of a Normal of variance 0, to its documented accuracy."""
    likelihood, noise, prediction, targets = CASES[name]
    sample = prediction.mean
    certain = Normal(sample, jnp.zeros_like(sample))
    gamma = np.array(2.5)
    if noise is None:
        expected = log_likelihood(name, np.asarray(sample), np.asarray(targets), gamma)
        predictive = expected
    else:
        square = np.square(np.asarray(targets) - np.asarray(sample))
        shape, rate = np.asarray(noise.shape), np.asarray(noise.rate)
        expected = -0.5 * (
            shape / rate * square + np.log(2 * np.pi) - special.digamma(shape) + np.log(rate)
        ).sum(-1)
        predictive = stats.t.logpdf(
            np.asarray(targets), 2 * shape, np.asarray(sample), np.sqrt(rate / shape)
        ).sum(-1)
    tolerance = {"rtol": 1e-9, "atol": 3e-4 if name == "categorical" else 1e-9}
    for given in (sample, certain):
        np.testing.assert_allclose(expect(likelihood, noise, given, targets), expected, **tolerance)
        np.testing.assert_allclose(
            predict(likelihood, noise, given, targets), predictive, **tolerance
        )


@every_likelihood
def test_gradients(name):
    """Oracle: central differences, for mean and variance of the prediction and for the noise."""
    likelihood, noise, prediction, targets = CASES[name]
    # Away from variance 0, where a two-sided difference would leave the domain.
    prediction = Normal(prediction.mean, prediction.variance + 0.1)
    weights = jnp.arange(1.0, len(targets) + 1)

    @jax.jit
    def total(noise, prediction):
        return weights @ likelihood.expected_log_likelihood(noise, prediction, targets)

    by_noise, by_prediction = jax.jit(jax.grad(total, argnums=(0, 1)))(noise, prediction)
    # The categorical's derivatives are quadratures of their own, as accurate as its values.
    tolerance = {"rtol": 1e-5, "atol": 2e-3 if name == "categorical" else 1e-6}
    differences = oracles.central_difference(
        lambda m: total(noise, Normal(m, prediction.variance)), prediction.mean
    )
    np.testing.assert_allclose(by_prediction.mean, differences, **tolerance)
    differences = oracles.central_difference(
        lambda v: total(noise, Normal(prediction.mean, v)), prediction.variance
    )
    np.testing.assert_allclose(by_prediction.variance, differences, **tolerance)
    if noise is not None:
        differences = oracles.central_difference(
            lambda a: total(Gamma(a, noise.rate), prediction), noise.shape
        )
        np.testing.assert_allclose(by_noise.shape, differences, **tolerance)
        differences = oracles.central_difference(
            lambda b: total(Gamma(noise.shape, b), prediction), noise.rate
        )
        np.testing.assert_allclose(by_noise.rate, differences, **tolerance)


@pytest.mark.parametrize("what", ["expected_log_likelihood", "predictive_log_density"])
@every_likelihood
def test_finite_in_float32(name, what):
    """Values and gradients, for variance exactly 0, tiny and huge and means 0 and large."""
    likelihood, noise, _, _ = CASES[name]
    mean, variance = jnp.meshgrid(
        jnp.array([-100.0, -1.0, 0.0, 1e-30, 30.0], jnp.float32),
        jnp.array([0.0, 1e-38, 1e-12, 1.0, 1e4, 1e12], jnp.float32),
    )
    columns = [mean.reshape(-1, 1), variance.reshape(-1, 1)]
    if name in ("gaussian", "categorical"):  # the second output is an ordinary one
        columns = [jnp.concatenate([c, jnp.ones_like(c)], 1) for c in columns]
    prediction = Normal(*columns)
    targets = jnp.ones(columns[0].shape, int)
    if name == "categorical":
        targets = jnp.arange(len(columns[0])) % 2
    noise = jax.tree.map(lambda x: x.astype(jnp.float32), noise)

    def total(noise, prediction):
        values = getattr(likelihood, what)(noise, prediction, targets)
        assert values.dtype == jnp.float32
        return values.sum(), values

    both = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    (_, values), gradient = both(noise, prediction)
    assert np.all(np.isfinite(values))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@every_likelihood
def test_sampled_predictive_is_the_mixture(name):
    """Oracle: the mean of the densities."""
    likelihood, noise, prediction, targets = CASES[name]
    samples = jnp.stack([prediction.mean, prediction.mean + 1, prediction.mean - 0.5])
    given = jax.jit(sampled_predictive_log_density)(likelihood, noise, samples, targets)
    each = np.stack([predict(likelihood, noise, f, targets) for f in samples])
    np.testing.assert_allclose(given, np.log(np.exp(each).mean(0)), rtol=1e-12)


# --- Gaussian ---------------------------------------------------------------------------------


def test_two_outputs_count_their_constants_once():
    """Oracle: each output alone, by SciPy; ln 2π and E[ln γ] appear once per output and row."""
    noise, prediction, targets = gaussian_case(rows=4)
    given = GaussianLikelihood().expected_log_likelihood(noise, prediction, targets)
    rows = np.zeros(4)
    for m in range(2):
        gamma = stats.gamma(float(noise.shape[m]), scale=1 / float(noise.rate[m]))
        for n in range(4):
            mean, variance = float(prediction.mean[n, m]), float(prediction.variance[n, m])
            # ∫ q(γ) {½ ln γ/2π − ½ γ E[(y − f)²]} dγ by SciPy's adaptive quadrature.
            square = (float(targets[n, m]) - mean) ** 2 + variance
            rows[n] += gamma.expect(lambda g, s=square: 0.5 * np.log(g / (2 * np.pi)) - 0.5 * g * s)
    np.testing.assert_allclose(given, rows, rtol=1e-7)


@pytest.mark.parametrize("shape", [0.5, 1.0, 5.0, 250.0, 1e5])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_student_t_plus_normal(shape, dtype):
    """Oracle: 400 000-node trapezoidal rule over ln γ with SciPy's densities.

    From no variance to a million times the noise's, and from no residual to a thousand deviations,
    where the integrand has two peaks.
    """
    residual, variance = (
        a.ravel() for a in np.meshgrid([0.0, 0.3, 3.0, 1000.0], [0.0, 1e-4, 1.0, 100.0, 1e6])
    )
    noise = Gamma(jnp.asarray([shape], dtype), jnp.asarray([0.5 * shape], dtype))
    prediction = Normal(jnp.zeros((len(residual), 1), dtype), jnp.asarray(variance[:, None], dtype))
    given = predict(GaussianLikelihood(), noise, prediction, residual[:, None])
    expected = [
        _student_t_plus_normal(r, v, shape, 0.5 * shape)
        for r, v in zip(residual, variance, strict=True)
    ]
    tolerance = 1e-8 if dtype == jnp.float64 else 2e-5
    np.testing.assert_allclose(given, expected, rtol=tolerance, atol=tolerance)


def _student_t_plus_normal(residual, variance, shape, rate):
    low = np.log(shape / (rate + residual**2 / 2)) - 60 / shape - 12 / np.sqrt(shape)
    high = np.log(shape / rate) + np.log1p(60 / shape + 14 / np.sqrt(shape))
    s = np.linspace(low, high, 400_001)
    values = stats.gamma.logpdf(np.exp(s), shape, scale=1 / rate) + s
    values += stats.norm.logpdf(residual, 0, np.sqrt(variance + np.exp(-s)))
    return special.logsumexp(values) + np.log(s[1] - s[0])


def test_conjugate_update_is_the_formula():
    """Oracle: α̂ = α + N/2, β̂ = β + ½ Σ E[(y − f)²], in NumPy."""
    _, prediction, targets = gaussian_case(rows=7)
    likelihood = GaussianLikelihood(Gamma(2.0, jnp.array([0.5, 3.0])))
    square = np.square(np.asarray(targets - prediction.mean)) + np.asarray(prediction.variance)
    q = likelihood.update_noise(prediction, targets)
    np.testing.assert_allclose(q.shape, [5.5, 5.5])
    np.testing.assert_allclose(q.rate, np.array([0.5, 3.0]) + 0.5 * square.sum(0))
    # A mini-batch stands for N = 700 rows; a padded row, even of nan, counts for nothing.
    q = likelihood.update_noise(prediction, targets, size=700)
    np.testing.assert_allclose(q.shape, [352, 352])
    np.testing.assert_allclose(q.rate, np.array([0.5, 3.0]) + 50 * square.sum(0))
    padded = targets.at[-1].set(jnp.nan)
    weights = jnp.ones(7).at[-1].set(0.0)
    q = likelihood.update_noise(prediction, padded, weights=weights)
    np.testing.assert_allclose(q.shape, [5.0, 5.0])
    np.testing.assert_allclose(q.rate, np.array([0.5, 3.0]) + 0.5 * square[:-1].sum(0))


def test_shapes_of_rows_time_and_outputs():
    """Oracle: the same numbers laid out as (rows · time, outputs)."""
    likelihood = GaussianLikelihood()
    f, y = jnp.asarray(RNG.normal(size=(2, 3, 4, 2)))
    noise = likelihood.update_noise(f, y)
    flat = likelihood.update_noise(f.reshape(-1, 2), y.reshape(-1, 2))
    np.testing.assert_allclose(noise.rate, flat.rate)
    np.testing.assert_allclose(noise.shape, flat.shape)
    rows = likelihood.expected_log_likelihood(noise, f, y)
    assert rows.shape == (3,)
    flat_rows = likelihood.expected_log_likelihood(flat, f.reshape(-1, 2), y.reshape(-1, 2))
    np.testing.assert_allclose(rows.sum(), flat_rows.sum())
    single = likelihood.update_noise(f[:, 0, 0], y[:, 0, 0])  # one output, no axis for it
    assert jnp.shape(single.rate) == ()
    assert likelihood.expected_log_likelihood(single, f[:, 0, 0], y[:, 0, 0]).shape == (3,)


# --- Bernoulli, Poisson -----------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float64, 1e-9), (jnp.float32, 2e-6)])
def test_bernoulli_over_the_grid(dtype, tolerance):
    """Oracle: composite Gauss–Legendre with SciPy; also for answers of probability e^-30."""
    mean, variance = (
        np.append(a, b) for a, b in zip(GRID, ([-30.0, -30.0], [0.3, 60.0]), strict=True)
    )
    prediction = Normal(jnp.asarray(mean, dtype), jnp.asarray(variance, dtype))
    ones = jnp.ones(len(mean))
    likelihood = BernoulliLikelihood()
    expected, predictive = [], []
    for m, v in zip(mean, variance, strict=True):
        if v == 0:
            expected.append(special.log_expit(m))
            predictive.append(special.log_expit(m))
            continue
        log_normal = oracles.normal(m, v)
        x, weights = oracles.grid_1d(log_normal, m)
        expected.append(np.sum(weights * np.exp(log_normal(x)) * special.log_expit(x)))
        predictive.append(
            oracles.log_integral(lambda x, p=log_normal: p(x) + special.log_expit(x), m)
        )
    given = expect(likelihood, None, prediction, ones)
    np.testing.assert_allclose(given, expected, rtol=tolerance, atol=tolerance)
    given = predict(likelihood, None, prediction, ones)
    np.testing.assert_allclose(given, predictive, rtol=tolerance, atol=tolerance)


def _bernoulli_total(f):
    rows = BernoulliLikelihood().expected_log_likelihood(None, f, jnp.array([0, 1]))
    return rows @ jnp.array([1.0, 2.0])


def test_bernoulli_has_its_derivative_at_a_logit_of_zero():
    """Oracle: y − σ(0). A network starts there, and abs or max would lose it."""
    for prediction in (jnp.zeros(2), Normal(jnp.zeros(2), jnp.zeros(2))):
        slope = jax.jit(jax.grad(_bernoulli_total))(prediction)
        np.testing.assert_allclose(jax.tree.leaves(slope)[0], [-0.5, 1.0], atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float64, 1e-6), (jnp.float32, 1e-5)])
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_poisson_over_the_grid(count, dtype, tolerance):
    """Oracle: the closed form, and composite Gauss–Legendre for the Poisson–lognormal mass."""
    mean, variance = (np.append(a, b) for a, b in zip(GRID, ([0.0], [100.0]), strict=True))
    mean = mean / 2
    prediction = Normal(jnp.asarray(mean, dtype), jnp.asarray(variance, dtype))
    counts = jnp.full(len(mean), count)
    likelihood = PoissonLikelihood()
    expected = count * mean - np.exp(mean + variance / 2) - special.gammaln(count + 1)
    given = expect(likelihood, None, prediction, counts)
    below = mean + variance / 2 < 44  # where float32 saturates, as documented
    np.testing.assert_allclose(given[below], expected[below], rtol=tolerance, atol=tolerance)
    predictive = [_poisson_lognormal(count, m, v) for m, v in zip(mean, variance, strict=True)]
    given = predict(likelihood, None, prediction, counts)
    np.testing.assert_allclose(given, predictive, rtol=tolerance, atol=tolerance)


def _poisson_lognormal(count, mean, variance):
    if variance == 0:
        return stats.poisson.logpmf(count, np.exp(mean))
    log_normal, constant = oracles.normal(mean, variance), special.gammaln(count + 1)
    return oracles.log_integral(
        lambda x: log_normal(x) + count * x - np.exp(np.minimum(x, 300)) - constant, mean
    )


def test_poisson_saturates_with_a_slope_that_leads_back():
    f = Normal(jnp.array([200.0], jnp.float32), jnp.array([1e6], jnp.float32))
    value, slope = jax.jit(
        jax.value_and_grad(
            lambda f: PoissonLikelihood().expected_log_likelihood(None, f, jnp.array([3]))[0]
        )
    )(f)
    assert np.isfinite(value)
    assert value < -1e18
    assert slope.mean < 0
    assert slope.variance < 0


def test_log_expectation_exp_at_extreme_scales():
    """Oracle: the Gaussian integral of exp(a x), exactly a m + a² v/2."""
    mean = jnp.array([0.0, -300.0, 5.0])
    variance = jnp.array([1e4, 1e-12, 1.0])
    given = jax.jit(lambda m, v: log_expectation_exp(lambda x: 3.0 * x, m, v))(mean, variance)
    np.testing.assert_allclose(given, 3 * mean + 4.5 * variance, rtol=1e-9)


# --- Categorical ------------------------------------------------------------------------------


def dense_softmax(mean, variance):
    """E[logsumexp] and ln E[softmax_j] by a dense double trapezoidal rule, in NumPy.

    The Gumbel-max identity itself is checked by Monte Carlo above; this checks its quadrature.
    """
    deviation = np.sqrt(variance)
    widest = deviation.max()
    z = np.arange(-9, 9, min(0.05, 0.25 / max(widest, 1e-9)))
    weights = np.exp(-z * z / 2) / np.exp(-z * z / 2).sum()
    step = max(0.1, widest / 30)
    u = np.arange((mean - 9 * deviation).max() - 5, (mean + 9 * deviation).max() + 40, step)
    below, density = np.empty((2, len(mean), len(u)))
    for j, (m, s) in enumerate(zip(mean, deviation, strict=True)):
        for k, edge in enumerate(u):
            x = np.exp(np.minimum(m + s * z - edge, 6))
            below[j, k] = weights @ np.exp(-x)
            density[j, k] = weights @ (x * np.exp(-x))
    value = u[-1] + step / 2 - step * below.prod(0).sum() - np.euler_gamma
    with np.errstate(divide="ignore"):
        others = np.log(below).sum(0) - np.log(below)
        terms = np.where(np.isfinite(others), np.log(density) + others, -np.inf)
    return value, special.logsumexp(terms, axis=1) + np.log(step)


def softmax_case(classes, scale, variance, *, certain):
    rng = np.random.default_rng([classes, int(100 * variance)])
    mean = rng.uniform(-scale, scale, classes)
    variances = variance * rng.uniform(0, 1, classes)
    variances[:certain] = 0.0
    return mean, variances


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_softmax_of_normal_logits(classes, dtype):
    """Oracle: dense double quadrature; logits in [−10, 10], every class, unlikely ones too."""
    value, log_probability = dense_softmax_table(classes)
    mean, variance = (jnp.asarray(part, dtype) for part in softmax_table(classes))
    given, gradient = jax.jit(jax.value_and_grad(_sum_with_rows, has_aux=True))(mean, variance)
    np.testing.assert_allclose(given[1], value, atol=2e-4)
    np.testing.assert_allclose(gradient, np.exp(log_probability), atol=2e-4)
    rows = (jnp.repeat(part, classes, axis=0) for part in (mean, variance))
    labels = jnp.tile(jnp.arange(classes), len(mean))
    given = jax.jit(log_expected_softmax)(*rows, labels)
    np.testing.assert_allclose(given.reshape(-1, classes), log_probability, atol=2e-4)


def _sum_with_rows(mean, variance):
    rows = expected_logsumexp(mean, variance)
    return rows.sum(), rows


def softmax_table(classes):
    variances = (0.01, 1.0, 5.0, 25.0)
    rows = [softmax_case(classes, 10.0, v, certain=classes // 4) for v in variances]
    return np.swapaxes(rows, 0, 1)


@functools.cache
def dense_softmax_table(classes):
    rows = [dense_softmax(m, v) for m, v in zip(*softmax_table(classes), strict=True)]
    return np.array([value for value, _ in rows]), np.stack([p for _, p in rows])


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "variance"), [(2, 1e4), (10, 400.0), (100, 1.0), (100, 25.0)])
@pytest.mark.parametrize("certain", [0, 1])
def test_softmax_of_many_or_very_uncertain_logits(classes, variance, certain):
    """Oracle: dense double quadrature; the error is counted in deviations of the logits."""
    mean, variances = softmax_case(classes, 1.0, variance, certain=certain)
    value, _ = dense_softmax(mean, variances)
    error = abs(float(jax.jit(expected_logsumexp)(mean, variances)) - value)
    assert error < 3e-3 * max(1.0, math.sqrt(variance))


def test_softmax_derivatives_at_variance_zero():
    """Oracle: ∂/∂mean = p, ∂/∂variance = ½ p (1 − p) with p = softmax(mean)."""
    mean = jnp.array([[0.3, -1.0, 2.0], [0.0, 0.0, 0.0]])
    by_mean, by_variance = jax.jit(jax.grad(lambda m, v: expected_logsumexp(m, v).sum(), (0, 1)))(
        mean, jnp.zeros_like(mean)
    )
    p = special.softmax(np.asarray(mean), -1)
    np.testing.assert_allclose(by_mean, p, atol=5e-4)
    np.testing.assert_allclose(by_variance, 0.5 * p * (1 - p), atol=2e-3)
    np.testing.assert_allclose(by_mean.sum(-1), 1.0, rtol=1e-12)


def test_softmax_is_right_for_any_offset_and_any_unlikely_label():
    """Oracle: log-softmax, to which a variance of 0 must lead, even hundreds of nats down."""
    mean = jnp.array([[0.0, 500.0, 480.0], [1e6, 1e6 + 1, 1e6]])
    given = jax.jit(log_expected_softmax)(mean, jnp.zeros_like(mean), jnp.array([0, 1]))
    expected = special.log_softmax(np.asarray(mean), -1)[[0, 1], [0, 1]]
    np.testing.assert_allclose(given, expected, atol=2e-4)
    given = jax.jit(expected_logsumexp)(mean, jnp.zeros_like(mean))
    np.testing.assert_allclose(given, special.logsumexp(mean, -1), atol=2e-4)


# --- Errors -----------------------------------------------------------------------------------

REGRESSION = [GaussianLikelihood(precision=1.0), BernoulliLikelihood(), PoissonLikelihood()]


@pytest.mark.parametrize("method", ["expected_log_likelihood", "predictive_log_density"])
@pytest.mark.parametrize("likelihood", REGRESSION, ids=lambda x: type(x).__name__)
def test_rows_never_broadcast_against_rows(likelihood, method):
    function = getattr(likelihood, method)
    with pytest.raises(ValueError, match=r"shape \(5, 1\).*shape \(5,\).*targets\[:, None\]"):
        function(None, jnp.zeros((5, 1)), jnp.zeros(5))
    with pytest.raises(ValueError, match=r"targets\[:, 0\]"):
        function(None, Normal(jnp.zeros(5), jnp.ones(5)), jnp.zeros((5, 1)))
    with pytest.raises(ValueError, match="rows first"):
        function(None, jnp.zeros((5, 2)), jnp.zeros((4, 2)))
    with pytest.raises(ValueError, match="scalar"):
        function(None, jnp.zeros(()), jnp.zeros(()))
    with pytest.raises(TypeError, match="int64"):
        function(None, jnp.zeros(5, int), jnp.zeros(5))


def test_gaussian_errors():
    likelihood = GaussianLikelihood()
    with pytest.raises(ValueError, match="noise is None"):
        likelihood.expected_log_likelihood(None, jnp.zeros((5, 2)), jnp.zeros((5, 2)))
    with pytest.raises(ValueError, match="one entry per output"):
        likelihood.expected_log_likelihood(
            Gamma(jnp.ones(3), jnp.ones(3)), jnp.zeros((5, 2)), jnp.zeros((5, 2))
        )
    with pytest.raises(ValueError, match=r"weights has shape \(4,\) and the data have 5 rows"):
        likelihood.update_noise(jnp.zeros((5, 2)), jnp.zeros((5, 2)), weights=jnp.ones(4))


@pytest.mark.parametrize(
    ("logits", "targets", "error", "message"),
    [
        ((5, 3), jnp.zeros(5), TypeError, "integer"),
        ((5, 3), jnp.zeros(5, bool), TypeError, "integer"),
        ((5, 3), jnp.zeros((5, 1), int), ValueError, r"need shape \(5,\)"),
        ((5, 3), jnp.zeros((5, 3), int), ValueError, r"need shape \(5,\)"),
        ((5, 1), jnp.zeros(5, int), ValueError, "BernoulliLikelihood"),
        ((5,), jnp.zeros(5, int), ValueError, "at least 2 classes"),
        ((5, 3), jnp.full(5, 3), ValueError, "labels range from 3 to 3"),
        ((5, 3), jnp.full(5, -1), ValueError, "labels range from -1 to -1"),
    ],
)
def test_categorical_errors(logits, targets, error, message):
    with pytest.raises(error, match=message):
        CategoricalLikelihood().expected_log_likelihood(None, jnp.zeros(logits), targets)


@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.parametrize("method", ["expected_log_likelihood", "predictive_log_density"])
def test_a_wrong_label_is_not_hidden_by_jit(method, label):
    function = jax.jit(getattr(CategoricalLikelihood(), method))
    logits = Normal(jnp.zeros((2, 3)), jnp.ones((2, 3)))
    for prediction in (logits, logits.mean):
        values = function(None, prediction, jnp.array([label, 0]))
        assert np.isnan(values).tolist() == [True, False]
