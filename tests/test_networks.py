"""The networks that come with the library."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from compiling import compiled_programs
from secateur.networks import ACTIVATIONS, Dense, Gru

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def gru():
    network = Gru(3, units=4, outputs=2)
    return network, network.init(KEY), jax.random.normal(jax.random.key(1), (5, 8, 3))


def test_a_dense_network_is_its_layers():
    # Oracle: NumPy.
    network = Dense(3, hidden=(5, 4), outputs=2, activation="tanh")
    params = network.init(KEY)
    h = x = np.random.default_rng(0).normal(size=(7, 3))
    for layer in params["layers"][:-1]:
        h = np.tanh(h @ np.asarray(layer["weights"]) + 0.0)
    np.testing.assert_allclose(network(params, x), h @ np.asarray(params["layers"][-1]["weights"]))


def test_without_hidden_layers_a_dense_network_is_linear():
    network = Dense(3, hidden=())
    params = network.init(KEY)
    assert [layer["weights"].shape for layer in params["layers"]] == [(3, 1)]
    np.testing.assert_allclose(
        network(params, 2 * jnp.ones((1, 3))), 2 * params["layers"][0]["weights"].sum(0)[None]
    )


def test_weights_keep_the_size_of_their_input():
    # Oracle: He's variance 2/inputs, within four standard errors of a sample variance.
    weights = Dense(200, hidden=(100,)).init(KEY)["layers"][0]["weights"]
    assert abs(weights.var() * 200 / 2 - 1) < 4 * np.sqrt(2 / weights.size)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_one_operation_on_an_uncertain_value(activation):
    # Traced only. Piecewise and by quadrature: never several operations taken as independent.
    network = Dense(2, hidden=(3,), activation=activation)
    rows = sc.coverage(network, network.init(KEY), jnp.ones((4, 2)))
    assert len(rows) >= 7
    assert {row.exactness for row in rows} <= {"exact", "quadrature", "independent"}
    # What is left is the second layer, whose inputs share the weights of nothing but their own.
    assert all(row.operation == "dot_general" for row in rows.approximations)


def test_a_gru_is_that_of_cho_et_al(gru):
    # Oracle: the equations, step by step, in NumPy.
    network, params, x = gru
    params = jax.tree.map(lambda a: np.asarray(a) + 0.1, params)
    gates = params["gates"]

    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    def of(name, x, h):
        return x @ gates[name]["inputs"] + h @ gates[name]["state"] + gates[name]["bias"]

    h = np.zeros((5, 4))
    for t in range(8):
        now = np.asarray(x[:, t])
        r, z = sigmoid(of("reset", now, h)), sigmoid(of("update", now, h))
        h = (1 - z) * np.tanh(of("candidate", now, r * h)) + z * h
    expected = h @ params["readout"]["weights"] + params["readout"]["bias"]
    np.testing.assert_allclose(network(params, x), expected, rtol=1e-12)


@pytest.mark.slow
def test_moments_of_a_gru(gru):
    # Oracle: 10 000 draws of all weights; the rule for loops is first-order, so within 15 %.
    network, params, x = gru
    beliefs = jax.tree.map(lambda m: sc.Normal(m, jnp.full_like(m, 0.01)), params)
    found = jax.jit(lambda b: sc.propagate(network, "moments")(None, b, x))(beliefs)
    draw = jax.jit(jax.vmap(lambda key: sc.propagate(network, "global")(key, beliefs, x)))
    samples = draw(jax.random.split(KEY, 10_000))
    np.testing.assert_allclose(found.mean, samples.mean(0), atol=0.01)
    np.testing.assert_allclose(found.variance, samples.var(0), rtol=0.15)


def test_units_of_a_gru_and_of_dense_layers(gru):
    found = sc.units(*gru)
    assert [u.kind for u in found.units].count("hidden") == 4
    assert [u.kind for u in found.units].count("input") == 3
    network = Dense(3, hidden=(5, 4))
    found = sc.units(network, network.init(KEY), jnp.ones((2, 3)))
    assert [u.kind for u in found.units].count("hidden") == 9
    assert [u.kind for u in found.units].count("input") == 3


def test_equal_specifications_are_equal_functions():
    assert Dense(3, hidden=[5, np.int64(4)]) == Dense(3, hidden=(5, 4))
    assert hash(Dense(3, hidden=[5])) == hash(Dense(3, hidden=(5,))) == hash(Dense(3, hidden=5))
    assert Dense(3) != Dense(3, activation="tanh")
    assert Gru(3) == pickle.loads(pickle.dumps(Gru(3))) != Gru(3, units=8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dense(0),
        lambda: Dense(2, hidden=(3, 0)),
        lambda: Dense(2, hidden=2.5),
        lambda: Dense(2, activation="relus"),
        lambda: Gru(2, units=-1),
        lambda: Gru(True),
    ],
)
def test_impossible_networks_are_refused(make):
    with pytest.raises(ValueError, match=r"Give whole numbers|Supported: relu"):
        make()


def test_fitting_and_pruning_the_same_shape_twice_compiles_once():
    counts = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(20, 3))
        y = x[:, :1] + 0.1 * rng.normal(size=(20, 1))
        network, key = Dense(3, hidden=(4,)), jax.random.key(seed)
        model = sc.BayesianModel(network, network.init(key), prior=sc.Normal(0.0, 1.0 + seed))
        with compiled_programs() as programs:
            fitted = sc.fit(model, (x, y), key=key, epochs=8 + seed, progress=False)
            pruned = sc.prune(fitted, (x, y), key=key, what="both", epochs=4, progress=False)
            pruned.predict(x)
        counts.append(programs)
    first, second = counts
    assert {"jit(train)", "jit(score_units)", "jit(_cut_units)"} <= set(first)
    assert second == []
