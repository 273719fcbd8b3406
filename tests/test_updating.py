"""`update`: the posterior so far is the prior of new data."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from recipes import PLAIN

KEY, OTHER_KEY = jax.random.split(jax.random.key(0))
RECIPE = replace(PLAIN, retrain_epochs=600, batch_size=200)


def linear(w, x):
    return x @ w


def orthogonal_halves(rows, columns, rng):
    """Two blocks of inputs, each with orthogonal columns, so that mean-field beliefs are exact."""
    return [np.linalg.qr(rng.normal(size=(rows, columns)))[0] * np.sqrt(rows) for _ in range(2)]


# All tests of one fixture in one process: it is trained once.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(noise, marks=pytest.mark.xdist_group(f"two halves {noise}"))
        for noise in ("known", "learnt")
    ],
)
def halves(request):
    rng = np.random.default_rng(0)
    first, second = orthogonal_halves(60, 4, rng)
    truth = np.array([[1.0], [-0.5], [0.0], [0.0]])
    data = [(x, x @ truth + 0.5 * rng.normal(size=(60, 1))) for x in (first, second)]
    known = sc.GaussianLikelihood(precision=4.0)
    likelihood = known if request.param == "known" else sc.GaussianLikelihood()
    model = sc.BayesianModel(linear, jnp.zeros((4, 1)), likelihood=likelihood)
    old = sc.fit(model, data[0], key=KEY, recipe=RECIPE, progress=False)
    new = sc.update(old, data[1], key=OTHER_KEY, progress=False)
    together = tuple(np.concatenate(parts) for parts in zip(*data, strict=True))
    both = sc.fit(model, together, key=KEY, recipe=RECIPE, progress=False)
    return old, new, both, data


def test_two_halves_one_after_the_other_are_the_whole(halves):
    """Oracle: the fit to all rows at once; for orthogonal inputs both are the exact posterior."""
    old, new, both, _ = halves
    # With a noise to learn, the first half's weights were learnt with the first half's noise.
    exact = old.noise is None
    np.testing.assert_allclose(new.beliefs.mean, both.beliefs.mean, atol=3e-3 if exact else 1e-2)
    tolerance = 2e-2 if exact else 0.2
    np.testing.assert_allclose(new.beliefs.variance, both.beliefs.variance, rtol=tolerance)
    # The chain rule of the evidence: ln p(all) = ln p(old) + ln p(new | old).
    np.testing.assert_allclose(old.free_energy + new.free_energy, both.free_energy, atol=0.3)


def test_the_noise_goes_on_too(halves):
    old, new, both, _ = halves
    if old.noise is None:
        assert new.noise is None
        return
    np.testing.assert_allclose(new.noise.shape, both.noise.shape)
    np.testing.assert_allclose(new.noise.rate, both.noise.rate, rtol=2e-2)


def test_weights_are_judged_by_all_data(halves):
    """Pruning after an update cuts what pruning the whole would, for the same reasons."""
    _, new, both, data = halves
    together = tuple(np.concatenate(parts) for parts in zip(*data, strict=True))
    after = sc.prune(new, data[1], key=KEY, progress=False)
    whole = sc.prune(both, together, key=KEY, progress=False)
    np.testing.assert_array_equal(after.beliefs.variance > 0, whole.beliefs.variance > 0)
    tolerance = 0.1 if new.noise is None else 0.6
    first, of_whole = after.rounds[0], whole.rounds[0]
    np.testing.assert_allclose(first.estimated, of_whole.estimated, atol=tolerance)
    np.testing.assert_allclose(first.at_once, of_whole.at_once, atol=tolerance)
    # What was cut stays so in the next update, and can grow back there.
    third = sc.update(after, data[0], key=KEY, progress=False)
    np.testing.assert_array_equal(third.beliefs.variance > 0, after.beliefs.variance > 0)
    grown = sc.prune(third, data[0], key=KEY, grow=True, progress=False)
    assert grown.free_energy <= third.free_energy + 1e-6


def test_an_update_starts_from_the_beliefs_it_is_given():
    """Oracle: the prior of the update is the belief that was put in its place."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 2))
    data = (x, x @ [[1.0], [-1.0]] + 0.5 * rng.normal(size=(60, 1)))
    likelihood = sc.GaussianLikelihood(precision=4.0)
    model = sc.BayesianModel(linear, jnp.zeros((2, 1)), likelihood=likelihood)
    fitted = sc.fit(model, data, key=KEY, recipe=RECIPE, progress=False, epochs=5)
    beliefs = sc.Normal(jnp.array([[3.0], [0.0]]), jnp.array([[1e-6], [0.0]]))
    new = sc.update(replace(fitted, beliefs=beliefs), data, key=KEY, epochs=20, progress=False)
    np.testing.assert_array_equal(new.priors.mean[0], beliefs.mean[0])
    np.testing.assert_allclose(new.priors.variance[0], beliefs.variance[0])
    np.testing.assert_allclose(new.beliefs.mean[0], 3.0, atol=0.01)  # 60 rows against a million
    assert float(new.beliefs.mean[1, 0]) == float(new.beliefs.variance[1, 0]) == 0
