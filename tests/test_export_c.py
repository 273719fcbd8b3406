"""Networks as C: compiled here with all warnings as errors, and equal to Python."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import c_host as host
import qemu
from c_networks import (
    MLP,
    NETWORKS,
    STYLES,
    compiled,
    examples,
    graph_of,
    masked,
    mlp,
    parameters,
    run,
    steps,
    written,
)
from exported import trained
from secateur.exports.c.c_files import SelfTestVectors
from secateur.exports.c.source_writer import write_c
from secateur.exports.device import cortex, emulator
from secateur.exports.device.measurement import measure_source
from secateur.exports.evaluator import FloatArithmetic
from secateur.exports.graph import ExportError
from secateur.exports.model_graph import make_model_graph
from secateur.exports.quantisation import MODES, quantise_graph

# Of weights and biases alike.
RATES = (0.0, 0.5, 0.9, 0.99, 1.0)
ACTIVATIONS = {
    "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "gelu_tanh": jax.nn.gelu,
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False), "silu": jax.nn.silu,
    "softplus": jax.nn.softplus, "elu": jax.nn.elu, "selu": jax.nn.selu, "celu": jax.nn.celu,
    "mish": jax.nn.mish, "leaky_relu": jax.nn.leaky_relu, "relu6": jax.nn.relu6,
    "hard_swish": jax.nn.hard_swish, "soft_sign": jax.nn.soft_sign,
    "squareplus": jax.nn.squareplus, "log_sigmoid": jax.nn.log_sigmoid,
    "log_softmax": jax.nn.log_softmax, "sine": jnp.sin, "gaussian": lambda x: jnp.exp(-x**2),
    "cube": lambda x: x**3, "sqrt": lambda x: jnp.sqrt(jnp.abs(x)), "sign": jnp.sign,
    "clip": lambda x: jnp.clip(x, -0.5, 1), "floor": jnp.floor,
    "logsumexp": lambda x: x - jax.nn.logsumexp(x, -1, keepdims=True),
}  # fmt: skip


def close(found, truth):
    """To 1e-5 of the output's scale."""
    assert found.shape == truth.shape
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-5 * np.abs(truth).max())


def in_all_styles(folder, graph, name):
    return [
        written(folder, graph, f"{name}_{number}", **options)
        for number, options in enumerate(STYLES.values())
    ]


@pytest.mark.slow
def test_activations(tmp_path):
    """Held against JAX in float64 on 300 rows, all of them in one library."""
    params = parameters(*MLP)
    rows = examples("dense")
    sources = {}
    for name, activation in ACTIVATIONS.items():
        f = mlp(activation)
        graph = steps(lambda x, f=f: f(params, x), (6,))
        sources[name] = in_all_styles(tmp_path, graph, name)[:2]
    library = compiled(tmp_path, [s for made in sources.values() for s in made], optimise="-O0")
    jumps = ("sign", "floor")

    @jax.jit
    def all_at_once(x):
        return {name: mlp(activation)(params, x) for name, activation in ACTIVATIONS.items()}

    truths = all_at_once(jnp.asarray(rows, jnp.float64))
    for name, made in sources.items():
        truth = np.asarray(truths[name])
        assert [s.style for s in made] == ["straight", "loops"]
        for source in made:
            found = run(library, source, rows)
            gap = np.abs(found - truth).max(1) / np.abs(truth).max()
            # Where a function jumps, a number can be on its other side in float32.
            assert np.mean(gap > 1e-5) <= (0.002 if name in jumps else 0), (name, source.style)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_pruning_rate_in_every_style(name, tmp_path):
    f, shapes, _, by_frame = NETWORKS[name]
    rows = examples(name)
    made = {}
    rates = RATES[::2] if name in ("NCHW", "gelu", "normalised") else RATES
    for number, rate in enumerate(rates):
        params = masked(parameters(*shapes), rate)
        made[rate] = params, in_all_styles(tmp_path, graph_of(name, params), f"net{number}")
    library = compiled(
        tmp_path, [s for _, sources in made.values() for s in sources], optimise="-O1"
    )
    compute = jax.jit(f)
    for params, sources in made.values():
        truth = np.asarray(compute(params, jnp.asarray(rows, jnp.float64)))
        for source in sources:
            close(run(library, source, rows, by_frame=by_frame), truth)
    sizes = [len(sources[0].source) for _, sources in made.values()]
    assert sizes == sorted(sizes, reverse=True)


# --- integers -------------------------------------------------------------------------------------


