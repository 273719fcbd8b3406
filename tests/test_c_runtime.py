"""The C functions of exported networks: their stated errors, and integers to the bit."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from scipy import special

import c_host as host
from secateur.exports import integers
from secateur.exports.c.c_files import collect_functions, list_functions
from secateur.exports.device import cortex, emulator

QUANTISE, LOOKUP = (integers.INTEGER_FUNCTIONS[name] for name in ("quantise", "lookup"))
HAS_CC = any(map(shutil.which, ("gcc", "cc", "clang")))
needs_cc = pytest.mark.skipif(not HAS_CC, reason="no C compiler")

# Truth and range of each error that a comment in C states, and whether that is relative.
STATED = {
    "exp": (np.exp, -86.98, 88.72, True),
    "expm1": (np.expm1, -86.98, 88.72, True),
    "log": (np.log, 1e-45, 3.4e38, True),
    "log1p": (np.log1p, -0.9999999, 3.4e38, True),
    "asinh": (np.arcsinh, -3.4e38, 3.4e38, True),
    "tanh": (np.tanh, -20, 20, False),
    "sigmoid": (special.expit, -40, 40, False),
    "erf": (special.erf, -8, 8, False),
    "erfc": (special.erfc, -8, 8, False),
    "sqrt": (np.sqrt, 1e-45, 3.4e38, True),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-38, 3.4e38, True),
    "sin": (np.sin, -10000, 10000, False),
    "cos": (np.cos, -10000, 10000, False),
}
EXACT = {"abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint}
SPECIAL = {  # at -inf, inf, 0
    "exp": (0, np.inf, 1), "expm1": (-1, np.inf, 0), "log": (np.nan, np.inf, -np.inf),
    "log1p": (np.nan, np.inf, 0), "asinh": (-np.inf, np.inf, 0),
    "tanh": (-1, 1, 0), "sigmoid": (0, 1, 0.5), "erf": (-1, 1, 0),
    "erfc": (2, 0, 1), "sqrt": (np.nan, np.inf, 0), "rsqrt": (np.nan, 0, np.inf),
    "sin": (np.nan, np.nan, 0), "cos": (np.nan, np.nan, 1), "abs": (np.inf, np.inf, 0),
    "floor": (-np.inf, np.inf, 0), "ceil": (-np.inf, np.inf, 0), "round": (-np.inf, np.inf, 0),
}  # fmt: skip
INTEGERS = """
void run_requantise(const int32_t *x, int32_t *y, const int32_t *how)
{
    int32_t i;
    for (i = 0; i < how[4]; i++) y[i] = sc_requantise(x[i], how[0], how[1], how[2], how[3]);
}

void run_q15(const int16_t *x, int16_t *t, int16_t *s, const int32_t *count)
{
    int32_t i;
    for (i = 0; i < *count; i++) t[i] = sc_tanh_q15(x[i]), s[i] = sc_sigmoid_q15(x[i]);
}

void run_quantise(const float *x, int32_t *y, const float *how, const int32_t *count)
{
    int32_t i;
    for (i = 0; i < *count; i++) y[i] = sc_quantise(x[i], how[0], how[1], how[2]);
}

void run_lookup_int16(const int16_t *table, const int16_t *x, int32_t *y, const int32_t *count)
{
    int32_t i;
    for (i = 0; i < *count; i++) y[i] = sc_lookup_int16(table, x[i]);
}

void run_powi(const float *x, float *y, const int32_t *powers, const int32_t *count)
{
    int32_t i;
    for (i = 0; i < *count; i++) y[i] = sc_powi(x[i], powers[i]);
}

void run_extremes(const float *a, const float *b, float *most, float *least)
{
    int32_t i;
    for (i = 0; i < 6; i++) most[i] = sc_max(a[i], b[i]), least[i] = sc_min(a[i], b[i]);
}
"""
ARITIES = {"requantise": 3, "q15": 4, "quantise": 4,
           "lookup_int16": 4, "powi": 4, "extremes": 4}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All functions in one file, each over arrays."""
    folder = tmp_path_factory.mktemp("c")
    floats = [*STATED, *EXACT]
    loops = "".join(
        f"void run_{name}(const float *x, float *y, const int32_t *count)\n"
        "{\n    int32_t i;\n"
        f"    for (i = 0; i < *count; i++) y[i] = sc_{name}(x[i]);\n}}\n"
        for name in floats
    )
    bodies = loops + INTEGERS
    heads = "".join(f"{line};\n" for line in bodies.splitlines() if line.startswith("void "))
    (folder / "all.h").write_text(f"#include <stdint.h>\n{heads}")
    # Products with weights are tested with networks (test_export_c.py).
    names = [name for name in list_functions() if not name.startswith("sparse")]
    (folder / "all.c").write_text(f'#include "all.h"\n\n{collect_functions(names)}\n{bodies}')
    return folder


