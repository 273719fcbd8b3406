"""`secateur fit` and `secateur predict`: what they make, what they refuse, what Ctrl-C leaves."""

import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import secateur as sc
from bad_tables import BAD, content
from command_line import secateur
from secateur.report.held_out import _in_likely_set
from secateur.report.predicting import predict_numbers
from secateur.runs.folders import FILES, Folder, FolderError
from secateur.runs.predicting import predict_rows
from secateur.runs.settings import Settings, layers
from secateur.runs.summary import uncut_and_cut
from secateur.runs.training import split
from secateur.runs.watching import Interrupted, Watch
from secateur.tables import Encoding, prepare

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
    assert "64 rows to learn from, 16 held out; 4 columns, network 4 → 3 → 1" in done.err


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
    cut = ", ".join(uncut_and_cut(record)[1]) or "none"
    assert f"Columns that were cut altogether: {cut}\n" in done.out
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
    """Oracle: the report's predictive distribution, with γ integrated out numerically."""
    model = sc.load(run[0] / "model.safetensors")
    encoding = Encoding.from_json(model.extra["table"])
    x = encoding.encode(pd.read_csv(data)).x
    rows = predict_rows(model, encoding, x, interval=0.9)
    for column, wanted in (("y_low", 0.05), ("y_high", 0.95)):
        found = predict_numbers(model, x, rows[[column]].to_numpy(), 0)
        np.testing.assert_allclose(found.below, wanted, atol=2e-3)
    np.testing.assert_allclose(rows["y_sd"], found.deviation[:, 0], rtol=1e-3)


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
    for folder, message in [(tmp_path, "no model of"), (tmp_path / "x", "there is no folder")]:
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
    f = model.predict(x)
    deviation = np.sqrt(np.asarray(f.variance))
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
        noise = 5 * np.sqrt(np.max(np.asarray(model.predict(x).variance)) / 100)
        assert noise > 0
        np.testing.assert_allclose(sampled, exact, atol=2 * noise, rtol=0.05)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables_end_in_a_line_and_leave_nothing(kind, tmp_path):
    path, out = tmp_path / "data.csv", tmp_path / "out"
    path.write_bytes(content(kind))
    result = secateur("fit", path, "--target", "y", "--out", out)
    assert result.code == 2
    assert re.fullmatch(f"secateur: .*({BAD[kind][1]}).*\n", result.err)
    assert result.out == ""
    assert not out.exists()


def test_wrong_options_end_in_a_line_and_leave_nothing(data, tmp_path):
    out = tmp_path / "out"
    for options, message in [
        (["--target", "hat"], "--target hat: there is no such column"),
        (["--target", "y", "--hidden", "many"], "--hidden many: give the units"),
        (["--target", "y", "--what", "bits"], "--what"),
        (["--target", "y", "--held-out", "1.5"], "--held-out"),
        (["--target", "y", "--resume", "--force"], "Give one of them"),
        ([], "--target"),
    ]:
        result = secateur("fit", data, "--out", out, *options)
        assert result.code == 2
        assert message in result.err
        assert "Traceback" not in result.err
    assert not out.exists()


def test_a_training_that_fails_leaves_nothing(data, tmp_path, monkeypatch):
    def fail(*arguments, checkpoint, **options):
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_bytes(b"half")
        raise sc.FitError("the accuracy became nan in epoch 3. Try a smaller learning rate.")

    monkeypatch.setattr(sc, "fit", fail)
    result = secateur("fit", data, "-t", "y", "--drop", "kind", "--out", tmp_path / "out")
    assert result.code == 2
    assert "Try a smaller learning rate" in result.err
    assert list(tmp_path.iterdir()) == []


def test_folders_are_never_overwritten_by_accident(run, data, tmp_path):
    folder, _ = run
    result = secateur("fit", data, "-t", "y", "--out", folder)
    assert result.code == 2
    assert "is there already. Replace it with --force" in result.err
    result = secateur("fit", data, "-t", "y", "--out", folder, "--resume")
    assert "is finished" in result.err
    (tmp_path / "thesis.tex").touch()
    for options in ({"resume": False, "force": True}, {"resume": True, "force": False}):
        with pytest.raises(FolderError, match=r"other things \(thesis.tex"):
            Folder(tmp_path).claim(**options)
    for path in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "run"):
        with pytest.raises(FolderError, match=r"thesis.tex is a file"):
            Folder(path).claim(resume=False, force=True)


def test_results_take_their_places_together_or_not_at_all(tmp_path):
    folder = Folder(tmp_path / "out")

    def fail():
        with folder.results() as results:
            results.model.write_bytes(b"new")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert list(folder.path.iterdir()) == []


# --- Ctrl-C and the clock -------------------------------------------------------------------------


def press_ctrl_c_when(condition):
    """Send this process what Ctrl-C sends, once a condition holds."""

    def wait():
        while not condition():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("stage", ["fit", "prune"])
