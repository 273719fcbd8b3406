"""Covariance within wide units, whose precision is a diagonal and a few directions.

Oracle: the same with dense matrices in NumPy.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import secateur as sc
from secateur.beliefs import complexity
from secateur.correlations import join_low_rank
from secateur.distributions import UnitNormal
from secateur.distributions.jacobi import decompose_symmetric
from secateur.distributions.low_rank import LowRank, condition, divergence, from_precision
from secateur.distributions.unit_normal import unit_covariance

UNITS, SIZE, RANK = 3, 7, 2
KEY = jax.random.key(0)


def make(seed=0):
    """Means, precisions and the same as a LowRank; one weight of one unit is certain."""
    rng = np.random.default_rng(seed)
    diagonal = rng.uniform(0.5, 2.0, size=(UNITS, SIZE))
    columns = 2 * rng.normal(size=(UNITS, SIZE, RANK))
    live = np.ones((UNITS, SIZE), bool)
    live[1, 4] = False
    columns[~live] = 0
    mean = np.where(live, rng.normal(size=(UNITS, SIZE)), 0)
    dense = np.einsum("uir,ukr->uik", columns, columns)
    dense += diagonal[:, :, None] * np.eye(SIZE)
    return mean, live, dense, from_precision(*map(jnp.asarray, (diagonal, columns, live)))


def to_dense(shape):
    own, factor = np.asarray(shape.own), np.asarray(shape.factor)
    return own[:, :, None] * np.eye(own.shape[1]) - factor @ np.swapaxes(factor, 1, 2)


def on(live, matrix):
    return matrix[np.ix_(live, live)]


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13])
def test_jacobi_finds_eigenvalues_and_vectors(size):
    root = np.random.default_rng(size).normal(size=(20, size + 2, size))
    root = root * np.logspace(0, -2, size)
    matrix = np.einsum("nki,nkj->nij", root, root)
    values, vectors = map(np.asarray, decompose_symmetric(jnp.asarray(matrix)))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix), rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(matrix @ vectors, vectors * values[:, None], atol=1e-6)
    gram = np.swapaxes(vectors, 1, 2) @ vectors
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(size), gram.shape), atol=1e-8)


def test_jacobi_with_equal_values():
    values, vectors = decompose_symmetric(jnp.zeros((2, 5, 5)))
    np.testing.assert_array_equal(values, 0)
    gram = np.swapaxes(vectors, 1, 2) @ np.asarray(vectors)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(5), gram.shape), atol=1e-8)


def test_covariance_determinant_and_root_are_those_of_the_precision():
    _, live, precision, shape = make()
    dense = to_dense(shape)
    roots, logs = shape.spectrum().root(), np.asarray(shape.log_determinant())
    for j in range(UNITS):
        expected = np.linalg.inv(on(live[j], precision[j]))
        np.testing.assert_allclose(on(live[j], dense[j]), expected, rtol=1e-6)
        np.testing.assert_allclose(logs[j], np.linalg.slogdet(expected)[1], rtol=1e-6)
        k = np.asarray(shape.directions[j])
        half = np.sqrt(shape.own[j])[:, None] * (np.eye(SIZE) - k @ np.asarray(roots[j]) @ k.T)
        np.testing.assert_allclose(half @ half.T, dense[j], atol=1e-10)
        noise = np.random.default_rng(j).normal(size=(UNITS, SIZE))
        drawn = np.asarray(shape.draw(jnp.asarray(noise)))[j]
        np.testing.assert_allclose(drawn, half @ noise[j], atol=1e-10)


def test_conditioning_is_that_of_dense_normals():
    mean, live, precision, shape = make()
    gone = live & (np.random.default_rng(1).uniform(size=live.shape) < 0.4)
    rest = condition(jnp.asarray(mean), shape, jnp.asarray(gone))
    dense = to_dense(rest.shape)
    for j in range(UNITS):
        kept = live[j] & ~gone[j]
        covariance = np.zeros((SIZE, SIZE))
        covariance[np.ix_(live[j], live[j])] = np.linalg.inv(on(live[j], precision[j]))
        of_gone = on(gone[j], covariance)
        gain = covariance[np.ix_(kept, gone[j])] @ np.linalg.inv(of_gone)
        np.testing.assert_allclose(
            rest.mean[j][kept], mean[j][kept] - gain @ mean[j][gone[j]], atol=1e-8
        )
        left = on(kept, covariance) - gain @ covariance[np.ix_(gone[j], kept)]
        np.testing.assert_allclose(on(kept, dense[j]), left, atol=1e-8)
        assert not np.any(dense[j][~kept])
        log = stats.multivariate_normal(mean[j][gone[j]], of_gone).logpdf(np.zeros(gone[j].sum()))
        np.testing.assert_allclose(rest.surprise[j], -log, rtol=1e-6)


def test_divergence_is_that_of_dense_normals():
    mean, live, precision, q = make()
    centre, _, of_prior, p = make(5)
    total = 0.0
    for j in range(UNITS):
        covariance, own = np.linalg.inv(on(live[j], precision[j])), on(live[j], of_prior[j])
        offset = (mean - centre)[j][live[j]]
        total += 0.5 * (np.trace(own @ covariance) - live[j].sum() + offset @ own @ offset)
        total -= 0.5 * (np.linalg.slogdet(own)[1] + np.linalg.slogdet(covariance)[1])
    arrays = map(jnp.asarray, (mean, centre))
    np.testing.assert_allclose(divergence(next(arrays), q, next(arrays), p), total, rtol=1e-6)


def make_beliefs():
    """A matrix and a bias of one group; in the matrix, units are the second axis."""
    mean, _, _, shape = make()

    def leaf(part, axes, move):
        rows = LowRank(move(shape.own[:, part]), move(shape.factor[:, part]))
        names = {"group": "layer", "unit_axes": axes}
        return UnitNormal.of_low_rank(move(jnp.asarray(mean)[:, part]), rows, **names)

    matrix = leaf(slice(0, -1), (1,), lambda a: jnp.swapaxes(a, 0, 1))
    bias = leaf(slice(-1, None), (0,), lambda a: a[:, 0])
    return {"b": bias, "w": matrix}


def linear(p, x):
    return x @ p["w"] + p["b"][None]


def test_moments_of_a_layer_are_exact():
    beliefs = make_beliefs()
    x = np.random.default_rng(2).normal(size=(5, SIZE - 1))
    answer = sc.propagate(linear, "moments")(None, beliefs, jnp.asarray(x))
    dense = to_dense(make()[3])
    rows = np.c_[x, np.ones(len(x))]
    expected = np.einsum("ni,uik,nk->nu", rows, dense, rows)
    np.testing.assert_allclose(answer.variance, expected, rtol=1e-8)
    np.testing.assert_allclose(answer.mean, rows @ make()[0].T, rtol=1e-8)
    keys = jax.random.split(KEY, 20_000)
    for how in ("local", "global"):
        forward = sc.propagate(linear, how)
        samples = jax.vmap(lambda key, run=forward: run(key, beliefs, jnp.asarray(x)))(keys)
        ratio = np.sqrt(np.asarray(samples).var(axis=0) / expected)
        assert np.abs(ratio - 1).max() < 5 * np.sqrt(0.5 / len(keys)), how


def test_complexity_and_cuts_of_leaves_are_those_of_whole_units():
    beliefs = make_beliefs()
    mean, live, precision, shape = make()
    wide = jax.tree.map(
        lambda q: sc.Normal(jnp.zeros_like(q.mean), jnp.full_like(q.mean, 2.0)),
        beliefs,
        is_leaf=lambda q: isinstance(q, UnitNormal),
    )
    total = sum(
        0.5 * (np.trace(c) / 2 - live[j].sum() + mean[j] @ mean[j] / 2 + live[j].sum() * np.log(2))
        - 0.5 * np.linalg.slogdet(c)[1]
        for j, c in enumerate(np.linalg.inv(on(live[j], precision[j])) for j in range(UNITS))
    )
    np.testing.assert_allclose(complexity(beliefs, wide), total, rtol=1e-5)
    keep = {"b": None, "w": jnp.ones((SIZE - 1, UNITS), bool).at[2].set(False)}
    left = sc.cut(beliefs, keep)
    gone = np.zeros((UNITS, SIZE), bool)
    gone[:, 2] = True
    expected = condition(jnp.asarray(mean), shape, jnp.asarray(gone))
    own_mean, own = join_low_rank([left["w"], left["b"]])
    np.testing.assert_allclose(own_mean, expected.mean, atol=1e-10)
    np.testing.assert_allclose(to_dense(own), to_dense(expected.shape), atol=1e-10)


ROWS, INPUTS, PRECISION = 60, 3, 4.0
RECIPE = replace(
    sc.Recipe(), standardise_inputs=False, standardise_targets=False, epochs=6000, warm_steps=0,
    retrain_epochs=600, stops=False,
)  # fmt: skip


def make_rows(seed=0, inputs=INPUTS):
    rng = np.random.default_rng(seed)
    mixing = np.eye(inputs) + 0.8 * rng.normal(size=(inputs, inputs))
    x = 0.3 + rng.normal(size=(ROWS, inputs)) @ mixing
    y = x[:, 0] + rng.normal(size=ROWS) / np.sqrt(PRECISION)
    return x, y[:, None]


@pytest.mark.slow
def test_training_updating_and_files_with_as_many_directions_as_weights(tmp_path):
    """Oracle: the exact posterior, which a precision of full rank can be."""
    x, y = make_rows()
    params = {"b": jnp.zeros(1), "w": jnp.zeros((INPUTS, 1))}
    likelihood = sc.GaussianLikelihood(precision=PRECISION)
    model = sc.BayesianModel(linear, params, likelihood=likelihood, posterior="low-rank")
    options = {"key": KEY, "progress": False}
    rows = np.c_[np.ones(ROWS), x]
    covariance = np.linalg.inv(np.eye(INPUTS + 1) + PRECISION * rows.T @ rows)
    mean = covariance @ (PRECISION * rows.T @ y[:, 0])
    of_y = np.eye(ROWS) / PRECISION + rows @ rows.T
    evidence = -stats.multivariate_normal(np.zeros(ROWS), of_y).logpdf(y[:, 0])

    def check(trained):
        b, w = trained.beliefs["b"], trained.beliefs["w"]
        assert w.lowers
        means = np.r_[np.asarray(b.mean), np.asarray(w.mean)[:, 0]]
        np.testing.assert_allclose(means, mean, atol=2e-3)
        np.testing.assert_allclose(np.reshape(unit_covariance(b, w), (4, 4)), covariance, atol=2e-3)

    whole = sc.fit(model, (x, y), recipe=RECIPE, **options)
    np.testing.assert_allclose(whole.free_energy, evidence, atol=1e-2)
    check(whole)
    half = ROWS // 2
    first = sc.fit(model, (x[:half], y[:half]), recipe=RECIPE, **options)
    both = sc.update(first, (x[half:], y[half:]), **options)
    np.testing.assert_allclose(first.free_energy + both.free_energy, evidence, atol=2e-2)
    check(both)
    sc.save(both, tmp_path / "model.safetensors")
    loaded = sc.load(tmp_path / "model.safetensors", f=linear)
    np.testing.assert_array_equal(loaded.predict(x).variance, both.predict(x).variance)


@pytest.mark.slow
def test_wide_units_have_a_precision_of_low_rank_and_are_pruned():
    """Collinear inputs, more than a full covariance is for: better than independent weights."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(200, 4))
    x = hidden @ rng.normal(size=(4, 250)) + 0.3 * rng.normal(size=(200, 250))
    y = hidden[:, :1] + 0.1 * rng.normal(size=(200, 1))
    network = sc.networks.Dense(250, hidden=(5,))
    ends = {}
    for posterior in ("mean-field", "unit"):
        model = sc.BayesianModel(network, network.init(KEY), posterior=posterior)
        recipe = replace(sc.Recipe(), steps=4000, retrain_steps=1000)
        fitted = sc.fit(model, (x, y), key=KEY, recipe=recipe, progress=False)
        ends[posterior] = sc.prune(fitted, (x, y), key=KEY, progress=False)
    weights = ends["unit"].beliefs["layers"][0]["weights"]
    assert isinstance(weights, UnitNormal)
    assert weights.lowers
    first = ends["unit"].rounds[0]
    assert abs(first.divergence) < 0.2 * abs(first.at_once)
    assert ends["unit"].live_weights < 300
    assert ends["unit"].free_energy < ends["mean-field"].free_energy
    x_new = jnp.asarray(x[:5], jnp.float32)
    small = sc.compact(ends["unit"])
    np.testing.assert_allclose(
        small.predict(x_new).variance, ends["unit"].predict(x_new).variance, rtol=0.05
    )