@pytest.fixture(scope="module", params=["plain", "portable"])
def library(folder, request):
    """Called on this computer: with its instruction for the square root, or without."""
    if not HAS_CC:
        pytest.skip("no C compiler")
    place = folder / request.param
    place.mkdir()
    flags = ["-DSC_PORTABLE", "-ffp-contract=fast"] if request.param == "portable" else []
    shutil.copy(folder / "all.h", place)
    return host.build_library([shutil.copy(folder / "all.c", place)], place, flags=flags)


def floats_between(lowest, highest, most=400_000):
    """Float32 arguments spread evenly over their bits, so over all magnitudes, with both ends."""
    parts = []
    for begin, end, sign in ((max(lowest, 0.0), highest, 1), (max(-highest, 0.0), -lowest, -1)):
        if end >= 0:
            first, last = (int(np.float32(v).view(np.uint32)) for v in (begin, end))
            bits = np.linspace(first, last, most, dtype=np.float64).astype(np.uint32)
            parts.append(sign * bits.view(np.float32))
    return np.concatenate(parts)


def apply(library, name, x):
    y = np.empty_like(x)
    library.call(f"run_{name}", x, y, np.array([x.size], np.int32))
    return y


def stated_error(name, kind="absolute|relative"):
    text = collect_functions([name])
    comment = text[: text.rindex(f" sc_{name}(float")].rsplit("/*", 1)[1]
    return float(re.search(rf"(?:{kind}) error < ([0-9.e-]+)", comment)[1])


@pytest.mark.parametrize("name", STATED)
def test_errors_are_below_what_the_comment_states(library, name):
    truth, lowest, highest, relative = STATED[name]
    x = floats_between(lowest, highest)
    with np.errstate(divide="ignore"):
        expected = truth(x.astype(np.float64))
    keep = np.isfinite(expected) & ((np.abs(expected) > 1.2e-38) | (not relative))
    error = np.abs(apply(library, name, x)[keep] - expected[keep])
    if relative:
        error /= np.abs(expected[keep])
    assert error.max() < stated_error(name)
    assert error.max() > stated_error(name) / 20  # what is stated is not idle


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_relative_errors_hold_near_zero_too(library, name):
    x = floats_between(1e-30, 10)
    expected = STATED[name][0](x.astype(np.float64))
    error = np.abs(apply(library, name, x) / expected - 1)
    assert error.max() < stated_error(name, "relative")


@pytest.mark.parametrize("name", EXACT)
def test_exact_functions(library, name):
    halves = np.arange(-1000, 1000, dtype=np.float32) / 4
    x = np.concatenate([floats_between(-3.4e38, 3.4e38), halves])
    np.testing.assert_array_equal(apply(library, name, x), EXACT[name](x))


@pytest.mark.parametrize("name", SPECIAL)
def test_infinities_zero_and_nan(library, name):
    x = np.array([-np.inf, np.inf, 0, np.nan], np.float32)
    np.testing.assert_allclose(
        apply(library, name, x), [*SPECIAL[name], np.nan], atol=1e-30, rtol=3e-7
    )


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [("tanh", -1, 1), ("sigmoid", 0, 1), ("erf", -1, 1), ("erfc", 0, 2)],
)
def test_bounds_are_never_passed(library, name, lowest, highest):
    x = np.linspace(-17, 17, 4_000_001, dtype=np.float32)
    y = apply(library, name, x)
    assert lowest <= y.min()
    assert y.max() <= highest
    assert y.min() < lowest + 1e-6
    assert y.max() > highest - 1e-6


def test_extremes_and_powers(library):
    nan = np.nan
    a = np.array([1, -2, nan, 3, nan, -0.5], np.float32)
    b = np.array([2, -3, 1, nan, nan, -0.5], np.float32)
    most, least = np.zeros(6, np.float32), np.zeros(6, np.float32)
    library.call("run_extremes", a, b, most, least)
    np.testing.assert_array_equal(most, np.maximum(a, b))
    np.testing.assert_array_equal(least, np.minimum(a, b))
    x = np.array([1.5, -1.5, -2, 0.3, 7, 0, 1], np.float32)
    powers = np.array([3, 3, -2, 10, 0, 0, -(2**31)], np.int32)
    y = np.empty_like(x)
    library.call("run_powi", x, y, powers, np.array([x.size], np.int32))
    np.testing.assert_allclose(y, x.astype(np.float64) ** powers, rtol=1e-6)


