"""Bayesian model reduction against its definition, conjugate evidence, and its own limits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

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
from secateur.reduction import condition_on_zero, group_scores, prune_scores, reduce, savage_dickey

eager_and_jit = pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
FAMILIES = {
    "normal": (Normal, oracles.normal),
    "gamma": (Gamma, oracles.gamma),
    "beta": (Beta, oracles.beta),
    "dirichlet": (Dirichlet, oracles.dirichlet),
    "multivariate_normal": (MultivariateNormal, oracles.multivariate_normal),
}


def random_parameters(name, rng):
    """Parameters of one random member, as NumPy arrays."""
    if name == "normal":
        return rng.normal() * 2, np.exp(rng.normal())
    if name in ("gamma", "beta"):
        return tuple(np.exp(rng.normal(size=2) * 0.8))
    if name == "dirichlet":
        return (np.exp(rng.normal(size=3) * 0.6),)
    half = rng.normal(size=(2, 3))
    return rng.normal(size=2), half @ half.T / 3 + 0.2 * np.eye(2)


def random_triple(name, rng):
    """Posterior, prior and reduced prior, drawn until the reduced posterior exists by a margin."""
    family = FAMILIES[name][0]
    while True:
        parameters = [random_parameters(name, rng) for _ in range(3)]
        q, p, reduced = (family(*map(jnp.asarray, part)) for part in parameters)
        naturals = zip(*(d.natural_parameters for d in (q, p, reduced)), strict=True)
        # Half of q's own parameter must do too, so that quadrature meets no endless tail.
        if bool(family.is_valid_natural(tuple(0.5 * a + c - b for a, b, c in naturals))):
            return parameters, (q, p, reduced)


@eager_and_jit
@pytest.mark.parametrize("name", FAMILIES)
def test_delta_f_is_its_definition(name, jit):
    """Oracle: −ln ∫ q p̃/p by quadrature with SciPy's densities, to 1e-9, for random members."""
    rng = np.random.default_rng(sum(map(ord, name)) + jit)
    oracle = FAMILIES[name][1]
    reduce_ = jax.jit(reduce) if jit else reduce
    plane = name in ("dirichlet", "multivariate_normal")
    for _ in range((2 if plane else 8) if jit else 1):
        parameters, members = random_triple(name, rng)
        integrate = oracles.delta_f_2d if plane else oracles.delta_f_1d
        reduced_posterior, delta_f = reduce_(*members)
        np.testing.assert_allclose(
            delta_f, integrate(*(oracle(*part) for part in parameters)), rtol=1e-9, atol=1e-9
        )
        # q̃ = q p̃/p exp(delta_f), equation (10a), at a point of the support.
        x = np.asarray(members[0].mean)
        q, p, reduced = (d.log_prob(x) for d in members)
        np.testing.assert_allclose(
            reduced_posterior.log_prob(x), q + reduced - p + delta_f, rtol=1e-8, atol=1e-8
        )


