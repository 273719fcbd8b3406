"""`secateur fit` and `secateur predict`: what they make, what they refuse, what Ctrl-C leaves."""

import io
import json
import re
import runpy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import secateur as sc
from bad_tables import BAD, content, pattern
from command_line import secateur
from secateur.cli.errors import UserError
from secateur.cli.fit_command import find_cut_columns, parse_layers
from secateur.report.performance import find_likely_sets
from secateur.runs.controls import RunClock, RunInterrupted, RunSettings
from secateur.runs.folder import FILES, FolderError, RunFolder
from secateur.runs.table_fit import split_rows
from secateur.runs.table_model import predict_rows
from secateur.tables import Encoding, encode_table

# In one process, so that the programs of each shape are compiled once.
pytestmark = pytest.mark.xdist_group("runs")

QUICK = ("--hidden", 3, "--epochs", 30)


def table(rows=80, seed=0):
    """One number and one of two categories matter, the other columns do not."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.uniform(-1, 1, rows),
            "idle": rng.normal(size=rows),
            "colour": rng.choice(["red", "blue"], rows),
            "fed": rng.choice([True, False], rows),
        }
    )
    frame["y"] = 3 * frame["size"] + 2 * (frame["colour"] == "red") + 0.1 * rng.normal(size=rows)
    frame["kind"] = np.where(frame["y"] > 2, "high", np.where(frame["y"] > 0, "mid", "low"))
    return frame


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "table.csv"
    table().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A finished run of regression."""
    folder = tmp_path_factory.mktemp("run") / "out"
    done = secateur("fit", data, "-t", "y", "--drop", "kind", "-o", folder, *QUICK)
    assert done.code == 0, done.err
    return folder, done


# --- what a run leaves ----------------------------------------------------------------------------


def test_a_run_leaves_model_record_and_report(run):
    folder, done = run
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    record = json.loads((folder / "run.json").read_text())
    assert record["task"] == "regression"
    assert record["data"] == {
        "name": "table.csv", "rows": 80, "train_rows": 64, "held_out_rows": 16,
    }  # fmt: skip
    assert record["command"].startswith("secateur fit ")
    assert [i["name"] for i in record["inputs"]] == ["size", "idle", "colour=red", "fed"]
    assert "task: regression, since 'y' holds numbers" in done.err
    assert "64 training rows, 16 held out; 4 columns, network 4 → 3 → 1" in done.err


def test_the_summary_is_that_of_the_models(run):
    folder, done = run
    after, before = (sc.load(folder / name) for name in FILES[:2])
    row = dict.fromkeys(("weights", "free energy (nats)"))
    for name in row:
        line = next(line for line in done.out.splitlines() if f" {name} " in line)
        row[name] = [float(v.replace(",", "")) for v in re.findall(r"-?\d[\d.,]*", line)]
    assert row["weights"] == [before.live_weights, after.live_weights]
    energies = [round(before.free_energy, 1), round(after.free_energy, 1)]
    assert row["free energy (nats)"] == pytest.approx(energies)
    assert after.free_energy <= before.free_energy
    record = json.loads((folder / "run.json").read_text())
    cut = ", ".join(find_cut_columns(record)[1]) or "none"
    assert f"Columns removed completely: {cut}\n" in done.out
    for wanted in ("root-mean-square error", "log-likelihood", "95 % coverage", "hidden units"):
        assert wanted in done.out
    assert done.out.rstrip().endswith(f"Report: {folder / 'report.html'}")


# --- predictions ----------------------------------------------------------------------------------


def predicted(result):
    assert result.code == 0, result.err
    return pd.read_csv(io.StringIO(result.out))


def test_predictions_come_row_by_row_whatever_the_columns_order(run, data, tmp_path):
    folder, _ = run
    whole = predicted(secateur("predict", folder, data))
    assert list(whole.columns) == ["y_mean", "y_sd", "y_low", "y_high"]
    frame = pd.read_csv(data)
    # Oracle: the loaded model itself, on inputs encoded by hand.
    x = np.column_stack([frame["size"], frame["idle"], frame["colour"] == "red", frame["fed"]])
    model = sc.load(folder / "model.safetensors")
    np.testing.assert_allclose(whole["y_mean"], model.predict(x).mean[:, 0], rtol=1e-5, atol=1e-6)
    new = tmp_path / "new.tsv"
    frame[["fed", "colour", "idle", "size"]][::-1].to_csv(new, sep="\t", index=False)
    np.testing.assert_allclose(predicted(secateur("predict", folder, new))[::-1], whole, rtol=1e-5)
    narrow = predicted(secateur("predict", folder, data, "--interval", 0.5))
    assert (narrow["y_high"] < whole["y_high"]).all()