def test_ctrl_c_keeps_a_checkpoint_and_resume_goes_on(stage, data, tmp_path):
    out = tmp_path / "out"
    # Without an end of its own within the test's time, in the training or between rounds.
    epochs = 10**6 if stage == "fit" else 30
    arguments = ("fit", data, "-t", "y", "--drop", "kind", "--out", out, "--hidden", 3)
    arguments = (*arguments, "--epochs", epochs)
    name = "fit.safetensors" if stage == "fit" else "prune.safetensors.round"
    press_ctrl_c_when((out / "checkpoint" / name).exists)
    result = secateur(*arguments)
    assert result.code == 130
    assert "stopping after this epoch" in result.err
    assert "--resume" in result.err.splitlines()[-1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [p.name for p in out.iterdir()] == ["checkpoint"]
    assert "was interrupted. Go on with --resume" in secateur(*arguments).err
    other = secateur(*arguments, "--resume", "--seed", 7)
    assert other.code == 2
    assert "checkpoint of another training" in other.err
    assert [p.name for p in out.iterdir()] == ["checkpoint"]
    result = secateur(*arguments, "--resume", "--minutes", 0.05)
    assert result.code == 0, result.err
    assert sorted(p.name for p in out.iterdir()) == sorted(FILES)
    if stage == "prune":  # as if it had been left alone
        whole = tmp_path / "whole"
        assert secateur(*[whole if a == out else a for a in arguments], "--quiet").code == 0
        pieces, whole = (sc.load(f / "model.safetensors") for f in (out, whole))
        assert pieces.free_energy == whole.free_energy


def test_the_time_budget_ends_in_time_and_reports(data, tmp_path):
    out = tmp_path / "out"
    options = ("--epochs", 10**6, "--hidden", 3, "--minutes", 1e-3)  # over before it begins
    result = secateur("fit", data, "-t", "y", "--drop", "kind", "--out", out, *options)
    assert result.code == 0, result.err
    energy = json.loads((out / "run.json").read_text())["energy"]
    assert energy["before"]["stop_reason"] == "it was stopped after 1 epochs"
    assert energy["after"]["stop_reason"] == "it was stopped in round 1"


def test_the_clock_first_cools_then_stops(monkeypatch):
    now = 0.0
    monkeypatch.setattr("secateur.runs.watching.time.monotonic", lambda: now)
    answer = Watch(2.0, print).until(cool=0.25, stop=0.5)
    answers = {}
    for now in (0.0, 29.0, 31.0, 59.0, 61.0):
        answers[now] = answer(None)
    assert answers == {0.0: None, 29.0: None, 31.0: "cool", 59.0: "cool", 61.0: "stop"}
    now = 0.0
    endless = Watch(None, print).until(cool=0.25, stop=0.5)
    now = 1e9
    assert endless(None) is None


def test_a_second_ctrl_c_ends_at_once():
    said = []
    with Watch(None, said.append) as watch:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            watch.check()
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
    for arguments in (["--help"], ["fit", "--help"], ["predict", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program.format(arguments)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout


def test_rows_are_held_out_by_seed_and_none_is_in_both():
    prepared = prepare(table(), ["y"], drop=["kind"])
    first, again, other = (split(prepared, Settings(seed=s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.held_out[0], again.held_out[0])
    assert not np.array_equal(first.held_out[0], other.held_out[0])
    rows = np.concatenate([first.training[0], first.held_out[0]])
    np.testing.assert_array_equal(np.sort(rows[:, 0]), np.sort(prepared.x[:, 0]))
    assert split(prepared, Settings(held_out=0.0)).held_out is None


def test_steps_per_epoch_stay_near_a_thousand():
    assert Settings().batch_for(100) == Settings().batch_for(64_000) == 64
    assert Settings().batch_for(1_000_000) == 1024
    assert Settings(batch_size=7).batch_for(1_000_000) == 7


@pytest.mark.parametrize("text", ["", "a", "5,,6", "-3", "5,0", "1.5", "²"])
def test_layers_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="--hidden"):
        layers(text)


def test_likely_sets_hold_at_least_their_probability():
    chances = np.array([[0.6, 0.36, 0.04]] * 3)
    assert _in_likely_set(chances, np.array([0, 1, 2]), 0.95).tolist() == [True, True, False]
    assert _in_likely_set(chances, np.array([0, 1, 2]), 0.5).tolist() == [True, False, False]


def test_the_demo_ends_with_its_report(tmp_path, monkeypatch, capsys):
    demo = Path(__file__).parent.parent / "examples" / "demo.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--hidden", "2", "--epochs", "2"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(demo), run_name="__main__")
    assert not end.value.code
    last = capsys.readouterr().out.splitlines()[-1]
    assert Path(last.removeprefix("Report: ")).is_file()
