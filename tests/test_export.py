"""`secateur.export` and `secateur export`: files, sheets, names, and what is refused."""

import json
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import c_host as host
import exported
import secateur as sc
from command_line import secateur
from secateur import storage
from secateur.beliefs import mean_weights
from secateur.exports import Sheet, export
from secateur.exports.c.c_names import make_identifiers
from secateur.exports.device import cortex
from secateur.exports.graph import ExportError

RANDOM = np.random.default_rng(8)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    RANDOM.bit_generator.state = np.random.default_rng(8).bit_generator.state


needs_device = pytest.mark.skipif(not cortex.available(), reason="no compiler for a Cortex-M4")


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(8)
    x = random.normal(size=(60, 3)) * [1, 20, 0.1] + [5, 0, 100]
    return x, 40 + 3 * np.tanh(x[:, :1] - 5) + 0.1 * random.normal(size=(60, 1))


@pytest.fixture(scope="module")
def fitted(data):
    network = sc.networks.Dense(3, hidden=(4,))
    model = sc.BayesianModel(network, network.init(jax.random.key(0)))
    return sc.fit(model, data, key=jax.random.key(1), epochs=20, progress=False)


def predictions(folder, name, x, outputs=1):
    """What compiled files say."""
    library = host.build_library([folder / f"{name}.c"], folder)
    found = []
    for row in np.asarray(x, np.float32):
        y = np.zeros(outputs, np.float32)
        library.call(f"{name}_predict", row, y)
        found.append(y)
    return np.array(found)


