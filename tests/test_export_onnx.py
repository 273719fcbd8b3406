"""ONNX files: checked by onnx, run by onnxruntime. Oracle: the model itself in JAX."""

import json
import sys
from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from scipy import stats

import model_zoo as zoo
import secateur as sc
from exported import run, trained
from secateur.beliefs import mean_weights
from secateur.exports import to_onnx
from secateur.exports.evaluator import evaluate_graph
from secateur.exports.graph import ExportError
from secateur.exports.lowering import lower_function
from secateur.exports.onnx.gated_cells import recognise_cell
from secateur.exports.simplification import simplify_graph
from secateur.tables import Column, Encoding, Target
from secateur.training.scaling import Affine, Scaling
from test_export_cells import assert_equals_its_body

LOOKUPS = [c for c in zoo.CASES if "embed" in c.name.lower()]
REFUSED = [c for c in LOOKUPS if c.framework == "equinox"]  # picked at two computed places
CASES = [c for c in zoo.CASES if c not in LOOKUPS]


def operators(content):
    """How many operators of each kind a model has."""
    return Counter(node.op_type for node in onnx.load_from_string(content).graph.node)


def facts_of(content):
    """What a model says of itself."""
    return {entry.key: entry.value for entry in onnx.load_from_string(content).metadata_props}


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


def shape_of(x, rows=None):
    return jax.ShapeDtypeStruct((rows or x.shape[0], *x.shape[1:]), x.dtype)


def assert_runs_like(content, f, params, x, graph=None):
    """For one row and for seven; the graph, for its rows."""
    rows = np.random.default_rng(0).normal(size=(7, *x.shape[1:])).astype(np.float32)
    with jax.numpy_rank_promotion("allow"):
        truth = jax.jit(lambda x: f(params, x))(jnp.asarray(rows, jnp.float64))
    for count in (1, 7):
        found = run(content, rows[:count])["mean"]
        assert found.shape == (count, *truth.shape[1:])
        np.testing.assert_allclose(found, truth[:count], rtol=0, atol=1e-5)
    if graph is not None:
        (steps, *_), _ = evaluate_graph(graph, [rows.astype(np.float64)])
        np.testing.assert_allclose(steps, truth, rtol=0, atol=1e-5 * np.abs(truth).max())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_models_of_all_libraries(case):
    """The steps in NumPy, cells found in loops, and the ONNX model: each of them is the model."""
    f, params, x = rows_of(case)
    model = trained(f, params)
    weights = mean_weights(model.beliefs)
    content = to_onnx(model, inputs=x, uncertainty=False)
    if case.recurrent:  # any length of time will do
        x = x[:, [*range(x.shape[1]), 0, 1, 2]]
    with jax.numpy_rank_promotion("allow"):
        graph = simplify_graph(lower_function(lambda x: f(weights, x), shape_of(x, rows=7)))
    assert_runs_like(content, f, weights, x, graph=graph)
    kinds = operators(content)
    assert not {"Loop", "Scan", "If"} & set(kinds)
    if case.recurrent:
        kind = "LSTM" if "LSTM" in case.name else "GRU"
        assert kinds[kind] == 1
        (node,) = [n for n in graph.nodes if n.op == "recurrent"]
        cell = recognise_cell(node)
        assert (cell.kind, cell.units) == (kind, 16)
        assert_equals_its_body(cell, node)


@pytest.mark.parametrize("case", REFUSED, ids=[case.name for case in REFUSED])
def test_models_that_are_refused_name_the_users_line(case):
    model = case.build()
    with pytest.raises(ExportError, match=r"cannot be exported \(.*\.py:\d+.*\)"):
        lower_function(lambda x: model.f(model.params, x), shape_of(model.x))