def test_intervals_have_their_probability(run, data):
    """Oracle: quadrature over γ of the Normals whose mixture a target is."""
    model = sc.load(run[0] / "model.safetensors")
    encoding = Encoding.from_json(model.extra["table"])
    x = encoding.encode(pd.read_csv(data)).x
    rows = predict_rows(model, encoding, x, interval=0.9)
    f, scale = model.predict(x).outputs, float(model.scaling.targets.scale[0])
    shape, rate = float(model.noise.shape[0]), float(model.noise.rate[0])
    nodes = stats.gamma(shape, scale=1 / rate).ppf((np.arange(4000) + 0.5) / 4000)
    deviation = np.sqrt(f.variance + scale**2 / nodes)  # (rows, nodes)
    for column, probability in (("y_low", 0.05), ("y_high", 0.95)):
        below = stats.norm.cdf(rows[[column]].to_numpy(), f.mean, deviation).mean(axis=1)
        np.testing.assert_allclose(below, probability, atol=1e-4)
    variance = f.variance[:, 0] + scale**2 * rate / (shape - 1)
    np.testing.assert_allclose(rows["y_sd"], np.sqrt(variance), rtol=1e-5)


def test_what_is_wrong_with_new_rows_is_told(run, data, tmp_path):
    folder, _ = run
    frame, new, out = pd.read_csv(data), tmp_path / "new.csv", tmp_path / "out.csv"

    def attempt(changed, *options):
        changed.to_csv(new, index=False)
        return secateur("predict", folder, new, "--out", out, *options)

    result = attempt(frame.drop(columns="colour"))
    assert (result.code, out.exists()) == (2, False)
    assert "secateur: the table has no column 'colour', which the model needs" in result.err
    result = attempt(frame.assign(colour=["pink", *frame["colour"][1:]]))
    assert result.code == 2
    assert "'colour' holds 'pink' in row 1, which the model has not seen" in result.err
    holes = frame.assign(size=[*frame["size"][:-1], None])
    result = attempt(holes)
    assert result.code == 2
    assert "'size' has no value in row 80" in result.err
    result = attempt(holes.assign(hat=1), "--missing", "drop")
    assert result.code == 0
    assert "columns the model does not know are ignored: 'hat'" in result.err
    found = pd.read_csv(out)
    assert len(found) == 80
    assert found.isna().all(axis=1).tolist() == [False] * 79 + [True]
    assert attempt(holes, "--missing", "mean").code == 0
    assert pd.read_csv(out).notna().all(axis=None)
    assert [p.name for p in tmp_path.iterdir() if "unfinished" in p.name] == []


def test_predict_needs_a_model(tmp_path, data):
    for folder, message in [
        (tmp_path, "holds no model of a run"),
        (tmp_path / "x", "there is no folder"),
    ]:
        result = secateur("predict", folder, data)
        assert result.code == 2
        assert message in result.err
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the sort")
    result = secateur("predict", tmp_path, data)
    assert result.code == 2
    assert result.err.startswith("secateur: ")


