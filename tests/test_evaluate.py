"""Tables as they come, through the command line: scores, and commands that are repaired."""

import io
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

import secateur as sc
from command_line import secateur
from secateur.cli.errors import UserError, as_user_errors
from secateur.cli.fit_command import shorten_list
from secateur.cli.fit_command import tabulate_record as tabulate
from secateur.compaction import find_used_inputs
from secateur.remedies import Remedy, UsageError
from secateur.report import read_record
from secateur.tables import Encoding

# In one process, so that the programs of each shape are compiled once.
pytestmark = pytest.mark.xdist_group("runs")

QUICK = ("--hidden", 3, "--epochs", 30)
START = pd.Timestamp("2021-03-01")


def make_table(rows=90, seed=0):
    """A table as it comes: an index without a name, dates, gaps, categories, three targets."""
    rng = np.random.default_rng(seed)
    size, colour = rng.uniform(-1, 1, rows), rng.choice(["red", "blue"], rows)
    days = START + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    frame = pd.DataFrame({"size": size, "colour": colour, "day": days.strftime("%d.%m.%Y")})
    frame["gain"] = 3 * size + 2 * (colour == "red") + 0.2 * rng.normal(size=rows)
    frame["loss"] = 100 * size - 40 * (colour == "red") + 3 * rng.normal(size=rows)
    frame["grade"] = np.digitize(frame["gain"], [-1, 1, 3])
    frame.loc[rng.choice(rows, 12, replace=False), "size"] = np.nan
    return frame


