"""Every distribution × every property, and the special functions that they need.

Oracles: SciPy, quadrature, Monte Carlo and exact arithmetic.
"""

import dataclasses
import math
from decimal import Decimal, getcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import oracles
from secateur.distributions import (
    Beta,
    Dirichlet,
    ExponentialFamily,
    Gamma,
    Laplace,
    MultivariateNormal,
    Normal,
)
from secateur.distributions import special as functions

COVARIANCE = np.array([[1.3, 0.4], [0.4, 0.7]])
OTHER_COVARIANCE = np.array([[0.5, -0.2], [-0.2, 2.0]])


@dataclasses.dataclass
class Case:
    """A member, another of its family, the first one in SciPy, and the density oracle of both."""

    member: object
    other: object
    scipy: object
    oracle: object  # parameters → log-density over the line or the plane, see oracles.py


CASES = {
    "normal": Case(Normal(0.7, 2.3), Normal(-0.4, 0.6), stats.norm(0.7, 2.3**0.5), oracles.normal),
    "gamma": Case(Gamma(2.5, 1.7), Gamma(0.8, 0.5), stats.gamma(2.5, scale=1 / 1.7), oracles.gamma),
    "beta": Case(Beta(2.5, 0.7), Beta(1.1, 3.0), stats.beta(2.5, 0.7), oracles.beta),
    "laplace": Case(
        Laplace(0.7, 1.5), Laplace(-0.6, 0.4), stats.laplace(0.7, 1.5), oracles.laplace
    ),
    "dirichlet": Case(
        Dirichlet(jnp.array([2.5, 0.7, 1.6])),
        Dirichlet(jnp.array([1.0, 2.0, 0.4])),
        stats.dirichlet([2.5, 0.7, 1.6]),
        oracles.dirichlet,
    ),
    "multivariate_normal": Case(
        MultivariateNormal(jnp.array([0.7, -0.2]), jnp.asarray(COVARIANCE)),
        MultivariateNormal(jnp.array([-0.4, 0.5]), jnp.asarray(OTHER_COVARIANCE)),
        stats.multivariate_normal([0.7, -0.2], COVARIANCE),
        oracles.multivariate_normal,
    ),
}
FAMILIES = [name for name, case in CASES.items() if isinstance(case.member, ExponentialFamily)]
each = pytest.mark.parametrize("name", CASES)
each_family = pytest.mark.parametrize("name", FAMILIES)
with_jit = pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])


def draws(case, count=7, seed=0):
    """Values inside the support, from SciPy."""
    return np.asarray(case.scipy.rvs(count, random_state=np.random.default_rng(seed)))


def maybe_jit(f, jit):
    return jax.jit(f) if jit else f


@each
@with_jit
def test_log_prob_is_scipys(name, jit):
    """Oracle: scipy.stats, whose Dirichlet wants its points as columns."""
    case = CASES[name]
    values = draws(case)
    expected = case.scipy.logpdf(values.T if name == "dirichlet" else values)
    actual = maybe_jit(lambda d, x: d.log_prob(x), jit)(case.member, jnp.asarray(values))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@each