@pytest.mark.parametrize("case", [c for c in LOOKUPS if c not in REFUSED], ids=lambda c: c.name)
def test_rows_of_tables_are_looked_up(case):
    """The steps in NumPy; oracle: the model in JAX."""
    model = case.build()
    graph = lower_function(lambda x: model.f(model.params, x), shape_of(model.x))
    assert "gather" in [node.op for node in graph.nodes]
    (result,), _ = evaluate_graph(simplify_graph(graph), [np.asarray(model.x)])
    np.testing.assert_allclose(result, model.f(model.params, model.x), atol=1e-6)


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
def test_convolutions_and_pooling_in_both_layouts(build, moves):
    with jax.numpy_rank_promotion("allow"):
        f, params, x, _ = build()
    model = trained(f, params)
    content = to_onnx(model, inputs=x, uncertainty=False)
    assert_runs_like(content, f, mean_weights(model.beliefs), x)
    # Between layers nothing is moved from one layout to the other: only raw inputs are.
    assert operators(content).get("Transpose", 0) == moves
    assert operators(content)["Conv"] == 2
    assert operators(content)["AveragePool"] == 1


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


def test_a_loop_backwards_from_a_given_state_and_a_mean_over_any_time():
    model = trained(looping, GATES)
    x = zoo.normal(0, 3, 6, 2)
    content = to_onnx(model, inputs=x, uncertainty=False)
    assert operators(content)["GRU"] == operators(content)["ReduceMean"] == 1
    assert_runs_like(content, looping, mean_weights(model.beliefs), x[:, :1])


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


def test_a_readout_inside_the_loop():
    params = sc.networks.Gru(2, units=4).init(jax.random.key(0))
    model = trained(reading_out_in_the_loop, params)
    x = zoo.normal(0, 3, 6, 2)
    content = to_onnx(model, inputs=x, uncertainty=False)
    assert operators(content)["GRU"] == operators(content)["MatMul"] == 1
    assert_runs_like(content, reading_out_in_the_loop, mean_weights(model.beliefs), x[:, :5])


def test_a_length_that_the_model_knows_stays():
    def f(params, x):
        weights = jnp.arange(x.shape[1], dtype=x.dtype)[None, :, None] / 10
        return looping(params, x * weights)

    model = trained(f, GATES)
    x = zoo.normal(0, 3, 6, 2)
    content = to_onnx(model, inputs=x, uncertainty=False)
    assert_runs_like(content, f, mean_weights(model.beliefs), x)
    file = onnx.load_from_string(content)
    assert file.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 6


KNOWN = sc.GaussianLikelihood(precision=4.0)


def assert_predicts_the_same(model, x, **options):
    """Every output is that of `predict`, to what float32 can tell beside a deviation."""
    found, truth = run(to_onnx(model, **options), x), model.predict(x)
    lower, upper = truth.interval(0.95)
    expected = {
        "mean": truth.mean, "standard_deviation": truth.standard_deviation, "lower": lower,
        "upper": upper,
    }  # fmt: skip
    assert list(found) == list(expected)
    for name, values in expected.items():
        limit = 1e-6 * np.max(truth.standard_deviation)
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=limit, err_msg=name)


@pytest.mark.parametrize("likelihood", [None, KNOWN], ids=["learnt", "known"])
@pytest.mark.parametrize(
    ("activation", "dtype"),
    [("relu", jnp.float64), ("tanh", jnp.float32), ("elu", jnp.float64), ("softplus", jnp.float32)],
)
def test_mean_deviation_and_interval_by_moments(activation, dtype, likelihood):
    network = sc.networks.Dense(3, hidden=(6, 5), activation=activation)
    params = network.init(jax.random.key(0))
    model = trained(network, params, scaled=3, dtype=dtype, likelihood=likelihood)
    for rows in (1, 7):
        x = (10 + np.random.default_rng(rows).normal(size=(rows, 3))).astype(np.float32)
        assert_predicts_the_same(model, x)
    assert operators(to_onnx(model))["Gemm"] >= 5  # means and variances


