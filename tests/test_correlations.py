"""Beliefs with covariance within units: the leaf itself, its complexity, conditioning, draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from secateur.beliefs import hold_pruned, sample_weights
from secateur.correlations import join_leaves
from secateur.structure.fan_in import find_fan_in
from unit_beliefs import draw, make_beliefs

X = jnp.asarray(np.random.default_rng(5).normal(size=(6, 3)))
NETWORK = sc.networks.Dense(3, hidden=(4,), outputs=2)
PARAMS = jax.tree.map(lambda a: a.astype(jnp.float64), NETWORK.init(jax.random.key(0)))


def gaussian(leaves):
    """Mean and covariance of each unit of a group, by NumPy."""
    mean, factor = (np.asarray(a) for a in join_leaves(leaves))
    return mean, factor @ np.swapaxes(factor, 1, 2)


def layer(beliefs, number):
    own = beliefs["layers"][number]
    return [own["bias"], own["weights"]]


@pytest.fixture(scope="module")
def beliefs():
    return make_beliefs(NETWORK, PARAMS, X, deviation=0.3)


def test_biases_belong_to_the_units_that_they_are_added_to(beliefs):
    names = [q.group for q in jax.tree.leaves(beliefs, is_leaf=lambda q: isinstance(q, sc.Normal))]
    assert names == [names[0]] * 2 + [names[2]] * 2
    assert names[0] != names[2]
    assert beliefs["layers"][0]["weights"].unit_axes == (1,)
    assert beliefs["layers"][0]["bias"].factor.shape == (4, 4)


def test_weights_that_enter_twice_differently_stay_independent():
    """w is summed over its first axis and over its second: there is no one unit."""
    w = jnp.ones((3, 3))
    assert not find_fan_in(lambda w, x: jnp.tanh(x @ w) @ w.T, w, X)
    (found,) = find_fan_in(lambda w, x: jnp.tanh(x @ w) @ w, w, X)
    assert found.unit_axes == ((1,),)


def test_complexity_is_that_of_the_joint_normals(beliefs):
    """Oracle: KL of multivariate Normals, with a weight that was cut."""
    keep = jax.tree.map(lambda q: np.ones(q.mean.shape, bool), beliefs,
                        is_leaf=lambda q: isinstance(q, sc.Normal))  # fmt: skip
    keep["layers"][0]["weights"][1, 2] = False
    cut = sc.cut(beliefs, keep)
    expected = 0.0
    for number in (0, 1):
        for mean, covariance in zip(*gaussian(layer(cut, number)), strict=True):
            live = np.diag(covariance) > 0
            q = sc.MultivariateNormal(mean[live], covariance[np.ix_(live, live)])
            p = sc.MultivariateNormal(np.full(live.sum(), 0.5), 2 * np.eye(live.sum()))
            expected += float(q.kl(p))
    value = sc.complexity(cut, sc.priors(cut, sc.Normal(0.5, 2.0)))
    np.testing.assert_allclose(value, expected, rtol=1e-8)
    gradient = jax.grad(lambda q: sc.complexity(q, sc.priors(cut, sc.Normal(0.5, 2.0))))(cut)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))


def test_cutting_conditions_the_other_weights_of_the_unit(beliefs):
    """Oracle: `condition_on_zero` of each unit, also where a weight was cut before."""
    masks = [
        np.array([[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]], bool),
        np.array([1, 1, 0, 1], bool),
    ]
    keep = {"layers": [{"weights": masks[0], "bias": masks[1]}, {"weights": None, "bias": None}]}
    first = {
        "layers": [{"weights": masks[0] | (np.arange(4) != 2), "bias": None}, keep["layers"][1]]
    }
    cut = sc.cut(sc.cut(beliefs, first), keep)
    gone = ~np.concatenate([masks[1][:, None], masks[0].T], axis=1)
    before, after = gaussian(layer(beliefs, 0)), gaussian(layer(cut, 0))
    for unit in range(4):
        q = sc.MultivariateNormal(before[0][unit], before[1][unit])
        expected = sc.condition_on_zero(q, gone[unit])
        np.testing.assert_allclose(after[0][unit], expected.mean, atol=1e-9)
        np.testing.assert_allclose(after[1][unit], expected.covariance, atol=1e-9)
    assert sc.count(cut).live == sc.count(beliefs).live - gone.sum()


def test_draws_have_the_covariance_of_units(beliefs):
    """Oracle: the covariance itself, within five standard errors, also between leaves."""
    drawn = jax.vmap(lambda key: sample_weights(key, beliefs))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    own = drawn["layers"][0]
    rows = np.concatenate(
        [np.asarray(own["bias"])[:, :, None], np.swapaxes(own["weights"], 1, 2)], 2
    )
    _, covariance = gaussian(layer(beliefs, 0))
    for unit in range(4):
        found = np.cov(rows[:, unit].T)
        size = np.sqrt(np.outer(np.diag(covariance[unit]), np.diag(covariance[unit])))
        assert np.abs((found - covariance[unit]) / size).max() < 5 * np.sqrt(2 / 20_000)


def test_no_gradient_reaches_what_was_cut(beliefs):
    cut = sc.cut(beliefs, jax.tree.map(lambda q: q.mean > 0, beliefs,
                                       is_leaf=lambda q: isinstance(q, sc.Normal)))  # fmt: skip
    gradient = jax.grad(lambda q: sum(jnp.sum(a) for a in jax.tree.leaves(hold_pruned(q))))(cut)
    q, g = cut["layers"][0]["weights"], gradient["layers"][0]["weights"]
    dead = np.asarray(q.variance) == 0
    assert dead.any()
    assert not np.asarray(g.factor)[dead].any()
    assert not np.asarray(g.mean)[dead].any()


def test_our_own_draws_are_those_of_numpy(beliefs):
    """The oracle of the tests of propagation, checked itself."""
    drawn = draw(beliefs, 20_000)["layers"][1]["weights"]
    q = beliefs["layers"][1]["weights"]
    error = np.abs(np.asarray(drawn).var(0) / np.asarray(q.variance) - 1)
    assert error.max() < 5 * np.sqrt(2 / 20_000)


def test_complexity_under_a_prior_with_covariance():
    """Oracle: KL of multivariate Normals; so it is after an update."""
    rng = np.random.default_rng(0)
    roots = [np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3) for _ in range(2)]
    means = [jnp.asarray(rng.normal(size=3)) for _ in range(2)]
    pairs = list(zip(means, roots, strict=True))
    q, p = (sc.UnitNormal.of(mean, jnp.asarray(root), group="unit") for mean, root in pairs)
    exact, reference = (sc.MultivariateNormal(mean, root @ root.T) for mean, root in pairs)
    np.testing.assert_allclose(sc.complexity(q, p), exact.kl(reference), rtol=1e-6)