def test_mean_and_variance_are_scipys(name):
    """Oracle: scipy.stats."""
    case = CASES[name]
    if name == "multivariate_normal":
        mean, variance = case.scipy.mean, np.diag(case.scipy.cov)
    else:
        mean, variance = case.scipy.mean(), case.scipy.var()
    np.testing.assert_allclose(case.member.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(case.member.variance, variance, rtol=1e-13)


@pytest.mark.slow
@each
def test_samples_have_the_moments(name):
    """Oracle: the distribution's own mean and variance, within five standard errors."""
    member = CASES[name].member
    count = 10_000
    draw = jax.jit(lambda d, key: d.sample(key, (count, 2)))
    samples = np.asarray(draw(member, jax.random.key(1)))
    assert samples.shape == (count, 2, *np.shape(member.mean))
    samples = samples.reshape(2 * count, -1)
    error = samples.std(0) / np.sqrt(2 * count)
    assert np.all(np.abs(samples.mean(0) - np.ravel(member.mean)) < 5 * error)
    squares = (samples - np.ravel(member.mean)) ** 2
    error = squares.std(0) / np.sqrt(2 * count)
    assert np.all(np.abs(squares.mean(0) - np.ravel(member.variance)) < 5 * error)


@pytest.mark.parametrize(
    ("name", "jit"), [*((name, True) for name in CASES), ("normal", False), ("gamma", False)]
)
def test_kl_is_the_integral(name, jit):
    """Oracle: ∫ q (ln q − ln p) by composite Gauss–Legendre quadrature."""
    case = CASES[name]
    q, p = (case.oracle(*map(np.asarray, jax.tree.leaves(d))) for d in (case.member, case.other))
    actual = maybe_jit(lambda a, b: a.kl(b), jit)(case.member, case.other)
    if name in ("dirichlet", "multivariate_normal"):
        expected = oracles.kl_2d(q, p)
    elif name == "laplace":  # two kinks: far enough refined, quadrature still gives 1e-5
        u = np.linspace(-90, 90, 4_000_001)
        expected = np.trapezoid(np.exp(q(u)) * (q(u) - p(u)), u)
    else:
        expected = oracles.kl_1d(q, p)
    np.testing.assert_allclose(actual, expected, rtol=1e-8)


@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.4])
@pytest.mark.parametrize("variance", [1e-6, 0.3, 50.0])
def test_kl_of_a_normal_from_a_laplace(mean, variance):
    """Oracle: quadrature with the kink of the Laplace as an edge between panels."""
    q, p = oracles.normal(mean, variance), oracles.laplace(0.1, 0.7)
    reach = mean + np.array([-12, 12]) * np.sqrt(variance)
    kink = 0.1 if reach[0] < 0.1 < reach[1] else None
    actual = Normal(mean, variance).kl(Laplace(0.1, 0.7))
    np.testing.assert_allclose(actual, oracles.kl_1d(q, p, kink), rtol=1e-9)


@each
def test_gradient_of_log_prob_and_kl(name):
    """Oracle: central differences in every parameter."""
    case = CASES[name]
    value = jnp.asarray(draws(case)[0])
    leaves, structure = jax.tree.flatten(case.member)
    flat = np.concatenate([np.ravel(leaf) for leaf in leaves])

    def rebuild(flat):
        parts, start = [], 0
        for leaf in leaves:
            parts.append(flat[start : start + np.size(leaf)].reshape(np.shape(leaf)))
            start += np.size(leaf)
        return structure.unflatten(parts)

    def log_prob(flat):
        return rebuild(flat).log_prob(value)

    def kl(flat):
        return rebuild(flat).kl(case.other)

    for f in map(jax.jit, (log_prob, kl)):
        if name == "multivariate_normal":  # the Cholesky factor reads one triangle, symmetrised
            symmetric = jax.grad(f)(jnp.asarray(flat))
            numeric = oracles.central_difference(f, flat)
            actual = [*symmetric[:3], symmetric[3] + symmetric[4], symmetric[5]]
            expected = [*numeric[:3], numeric[3] + numeric[4], numeric[5]]
        else:
            actual = jax.grad(f)(jnp.asarray(flat))
            expected = oracles.central_difference(f, flat)
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-8)


@each
def test_is_a_pytree_under_vmap_and_transformations(name):
    case = CASES[name]
    stacked = jax.tree.map(lambda a, b: jnp.stack([jnp.asarray(a), b]), case.member, case.other)
    values = jnp.asarray(draws(case, 2))
    log_prob = jax.jit(lambda d, x: d.log_prob(x))
    expected = [log_prob(case.member, values[0]), log_prob(case.other, values[1])]
    np.testing.assert_allclose(jax.vmap(log_prob)(stacked, values), expected, rtol=1e-12)
    # The same batch without vmap: leading axes are batch axes.
    np.testing.assert_allclose(log_prob(stacked, values), expected, rtol=1e-12)
    divergence = jax.jit(lambda q, p: q.kl(p))(stacked, case.other)
    assert divergence.shape == (2,)
    np.testing.assert_allclose(divergence[1], 0, atol=1e-14)
    drawn = jax.eval_shape(lambda d: d.sample(jax.random.key(0), (5,)), stacked)
    assert drawn.shape == (5, *np.shape(values))
    # Leaves may be anything on the way.
    leaves, structure = jax.tree.flatten(case.member)
    placeholder = structure.unflatten([object()] * len(leaves))
    assert isinstance(placeholder, type(case.member))