def test_inputs_far_from_zero_keep_their_digits():
    """Oracle: the same standardisation in float64. Inputs are exact in float32."""
    model = trained(lambda w, x: x @ w, jnp.ones((2, 1)), scaled=2)
    shift, scale = np.array([1e5 + 0.1234, 3e-4]), np.array([0.5, 1e-5])
    model = replace(model, scaling=Scaling(Affine(shift, scale), None))
    content = to_onnx(model, inputs=np.zeros((1, 2)), uncertainty=False)
    x = (shift + scale * np.random.default_rng(0).normal(size=(50, 2))).astype(np.float32)
    truth = ((x.astype(np.float64) - shift) / scale) @ np.asarray(mean_weights(model.beliefs))
    np.testing.assert_allclose(run(content, x)["mean"], truth, atol=1e-5)


@pytest.mark.slow
def test_moments_of_a_convolutional_network():
    (case,) = (c for c in zoo.CASES if c.name == "nnx CNN")
    f, params, x, _ = case.build()
    model = trained(f, params, dtype=jnp.float32)
    assert_predicts_the_same(model, np.asarray(x, np.float32), inputs=x)


@pytest.mark.parametrize("inference", ["moments", "local"])
def test_a_gru_has_the_deviation_of_its_noise_and_says_so(inference):
    network = sc.networks.Gru(2, units=4)
    params = network.init(jax.random.key(0))
    model = trained(network, params, scaled=2, inference=inference)
    content = to_onnx(model)
    facts = facts_of(content)
    for name in ("standard_deviation", "lower", "upper"):
        assert "of the noise alone" in facts[f"output_{name}"]
    assert "posterior means" in facts["output_mean"]
    assert ("predict averages networks drawn" in facts["output_mean"]) == (inference == "local")
    deviation = 3 * np.sqrt(4 / 29)
    reach = 3 * stats.t.ppf(0.975, 60) * np.sqrt(4 / 30)
    for rows, frames in ((1, 5), (7, 12)):
        x = (10 + np.random.default_rng(0).normal(size=(rows, frames, 2))).astype(np.float32)
        found = run(content, x)
        scaled = (x - model.scaling.inputs.shift) / model.scaling.inputs.scale
        truth = 20 + 3 * np.asarray(network(mean_weights(model.beliefs), jnp.asarray(scaled)))
        np.testing.assert_allclose(found["mean"], truth, atol=1e-5)
        expected = np.full((rows, 1), deviation)
        np.testing.assert_allclose(found["standard_deviation"], expected, rtol=1e-6)
        np.testing.assert_allclose(found["lower"], truth - reach, rtol=1e-6)
        np.testing.assert_allclose(found["upper"], truth + reach, rtol=1e-6)


@pytest.mark.parametrize(
    ("outputs", "likelihood", "link"),
    [
        (3, sc.CategoricalLikelihood(), jax.nn.softmax),
        (1, sc.BernoulliLikelihood(), jax.nn.sigmoid),
        (1, sc.PoissonLikelihood(), jnp.exp),
    ],
    ids=["classes", "yes or no", "counts"],
)
def test_probabilities_and_rates(outputs, likelihood, link):
    """Oracle: `predict`; at the means, softmax, sigmoid, exp."""
    x = (10 + np.random.default_rng(0).normal(size=(5, 3))).astype(np.float32)
    network = sc.networks.Dense(3, hidden=(4,), outputs=outputs)
    params = network.init(jax.random.key(0))
    model = trained(network, params, scaled=3, likelihood=likelihood)
    found, truth = run(to_onnx(model), x), model.predict(x)
    if "rate" in found:
        deviation = found.pop("standard_deviation")
        np.testing.assert_allclose(deviation, truth.standard_deviation, rtol=2e-6)
    (values,) = found.values()
    np.testing.assert_allclose(values, truth.mean, rtol=2e-6)
    standard = jnp.asarray(model.scaling.inputs.to_standard(x))
    (values,) = run(to_onnx(model, uncertainty=False), x).values()
    np.testing.assert_allclose(values, link(network(mean_weights(model.beliefs), standard)), 1e-5)


