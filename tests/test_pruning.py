"""`prune`: the estimate is the change, the right weights go, and nothing gets worse."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from compiling import run_bound
from recipes import PLAIN
from secateur.pruning.curves import compute_curve
from secateur.pruning.growth import compute_sensitivity, find_grown_weight
from secateur.trained import resume
from secateur.training import program
from secateur.training.evaluation import evaluate
from secateur.training.recipe import RECIPES
from secateur.training.sources import Arrays

KEY, OTHER_KEY = jax.random.split(jax.random.key(0))
KNOWN = sc.GaussianLikelihood(precision=4.0)


def linear(w, x):
    return x @ w


def linear_model(weights, likelihood=KNOWN, **options):
    return sc.BayesianModel(linear, jnp.zeros((weights, 1)), likelihood=likelihood, **options)


def fit(model, data, recipe=PLAIN, key=KEY, **options):
    return sc.fit(model, data, key=key, recipe=recipe, progress=False, **options)


def prune(fitted, data, key=OTHER_KEY, **options):
    return sc.prune(fitted, data, key=key, progress=False, **options)


def orthogonal_inputs(rows, columns, rng):
    return np.linalg.qr(rng.normal(size=(rows, columns)))[0] * np.sqrt(rows)


def log_evidence(x, y, kept, precision):
    """Exact, of the linear model with weights N(0, 1) for the kept inputs and known noise."""
    covariance = np.eye(len(y)) / precision + x[:, kept] @ x[:, kept].T
    _, log_determinant = np.linalg.slogdet(2 * np.pi * covariance)
    return -0.5 * (log_determinant + y @ np.linalg.solve(covariance, y))


def exact_posterior(x, y, precision):
    covariance = np.linalg.inv(np.eye(x.shape[1]) + precision * x.T @ x)
    return sc.MultivariateNormal(
        jnp.asarray(precision * covariance @ x.T @ y), jnp.asarray(covariance)
    )


# --- the exact posterior: everything can be enumerated ------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_exact_pruning_is_greedy_search_over_all_sub_models(seed):
    """Oracle: the exact log-evidence of all 2^k sub-models of a conjugate linear regression."""
    rng = np.random.default_rng(seed)
    weights = 8
    x = rng.normal(size=(25, weights)) + 0.7 * rng.normal(size=(25, 1))
    y = x[:, :3] @ [1.0, -0.5, 0.3] + 0.5 * rng.normal(size=25)
    evidence = {
        kept: log_evidence(x, y, list(kept), 4.0)
        for size in range(weights + 1)
        for kept in itertools.combinations(range(weights), size)
    }
    prior = sc.MultivariateNormal(jnp.zeros(weights), jnp.eye(weights))
    found = sc.prune_exactly(exact_posterior(x, y, 4.0), prior)

    full = tuple(range(weights))
    now, order = full, []
    while now:  # greedy search by the evidence itself
        smaller = [tuple(k for k in now if k != i) for i in now]
        best = max(smaller, key=evidence.__getitem__)
        if evidence[best] < evidence[now]:
            break
        order += set(now) - set(best)
        now = best
    assert tuple(np.flatnonzero(found.kept)) == now
    assert list(found.removed) == order
    np.testing.assert_allclose(found.delta_f, evidence[full] - evidence[now], atol=1e-8)
    # None that is left would be better gone, none that went would be better kept at its time.
    for i in now:
        assert evidence[tuple(k for k in now if k != i)] < evidence[now]
    assert evidence[now] >= max(evidence[()], evidence[full])


def test_exact_pruning_finds_the_best_of_all_where_weights_do_not_interact():
    rng = np.random.default_rng(0)
    x = orthogonal_inputs(30, 10, rng)
    y = x @ rng.normal(size=10) * 0.15 + 0.5 * rng.normal(size=30)
    subsets = [list(np.flatnonzero(bits)) for bits in itertools.product([0, 1], repeat=10)]
    best = max(subsets, key=lambda kept: log_evidence(x, y, kept, 4.0))
    prior = sc.MultivariateNormal(jnp.zeros(10), jnp.eye(10))
    found = sc.prune_exactly(exact_posterior(x, y, 4.0), prior)
    assert np.flatnonzero(found.kept).tolist() == best


def test_the_estimate_is_the_change_and_the_best_sub_model_is_found():
    """Oracle: orthogonal inputs, where the mean-field posterior is exact, and the evidence."""
    rng = np.random.default_rng(1)
    x = orthogonal_inputs(64, 8, rng)
    y = x @ (rng.normal(size=8) * [1, 1, 1, 0, 0, 0, 0, 0.05]) + 0.5 * rng.normal(size=64)
    subsets = [list(np.flatnonzero(bits)) for bits in itertools.product([0, 1], repeat=8)]
    best = max(subsets, key=lambda kept: log_evidence(x, y, kept, 4.0))
    data = (x, y[:, None])
    fitted = fit(linear_model(8), data)
    np.testing.assert_allclose(
        fitted.free_energy, -log_evidence(x, y, range(8), 4.0), rtol=0, atol=1e-3
    )
    pruned = prune(fitted, data)
    assert np.flatnonzero(pruned.beliefs.variance).tolist() == best
    (only,) = pruned.rounds
    np.testing.assert_allclose(only.estimated, only.at_once, atol=1e-3)
    np.testing.assert_allclose(only.divergence, 0, atol=1e-3)
    np.testing.assert_allclose(pruned.free_energy, -log_evidence(x, y, best, 4.0), atol=1e-3)
    assert only.changed == 8 - len(best)
    assert pruned.live_weights == only.left == len(best)
    assert pruned.pruned_fraction == 1 - len(best) / 8
    np.testing.assert_allclose(only.free_energy, only.complexity - only.accuracy, atol=1e-6)
    assert "divergence" in pruned.table()
    assert f"8 → {len(best)} weights" in repr(pruned)


# --- data from a known sparse model ------------------------------------------------------------


@pytest.mark.slow
def test_the_weights_of_a_sparse_linear_model_are_found():
    """Ten data sets at once: hardly a true weight goes, nearly all others do."""
    rng = np.random.default_rng(2)
    truth = np.zeros((10, 30))
    datasets = []
    for run in range(10):
        where = rng.choice(30, 8, replace=False)
        truth[run, where] = rng.choice([-1, 1], 8) * rng.uniform(0.3, 2, 8)
        x = rng.normal(size=(300, 30))
        datasets.append((x, x @ truth[run][:, None] + 0.5 * rng.normal(size=(300, 1))))
    keys = jax.random.split(KEY, 10)
    recipe = replace(PLAIN, standardise_inputs=True, standardise_targets=True)
    fits = sc.fit_many(
        linear_model(30, sc.GaussianLikelihood()),
        datasets,
        keys=keys,
        recipe=recipe,
        progress=False,
    )
    pruned = sc.prune_many(fits, datasets, key=OTHER_KEY, progress=False)
    left = np.stack([np.asarray(p.beliefs.variance)[:, 0] > 0 for p in pruned])
    assert np.mean(left[truth != 0]) >= 0.98
    assert np.mean(left[truth == 0]) <= 0.05
    for p, f in zip(pruned, fits, strict=True):
        assert p.free_energy < f.free_energy
        assert p.free_energy_before == pytest.approx(f.free_energy, rel=1e-6)


@pytest.mark.slow
def test_the_inputs_and_units_of_a_sparse_network_are_found(monkeypatch):
    """Ten random networks of 3 units on 5 of 20 inputs: the other 15 inputs are cut altogether."""
    run_bound(monkeypatch)
    rng = np.random.default_rng(0)
    datasets, used = [], []
    for _ in range(10):
        w1, b1 = rng.normal(size=(5, 3)), 0.5 * rng.normal(size=(1, 3))
        w2 = rng.choice([-1, 1], size=(3, 1)) * rng.uniform(0.7, 1.5, size=(3, 1))
        used.append(rng.choice(20, 5, replace=False))
        x = rng.normal(size=(600, 20))
        y = np.maximum(x[:, used[-1]] @ w1 + b1, 0) @ w2
        datasets.append((x, y + 0.1 * rng.normal(size=(600, 1))))
    generator = 5 * 3 + 3 + 3  # weights, biases, output weights
    model = relu_model(20, 10, key=jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 10)
    fits = sc.fit_many(model, datasets, keys=keys, epochs=400, progress=False)
    pruned = sc.prune_many(fits, datasets, key=jax.random.key(2), progress=False)
    left = [np.flatnonzero((np.asarray(p.beliefs["w1"].variance) > 0).any(axis=1)) for p in pruned]
    assert sum(set(a) <= set(b) for a, b in zip(left, used, strict=True)) >= 9
    assert all(set(b) <= set(a) for a, b in zip(left, used, strict=True))
    assert max(p.live_weights for p in pruned) <= 2 * generator


# --- it cannot get worse ------------------------------------------------------------------------


def copies_of_one_input():
    """Fifty copies of one input share its weight: each alone is worthless, together they are all.

    The mean-field posterior gives each copy a fiftieth of the weight, with a wide belief.
    """
    rng = np.random.default_rng(3)
    column = rng.normal(size=(20, 1))
    return np.repeat(column, 50, axis=1), 4 * column + 0.1 * rng.normal(size=(20, 1))


def test_the_guard_undoes_a_cut_that_raises_the_free_energy():
    x, y = copies_of_one_input()
    # From means near 0 every copy gets its share; from others, the lucky ones keep theirs.
    recipe = replace(PLAIN, rate=2e-3, initial_means=1e-3)
    fitted = fit(linear_model(50, sc.GaussianLikelihood(precision=2.0)), (x, y), recipe=recipe)
    scores = sc.prune_scores(fitted.beliefs, fitted.priors)
    assert np.all(np.asarray(scores) <= 0)  # plain BMR would cut them all …
    pruned = prune(fitted, (x, y))
    first = pruned.rounds[0]
    assert first.changed == 50
    assert first.at_once > 0  # … and lose the signal
    assert not first.kept
    assert 0 < pruned.live_weights < 50
    assert pruned.free_energy <= fitted.free_energy
    assert pruned.rounds[1].changed == 25  # the better half next
    seen = [r.free_energy for r in pruned.rounds if r.kept]
    assert pruned.free_energy == pytest.approx(min([fitted.free_energy, *seen]))
    assert "undone" in pruned.table()


def test_with_a_constant_rate_every_round_goes_on_as_in_the_paper():
    x, y = copies_of_one_input()
    recipe = replace(PLAIN, rate=2e-3, initial_means=1e-3, cooling=0.0, stops=False)
    model = linear_model(50, sc.GaussianLikelihood(precision=2.0))
    fitted = fit(model, (x, y), recipe=recipe)
    pruned = prune(fitted, (x, y))
    (only,) = pruned.rounds
    assert only.changed == 50
    assert only.at_once > 0
    assert only.kept  # no guard …
    assert pruned.live_weights == 50  # … but the result is still the best that was seen
    assert pruned.free_energy == fitted.free_energy


def test_of_two_models_of_the_same_free_energy_the_smaller_one_is_returned():
    x = np.concatenate([np.ones((30, 1)), np.zeros((30, 3))], axis=1)  # three dead inputs
    y = 2 + 0.5 * np.random.default_rng(6).normal(size=(30, 1))
    recipe = replace(PLAIN, cooling=0.0, stops=False)
    fitted = fit(linear_model(4), (x, y), recipe=recipe)
    # The posterior of a weight that nothing depends on is its prior: cutting it changes nothing.
    beliefs = fitted.beliefs
    assert np.asarray(beliefs.variance)[1:] == pytest.approx(1, abs=0.2)
    pruned = prune(fitted, (x, y))
    assert np.flatnonzero(pruned.beliefs.variance).tolist() == [0]


@pytest.mark.slow
def test_the_result_is_the_best_model_that_was_seen():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(80, 12))
    y = x[:, :2] @ [[1.0], [0.2]] + 0.5 * rng.normal(size=(80, 1))
    for inference in ("moments", "local", "global"):
        fitted = fit(linear_model(12, inference=inference), (x, y))
        pruned = prune(fitted, (x, y))
        assert pruned.free_energy <= min(r.free_energy for r in pruned.rounds if r.kept)
        assert pruned.free_energy < fitted.free_energy
        assert pruned.live_weights in (1, 2, 3)


# --- mechanics ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sparse():
    """Six weights, of which two matter, fitted."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 6))
    y = x[:, :2] @ [[1.0], [-1.0]] + 0.5 * rng.normal(size=(60, 1))
    return fit(linear_model(6), (x, y)), (x, y)