@pytest.mark.parametrize("name", ["normal", "multivariate_normal"])
def test_the_normals_evaluate_the_general_formula(name):
    """Oracle: η̃ = η_q + η_p̃ − η_p and A(η_q) + A(η_p̃) − A(η_p) − A(η̃), as they stand."""
    rng = np.random.default_rng(5)
    family = FAMILIES[name][0]
    for _ in range(5):
        _, members = random_triple(name, rng)
        q, p, reduced = (d.natural_parameters for d in members)
        natural = tuple(a + c - b for a, b, c in zip(q, p, reduced, strict=True))
        a = family.log_partition_of
        expected = family.from_natural(natural)
        reduced_posterior, delta_f = jax.jit(reduce)(*members)
        np.testing.assert_allclose(delta_f, a(q) + a(reduced) - a(p) - a(natural), rtol=1e-9)
        for actual, leaf in zip(
            jax.tree.leaves(reduced_posterior), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(actual, leaf, rtol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_of_delta_f(name):
    """Oracle: central differences along a random direction in all parameters at once."""
    rng = np.random.default_rng(11)
    _, members = random_triple(name, rng)
    direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), members)
    # A covariance moves symmetrically.
    direction = jax.tree.map(lambda d: d + d.T if d.ndim == 2 else d, direction)

    @jax.jit
    def along(t):
        return reduce(*jax.tree.map(lambda x, d: x + t * d, members, direction))[1]

    expected = oracles.central_difference(along, 0.0)
    np.testing.assert_allclose(jax.jit(jax.grad(along))(0.0), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@eager_and_jit
def test_no_reduced_posterior_is_plus_infinity(jit):
    """Oracle: the integral diverges, so −ln E_q[p̃/p] has no value; the belief is left as it is."""
    cases = [
        # A reduced prior far wider than the prior, under a posterior wider than the prior.
        (Normal(0.3, 2.0), Normal(0.0, 1.0), Normal(0.0, 4.0)),
        (Gamma(1.5, 2.0), Gamma(2.0, 1.0), Gamma(0.4, 1.0)),
        (Gamma(3.0, 1.0), Gamma(2.0, 2.0), Gamma(2.0, 0.5)),
        (Beta(1.0, 2.0), Beta(2.0, 1.0), Beta(1.0, 1.0)),
        (
            Dirichlet(jnp.array([1.0, 2.0, 3.0])),
            Dirichlet(jnp.array([2.0, 2.0, 2.0])),
            Dirichlet(jnp.array([0.5, 2.0, 2.0])),
        ),
        (
            MultivariateNormal(jnp.zeros(2), jnp.diag(jnp.array([0.5, 2.0]))),
            MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
            MultivariateNormal(jnp.zeros(2), 4 * jnp.eye(2)),
        ),
    ]
    reduce_ = jax.jit(reduce) if jit else reduce
    gradient_of = jax.jit(jax.grad(finite_total))
    for members in cases:
        reduced, delta_f = reduce_(*members)
        assert delta_f == jnp.inf
        for actual, leaf in zip(jax.tree.leaves(reduced), jax.tree.leaves(members[0]), strict=True):
            np.testing.assert_allclose(actual, leaf, rtol=1e-14)
        if jit:  # Masked out, it must not reach the gradient either.
            gradient = gradient_of(jax.tree.map(jnp.asarray, members))
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def finite_total(members):
    delta_f = reduce(*members)[1]
    return jnp.where(jnp.abs(delta_f) < 1e4, delta_f, 0).sum()


def extreme_members(name, rng, count, dtype, decades=30):
    """Parameters over tens of orders of magnitude, prior, posterior and reduced prior unrelated."""

    def positive(low, high, *shape):
        return jnp.asarray(10 ** rng.uniform(low, high, (count, *shape)), dtype)

    if name == "normal":
        means = rng.normal(size=count) * 10 ** rng.uniform(-decades, decades, count)
        means = np.where(rng.uniform(size=count) < 0.3, 0, means)
        return Normal(jnp.asarray(means, dtype), positive(-decades, decades))
    if name == "gamma":
        return Gamma(positive(-8, 8), positive(-12, 12))
    if name == "beta":
        return Beta(positive(-8, 8), positive(-8, 8))
    if name == "dirichlet":
        return Dirichlet(positive(-8, 8, 4))
    half = rng.normal(size=(count, 3, 3)) * 10 ** rng.uniform(-2, 2, (count, 1, 3))
    covariance = half @ half.mT + np.eye(3) * (half**2).sum((-2, -1), keepdims=True) * 1e-2
    return MultivariateNormal(
        jnp.asarray(rng.normal(size=(count, 3)), dtype), jnp.asarray(covariance, dtype)
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", FAMILIES)
def test_never_nan(name, dtype):
    """Oracle: delta_f is a number or +inf; the gradient of what is finite is a number."""
    rng = np.random.default_rng(17)
    members = tuple(extreme_members(name, rng, 3000, dtype) for _ in range(3))
    reduced, delta_f = jax.jit(reduce)(*members)
    assert delta_f.dtype == dtype
    assert not np.isnan(delta_f).any()
    assert np.isfinite(delta_f).mean() > 0.1
    for leaf in jax.tree.leaves(reduced):
        assert not np.isnan(leaf).any()

    # Derivatives of quotients square their denominators: fewer exponents of float32 are usable.
    members = tuple(extreme_members(name, rng, 3000, dtype, decades=8) for _ in range(3))
    delta_f, gradient = jax.jit(jax.value_and_grad(finite_total))(members)
    for leaf in (delta_f, *jax.tree.leaves(gradient)):
        assert not np.isnan(leaf).any()


@pytest.mark.parametrize("name", FAMILIES)
def test_no_change_of_prior_changes_nothing(name):
    """Oracle: delta_f = 0 and q̃ = q when p̃ = p, whatever q."""
    rng = np.random.default_rng(2)
    _, (q, p, _) = random_triple(name, rng)
    reduced, delta_f = jax.jit(reduce)(q, p, p)
    np.testing.assert_allclose(delta_f, 0, atol=1e-14)
    for actual, leaf in zip(jax.tree.leaves(reduced), jax.tree.leaves(q), strict=True):
        np.testing.assert_allclose(actual, leaf, rtol=1e-12)


def test_float32_at_the_papers_epsilon():
    """Oracle: the same in float64 (itself 1e-9 from quadrature above), at ε = 1e-16 and at 0."""
    rng = np.random.default_rng(3)
    mean = rng.normal(size=500).astype(np.float32)
    variance = (10 ** rng.uniform(-6, 0.5, 500)).astype(np.float32)
    for prior_mean, reduced_mean in [(0.0, 0.0), (0.5, 0.25)]:
        for epsilon in (0.0, 1e-16, 0.25):
            members = [
                Normal(mean, variance),
                Normal(np.float32(prior_mean), np.float32(1)),
                Normal(np.float32(reduced_mean), np.float32(epsilon)),
            ]
            _, actual = jax.jit(reduce)(*members)
            _, expected = jax.jit(reduce)(*jax.tree.map(np.float64, members))
            assert actual.dtype == jnp.float32
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
            gradient = jax.jit(jax.grad(lambda m: reduce(*m)[1].sum()))(
                jax.tree.map(jnp.asarray, members)
            )
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_float32_gamma_of_a_large_data_set():
    """Oracle: the same in float64; plain float32 log-partitions at α = 5001 are off by 1e-2."""
    members = (Gamma(5001.0, 320.5), Gamma(1.0, 1.0), Gamma(2.0, 3.0))
    single = jax.tree.map(np.float32, members)
    np.testing.assert_allclose(reduce(*single)[1], reduce(*members)[1], atol=1e-4)


def test_broadcasting_and_vmap():
    """Oracle: one by one."""
    rng = np.random.default_rng(4)
    means, variances = jnp.asarray(rng.normal(size=(2, 3))), jnp.asarray(rng.uniform(size=(2, 3)))
    prior, reduced_prior = Normal(0.0, 1.0), Normal(jnp.zeros(3), 0.1)
    reduced, delta_f = jax.jit(reduce)(Normal(means, variances), prior, reduced_prior)
    assert delta_f.shape == reduced.mean.shape == (2, 3)
    by_vmap = jax.vmap(jax.jit(lambda q: reduce(q, prior, reduced_prior)[1]))(
        Normal(means, variances)
    )
    np.testing.assert_allclose(by_vmap, delta_f, rtol=1e-13)

    concentrations = jnp.asarray(rng.uniform(1, 3, size=(4, 3)))
    flat, sparse = Dirichlet(jnp.ones(3)), Dirichlet(jnp.full(3, 0.5))
    reduced, delta_f = jax.jit(reduce)(Dirichlet(concentrations), flat, sparse)
    assert delta_f.shape == (4,)
    one = jax.jit(reduce)(Dirichlet(concentrations[2]), flat, sparse)[1]
    np.testing.assert_allclose(delta_f[2], one, rtol=1e-13)


def test_a_family_of_ones_own_needs_only_four_methods():
    """Oracle: Exponential(rate) is Gamma(1, rate)."""

    class Exponential(ExponentialFamily):
        def __init__(self, rate):
            self.rate = rate

        natural_parameters = property(lambda self: (-jnp.asarray(self.rate),))
        from_natural = classmethod(lambda cls, natural: cls(-natural[0]))
        log_partition_of = staticmethod(lambda natural: -jnp.log(-natural[0]))
        is_valid_natural = staticmethod(lambda natural: natural[0] < 0)

    own, delta_f = reduce(Exponential(2.0), Exponential(1.0), Exponential(0.5))
    gamma, expected = reduce(Gamma(1.0, 2.0), Gamma(1.0, 1.0), Gamma(1.0, 0.5))
    np.testing.assert_allclose(delta_f, expected, rtol=1e-12)
    np.testing.assert_allclose(own.rate, gamma.rate)


def test_mixed_families_are_an_error_that_helps():
    with pytest.raises(TypeError, match="of one family; got Normal, Laplace, Normal"):
        reduce(Normal(0.0, 1.0), Laplace(0.0, 1.0), Normal(0.0, 1.0))
    with pytest.raises(TypeError, match="savage_dickey"):
        reduce(Laplace(0.0, 1.0), Laplace(0.0, 1.0), Laplace(0.0, 1.0))


# --- Savage–Dickey -------------------------------------------------------------------------------


@eager_and_jit
def test_savage_dickey_of_normals(jit):
    """Oracle: ½ ln(σ_q²/σ_p²) + μ_q²/(2σ_q²) − μ_p²/(2σ_p²)."""
    rng = np.random.default_rng(6)
    m_q, m_p = rng.normal(size=(2, 50))
    v_q, v_p = np.exp(rng.normal(size=(2, 50)))
    expected = 0.5 * np.log(v_q / v_p) + m_q**2 / (2 * v_q) - m_p**2 / (2 * v_p)
    f = jax.jit(savage_dickey) if jit else savage_dickey
    np.testing.assert_allclose(f(Normal(m_q, v_q), Normal(m_p, v_p)), expected, rtol=1e-12)
    # A reduced prior of variance exactly 0 is the same thing.
    _, delta_f = reduce(Normal(m_q, v_q), Normal(m_p, v_p), Normal(0.0, 0.0))
    np.testing.assert_allclose(delta_f, expected, rtol=1e-12)


def test_epsilon_converges_to_savage_dickey():
    """Oracle: the limit; the distance shrinks in proportion to ε, as a first-order term must."""
    posterior, prior = Normal(jnp.array([0.0, 0.4, 3.0]), 0.25), Normal(0.1, 1.5)
    limit = savage_dickey(posterior, prior)
    distance = [
        np.abs(reduce(posterior, prior, Normal(0.0, epsilon))[1] - limit)
        for epsilon in (1e-4, 1e-6, 1e-8)
    ]
    np.testing.assert_allclose(distance[0] / distance[1], 100, rtol=0.05)
    np.testing.assert_allclose(distance[1] / distance[2], 100, rtol=0.05)
    assert np.all(distance[2] < 1e-6)


def test_savage_dickey_under_other_priors():
    """Oracle: the densities from SciPy, of a Laplace and of a user's own prior."""

    class StudentT:
        def log_prob(self, value):
            return jax.scipy.stats.t.logpdf(value, 3.0)

    mean, variance = np.array([0.0, 0.2, 1.5]), 0.3
    log_q = stats.norm.logpdf(0, mean, np.sqrt(variance))
    delta_f = savage_dickey(Normal(mean, variance), Laplace(0.0, 0.5))
    np.testing.assert_allclose(delta_f, stats.laplace.logpdf(0, 0, 0.5) - log_q, rtol=1e-12)
    delta_f = savage_dickey(Normal(mean, variance), StudentT(), at=0.1)
    log_q = stats.norm.logpdf(0.1, mean, np.sqrt(variance))
    np.testing.assert_allclose(delta_f, stats.t.logpdf(0.1, 3) - log_q, rtol=1e-12)


def test_savage_dickey_is_a_reduction_to_a_narrow_prior():
    """Oracle: −ln E_q[p̃/p] by quadrature; Normal belief, Laplace prior, p̃ = N(0, 1e-10)."""
    q, p = oracles.normal(0.7, 0.3), oracles.laplace(0.2, 1.0)
    expected = oracles.delta_f_1d(q, p, oracles.normal(0.0, 1e-10))
    actual = savage_dickey(Normal(0.7, 0.3), Laplace(0.2, 1.0))
    np.testing.assert_allclose(actual, expected, atol=1e-8)


def test_savage_dickey_is_never_nan():
    """Oracle: densities that are both 0 or both infinite give no evidence, so +inf."""
    certain = Normal(jnp.array([0.0, 1.0]), 0.0)
    assert savage_dickey(certain, Normal(0.0, 1.0)).tolist() == [-np.inf, np.inf]
    assert savage_dickey(certain, certain).tolist() == [np.inf, np.inf]
    assert savage_dickey(Gamma(2.0, 1.0), Gamma(3.0, 1.0)) == np.inf


# --- Full covariance: conjugate linear regression ------------------------------------------------


def regression(seed=0, k=5, n=30, noise=0.5):
    """Data, prior covariance and exact posterior of y = X w + noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, k)) @ (np.eye(k) + 0.4 * rng.normal(size=(k, k)))
    y = x @ np.where(np.arange(k) % 2, 0.0, 1.0) + noise * rng.normal(size=n)
    half = rng.normal(size=(k, k))
    prior = half @ half.T / k + np.eye(k)
    covariance = np.linalg.inv(np.linalg.inv(prior) + x.T @ x / noise**2)
    mean = covariance @ (x.T @ y) / noise**2
    return x, y, noise, prior, MultivariateNormal(jnp.asarray(mean), jnp.asarray(covariance))


def log_evidence(x, y, noise, prior_covariance):
    """Oracle: ln p(y) = ln N(y | 0, X Σ Xᵀ + noise² I), without any posterior."""
    covariance = x @ prior_covariance @ x.T + noise**2 * np.eye(len(y))
    return stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


@pytest.mark.parametrize("correlated", [False, True], ids=["independent", "correlated"])
def test_every_submodel_of_conjugate_regression(correlated):
    """Oracle: the difference of exact log-evidences of all 2⁵ sub-models, each from scratch.

    Under a correlated prior a sub-model's prior is the conditional p(θ_R | θ_S = 0).
    """
    k = 5
    x, y, noise, prior_covariance, _ = regression(k=k)
    if not correlated:
        prior_covariance = np.diag(np.diag(prior_covariance))
    covariance = np.linalg.inv(np.linalg.inv(prior_covariance) + x.T @ x / noise**2)
    mean = covariance @ (x.T @ y) / noise**2
    posterior = MultivariateNormal(jnp.asarray(mean), jnp.asarray(covariance))
    prior = MultivariateNormal(jnp.zeros(k), jnp.asarray(prior_covariance))
    full = log_evidence(x, y, noise, prior_covariance)

    masks = np.array(list(itertools.product([False, True], repeat=k)))  # True: removed
    expected, means, covariances = [], [], []
    for removed in masks:
        kept = ~removed
        precision = np.linalg.inv(prior_covariance)[np.ix_(kept, kept)]  # of the conditional
        sub_prior = np.linalg.inv(precision)
        expected.append(full - log_evidence(x[:, kept], y, noise, sub_prior))
        sub_covariance = np.zeros((k, k))
        sub_mean = np.zeros(k)
        inverse = np.linalg.inv(precision + x[:, kept].T @ x[:, kept] / noise**2)
        sub_covariance[np.ix_(kept, kept)] = inverse
        sub_mean[kept] = inverse @ (x[:, kept].T @ y) / noise**2
        means.append(sub_mean)
        covariances.append(sub_covariance)

    # All at once: the mask is traced, so the 32 sub-models are one compiled call.
    @jax.jit
    @jax.vmap
    def by_reduction(removed):
        return reduce(posterior, prior, condition_on_zero(prior, removed))

    reduced, delta_f = by_reduction(jnp.asarray(masks))
    np.testing.assert_allclose(delta_f, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(reduced.mean, means, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(reduced.covariance, covariances, rtol=1e-9, atol=1e-12)
    assert np.all(np.asarray(reduced.mean)[masks] == 0)

    @jax.jit
    @jax.vmap
    def by_densities(removed):
        conditioned = condition_on_zero(posterior, removed)
        return conditioned, savage_dickey(posterior, prior, coordinates=removed)

    conditioned, delta_f = by_densities(jnp.asarray(masks))
    np.testing.assert_allclose(delta_f, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(conditioned.mean, means, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(conditioned.covariance, covariances, rtol=1e-9, atol=1e-12)


def test_coordinates_by_index_and_one_after_the_other():
    """Oracle: removing {1}, then {3} after it, is removing {1, 3}: delta_f adds up."""
    *_, covariance, posterior = regression()
    prior = MultivariateNormal(jnp.zeros(5), jnp.asarray(covariance))
    at_once = condition_on_zero(posterior, [1, 3])
    first, step_1 = reduce(posterior, prior, condition_on_zero(prior, [1]))
    prior_1 = condition_on_zero(prior, jnp.array([1]))
    second, step_2 = reduce(first, prior_1, condition_on_zero(prior_1, [3]))
    total = savage_dickey(posterior, prior, coordinates=[1, 3])
    np.testing.assert_allclose(step_1 + step_2, total, rtol=1e-9)
    np.testing.assert_allclose(second.mean, at_once.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(second.covariance, at_once.covariance, rtol=1e-9, atol=1e-12)
    # Nothing removed, and everything.
    nothing = condition_on_zero(posterior, [])
    np.testing.assert_allclose(nothing.covariance, posterior.covariance, rtol=1e-13)
    assert savage_dickey(posterior, prior, coordinates=[]) == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(
        savage_dickey(posterior, prior),
        savage_dickey(posterior, prior, coordinates=range(5)),
        rtol=1e-12,
    )
    with pytest.raises(TypeError, match="needs MultivariateNormals; got Normal"):
        savage_dickey(Normal(0.0, 1.0), Normal(0.0, 1.0), coordinates=[0])


def test_conditioning_keeps_float32_and_batches():
    """Oracle: one by one, in float64."""
    rng = np.random.default_rng(8)
    half = rng.normal(size=(3, 4, 4))
    means, covariances = rng.normal(size=(3, 4)), half @ half.mT + np.eye(4)
    batch = MultivariateNormal(
        jnp.asarray(means, jnp.float32), jnp.asarray(covariances, jnp.float32)
    )
    prior = MultivariateNormal(jnp.zeros(4, jnp.float32), jnp.eye(4, dtype=jnp.float32))
    conditioned = jax.jit(lambda q: condition_on_zero(q, [0, 2]))(batch)
    delta_f = jax.jit(lambda q: savage_dickey(q, prior, coordinates=[0, 2]))(batch)
    assert conditioned.covariance.dtype == delta_f.dtype == jnp.float32
    one = jax.jit(lambda q: condition_on_zero(q, [0, 2]))(
        MultivariateNormal(means[1], covariances[1])
    )
    np.testing.assert_allclose(conditioned.covariance[1], one.covariance, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(conditioned.mean[1], one.mean, rtol=1e-4, atol=1e-5)


def test_sign():
    """A useless weight (its belief still the prior's) goes; one the data insist on stays."""
    useless, useful = Normal(0.02, 0.9), Normal(2.0, 0.01)
    prior = Normal(0.0, 1.0)
    assert savage_dickey(useless, prior) < 0
    assert savage_dickey(useful, prior) > 0
    # In evidence: the data were made with weights 0, 2, 4 alone.
    *_, covariance, posterior = regression(seed=1, n=200)
    prior = MultivariateNormal(jnp.zeros(5), jnp.asarray(covariance))
    scores = [savage_dickey(posterior, prior, coordinates=[i]) for i in range(5)]
    assert [bool(score < 0) for score in scores] == [False, True, False, True, False]


# --- Scores --------------------------------------------------------------------------------------


def test_scores_of_each_criterion():
    """Oracle: the formulas, in NumPy."""
    mean, variance = np.array([0.1, -2.0, 0.0, 0.5]), np.array([0.5, 0.04, 0.0, 0.0])
    live = variance > 0
    posterior, prior = Normal(jnp.asarray(mean), jnp.asarray(variance)), Normal(0.0, 2.0)
    with np.errstate(all="ignore"):
        expected = {
            "bmr": 0.5 * np.log(variance / 2) + mean**2 / (2 * variance),
            "snr": np.abs(mean) / np.sqrt(variance),
            "spr": np.abs(mean) + np.sqrt(variance),
            "magnitude": np.abs(mean),
        }
    for criterion, scores in expected.items():
        for f in (prune_scores, jax.jit(prune_scores, static_argnames="criterion")):
            actual = f(posterior, prior, criterion=criterion)
            np.testing.assert_allclose(actual, np.where(live, scores, np.inf), rtol=1e-12)
    actual = prune_scores(posterior, prior, reduced_variance=1e-16)
    np.testing.assert_allclose(actual, np.where(live, expected["bmr"], np.inf), rtol=1e-9)


def test_scores_of_a_pytree():
    """Oracle: leaf by leaf."""
    beliefs = {
        "layer": [Normal(jnp.array([[0.1, 3.0]]), jnp.array([[0.5, 0.1]])), jnp.ones(3)],
        "tied": Normal(jnp.zeros(2), 0.5),
        "static": (None, jax.nn.relu, 3),
    }
    priors = {
        "layer": [Normal(0.0, 1.0), None],
        "tied": Laplace(0.0, 1.0),
        "static": (None, None, None),
    }
    shared = prune_scores(beliefs, Normal(0.0, 1.0))
    assert shared["layer"][1] is None
    assert shared["static"] == (None, None, None)
    np.testing.assert_array_equal(
        shared["layer"][0], savage_dickey(beliefs["layer"][0], Normal(0.0, 1.0))
    )
    own = prune_scores(beliefs, priors)
    np.testing.assert_array_equal(own["layer"][0], shared["layer"][0])
    np.testing.assert_array_equal(own["tied"], savage_dickey(beliefs["tied"], priors["tied"]))
    assert own["tied"].shape == (2,)
    # A ranking needs no prior.
    np.testing.assert_array_equal(prune_scores(beliefs, None, "magnitude")["tied"], [0, 0])


def test_scores_of_a_full_covariance_are_those_of_its_marginals():
    """Oracle: Savage–Dickey of each coordinate alone."""
    *_, covariance, posterior = regression()
    prior = MultivariateNormal(jnp.zeros(5), jnp.asarray(covariance))
    expected = [savage_dickey(posterior, prior, coordinates=[i]) for i in range(5)]
    np.testing.assert_allclose(prune_scores(posterior, prior), expected, rtol=1e-12)


def test_scores_are_never_nan_and_infinite_only_when_removed():
    """Oracle: +inf exactly where the variance is 0, in float32, over all magnitudes."""
    rng = np.random.default_rng(9)
    mean = rng.normal(size=4000) * 10 ** rng.uniform(-30, 18, 4000)
    variance = np.where(rng.uniform(size=4000) < 0.2, 0, 10 ** rng.uniform(-30, 30, 4000))
    posterior = Normal(jnp.asarray(mean, jnp.float32), jnp.asarray(variance, jnp.float32))
    prior = Normal(0.0, 1.0)
    for criterion in ("bmr", "snr", "spr", "magnitude"):
        scores = np.asarray(jax.jit(lambda q, c=criterion: prune_scores(q, prior, c))(posterior))
        np.testing.assert_array_equal(scores == np.inf, variance == 0)
        assert not np.isnan(scores).any()
    with_epsilon = np.asarray(
        jax.jit(lambda q: prune_scores(q, prior, reduced_variance=1e-16))(posterior)
    )
    np.testing.assert_array_equal(with_epsilon == np.inf, variance == 0)
    assert not np.isnan(with_epsilon).any()

    def live_total(posterior):
        scores = prune_scores(posterior, prior)
        return jnp.where(jnp.abs(scores) < 1e3, scores, 0).sum()

    gradient = jax.jit(jax.grad(live_total))(Normal(jnp.zeros(2), jnp.array([0.0, 0.5])))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_wrong_scores_are_errors_that_help():
    posterior, prior = Normal(0.0, 1.0), Normal(0.0, 1.0)
    with pytest.raises(
        ValueError, match=r"'fisher' is unknown\. Supported: bmr, snr, spr, magnitude"
    ):
        prune_scores(posterior, prior, "fisher")
    with pytest.raises(ValueError, match="reduced_variance applies to criterion 'bmr' only"):
        prune_scores(posterior, prior, "snr", reduced_variance=1e-16)
    with pytest.raises(TypeError, match=r"belief at \['w'\] has no prior: got float"):
        prune_scores({"w": posterior}, {"w": 1.0})
    with pytest.raises(TypeError, match="one family"):
        prune_scores(posterior, Laplace(0.0, 1.0), reduced_variance=1e-16)


def test_group_scores():
    """Oracle: sums written out; removed elements count 0, and a group of removed ones is +inf."""
    scores = {
        "w": jnp.array([[1.0, -2.0, jnp.inf], [0.5, 0.25, -1.0], [jnp.inf] * 3]),
        "b": jnp.array([-1.0, 3.0, jnp.inf]),
        "certain": None,
        "alone": jnp.array([7.0, 8.0]),
    }
    groups = {
        "w": np.arange(3)[:, None],  # a row is a unit
        "b": np.array([0, 1, 2]),
        "certain": None,
        "alone": np.array([-1, 3]),
    }
    expected = [1 - 2 - 1, 0.5 + 0.25 - 1 + 3, np.inf, 8, np.inf]
    np.testing.assert_allclose(group_scores(scores, groups, num_groups=5), expected)
    grouped = jax.jit(group_scores, static_argnames="num_groups")(scores, groups, num_groups=5)
    np.testing.assert_allclose(grouped, expected)
    np.testing.assert_allclose(
        group_scores(scores["b"], np.array([1, 1, 0]), num_groups=2), [np.inf, 2]
    )
    # A leaf without groups, and float32 kept.
    single = group_scores(
        [jnp.ones(2, jnp.float32), jnp.ones(3, jnp.float32)], [None, np.zeros(3, int)], num_groups=1
    )
    assert single.dtype == jnp.float32
    assert single.tolist() == [3.0]
    with pytest.raises(ValueError, match=r"groups\['b'\] contains group 2; with num_groups=2"):
        group_scores({"b": scores["b"]}, {"b": groups["b"]}, num_groups=2)


def test_a_group_is_removed_as_a_whole_by_its_sum():
    """Oracle: delta_f of independent weights adds: the multivariate Savage–Dickey of the group."""
    rng = np.random.default_rng(10)
    mean, variance = rng.normal(size=6) * 0.3, rng.uniform(0.1, 0.9, 6)
    groups = np.array([0, 1, 0, 1, 1, 0])
    summed = group_scores(
        prune_scores(Normal(mean, variance), Normal(0.0, 1.0)), groups, num_groups=2
    )
    posterior = MultivariateNormal(mean, np.diag(variance))
    prior = MultivariateNormal(np.zeros(6), np.eye(6))
    for group in range(2):
        expected = savage_dickey(posterior, prior, coordinates=groups == group)
        np.testing.assert_allclose(summed[group], expected, rtol=1e-10)


def test_a_prior_of_any_class_with_a_density_scores_weights():
    """Oracle: the same density as a distribution of secateur's own."""

    class Own:
        def log_prob(self, value):
            return Normal(0.0, 2.0).log_prob(value)

    beliefs = {"w": Normal(jnp.array([0.1, 3.0]), jnp.array([0.5, 0.5])), "n": 7}
    own, known = (prune_scores(beliefs, prior) for prior in (Own(), Normal(0.0, 2.0)))
    np.testing.assert_allclose(own["w"], known["w"], rtol=1e-12)
