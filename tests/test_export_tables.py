"""Models of tables as files: raw columns go in, and what comes out is what `predict` says.

The oracle of predictions is `Trained.predict`, at the posterior means or averaged; that of the
encoding is `Encoding.encode`.
"""

import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

import c_host as host
import exported
import secateur as sc
import table_rows
from c_networks import steps
from command_line import secateur
from secateur.beliefs import mean_weights
from secateur.compaction import find_used_inputs
from secateur.exports import export, to_c, to_onnx
from secateur.exports.c.c_files import HeaderLabels
from secateur.exports.c.source_writer import write_c
from secateur.exports.c.table_code import RowField
from secateur.exports.graph import ExportError
from secateur.exports.model_labels import find_labels
from secateur.runs.table_model import encode_used_columns, predict_rows, predict_table
from secateur.tables import Encoding, TableError, encode_table, read_table
from secateur.training.scaling import Affine, Scaling

KINDS = ["a b", 'say "x" \\', "naïve", "*/ 名前"]
TABLE_ROWS = 80
SIZE, KIND, CLASS, ALIVE, CUT = "Größe (m²)", 'the "kind"', "class", "alive", "cut"


def make_frame(target="number"):
    """A table with awkward names and texts, truths and missing values."""
    random = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            CUT: random.normal(size=TABLE_ROWS),
            SIZE: 40 + 5 * random.normal(size=TABLE_ROWS),
            KIND: random.choice(KINDS, TABLE_ROWS),
            CLASS: random.choice(["ja", "nein"], TABLE_ROWS),
            ALIVE: random.choice([True, False], TABLE_ROWS).astype(object),
        }
    )
    score = frame[SIZE] - 40 + 4 * (frame[CLASS] == "ja")
    if target == "number":
        frame["y"] = score
    else:
        frame["y"] = pd.cut(score, 3, labels=["wenig", "más", "??/"]).astype(str)
    for start, name in enumerate([CUT, SIZE, KIND, CLASS, ALIVE]):
        frame.loc[start::9, name] = None
    return frame


def make_model(target="number", *, missing="mean", inference="moments", seed=0):
    """A posterior that no training has made for that table, with one column cut; and its encoding.

    An input of `KIND` is cut, too, and a hidden unit is dead.
    """
    frame = make_frame(target)
    complete = frame if missing == "mean" else frame.dropna()
    table = encode_table(complete, ["y"], missing=missing)
    network = sc.networks.Dense(table.x.shape[1], hidden=(6,), outputs=table.encoding.outputs)
    params = jax.tree.map(lambda w: 2 * w, network.init(jax.random.key(seed)))
    likelihood = sc.GaussianLikelihood() if target == "number" else sc.CategoricalLikelihood()
    known = exported.trained(
        network, params, scaled=1, seed=seed, likelihood=likelihood, inference=inference
    )
    first = known.beliefs["layers"][0]["weights"]
    names = [i["name"] for i in table.encoding.inputs]
    keep = np.array([i["column"] != CUT for i in table.encoding.inputs])[:, None] * 1.0
    keep[names.index(f"{KIND}={KINDS[0]}")] = 0
    known.beliefs["layers"][0]["weights"] = sc.Normal(first.mean * keep, first.variance * keep)
    second = known.beliefs["layers"][1]["weights"]
    keep = np.ones((6, 1))
    keep[2] = 0
    known.beliefs["layers"][1]["weights"] = sc.Normal(second.mean * keep, second.variance * keep)
    units = Affine(table.x.mean(axis=0), table.x.std(axis=0))
    return replace(
        known,
        scaling=Scaling(units, known.scaling.targets),
        compaction=None,
        extra={"table": table.encoding.to_json()},
    ), table.encoding


def count_inputs(model):
    return model.model.f.inputs


def take_rows(frame, encoding, model, **options):
    """Means or probabilities that Python has for the rows of a table."""
    x = encode_used_columns(model, encoding, frame).x
    return model.predict(x, **options).mean