def test_cut_weights_are_exactly_zero_and_one_program_serves_all_rounds(sparse):
    fitted, data = sparse
    compiled = program.train._cache_size(), evaluate._cache_size()
    pruned = prune(fitted, data)
    assert (program.train._cache_size(), evaluate._cache_size()) == compiled
    gone = np.asarray(pruned.beliefs.variance) == 0
    assert gone.sum() == 4
    assert np.all(np.asarray(pruned.beliefs.mean)[gone] == 0)
    # Further training leaves them where they are.
    again = sc.update(pruned, data, key=KEY, progress=False)
    np.testing.assert_array_equal(np.asarray(again.beliefs.variance) == 0, gone)
    assert np.all(np.asarray(again.beliefs.mean)[gone] == 0)


def test_the_fitted_model_is_left_alone_and_the_same_key_gives_the_same_result(sparse):
    fitted, data = sparse
    before = [np.array(a) for a in jax.tree.leaves((fitted.beliefs, fitted.noise, fitted.priors))]
    first, second = prune(fitted, data), prune(fitted, data)
    after = jax.tree.leaves((fitted.beliefs, fitted.noise, fitted.priors))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first.beliefs.mean, second.beliefs.mean)
    assert first.free_energy == second.free_energy


def test_nothing_left_to_prune(sparse):
    fitted, data = sparse
    once = prune(fitted, data)
    twice = prune(once, data)
    assert twice.rounds == once.rounds
    assert twice.stop_reason == "nothing was left to prune"
    np.testing.assert_array_equal(once.beliefs.mean, twice.beliefs.mean)
    assert twice.weights_before == 6


