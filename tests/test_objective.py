"""The free energy against exact evidences, and what a mini-batch may not change."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import oracles
from secateur.beliefs import believe, priors, sample_weights
from secateur.distributions import Gamma, Laplace, Normal
from secateur.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    PoissonLikelihood,
)
from secateur.training.objective import FreeEnergy, accuracy, free_energy

PRECISION, PRIOR_VARIANCE = 4.0, 1.7


def linear_moments(key, q, x):
    """The moments of x @ w for independent weights, exactly."""
    return Normal(x @ q.mean, jnp.square(x) @ q.variance)


def linear_sample(key, q, x):
    return x @ sample_weights(key, q)


def orthogonal_problem(rows=12, inputs=3, outputs=1):
    """A design with orthogonal columns, for which the exact posterior factorises over weights."""
    rng = np.random.default_rng(3)
    basis, _ = np.linalg.qr(rng.normal(size=(rows, inputs)))
    x = basis * np.array([1.0, 3.0, 0.5])[:inputs]
    y = x @ rng.normal(size=(inputs, outputs)) + 0.5 * rng.normal(size=(rows, outputs))
    return x, y


def exact_posterior(x, y, precision):
    """Conjugate posterior of the weights, in NumPy."""
    lam = 1 / PRIOR_VARIANCE + precision * np.square(x).sum(0)
    mean = precision * (x.T @ y) / lam[:, None]
    return Normal(jnp.asarray(mean), jnp.asarray(np.broadcast_to(1 / lam[:, None], mean.shape)))


def log_evidence(x, y, precision):
    """ln p(Y) of a linear model with known noise precision: a joint Normal over the rows."""
    covariance = np.eye(len(x)) / precision + PRIOR_VARIANCE * x @ x.T
    return sum(
        stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(column) for column in y.T
    )


def f_of(q, x, y, likelihood, noise=None, **options):
    prior = priors(q, Normal(0.0, PRIOR_VARIANCE))
    options = {"key": None} | options
    return free_energy(linear_moments, q, prior, likelihood, noise, (x, y), **options)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_free_energy_at_the_exact_posterior_is_the_evidence(outputs, jit):
    """Oracle: −ln p(Y) as a joint Normal density by SciPy; the gradient vanishes there."""
    x, y = orthogonal_problem(outputs=outputs)
    q = exact_posterior(x, y, PRECISION)
    likelihood = GaussianLikelihood(precision=PRECISION)

    def total(q):
        return f_of(q, jnp.asarray(x), jnp.asarray(y), likelihood).total

    given = (jax.jit(total) if jit else total)(q)
    np.testing.assert_allclose(given, -log_evidence(x, y, PRECISION), rtol=1e-10, atol=1e-8)
    gradient = jax.jit(jax.grad(total))(q)
    np.testing.assert_allclose(gradient.mean, np.zeros_like(q.mean), atol=1e-9)
    np.testing.assert_allclose(gradient.variance, np.zeros_like(q.mean), atol=1e-9)
    # Anywhere else it is larger, by exactly KL[q ‖ posterior].
    other = Normal(q.mean + 0.1, 2 * q.variance)
    np.testing.assert_allclose(total(other) - given, other.kl(q).sum(), rtol=1e-8)


@pytest.mark.slow
def test_with_unknown_precision_it_is_a_bound():
    """Oracle: ln p(Y) = ln ∫ p(γ) p(Y | γ) dγ by one-dimensional quadrature.

    Coordinate descent on q(θ) and q(γ) must end above it, not far above, and rise from there.
    """
    x, y = orthogonal_problem()
    likelihood = GaussianLikelihood()
    noise = likelihood.initial_noise(y)
    values = []
    for _ in range(50):
        q = exact_posterior(x, y, float(noise.mean[0]))
        noise = likelihood.update_noise(linear_moments(None, q, jnp.asarray(x)), jnp.asarray(y))
        values.append(float(f_of(q, x, y, likelihood, noise).total))
    exact = _log_evidence_over_precision(x, y)
    assert np.all(np.diff(values) < 1e-9)
    assert values[-1] > -exact
    assert values[-1] < -exact + 1.0


def _log_evidence_over_precision(x, y):
    log_prior = oracles.gamma(1.0, 1.0)
    u = np.linspace(-12, 8, 4001)
    values = [log_prior(t) + log_evidence(x, y, np.exp(t)) for t in u]
    return special.logsumexp(values) + np.log(u[1] - u[0])


@pytest.mark.parametrize("weighted", [False, True], ids=["all", "batch"])
def test_the_conjugate_noise_is_stationary(weighted):
    """Oracle: autodiff. The gradient of F in (α̂, β̂) is 0 at the update and F rises around it."""
    x, y = map(jnp.asarray, orthogonal_problem(outputs=2))
    q = believe(jnp.ones((3, 2)), variance=0.3)
    likelihood = GaussianLikelihood(Gamma(1.5, 0.7))
    options = {"weights": jnp.arange(12.0) % 4, "size": 500} if weighted else {}
    best = likelihood.update_noise(linear_moments(None, q, x), y, **options)

    def total(noise):
        return f_of(q, x, y, likelihood, noise, **options).total

    value, gradient = jax.jit(jax.value_and_grad(total))(best)
    scale = float(value)
    total = jax.jit(total)
    np.testing.assert_allclose(gradient.shape * best.shape / scale, [0, 0], atol=1e-10)
    np.testing.assert_allclose(gradient.rate * best.rate / scale, [0, 0], atol=1e-10)
    for a, b in itertools.product([0.8, 1.2], [0.8, 1.2]):
        assert total(Gamma(a * best.shape, b * best.rate)) > total(best)


def test_parts_are_what_they_are_called():
    """Oracle: each part on its own, by quadrature and SciPy."""
    x, y = orthogonal_problem(inputs=1)
    q = Normal(jnp.array([[0.4]]), jnp.array([[0.2]]))
    noise = Gamma(jnp.array([3.0]), jnp.array([2.0]))
    result = f_of(q, x, y, GaussianLikelihood(), noise)
    weights = oracles.kl_1d(oracles.normal(0.4, 0.2), oracles.normal(0.0, PRIOR_VARIANCE))
    precision = oracles.kl_1d(oracles.gamma(3.0, 2.0), oracles.gamma(1.0, 1.0))
    square = np.square(y - 0.4 * x) + 0.2 * np.square(x)
    expected = -0.5 * np.sum(1.5 * square + np.log(2 * np.pi) - special.digamma(3.0) + np.log(2.0))
    np.testing.assert_allclose(result.complexity_weights, weights, rtol=1e-8)
    np.testing.assert_allclose(result.complexity_noise, precision, rtol=1e-8)
    np.testing.assert_allclose(result.accuracy, expected, rtol=1e-10)
    np.testing.assert_allclose(result.complexity, weights + precision, rtol=1e-8)
    np.testing.assert_allclose(result.total, weights + precision - expected, rtol=1e-8)
    assert isinstance(jax.jit(lambda r: r)(result), FreeEnergy)


@pytest.mark.parametrize("size", [4, 5], ids=["equal batches", "last one padded"])
def test_mini_batches_are_unbiased(size):
    """Oracle: the full data set. 12 rows in batches of 4 or 5, the last one padded with nan."""
    x, y = map(jnp.asarray, orthogonal_problem())
    q = believe(jnp.ones((3, 1)), variance=0.3)
    likelihood = GaussianLikelihood()
    noise = likelihood.update_noise(linear_moments(None, q, x), y)
    full = f_of(q, x, y, likelihood, noise)
    batches = math.ceil(12 / size)
    padding = batches * size - 12
    x_padded = jnp.pad(x, ((0, padding), (0, 0)))
    y_padded = jnp.pad(y, ((0, padding), (0, 0)), constant_values=jnp.nan)
    real = jnp.pad(jnp.ones(12), (0, padding))
    by_size, by_weight, share = [], [], []
    for start in range(0, batches * size, size):
        part = slice(start, start + size)
        batch = (q, x_padded[part], y_padded[part], likelihood, noise)
        by_size.append(f_of(*batch, weights=real[part], size=12))
        by_weight.append(f_of(*batch, weights=batches * real[part]))
        share.append(float(real[part].sum()) / 12)
    # Each batch for the rows it has, weighted by how many: exact.
    np.testing.assert_allclose(np.dot(share, [f.total for f in by_size]), full.total, rtol=1e-12)
    # Every row the same weight: the plain mean over the batches is exact.
    np.testing.assert_allclose(np.mean([f.total for f in by_weight]), full.total, rtol=1e-12)
    for f in by_size + by_weight:  # the complexity is never scaled
        np.testing.assert_allclose(f.complexity, full.complexity, rtol=1e-12)


def test_any_random_batch_is_unbiased():
    """Oracle: the mean over all 66 pairs of 12 rows."""
    x, y = map(jnp.asarray, orthogonal_problem())
    q = believe(jnp.ones((3, 1)), variance=0.3)
    likelihood = GaussianLikelihood(precision=2.0)
    pairs = jnp.asarray(list(itertools.combinations(range(12), 2)))
    of_rows = jax.jit(jax.vmap(lambda rows: f_of(q, x[rows], y[rows], likelihood, size=12).total))
    totals = of_rows(pairs)
    np.testing.assert_allclose(totals.mean(), f_of(q, x, y, likelihood).total, rtol=1e-12)


def test_sampling_agrees_with_moments():
    """Oracle: the closed form, within 4.5 standard errors; and samples=S averages S draws."""
    x, y = map(jnp.asarray, orthogonal_problem())
    q = believe(jnp.ones((3, 1)), variance=0.3)
    prior = priors(q, Normal(0.0, PRIOR_VARIANCE))
    likelihood = GaussianLikelihood(precision=2.0)

    @jax.jit
    def sampled(key):
        data = (x, y)
        return free_energy(
            linear_sample, q, prior, likelihood, None, data, key=key, samples=10
        ).total

    values = np.asarray(jax.lax.map(sampled, jax.random.split(jax.random.key(0), 500)))
    error = values.std() / math.sqrt(500)
    exact = float(f_of(q, x, y, likelihood).total)
    assert abs(values.mean() - exact) < 4.5 * error
    key = jax.random.key(5)

    @jax.jit
    def one(key):
        return free_energy(linear_sample, q, prior, likelihood, None, (x, y), key=key).total

    one_by_one = [float(one(k)) for k in jax.random.split(key, 10)]
    np.testing.assert_allclose(sampled(key), np.mean(one_by_one), rtol=1e-10)


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (BernoulliLikelihood(), [[0], [1], [1], [0]]),
        (PoissonLikelihood(), [[0], [2], [5], [1]]),
        (CategoricalLikelihood(), [0, 2, 1, 1]),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, list) else "",
)
def test_other_likelihoods_bound_their_evidence(likelihood, targets):
    """Oracle: ln p(Y) by Monte Carlo over the prior, 200 000 draws; the gradient by differences."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(4, 2)))
    y = jnp.asarray(targets)
    outputs = 3 if y.ndim == 1 else 1
    prior = Normal(jnp.zeros((2, outputs)), jnp.full((2, outputs), 0.5))

    def total(mean, variance):
        return free_energy(
            linear_moments, Normal(mean, variance), prior, likelihood, None, (x, y), key=None
        ).total

    mean, variance = jnp.asarray(rng.normal(size=(2, outputs)) * 0.1), jnp.full((2, outputs), 0.4)
    weights = jnp.asarray(rng.normal(scale=math.sqrt(0.5), size=(200_000, 2, outputs)))
    log_p = jax.jit(jax.vmap(lambda w: likelihood.expected_log_likelihood(None, x @ w, y).sum()))(
        weights
    )
    value, gradient = jax.jit(jax.value_and_grad(total, (0, 1)))(mean, variance)
    assert value > -float(special.logsumexp(log_p) - np.log(200_000))
    total = jax.jit(total)
    by_mean = oracles.central_difference(lambda m: total(m, variance), mean)
    by_variance = oracles.central_difference(lambda v: total(mean, v), variance)
    np.testing.assert_allclose(gradient[0], by_mean, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(gradient[1], by_variance, rtol=1e-5, atol=1e-3)


def test_gradient():
    """Oracle: central differences in the means, the variances and the noise."""
    x, y = map(jnp.asarray, orthogonal_problem(outputs=2))
    q = believe(jnp.asarray(np.random.default_rng(1).normal(size=(3, 2))), variance=0.3)
    noise = Gamma(jnp.array([3.0, 2.0]), jnp.array([1.0, 4.0]))

    def total(mean, variance, shape, rate):
        return f_of(Normal(mean, variance), x, y, GaussianLikelihood(), Gamma(shape, rate)).total

    point = [q.mean, q.variance, noise.shape, noise.rate]
    gradient = jax.jit(jax.grad(total, (0, 1, 2, 3)))(*point)
    total = jax.jit(total)
    for i in range(4):
        differences = oracles.central_difference(
            lambda value, i=i: total(*point[:i], value, *point[i + 1 :]), point[i]
        )
        np.testing.assert_allclose(gradient[i], differences, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("forward", [linear_moments, linear_sample])
@pytest.mark.parametrize("prior", [Normal(0.0, 1.0), Laplace(0.0, 1.0)])
def test_a_pruned_weight_leaves_value_and_gradient(forward, prior):
    """Oracle: the model without that weight's column; F is the same and its gradient there is 0."""
    x, y = map(jnp.asarray, orthogonal_problem())
    q = Normal(jnp.array([[0.5], [0.0], [1.0]]), jnp.array([[0.1], [0.0], [0.2]]))
    likelihood = GaussianLikelihood(precision=2.0)

    def total(q, x):
        data = (x, y)
        return free_energy(
            forward, q, priors(q, prior), likelihood, None, data, key=jax.random.key(1)
        ).total

    value, gradient = jax.jit(jax.value_and_grad(total))(q, x)
    assert np.all(np.isfinite(jax.tree.leaves(gradient)))
    assert gradient.mean[1, 0] == 0.0
    assert gradient.variance[1, 0] == 0.0
    assert np.all(np.asarray(gradient.mean)[[0, 2]] != 0)
    if forward is linear_moments:
        without = Normal(q.mean[jnp.array([0, 2])], q.variance[jnp.array([0, 2])])
        np.testing.assert_allclose(value, total(without, x[:, jnp.array([0, 2])]), rtol=1e-12)


def test_finite_in_float32():
    """Variances 0, tiny and huge at once; a batch that is all padding; thousands of rows."""
    x = jnp.ones((3000, 4), jnp.float32)
    y = jnp.full((3000, 1), 2.0, jnp.float32)
    q = Normal(
        jnp.array([[0.0], [1.0], [-1.0], [100.0]], jnp.float32),
        jnp.array([[0.0], [1e-30], [1.0], [1e12]], jnp.float32),
    )
    likelihood = GaussianLikelihood()
    noise = likelihood.update_noise(linear_moments(None, q, x), y)

    def total(q, noise, weights):
        result = f_of(q, x, y, likelihood, noise, weights=weights, size=3000)
        return result.total, result

    both = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    for weights in (None, jnp.zeros(3000)):
        (value, result), gradient = both(q, noise, weights)
        assert value.dtype == jnp.float32
        assert np.all(np.isfinite(jax.tree.leaves(result)))
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_errors():
    x, y = map(jnp.asarray, orthogonal_problem())
    q = believe(jnp.ones((3, 1)), variance=0.3)
    likelihood = GaussianLikelihood(precision=2.0)
    with pytest.raises(ValueError, match="at least 1"):
        f_of(q, x, y, likelihood, samples=0)
    with pytest.raises(ValueError, match="key is None"):
        f_of(q, x, y, likelihood, samples=3)
    with pytest.raises(ValueError, match="weights has shape"):
        f_of(q, x, y, likelihood, weights=jnp.ones((12, 1)))
    with pytest.raises(ValueError, match=r"targets\[:, None\]"):
        f_of(q, x, y[:, 0], likelihood)
    with pytest.raises(ValueError, match="weights has shape"):
        accuracy(likelihood, None, x @ q.mean, y, weights=jnp.ones(3))