@each
def test_float32_stays_float32(name):
    """Oracle: the float64 result."""
    case = CASES[name]
    member, other = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (case.member, case.other))
    value = jnp.asarray(draws(case)[0], jnp.float32)

    @jax.jit
    def properties(q, p, x):
        return q.log_prob(x), q.kl(p), q.mean, q.variance

    exact = properties(case.member, case.other, value.astype(float))
    for actual, expected in zip(properties(member, other, value), exact, strict=True):
        assert jnp.asarray(actual).dtype == jnp.float32
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)
    assert jax.eval_shape(lambda d: d.sample(jax.random.key(0)), member).dtype == jnp.float32


@each_family
def test_natural_parameters_go_round(name):
    family = type(CASES[name].member)
    back = jax.jit(lambda d: family.from_natural(d.natural_parameters))(CASES[name].member)
    for actual, expected in zip(
        jax.tree.leaves(back), jax.tree.leaves(CASES[name].member), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
    assert bool(jnp.all(family.is_valid_natural(back.natural_parameters)))


def sufficient_statistics(name, x):
    """T(x) and ln h(x), as the class docstrings state them."""
    if name == "normal":
        return (x, x**2), -0.5 * np.log(2 * np.pi)
    if name == "gamma":
        return (np.log(x), x), -np.log(x)
    if name == "beta":
        return (np.log(x), np.log1p(-x)), -np.log(x) - np.log1p(-x)
    if name == "dirichlet":
        return (np.log(x),), -np.log(x).sum()
    return (x, np.outer(x, x)), -np.log(2 * np.pi)


@each_family
def test_density_is_that_of_an_exponential_family(name):
    """Oracle: ln h(x) + η·T(x) − A(η) against SciPy's density."""
    case = CASES[name]
    natural = case.member.natural_parameters
    log_partition = jax.jit(case.member.log_partition_of)(natural)
    for x in draws(case, 3):
        statistics, log_h = sufficient_statistics(name, x)
        inner = sum(np.sum(np.asarray(eta) * t) for eta, t in zip(natural, statistics, strict=True))
        log_density = log_h + inner - log_partition
        np.testing.assert_allclose(log_density, case.scipy.logpdf(x), rtol=1e-10)


@each_family
def test_gradient_of_the_log_partition_is_the_mean_statistic(name):
    """Oracle: ∇A(η) = E[T(x)], with the moments in closed form."""
    member = CASES[name].member
    gradient = jax.jit(jax.grad(member.log_partition_of))(member.natural_parameters)
    mean, variance = np.asarray(member.mean), np.asarray(member.variance)
    expected = {
        "normal": lambda: (mean, mean**2 + variance),
        "gamma": lambda: (special.digamma(2.5) - np.log(1.7), mean),
        "beta": lambda: tuple(special.digamma([2.5, 0.7]) - special.digamma(3.2)),
        "dirichlet": lambda: (special.digamma([2.5, 0.7, 1.6]) - special.digamma(4.8),),
        "multivariate_normal": lambda: (mean, np.outer(mean, mean) + COVARIANCE),
    }[name]()
    for actual, statistic in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(actual, statistic, rtol=1e-10)


@each_family
def test_log_partition_difference(name):
    """Oracle: A(η') − A(η), plainly, where float64 can afford it."""
    case = CASES[name]
    family = type(case.member)
    old, new = case.member.natural_parameters, case.other.natural_parameters
    log_partition = jax.jit(family.log_partition_of)
    np.testing.assert_allclose(
        jax.jit(family.log_partition_difference)(new, old),
        log_partition(new) - log_partition(old),
        rtol=1e-12,
    )


def test_invalid_natural_parameters_are_recognised():
    one = jnp.ones(())
    assert not Normal.is_valid_natural((one, one))
    assert not Gamma.is_valid_natural((-one, -one))
    assert not Gamma.is_valid_natural((one, one))
    assert not Beta.is_valid_natural((one, -one))
    assert not Dirichlet.is_valid_natural((jnp.array([1.0, 0.0, 2.0]),))
    indefinite = jnp.array([[1.0, 2.0], [2.0, 1.0]])
    assert not MultivariateNormal.is_valid_natural((jnp.ones(2), -indefinite))


def test_mean_log_of_gamma():
    """Oracle: E[ln x] by quadrature over u = ln x."""
    u, weights = oracles.grid_1d(oracles.gamma(2.5, 1.7))
    expected = np.sum(weights * np.exp(oracles.gamma(2.5, 1.7)(u)) * u)
    np.testing.assert_allclose(Gamma(2.5, 1.7).mean_log, expected, rtol=1e-11)


def test_normal_kl_in_float32():
    """Oracle: the same KL in float64, from variances of 1e-30 to a posterior at the prior."""
    mean = np.float32([0, 0, 1e-3, 0.5, 0, 0, 0, 3])
    variance = np.float32([1e-30, 1e-16, 1e-8, 0.25, 1 - 2**-10, 1 + 2**-12, 1, 1e20])
    actual = Normal(mean, variance).kl(Normal(0.0, 1.0))
    expected = Normal(mean.astype(float), variance.astype(float)).kl(Normal(0.0, 1.0))
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert actual[6] == 0


def test_gamma_kl_in_float32_with_the_shape_of_a_large_data_set():
    """Oracle: the same KL in float64; the plain float32 formula is off by hundredths of a nat."""
    q, p = Gamma(np.float32(5001.0), np.float32(320.5)), Gamma(np.float32(1), np.float32(1))
    exact = jax.tree.map(np.float64, q).kl(jax.tree.map(np.float64, p))
    np.testing.assert_allclose(q.kl(p), exact, atol=1e-4)


def test_certain_normal():
    """Oracle: the limits for variance → 0; gradients stay free of nan."""
    certain = Normal(jnp.array([0.0, 1.0]), jnp.zeros(2))
    assert certain.log_prob(0.0).tolist() == [np.inf, -np.inf]
    assert certain.sample(jax.random.key(0)).tolist() == [0.0, 1.0]
    assert certain.kl(Normal(0.0, 1.0)).tolist() == [np.inf, np.inf]
    assert certain.kl(Laplace(0.0, 1.0)).tolist() == [np.inf, np.inf]
    assert certain.kl(Normal(0.0, 0.0)).tolist() == [0.0, np.inf]

    def through_sample(variance):
        return Normal(jnp.ones(2), variance).sample(jax.random.key(0)).sum()

    def through_log_prob(variance):
        return jnp.where(variance > 0, Normal(jnp.ones(2), variance).log_prob(0.3), 0).sum()

    def through_kl(variance):
        return jnp.where(variance > 0, Normal(jnp.ones(2), variance).kl(Normal(0.0, 1.0)), 0).sum()

    def through_laplace(variance):
        return jnp.where(variance > 0, Normal(jnp.ones(2), variance).kl(Laplace(0.0, 1.0)), 0).sum()

    for f in (through_sample, through_log_prob, through_kl, through_laplace):
        assert np.isfinite(jax.jit(jax.grad(f))(jnp.array([0.0, 0.5]))).all()


def test_certain_coordinates_of_a_multivariate_normal():
    """Oracle: the same distribution without those coordinates."""
    small = CASES["multivariate_normal"].member
    mean = jnp.array([0.7, 0.0, -0.2])
    covariance = jnp.zeros((3, 3)).at[jnp.ix_(jnp.array([0, 2]), jnp.array([0, 2]))].set(COVARIANCE)
    member = MultivariateNormal(mean, covariance)
    other = CASES["multivariate_normal"].other
    wide = MultivariateNormal(
        jnp.array([-0.4, 0.0, 0.5]),
        jnp.zeros((3, 3)).at[jnp.ix_(jnp.array([0, 2]), jnp.array([0, 2]))].set(OTHER_COVARIANCE),
    )
    kl, log_prob = jax.jit(lambda q, p: q.kl(p)), jax.jit(lambda d, x: d.log_prob(x))
    np.testing.assert_allclose(kl(member, wide), kl(small, other), rtol=1e-12)
    assert kl(member, MultivariateNormal(mean, jnp.eye(3))) == np.inf
    assert log_prob(member, mean) == np.inf
    assert log_prob(member, mean + 1) == -np.inf
    samples = jax.jit(lambda d: d.sample(jax.random.key(0), (100,)))(member)
    assert np.all(samples[:, 1] == 0)
    assert np.all(np.std(samples[:, [0, 2]], 0) > 0.5)


def test_edges_of_the_support():
    """Oracle: the limits of the densities at the ends of their support."""
    assert Gamma(jnp.array([0.5, 1.0, 2.0]), 3.0).log_prob(0.0).tolist() == [
        np.inf,
        pytest.approx(np.log(3)),
        -np.inf,
    ]
    assert Gamma(2.0, 1.0).log_prob(-1.0) == -np.inf
    ends = [np.inf, pytest.approx(0, abs=1e-15), -np.inf]
    assert Beta(jnp.array([0.5, 1.0, 2.0]), 1.0).log_prob(0.0).tolist() == ends
    assert Beta(1.0, jnp.array([0.5, 1.0, 2.0])).log_prob(1.0).tolist() == ends
    assert Beta(1.0, 1.0).log_prob(1.5) == -np.inf
    assert Dirichlet(jnp.ones(3)).log_prob(jnp.array([1.0, 0.0, 0.0])) == pytest.approx(np.log(2))
    assert Dirichlet(jnp.ones(3)).log_prob(jnp.array([1.5, -0.5, 0.0])) == -np.inf


@each
def test_kl_between_families_is_an_error_that_helps(name):
    stranger = Gamma(1.0, 1.0) if name != "gamma" else Beta(1.0, 1.0)
    with pytest.raises(TypeError, match=r"has no closed form here. Supported.*sample"):
        CASES[name].member.kl(stranger)


def test_extreme_float32_kl_is_never_nan():
    """Oracle: KL ≥ 0 (up to rounding) whatever the parameters."""
    rng = np.random.default_rng(3)
    mean = (rng.normal(size=(2, 2000)) * 10 ** rng.uniform(-20, 18, (2, 2000))).astype(np.float32)
    positive = (10 ** rng.uniform(-20, 20, (4, 2000))).astype(np.float32)
    moderate = (10 ** rng.uniform(-6, 6, (4, 2000))).astype(np.float32)
    pairs = [
        (Normal(mean[0], positive[0]), Normal(mean[1], positive[1])),
        (Normal(mean[0], positive[0]), Laplace(mean[1], positive[1])),
        (Laplace(mean[0], positive[0]), Laplace(mean[1], positive[1])),
        (Gamma(moderate[0], positive[0]), Gamma(moderate[1], positive[1])),
        (Beta(moderate[0], moderate[1]), Beta(moderate[2], moderate[3])),
        (Dirichlet(moderate[:2].T), Dirichlet(moderate[2:].T)),
    ]
    for q, p in pairs:
        divergence = np.asarray(jax.jit(lambda q, p: q.kl(p))(q, p))
        scale = 1 + np.nanmax(np.abs(np.where(np.isfinite(divergence), divergence, 0)))
        assert not np.isnan(divergence).any(), type(q)
        assert np.all(divergence >= -1e-6 * scale), type(q)


# --- special functions ----------------------------------------------------------------------------

getcontext().prec = 60


def exact_kl_div(x, y):
    """Oracle: x ln(x/y) − x + y in 60 decimal digits."""
    x, y = Decimal(float(x)), Decimal(float(y))
    return float(x * (x / y).ln() - x + y)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "jit"),
    [(np.float64, 1e-14, True), (np.float64, 1e-14, False), (np.float32, 1e-5, True)],
)
def test_kl_div_keeps_its_relative_precision(dtype, tolerance, jit):
    """Oracle: 60-digit decimal arithmetic, from y/x − 1 = 1e-6 to ratios of 1e±20."""
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=400) * 3).astype(dtype)
    ratio = np.concatenate([1 + rng.choice([-1, 1], 300) * 10 ** rng.uniform(-6, -0.1, 300)])
    ratio = np.concatenate([ratio, 10 ** rng.uniform(-20, 20, 100)])
    y = (x * ratio).astype(dtype)
    f = jax.jit(functions.kl_div) if jit else functions.kl_div
    expected = [exact_kl_div(a, b) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(f(jnp.asarray(x), jnp.asarray(y)), expected, rtol=tolerance)


def test_kl_div_at_the_edges():
    """Oracle: the limits, 0 at x = y and +inf at y = 0; the derivative 1 − x/y."""
    one = jnp.ones(())
    assert functions.kl_div(one, one) == 0
    assert functions.kl_div(one, 0 * one) == jnp.inf
    y = jnp.array([1e-20, 0.5, 0.74, 0.76, 1.0, 1.24, 1.26, 1e20])
    by_x, by_y = jax.jit(jax.vmap(jax.grad(functions.kl_div, (0, 1))))(jnp.ones(8), y)
    np.testing.assert_allclose(by_x, -np.log(y), rtol=1e-12)
    np.testing.assert_allclose(by_y, 1 - 1 / y, rtol=1e-12)
    assert jax.grad(functions.kl_div, (0, 1))(one, 0 * one) == (0, 0)


def test_gammaln_difference_over_whole_steps():
    """Oracle: ln Γ(z + n) − ln Γ(z) = Σ ln(z + j), summed without rounding."""
    pairs = [(z, step) for z in (1, 3, 9, 10, 11, 50, 5000, 10**7) for step in (1, 2, 7, 40)]
    z, step = np.array(pairs, float).T
    expected = [math.fsum(math.log(z + j) for j in range(step)) for z, step in pairs]
    difference = jax.jit(functions.gammaln_difference)
    np.testing.assert_allclose(difference(z + step, z), expected, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(-difference(z, z + step), expected, rtol=1e-14, atol=1e-15)


def test_gammaln_difference_in_float32():
    """Oracle: float64 SciPy; the plain float32 difference at 5000 is off by 1e-3."""
    y = np.array([1e-6, 0.1, 1.0, 5.0, 20.0, 5000.0], np.float32)
    x = np.array([2.0, 0.8, 4.5, 1.0, 20.25, 5000.5], np.float32)
    expected = special.gammaln(np.float64(x)) - special.gammaln(np.float64(y))
    value = functions.gammaln_difference(jnp.asarray(x), jnp.asarray(y))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, expected, rtol=3e-6, atol=1e-6)


def test_gammaln_divergence():
    """Oracle: float64 SciPy where it does not cancel; ½ ψ'(y)(x − y)² where it does."""
    rng = np.random.default_rng(1)
    x, y = np.exp(rng.normal(size=(2, 300)) * 2)
    expected = special.gammaln(x) - special.gammaln(y)
    expected -= (x - y) * special.digamma(y)
    value = jax.jit(functions.gammaln_divergence)(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-11)

    y = np.array([20.0, 300.0, 5000.0])
    x = y + 1e-3
    second_order = 0.5 * special.polygamma(1, y) * (x - y) ** 2
    value = jax.jit(functions.gammaln_divergence)(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(value, second_order, rtol=1e-4)


def test_log_ratio():
    """Oracle: ln x − ln y in 60-digit decimal arithmetic."""
    x = np.array([1.0, 1 + 1e-9, 1.2, 1e30, 1e-30], np.float32)
    y = np.array([1.0, 1.0, 1.0, 1e-30, 1e30], np.float32)
    expected = [
        float(Decimal(float(a)).ln() - Decimal(float(b)).ln()) for a, b in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(
        functions.log_ratio(jnp.asarray(x), jnp.asarray(y)), expected, rtol=1e-6
    )


def test_safe_sqrt_has_no_infinite_gradient():
    value, slope = jax.vmap(jax.value_and_grad(functions.safe_sqrt))(jnp.array([0.0, 4.0]))
    assert value.tolist() == [0.0, 2.0]
    assert slope.tolist() == [0.0, 0.25]


def test_normal_tail_in_float32_is_as_precise_as_erfc():
    """Oracle: SciPy, in float64."""
    a = np.linspace(0.0, 12.0, 5001).astype(np.float32)  # beyond, float32 has no such small numbers
    density = jnp.exp(-0.5 * a.astype(np.float64) ** 2).astype(jnp.float32) / np.float32(
        np.sqrt(2 * np.pi)
    )
    tail = functions.normal_tail(jnp.asarray(a), density)
    assert tail.dtype == jnp.float32
    np.testing.assert_allclose(tail, stats.norm.sf(a.astype(np.float64)), rtol=4e-7)
    wide = jnp.asarray(a, jnp.float64)
    np.testing.assert_allclose(
        functions.normal_tail(wide, wide), stats.norm.sf(np.asarray(wide)), rtol=1e-12
    )