def with_beliefs(fitted, mean, variance):
    """The same model with other beliefs: equal for all weights."""
    shape = fitted.beliefs.mean.shape
    return replace(fitted, beliefs=sc.Normal(jnp.full(shape, mean), jnp.full(shape, variance)))


def test_pruning_and_sweeping_start_from_the_beliefs_they_are_given(sparse):
    """Oracle: scores and free energies of beliefs that no training ever made."""
    fitted, (x, y) = sparse
    mean, variance = np.linspace(0.1, 0.3, 6)[:, None], np.full((6, 1), 0.1)
    mean[2], variance[2] = 2.0, 1e-3  # certain of a weight that does not matter
    mean[5] = variance[5] = 0.0
    other = replace(fitted, beliefs=sc.Normal(jnp.asarray(mean), jnp.asarray(variance)))
    prediction = sc.Normal(x @ mean, x**2 @ variance)
    accuracy = float(np.sum(KNOWN.expected_log_likelihood(None, prediction, y)))
    before = float(sc.complexity(other.beliefs, other.priors)) - accuracy
    scores = np.ravel(sc.prune_scores(other.beliefs, other.priors))
    found = sc.sweep(other, (x, y), criteria=["bmr"], rates=[0.0, 0.2])
    assert found.stop_rate == np.sum(scores <= 0) / 5
    curve = found.curves["bmr"]
    np.testing.assert_allclose(curve.free_energy[0], before, rtol=1e-9)
    np.testing.assert_allclose(curve.estimated[1], before + scores.min(), rtol=1e-9)
    pruned = prune(other, (x, y), epochs=3)
    assert pruned.free_energy_before == pytest.approx(before, rel=1e-9)
    first = pruned.rounds[0]
    assert (first.before, first.changed) == (5, np.sum(scores <= 0))
    np.testing.assert_allclose(first.estimated, np.sum(scores[scores <= 0]), rtol=1e-9)
    # Another prior, and other noise, are what is pruned as well.
    wide = replace(fitted, priors=sc.priors(fitted.beliefs, sc.Normal(0.0, 100.0)))
    assert prune(wide, (x, y), epochs=3).free_energy_before > fitted.free_energy + 1


