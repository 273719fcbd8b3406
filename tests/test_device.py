"""A small dense layer in C: on this computer, under sanitizers, in the emulator and in QEMU."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest

import c_host as host
import qemu
from secateur.exports.device import DeviceError, cortex, emulator

WEIGHTS = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
BIAS = np.arange(7, dtype=np.float32) / 8 - 0.5
X = np.array([0.5, -1.25, 2.0, 0.1, -0.7], np.float32)
REPEATS = 200

HEADER = """int dense(const float *x, float *y, int *calls);
int shift(int value, int by, int a, int b, int c);
int deep(int depth);
int endless(int *x);
"""
CODE = """#include "dense.h"

static const float weights[7][5] = {%s};
static const float bias[7] = {%s};
static int called;

int dense(const float *x, float *y, int *calls)
{
    int i, j;
    for (i = 0; i < 7; i++) {
        float sum = bias[i];
        for (j = 0; j < 5; j++) sum += weights[i][j] * x[j];
        y[i] = sum > 0.0f ? sum : 0.0f;
    }
    called++;
    *calls += called;
    return -3;
}

int shift(int value, int by, int a, int b, int c)
{
    return (value << by) + a + 10 * b + 100 * c;
}

/* volatile, so that the compiler does not put calls into one another. */
static int (*volatile again)(int) = deep;

int deep(int depth)
{
    volatile int kept[16];
    int i;
    for (i = 0; i < 16; i++) kept[i] = depth;
    return depth ? again(depth - 1) + kept[depth & 15] : 0;
}

int endless(int *x)
{
    volatile int *on = x;
    while (*on) {}
    return 0;
}
"""
MAIN = """#include "device.h"
#include "dense.h"

static const float x[5] = {%s};
static float y[7];
static int counter = 40;

int main(void)
{
    uint32_t before, after;
    int i;
    before = device_ticks();
    for (i = 0; i < %d; i++) (void)dense(x, y, &counter);
    after = device_ticks();
    device_print_unsigned(device_instructions_between(before, after));
    for (i = 0; i < 7; i++) {
        union { float value; uint32_t bits; } pun;
        pun.value = y[i];
        device_print(" ");
        device_print_hex(pun.bits);
    }
    return counter == 40 + %d ? 17 : 1;
}
"""

needs_cc = pytest.mark.skipif(
    not any(map(shutil.which, ("gcc", "cc", "clang"))), reason="no C compiler"
)
needs_qemu = pytest.mark.skipif(not shutil.which("qemu-system-arm"), reason="no qemu-system-arm")


@pytest.fixture(params=["gcc", "zig"])
def compiler(request):
    if request.param not in cortex.available():
        pytest.skip(f"no {request.param} that compiles for a Cortex-M4")
    pytest.importorskip("elftools", reason="no pyelftools")
    return request.param


def c_list(values):
    return ", ".join(f"{float(v)!r}f" for v in np.ravel(values))


@pytest.fixture
def folder(tmp_path):
    rows = ", ".join(f"{{{c_list(row)}}}" for row in WEIGHTS)
    (tmp_path / "dense.h").write_text(HEADER)
    (tmp_path / "dense.c").write_text(CODE % (rows, c_list(BIAS)))
    total = REPEATS * (REPEATS + 1) // 2
    (tmp_path / "main.c").write_text(MAIN % (c_list(X), REPEATS, total))
    return tmp_path


@pytest.fixture
def machine(folder, compiler):
    pytest.importorskip("unicorn", reason="no unicorn")
    built = cortex.compile_object(folder / "dense.c", folder, compiler=compiler)
    return emulator.Emulator(
        cortex.link([built], folder, compiler=compiler), most_instructions=10**6
    )


def expected(x=X):
    return np.maximum(WEIGHTS.astype(np.float64) @ x + BIAS, 0)


@needs_cc
def test_host_library(folder):
    built = host.build_library([folder / "dense.c"], folder)
    y, calls = np.zeros(7, np.float32), np.zeros(1, np.int32)
    assert built.call("dense", X, y, calls).returned == -3
    np.testing.assert_allclose(y, expected(), atol=1e-6)
    assert calls[0] == 1
    assert built.call("shift", 3, 2, 1, 2, 3).returned == 12 + 321
    with pytest.raises(DeviceError, match="no function 'missing'"):
        built.call("missing")
    with pytest.raises(DeviceError, match="contiguous"):
        built.call("dense", np.zeros((5, 2), np.float32)[:, 0], y, calls)


@needs_cc
def test_sanitizers_pass_good_calls_and_stop_bad_ones(folder):
    program = host.build_sanitized([folder / "dense.c"], folder / "dense.h", {"dense": 3}, folder)
    calls = np.zeros(1, np.int32)
    inputs = [X, 2 * X, -X]
    outputs = [np.zeros(7, np.float32) for _ in inputs]
    host.run_sanitized(program, [(0, (x, y, calls)) for x, y in zip(inputs, outputs, strict=True)])
    for x, y in zip(inputs, outputs, strict=True):
        np.testing.assert_allclose(y, expected(x), atol=1e-6)
    assert calls[0] == 1 + 2 + 3  # one array in all calls is one memory
    with pytest.raises(DeviceError, match="heap-buffer-overflow"):
        host.run_sanitized(program, [(0, (X, np.zeros(6, np.float32), calls))])
    most = np.array([2**31 - 1], np.int32)
    with pytest.raises(DeviceError, match="signed integer overflow"):
        host.run_sanitized(program, [(0, (X, outputs[0], most))])


@needs_cc
def test_warnings_are_errors_and_undefined_symbols_are_found(folder):
    (folder / "bad.c").write_text("float f(double x);\nfloat f(double x) { return x; }\n")
    with pytest.raises(DeviceError, match="float-conversion"):
        host.compile_object(folder / "bad.c", folder)
    (folder / "uses.c").write_text(
        "float g(float);\nfloat f(float x);\nfloat f(float x) { return g(x); }\n"
    )
    assert host.undefined_symbols(host.compile_object(folder / "uses.c", folder)) == ["g"]
    assert host.undefined_symbols(host.compile_object(folder / "dense.c", folder)) == []


def test_emulator_gives_what_numpy_gives_and_counts_the_same_twice(machine):
    runs = []
    for turn in (1, 2):
        y, calls = np.zeros(7, np.float32), np.zeros(1, np.int32)
        runs.append(machine.call("dense", X, y, calls))
        np.testing.assert_allclose(y, expected(), atol=1e-6)
        assert calls[0] == turn  # static variables live on
    machine.reset()
    runs.append(machine.call("dense", X, y, calls))
    assert calls[0] == 2 + 1
    assert runs[0] == runs[1] == runs[2]
    assert runs[0].returned == -3
    assert 70 < runs[0].instructions < 400  # 35 multiplications at least two each


def test_emulator_passes_integers_and_arguments_on_the_stack(machine):
    assert machine.call("shift", 3, 2, 1, -2, 3).returned == 12 + 1 - 20 + 300


def test_emulator_measures_the_stack(machine):
    depths = [machine.call("deep", depth).stack_bytes for depth in (1, 2, 12)]
    frame = depths[1] - depths[0]
    assert frame >= 64
    assert depths[2] - depths[0] == 11 * frame


def test_emulator_stops_what_does_not_end_or_leaves_memory(machine):
    before = machine.call("deep", 1)
    with pytest.raises(DeviceError, match="more than 1000000 instructions"):
        machine.call("endless", np.ones(1, np.int32))
    with pytest.raises(DeviceError, match="failed on the emulated Cortex-M4"):
        machine.call("endless", 0x60000000)
    with pytest.raises(DeviceError, match="no function 'missing'; it has deep"):
        machine.call("missing")
    assert machine.call("deep", 1) == before  # and is of use afterwards


def test_block_counts_are_the_instructions_singly_counted(machine):
    """The oracle is unicorn's hook on each instruction, which leaves out what a condition skips."""
    import unicorn

    seen = []
    machine._uc.hook_add(unicorn.UC_HOOK_CODE, lambda uc, address, size, _: seen.append(address))
    run = machine.call("deep", 5)  # no conditional instructions but branches
    assert run.instructions == len([address for address in seen if address < 0x10000000])