@pytest.fixture(scope="module")
def classes(data, tmp_path_factory):
    """A finished run of classification: the model, its encoding, and the rows it was made from."""
    folder = tmp_path_factory.mktemp("classes") / "out"
    options = ("--drop", "y", "--quiet", "--out", folder)
    result = secateur("fit", data, "--target", "kind", *options, *QUICK)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{folder / 'report.html'}\n"
    return folder


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def test_classes_get_probabilities(classes, data):
    """Oracle: Monte Carlo over the logits, with its standard error."""
    found = predicted(secateur("predict", classes, data))
    chances = found[["kind=high", "kind=low", "kind=mid"]].to_numpy()
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
    assert found["kind"].tolist() == [("high", "low", "mid")[i] for i in chances.argmax(axis=1)]
    record = json.loads((classes / "run.json").read_text())
    assert record["held_out"]["after"].keys() >= {"accuracy", "log_likelihood", "coverage_95"}
    model = sc.load(classes / "model.safetensors")
    x = Encoding.from_json(model.extra["table"]).encode(pd.read_csv(data)).x
    f = model.predict(x).outputs
    deviation = np.sqrt(f.variance)
    draws = np.random.default_rng(0).normal(f.mean, deviation, (4000, *deviation.shape))
    each = softmax(draws)
    error = each.std(axis=0) / np.sqrt(len(each))
    assert (np.abs(chances - each.mean(axis=0)) < 5 * error + 1e-3).all()


def test_models_that_sample_predict_what_moments_say(run, classes, data):
    """Oracle: the same beliefs by moments; they differ by the noise of 100 samples, and a little
    because moments take units to be independent."""
    for folder in (run[0], classes):
        model = sc.load(folder / "model.safetensors")
        encoding = Encoding.from_json(model.extra["table"])
        x = encoding.encode(pd.read_csv(data)).x
        drawn = replace(model, model=replace(model.model, inference="global"))
        exact = predict_rows(model, encoding, x).select_dtypes("number")
        sampled = predict_rows(drawn, encoding, x).select_dtypes("number")
        assert list(exact.columns) == list(sampled.columns)
        noise = 5 * np.sqrt(np.max(model.predict(x).outputs.variance) / 100)
        assert noise > 0
        np.testing.assert_allclose(sampled, exact, atol=2 * noise, rtol=0.05)


# What the classes high, mid and low are called: texts, or numbers as texts.
SPELLINGS = {"texts": ("v2.0", "True", "none"), "numbers": ("01", "1e3", "2.0")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPELLINGS)
def test_classes_survive_every_command(kind, data, tmp_path):
    """Oracle: the texts of the table."""
    path, folder = tmp_path / "data.csv", tmp_path / "out"
    names = dict(zip(("high", "mid", "low"), SPELLINGS[kind], strict=True))
    frame = pd.read_csv(data)
    frame["kind"] = frame["kind"].map(names)
    frame.to_csv(path, index=False)
    options = ("--task", "classification", "--drop", "y", "--quiet", "--hidden", 3)
    result = secateur("fit", path, "-t", "kind", "--out", folder, "--epochs", 300, *options)
    assert result.code == 0, result.err
    (target,) = json.loads((folder / "run.json").read_text())["targets"]
    assert sorted(target["classes"]) == sorted(names.values())
    result = secateur("predict", folder, path)
    answers = pd.read_csv(io.StringIO(result.out), dtype=str, keep_default_na=False)
    chances = answers[[f"kind={name}" for name in target["classes"]]].astype(float).to_numpy()
    assert answers["kind"].tolist() == [target["classes"][i] for i in chances.argmax(axis=1)]
    result = secateur("export", folder, "--to", "c", "--no-measure", "--data", path)
    assert result.code == 0, result.err
    (sheet,) = json.loads((folder / "run.json").read_text())["exports"]
    # Oracle: the predictions. C has the network at the means of the weights, which may differ in
    # rows at a boundary.
    is_right = answers["kind"] == frame["kind"]
    assert is_right.mean() > 0.5
    assert sheet["accuracy"]["exact"]["correct"] == pytest.approx(is_right.mean(), abs=0.05)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(f">{name}<" in page for name in names.values())
    assert "correct classes" in page


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables_end_in_a_line_and_leave_nothing(kind, tmp_path):
    path, out = tmp_path / "data.csv", tmp_path / "out"
    path.write_bytes(content(kind))
    result = secateur("fit", path, "--target", "y", "--out", out)
    assert result.code == 2
    assert re.fullmatch(f"secateur: .*({pattern(kind, option=True)}).*\n(Try: .*\n)?", result.err)
    assert result.out == ""
    assert not out.exists()