def test_a_posterior_that_is_the_prior_is_pruned_altogether():
    """delta_f = 0 for every weight: the simpler of two equally good models is taken."""
    rng = np.random.default_rng(6)
    data = rng.normal(size=(40, 3)), rng.normal(size=(40, 1))
    fitted = with_beliefs(fit(linear_model(3), data), 0.0, 1.0)
    with pytest.warns(UserWarning, match="prune removed every weight"):
        pruned = prune(fitted, data)
    assert pruned.live_weights == 0
    assert pruned.rounds[0].estimated == pytest.approx(0, abs=1e-12)
    assert np.isnan(pruned.rounds[0].trained)  # there was nothing left to train
    expected = -log_evidence(data[0], data[1][:, 0], [], 4.0)
    np.testing.assert_allclose(pruned.free_energy, expected, rtol=1e-9)
    np.testing.assert_array_equal(pruned.predict(data[0]).mean, 0)
    assert prune(pruned, data).live_weights == 0


def test_a_single_weight():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(40, 1))
    data = (x, 2 * x + 0.5 * rng.normal(size=(40, 1)))
    assert prune(fit(linear_model(1), data), data).live_weights == 1
    noise = (x, 0.5 * rng.normal(size=(40, 1)))
    with pytest.warns(UserWarning, match="prune removed every weight"):
        assert prune(fit(linear_model(1), noise), noise).live_weights == 0