def requantise_cases():
    rng = np.random.default_rng(1)
    ends = [-(2**31), 2**31 - 1, -1, 0, 1]
    x = np.concatenate([rng.integers(-(2**31), 2**31, 500), rng.integers(-300, 300, 500), ends])
    for scale in (0.75, 1e-3, 3.7e-7, 1.0, 5.5, 2.0**-40):
        yield x.astype(np.int32), *integers.multiplier_and_shift(scale), scale


def test_requantising_to_the_bit(library):
    for x, multiplier, shift, scale in requantise_cases():
        for lowest, highest in ((-128, 127), (-32768, 32767), (-(2**31), 2**31 - 1)):
            y = np.empty_like(x)
            how = np.array([multiplier, shift, lowest, highest, x.size], np.int32)
            library.call("run_requantise", x, y, how)
            np.testing.assert_array_equal(
                y, integers.requantise(x, multiplier, shift, lowest, highest)
            )
            exact = np.clip(x * scale, lowest, highest)
            assert np.abs(y - exact).max() <= 0.5 + 2**31 * scale * 2**-31


def test_halves_go_up(library):
    x = np.array([-3, -2, -1, 1, 2, 3], np.int32)
    y = np.empty_like(x)
    library.call("run_requantise", x, y, np.array([1, 1, -128, 127, 6], np.int32))
    np.testing.assert_array_equal(y, np.floor(x / 2 + 0.5))


def test_integer_functions_to_the_bit_for_every_argument(library):
    count = np.array([65536], np.int32)
    x = np.arange(-32768, 32768).astype(np.int16)
    t, s = np.empty_like(x), np.empty_like(x)
    library.call("run_q15", x, t, s, count)
    np.testing.assert_array_equal(t, integers.tanh_q15(x))
    np.testing.assert_array_equal(s, integers.sigmoid_q15(x))
    assert np.abs(t - 32768 * np.tanh(x / 4096)).max() < 1.2
    assert np.abs(s - 32768 * special.expit(x / 2048)).max() < 1.1
    assert np.diff(t.astype(int)).min() >= -1


def test_quantise_is_to_the_bit_what_python_does(library):
    """And by hand: the nearest integer, halves away from 0, a nan the lowest."""
    halves = np.arange(-300, 300, dtype=np.float32) / 2
    wild = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -0.0], np.float32)
    x = np.concatenate([halves, floats_between(-200, 200, 5000), wild])
    y, how = np.zeros(x.size, np.int32), np.array([1.0, -128, 127], np.float32)
    library.call("run_quantise", x, y, how, np.array([x.size], np.int32))
    np.testing.assert_array_equal(
        y, integers.INTEGER_FUNCTIONS["quantise"](x, inverse=1.0, low=-128, high=127)
    )
    nearest = np.sign(halves) * np.floor(np.abs(halves) + 0.5)
    np.testing.assert_array_equal(y[: halves.size], np.clip(nearest, -128, 127))
    assert y[-wild.size :].tolist() == [-128, 127, -128, 127, -128, 0, 0]


def test_lookup_of_16_bits_is_to_the_bit_what_python_does(library):
    x = np.arange(-32768, 32768).astype(np.int16)
    places = np.arange(257) * 256 - 32768
    for function in (np.tanh, lambda v: -np.exp(-(v**2)), np.sign):
        table = np.rint(32767 * function(places / 8192)).astype(np.int16)
        y = np.zeros(x.size, np.int32)
        library.call("run_lookup_int16", table, x, y, np.array([x.size], np.int32))
        np.testing.assert_array_equal(
            y, integers.INTEGER_FUNCTIONS["lookup"](x, table=tuple(table.tolist()))
        )
        between = np.interp(x, places, table.astype(float))
        assert np.abs(y - between).max() <= 0.51


def sanitized_calls():
    x = np.concatenate([floats_between(-3.4e38, 3.4e38, 2000),
                        np.array([np.nan, np.inf, -np.inf], np.float32)])  # fmt: skip
    count = np.array([x.size], np.int32)
    floats = len(STATED) + len(EXACT)
    calls = [(i, (x, np.empty_like(x), count)) for i in range(floats)]
    for values, multiplier, shift, _ in requantise_cases():
        how = np.array([multiplier, shift, -128, 127, values.size], np.int32)
        calls.append((floats, (values, values.copy(), how)))
    every = np.arange(-32768, 32768).astype(np.int16)
    rest = (every, every.copy(), every.copy(), np.array([every.size], np.int32))
    how = np.array([0.3, -32768, 32767], np.float32)
    rounded = (x, np.zeros(x.size, np.int32), how, count)
    table = np.resize(np.array([-32768, 32767], np.int16), 257)
    looked_up = (table, every, np.zeros(every.size, np.int32), np.array([every.size], np.int32))
    return [*calls, (floats + 1, rest), (floats + 2, rounded), (floats + 3, looked_up)]