def compiled_rows(folder, name, model, frame):
    """The library, the structs of a table's rows, and what C predicts for them."""
    library = host.build_library([folder / f"{name}.c"], folder)
    labels = find_labels(sc.compact(model, drop_inputs=True))
    rows = table_rows.make_rows(labels.columns, frame)
    codes, outputs = table_rows.predict_rows(library, name, rows, len(labels.outputs))
    if labels.classes:
        outputs = table_rows.make_probabilities(library, name, outputs)
    return library, rows, codes, outputs


# --- predictions at the posterior means -----------------------------------------------------------


@pytest.mark.parametrize("inference", ["moments", "local", "global"])
@pytest.mark.parametrize("target", ["number", "classes"])
def test_predictions_at_means_are_those_of_the_function(target, inference):
    model, _ = make_model(target, inference=inference)
    x = np.random.default_rng(0).normal(size=(20, count_inputs(model))) + model.scaling.inputs.shift
    z = ((x - model.scaling.inputs.shift) / model.scaling.inputs.scale).astype(np.float32)
    f = np.asarray(model.model.f(mean_weights(model.beliefs), jnp.asarray(z)), np.float64)
    answer = model.predict(x, at_means=True)
    if target == "classes":
        np.testing.assert_allclose(answer.probabilities, special.softmax(f, axis=1), atol=1e-6)
        return
    shift, scale = exported.UNITS.shift, exported.UNITS.scale
    np.testing.assert_allclose(answer.mean, f * scale + shift, rtol=1e-6)
    assert not answer.weight_variance.any()
    shape, rate = exported.NOISE.shape[0], exported.NOISE.rate[0]
    variance = np.tile(scale**2 * rate / (shape - 1), (20, 1))
    np.testing.assert_allclose(answer.variance, variance, rtol=1e-5)
    half = stats.t.ppf(0.975, 2 * shape) * np.sqrt(rate / shape) * scale
    widths = answer.interval(0.95)[1] - answer.mean
    np.testing.assert_allclose(widths, np.tile(half, (20, 1)), rtol=1e-5)


def test_doubles_stay_doubles_at_means():
    with jax.enable_x64(True):
        network = sc.networks.Dense(2, hidden=(3,))
        params = network.init(jax.random.key(0))
        known = exported.trained(network, params, dtype=jnp.float64)
        x = np.random.default_rng(0).normal(size=(5, 2))
        truth = network(mean_weights(known.beliefs), jnp.asarray(x))
        found = known.predict(x, at_means=True).mean
        np.testing.assert_allclose(found, np.asarray(truth), rtol=1e-14)


# --- columns that are not used --------------------------------------------------------------------


def test_used_inputs_are_those_that_change_predictions():
    model, encoding = make_model()
    rows = (
        np.random.default_rng(0).normal(size=(10, count_inputs(model))) + model.scaling.inputs.shift
    )
    truth = model.predict(rows)
    changes = []
    for column in range(count_inputs(model)):
        moved = rows.copy()
        moved[:, column] += 3
        answer = model.predict(moved)
        same = np.array_equal(answer.mean, truth.mean)
        changes.append(not (same and np.array_equal(answer.variance, truth.variance)))
    assert find_used_inputs(model).tolist() == changes
    names = [i["name"] for i, yes in zip(encoding.inputs, changes, strict=True) if not yes]
    assert names == [CUT, f"{CUT} is missing", f"{KIND}={KINDS[0]}"]


@pytest.mark.parametrize("missing", ["mean", "drop", "error"])
def test_unused_columns_are_not_needed(missing, tmp_path):
    model, _ = make_model(missing=missing)
    full = make_frame().drop(columns="y")
    if missing == "error":
        full = full[full.drop(columns=CUT).notna().all(axis=1)]
        assert full[CUT].isna().any()
    full.to_csv(tmp_path / "full.csv", index=False)
    full.drop(columns=CUT).to_csv(tmp_path / "less.csv", index=False)
    filled = full.assign(**{CUT: 1e9})
    filled.to_csv(tmp_path / "filled.csv", index=False)
    answers = [predict_table(model, tmp_path / f"{n}.csv")[0] for n in ("full", "less", "filled")]
    pd.testing.assert_frame_equal(answers[0], answers[1], check_exact=True)
    pd.testing.assert_frame_equal(answers[0], answers[2], check_exact=True)
    assert answers[0].isna().any(axis=None) == (missing == "drop")
    full.drop(columns=CLASS).to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(TableError, match="no column 'class'"):
        predict_table(model, tmp_path / "other.csv")