def test_pruning_of_an_unfinished_fit_says_so():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(200, 2))
    data = (x, 3 * x[:, :1] + 0.1 * rng.normal(size=(200, 1)))
    unfinished = fit(linear_model(2), data, rate=1e-6)
    assert not unfinished.is_level
    assert "the free energy was still falling" in prune(unfinished, data).stop_reason
    assert fit(linear_model(2), data).is_level


def test_nan_in_the_posterior_is_refused(sparse):
    fitted, data = sparse
    with pytest.raises(ValueError, match="nan or infinite"):
        prune(with_beliefs(fitted, np.nan, 1.0), data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "best"}, "Supported: bmr, snr, spr, magnitude"),
        ({"rate": 0.5}, "bmr stops by itself"),
        ({"criterion": "snr", "rate": 2.0}, "between 0 and 1"),
        ({"criterion": "snr", "grow": True}, "without regrowth"),
        ({"what": "layers"}, "Supported: weights, units, both"),
    ],
)
def test_options_that_make_no_sense(sparse, options, message):
    fitted, data = sparse
    with pytest.raises(ValueError, match=message):
        prune(fitted, data, **options)


def test_an_iterator_that_can_be_read_once_is_refused(sparse):
    fitted, (x, y) = sparse
    with pytest.raises(ValueError, match="read only once"):
        prune(fitted, iter([(x, y)]), size=60)


def test_a_stream_is_pruned_like_arrays(sparse):
    fitted, (x, y) = sparse
    pruned = prune(fitted, lambda: iter([(x[:30], y[:30]), (x[30:], y[30:])]))
    np.testing.assert_array_equal(np.flatnonzero(pruned.beliefs.variance), [0, 1])