def test_sizes_of_the_object(folder, compiler):
    built = cortex.compile_object(folder / "dense.c", folder, compiler=compiler)
    sizes = cortex.sizes(built)
    assert (sizes.data, sizes.bss, sizes.ram) == (4, 4, 8)  # `again`, `called`
    assert sizes.text + sizes.constants >= 4 * (35 + 7)
    assert 4 * (35 + 7) < sizes.flash < 2000
    assert host.undefined_elf_symbols(built) == []


@needs_qemu
def test_qemu_agrees_with_numpy_and_with_the_emulator(folder, compiler, machine):
    elf = qemu.build([folder / "dense.c", folder / "main.c"], folder, compiler=compiler)
    outcome = qemu.run(elf)
    assert outcome.code == 17  # .data and .bss were set up
    count, *words = outcome.output.split()
    y = np.array([int(word, 16) for word in words], np.uint32).view(np.float32)
    np.testing.assert_allclose(y, expected(), atol=1e-6)
    assert qemu.run(elf) == outcome
    one = machine.call("dense", X, np.zeros(7, np.float32), np.zeros(1, np.int32)).instructions
    # A turn of the loop in main() is a call, three arguments, a step and a branch.
    assert 4 <= int(count) / REPEATS - one <= 8


def test_missing_tools_are_named_with_the_remedy(folder, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(DeviceError, match="apt-get install gcc"):
        host.compile_object(folder / "dense.c", folder)
    with pytest.raises(DeviceError, match="apt-get install qemu-system-arm"):
        qemu.run(folder / "none.elf")
    monkeypatch.setattr(cortex, "available", list)
    with pytest.raises(DeviceError, match="pip install ziglang"):
        cortex.compile_object(folder / "dense.c", folder)
    monkeypatch.setitem(sys.modules, "unicorn", None)
    with pytest.raises(DeviceError, match=r"needs the package unicorn: pip install"):
        emulator.Emulator(folder / "none.elf")
