"""`compact`: where a constant may go, what is refused, and what the result can do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from secateur.compaction import compacting
from secateur.distributions import Normal
from secateur.networks import Dense
from test_compaction import largest_gap, means
from trained import believed, masked, pruned_by_force, trained

RNG = np.random.default_rng(0)


def mlp(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"] + (p["c"][None] if "c" in p else 0)


def mlp_params(**other):
    shapes = {"w": (3, 4), "b": (4,), "v": (4, 2), "c": (2,)} | other
    return {name: jnp.ones(shape) for name, shape in shapes.items() if shape}


def without_inputs(beliefs, unit, name="w"):
    """Cut all weights into a unit, but its bias: a constant."""
    alive = np.arange(beliefs[name].mean.shape[-1]) != unit
    return beliefs | {name: masked(beliefs[name], np.broadcast_to(alive, beliefs[name].mean.shape))}


def compacted(f, beliefs, x, inference="global"):
    as_they_are = jax.tree.map(lambda _: None, x)
    result = trained(f, beliefs, inference=inference, inputs=as_they_are)
    small = sc.compact(result, inputs=x)
    if inference == "moments":
        expected, actual = result.predict(x), small.predict(x)
        assert largest_gap(expected.mean, actual.mean) < 1e-6
        assert largest_gap(expected.weight_variance, actual.weight_variance) < 1e-6
    else:
        expected = jax.jit(lambda x: f(means(beliefs), x))(x)
        actual = jax.jit(lambda x: small.model.f(small.model.params, x))(x)
        assert largest_gap(expected, actual) < 1e-6
    return small, [(r.unread, r.constant) for r in small.compaction.removed]


X = RNG.normal(size=(100, 3))


def test_a_constant_goes_into_the_bias_with_its_variance():
    """Oracle: E[w tanh(b)] and V[w tanh(b)] by drawing w and b."""
    beliefs = without_inputs(believed(mlp_params(), variance=0.2), 1)
    small, gone = compacted(mlp, beliefs, X, "moments")
    assert gone == [((), (1,))]
    assert small.model.f is mlp
    b, v = beliefs["b"], beliefs["v"]
    draws = RNG.normal(size=(2, 400_000, 2))
    c = np.tanh(b.mean[1] + np.sqrt(b.variance[1]) * draws[0, :, :1])
    w = np.asarray(v.mean[1]) + np.sqrt(np.asarray(v.variance[1])) * draws[1]
    added = small.beliefs["c"].mean - beliefs["c"].mean
    more = small.beliefs["c"].variance - beliefs["c"].variance
    product = w * c
    error = product.std(0) / np.sqrt(len(product))
    assert np.all(np.abs(product.mean(0) - added) < 5 * error)
    np.testing.assert_allclose(product.var(0), more, rtol=0.02)


def test_a_constant_stays_where_no_bias_is_added():
    beliefs = without_inputs(believed(mlp_params(c=None)), 1)
    assert compacted(mlp, beliefs, X)[1] == []


def test_a_constant_stays_where_one_of_its_readers_cannot_take_it():
    def f(p, x):
        h = jnp.tanh(x @ p["w"] + p["b"][None])
        return jnp.concatenate([h @ p["v"] + p["c"][None], h @ p["u"]], axis=1)

    beliefs = without_inputs(believed(mlp_params(u=(4, 1))), 1)
    small, gone = compacted(f, beliefs, X)
    assert gone == []
    np.testing.assert_array_equal(small.beliefs["c"].mean, beliefs["c"].mean)
    unread = beliefs | {"u": masked(beliefs["u"], (np.arange(4) != 1)[:, None])}
    assert compacted(f, unread, X)[1] == [((), (1,))]


def test_a_bias_that_is_used_twice_takes_nothing():
    def f(p, x):
        return mlp(p, x) + jnp.exp(p["c"])[None]

    assert compacted(f, without_inputs(believed(mlp_params()), 1), X)[1] == []


def test_a_certain_bias_takes_what_is_certain():
    beliefs = without_inputs(believed(mlp_params()), 1)
    certain = beliefs | {"c": beliefs["c"].mean}
    small, gone = compacted(mlp, certain, X)
    assert gone == []
    no_variance = sc.Normal(beliefs["v"].mean, jnp.zeros((4, 2)))
    small, gone = compacted(mlp, certain | {"v": no_variance, "b": beliefs["b"].mean}, X)
    assert gone == [((), (1,))]
    assert isinstance(small.beliefs["c"], jax.Array)
    assert small.priors["c"] is None


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_a_constant_channel_goes_unless_the_border_differs(padding):
    def f(p, x):
        numbers = ("NHWC", "HWIO", "NHWC")
        conv = jax.lax.conv_general_dilated
        h = conv(x, p["w"], (1, 1), "VALID", dimension_numbers=numbers)
        h = jax.nn.sigmoid(h + p["b"][None, None, None])
        h = conv(h, p["v"], (1, 1), padding, dimension_numbers=numbers) + p["c"][None, None, None]
        return jnp.max(jax.nn.relu(h), axis=(1, 2)) @ p["u"]

    shapes = {"w": (3, 3, 2, 4), "b": (4,), "v": (3, 3, 4, 3), "c": (3,), "u": (3, 2)}
    beliefs = believed({name: jnp.ones(shape) for name, shape in shapes.items()})
    x = RNG.normal(size=(20, 6, 6, 2))
    _, gone = compacted(f, without_inputs(beliefs, 2), x)
    assert gone == ([((), (2,))] if padding == "VALID" else [])


def test_inputs_in_a_pytree_and_leaves_that_are_no_arrays():
    def f(p, x):
        return jax.nn.relu(x["a"] @ p["w"] + x["b"] @ p["u"]) @ p["v"]

    beliefs = believed({"w": jnp.ones((3, 5)), "u": jnp.ones((2, 5)), "v": jnp.ones((5, 1))})
    alive = (np.arange(5) != 3)[:, None]
    beliefs = beliefs | {"v": masked(beliefs["v"], alive), "name": "net"}
    x = {"a": X[:50], "b": X[50:, :2]}
    small, gone = compacted(f, beliefs, x)
    assert gone == [((3,), ())]
    assert small.beliefs["name"] == "net"
    assert [a.tolist() for a in small.compaction.kept_inputs.values()] == [[0, 1, 2], [0, 1]]


@pytest.mark.slow
def test_a_compacted_model_is_saved_loaded_pruned_and_updated(tmp_path):
    network, key = Dense(3, hidden=(6,), outputs=2), jax.random.key(0)
    y = X @ RNG.normal(size=(3, 2))
    options = {"key": key, "epochs": 5, "progress": False}
    fitted = sc.fit(sc.BayesianModel(network, network.init(key)), (X, y), **options)
    beliefs = pruned_by_force(fitted.beliefs, 0.5, seed=3)
    small = sc.compact(trained(network, beliefs, inference="moments"))
    assert small.model.f.hidden < network.hidden
    assert "parameters" in repr(small)
    path = tmp_path / "model.safetensors"
    sc.save(small, path)
    loaded = sc.load(path)
    assert loaded.model.f == small.model.f
    assert loaded.weights_before == small.weights_before
    np.testing.assert_array_equal(loaded.predict(X).mean, small.predict(X).mean)
    pruned = sc.prune(small, (X, y), **options)
    assert pruned.model.f == small.model.f
    updated = sc.update(small, (X[:10], y[:10]), **options)
    assert updated.model.f == small.model.f


def test_what_is_refused():
    with pytest.raises(TypeError, match="is not a trained model"):
        sc.compact(Dense(3))
    result = trained(mlp, believed(mlp_params()))
    with pytest.raises(ValueError, match="compact\\(trained, inputs=x\\)"):
        sc.compact(result)


def test_variances_are_compared_up_to_the_rounding_of_squares():
    """Oracle: a variance is E[f²] − E[f]², so float32 leaves it an error of a few ulps of E[f]²."""

    def differ(dtype, change):
        mean, variance = np.array([1.4], dtype), np.array([5e-3], dtype)
        one, other = Normal(mean, variance), Normal(mean, variance + np.asarray(change, dtype))
        return not compacting.are_same([one], [other])

    assert not differ(np.float32, 2e-8)
    assert differ(np.float32, 5e-6)  # a thousandth
    assert differ(np.float64, 2e-8)
