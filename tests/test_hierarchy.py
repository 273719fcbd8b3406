"""Learnt prior variances: closed forms against quadrature, and what they do to inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import secateur as sc
from secateur.fitting import find_prior_groups
from secateur.training.coordinates import Coordinates
from secateur.training.hierarchy import credit_groups, find_hyperprior, fit_priors, hyper_complexity
from secateur.training.layout import flat_complexity, flatten_priors, lay_out
from secateur.training.sources import Arrays


def make_beliefs(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"w": (3, 4), "b": (4,)}
    return {
        name: sc.Normal(rng.normal(size=shape), rng.uniform(0.01, 0.3, shape))
        for name, shape in shapes.items()
    }


def compute_parts(groups, scale=1.0):
    """Complexity of weights and of precisions at the best q(λ), or at a scaled one."""
    beliefs = make_beliefs()
    layout, flat, _ = lay_out(beliefs)
    priors = flatten_priors(layout, sc.priors(beliefs, sc.Normal(0.0, 1.0)), expand=True)
    weights = Coordinates.from_beliefs(flat)
    alive = tuple(np.asarray(q.variance) > 0 for q in flat)
    priors = fit_priors(layout, groups, alive, weights.beliefs(alive), priors)
    priors = tuple(sc.Normal(p.mean, scale * p.variance) for p in priors)
    both = (
        flat_complexity(weights, alive, priors),
        hyper_complexity(layout, groups, alive, priors),
    )
    return beliefs, layout.beliefs(tuple(priors), []), float(sum(both))


def integrate_group(means, variances, prior_variance, axis):
    """Σ E_q(λ) KL[q(w) ‖ N(0, 1/λ)] + KL[q(λ) ‖ p(λ)], by quadrature over λ."""
    prior = find_hyperprior(axis)
    shape = prior.shape + means.size / 2
    q = stats.gamma(shape, scale=1 / (prior_variance * shape))
    p = stats.gamma(prior.shape, scale=1 / prior.rate)
    square = np.sum(variances + means**2)

    def integrand(x):
        divergence = 0.5 * (x * square - means.size - np.sum(np.log(variances * x)))
        return q.pdf(x) * (divergence + q.logpdf(x) - p.logpdf(x))

    low, high = q.ppf([1e-13, 1 - 1e-13])
    return integrate.quad(integrand, low, high, limit=500, epsabs=1e-10, epsrel=1e-10)[0]


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_complexity_of_learnt_precisions_is_the_integral(axis):
    """Oracle: one-dimensional quadrature over the precision of each group."""
    beliefs, priors, total = compute_parts((None, axis))  # leaves are in the order of their names
    expected = 0.0
    for name, own in (("b", None), ("w", axis)):
        mean, variance = np.asarray(beliefs[name].mean), np.asarray(beliefs[name].variance)
        prior = np.broadcast_to(priors[name].mean * 0 + priors[name].variance, mean.shape)
        arrays = [np.moveaxis(a, own or 0, 0) for a in (mean, variance, prior)]
        count = 1 if own is None else mean.shape[own]
        for m, v, p in zip(*(a.reshape(count, -1) for a in arrays), strict=True):
            np.testing.assert_allclose(p, p[0], rtol=1e-12)
            expected += integrate_group(m, v, p[0], own)
    assert total == pytest.approx(expected, rel=1e-6)


def test_learnt_precisions_are_those_of_least_free_energy():
    """Oracle: any other q(λ) of the same shape has a higher complexity."""
    best = compute_parts((None, 0))[-1]
    for factor in (0.8, 0.97, 1.03, 1.25):
        assert compute_parts((None, 0), factor)[-1] > best


def test_pruned_weights_do_not_count():
    beliefs = {"w": sc.Normal(jnp.array([[0.5, 0.0], [0.0, 0.0]]), jnp.array([[0.1, 0.0], [0, 0]]))}
    layout, flat, _ = lay_out(beliefs)
    alive = tuple(np.asarray(q.variance) > 0 for q in flat)
    priors = flatten_priors(layout, sc.priors(beliefs, sc.Normal(0.0, 1.0)), expand=True)
    (prior,) = fit_priors(layout, (0,), alive, flat, priors)
    hyperprior = find_hyperprior(0)
    first = (hyperprior.rate + 0.5 * (0.1 + 0.25)) / (hyperprior.shape + 0.5)
    second = hyperprior.rate / hyperprior.shape  # nothing is left of this group
    np.testing.assert_allclose(prior.variance, [first, first, second, second], rtol=1e-6)
    alone = hyper_complexity(layout, (0,), alive, (prior,))
    expected = integrate_group(np.array([0.5]), np.array([0.1]), first, 0) - float(
        sc.Normal(0.5, 0.1).kl(sc.Normal(0.0, first))
    )
    assert float(alone) == pytest.approx(expected, rel=1e-4)


def test_a_group_is_credited_with_its_precision():
    """A group whose scores add up to less than its precision costs is cut whole."""
    beliefs = {"w": sc.Normal(np.zeros((3, 2)), np.full((3, 2), 0.1))}
    layout, flat, _ = lay_out(beliefs)
    alive = tuple(np.asarray(q.variance) > 0 for q in flat)
    priors = flatten_priors(layout, sc.priors(beliefs, sc.Normal(0.0, 1.0)), expand=True)
    priors = fit_priors(layout, (0,), alive, flat, priors)
    cost = float(hyper_complexity(layout, (0,), alive, priors)) / 3
    scores = np.array([0.4 * cost, 0.5 * cost, 0.7 * cost, 0.7 * cost, -1.0, 50.0])
    (credited,) = credit_groups(layout, (0,), alive, priors, (jnp.asarray(scores),))
    credited = np.asarray(credited)
    assert (credited[:2] < 0).all()
    assert credited[:2].sum() == pytest.approx(-0.1 * cost, rel=1e-5)
    np.testing.assert_allclose(credited[2:], scores[2:])


def test_groups_follow_inputs_through_any_function():
    def f(p, x):
        return jnp.tanh(x @ p["w"].T + p["b"][None]) @ p["v"]

    params = {"w": jnp.ones((12, 3)), "b": jnp.ones(12), "v": jnp.ones((12, 1))}
    model = sc.BayesianModel(f, params)
    source = Arrays([(np.ones((5, 3)), np.ones((5, 1)))])
    assert find_prior_groups(model, source, "inputs") == (None, None, 1)  # b, v, w
    assert find_prior_groups(model, source, "leaves") == (None, None, None)
    assert find_prior_groups(model, source, None) is None
    with pytest.raises(ValueError, match="Supported: leaves, inputs"):
        find_prior_groups(model, source, "units")


def test_inputs_that_do_not_matter_are_cut():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    y = np.abs(x[:, :1]) + 0.1 * rng.normal(size=(200, 1))
    network = sc.networks.Dense(6, (12,))
    model = sc.BayesianModel(network, network.init(jax.random.key(0)))
    fitted = sc.fit(
        model, (x, y), key=jax.random.key(1), learn_priors="inputs", epochs=600, progress=False
    )
    variances = np.asarray(fitted.priors["layers"][0]["weights"].variance)
    np.testing.assert_allclose(variances, variances[:, :1] * np.ones((1, 12)), rtol=1e-6)
    assert variances[0, 0] > 10 * variances[1:, 0].max()
    pruned = sc.prune(fitted, (x, y), key=jax.random.key(2), progress=False)
    left = (np.asarray(pruned.beliefs["layers"][0]["weights"].variance) > 0).sum(axis=1)
    assert left[0] >= 2  # |x| takes two units
    assert left[1:].sum() <= 1  # of 60 weights