# --- criteria that only rank, and the sweep -------------------------------------------------------


@pytest.mark.parametrize("criterion", ["snr", "spr", "magnitude"])
def test_a_rate_is_an_order(sparse, criterion):
    fitted, data = sparse
    pruned = prune(fitted, data, criterion=criterion, rate=5 / 6)
    assert pruned.live_weights == 1
    assert pruned.free_energy > fitted.free_energy  # a weight that matters had to go
    assert len(pruned.rounds) == 1


def test_the_best_rate_is_searched_for(sparse):
    fitted, data = sparse
    pruned = prune(fitted, data, criterion="snr")
    np.testing.assert_array_equal(np.flatnonzero(pruned.beliefs.variance), [0, 1])


def test_the_sweep_starts_at_the_fitted_model_and_passes_bmrs_own_stop(sparse):
    fitted, data = sparse
    rates = np.arange(7) / 6
    found = sc.sweep(fitted, data, rates=rates)
    for c in found.curves.values():
        np.testing.assert_allclose(c.free_energy[0], fitted.free_energy, rtol=1e-9)
        np.testing.assert_allclose(c.free_energy, c.complexity - c.accuracy, rtol=1e-9)
        np.testing.assert_allclose(c.free_energy[-1], found.curves["bmr"].free_energy[-1])
    scores = np.sort(np.ravel(sc.prune_scores(fitted.beliefs, fitted.priors)))
    expected = fitted.free_energy + np.concatenate([[0], np.cumsum(scores)])
    np.testing.assert_allclose(found.curves["bmr"].estimated, expected, rtol=1e-9)
    assert found.stop_rate == np.sum(scores <= 0) / 6
    stop = int(np.sum(scores <= 0))
    np.testing.assert_allclose(found.stop_free_energy, found.curves["bmr"].free_energy[stop])
    with pytest.raises(ValueError, match="Supported"):
        sc.sweep(fitted, data, criteria=["best"])
    with pytest.raises(ValueError, match="between 0 and 1"):
        sc.sweep(fitted, data, rates=[2.0])


def test_the_actual_free_energy_of_a_sweep_is_that_of_the_cut_beliefs(sparse):
    """Oracle: `secateur.free_energy` on beliefs cut by hand."""
    fitted, (x, y) = sparse
    trainer, state = resume([fitted], Arrays([(x, y)]))
    point = compute_curve(trainer, state, "magnitude", np.array([0.5]))
    size = np.abs(np.asarray(fitted.beliefs.mean))
    kept = size > np.sort(size.ravel())[2]
    beliefs = sc.cut(fitted.beliefs, jnp.asarray(kept))
    prediction = sc.propagate(linear, "moments")(None, beliefs, jnp.asarray(x))
    accuracy = jnp.sum(KNOWN.expected_log_likelihood(None, prediction, jnp.asarray(y)))
    expected = sc.complexity(beliefs, fitted.priors) - accuracy
    np.testing.assert_allclose(point.free_energy[0], expected, rtol=1e-9)


# --- growing back ---------------------------------------------------------------------------------