def listing(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


# --- what is written ------------------------------------------------------------------------------


@needs_device
def test_other_rows_can_judge(fitted, data, tmp_path):
    x, y = data
    wish = {"inputs": x[:40], "quantise": "weights16", "measured": False}
    sheet = export(fitted, tmp_path / "net.c", held_out=(x[40:], y[40:]), **wish)
    same = export(fitted, tmp_path / "net.c", inputs=x[40:], targets=y[40:], measured=False)
    assert sheet.accuracy.exact.log_density == pytest.approx(
        same.accuracy.exact.log_density, rel=1e-5
    )
    assert sheet.accuracy.exact.free_energy == pytest.approx(
        same.accuracy.exact.free_energy, rel=1e-5
    )
    with pytest.raises(ExportError, match="20 rows of inputs and 19 of targets"):
        export(fitted, tmp_path / "net.c", held_out=(x[40:], y[41:]), **wish)


def test_c_from_end_to_end(fitted, data, tmp_path):
    x, y = data
    sheet = export(fitted, tmp_path / "net.c", inputs=x, targets=y, input_names=["a", "b", "c"])
    assert sorted(listing(tmp_path)) == sorted(sheet.files) == ["net.c", "net.c.json", "net.h"]
    found = predictions(tmp_path, "net", x)
    truth = np.asarray(fitted.predict(x).mean)
    assert np.abs(found - truth).max() < 0.1 * np.ptp(truth)  # of means, and not the mean
    assert sheet.size.parameters == 3 * 4 + 4 + 4 + 1
    assert sheet.size.weights == fitted.live_weights == 21
    assert sheet.size.stored <= 16
    (difference,) = sheet.accuracy.from_predict
    assert difference.largest == pytest.approx(np.abs(found - truth).max(), rel=1e-3)
    assert difference.rms == pytest.approx(np.sqrt(np.mean((found - truth) ** 2)), rel=1e-3)
    assert (difference.changed_classes, difference.rows, difference.is_drawn) == (None, 60, False)
    assert sheet.accuracy.largest_rounding < 1e-5 * np.abs(truth).max()
    made = cortex.compile_object(tmp_path / "net.c", tmp_path, optimise="-Os")
    assert sheet.size.flash_bytes == cortex.sizes(made).flash
    assert sheet.size.ram_bytes == cortex.sizes(made).ram == 0
    assert sheet.size.stack_bytes >= 0
    assert 50 < sheet.arithmetic.instructions < 2000
    assert sheet.accuracy.exact.free_energy == pytest.approx(fitted.free_energy, rel=0.05)
    assert sheet.accuracy.exact.log_density == pytest.approx(
        float(np.mean(fitted.predict(x).log_density(y))), abs=0.05
    )
    assert sheet.accuracy.quantised is None
    header = (tmp_path / "net.h").read_text()
    assert "#define NET_INPUTS 3\n" in header
    assert "NET_INPUT_B = 1, /* b */" in header
    shape, rate = (np.asarray(p)[0] for p in (fitted.noise.shape, fitted.noise.rate))
    scale = float(fitted.scaling.targets.scale[0])
    stated = {n: float(v) for n, v in re.findall(r"#define NET_(\w+)_0 ([\d.e-]+)f", header)}
    assert stated["NOISE"] == pytest.approx(scale * np.sqrt(rate / (shape - 1)), rel=1e-5)
    quantile = stats.t.ppf(0.975, 2 * shape)
    assert stated["INTERVAL"] == pytest.approx(scale * quantile * np.sqrt(rate / shape), rel=1e-5)


def test_quantised_c_from_end_to_end(fitted, data, tmp_path):
    x, y = data
    sheet = export(
        fitted, tmp_path / "net.c", inputs=x, targets=y, quantise="int16x8", measured=False
    )
    found = predictions(tmp_path, "net", x)
    export(fitted, tmp_path / "plain.c", inputs=x, measured=False)
    plain = predictions(tmp_path, "plain", x)
    assert 0 < np.abs(found - plain).max() < 0.1 * np.ptp(plain)
    assert len(sheet.arithmetic.tensors) == 2
    exact, rounded = sheet.accuracy.exact, sheet.accuracy.quantised
    assert abs(exact.log_density - rounded.log_density) < 0.05
    assert abs(exact.free_energy - rounded.free_energy) < 3
    (tmp_path / "tested").mkdir()
    flags = ["-DNET_SELF_TEST"]
    library = host.build_library([tmp_path / "net.c"], tmp_path / "tested", flags=flags)
    assert library.call("net_self_test").returned == 0


def test_the_sheet_is_a_table_and_json(fitted, data, tmp_path):
    x, y = data
    wishes = {"inputs": x, "targets": y, "quantise": "int8", "measured": False}
    sheet = export(fitted, tmp_path / "net.c", **wishes)
    written = json.loads((tmp_path / "net.c.json").read_text())
    assert written == json.loads(json.dumps(sheet.to_dict()))
    assert written["arithmetic"]["quantise"] == "int8"
    assert written["size"]["flash_bytes"] is None
    assert {t["bits"] for t in written["arithmetic"]["tensors"]} <= set(range(2, 9))
    table = str(sheet)
    assert re.search(r"^parameters of the trained network +21$", table, re.M)
    assert re.search(r"^free energy of the given rows, nats +-?\d+\.\d\d$", table, re.M)
    assert "flash" not in table
    assert len(re.findall(r"^ +\d+ +[2-8] +[\d.e-]+ +[\d.e-]+$", table, re.M)) == 2
    assert Sheet(("a",), "onnx", "").rows() == []


def test_onnx_from_end_to_end(fitted, data, tmp_path):
    pytest.importorskip("onnxruntime")
    x, _ = data
    sheet = export(fitted, tmp_path / "net.onnx", inputs=x)
    assert sorted(listing(tmp_path)) == sorted(sheet.files) == ["net.onnx", "net.onnx.json"]
    assert sheet.size.file_bytes == (tmp_path / "net.onnx").stat().st_size
    outputs = exported.run(tmp_path / "net.onnx", x)
    np.testing.assert_allclose(outputs["mean"], fitted.predict(x).mean, rtol=1e-4)
    assert json.loads((tmp_path / "net.onnx.json").read_text())["target"] == "onnx"


def test_a_recurrent_network(tmp_path):
    network = sc.networks.Gru(2, units=4)
    known = exported.trained(network, network.init(jax.random.key(0)), scaled=2)
    rows = 10 + RANDOM.normal(size=(20, 7, 2))
    sheet = export(known, tmp_path / "gru.c", inputs=rows, measured=False)
    assert sheet.size.state_bytes == 16
    header = (tmp_path / "gru.h").read_text()
    assert "void gru_init(gru_state *state);" in header
    library = host.build_library([tmp_path / "gru.c"], tmp_path)
    state, y = np.zeros(4, np.float32), np.zeros(1, np.float32)
    for row in rows[:3]:
        library.call("gru_init", state)
        for frame in row:
            library.call("gru_predict", state, np.ascontiguousarray(frame, np.float32), y)
        scaled = known.scaling.standardise_inputs(jnp.asarray(row[None]), jnp.float32)
        expected = known.scaling.targets.to_data(network(mean_weights(known.beliefs), scaled))
        np.testing.assert_allclose(y, np.asarray(expected)[0], rtol=1e-5)


def test_classes_are_scores(tmp_path):
    network = sc.networks.Dense(3, hidden=(4,), outputs=3)
    known = exported.trained(
        network, network.init(jax.random.key(0)), likelihood=sc.CategoricalLikelihood()
    )
    x = RANDOM.normal(size=(30, 3))
    wishes = {"inputs": x, "quantise": "int8", "measured": False}
    with pytest.raises(ExportError, match="targets are given without inputs"):
        export(known, tmp_path / "net.c", targets=np.zeros(30, int), measured=False)
    sheet = export(known, tmp_path / "net.c", output_names=["low", "mid", "high"], **wishes)
    assert sheet.accuracy.exact is None
    scores = predictions(tmp_path, "net", x, outputs=3)
    chosen = np.asarray(network(mean_weights(known.beliefs), jnp.asarray(x))).argmax(1)
    assert np.mean(scores.argmax(1) == chosen) > 0.9
    header = (tmp_path / "net.h").read_text()
    assert "NET_OUTPUT_MID = 1" in header
    assert "the largest belongs to the most probable class" in header


def test_self_tests_are_as_strict_as_outputs_are_large(tmp_path):
    """A network whose outputs are millionths notices a change, too."""
    network = sc.networks.Dense(2, hidden=(3,))
    params = jax.tree.map(lambda w: 1e-6 * w, network.init(jax.random.key(0)))
    export(exported.trained(network, params), tmp_path / "tiny.c", measured=False)
    text = (tmp_path / "tiny.c").read_text()
    (limit,) = re.findall(r"gap <= ([\d.e-]+)f", text)
    assert float(limit) < 1e-10


# --- names ----------------------------------------------------------------------------------------

AWKWARD = ["*/ int x; /*", "line\\\nend", "int", "Größe (m²)", "size", "SIZE", "", "3rd", "名前",
           "tab\tand\rreturn", "ends in \\", "??/", "\u202ereversed", "a\0b", '"quoted"', "%s %n",
           "a/*b", "**//"]  # fmt: skip


def test_awkward_names_still_compile(tmp_path):
    network = sc.networks.Dense(len(AWKWARD), hidden=(2,))
    known = exported.trained(network, network.init(jax.random.key(0)))
    export(known, tmp_path / "net.c", input_names=AWKWARD, output_names=["*/"], measured=False)
    host.compile_object(tmp_path / "net.c", tmp_path)
    header = (tmp_path / "net.h").read_text(encoding="utf-8")
    found = re.findall(r"NET_INPUT_(\w+) = (\d+),", header)
    assert [int(i) for _, i in found] == list(range(len(AWKWARD)))
    assert len({name for name, _ in found}) == len(AWKWARD)
    assert "名前" in header
    if not shutil.which("g++"):
        return
    (tmp_path / "user.cpp").write_text('#include "net.h"\nint main() { return NET_INPUTS == 0; }\n')
    subprocess.run(["g++", "-c", "user.cpp", "-o", "user.o"], cwd=tmp_path, check=True)


def test_identifiers_are_all_different():
    assert make_identifiers(["a", "A", "a 2", "A_2", "a"]) == ["A", "A_2", "A_2_2", "A_2_3", "A_3"]


@pytest.mark.parametrize(
    ("file", "name", "match"),
    [
        ("int.c", None, "'int' is a reserved word of C.*int_net"),
        ("my net.c", None, "'my net' is not a name in C.*my_net"),
        ("3d.c", None, "'3d' is not a name in C.*n_3d"),
        ("größe.c", None, "is not a name in C.*grosse"),
        ("net.c", "a-b", "'a-b' is not a name in C.*a_b"),
        ("_x.c", None, "is not a name in C"),
        ("math.c", None, "math.h is the name of a header of the C library.*math_net.c"),
        ("stdint.c", "fine", "stdint.h is the name of a header of the C library"),
        ('a"b.c', "fine", "#include cannot name"),
        ("net.txt", None, r"net.txt ends in '.txt'. Supported: .onnx and .c"),
        ("net", None, r"net ends in ''"),
        ("none/net.c", None, "there is no folder"),
    ],
)
def test_names_and_places_that_cannot_be(fitted, tmp_path, file, name, match):
    with pytest.raises(ExportError, match=match):
        export(fitted, tmp_path / file, name=name, measured=False)
    assert not list(tmp_path.iterdir())


def test_another_name_than_the_files(fitted, data, tmp_path):
    export(fitted, tmp_path / "model v2.c", name="net", measured=False)
    assert '#include "model v2.h"' in (tmp_path / "model v2.c").read_text()
    library = host.build_library([tmp_path / "model v2.c"], tmp_path)
    library.call("net_predict", np.zeros(3, np.float32), np.zeros(1, np.float32))


# --- nothing is left behind -----------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["c", "onnx"])
def test_a_model_that_cannot_be_exported_leaves_everything_as_it_was(suffix, tmp_path):
    pytest.importorskip("onnx")
    known = exported.trained(lambda p, x: jnp.sort(x @ p), jnp.ones((3, 2)))
    (tmp_path / f"net.{suffix}").write_text("the one from before")
    before = listing(tmp_path)
    with pytest.raises(ExportError, match=r"sort.*test_export\.py"):
        export(known, tmp_path / f"net.{suffix}", inputs=RANDOM.normal(size=(8, 3)))
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("wishes", "match"),
    [
        ({"input_names": ["a"]}, "input names: 1 are given, and 3 needed"),
        ({"output_names": ["a", "b"]}, "output names: 2 are given, and 1 needed"),
        ({"quantise": "int4"}, "quantise='int4'. Supported: int8, int16x8"),
        ({"optimise": "beauty"}, "optimise='beauty'. Supported: size, speed"),
        ({"inputs": np.ones((5, 4))}, "inputs have 4 columns, and the model has 3 inputs"),
        ({"inputs": np.ones(5)}, r"the shape \(5,\). Give rows"),
        ({"inputs": np.full((5, 3), np.nan)}, "not finite"),
        ({"inputs": np.ones((5, 3)), "targets": np.ones((4, 1))}, "5 rows of inputs and 4 of"),
    ],
)
def test_wishes_that_cannot_be(fitted, tmp_path, wishes, match):
    with pytest.raises(ExportError, match=match):
        export(fitted, tmp_path / "net.c", measured=False, **wishes)
    assert not list(tmp_path.iterdir())


