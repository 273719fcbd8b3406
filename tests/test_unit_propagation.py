"""Propagation of beliefs with covariance within units, against draws of all weights by NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import secateur as sc
from model_zoo import CASES as ZOO
from model_zoo import CHUNK, split_static, summarise
from secateur.distributions import UnitNormal
from unit_beliefs import draw, make_beliefs

pytestmark = pytest.mark.slow
DRAWS = 20_000


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def linear(p, x):
    return x @ p["w"] + p["b"][None]


def dense(p, x):
    return linear(p[1], jax.nn.relu(linear(p[0], x)))


def convolve(p, x):
    """A convolution, pooled by a mean over all positions: those share their weights."""
    y = lax.conv_general_dilated(
        x, p["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.mean(y + p["b"][None, None, None], axis=(1, 2))


def attend(p, x):
    """One head; queries, keys and values of all positions share their weights."""
    q, k, v = (linear(p[name], x.reshape(-1, 3)).reshape(2, 4, 3) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("nid,njd->nij", q, k) / np.sqrt(3.0), axis=-1)
    return jnp.einsum("nij,njd->nid", weights, v)


def layer(seed, inputs, outputs):
    return {"w": normal(seed, inputs, outputs) / np.sqrt(inputs), "b": normal(seed + 1, outputs)}


GRU = sc.networks.Gru(2, units=3)
GRU_PARAMS = jax.tree.map(lambda a: a.astype(jnp.float64), GRU.init(jax.random.key(0)))
# Function, weights, inputs, deviation of a weight, tolerance of a deviation (None: exact).
CASES = {
    "linear": (linear, layer(0, 4, 3), normal(9, 5, 4), 0.5, None),
    "dense": (dense, [layer(0, 4, 6), layer(2, 6, 2)], normal(9, 5, 4), 0.1, 0.1),
    "convolution": (
        convolve,
        {"k": normal(0, 3, 3, 2, 2) / 4, "b": normal(1, 2)},
        normal(9, 3, 4, 4, 2),
        0.3,
        None,
    ),
    "gru": (GRU, GRU_PARAMS, normal(9, 3, 5, 2), 0.05, 0.15),
    "attention": (
        # What queries and keys of all positions share counts as independent: see `coverage`.
        attend, {n: layer(i, 3, 3) for i, n in enumerate("qkv")}, normal(9, 2, 4, 3), 0.1, 0.3
    ),
}  # fmt: skip


def forget(beliefs):
    """The same beliefs, as if all weights were independent."""
    return jax.tree.map(lambda q: sc.Normal(q.mean, q.variance), beliefs,
                        is_leaf=lambda q: isinstance(q, sc.Normal))  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_moments_are_those_of_correlated_weights(name):
    """Oracle: 20 000 draws. Where nothing but sums is left, the answer is exact."""
    f, params, x, deviation, tolerance = CASES[name]
    beliefs = make_beliefs(f, params, x, deviation=deviation)
    answer = jax.jit(lambda q: sc.propagate(f, "moments")(None, q, x))(beliefs)
    run = jax.jit(lambda weights: lax.map(lambda p: f(p, x), weights, batch_size=500))
    outputs = np.asarray(run(draw(beliefs, DRAWS)))
    ratio = np.sqrt(np.asarray(answer.variance) / outputs.var(axis=0))
    if tolerance is None:
        assert np.abs(ratio - 1).max() < 5 * np.sqrt(0.5 / DRAWS)
        error = np.abs(np.asarray(answer.mean) - outputs.mean(axis=0)) / outputs.std(axis=0)
        assert error.max() < 5 / np.sqrt(DRAWS)
    else:
        assert np.abs(np.mean(ratio) - 1) < tolerance
    if name == "dense":
        blind = sc.propagate(f, "moments")(None, forget(beliefs), x)
        gap = np.sqrt(np.asarray(blind.variance) / outputs.var(axis=0)) - 1
        assert np.abs(ratio - 1).mean() < np.abs(gap).mean()


# One of each kind of model; the same kind from another library is made of the same equations.
MODELS = (
    "hand linear", "hand MLP relu", "hand GRU-16 readout", "nnx Linear", "nnx Conv",
    "nnx Conv strided dilated", "nnx MLP", "nnx CNN", "nnx LSTM last", "nnx MultiHeadAttention",
    "equinox Linear", "equinox MLP", "keras Dense",
)  # fmt: skip


@pytest.mark.parametrize("case", [c for c in ZOO if c.name in MODELS], ids=lambda c: c.name)
def test_moments_of_the_model_zoo_with_correlated_weights(case):
    """Oracle: draws of all weights; single layers within 5 standard errors, the others nearly."""
    f, params, x, *_ = case.build()
    beliefs = make_beliefs(f, params, x, deviation=0.3 if case.kind == "single" else 0.05)
    leaves = jax.tree.leaves(beliefs, is_leaf=lambda q: isinstance(q, sc.Normal))
    assert any(isinstance(q, UnitNormal) for q in leaves)
    answer = jax.jit(lambda: sc.propagate(f, "moments")(None, beliefs, x))()
    drawn, put_back = draw_arrays(beliefs, params, 10 * CHUNK)
    run = jax.jit(lambda weights: lax.map(lambda w: f(put_back(w), x), weights, batch_size=CHUNK))
    truth = summarise(np.asarray(run(drawn), np.float64))
    if case.kind == "single":
        error = np.abs(np.asarray(answer.mean) - truth.mean) / truth.mean_error
        assert error.max() < 5
        assert (
            np.abs(np.asarray(answer.variance) - truth.variance) < 5 * truth.variance_error
        ).all()
        return
    ratio = np.sqrt(np.asarray(answer.variance) / truth.variance)
    assert np.abs(np.mean(ratio) - 1) < 0.2, np.mean(ratio)
    error = np.abs(np.asarray(answer.mean) - truth.mean) / np.sqrt(truth.variance)
    assert np.mean(error) < 0.2, np.mean(error)


def draw_arrays(beliefs, params, count):
    """Draws of the uncertain arrays of a model, and the function that puts them back."""
    _, put_back = split_static(params)
    leaves = jax.tree.leaves(draw(beliefs, count), is_leaf=lambda a: a is None)
    before = jax.tree.leaves(params)
    drawn = [a for a, b in zip(leaves, before, strict=True) if np.shape(a) != np.shape(b)]
    return drawn, put_back


@pytest.mark.parametrize("how", ["local", "global"])
def test_samples_have_the_variance_of_the_moments(how):
    f, params, x, deviation, _ = CASES["linear"]
    beliefs = make_beliefs(f, params, x, deviation=deviation)
    forward = sc.propagate(f, how)
    keys = jax.random.split(jax.random.key(0), DRAWS)
    samples = np.asarray(jax.jit(jax.vmap(lambda key: forward(key, beliefs, x)))(keys))
    exact = sc.propagate(f, "moments")(None, beliefs, x)
    ratio = np.sqrt(np.asarray(exact.variance)) / samples.std(axis=0)
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(0.5 / DRAWS)


def test_one_form_of_a_sum_is_as_good_as_another():
    """Transposed, reshaped, cut in two and joined again: the units stay whole."""

    def other(p, x):
        left, right = jnp.split(p["w"].T.reshape(3, 1, 4), [1], axis=0)
        rows = jnp.concatenate([left, right])[:, 0]
        return p["b"][None] + lax.dot_general(x, rows, (((1,), (1,)), ((), ())))

    _, params, x, deviation, _ = CASES["linear"]
    beliefs = make_beliefs(linear, params, x, deviation=deviation)
    one, two = (sc.propagate(f, "moments")(None, beliefs, x) for f in (linear, other))
    np.testing.assert_allclose(one.variance, two.variance, rtol=1e-10)
    assert not any("dropped" in row.remark for row in sc.coverage(other, beliefs, x))


def test_a_torn_unit_is_reported():
    """Of a product of weights with weights, only the variances of single weights go on."""
    _, params, x, deviation, _ = CASES["linear"]
    beliefs = make_beliefs(linear, params, x, deviation=deviation)

    def torn(p, x):
        return x @ (p["w"] * p["w"]) + p["b"][None]

    remarks = [row.remark for row in sc.coverage(torn, beliefs, x)]
    assert "covariance dropped" in remarks
    answer = sc.propagate(torn, "moments")(None, beliefs, x)
    alone = sc.propagate(torn, "moments")(None, forget(beliefs), x)
    np.testing.assert_allclose(answer.variance, alone.variance, rtol=1e-10)