def test_wrong_options_end_in_a_line_and_leave_nothing(data, tmp_path):
    out = tmp_path / "out"
    for options, message in [
        (["--target", "hat"], "there is no target 'hat' in the table"),
        (["--target", "y", "--hidden", "many"], "--hidden many: give the units"),
        (["--target", "y", "--what", "bits"], "--what"),
        (["--target", "y", "--held-out", "1.5"], "--held-out"),
        (["--target", "y", "--resume", "--force"], "cannot be both continued and replaced"),
        ([], "--target"),
    ]:
        result = secateur("fit", data, "--out", out, *options)
        assert result.code == 2
        assert message in result.err
        assert "Traceback" not in result.err
    assert not out.exists()


def test_a_training_that_fails_leaves_nothing(data, tmp_path, monkeypatch):
    def fail(model, source, keys, training, checkpoint, *others, **options):
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_bytes(b"half")
        raise sc.FitError("the accuracy became nan in epoch 3. Try a smaller learning rate.")

    monkeypatch.setattr("secateur.selection.fit_runs", fail)
    result = secateur("fit", data, "-t", "y", "--drop", "kind", "--out", tmp_path / "out")
    assert result.code == 2
    assert "Try a smaller learning rate" in result.err
    assert list(tmp_path.iterdir()) == []


def test_folders_are_never_overwritten_by_accident(run, data, tmp_path):
    folder, _ = run
    result = secateur("fit", data, "-t", "y", "--out", folder)
    assert result.code == 2
    assert "exists already. Give another folder. --force replaces it." in result.err
    result = secateur("fit", data, "-t", "y", "--out", folder, "--resume")
    assert "has finished" in result.err
    (tmp_path / "thesis.tex").touch()
    for options in ({"resume": False, "force": True}, {"resume": True, "force": False}):
        with pytest.raises(FolderError, match=r"other files \(thesis.tex"):
            RunFolder(tmp_path).claim(**options)
    for path in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "run"):
        with pytest.raises(FolderError, match=r"thesis.tex is a file"):
            RunFolder(path).claim(resume=False, force=True)


def test_results_take_their_places_together_or_not_at_all(tmp_path):
    folder = RunFolder(tmp_path / "out")

    def fail():
        with folder.write_results() as results:
            results.model.write_bytes(b"new")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert list(folder.path.iterdir()) == []


# --- Ctrl-C and the clock -------------------------------------------------------------------------