def test_the_return_of_a_weight_is_worth_its_evidence(sparse):
    """Oracle: the exact evidence of one weight against none, in conjugate linear regression."""
    fitted, (x, y) = sparse
    trainer, state = resume([fitted], Arrays([(x, y)]))
    empty = state._replace(alive=tuple(jnp.zeros_like(a) for a in state.alive))
    (block,) = trainer.blocks()
    derivatives = compute_sensitivity(trainer.spec, empty, trainer.constants, block, None)
    back = find_grown_weight(derivatives.slope[0][0], derivatives.curvature[0][0], 1.0)
    none = log_evidence(x, y[:, 0], [], 4.0)
    expected = [none - log_evidence(x, y[:, 0], [i], 4.0) for i in range(6)]
    np.testing.assert_allclose(back.delta_f, expected, rtol=1e-6, atol=1e-9)
    alone = [exact_posterior(x[:, [i]], y[:, 0], 4.0) for i in range(6)]
    np.testing.assert_allclose(back.mean, [float(q.mean[0]) for q in alone], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(back.variance, [float(q.covariance[0, 0]) for q in alone], rtol=1e-6)


def test_weights_cut_by_force_grow_back(sparse):
    fitted, data = sparse
    forced = prune(fitted, data, criterion="magnitude", rate=1.0)
    assert forced.live_weights == 0
    grown = prune(forced, data, grow=True)
    direct = prune(fitted, data)
    np.testing.assert_array_equal(
        np.flatnonzero(grown.beliefs.variance), np.flatnonzero(direct.beliefs.variance)
    )
    np.testing.assert_allclose(grown.free_energy, direct.free_energy, rtol=1e-4)
    moves = [r.move for r in grown.rounds]
    assert "grow weights" in moves
    assert grown.stop_reason == "neither cutting nor growing lowered the free energy any more"
    first = next(r for r in grown.rounds if r.move == "grow weights")
    assert first.left == first.before + first.changed


def relu_net(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def relu_model(inputs, units, key=KEY, **options):
    k1, k2 = jax.random.split(key)
    params = {
        "w1": jax.random.normal(k1, (inputs, units)) * (2 / inputs) ** 0.5,
        "b1": jnp.zeros((1, units)),
        "w2": jax.random.normal(k2, (units, 1)) * units**-0.5,
        "b2": jnp.zeros((1, 1)),
    }
    return sc.BayesianModel(relu_net, params, **options)


@pytest.fixture(scope="module")
def bent():
    """A small network fitted to |x1| + noise, with two inputs that do not matter."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(200, 3))
    y = np.abs(x[:, :1]) + 0.1 * rng.normal(size=(200, 1))
    recipe = replace(RECIPES["default"], epochs=300, retrain_epochs=100, rate=1e-2)
    return fit(relu_model(3, 6), (x, y), recipe=recipe), (x, y)


def test_whole_dead_units_are_drawn_anew(bent):
    """With every weight of a network gone, no single one could come back by itself."""
    fitted, data = bent
    forced = prune(fitted, data, criterion="magnitude", rate=1.0)
    grown = prune(forced, data, grow=True)
    direct = prune(fitted, data)
    assert grown.free_energy < direct.free_energy + 0.02 * abs(direct.free_energy)


# --- units ------------------------------------------------------------------------------------


def test_whole_units_go_first_then_weights(bent):
    fitted, data = bent
    only = prune(fitted, data, what="units")
    params = only.beliefs
    live = {name: np.asarray(q.variance) > 0 for name, q in params.items()}
    for unit in range(6):
        mine = [live["w1"][0, unit], live["b1"][0, unit], live["w2"][unit, 0]]
        assert all(mine) or not any(mine)
    assert live["w1"][0].any()
    assert not live["w1"][0].all()
    assert not live["w1"][1:].any()  # two inputs do not matter
    assert {r.move for r in only.rounds} == {"cut units"}
    both = prune(fitted, data, what="both")
    moves = [r.move for r in both.rounds]
    assert moves == sorted(moves)  # "cut units" before "cut weights"
    assert both.free_energy <= only.free_energy
    assert both.live_weights <= only.live_weights


def test_the_estimate_for_units_is_the_sum_over_their_weights(bent):
    fitted, data = bent
    only = prune(fitted, data, what="units")
    scores = sc.prune_scores(fitted.beliefs, fitted.priors)
    found = sc.units(relu_net, fitted.model.params, jnp.zeros((2, 3)))
    flat = jax.tree.map(np.asarray, scores)
    totals = []
    for unit in found.units:
        mask = {name: np.zeros(np.shape(s), bool) for name, s in flat.items()}
        for path, axis, indices in unit.members:
            name = path.strip("[]'")
            mask[name][(slice(None),) * axis + (list(indices),)] = True
        totals.append((sum(np.sum(flat[n][mask[n]]) for n in flat), mask))
    gone = [mask for total, mask in totals if total <= 0]
    union = {n: np.any([m[n] for m in gone], axis=0) for n in flat}
    expected = sum(np.sum(flat[n][union[n]]) for n in flat)
    np.testing.assert_allclose(only.rounds[0].estimated, expected, rtol=1e-5)
    assert only.rounds[0].changed == sum(u.sum() for u in union.values())


# --- other priors -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior",
    [sc.Normal(0.0, 4.0), sc.Laplace(0.0, 0.5), sc.ScaleMixture(0.5, 1.0, 1e-3)],
    ids=["wide", "laplace", "mixture"],
)
def test_other_priors_prune_too(prior):
    rng = np.random.default_rng(9)
    x = rng.normal(size=(150, 8))
    data = (x, x[:, :2] @ [[1.0], [-1.0]] + 0.5 * rng.normal(size=(150, 1)))
    pruned = prune(fit(linear_model(8, prior=prior), data), data)
    np.testing.assert_array_equal(np.flatnonzero(pruned.beliefs.variance), [0, 1])
    first = pruned.rounds[0]
    assert abs(first.divergence) < 0.05 * abs(first.estimated) + 0.2


# --- interrupted and resumed ----------------------------------------------------------------------


class Interrupted(Exception):
    """Raised by a callback."""


@pytest.mark.parametrize("grow", [False, True])
def test_interrupted_and_resumed_is_as_if_left_alone(bent, tmp_path, grow):
    fitted, data = bent
    whole = prune(fitted, data, grow=grow, what="both")
    calls = itertools.count(1)
    path = tmp_path / "pruning"

    def interrupt(report):  # how often it is called depends on the clock
        if next(calls) in (2, 5, 9, 14, 20, 27, 35):
            raise Interrupted

    for _ in range(8):
        try:
            pieces = prune(
                fitted, data, grow=grow, what="both", checkpoint=path, callback=interrupt
            )
            break
        except Interrupted:
            pass
    assert next(calls) > 3
    assert [r.changed for r in pieces.rounds] == [r.changed for r in whole.rounds]
    assert [r.kept for r in pieces.rounds] == [r.kept for r in whole.rounds]
    for a, b in zip(jax.tree.leaves(pieces.beliefs), jax.tree.leaves(whole.beliefs), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(pieces.history.free_energy, whole.history.free_energy)


@pytest.mark.parametrize("grow", [False, True])
def test_a_stopped_pruning_is_that_of_its_first_rounds(bent, tmp_path, grow):
    fitted, data = bent
    whole = prune(fitted, data, grow=grow)
    assert len(whole.rounds) > 1
    path = tmp_path / "pruning"
    stopped = prune(fitted, data, grow=grow, checkpoint=path, callback=lambda report: "stop")
    assert len(stopped.rounds) == 1
    assert stopped.stop_reason.startswith("pruning was stopped in round 1")
    assert stopped.rounds[0].changed == whole.rounds[0].changed
    assert stopped.free_energy <= stopped.free_energy_before
    again = prune(fitted, data, grow=grow, checkpoint=path)  # goes on with the second round
    assert again.rounds[0].free_energy == stopped.rounds[0].free_energy
    assert "stopped" not in again.stop_reason


def test_a_checkpoint_of_another_pruning_is_refused(sparse, tmp_path):
    fitted, data = sparse
    prune(fitted, data, checkpoint=tmp_path / "a")
    again = prune(fitted, data, checkpoint=tmp_path / "a")
    assert again.live_weights == 2
    with pytest.raises(sc.CheckpointError, match="another pruning"):
        prune(fitted, data, key=KEY, checkpoint=tmp_path / "a")