def quantised_graphs(name, modes):
    """A posterior around random weights of a network, its steps, and these in integers."""
    f, shapes, shape, by_frame = NETWORKS[name]
    params = parameters(*shapes, dtype=jnp.float32)
    model = trained(lambda p, x: f(p, x), params, scaled=shape[-1])
    rows = (10 + 2 * examples(name)).astype(np.float32)
    made = make_model_graph(model, rows, input_factors=False)
    assert made.by_frame == by_frame
    return made, rows, {mode: quantise_graph(made, mode) for mode in modes}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "gelu", "NHWC", "NCHW", "normalised", "gru", "lstm"])
def test_quantised_networks(name, tmp_path):
    """Integers to the bit on 300 calls, rounded weights in floats to 1e-5."""
    by_frame = NETWORKS[name][3]
    made, rows, quantised = quantised_graphs(name, MODES)
    sources = {
        mode: in_all_styles(tmp_path, found.graph, mode) for mode, found in quantised.items()
    }
    library = compiled(tmp_path, [s for group in sources.values() for s in group], optimise="-O1")
    few = 10 if by_frame else 100
    plain = made.run(rows[:few].astype(np.float64))
    every = rows
    for mode, group in sources.items():
        rows = every if mode in ("int8", "int16x8") else every[:few]
        truth = made.run(rows, FloatArithmetic(np.float32), quantised[mode].graph)
        # Rounding is no catastrophe; what it does in nats is the business of test_quantise.
        assert np.abs(truth[:few] - plain).max() < 0.3 * np.ptp(plain)
        for source in group:
            found = run(library, source, rows, by_frame=by_frame)
            assert found.shape == truth.shape
            if mode in ("weights8", "weights16"):
                close(found, truth)
            elif name == "normalised":  # square roots and exponentials are taken in floats
                same = np.abs(found - truth) <= 1e-5 * np.abs(truth).max()
                assert np.mean(same) > 0.99
                assert np.abs(found - truth).max() < 0.02 * np.abs(truth).max()
            else:
                np.testing.assert_array_equal(found, truth.astype(np.float32))


# --- what may not happen --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A handful of networks of different kinds with test vectors, their rows, and their folder."""
    folder = tmp_path_factory.mktemp("several")
    sources = {}
    for name, mode, style in (
        ("dense", None, "straight"), ("dense", "int8", "loops for size"),
        ("NHWC", None, "loops for speed"), ("NCHW", "int8", "loops for size"),
        ("gru", None, "loops for size"), ("gru", "int16x8", "straight"),
        ("lstm", "weights8", "loops for size"), ("gelu", "int16x8", "loops for speed"),
        ("normalised", "weights16", "loops for size"),
    ):  # fmt: skip
        made, rows, quantised = quantised_graphs(name, [mode] if mode else [])
        graph = quantised[mode].graph if mode else made.graph
        numbers = FloatArithmetic(np.float32) if mode else None
        few = rows[:1] if made.by_frame else rows[:4]
        outputs = made.run(few if mode else few.astype(np.float64), numbers, graph)
        calls = few.reshape(-1, *graph.inputs[0].shape)
        vectors = SelfTestVectors(
            calls, outputs.reshape(len(calls), -1), 1e-5 * np.abs(outputs).max()
        )
        c_name = f"{name}_{mode or 'float32'}".lower()
        source = written(folder, graph, c_name, vectors=vectors, **STYLES[style])
        sources[c_name] = source, calls.reshape(len(calls), -1), outputs.reshape(len(calls), -1)
    return folder, sources