def write(frame, path):
    frame.to_csv(path)  # with pandas' index, which has no name
    return path


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A run with two targets, and another table of the same kind."""
    folder = tmp_path_factory.mktemp("numbers")
    data, other = (write(make_table(seed=s), folder / f"{s}.csv") for s in (0, 1))
    targets = ("-t", "gain", "-t", "loss", "--drop", "grade")
    options = ("--missing", "mean", "--dates", "parts", "-o", folder / "run", *QUICK)
    done = secateur("fit", data, *targets, *options)
    assert done.code == 0, done.err
    return folder / "run", other, done


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """A run with classes that are numbers from 0 on, and another table of the same kind."""
    folder = tmp_path_factory.mktemp("classes")
    data, other = (write(make_table(seed=s), folder / f"{s}.csv") for s in (0, 1))
    drops = [word for name in ("gain", "loss", "day") for word in ("--drop", name)]
    options = ("--missing", "mean", "-o", folder / "run", *QUICK)
    done = secateur("fit", data, "-t", "grade", *drops, *options)
    assert done.code == 0, done.err
    return folder / "run", other, done


def predict(folder, path):
    result = secateur("predict", folder, path)
    assert result.code == 0, result.err
    return pd.read_csv(io.StringIO(result.out))


def evaluate(folder, path, *options):
    result = secateur("evaluate", folder, path, "--json", *options)
    assert result.code == 0, result.err
    return json.loads(result.out)


# --- what was decided -----------------------------------------------------------------------------


def test_fit_says_what_it_made_of_the_table(numbers, classes):
    for sentence in (
        "the first column has no name and only numbers the rows: it is not used",
        "dates of 'day' (day.month.year) become year, sin(day of year), cos(day of year), weekday",
        "inputs that say whether a value is missing are added for 'size'",
    ):
        assert sentence in numbers[2].err
    assert (
        "task: classification, since 'grade' holds the whole numbers 0 to 3, and no others "
        "(--task regression overrides this)"
    ) in classes[2].err


def test_models_remember_dates_indices_and_indicators(numbers):
    folder, other, _ = numbers
    answers = predict(folder, other)
    # Oracle: the loaded model, on inputs encoded by hand.
    frame = pd.read_csv(other)
    days = pd.to_datetime(frame["day"], format="%d.%m.%Y")
    angle = 2 * np.pi * (days.dt.day_of_year - 1) / 365
    model = sc.load(folder / "model.safetensors")
    mean = pd.read_csv(other.with_name("0.csv"))["size"].mean()
    x = np.column_stack(
        [
            frame["size"].fillna(mean), frame["size"].isna(), frame["colour"] == "red",
            days.dt.year, np.sin(angle), np.cos(angle),
            *(days.dt.day_of_week == number for number in range(7)),
        ]
    )  # fmt: skip
    np.testing.assert_allclose(
        answers[["gain_mean", "loss_mean"]], model.predict(x).mean, rtol=1e-4, atol=1e-4
    )


# --- scores ---------------------------------------------------------------------------------------


def test_scores_of_numbers(numbers):
    """Oracle: scikit-learn, and the intervals that `predict` states."""
    folder, other, _ = numbers
    scores, answers, frame = evaluate(folder, other), predict(folder, other), pd.read_csv(other)
    assert (scores["rows"], scores["task"]) == (90, "regression")
    assert [target["name"] for target in scores["targets"]] == ["gain", "loss"]
    for target in scores["targets"]:
        y, mean = frame[target["name"]], answers[f"{target['name']}_mean"]
        assert target["rmse"] == pytest.approx(metrics.root_mean_squared_error(y, mean), rel=1e-4)
        assert target["r_squared"] == pytest.approx(metrics.r2_score(y, mean), rel=1e-4)
        error = metrics.mean_absolute_error(y, mean)
        assert target["mean_absolute_error"] == pytest.approx(error, rel=1e-4)
        is_inside = y.between(answers[f"{target['name']}_low"], answers[f"{target['name']}_high"])
        assert target["coverage_95"] == pytest.approx(is_inside.mean())
    own = [target["r_squared"] for target in scores["targets"]]
    assert scores["r_squared"] == pytest.approx(np.mean(own))
    assert 0 < min(own) < max(own) < 1
    model = sc.load(folder / "model.safetensors")
    shown = secateur("evaluate", folder, other).out
    for target in scores["targets"]:
        assert f"{target['rmse']:.4g}" in row_of(shown, f"root-mean-square error, {target['name']}")
    assert f"{scores['log_likelihood']:.4f}" in row_of(shown, "log-likelihood")
    assert model.live_weights > 0


def row_of(text, heading):
    return next(line for line in text.splitlines() if heading in line)


def test_scores_of_classes(classes):
    """Oracle: scikit-learn."""
    folder, other, _ = classes
    scores, answers, frame = evaluate(folder, other), predict(folder, other), pd.read_csv(other)
    chances = answers[[f"grade={k}" for k in range(4)]].to_numpy(np.float64)
    chances /= chances.sum(axis=1, keepdims=True)
    accuracy = metrics.accuracy_score(frame["grade"], chances.argmax(axis=1))
    assert scores["accuracy"] == pytest.approx(accuracy)
    assert scores["base_rate"] == pytest.approx(frame["grade"].value_counts(normalize=True).max())
    log_loss = metrics.log_loss(frame["grade"], chances, labels=range(4))
    assert scores["log_loss"] == pytest.approx(log_loss, rel=1e-4)
    assert scores["log_likelihood"] == -scores["log_loss"]
    assert 0 <= scores["coverage_95"] <= 1
    shown = secateur("evaluate", folder, other).out
    assert f"{scores['accuracy']:.1%}" in row_of(shown, "accuracy")
    assert f"{scores['base_rate']:.1%}" in row_of(shown, "base rate")


def test_columns_that_were_cut_are_not_needed(classes, tmp_path):
    """Oracle: the scores of the whole table."""
    folder, other, _ = classes
    model = sc.load(folder / "model.safetensors")
    used = find_used_inputs(model)
    inputs = Encoding.from_json(model.extra["table"]).inputs
    needed = {entry["column"] for entry, is_used in zip(inputs, used, strict=True) if is_used}
    frame, path = pd.read_csv(other), tmp_path / "less.csv"
    frame[["grade", *sorted(needed)]].to_csv(path, index=False)
    assert evaluate(folder, path) == evaluate(folder, other)


def test_scores_of_held_out_rows_are_those_of_the_run(tmp_path):
    """Oracle: the record of the run, on the rows that it held out."""
    frame = make_table().dropna().drop(columns=["day", "grade"]).reset_index(drop=True)
    data, folder = tmp_path / "data.csv", tmp_path / "run"
    frame.to_csv(data, index=False)
    options = ("--drop", "loss", "--out", folder, "--quiet", *QUICK)
    assert secateur("fit", data, "-t", "gain", *options).code == 0
    # As `split_rows` holds out numbers.
    chosen = np.random.default_rng(0).permutation(len(frame))[: round(0.2 * len(frame))]
    frame.loc[np.sort(chosen)].to_csv(data, index=False)
    scores, record = evaluate(folder, data), read_record(folder / "run.json")
    expected = record["held_out"]["after"]
    for name in ("rmse", "r_squared", "log_likelihood", "coverage_95"):
        assert scores[name] == pytest.approx(expected[name], rel=1e-5)


def test_rows_that_cannot_be_scored(numbers, classes, tmp_path):
    path = tmp_path / "new.csv"

    def attempt(run, frame, *options):
        frame.to_csv(path, index=False)
        return secateur("evaluate", run[0], path, *options)

    frame = pd.read_csv(numbers[1])
    result = attempt(numbers, frame.drop(columns="loss"))
    assert result.code == 2
    assert "the table has no column 'loss', which is the target of the model" in result.err
    result = attempt(classes, frame.assign(grade=[7, *frame["grade"][1:]]))
    assert result.code == 2
    assert "target 'grade' holds '7' in row 1, which is not a class of the model" in result.err
    holes = frame.assign(gain=[np.nan, np.nan, *frame["gain"][2:]])
    result = attempt(numbers, holes, "--missing", "error")
    assert result.code == 2
    assert "target 'gain' has no value in rows 1, 2" in result.err
    result = attempt(numbers, holes)  # as for `fit`: gaps are filled, rows without target left out
    assert "secateur: 2 rows without a target are left out" in result.err
    assert re.search(r"rows\s+│\s+88 │", result.out)
    result = attempt(numbers, frame[frame["size"].isna()], "--missing", "drop")
    assert result.code == 2
    assert re.search(r"no row of .* is complete\. --missing mean fills in", result.err)
    result = attempt(numbers, frame.drop(columns="size"))
    assert "the table has no column 'size', which the model needs" in result.err
    assert "holds no model of a run" in secateur("evaluate", tmp_path, path).err


# --- the closing table ----------------------------------------------------------------------------


def test_the_closing_table_has_the_scores_of_each_target(numbers, classes):
    record = read_record(numbers[0] / "run.json")
    assert "root-mean-square error  " not in numbers[2].out  # of both together: no unit
    for entry in record["held_out"]["targets"]:
        line = row_of(numbers[2].out, f"root-mean-square error, {entry['name']}")
        assert f"{entry['after']['rmse']:.4g}" in line
        line = row_of(numbers[2].out, f"R², {entry['name']}")
        assert f"{entry['after']['r_squared']:.3f}" in line
    record = read_record(classes[0] / "run.json")
    for when, place in (("before", 2), ("after", 3)):
        for name, heading in (("accuracy", "accuracy"), ("base_rate", "base rate")):
            cells = row_of(classes[2].out, heading).split("│")
            assert cells[place].strip() == f"{record['held_out'][when][name]:.1%}"
    page = (classes[0] / "report.html").read_text(encoding="utf-8")
    assert "base rate" in page
    page = (numbers[0] / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<p>RMSE .* → .*, R² ", page)) == 2


def test_more_targets_than_are_shown_are_counted(numbers):
    record = read_record(numbers[0] / "run.json")
    record["targets"] += [{"name": "third", "classes": None}] * 3
    cells = [str(cell) for cell in tabulate(record).columns[0].cells]
    assert "  … and 3 more targets" in cells


def test_long_lists_are_shortened():
    names = [f"x{i}" for i in range(45)]
    assert shorten_list(names) == "x0, x1, x2, x3, x4, x5, x6, x7 and 37 more"
    assert shorten_list(names[:9]) == ", ".join(names[:9])  # "and 1 more" is no shorter
    assert shorten_list([]) == "none"


# --- commands that are repaired -------------------------------------------------------------------


def repair(result):
    """The command that an error suggests."""
    assert result.code == 2
    words = shlex.split(result.err.splitlines()[-1].removeprefix("Try: "))
    assert words[0] == "secateur"
    return words[1:]


def test_the_suggested_commands_lead_to_a_model(tmp_path):
    folder = tmp_path / "with a blank"
    folder.mkdir()
    frame = make_table().drop(columns=["grade", "loss"])
    frame["the note"] = [f"word {i}" for i in range(len(frame))]
    data = write(frame, folder / "it's.csv")
    words = ["fit", data, "--target", "gain", "--out", folder / "run", "--hidden", 0, "--quiet"]
    for option, value in (
        ("--missing", "mean"), ("--dates", "parts"), ("--drop", "the note"),
    ):  # fmt: skip
        result = secateur(*words)
        words = repair(result)
        assert words[-2:] == [option, value]
        assert list(folder.iterdir()) == [data]
    result = secateur(*words, "--epochs", 20)
    assert result.code == 0, result.err
    # New rows: the model fills in, unless asked otherwise.
    new = folder / "new.csv"
    frame.assign(size=np.nan).to_csv(new, index=False)
    words = repair(secateur("predict", folder / "run", new, "--missing", "error"))
    assert words[-2:] == ["--missing", "mean"]
    assert secateur(*words).code == 0


def test_only_options_of_the_command_are_suggested(numbers, tmp_path):
    folder, other, _ = numbers
    path = tmp_path / "new.csv"
    frame = pd.read_csv(other)
    frame.assign(size="big").to_csv(path, index=False)
    for command in ("predict", "evaluate"):
        result = secateur(command, folder, path)
        assert result.code == 2
        assert "'size' holds numbers, but not in rows" in result.err
        assert "--drop" not in result.err

    def command(drop=None):
        pass

    error = UsageError("No.", Remedy("task", "guess", "helps"), Remedy("drop", ["a b"], "too"))
    with (
        pytest.raises(UserError, match=r"^No\. --drop 'a b' too\.$"),
        as_user_errors(command=command),
    ):
        raise error
    with pytest.raises(UserError, match="--task guess helps; --drop 'a b' too"), as_user_errors():
        raise error


def test_the_version_is_that_of_the_package():
    result = secateur("--version")
    assert (result.code, result.out) == (0, f"secateur {sc.__version__}\n")