@needs_cc
def test_sanitizers_find_nothing(folder):
    functions = {f"run_{name}": 3 for name in (*STATED, *EXACT)}
    functions |= {f"run_{name}": count for name, count in ARITIES.items()}
    for flags in ((), ("-DSC_PORTABLE",)):
        program = host.build_sanitized(
            [folder / "all.c"], folder / "all.h", functions, folder, flags=flags
        )
        host.run_sanitized(program, sanitized_calls())


@needs_cc
@pytest.mark.parametrize("optimise", ["-O0", "-Os", "-O2", "-O3"])
def test_no_library_is_needed(folder, optimise):
    built = host.compile_object(folder / "all.c", folder, optimise=optimise)
    assert host.undefined_symbols(built) == []


@pytest.mark.parametrize("compiler", ["gcc", "zig"])
def test_on_the_cortex_m4(folder, compiler):
    if compiler not in cortex.available():
        pytest.skip(f"no {compiler} that compiles for a Cortex-M4")
    for package in ("unicorn", "elftools"):
        pytest.importorskip(package)
    built = cortex.compile_object(folder / "all.c", folder, compiler=compiler)
    assert host.undefined_elf_symbols(built) == []
    machine = emulator.Emulator(cortex.link([built], folder, compiler=compiler))
    count = np.array([1000], np.int32)
    for name, (truth, lowest, highest, relative) in STATED.items():
        x = np.linspace(max(lowest, -9), min(highest, 9), 1000, dtype=np.float32)
        y = np.empty_like(x)
        run = machine.call(f"run_{name}", x, y, count)
        expected = truth(x.astype(np.float64))
        keep = np.isfinite(expected) & (expected != 0)
        error = np.abs(y - expected)[keep] / (np.abs(expected[keep]) if relative else 1)
        assert error.max() < stated_error(name)
        assert run.instructions < 1000 * 75
    x = np.arange(-32768, 32768, 13).astype(np.int16)
    t, s = np.empty_like(x), np.empty_like(x)
    machine.call("run_q15", x, t, s, np.array([x.size], np.int32))
    np.testing.assert_array_equal(t, integers.tanh_q15(x))
    np.testing.assert_array_equal(s, integers.sigmoid_q15(x))
    for x, multiplier, shift, _ in requantise_cases():
        y = np.empty_like(x)
        machine.call(
            "run_requantise", x, y, np.array([multiplier, shift, -128, 127, x.size], np.int32)
        )
        np.testing.assert_array_equal(y, integers.requantise(x, multiplier, shift, -128, 127))


def test_only_what_is_needed_is_written():
    text = collect_functions(["erfc"])
    defined = re.findall(r"^static .*?\bsc_(\w+)[(\[]", text, re.MULTILINE)
    assert defined == ["abs", "erf", "erfc"]
    with pytest.raises(ValueError, match="no C function 'gamma'; there are from_bits"):
        collect_functions(["gamma"])
    with pytest.raises(ValueError, match="positive and at most"):
        integers.multiplier_and_shift(0.0)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["host", "gcc", "zig"])
def test_each_function_compiles_with_nothing_unused(tmp_path, compiler):
    if compiler not in (*(["host"] if HAS_CC else []), *cortex.available()):
        pytest.skip(f"no such C compiler ({compiler})")
    for name in list_functions():
        text = collect_functions([name])
        head = re.search(rf"^static (?:inline )?(\w+) sc_{name}\((.*)\)$", text, re.MULTILINE)
        if not head:
            continue  # a table
        parameters = ", ".join(re.findall(r"(\w+)(?:,|$)", head[2]))
        source = tmp_path / f"{name}.c"
        answer = "" if head[1] == "void" else "return "
        source.write_text(
            f"#include <stdint.h>\n\n{text}\n{head[1]} call({head[2]});\n"
            f"{head[1]} call({head[2]})\n{{\n    {answer}sc_{name}({parameters});\n}}\n"
        )
        if compiler == "host":
            host.compile_object(source, tmp_path)
        else:
            cortex.compile_object(source, tmp_path, compiler=compiler)