@pytest.mark.slow
def test_no_undefined_behaviour(several):
    """Under sanitizers: also for inputs that are huge, infinite or no numbers."""
    folder, sources = several
    every = folder / "every.h"
    every.write_text("".join(f'#include "{name}.h"\n' for name in sources))
    functions, calls, found = {}, [], []
    wild = (1e30, -1e30, np.inf, -np.inf, np.nan, 0.0, 1e-45, 3.4e38)
    for name, (source, rows, outputs) in sources.items():
        state = []
        if source.state_elements:
            state = [np.zeros(source.state_bytes // 2, np.int16)]
            functions[f"{name}_init"] = 1
            calls.append((len(functions) - 1, state))
        functions[f"{name}_predict"] = 2 + len(state)
        place = len(functions) - 1
        for row, output in zip(rows, outputs, strict=True):
            y = np.zeros(source.outputs, np.float32)
            calls.append((place, (*state, np.ascontiguousarray(row, np.float32), y)))
            found.append((y, output))
        for number in wild:
            y = np.zeros(source.outputs, np.float32)
            calls.append((place, (*state, np.full(rows.shape[1], number, np.float32), y)))
    files = [folder / f"{name}.c" for name in sources]
    program = host.build_sanitized(files, every, functions, folder)
    host.run_sanitized(program, calls)
    for y, output in found:
        np.testing.assert_allclose(y, output, rtol=0, atol=1e-5 * np.abs(output).max() + 1e-6)


COMPILERS = ["host", "gcc", "zig"]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_nothing_is_needed_from_others(several, compiler):
    """`nm -u` is empty, whatever the compiler makes of loops that copy."""
    folder, sources = several
    if compiler != "host" and compiler not in cortex.available():
        pytest.skip(f"no {compiler} that compiles for a Cortex-M4")
    levels = ("-O0", "-Os", "-O2", "-O3")
    for number, name in enumerate(list(sources)[:6]):
        for level in (levels[number % 4], levels[(number + 2) % 4]):
            file = folder / f"{name}.c"
            if compiler == "host":
                made = host.compile_object(file, folder, optimise=level)
                assert host.undefined_symbols(made) == [], (name, level)
            else:
                made = cortex.compile_object(file, folder, optimise=level, compiler=compiler)
                assert host.undefined_elf_symbols(made) == [], (name, level)


def self_test(folder, name, text=None):
    """How many outputs are wrong by the self-test of a network, compiled here."""
    if text is not None:
        (folder / f"changed_{name}.c").write_text(text)
    file = f"{'changed_' if text else ''}{name}.c"
    flags = [f"-D{name.upper()}_SELF_TEST"]
    library = host.build_library([folder / file], folder, optimise="-O1", flags=flags)
    return library.call(f"{name}_self_test").returned


def changed(text, after):
    """The text with one number of several digits changed, behind some other text."""
    start = text.index(after)
    found = re.search(r"(?<![\w.])\d+\.\d{3,}(e-?\d+)?f", text[start:])
    place = start + found.start()
    return f"{text[:place]}1{text[place:]}"


def test_self_tests_pass_and_notice_changes(several):
    folder, sources = several
    for name in sources:
        assert self_test(folder, name) == 0
    for name in ("dense_float32", "gru_float32"):
        source = sources[name][0].source
        assert self_test(folder, name, changed(source, f"{name}_predict" if "straight" in
                         sources[name][0].style else "static const float table")) > 0  # fmt: skip
    for name in ("dense_int8", "gru_int16x8", "lstm_weights8"):
        source = sources[name][0].source
        assert self_test(folder, name, changed(source, "static const float inputs")) > 0
        assert self_test(folder, name, changed(source, "static const float outputs")) > 0
    whole = sources["dense_int8"][0].source
    weights = re.search(
        r"static const (?:int8_t|uint8_t) table_\d+\[\d{2,}\] = \{\s*(-?\d+)", whole
    )
    other = "3" if weights[1] != "3" else "90"
    text = whole[: weights.start(1)] + other + whole[weights.end(1) :]
    assert self_test(folder, "dense_int8", text) > 0


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "zig"])
def test_on_an_emulated_cortex_m4(several, compiler):
    """The self-test passes there, outputs are Python's, and instructions are the same each time."""
    pytest.importorskip("unicorn")
    pytest.importorskip("elftools")
    if compiler not in cortex.available():
        pytest.skip(f"no {compiler} that compiles for a Cortex-M4")
    folder, sources = several
    for name in ("dense_float32", "gru_int16x8", "nchw_int8"):
        source, rows, outputs = sources[name]
        flags = [f"-D{name.upper()}_SELF_TEST"]
        made = cortex.compile_object(
            folder / f"{name}.c", folder, compiler=compiler, optimise="-Os", flags=flags
        )
        machine = emulator.Emulator(cortex.link([made], folder, compiler=compiler))
        assert machine.call(f"{name}_self_test").returned == 0
        first = measure_source(source, rows, compiler=compiler)
        assert (
            first.instructions == measure_source(source, rows, compiler=compiler).instructions > 20
        )
        np.testing.assert_allclose(
            first.outputs, outputs, rtol=0, atol=2e-5 * np.abs(outputs).max()
        )
        plain = cortex.compile_object(
            folder / f"{name}.c", folder, compiler=compiler, optimise="-Os"
        )
        assert first.flash_bytes == cortex.sizes(plain).flash
        assert first.ram_bytes == cortex.sizes(plain).ram