@pytest.fixture
def ctrl_c(monkeypatch):
    """Press Ctrl-C in the second report of progress of a stage ("fit" or "prune")."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    make_callback = RunClock.make_callback

    def press_in(stage):
        stages, reports = iter(("fit", "prune")), []

        def make(clock, cool, stop):
            callback, own = make_callback(clock, cool, stop), next(stages)

            def press(update):
                reports.append(own)
                if reports.count(stage) == 2:
                    signal.raise_signal(signal.SIGINT)
                return callback(update)

            return press

        monkeypatch.setattr(RunClock, "make_callback", make)

    yield press_in
    assert signal.signal(signal.SIGINT, previous) is signal.default_int_handler


@pytest.mark.parametrize("stage", ["fit", "prune"])
def test_ctrl_c_keeps_a_checkpoint_and_resume_goes_on(stage, data, tmp_path, ctrl_c, monkeypatch):
    out = tmp_path / "out"
    options = ("--drop", "kind", *QUICK[:2], "--epochs", 1200 if stage == "fit" else 30)
    arguments = ("fit", data, "-t", "y", "--out", out, *options)
    with monkeypatch.context():
        ctrl_c(stage)
        result = secateur(*arguments)
    monkeypatch.undo()
    assert result.code == 130
    assert "stopping after this epoch" in result.err
    assert "--resume" in result.err.splitlines()[-1]
    assert [p.name for p in out.iterdir()] == ["checkpoint"]
    refused = secateur(*arguments)
    assert "interrupted run. Give another folder, or an option. --resume continues" in refused.err
    other = secateur(*arguments, "--resume", "--seed", 7)
    assert other.code == 2
    assert "checkpoint of another training" in other.err
    assert [p.name for p in out.iterdir()] == ["checkpoint"]
    if stage == "fit":  # what is left of the time may be nothing
        result = secateur(*arguments, "--resume", "--minutes", 0)
    else:
        result = secateur(*arguments, "--resume")
    assert result.code == 0, result.err
    assert sorted(p.name for p in out.iterdir()) == sorted(FILES)
    if stage == "prune":  # as if it had been left alone
        whole = tmp_path / "whole"
        assert secateur(*[whole if a == out else a for a in arguments], "--quiet").code == 0
        pieces, whole = (sc.load(f / "model.safetensors") for f in (out, whole))
        assert pieces.free_energy == whole.free_energy


def test_the_time_budget_ends_in_time_and_reports(data, tmp_path):
    out = tmp_path / "out"
    options = ("--epochs", 10**6, "--hidden", 3, "--minutes", 0)  # over before it begins
    result = secateur("fit", data, "-t", "y", "--drop", "kind", "--out", out, *options)
    assert result.code == 0, result.err
    energy = json.loads((out / "run.json").read_text())["energy"]
    assert energy["before"]["stop_reason"] == "training was stopped after 1 epochs"
    assert energy["after"]["stop_reason"].startswith("pruning was stopped in round 1 (")


def test_the_clock_first_cools_then_stops(monkeypatch):
    now = 0.0
    monkeypatch.setattr("secateur.runs.controls.time.monotonic", lambda: now)
    answer = RunClock(2.0, print).make_callback(cool=0.25, stop=0.5)
    answers = {}
    for now in (0.0, 29.0, 31.0, 59.0, 61.0):
        answers[now] = answer(None)
    assert answers == {0.0: None, 29.0: None, 31.0: "cool", 59.0: "cool", 61.0: "stop"}
    now = 0.0
    endless = RunClock(None, print).make_callback(cool=0.25, stop=0.5)
    now = 1e9
    assert endless(None) is None


def test_a_second_ctrl_c_ends_at_once(ctrl_c):
    said = []
    with RunClock(None, said.append) as clock:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(RunInterrupted):
            clock.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(said) == 1


# --- parts ----------------------------------------------------------------------------------------


def test_help_needs_neither_jax_nor_pandas():
    program = (
        "import sys; sys.argv = ['secateur', *{}]\n"
        "from secateur.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "slow = {{'jax', 'pandas', 'numpy', 'sklearn', 'matplotlib'}} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    helps = [[*command, "--help"] for command in ((), ("fit",), ("predict",), ("evaluate",))]
    for arguments in helps:
        done = subprocess.run(
            [sys.executable, "-c", program.format(arguments)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout


def test_rows_are_held_out_by_seed_and_none_is_in_both():
    encoded = encode_table(table(), ["y"], drop=["kind"])
    first, again, other = (split_rows(encoded, RunSettings(seed=s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.held_out[0], again.held_out[0])
    assert not np.array_equal(first.held_out[0], other.held_out[0])
    rows = np.concatenate([first.training[0], first.held_out[0]])
    np.testing.assert_array_equal(np.sort(rows[:, 0]), np.sort(encoded.x[:, 0]))
    assert split_rows(encoded, RunSettings(held_out=0.0)).held_out is None


def test_steps_per_epoch_stay_near_a_thousand():
    assert RunSettings().choose_batch_size(100) == RunSettings().choose_batch_size(64_000) == 64
    assert RunSettings().choose_batch_size(1_000_000) == 1024
    assert RunSettings(batch_size=7).choose_batch_size(1_000_000) == 7


@pytest.mark.parametrize("text", ["", "a", "5,,6", "-3", "5,0", "1.5", "²"])
def test_layers_that_are_none_are_refused(text):
    with pytest.raises(UserError, match="--hidden"):
        parse_layers(text)


def test_likely_sets_hold_at_least_their_probability():
    chances = np.array([[0.6, 0.36, 0.04]] * 3)
    assert find_likely_sets(chances, np.array([0, 1, 2]), 0.95).tolist() == [True, True, False]
    assert find_likely_sets(chances, np.array([0, 1, 2]), 0.5).tolist() == [True, False, False]


@pytest.mark.slow
def test_the_demo_ends_with_its_report(tmp_path, monkeypatch, capsys):
    demo = Path(__file__).parent.parent / "examples" / "demo.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--hidden", "2", "--epochs", "2"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(demo), run_name="__main__")
    assert not end.value.code
    last = capsys.readouterr().out.splitlines()[-1]
    assert Path(last.removeprefix("Report: ")).is_file()