def test_a_file_says_what_it_is():
    network = sc.networks.Dense(2, hidden=(3,))
    model = trained(network, network.init(jax.random.key(0)))
    x = np.array([[1.0, 5.0], [2.0, -1.0]])
    content = to_onnx(model, inputs=x, input_names=["a", "ß"])
    file = onnx.load_from_string(content)
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
    assert len(facts["weights_sha256"]) == 64
    assert facts_of(to_onnx(other))["weights_sha256"] != facts["weights_sha256"]


def test_a_model_of_a_table_says_what_its_inputs_are():
    columns = (
        Column("age", "number", fill=3.0),
        Column("colour", "category", ("blue", "red", "white"), "red"),
    )
    encoding = Encoding(columns, (Target("buys", ("no", "yes")),), "classification")
    network = sc.networks.Dense(4, hidden=(3,), outputs=2)
    params = network.init(jax.random.key(0))
    model = trained(network, params, likelihood=sc.CategoricalLikelihood())
    model = replace(model, extra={"table": encoding.to_json()})
    facts = facts_of(to_onnx(model, uncertainty=False))
    names = ["age", "colour=blue", "colour=red", "colour=white"]
    assert json.loads(facts["input_names"]) == names
    assert json.loads(facts["input_ranges"]) == [None, [0, 1], [0, 1], [0, 1]]
    assert json.loads(facts["targets"]) == ["buys"]
    assert json.loads(facts["classes"]) == ["no", "yes"]


def test_a_model_of_which_nothing_is_left():
    def constant(bias, x):
        return jnp.broadcast_to(bias[None], (x.shape[0], 1))

    model = trained(constant, jnp.full(1, 2.5))
    content = to_onnx(model, inputs=np.zeros((3, 2)), uncertainty=False)
    found = run(content, np.zeros((4, 2)))["mean"]
    np.testing.assert_allclose(found, np.full((4, 1), mean_weights(model.beliefs)), rtol=1e-6)


def vanilla_rnn(params, x):
    def step(h, x):
        return jnp.tanh(zoo.affine(params[0], x) + zoo.affine(params[1], h)), None

    return jax.lax.scan(step, jnp.zeros((x.shape[0], 4)), jnp.swapaxes(x, 0, 1))[0]


def between_rows(params, x):
    y = x @ params
    return jnp.einsum("nij,mkj->nik", y, y)


def normalised_by_the_batch(params, x):
    return (x - jnp.mean(x, axis=0, keepdims=True)) @ params


@pytest.mark.parametrize(
    ("f", "params", "x", "message"),
    [
        (vanilla_rnn, [zoo.dense(0, 2, 4), zoo.dense(2, 4, 4)], (3, 5, 2), "Supported: GRU and"),
        (between_rows, jnp.ones((2, 2)), (3, 5, 2), "depends on the number of rows"),
        (lambda w, x: jnp.sort(x @ w, axis=-1), jnp.ones((2, 3)), (3, 2), "sort"),
        (normalised_by_the_batch, jnp.ones((2, 3)), (3, 2), "depends on the number of rows"),
    ],
    ids=["vanilla", "between rows", "sort", "batch"],
)
def test_what_cannot_be_exported_is_refused(f, params, x, message):
    model = trained(f, params)
    with pytest.raises(ExportError, match=message):
        to_onnx(model, inputs=np.zeros(x))


def test_errors_of_use(monkeypatch):
    network = sc.networks.Dense(2, hidden=(3,))
    model = trained(network, network.init(jax.random.key(0)))
    with pytest.raises(ExportError, match="1 names for 2 inputs"):
        to_onnx(model, input_names=["a"], uncertainty=False)
    own = trained(lambda w, x: x @ w, jnp.ones((2, 1)))
    with pytest.raises(ExportError, match="inputs=x"):
        to_onnx(own)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="pip install onnx"):
        to_onnx(model)
