"""Steps read off a model function compute what it computes: whole rows, and frame by frame."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from exported import trained
from model_zoo import equinox_model, hand_gru, keras_model, nnx_model, nnx_rngs
from secateur.beliefs import mean_weights
from secateur.exports.evaluator import FloatArithmetic, evaluate_graph, run_frames
from secateur.exports.graph import ExportError
from secateur.exports.lowering import lower_function
from secateur.exports.model_graph import make_model_graph
from secateur.exports.simplification import simplify_graph
from secateur.training.scaling import Affine, Scaling

RANDOM = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    RANDOM.bit_generator.state = np.random.default_rng(3).bit_generator.state


def steps(f, x, **options):
    return simplify_graph(lower_function(f, jax.ShapeDtypeStruct(x.shape, x.dtype), **options))


def test_simplifying_leaves_few_steps():
    """An MLP in units of the data: two products, one function, and the shift that is too large."""
    network = sc.networks.Dense(3, hidden=(4,))
    params = network.init(jax.random.key(0))
    near, far = (Affine(np.full(3, mean), np.full(3, 2.0)) for mean in (1.0, 1e5))

    def ops(affine):
        f = lambda x: 7 + 3 * network(params, affine.to_standard(x))  # noqa: E731
        return [node.op for node in steps(f, jnp.ones((1, 3))).nodes]

    assert ops(near) == ["linear", "max", "linear"]
    assert ops(far) == ["sub", "linear", "max", "linear"]


# --- frame by frame -------------------------------------------------------------------------------


def gru_of_our_own(sequence):
    network = sc.networks.Gru(3, 5)
    params = network.init(jax.random.key(0))
    if not sequence:
        return lambda x: network(params, x)
    weights = jnp.asarray(RANDOM.normal(size=(3, 2)))

    def every_state(x):
        def step(h, frame):
            h = jnp.tanh(frame @ weights + 0.5 * h)
            return h, 2 * h + 1

        return jax.lax.scan(step, jnp.zeros((len(x), 2)), jnp.swapaxes(x, 0, 1))[1].swapaxes(0, 1)

    return every_state


def nnx_cell(name, sequence):
    from flax import nnx

    cell = getattr(nnx, name)(3, 4, param_dtype=jnp.float64, rngs=nnx_rngs())
    rnn = nnx.RNN(cell, rngs=nnx_rngs())
    model = nnx_model(
        rnn, jnp.zeros((2, 6, 3)), None if sequence else (lambda rnn, x: rnn(x)[:, -1])
    )
    return lambda x: model.f(model.params, x)


def equinox_cell(name, sequence):
    import equinox as eqx

    made = getattr(eqx.nn, name)(3, 4, key=jax.random.key(0))
    start = jnp.zeros(4) if name == "GRUCell" else (jnp.zeros(4), jnp.zeros(4))

    def run(cell, x):
        def one(x):
            def step(state, x):
                state = cell(x, state)
                return state, jax.tree.leaves(state)[0]

            state, outputs = jax.lax.scan(step, start, x)
            return outputs if sequence else jax.tree.leaves(state)[0]

        return jax.vmap(one)(x)

    model = equinox_model(made, jnp.zeros((2, 6, 3)), run)
    return lambda x: model.f(model.params, x)


def keras_cell(name, sequence):
    model = keras_model(
        lambda k: [getattr(k, name)(4, dtype="float64", return_sequences=sequence)],
        jnp.zeros((2, 6, 3)),
    )
    return lambda x: model.f(model.params, x)


CELLS = {
    "secateur Gru": (None, gru_of_our_own),
    "nnx GRU": ("flax", lambda sequence: nnx_cell("GRUCell", sequence)),
    "nnx LSTM": ("flax", lambda sequence: nnx_cell("LSTMCell", sequence)),
    "equinox GRU": ("equinox", lambda sequence: equinox_cell("GRUCell", sequence)),
    "equinox LSTM": ("equinox", lambda sequence: equinox_cell("LSTMCell", sequence)),
    "keras GRU": ("keras", lambda sequence: keras_cell("GRU", sequence)),
    "keras LSTM": ("keras", lambda sequence: keras_cell("LSTM", sequence)),
}


@pytest.mark.parametrize("sequence", [False, True], ids=["last", "sequence"])
@pytest.mark.parametrize("name", CELLS)
def test_frame_by_frame_is_the_whole_sequence(name, sequence):
    framework, build = CELLS[name]
    if framework:
        pytest.importorskip(framework)
    with jax.numpy_rank_promotion("allow"):
        f = build(sequence)
    graph = steps(f, jnp.zeros((1, 1, 3)), by_frame=True)
    assert graph.states
    x = RANDOM.normal(size=(2, 6, 3))
    truth = np.asarray(jax.jit(f)(jnp.asarray(x)))
    for row, expected in zip(x, truth, strict=True):
        outputs = run_frames(graph, row[:, None, None])
        outputs = outputs.reshape(6, -1)
        np.testing.assert_allclose(outputs if sequence else outputs[-1], expected, atol=1e-6)


def recurrent(read):
    """A network of one state; `read` makes its output of the states after all frames."""
    w = {"w": jnp.asarray(RANDOM.normal(size=(2, 3)), jnp.float32)}

    def run(params, x, reverse=False):
        def step(h, frame):
            h = jnp.tanh(frame @ params["w"] + 0.5 * h)
            return h, h

        start = jnp.zeros((x.shape[0], 3), x.dtype)
        states = jax.lax.scan(step, start, jnp.swapaxes(x, 0, 1), reverse=reverse)[1]
        return jnp.swapaxes(states, 0, 1)

    return (lambda params, x: read(run, params, x)), w


MIXED = {
    "mean over time": lambda run, p, x: run(p, x).mean(1)[:, :1],
    "first state": lambda run, p, x: run(p, x)[:, 0, :1],
    "reversed": lambda run, p, x: run(p, x, reverse=True)[:, 0, :1],
    "flipped": lambda run, p, x: run(p, x[:, ::-1])[:, -1, :1],
    "bidirectional": lambda run, p, x: (run(p, x) + run(p, x, reverse=True))[:, -1, :1],
    "difference in time": lambda run, p, x: run(p, x - x.mean(1, keepdims=True))[:, -1, :1],
    "attention to the last": lambda run, p, x: run(p, x)[:, -1, :1] * x[:, 0, :1],
}


@pytest.mark.parametrize(
    ("name", "units"),
    [*((name, 1.0) for name in MIXED), ("mean over time", 1e-6), ("first state", 1e5)],
)
def test_a_network_that_mixes_time_is_refused(name, units):
    """Also where its outputs are tiny, or vary little around a large number."""
    f, w = recurrent(MIXED[name])
    model = trained(f, w)
    targets = Affine(np.array([units if units > 1 else 0.0]), np.array([min(units, 1.0)]))
    model = replace(model, scaling=Scaling(None, targets))
    with pytest.raises(ExportError, match="frame"):
        make_model_graph(model, RANDOM.normal(size=(4, 6, 2)))


def test_the_same_network_with_its_last_state_is_accepted():
    f, w = recurrent(lambda run, p, x: run(p, x)[:, -1, :1])
    made = make_model_graph(trained(f, w), RANDOM.normal(size=(4, 6, 2)))
    assert made.by_frame
    assert made.graph.inputs[0].shape == (1, 1, 2)


def test_states_that_begin_with_what_was_computed_are_refused():
    f = lambda x: jax.lax.scan(lambda h, f: (h + f, None), x[:, 0], x.swapaxes(0, 1))[0]  # noqa: E731
    with pytest.raises(ExportError, match="begins with computed values"):
        lower_function(f, jax.ShapeDtypeStruct((1, 4, 2), jnp.float32))


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_inputs_far_from_zero_lose_nothing(hidden):
    """Inputs of 1e5 ± 1 in float32, held against float64."""
    network = sc.networks.Dense(3, hidden=hidden)
    params = network.init(jax.random.key(1))
    affine = Affine(np.full(3, 1e5), np.ones(3))
    model = replace(trained(network, params), scaling=Scaling(affine, None))
    rows = (1e5 + RANDOM.normal(size=(50, 3))).astype(np.float32)
    made = make_model_graph(model, rows)
    weights = mean_weights(model.beliefs)
    truth = np.asarray(network(weights, jnp.asarray(rows.astype(np.float64) - 1e5)))
    for arithmetic in (None, FloatArithmetic(np.float32)):
        found = made.run(rows.astype(np.float64 if arithmetic is None else np.float32), arithmetic)
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-5 * np.ptp(truth))


def test_what_cannot_be_exported_names_the_users_line():
    def f(x):
        return jnp.sort(x)

    with pytest.raises(ExportError, match=r"'sort' cannot be exported \(.*test_export_graph\.py"):
        lower_function(f, jax.ShapeDtypeStruct((1, 4), jnp.float32))


def test_random_numbers_are_refused():
    def f(x):
        return x + jax.random.normal(jax.random.key(x[0, 0].astype(int)), (1, 4))

    with pytest.raises(ExportError, match=r"cannot be exported \(.*\.py"):
        lower_function(f, jax.ShapeDtypeStruct((1, 4), jnp.float32))


def test_constants_are_not_steps():
    model = hand_gru(readout=True)
    graph = steps(lambda x: model.f(model.params, x) * 0 + 3 * jnp.exp(jnp.ones((4, 2))), model.x)
    (found, *_), _ = evaluate_graph(graph, [np.asarray(model.x)])
    np.testing.assert_allclose(found, 3 * np.e)