@pytest.mark.skipif(not shutil.which("qemu-system-arm"), reason="no qemu-system-arm")
def test_the_self_test_in_qemu(several):
    if not cortex.available():
        pytest.skip("no compiler for a Cortex-M4")
    folder, sources = several
    names = ["dense_int8", "gru_float32", "nhwc_float32"]
    flags = [f"-D{name.upper()}_SELF_TEST" for name in names]
    main = folder / "main.c"
    includes = "".join(f'#include "{name}.h"\n' for name in names)
    calls = " + ".join(f"{name}_self_test()" for name in names)
    main.write_text(f"{includes}int main(void) {{ return 40 + {calls}; }}\n")
    files = [folder / f"{name}.c" for name in names]
    good = qemu.build([main, *files], folder, flags=flags, optimise="-Os")
    assert qemu.run(good).code == 40
    text = changed(sources["gru_float32"][0].source, "static const float outputs")
    (folder / "wrong_gru.c").write_text(text)
    files[1] = folder / "wrong_gru.c"
    bad = qemu.build([main, *files], folder, name="bad", flags=flags, optimise="-Os")
    assert qemu.run(bad).code > 40


# --- details --------------------------------------------------------------------------------------


def test_states_that_change_places(tmp_path):
    """A shift register: every state takes the place of the next, in any order of writing."""
    rows = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    for number, order in enumerate(((0, 1, 2), (2, 1, 0), (1, 2, 0))):

        def f(x, order=order):
            def step(state, frame):
                a, b, c = (state[i] for i in order)
                new = dict(zip(order, (frame, a, b), strict=True))
                return tuple(new[i] for i in range(3)), a + 10 * b + 100 * c

            start = (jnp.zeros((1, 2)),) * 3
            return jax.lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)

        graph = steps(f, (1, 2), by_frame=True)
        sources = in_all_styles(tmp_path, graph, f"shift{number}")
        library = compiled(tmp_path, sources)
        truth = np.asarray(f(jnp.asarray(rows, jnp.float64)))
        for source in sources:
            found = run(library, source, rows, by_frame=True)
            np.testing.assert_array_equal(found.reshape(truth.shape), truth)


def test_inputs_far_from_zero(tmp_path):
    """1e5 ± 1, also where only one weight of a unit is left."""
    w1, w2 = parameters((3, 4), (4, 1))
    rows = (1e5 + np.random.default_rng(0).normal(size=(1000, 3))).astype(np.float32)
    single = jnp.asarray(np.diag([0.7, -0.4, 0.0])[:, :3] @ np.eye(3, 4))
    sources, truths = [], []
    for number, first in enumerate((w1, single)):
        f = lambda x, first=first: jnp.tanh(((x - 1e5) / 2) @ first) @ w2  # noqa: E731
        sources.append(in_all_styles(tmp_path, steps(f, (3,)), f"far{number}"))
        truths.append(np.asarray(f(jnp.asarray(rows, jnp.float64))))
    library = compiled(tmp_path, [s for group in sources for s in group])
    for group, truth in zip(sources, truths, strict=True):
        for source in group:
            close(run(library, source, rows), truth)


def test_what_cannot_be_written_in_c_is_refused(tmp_path):
    with pytest.raises(ExportError, match="'cbrt' cannot be written in C"):
        write_c(steps(lambda x: jnp.cbrt(x), (3,)), "net")
    kernel = jnp.ones((2, 2, 1, 1))
    transposed = steps(lambda x: jax.lax.conv_transpose(x, kernel, (2, 2), "SAME"), (4, 4, 1))
    with pytest.raises(ExportError, match="transposed convolution"):
        write_c(transposed, "net", straight=False)


def test_size_is_chosen_by_what_is_left(tmp_path):
    """Few weights are written out, many are stored: dense if all are there, else sparse."""
    w1, w2 = parameters((40, 60), (60, 1))
    f = lambda rate: lambda x: jax.nn.relu(x @ masked(w1, rate)) @ w2  # noqa: E731
    kinds = {rate: write_c(steps(f(rate), (40,)), "net") for rate in (0.0, 0.8, 0.998)}
    assert [s.style for s in kinds.values()] == ["loops", "loops", "straight"]
    assert [kind for _, kind in kinds[0.0].kernels] == ["dense", "dense"]
    assert [kind for _, kind in kinds[0.8].kernels] == ["sparse", "dense"]
    assert kinds[0.998].multiply_adds < kinds[0.8].multiply_adds < kinds[0.0].multiply_adds
    assert kinds[0.0].multiply_adds == 40 * 60 + 60