def test_what_is_no_model(tmp_path):
    with pytest.raises(TypeError, match="a dict is not a trained model"):
        export({}, tmp_path / "net.c")


def test_quantised_onnx_is_refused(fitted, tmp_path):
    with pytest.raises(ExportError, match="written as C"):
        export(fitted, tmp_path / "net.onnx", quantise="int8")


def test_a_function_of_ones_own_needs_rows(tmp_path):
    known = exported.trained(lambda p, x: x @ p, jnp.ones((3, 2)))
    with pytest.raises(ExportError, match=r"inputs=|inputs"):
        export(known, tmp_path / "net.c", measured=False)


@pytest.mark.parametrize("which", ["net.h", "net.c.json"])
def test_a_folder_in_the_place_of_a_file(fitted, tmp_path, which):
    (tmp_path / which).mkdir()
    with pytest.raises(ExportError, match=f"{which} cannot be written: it is not a file"):
        export(fitted, tmp_path / "net.c", measured=False)
    assert [p.name for p in tmp_path.iterdir()] == [which]


@pytest.mark.parametrize("old", [False, True])
def test_a_full_disk_leaves_all_files_or_none(fitted, tmp_path, monkeypatch, old):
    if old:
        for name in ("net.c", "net.h", "net.c.json"):
            (tmp_path / name).write_text("old")
    before, write = listing(tmp_path), storage.write_file

    def full(path, content, **options):
        if path.suffix == ".json" and content != b"old":
            raise OSError(28, "No space left on device")
        write(path, content, **options)

    monkeypatch.setattr(storage, "write_file", full)
    with pytest.raises(ExportError, match=r"net\.c\.json cannot be written: No space left"):
        export(fitted, tmp_path / "net.c", measured=False)
    assert listing(tmp_path) == before


