"""Models in integers: how many bits weights get, how large values become, and what it costs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from c_networks import NETWORKS, compiled, examples, parameters, run, written
from compiling import run_bound
from exported import trained
from secateur.exports.evaluator import FloatArithmetic, evaluate_graph
from secateur.exports.model_graph import make_model_graph
from secateur.exports.quantisation import MODES, quantise_graph
from secateur.exports.rounding import choose_bits, measure_bfloat16, round_to_bfloat16
from secateur.exports.scoring import compute_free_energy, round_model
from secateur.propagation import propagate
from secateur.training.scaling import Affine, Scaling
from uci import load, model, needs_data

RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    RANDOM.bit_generator.state = np.random.default_rng(5).bit_generator.state


SINGLE = FloatArithmetic(np.float32)
INTEGERS = ("int8", "int16x8")


def products(graph):
    return [node for node in graph.nodes if node.op in ("linear", "conv")]


# --- bits -----------------------------------------------------------------------------------------


def fewest_bits(weights, deviations, most):
    """Oracle: try all, weight by weight."""
    for bits in range(2, 9):
        step = max(abs(w) for w in weights) / (2 ** (bits - 1) - 1)
        ratios = [
            step**2 / 12 / s**2
            for w, s in zip(weights, deviations, strict=True)
            if w != 0 and s > 0
        ]
        noise = sum(ratios) / len(ratios) if ratios else np.inf
        if noise <= most:
            break
    return bits, step, noise


@pytest.mark.parametrize("most", [0.01, 0.1, 1.0])
def test_bits_are_the_fewest_that_keep_the_noise_small(most):
    for size in (1, 2, 7, 50):
        for spread in (1e-3, 1e-2, 0.1, 0.5, 2.0):
            weights = RANDOM.normal(size=size) * (RANDOM.uniform(size=size) < 0.7)
            weights[0] = 1.3
            deviations = spread * RANDOM.uniform(0.5, 1.5, size) * (RANDOM.uniform(size=size) < 0.9)
            deviations[0] = spread
            found = choose_bits(weights, deviations, most)
            bits, step, noise = fewest_bits(weights, deviations, most)
            assert (found.weights, found.bits) == (np.count_nonzero(weights), bits)
            np.testing.assert_allclose((found.step, found.noise), (step, noise), rtol=1e-9)
            assert np.abs(np.rint(weights / found.step)).max() <= 2 ** (bits - 1) - 1


def test_bits_grow_as_the_posterior_becomes_sure():
    weights = RANDOM.normal(size=40)
    bits = [
        choose_bits(weights, np.full(40, s), 0.1).bits for s in (3.0, 1.0, 0.3, 0.1, 0.03, 1e-4)
    ]
    assert bits == sorted(bits)
    assert (bits[0], bits[-1]) == (2, 8)


def test_a_step_of_root_twelve_deviations_adds_the_posteriors_own_variance():
    """What the rule says, held against rounding many weights."""
    deviation = 0.01
    weights = RANDOM.normal(size=200_000)
    step = 12**0.5 * deviation
    added = np.rint(weights / step) * step - weights
    assert np.var(added) == pytest.approx(deviation**2, rel=0.02)
    steps = 2.0 / (2 ** (np.arange(2, 9) - 1) - 1)
    noises = steps**2 / 12 / deviation**2
    row = np.append(RANDOM.uniform(-1, 1, 99), 2.0)
    found = choose_bits(row, np.full(100, deviation), 1.0)
    assert found.bits == 2 + np.flatnonzero(noises <= 1)[0]


def test_tensors_without_weights_or_without_doubt():
    empty = choose_bits(np.zeros((3, 4)), np.zeros((3, 4)), 0.1)
    assert (empty.weights, empty.bits, empty.noise) == (0, 2, 0.0)
    sure = choose_bits(np.array([[0.3, -1.0]]), np.zeros((1, 2)), 0.1)
    assert (sure.weights, sure.bits, sure.noise) == (2, 8, 0.0)
    assert sure.step == pytest.approx(1 / 127)


def test_the_first_half_of_a_float_is_bfloat16():
    """Oracle: JAX's own, with ties to even, subnormal numbers and signs."""
    bits = RANDOM.integers(0, 2**32, 50_000, dtype=np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    numbers = np.concatenate([bits, ties]).view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    expected = np.asarray(jnp.asarray(numbers).astype(jnp.bfloat16).astype(jnp.float32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(round_to_bfloat16(numbers.astype(np.float64)), expected)
    weights = RANDOM.normal(size=1000)
    found = measure_bfloat16(weights, np.full(1000, 1e-3))
    assert found.noise == pytest.approx(np.mean((round_to_bfloat16(weights) - weights) ** 2) / 1e-6)


# --- the model with rounded weights ---------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    random = np.random.default_rng(5)
    x = random.normal(size=(60, 3)) * [1, 20, 0.1] + [5, 0, 100]
    y = 40 + 3 * np.tanh(x[:, :1] - 5) + 0.1 * random.normal(size=(60, 1))
    network = sc.networks.Dense(3, hidden=(4,))
    found = sc.fit(
        sc.BayesianModel(network, network.init(jax.random.key(0))), (x, y),
        key=jax.random.key(1), epochs=30, progress=False,
    )  # fmt: skip
    return found, x, y


def test_weights_of_a_dense_network_by_hand(fitted):
    """First layer: weights as they are. Second: times the deviation of the targets."""
    found, x, _ = fitted
    made = make_model_graph(found, x, input_factors=False)
    quantised = quantise_graph(made, "int8")
    rounded = round_model(found, made, quantised.weights)
    units = (1.0, float(found.scaling.targets.scale[0]))
    for layer, before, tensor, unit in zip(
        rounded.beliefs["layers"], found.beliefs["layers"], quantised.tensors, units, strict=True
    ):
        weights = np.asarray(before["weights"].mean, np.float64)
        step = tensor.step / unit
        np.testing.assert_allclose(
            layer["weights"].mean, np.rint(weights / step) * step, rtol=0, atol=1e-5 * step
        )
        assert np.abs(np.asarray(layer["weights"].mean) - weights).max() > 0.1 * step
        np.testing.assert_array_equal(layer["bias"].mean, before["bias"].mean)
        np.testing.assert_array_equal(layer["weights"].variance, before["weights"].variance)
        deviations = unit * np.sqrt(before["weights"].variance)
        again = choose_bits(unit * weights, np.asarray(deviations, np.float64), 0.1)
        assert again.bits == tensor.bits
        assert again.noise == pytest.approx(tensor.noise, rel=1e-2)


@pytest.mark.parametrize("name", ["NHWC", "gru"])
def test_weights_of_other_networks_come_back_from_the_rounded_model(name):
    f, shapes, shape, _ = NETWORKS[name]
    params = parameters(*shapes, dtype=jnp.float32)
    known = trained(f, params, scaled=shape[-1])
    made = make_model_graph(known, examples(name, 80) + 10, input_factors=False)
    for mode in ("int8", "weights16"):
        quantised = quantise_graph(made, mode)
        rounded = round_model(known, made, quantised.weights)
        assert rounded is not None
        again = make_model_graph(rounded, examples(name, 80) + 10, input_factors=False)
        for node, weights in zip(products(again.graph), quantised.weights, strict=True):
            np.testing.assert_allclose(node.attributes["weights"], weights, rtol=1e-5, atol=1e-7)


def test_weights_that_are_sums_of_weights_have_no_rounded_model():
    params = parameters((3, 2), (3, 2), dtype=jnp.float32)
    known = trained(lambda p, x: x @ (p[0] + p[1]), params)
    made = make_model_graph(known, RANDOM.normal(size=(8, 3)))
    assert round_model(known, made, quantise_graph(made, "weights8").weights) is None


def test_the_change_of_free_energy(fitted):
    """By hand: KL, and the likelihood of the rows, of the beliefs with rounded means."""
    found, x, y = fitted
    assert compute_free_energy(found, x, y) == pytest.approx(found.free_energy, rel=1e-3)
    made = make_model_graph(found, x, input_factors=False)
    quantised = quantise_graph(made, "weights8")
    rounded = round_model(found, made, quantised.weights)
    standard_x, standard_y = (
        jnp.asarray((v - a.shift) / a.scale, jnp.float32)
        for v, a in ((x, found.scaling.inputs), (y, found.scaling.targets))
    )

    @jax.jit
    def energy(beliefs):
        forward = propagate(found.model.f, found.model.inference)
        parts = sc.free_energy(forward, beliefs, found.priors, found.model.likelihood, found.noise,
                               (standard_x, standard_y), key=None)  # fmt: skip
        return parts.total

    by_hand = float(energy(rounded.beliefs) - energy(found.beliefs))
    change = compute_free_energy(rounded, x, y) - compute_free_energy(found, x, y)
    assert change == pytest.approx(by_hand, abs=1e-3)
    # The rule's promise: about half the noise per weight.
    weights = sum(t.weights for t in quantised.tensors)
    assert 0 <= abs(change) < 5 * 0.1 * weights
    coarse = quantise_graph(made, "weights8", most_noise=30.0)
    worse = round_model(found, made, coarse.weights)
    assert compute_free_energy(worse, x, y) > compute_free_energy(rounded, x, y)
    assert sum(t.bits for t in coarse.tensors) < sum(t.bits for t in quantised.tensors)


# --- activations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", INTEGERS)
def test_scales_cover_the_rows_and_what_is_beyond_saturates(fitted, mode):
    found, x, _ = fitted
    made = make_model_graph(found, x, input_factors=False)
    graph = quantise_graph(made, mode).graph
    sizes = {}

    def watch(value, array):
        if value.dtype in (np.int8, np.int16):
            sizes[value] = max(sizes.get(value, 0), int(np.abs(array).max()))

    for row in made.rows:
        evaluate_graph(graph, [row[None]], arithmetic=SINGLE, watch=watch)
    inputs, hidden = sizes.items()
    assert inputs[0].dtype == np.int16  # in either mode
    assert hidden[0].dtype == MODES[mode]
    # 16 bits leave as much room again; 8 bits are used to the last step or two.
    for value, size in (inputs, hidden):
        most = np.iinfo(value.dtype).max
        assert most - 3 <= size <= most if value.dtype == np.int8 else 0.45 < size / most < 0.51
    far = np.sign(x[:5] - x.mean(0)) * np.float32(1e30)
    farther = np.sign(x[:5] - x.mean(0)) * np.float32(np.inf)
    first, second = (made.run(v.astype(np.float32), SINGLE, graph) for v in (far, farther))
    np.testing.assert_array_equal(first, second)
    assert np.all(np.isfinite(first))
    nothing = made.run(np.full((1, 3), np.nan, np.float32), SINGLE, graph)
    lowest = made.run(np.full((1, 3), -np.inf, np.float32), SINGLE, graph)
    np.testing.assert_array_equal(nothing, lowest)  # a nan is the lowest number


def test_rows_anywhere_in_the_data_count(fitted):
    """Also those at the end of sorted data."""
    found, x, _ = fitted
    many = np.repeat(np.sort(x, 0), 40, 0)
    all_rows = quantise_graph(make_model_graph(found, many, input_factors=False), "int8")
    few_rows = quantise_graph(make_model_graph(found, x, input_factors=False), "int8")
    scales = [
        [n.attributes["inverse"] for n in q.graph.nodes if n.op == "quantise"]
        for q in (all_rows, few_rows)
    ]
    np.testing.assert_allclose(*scales)


@pytest.mark.parametrize("mode", INTEGERS)
def test_large_biases_and_many_inputs_do_not_overflow(mode, tmp_path):
    """Targets of 1e7 ± 1, and 3000 inputs that are all as large as can be."""
    params = [
        jnp.full((3000, 2), 0.01, jnp.float32), jnp.asarray([[0.5], [-0.2]], jnp.float32)
    ]  # fmt: skip
    wide = trained(lambda p, x: jax.nn.relu(x @ p[0]) @ p[1], params)
    wide = replace(wide, scaling=Scaling(None, Affine(np.array([1e7]), np.array([1.0]))))
    rows = RANDOM.normal(size=(20, 3000)).astype(np.float32)
    made = make_model_graph(wide, rows, input_factors=False)
    quantised = quantise_graph(made, mode)
    assert "a large bias" in quantised.in_floats
    rows[0], rows[1] = 1e9, -1e9
    totals = []

    def watch(value, array):
        if value.dtype == np.int32:
            totals.append(np.abs(array).max())

    for row in rows:
        evaluate_graph(quantised.graph, [row[None]], arithmetic=SINGLE, watch=watch)
    assert (2**18 if mode == "int8" else 2**26) < max(totals) < 2**31
    truth = made.run(rows, SINGLE, quantised.graph)
    plain = made.run(rows[2:].astype(np.float64))
    assert np.abs(truth[2:] - plain).max() < 0.2 * np.ptp(plain) + 1
    source = written(tmp_path, quantised.graph, "wide", straight=False)
    library = compiled(tmp_path, [source], flags=["-fsanitize=undefined", "-fno-sanitize-recover"])
    np.testing.assert_array_equal(run(library, source, rows), truth.astype(np.float32))


def test_what_integers_cannot_do_stays_in_floats_and_is_named():
    f, shapes, _, _ = NETWORKS["normalised"]
    made = make_model_graph(
        trained(f, parameters(*shapes, dtype=jnp.float32)), examples("normalised", 40)
    )
    found = quantise_graph(made, "int16x8")
    assert {"div", "rsqrt"} <= set(found.in_floats)
    rows = examples("normalised", 40)
    gap = made.run(rows, SINGLE, found.graph) - made.run(rows.astype(np.float64))
    assert np.abs(gap).max() < 0.2
    assert quantise_graph(made, "weights8").in_floats == []
    with pytest.raises(ValueError, match=r"int4.*Supported: int8"):
        quantise_graph(made, "int4")


# --- data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["boston"])
class TestHeldOut:
    pytestmark = needs_data

    def test_integers_cost_little(self, name, monkeypatch):
        """At most 0.02 nats per held-out row, with bits from the posterior, over three splits."""
        run_bound(monkeypatch)
        x, y = load(name)
        changes = {mode: [] for mode in INTEGERS}
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(len(x))
            train, test = order[len(x) // 10 :], order[: len(x) // 10]
            key = jax.random.key(seed)
            fit = sc.fit(model(x.shape[1]), (x[train], y[train]), key=key, progress=False)
            pruned = sc.prune(fit, (x[train], y[train]), key=key, progress=False)
            # Scales are those of the training rows: the held-out ones are not looked at.
            small = sc.compact(pruned, inputs=x[:8])
            made = make_model_graph(small, x[train], input_factors=False)
            rows = np.asarray(x[test], np.float32)
            variance = np.asarray(small.predict(rows).outputs.variance)
            before = log_density(small, made.run(rows.astype(np.float64)), variance, y[test])
            for mode, found in changes.items():
                quantised = quantise_graph(made, mode)
                means = made.run(rows, SINGLE, quantised.graph)
                found.append(log_density(small, means, variance, y[test]) - before)
                print(name, mode, [(t.weights, t.bits) for t in quantised.tensors], found[-1])
        assert min(np.mean(found) for found in changes.values()) > -0.02
        assert min(min(found) for found in changes.values()) > -0.05


def log_density(found, means, variance, y):
    """Mean log-density of rows, Normal with the posterior's and the noise's variance, by hand."""
    noise = float(found.noise.rate[0] / (found.noise.shape[0] - 1))
    total = variance + noise * float(found.scaling.targets.scale[0]) ** 2
    return float(np.mean(-0.5 * (np.log(2 * np.pi * total) + (y - means) ** 2 / total)))
