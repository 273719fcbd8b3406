"""ONNX files: checked by onnx, run by onnxruntime. Oracle: the model itself in JAX."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

import model_zoo as zoo
import secateur as sc
from exported import NOISE, run, trained
from secateur.beliefs import mean
from secateur.exports.graph import ExportError
from secateur.exports.onnx import write_onnx
from secateur.fitting.scaling import Affine, Scaling
from secateur.tables import Column, Encoding, Target

REFUSED = ("Embed", "Attention")
CASES = [c for c in zoo.CASES if not any(word in c.name for word in REFUSED)]


def rows_of(case):
    """A function of (weights, rows), its weights, and rows."""
    f, params, x, _ = case.build()
    if x is None:  # pooling of the input itself
        return (lambda w, x: w[0] * f(x, None)), [jnp.ones(1).reshape(1, 1, 1, 1)], params
    if (
        case.framework == "equinox"
        and "batch" not in case.name
        and case.name != "equinox GRUCell scan"
    ):
        return (lambda w, x: jax.vmap(partial(f, w))(x)), params, x[None]
    return f, params, x


def assert_runs_like(path, f, params, x, length=None):
    """For one row, for seven, and for seven of another length of time."""
    random = np.random.default_rng(0)
    for size in [x.shape[1:]] + ([(length, *x.shape[2:])] if length else []):
        rows = random.normal(size=(7, *size)).astype(np.float32)
        with jax.numpy_rank_promotion("allow"):
            truth = jax.jit(lambda x: f(params, x))(jnp.asarray(rows, jnp.float64))
        for count in (1, 7):
            found = run(path, rows[:count])["mean"]
            assert found.shape == (count, *truth.shape[1:])
            np.testing.assert_allclose(found, truth[:count], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_models_of_all_libraries(case, tmp_path):
    f, params, x = rows_of(case)
    model = trained(f, params)
    written = write_onnx(model, tmp_path / "m.onnx", inputs=x, deviation=False)
    length = 13 if case.recurrent else None
    assert_runs_like(tmp_path / "m.onnx", f, mean(model.beliefs), x, length)
    assert not {"Loop", "Scan", "If"} & set(written.operators)
    if case.recurrent:
        assert written.operators["LSTM" if "LSTM" in case.name else "GRU"] == 1


def flax_pools(x):
    from flax import nnx

    x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
    return nnx.avg_pool(x, (2, 2), strides=(1, 1), padding="SAME", count_include_pad=False)


def flax_network():
    from flax import nnx

    rngs = nnx.Rngs(0)
    network = nnx.Sequential(
        nnx.Conv(2, 4, (3, 3), strides=2, padding="VALID", rngs=rngs),
        nnx.silu,
        flax_pools,
        nnx.Conv(4, 6, (2, 2), feature_group_count=2, rngs=rngs),
        nnx.relu,
        lambda x: x.reshape(x.shape[0], -1),
        nnx.Linear(54, 3, rngs=rngs),
    )
    return zoo.nnx_model(network, zoo.normal(0, 2, 11, 11, 2))


def keras_network():
    return zoo.keras_model(
        lambda k: [
            k.Conv2D(4, 3, padding="same", activation="relu", dtype="float64"),
            k.AveragePooling2D(2, padding="same", dtype="float64"),
            k.Conv2D(4, 3, padding="valid", strides=2, dtype="float64"),
            k.GlobalAveragePooling2D(dtype="float64"),
            k.Dense(2, dtype="float64"),
        ],
        zoo.normal(0, 2, 9, 9, 2),
    )


def equinox_network():
    import equinox as eqx

    keys = jax.random.split(jax.random.key(0), 3)
    network = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(2, 4, 3, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Conv2d(4, 6, 2, groups=2, stride=2, key=keys[1]),
            eqx.nn.AvgPool2d(2, 1, padding=1),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(54, 3, key=keys[2]),
        ]
    )
    x = zoo.normal(0, 2, 2, 8, 8)
    return zoo.equinox_model(network, x, lambda network, x: jax.vmap(network)(x))


@pytest.mark.parametrize(
    ("build", "moves"), [(flax_network, 1), (keras_network, 1), (equinox_network, 0)]
)
def test_convolutions_and_pooling_in_both_layouts(build, moves, tmp_path):
    with jax.numpy_rank_promotion("allow"):
        f, params, x, _ = build()
    model = trained(f, params)
    written = write_onnx(model, tmp_path / "m.onnx", inputs=x, deviation=False)
    assert_runs_like(tmp_path / "m.onnx", f, mean(model.beliefs), x)
    # Between layers nothing is moved from one layout to the other: only raw inputs are.
    assert written.operators.get("Transpose", 0) == moves
    assert written.operators["Conv"] == 2
    assert written.operators["AveragePool"] == 1


def looping(params, x, *, start=0.3, reverse=True):
    """A GRU that goes backwards from a given state; the mean of its states over time is read."""

    def step(h, x):
        gates = [zoo.affine(a, x) + zoo.affine(b, h) for a, b in params["gates"][:2]]
        r, z = (jax.nn.sigmoid(gate) for gate in gates)
        a, b = params["gates"][2]
        h = z * h + (1 - z) * jnp.tanh(zoo.affine(a, x) + r * zoo.affine(b, h))
        return h, h

    begin = jnp.full((x.shape[0], 4), start)
    _, states = jax.lax.scan(step, begin, jnp.swapaxes(x, 0, 1), reverse=reverse)
    return zoo.affine(params["out"], jnp.mean(states, axis=0))


GATES = {
    "gates": [(zoo.dense(4 * i, 2, 4), zoo.dense(4 * i + 2, 4, 4)) for i in range(3)],
    "out": zoo.dense(20, 4, 1),
}


def test_a_loop_backwards_from_a_given_state_and_a_mean_over_any_time(tmp_path):
    model = trained(looping, GATES)
    x = zoo.normal(0, 3, 6, 2)
    written = write_onnx(model, tmp_path / "m.onnx", inputs=x, deviation=False)
    assert written.operators["GRU"] == written.operators["ReduceMean"] == 1
    assert_runs_like(tmp_path / "m.onnx", looping, mean(model.beliefs), x, length=1)


def reading_out_in_the_loop(params, x):
    """What a frame gives is computed in the loop, from the new state and the frame."""
    network = sc.networks.Gru(2, units=4)
    gates = params["gates"]

    def step(h, x):
        def before(gate, h):
            return zoo.affine({"w": gate["inputs"], "b": gate["bias"]}, x) + h @ gate["state"]

        r, z = (jax.nn.sigmoid(before(gates[name], h)) for name in ("reset", "update"))
        h = (1 - z) * jnp.tanh(before(gates["candidate"], r * h)) + z * h
        out = zoo.affine({"w": params["readout"]["weights"], "b": params["readout"]["bias"]}, h)
        return h, jnp.exp(out) + 2.0 * x[:, :1]

    start = jnp.zeros((x.shape[0], network.units))
    return jnp.swapaxes(jax.lax.scan(step, start, jnp.swapaxes(x, 0, 1))[1], 0, 1)


def test_a_readout_inside_the_loop(tmp_path):
    params = sc.networks.Gru(2, units=4).init(jax.random.key(0))
    model = trained(reading_out_in_the_loop, params)
    x = zoo.normal(0, 3, 6, 2)
    written = write_onnx(model, tmp_path / "m.onnx", inputs=x, deviation=False)
    assert written.operators["GRU"] == written.operators["MatMul"] == 1
    assert_runs_like(
        tmp_path / "m.onnx", reading_out_in_the_loop, mean(model.beliefs), x, length=13
    )


def test_a_length_that_the_model_knows_stays(tmp_path):
    def f(params, x):
        weights = jnp.arange(x.shape[1], dtype=x.dtype)[None, :, None] / 10
        return looping(params, x * weights)

    model = trained(f, GATES)
    x = zoo.normal(0, 3, 6, 2)
    write_onnx(model, tmp_path / "m.onnx", inputs=x, deviation=False)
    assert_runs_like(tmp_path / "m.onnx", f, mean(model.beliefs), x)
    file = onnx.load(tmp_path / "m.onnx")
    assert file.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 6


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "softplus"])
def test_mean_and_deviation_by_moments(activation, tmp_path):
    """Oracle: `predict`, and the variance of the noise β/(α − 1); float32, as users have it."""
    network = sc.networks.Dense(3, hidden=(6, 5), activation=activation)
    model = trained(network, network.init(jax.random.key(0)), scaled=3, dtype=jnp.float32)
    written = write_onnx(model, tmp_path / "m.onnx")
    assert written.operators["Gemm"] >= 5  # means and variances
    for rows in (1, 7):
        x = (10 + np.random.default_rng(rows).normal(size=(rows, 3))).astype(np.float32)
        found, truth = run(tmp_path / "m.onnx", x), model.predict(x)
        noise = 3.0**2 * NOISE.rate / (NOISE.shape - 1)
        deviation = np.sqrt(np.asarray(truth.variance, np.float64) + noise)
        np.testing.assert_allclose(found["mean"], truth.mean, rtol=1e-5)
        np.testing.assert_allclose(found["standard_deviation"], deviation, rtol=1e-5)


def test_inputs_far_from_zero_keep_their_digits(tmp_path):
    """Oracle: the same standardisation in float64. Inputs are exact in float32."""
    model = trained(lambda w, x: x @ w, jnp.ones((2, 1)), scaled=2)
    shift, scale = np.array([1e5 + 0.1234, 3e-4]), np.array([0.5, 1e-5])
    object.__setattr__(model, "scaling", Scaling(Affine(shift, scale), None))
    write_onnx(model, tmp_path / "m.onnx", inputs=np.zeros((1, 2)), deviation=False)
    x = (shift + scale * np.random.default_rng(0).normal(size=(50, 2))).astype(np.float32)
    truth = ((x.astype(np.float64) - shift) / scale) @ np.asarray(mean(model.beliefs))
    np.testing.assert_allclose(run(tmp_path / "m.onnx", x)["mean"], truth, atol=1e-5)


def test_moments_of_a_convolutional_network(tmp_path):
    (case,) = (c for c in zoo.CASES if c.name == "nnx CNN")
    f, params, x, _ = case.build()
    model = trained(f, params, dtype=jnp.float32)
    write_onnx(model, tmp_path / "m.onnx", inputs=x)
    x = np.asarray(x, np.float32)
    found, truth = run(tmp_path / "m.onnx", x), model.predict(x)
    deviation = np.sqrt(np.asarray(truth.variance, np.float64) + NOISE.rate / (NOISE.shape - 1))
    np.testing.assert_allclose(found["mean"], truth.mean, atol=1e-5)
    np.testing.assert_allclose(found["standard_deviation"], deviation, rtol=1e-5)


@pytest.mark.parametrize("inference", ["moments", "local"])
def test_a_gru_has_the_deviation_of_its_noise_and_says_so(inference, tmp_path):
    network = sc.networks.Gru(2, units=4)
    params = network.init(jax.random.key(0))
    model = trained(network, params, scaled=2, inference=inference)
    written = write_onnx(model, tmp_path / "m.onnx")
    assert "of the noise alone" in written.metadata["output_standard_deviation"]
    assert "posterior means" in written.metadata["output_mean"]
    for rows, frames in ((1, 5), (7, 12)):
        x = (10 + np.random.default_rng(0).normal(size=(rows, frames, 2))).astype(np.float32)
        found = run(tmp_path / "m.onnx", x)
        scaled = (x - model.scaling.inputs.shift) / model.scaling.inputs.scale
        truth = 20 + 3 * network(mean(model.beliefs), jnp.asarray(scaled))
        np.testing.assert_allclose(found["mean"], truth, atol=1e-5)
        deviation = np.full((rows, 1), 3 * np.sqrt(4 / 29))
        np.testing.assert_allclose(found["standard_deviation"], deviation, rtol=1e-6)


@pytest.mark.parametrize("moments", [True, False])
def test_probabilities_and_rates(moments, tmp_path):
    """Oracle: `log_density` (good to 2e-4 for several classes) and softmax, sigmoid, exp."""
    x = (10 + np.random.default_rng(0).normal(size=(5, 3))).astype(np.float32)

    def export(outputs, likelihood):
        network = sc.networks.Dense(3, hidden=(4,), outputs=outputs)
        params = network.init(jax.random.key(0))
        model = trained(network, params, scaled=3, dtype=jnp.float32, likelihood=likelihood)
        write_onnx(model, tmp_path / "m.onnx", deviation=moments)
        standard = jnp.asarray(model.scaling.inputs.to_standard(x), jnp.float32)
        (found,) = run(tmp_path / "m.onnx", x).values()
        return model, found, network(mean(model.beliefs), standard)

    model, found, logits = export(3, sc.CategoricalLikelihood())
    truth = jax.nn.softmax(logits)
    if moments:
        logs = [model.log_density(x, np.full(5, label, np.int32)) for label in range(3)]
        truth = np.exp(np.stack(logs, axis=1))
    np.testing.assert_allclose(found, truth, atol=2e-4 if moments else 1e-5)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)

    model, found, logits = export(1, sc.BernoulliLikelihood())
    truth = jax.nn.sigmoid(logits)
    if moments:
        truth = np.exp(model.log_density(x, np.ones((5, 1))))[:, None]
    np.testing.assert_allclose(found, truth, atol=1e-5)

    model, found, logits = export(1, sc.PoissonLikelihood())
    truth = jnp.exp(logits)
    if moments:
        log_rate = model.predict(x)
        truth = jnp.exp(log_rate.mean + log_rate.variance / 2)
    np.testing.assert_allclose(found, truth, rtol=1e-5)


def test_a_file_says_what_it_is(tmp_path):
    network = sc.networks.Dense(2, hidden=(3,))
    model = trained(network, network.init(jax.random.key(0)))
    x = np.array([[1.0, 5.0], [2.0, -1.0]])
    write_onnx(model, tmp_path / "m.onnx", inputs=x, names=["a", "ß"])
    file = onnx.load(tmp_path / "m.onnx")
    assert file.ir_version == 8
    assert [(o.domain, o.version) for o in file.opset_import] == [("", 17)]
    facts = {entry.key: entry.value for entry in file.metadata_props}
    assert json.loads(facts["input_names"]) == ["a", "ß"]
    assert json.loads(facts["input_ranges"]) == [[1, 2], [-1, 5]]
    assert float(facts["free_energy_nats"]) == 12.5
    assert int(facts["live_weights"]) == model.live_weights
    assert facts["secateur_version"] == sc.__version__
    assert "by moments" in facts["output_mean"]
    other = trained(network, network.init(jax.random.key(1)))
    again = write_onnx(other, tmp_path / "other.onnx")
    assert len(facts["weights_sha256"]) == 64
    assert again.metadata["weights_sha256"] != facts["weights_sha256"]
    assert again.size == (tmp_path / "other.onnx").stat().st_size


def test_a_model_of_a_table_says_what_its_inputs_are(tmp_path):
    columns = (
        Column("age", "number", fill=3.0),
        Column("colour", "category", ("blue", "red", "white"), "red"),
    )
    encoding = Encoding(columns, (Target("buys", ("no", "yes")),), "classification")
    network = sc.networks.Dense(4, hidden=(3,), outputs=2)
    params = network.init(jax.random.key(0))
    model = trained(network, params, likelihood=sc.CategoricalLikelihood())
    object.__setattr__(model, "extra", {"table": encoding.to_json()})
    facts = write_onnx(model, tmp_path / "m.onnx", deviation=False).metadata
    names = ["age", "colour=blue", "colour=red", "colour=white"]
    assert json.loads(facts["input_names"]) == names
    assert json.loads(facts["input_ranges"]) == [None, [0, 1], [0, 1], [0, 1]]
    assert json.loads(facts["targets"]) == ["buys"]
    assert json.loads(facts["classes"]) == ["no", "yes"]


def test_a_model_of_which_nothing_is_left(tmp_path):
    def constant(bias, x):
        return jnp.broadcast_to(bias[None], (x.shape[0], 1))

    model = trained(constant, jnp.full(1, 2.5))
    write_onnx(model, tmp_path / "m.onnx", inputs=np.zeros((3, 2)), deviation=False)
    found = run(tmp_path / "m.onnx", np.zeros((4, 2)))["mean"]
    np.testing.assert_allclose(found, np.full((4, 1), mean(model.beliefs)), rtol=1e-6)


def vanilla_rnn(params, x):
    def step(h, x):
        return jnp.tanh(zoo.affine(params[0], x) + zoo.affine(params[1], h)), None

    return jax.lax.scan(step, jnp.zeros((x.shape[0], 4)), jnp.swapaxes(x, 0, 1))[0]


def attention(params, x):
    y = x @ params
    return jnp.einsum("nij,njk->nik", y, jnp.swapaxes(y, 1, 2))


def normalised_by_the_batch(params, x):
    return (x - jnp.mean(x, axis=0, keepdims=True)) @ params


@pytest.mark.parametrize(
    ("f", "params", "x", "message"),
    [
        (vanilla_rnn, [zoo.dense(0, 2, 4), zoo.dense(2, 4, 4)], (3, 5, 2), "Supported: GRU and"),
        (attention, jnp.ones((2, 2)), (3, 5, 2), "product of two computed arrays"),
        (lambda w, x: jnp.sort(x @ w, axis=-1), jnp.ones((2, 3)), (3, 2), "sort"),
        (normalised_by_the_batch, jnp.ones((2, 3)), (3, 2), "how many rows"),
    ],
    ids=["vanilla", "attention", "sort", "batch"],
)
def test_what_cannot_be_exported_leaves_no_file(f, params, x, message, tmp_path):
    model = trained(f, params)
    with pytest.raises(ExportError, match=message):
        write_onnx(model, tmp_path / "m.onnx", inputs=np.zeros(x))
    assert not list(tmp_path.iterdir())


def test_errors_of_use(tmp_path, monkeypatch):
    network = sc.networks.Dense(2, hidden=(3,))
    model = trained(network, network.init(jax.random.key(0)))
    with pytest.raises(ExportError, match="there is no folder"):
        write_onnx(model, tmp_path / "nowhere" / "m.onnx", deviation=False)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ExportError, match="cannot be written"):
        write_onnx(model, tmp_path / "taken", deviation=False)
    with pytest.raises(ExportError, match="1 names for 2 inputs"):
        write_onnx(model, tmp_path / "m.onnx", names=["a"], deviation=False)
    own = trained(lambda w, x: x @ w, jnp.ones((2, 1)))
    with pytest.raises(ExportError, match="inputs=x"):
        write_onnx(own, tmp_path / "m.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ImportError, match=r"secateur\[onnx\]"):
        write_onnx(model, tmp_path / "m.onnx")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]