def test_a_folder_that_cannot_be_written_to(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ExportError, match="nothing can be written to"):
        export(fitted, tmp_path / "net.c", measured=False)


def test_onnx_without_its_package(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="pip install onnx"):
        export(fitted, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_without_a_device_the_sheet_says_so(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(cortex, "available", list)
    monkeypatch.setattr(cortex.shutil, "which", lambda name: None)
    sheet = export(fitted, tmp_path / "net.c")
    assert sheet.arithmetic.instructions is None
    assert any("Not measured on a device" in note for note in sheet.notes)
    assert not any("not cycles" in note for note in sheet.notes)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, and the table that it was made from."""
    place = tmp_path_factory.mktemp("run")
    random = np.random.default_rng(8)
    frame = pd.DataFrame({"size": random.uniform(-1, 1, 80), "colour": ["red", "blue"] * 40})
    frame["y"] = 3 * frame["size"] + (frame["colour"] == "red") + 0.1 * random.normal(size=80)
    frame.to_csv(place / "table.csv", index=False)
    done = secateur(
        "fit", place / "table.csv", "-t", "y", "-o", place / "out", "--hidden", 3, "--epochs", 20
    )
    assert done.code == 0, done.err
    return place / "out", place / "table.csv"


@pytest.mark.slow
def test_the_command_writes_files_record_and_report(run):
    folder, table = run
    wishes = ("--to", "c", "--quantise", "int16x8", "--optimise", "speed", "--no-measure")
    done = secateur("export", folder, *wishes, "--data", table)
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith(
        f"Written: {folder / 'model.c'}, {folder / 'model.h'}, {folder / 'model.c.json'}"
    )
    assert "log-density per row, nats" in done.out
    assert "MODEL_INPUT_SIZE = 0, /* size */" in (folder / "model.h").read_text()
    assert "MODEL_OUTPUT_Y = 0, /* y */" in (folder / "model.h").read_text()
    sheet = json.loads((folder / "model.c.json").read_text())
    (recorded,) = json.loads((folder / "run.json").read_text())["exports"]
    assert {k: recorded[k] for k in sheet} == sheet
    page = (folder / "report.html").read_text()
    assert 'id="exports"' in page
    assert "C, int16x8, for speed" in page
    # Again, otherwise: it takes the place of the one before.
    assert secateur("export", folder, "--to", "c", "--no-measure").code == 0
    pytest.importorskip("onnx")
    assert secateur("export", folder, "--to", "onnx").code == 0
    sheets = json.loads((folder / "run.json").read_text())["exports"]
    assert [(s["target"], s["arithmetic"]["quantise"]) for s in sheets] == [
        ("c", None),
        ("onnx", None),
    ]
    page = (folder / "report.html").read_text()
    assert "C, float32, for size" in page
    assert "C, int16x8, for speed" not in page


def test_rows_without_the_target_give_scales_only(run, tmp_path):
    folder, table = run
    rows = tmp_path / "rows.csv"
    pd.read_csv(table).drop(columns="y").to_csv(rows, index=False)
    out = tmp_path / "small.c"
    done = secateur(
        "export", folder, "--to", "c", "--quantise", "int8", "--data", rows, "-o", out,
        "--name", "tiny", "--no-measure",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "log-density" not in done.out
    assert "drawn" not in done.out
    assert "void tiny_predict(" in (tmp_path / "small.h").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "c", "--out", "x.onnx"), "--to c writes a file that ends in .c, not x.onnx"),
        (("--to", "c", "--out", "none/x.c"), "there is no folder none"),
        (("--to", "onnx", "--quantise", "int8"), "written as C"),
        (("--to", "c", "--name", "while"), "reserved word"),
        (("--to", "pdf"), "'pdf' is not one of"),
        (("--to", "c", "--data", "no.csv"), "no.csv"),
    ],
)
def test_mistakes_of_use_are_one_message(run, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = secateur("export", run[0], *words)
    assert done.code == 2
    assert message in " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.err).split())
    assert "Traceback" not in done.err
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_model(tmp_path):
    done = secateur("export", tmp_path, "--to", "c")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert str(tmp_path) in done.err.replace("\n", "")


def test_help_names_every_option():
    done = secateur("export", "--help")
    assert done.code == 0
    for word in ("--to", "--quantise", "--optimise", "--data", "--out", "--name", "int16x8"):
        assert word in done.out