def test_used_columns_are_encoded_as_ever(tmp_path):
    """What `Encoding.encode` makes of a full table, in the inputs that matter."""
    model, encoding = make_model()
    make_frame().to_csv(tmp_path / "table.csv", index=False)
    frame = read_table(tmp_path / "table.csv", text=encoding.text_columns)
    used = find_used_inputs(model)
    found, truth = encode_used_columns(model, encoding, frame), encoding.encode(frame)
    np.testing.assert_array_equal(found.x[:, used], truth.x[:, used])
    pd.testing.assert_frame_equal(
        predict_rows(model, encoding, found.x), predict_rows(model, encoding, truth.x)
    )
    small = sc.compact(model, drop_inputs=True)  # its encoding has more inputs than it has
    assert encode_used_columns(small, encoding, frame).x.shape[1] == used.sum()


def test_the_commands_agree(tmp_path):
    """`predict --at-means` on a table without the cut column, and C, from the same folder."""
    model, encoding = make_model("classes")
    folder = tmp_path / "run"
    folder.mkdir()
    sc.save(model, folder / "model.safetensors", extra=model.extra)
    frame = make_frame("classes").drop(columns=[CUT, "y"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    done = secateur("predict", folder, tmp_path / "new.csv", "--at-means", "-o", tmp_path / "p.csv")
    assert done.code == 0, done.err
    assert "does not know" not in done.err
    words = ("--to", "c", "--data", tmp_path / "new.csv", "-o", tmp_path / "net.c", "--no-measure")
    done = secateur("export", folder, *words)
    assert done.code == 0, done.err
    assert re.search(r"^difference from predict, largest +0\.\d+$", done.out, re.M)
    outputs = compiled_rows(tmp_path, "net", model, frame)[-1]
    written = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(outputs, written.iloc[:, 1:], atol=2e-6)
    chosen = np.array(encoding.targets[0].classes)[outputs.argmax(axis=1)]
    assert chosen.tolist() == written["y"].tolist()
    done = secateur("export", folder, *words, "--keep-inputs", "--mean", "predictive")
    assert done.code == 0, done.err
    assert "NET_COLUMN_CUT" in (tmp_path / "net.h").read_text()
    assert "averaged over the posterior" in (tmp_path / "net.h").read_text()


def test_limits_are_kept_with_the_encoding():
    frame = make_frame()
    encoding = encode_table(frame, ["y"], missing="mean").encoding
    columns = {c.name: c for c in Encoding.from_json(encoding.to_json()).columns}
    assert columns[SIZE].limits == (frame[SIZE].min(), frame[SIZE].max())
    assert columns[KIND].limits is None
    assert Encoding.from_json(encoding.to_json()) == encoding


# --- rows in C ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", ["weights", "predictive"])
@pytest.mark.parametrize("target", ["number", "classes"])
def test_rows_of_a_table_go_through_c(target, mean, tmp_path):
    """With all their missing values, and with the difference from `predict` that is stated."""
    model, encoding = make_model(target, seed=2)
    frame = make_frame(target)
    x = encode_used_columns(model, encoding, frame).x
    sheet = export(model, tmp_path / "net.c", inputs=x, mean=mean, measured=False)
    _, _, codes, found = compiled_rows(tmp_path, "net", model, frame)
    assert not codes.any()
    averaged = take_rows(frame, encoding, model)
    truth = averaged if mean == "predictive" else take_rows(frame, encoding, model, at_means=True)
    tolerance = {"atol": 2e-6} if target == "classes" else {"rtol": 1e-5}
    np.testing.assert_allclose(found, truth, **tolerance)
    (stated,) = sheet.accuracy.from_predict
    assert sheet.accuracy.mean == mean
    assert stated.output == (None if target == "classes" else "y")
    gaps = found - averaged
    assert (stated.rows, stated.is_drawn) == (TABLE_ROWS, False)
    rounding = 1e-6 if target == "classes" else 1e-4
    assert stated.largest == pytest.approx(np.abs(gaps).max(), rel=1e-3, abs=rounding)
    assert stated.rms == pytest.approx(np.sqrt(np.mean(gaps**2)), rel=1e-3, abs=rounding)
    if target == "classes":
        changed = int(np.sum(found.argmax(1) != averaged.argmax(1)))
        assert stated.changed_classes == changed
        assert (changed > 0) == (mean == "weights")
    assert stated.describe() in (tmp_path / "net.h").read_text()
    if mean == "weights":
        assert stated.largest > 1e3 * rounding
        assert any("while predict averages" in note for note in sheet.notes)


def test_numbers_far_from_zero(tmp_path):
    """Only rows are rounded to float32, not their means: 1000 ± 1 in eighths is exact."""
    network = sc.networks.Dense(1, hidden=(4,))
    known = exported.trained(network, network.init(jax.random.key(0)), scaled=1)
    known = replace(known, scaling=replace(known.scaling, inputs=Affine([1000.3337], [1.01])))
    x = 1000 + np.arange(-16, 17)[:, None] / 8
    export(known, tmp_path / "net.c", inputs=x, measured=False)
    library = host.build_library([tmp_path / "net.c"], tmp_path)
    y = np.zeros((33, 1), np.float32)
    for row, place in zip(x.astype(np.float32), y, strict=True):
        library.call("net_predict", row, place)
    np.testing.assert_allclose(y, known.predict(x, at_means=True).mean, rtol=1e-6)


def test_a_missing_value_is_an_error_where_it_was_one(tmp_path):
    model, encoding = make_model(missing="error")
    frame = make_frame()
    export(model, tmp_path / "net.c", measured=False)
    _, _, codes, found = compiled_rows(tmp_path, "net", model, frame)
    used = [SIZE, KIND, CLASS, ALIVE]
    gaps = frame[used].isna().to_numpy()
    first = np.where(gaps.any(axis=1), 1 + gaps.argmax(axis=1), 0)
    assert codes.tolist() == first.tolist()
    assert np.isnan(found[first > 0]).all()
    whole = frame[first == 0]
    truth = take_rows(whole, encoding, model, at_means=True)
    np.testing.assert_allclose(found[first == 0], truth, rtol=1e-5)
    header = (tmp_path / "net.h").read_text()
    assert "float grosse_m2; /* Größe (m²): NaN is an error */" in header
    assert "NET_COLUMN_GROSSE_M2 = 1" in header
    assert "FILL" not in header


def test_values_that_were_never_seen(tmp_path):
    """Refused, or said to be out of range; and the limits themselves are within."""
    model, encoding = make_model()
    frame = make_frame()
    export(model, tmp_path / "net.c", measured=False)
    library, rows, _, _ = compiled_rows(tmp_path, "net", model, frame)
    assert table_rows.check_ranges(library, "net", rows).all()
    row = next(r for r, gap in zip(rows, frame.isna().any(axis=1), strict=True) if not gap)
    members = list(row.dtype.names)  # SIZE, KIND, CLASS, ALIVE

    def ask(member, value):
        changed = row.copy()
        changed[member] = value
        codes, outputs = table_rows.predict_rows(library, "net", [changed], 1)
        within = table_rows.check_ranges(library, "net", [changed])
        return int(codes[0]), bool(np.isfinite(outputs).all()), bool(within[0])

    low, high = (np.float32(v) for v in encoding.columns[1].limits)
    assert ask(members[0], low) == ask(members[0], high) == (0, True, True)
    assert ask(members[0], np.nextafter(high, np.float32(np.inf))) == (0, True, False)
    assert ask(members[0], np.nextafter(low, np.float32(-np.inf))) == (0, True, False)
    assert ask(members[0], np.nan) == (0, True, True)
    assert ask(members[0], np.inf) == (1, False, False)
    assert ask(members[0], -np.inf) == (1, False, False)
    for value in (4, -2, 2**31 - 1, -(2**31)):
        assert ask(members[1], value) == (2, False, False)
    assert ask(members[1], -1) == (0, True, True)
    assert ask(members[2], 2) == (3, False, False)
    assert ask(members[3], 2) == (4, False, False)
    assert ask(members[3], -2) == (4, False, False)
    assert ask(members[3], -1) == (0, True, True)
    header = (tmp_path / "net.h").read_text()
    stated = dict(re.findall(r"#define NET_(\w+_GROSSE_M2) ([\d.]+)f", header))
    assert np.float32(stated["MIN_GROSSE_M2"]) == low
    assert np.float32(stated["FILL_GROSSE_M2"]) == np.float32(encoding.columns[1].fill)


def test_indicators_of_missing_values_and_parts(tmp_path):
    """Kinds of columns that make more inputs than one: written as fields, compared by hand."""
    fields = [
        RowField("a", "number", fill=2.5, inputs=((None, 0),), indicator=1),
        RowField("b", "category", ("u", "v", "w"), "v", inputs=((0, 2), (2, 3)), indicator=4),
        RowField("c", "boolean", fill=0.25, inputs=((None, 5),), indicator=6),
        RowField("d", "presence", indicator=7),
        RowField("unused", "number", inputs=((None, 8),), is_used=False),
    ]
    weights = 10.0 ** np.arange(9)[:, None]
    graph = steps(lambda x: x @ jnp.asarray(weights), (9,))
    source = write_c(graph, "net", labels=HeaderLabels(fields=fields))
    (tmp_path / "net.c").write_text(source.source)
    (tmp_path / "net.h").write_text(source.header)
    library = host.build_library([tmp_path / "net.c"], tmp_path)
    kinds = np.dtype([("a", "f4"), ("b", "i4"), ("c", "i4"), ("d", "i4"), ("unused", "f4")])
    for row, truth in (
        ((7.0, 0, 1, 1, np.nan), [7.0, 0, 1, 0, 0, 1, 0, 0, 0]),
        ((np.nan, -1, -1, 0, 3.0), [2.5, 1, 0, 0, 1, 0.25, 1, 1, 3]),
        ((7.0, 2, 0, 5, 0.0), [7.0, 0, 0, 1, 0, 0, 0, 0, 0]),
    ):
        x = np.full(9, np.nan, np.float32)
        assert library.call("net_encode_row", np.array([row], kinds), x).returned == 0
        np.testing.assert_array_equal(x, np.array(truth, np.float32))


def test_names_in_c_are_all_different(tmp_path):
    """Columns and categories whose names in C would be the same, or those of something else."""
    fields = [
        RowField("a b", "category", ("c", "missing", "MISSING"), inputs=((0, 0),)),
        RowField("a", "category", ("b c", "B_C", "int"), inputs=((1, 1),)),
        RowField("A", "number", limits=(0.0, 1.0), fill=0.5, inputs=((None, 2),)),
        RowField("min", "category", ("a", "A_2", "x"), inputs=((1, 3),)),
        RowField("row", "category", ("x", "y", "z"), inputs=((1, 4),)),
        RowField("class", "number", inputs=((None, 5),)),
        RowField("input", "category", ("q", "p"), inputs=((1, 6),)),
        RowField("unix", "boolean", inputs=((None, 7),)),
    ]
    graph = steps(lambda x: x.sum(axis=1, keepdims=True), (8,))
    labels = HeaderLabels(inputs=list("qrstuvwx"), outputs=["y"], fields=fields)
    source = write_c(graph, "net", labels=labels)
    (tmp_path / "net.c").write_text(source.source)
    (tmp_path / "net.h").write_text(source.header)
    compiled = host.compile_object(tmp_path / "net.c", tmp_path)
    assert host.undefined_symbols(compiled) == []
    constants = re.findall(r"^    (NET_\w+) = -?\d+,", source.header, re.M)
    constants += re.findall(r"^#define (NET_\w+)", source.header, re.M)
    assert len(constants) == len(set(constants))


@pytest.mark.slow
def test_rows_under_sanitizers(tmp_path):
    """No undefined behaviour for any bits of a row, and nothing is needed from others."""
    model, _ = make_model("classes")
    export(model, tmp_path / "net.c", mean="predictive", measured=False)
    for level in ("-O0", "-O2", "-O3"):
        made = host.compile_object(tmp_path / "net.c", tmp_path, optimise=level)
        assert host.undefined_symbols(made) == []
    labels = find_labels(sc.compact(model, drop_inputs=True))
    rows = table_rows.make_rows(labels.columns, make_frame("classes"))[:3]
    random = np.random.default_rng(0)
    for _ in range(200):
        words = random.integers(0, 2**32, size=len(rows[0].dtype), dtype=np.uint32)
        rows.append(np.frombuffer(words.tobytes(), rows[0].dtype).copy())
    functions = {"net_predict_row": 2, "net_in_range": 1, "net_probabilities": 2}
    calls = []
    for row in rows:
        y = np.zeros(3, np.float32)
        calls += [(0, (row, y)), (1, (row,)), (2, (y, y))]
    program = host.build_sanitized([tmp_path / "net.c"], tmp_path / "net.h", functions, tmp_path)
    host.run_sanitized(program, calls)
    sums = [arrays[1].sum() for place, arrays in calls[:9] if place == 0]
    np.testing.assert_allclose(sums, 1, atol=1e-6)


def test_self_test_and_names_of_a_table(tmp_path):
    model, _ = make_model("classes")
    export(model, tmp_path / "net.c", measured=False)
    header = (tmp_path / "net.h").read_text()
    assert '#define NET_OUTPUT_NAMES {"\\?\\?/", "más", "wenig"}' in header
    flags = ["-DNET_SELF_TEST"]
    library = host.build_library([tmp_path / "net.c"], tmp_path, flags=flags)
    assert library.call("net_self_test").returned == 0
    model, _ = make_model()
    header = to_c(model).header
    shape, rate = exported.NOISE.shape[0], exported.NOISE.rate[0]
    (noise,) = re.findall(r"#define NET_NOISE_Y ([\d.]+)f", header)
    assert float(noise) == pytest.approx(3 * np.sqrt(rate / (shape - 1)), rel=1e-5)


@pytest.mark.parametrize("likelihood", [sc.CategoricalLikelihood(), sc.BernoulliLikelihood()])
def test_probabilities_in_c(likelihood, tmp_path):
    """Softmax or sigmoid of outputs, also of huge ones."""
    network = sc.networks.Dense(3, hidden=(), outputs=4)
    known = exported.trained(network, network.init(jax.random.key(0)), likelihood=likelihood)
    export(known, tmp_path / "net.c", measured=False)
    library = host.build_library([tmp_path / "net.c"], tmp_path)
    outputs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32) * 5
    outputs[0] = [1e30, -1e30, 0, 3e38]
    outputs[1] = [-np.inf, 0, 1, -200]
    found = table_rows.make_probabilities(library, "net", outputs)
    link = special.expit if isinstance(likelihood, sc.BernoulliLikelihood) else special.softmax
    kwargs = {} if link is special.expit else {"axis": 1}
    np.testing.assert_allclose(found, link(outputs.astype(np.float64), **kwargs), atol=3e-7)
    (sentence,) = re.findall(r"Difference of a probability.*", (tmp_path / "net.h").read_text())[:1]
    assert "256 rows drawn at random" in sentence
    assert "a different class in" in sentence


# --- averaged predictions -------------------------------------------------------------------------


def test_a_linear_network_has_no_difference(tmp_path):
    """Of numbers: the mean of a linear function is the function at the means."""
    network = sc.networks.Dense(3, hidden=())
    known = exported.trained(network, network.init(jax.random.key(0)), scaled=3)
    plain = export(known, tmp_path / "plain.c", measured=False)
    averaged = export(known, tmp_path / "mean.c", mean="predictive", measured=False)
    for sheet in (plain, averaged):
        assert sheet.accuracy.from_predict[0].largest < 1e-5
    assert plain.arithmetic.multiply_adds == averaged.arithmetic.multiply_adds


@pytest.mark.parametrize("likelihood", [sc.BernoulliLikelihood(), sc.PoissonLikelihood()])
def test_averaged_truths_and_counts(likelihood, tmp_path):
    network = sc.networks.Dense(3, hidden=(4,))
    known = exported.trained(network, network.init(jax.random.key(0)), likelihood=likelihood)
    x = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    sheet = export(known, tmp_path / "net.c", mean="predictive", inputs=x, measured=False)
    assert sheet.accuracy.from_predict[0].largest < 1e-5
    library = host.build_library([tmp_path / "net.c"], tmp_path)
    link = special.expit if isinstance(likelihood, sc.BernoulliLikelihood) else np.exp
    y = np.zeros((30, 1), np.float32)
    for row, place in zip(x, y, strict=True):
        library.call("net_predict", row, place)
    np.testing.assert_allclose(link(y), known.predict(x).mean, rtol=1e-5)


def test_averages_that_cannot_be_written(tmp_path):
    network = sc.networks.Dense(3, hidden=(4,))
    params = network.init(jax.random.key(0))
    sampled = exported.trained(network, params, inference="local")
    moments = exported.trained(network, params)
    gru = sc.networks.Gru(2, units=3)
    sequences = exported.trained(gru, gru.init(jax.random.key(0)))
    for model, suffix, options, match in (
        (sampled, "c", {}, "average networks that are drawn"),
        (sampled, "onnx", {}, "average networks that are drawn"),
        (moments, "c", {"quantise": "int8"}, "in float32 only"),
        (sequences, "c", {}, "mean='predictive' cannot be written"),
        (sequences, "onnx", {}, "moments of a loop over time cannot be written"),
    ):
        with pytest.raises(ExportError, match=match):
            export(model, tmp_path / f"net.{suffix}", mean="predictive", measured=False, **options)
    with pytest.raises(ExportError, match=r"mean='median'\. Supported: weights, predictive"):
        export(moments, tmp_path / "net.c", mean="median")
    assert not list(tmp_path.iterdir())


def test_onnx_at_the_means_of_the_weights(tmp_path):
    pytest.importorskip("onnxruntime")
    model, encoding = make_model()
    x = encode_used_columns(model, encoding, make_frame()).x
    kept = np.flatnonzero(find_used_inputs(model))
    for mean, at_means in (("weights", True), (None, False)):
        sheet = export(model, tmp_path / "net.onnx", inputs=x, mean=mean)
        found = exported.run(tmp_path / "net.onnx", x[:, kept])["mean"]
        truth = model.predict(x, at_means=at_means).mean
        np.testing.assert_allclose(found, truth, rtol=1e-5)
        assert sheet.accuracy.mean == ("weights" if at_means else "predictive")
        (stated,) = sheet.accuracy.from_predict
        gap = np.abs(truth - model.predict(x).mean).max()
        assert stated.largest == pytest.approx(gap, rel=1e-3, abs=2e-5)


# --- inputs and counts ----------------------------------------------------------------------------


def read_facts(content):
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(content)
    width = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    return width, {entry.key: entry.value for entry in model.metadata_props}


def test_inputs_of_a_table_are_those_that_are_used(tmp_path):
    model, encoding = make_model()
    used = [
        i["name"] for i, yes in zip(encoding.inputs, find_used_inputs(model), strict=True) if yes
    ]
    every = [i["name"] for i in encoding.inputs]
    for options, names in (({}, used), ({"keep_inputs": True}, every)):
        sheet = export(model, tmp_path / "net.c", measured=False, **options)
        header = (tmp_path / "net.h").read_text()
        assert f"#define NET_INPUTS {len(names)}\n" in header
        assert ("NET_COLUMN_CUT" in header) == bool(options)
        export(model, tmp_path / "net.onnx", **options)
        width, facts = read_facts((tmp_path / "net.onnx").read_bytes())
        assert width == len(names)
        assert json.loads(facts["input_names"]) == names
        ranges = dict(zip(names, json.loads(facts["input_ranges"]), strict=True))
        assert ranges[SIZE] == list(encoding.columns[1].limits)
        assert ranges[f"{CLASS}=nein"] == [0.0, 1.0]
        # One count of weights, before units that are dead were taken out.
        assert sheet.size.weights == model.live_weights == int(facts["live_weights"])
        assert sheet.size.weights > sc.compact(model).live_weights
        assert f"; {model.live_weights} weights." in header
    kept = host.build_library([tmp_path / "net.c"], tmp_path)
    frame = make_frame()
    labels = find_labels(model)
    rows = table_rows.make_rows(labels.columns, frame)
    codes, found = table_rows.predict_rows(kept, "net", rows, 1)
    assert not codes.any()
    truth = take_rows(frame, encoding, model, at_means=True)
    np.testing.assert_allclose(found, truth, rtol=1e-5)


def test_inputs_by_position_stay_unless_asked(tmp_path):
    model = replace(make_model()[0], extra=None)
    every, used = count_inputs(model), int(find_used_inputs(model).sum())
    names = [f"n{i}" for i in range(every)]
    for options, count in (({}, every), ({"keep_inputs": False}, used)):
        export(model, tmp_path / "net.c", input_names=names, measured=False, **options)
        header = (tmp_path / "net.h").read_text()
        assert f"#define NET_INPUTS {count}\n" in header
        assert re.findall(r"/\* (n\d+) \*/", header) == [
            n for n, yes in zip(names, find_used_inputs(model), strict=True) if yes or not options
        ]
        assert "_row" not in header


def test_a_model_that_was_compacted_before(tmp_path):
    """With or without its unused inputs; the columns are still those of the table."""
    model, encoding = make_model()
    frame = make_frame()
    truth = take_rows(frame, encoding, model, at_means=True)
    for small in (sc.compact(model), sc.compact(model, drop_inputs=True)):
        export(small, tmp_path / "net.c", measured=False)
        found = compiled_rows(tmp_path, "net", model, frame)[-1]
        np.testing.assert_allclose(found, truth, rtol=1e-5)


def test_a_model_of_which_nothing_is_left(tmp_path):
    """It needs no column; C has no empty structs, so it has one, which may be missing."""
    model, encoding = make_model(missing="error")
    nothing = jax.tree.map(jnp.zeros_like, model.beliefs)
    bias = nothing["layers"][1]["bias"]
    nothing["layers"][1]["bias"] = sc.Normal(bias.mean + 0.5, bias.variance + 0.1)
    model = replace(model, beliefs=nothing)
    assert not find_used_inputs(model).any()
    frame = pd.DataFrame({"other": [1.0, 2.0]})
    assert take_rows(frame, encoding, model).ravel().tolist() == [21.5, 21.5]
    export(model, tmp_path / "net.c", measured=False)
    library = host.build_library([tmp_path / "net.c"], tmp_path)
    row, y = np.full(1, np.nan, np.float32), np.zeros(1, np.float32)
    assert library.call("net_predict_row", row, y).returned == 0
    assert y[0] == 21.5


def test_rows_that_are_drawn_look_like_the_table(tmp_path):
    """Numbers within their limits, one category at most, truths of 0 and 1."""
    model, encoding = make_model("classes")
    sheet = export(model, tmp_path / "net.c", keep_inputs=True, measured=False)
    assert sheet.accuracy.from_predict[0].is_drawn
    assert any("drawn at random" in note for note in sheet.notes)
    text = (tmp_path / "net.c").read_text()
    block = text[text.index("static const float inputs") : text.index("static const float outputs")]
    numbers = [float(n) for n in re.findall(r"(?<!\w)(-?[\d.]+(?:e-?\d+)?)f", block)]
    rows = np.array(numbers).reshape(-1, count_inputs(model))
    low, high = encoding.columns[1].limits
    sizes = rows[:, [i["name"] == SIZE for i in encoding.inputs]]
    assert np.all((sizes >= np.float32(low)) & (sizes <= np.float32(high)))
    assert set(np.unique(rows[:, [i["kind"] != "number" for i in encoding.inputs]])) <= {0.0, 1.0}
    is_kind = [i["column"] == KIND and i["kind"] == "category" for i in encoding.inputs]
    assert sum(is_kind) == 4
    assert (rows[:, is_kind].sum(axis=1) <= 1).all()


def test_to_onnx_takes_mean():
    pytest.importorskip("onnx")
    model, _ = make_model()
    content = to_onnx(model, mean="weights")
    assert "at the posterior means" in read_facts(content)[1]["output_mean"]
    assert "difference_from_predict" not in read_facts(content)[1]
