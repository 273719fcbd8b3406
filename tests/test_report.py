"""The report of a run: its record against direct computation, its page, its command."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import secateur as sc
from command_line import secateur
from run_records import BREAKOUT, CLASSES, INPUTS, SCRIPT, run
from secateur import report
from secateur.networks import Dense
from secateur.report.network import find_dense_graph
from secateur.report.page import render_page
from secateur.report.record import describe_history
from secateur.trained import History

# The runs are made once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report")]


@pytest.fixture(scope="module", params=["regression", "classification"])
def made(request):
    found = run(request.param)
    return found, found.record()


@pytest.fixture(scope="module")
def numbers():
    found = run("regression")
    return found, found.record()


@pytest.fixture(scope="module")
def classes():
    found = run("classification")
    return found, found.record()


def close(actual, expected, digits=5):
    """To the digits that a record keeps."""
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=10.0**-digits, atol=1e-9)


# --- the record ----------------------------------------------------------------------------------


def test_a_record_is_plain_json_and_small(made):
    _, record = made
    assert len(json.dumps(record, allow_nan=False)) < 200_000
    assert (record["format"], record["version"]) == (report.FORMAT, report.VERSION)


def test_every_weight_is_there_with_its_delta_f(made):
    """Oracle: the closed form for a Normal prior N(0, 1)."""
    found, record = made
    for when, model in (("before", found.fitted), ("after", found.pruned)):
        for leaf in record["leaves"]:
            number, kind = leaf["path"].strip("[]").replace("'", "").split("][")[1:]
            q = model.beliefs["layers"][int(number)][kind]
            mean, variance = np.asarray(q.mean).ravel(), np.asarray(q.variance).ravel()
            live = variance > 0
            state = leaf[when]
            assert leaf["shape"] == list(q.mean.shape)
            assert state["live"] == live.sum()
            close(state["mean"], mean, 4)
            close(state["deviation"], np.sqrt(variance), 4)
            assert [v is None for v in state["delta_f"]] == (~live).tolist()
            delta_f = 0.5 * (np.log(variance[live]) + mean[live] ** 2 / variance[live])
            got = [v for v in state["delta_f"] if v is not None]
            np.testing.assert_allclose(got, delta_f, rtol=1e-4, atol=1e-5)
    assert record["weights"]["before"] == found.fitted.live_weights
    assert record["weights"]["after"] == found.pruned.live_weights < found.fitted.live_weights


def test_rounds_and_free_energies_are_those_of_the_run(made):
    found, record = made
    for told, r in zip(record["rounds"], found.pruned.rounds, strict=True):
        close([told[k] for k in ("estimated", "at_once", "trained", "divergence")],
              [r.estimated, r.at_once, r.trained, r.at_once - r.estimated], 4)  # fmt: skip
        assert (told["changed"], told["left"], told["kept"]) == (r.changed, r.left, r.kept)
    for when, model in (("before", found.fitted), ("after", found.pruned)):
        energy = record["energy"][when]
        close(energy["free_energy"], model.free_energy)
        close(energy["complexity"] - energy["accuracy"], model.free_energy, 4)


def test_the_history_is_told_in_full_where_it_is_short(made):
    found, record = made
    history = record["history"]
    close(history["complexity"], found.pruned.history.complexity)
    close(history["accuracy"], found.pruned.history.accuracy)
    close(history["epoch"], np.arange(1, found.pruned.epochs + 1))
    lengths = [len(r.history.complexity) for r in found.pruned.rounds]
    starts = found.fitted.epochs + np.cumsum([0, *lengths[:-1]])
    assert history["starts"] == starts.tolist()


def test_a_long_history_is_averaged_within_each_training(numbers):
    """Oracle: the mean of each training, which averages of equal parts keep."""
    found, _ = numbers
    count = len(found.pruned.rounds)
    parts = [History(np.arange(4000.0), np.ones(4000))]
    parts += [History(np.full(3000, -k), np.zeros(3000)) for k in range(1, count + 1)]
    rounds = tuple(
        replace(r, history=h) for r, h in zip(found.pruned.rounds, parts[1:], strict=True)
    )
    both = (np.concatenate([getattr(h, n) for h in parts]) for n in ("complexity", "accuracy"))
    total = 4000 + 3000 * count
    story = describe_history(
        replace(found.pruned, rounds=rounds, history=History(*both), epochs=total)
    )
    assert len(story["epoch"]) <= 1200 + count + 1
    assert story["starts"] == [4000 + 3000 * k for k in range(count)]
    first = [c for c, e in zip(story["complexity"], story["epoch"], strict=True) if e < 4000]
    np.testing.assert_allclose(np.mean(first), np.arange(4000).mean(), rtol=2e-3)
    epochs_in_a_point = -(-total // 1200)
    for k in range(1, count + 1):  # no point mixes two trainings
        assert story["complexity"].count(-k) >= 3000 // epochs_in_a_point


def test_what_is_not_finite_is_none(numbers):
    found, _ = numbers
    rounds = tuple(replace(r, trained=float("nan")) for r in found.pruned.rounds)
    pruned = replace(found.pruned, rounds=rounds, free_energy=float("nan"))
    record = found.record(pruned=pruned, held_out=None, seconds=float("inf"),
                          settings={"rate": float("nan")})  # fmt: skip
    json.dumps(record, allow_nan=False)
    assert record["energy"]["after"]["free_energy"] is None
    assert record["rounds"][0]["trained"] is None
    assert "–" in render_page(record)


# --- inputs --------------------------------------------------------------------------------------


def test_an_input_is_cut_if_and_only_if_predictions_ignore_it(made):
    """Oracle: the prediction itself, with the column changed."""
    found, record = made
    x = found.held_out[0]
    usual = found.pruned.predict(x).mean
    cut = [entry["cut"] for entry in record["inputs"]]
    for index, gone in enumerate(cut):
        changed = x.copy()
        changed[:, index] += 1
        assert np.array_equal(found.pruned.predict(changed).mean, usual) == gone
    assert any(cut)
    assert not all(cut)


def test_what_an_input_is_worth(numbers):
    found, record = numbers
    effects = {i["name"]: i.get("effect") for i in record["inputs"]}
    assert effects["size"] > effects[SCRIPT] > 0.1  # as the targets were made
    first = found.pruned.beliefs["layers"][0]["weights"]
    scores = np.asarray(sc.prune_scores(first, sc.Normal(0.0, 1.0)))
    costs = np.where(np.isfinite(scores), scores, 0).sum(axis=1)
    np.testing.assert_allclose([i["delta_f"] for i in record["inputs"]], costs, rtol=1e-5)
    columns = {i["column"]: set() for i in record["inputs"] if not i["cut"]}
    for i in record["inputs"]:
        if "effect" in i:
            columns[i["column"]].add(i["effect"])
    assert all(len(effect) == 1 for effect in columns.values())  # one column, one shuffling


def test_a_unit_counts_only_if_it_is_fed_and_leads_somewhere():
    variance = np.ones((2, 3)), np.ones(3), np.ones((3, 1)), np.zeros(1)
    variance[0][:, 1] = variance[1][1] = 0  # the second unit is not fed
    variance[2][2] = 0  # the third leads nowhere
    variance[0][1, 0] = 0  # so the second input only feeds the third unit
    w1, b1, w2, b2 = (sc.Normal(np.zeros_like(v), v) for v in variance)
    beliefs = {"layers": [{"weights": w1, "bias": b1}, {"weights": w2, "bias": b2}]}
    network = find_dense_graph(beliefs)
    assert network.used[0].tolist() == [True, False]
    assert network.used[1].tolist() == [True, False, False]
    assert network.hidden_used == 1


# --- held-out data -------------------------------------------------------------------------------


def test_errors_and_log_likelihood_on_held_out_rows(numbers):
    found, record = numbers
    x, y = found.held_out
    for when, model in (("before", found.fitted), ("after", found.pruned)):
        errors = np.asarray(model.predict(x).mean) - y
        told = record["held_out"][when]
        close(told["rmse"], np.sqrt(np.mean(errors**2)))
        close(told["log_likelihood"], np.mean(model.predict(x).log_density(y)))
        for target, own in zip(record["held_out"]["targets"], errors.T, strict=True):
            close(target[when]["rmse"], np.sqrt(np.mean(own**2)))
    points = record["held_out"]["targets"][0]["points"]
    close(points["observed"], y[:, 0], 4)
    close(points["mean"], found.pruned.predict(x).mean[:, 0], 6)


def test_intervals_integrate_over_the_noise(numbers):
    """Oracle: adaptive quadrature over q(γ), and the mean of an inverse Gamma."""
    found, record = numbers
    x, y = found.held_out
    prediction, scale = found.pruned.predict(x), found.pruned.scaling.targets.scale
    f, below = prediction.outputs, prediction.cdf(y)
    shape, rate = (np.asarray(p) for p in (found.pruned.noise.shape, found.pruned.noise.rate))
    for row, target in ((0, 0), (7, 1), (20, 0)):
        mean, variance = f.mean[row, target], f.variance[row, target]
        gamma = stats.gamma(shape[target], scale=1 / rate[target])

        def chance(g, mean=mean, variance=variance, target=target, gamma=gamma, row=row):
            deviation = np.sqrt(variance + scale[target] ** 2 / g)
            return gamma.pdf(g) * stats.norm.cdf(y[row, target], mean, deviation)

        low, high = gamma.ppf([1e-12, 1 - 1e-12])
        expected, _ = integrate.quad(chance, low, high, epsabs=1e-10)
        np.testing.assert_allclose(below[row, target], expected, atol=1e-7)
        noise = scale[target] ** 2 * rate[target] / (shape[target] - 1)
        np.testing.assert_allclose(prediction.variance[row, target], variance + noise, rtol=1e-6)
    for index, target in enumerate(record["held_out"]["targets"]):
        inside = np.abs(below[:, index] - 0.5) <= 0.25
        assert target["after"]["coverage"][9] == pytest.approx(inside.mean())
        assert target["levels"][9] == 0.5


def test_a_model_that_samples_is_judged_by_its_samples(numbers):
    """Oracle: the same posterior by moments; samples scatter around it."""
    found, record = numbers
    sampling = [
        replace(m, model=replace(m.model, inference="local")) for m in (found.fitted, found.pruned)
    ]
    sampled = found.record(fitted=sampling[0], pruned=sampling[1])["held_out"]["after"]
    exact = record["held_out"]["after"]
    assert sampled["rmse"] == pytest.approx(exact["rmse"], rel=0.1)
    assert sampled["log_likelihood"] == pytest.approx(exact["log_likelihood"], abs=0.1)
    assert sampled["rmse"] != exact["rmse"]


def test_class_probabilities_and_what_is_counted_from_them(classes):
    """Oracle: Monte Carlo over the logits."""
    found, record = classes
    x, y = found.held_out
    prediction, draws = found.pruned.predict(x), 40_000
    chances, f = prediction.probabilities, prediction.outputs
    noise = np.random.default_rng(0).normal(size=(draws, *f.mean.shape))
    powers = np.exp(f.mean + np.sqrt(f.variance) * noise)
    sampled = powers / powers.sum(axis=-1, keepdims=True)
    error = sampled.std(axis=0) / np.sqrt(draws)
    assert np.all(np.abs(chances - sampled.mean(axis=0)) < 5 * error + 3e-4)

    guess, told = chances.argmax(axis=1), record["held_out"]
    assert told["after"]["accuracy"] == pytest.approx((guess == y).mean())
    (target,) = told["targets"]
    table = np.array(target["after"]["confusion"])
    assert table.sum() == len(y)
    assert table[1, 2] == np.sum((y == 1) & (guess == 2))
    assert np.trace(table) == np.sum(guess == y)
    bins = target["after"]["bins"]
    assert sum(b["rows"] for b in bins) == len(y)
    top = chances.max(axis=1) >= 0.9
    close(bins[-1]["confidence"], chances.max(axis=1)[top].mean())
    close(bins[-1]["right"], (guess == y)[top].mean())
    gap = sum(b["rows"] * abs(b["confidence"] - b["right"]) for b in bins) / len(y)
    assert told["after"]["calibration_error"] == pytest.approx(gap, abs=1e-4)


def test_wrong_use_is_told(classes):
    found, _ = classes
    with pytest.raises(ValueError, match="Supported: regression, classification"):
        found.record(task="ranking")
    with pytest.raises(ValueError, match="one target, with its classes"):
        found.record(targets=[{"name": "y", "classes": None}])


# --- size ----------------------------------------------------------------------------------------


def of_size(found, hidden, live_share):
    """The same run, had its network been larger."""
    rng, network = np.random.default_rng(0), Dense(5, hidden, 2)
    params = jax.eval_shape(network.init, jax.random.key(0))

    def believe(share):
        return jax.tree.map(
            lambda m: (lambda live: sc.Normal(live * rng.normal(size=m.shape), live * 0.01))(
                rng.uniform(size=m.shape) < share
            ),
            params,
        )

    priors = jax.tree.map(lambda _: sc.Normal(0.0, 1.0), params)
    fitted = replace(found.fitted, beliefs=believe(1.0), priors=priors)
    pruned = replace(found.pruned, beliefs=believe(live_share), priors=priors)
    return found.record(fitted=fitted, pruned=pruned, held_out=None)


def test_twenty_thousand_weights_are_all_in_a_page_below_3_mb(numbers):
    record = of_size(numbers[0], (150, 122), 0.8)
    assert 19_000 < record["weights"]["before"] <= 20_000
    assert (
        sum(len(leaf["after"]["mean"]) for leaf in record["leaves"]) == record["weights"]["before"]
    )
    assert len(json.dumps(record)) < 4e6
    assert len(render_page(record).encode()) < 3e6


def test_of_larger_networks_the_survivors_are_kept(numbers):
    record = of_size(numbers[0], (200, 300), 0.02)
    for leaf in record["leaves"]:
        state = leaf["after"]
        assert len(state["index"]) == len(state["mean"]) == state["live"]
        assert all(d > 0 for d in state["deviation"])
    assert sum(len(leaf["before"]["mean"]) for leaf in record["leaves"]) == 2000
    weakest = min(d for leaf in record["leaves"] for d in leaf["before"]["delta_f"])
    assert weakest > 100  # those that it costs most to remove
    assert len(render_page(record).encode()) < 3e6


def test_survivors_beyond_number_are_cut_short_too(numbers):
    record = of_size(numbers[0], (300, 400), 1.0)
    assert record["weights"]["after"] > 100_000
    assert sum(len(leaf["after"]["mean"]) for leaf in record["leaves"]) == 20_000
    assert len(render_page(record).encode()) < 3e6


# --- the page ------------------------------------------------------------------------------------


class Parts(HTMLParser):
    """The tags of a page, and the text outside of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.scripts, self.attributes = [], "", [], []
        self._within = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._within = tag if tag in ("script", "style") else None
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._within = None

    def handle_data(self, data):
        if self._within == "script":
            self.scripts[-1] += data
        elif self._within is None:
            self.text += data


def test_user_data_are_text_everywhere(made):
    _, record = made
    parts = Parts(render_page(record))
    assert parts.tags.count("script") == 2  # the data, and ours
    assert "img" not in parts.tags
    assert not [name for name, _ in parts.attributes if name.startswith("on")]
    for shown in (SCRIPT, BREAKOUT, record["command"], f"{SCRIPT}.csv"):
        assert shown in parts.text
    names = [i["name"] for i in json.loads(parts.scripts[0])["inputs"]]
    assert names == [i["name"] for i in INPUTS]


def test_only_our_own_script_may_run_and_nothing_is_loaded(made):
    parts = Parts(render_page(made[1]))
    (policy,) = (value for name, value in parts.attributes if "default-src" in (value or ""))
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    addresses = [v for n, v in parts.attributes if n in ("src", "href") and not v.startswith("#")]
    assert addresses == ["data:,"]


def test_a_page_without_held_out_data_rounds_or_layers(classes, tmp_path):
    found, _ = classes
    other = {"w": found.fitted.beliefs["layers"][0]["weights"]}
    priors = {"w": found.fitted.priors["layers"][0]["weights"]}
    models = (
        replace(m, beliefs=other, priors=priors, **more)
        for m, more in ((found.fitted, {}), (found.pruned, {"rounds": ()}))
    )
    fitted, pruned = models
    record = found.record(fitted=fitted, pruned=pruned, held_out=None)
    page = render_page(record)
    assert record["network"] is None
    assert "a different function" in page
    assert "found nothing to remove" in page
    assert "were not used in training or pruning" not in page


# --- files and the command -----------------------------------------------------------------------


@pytest.fixture
def folder(numbers, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(numbers[1]), encoding="utf-8")
    return tmp_path


def test_the_command_writes_the_report(folder, numbers):
    result = secateur("report", folder)
    assert (result.code, result.out.strip()) == (0, str(folder / "report.html"))
    assert (folder / "report.html").read_text(encoding="utf-8") == render_page(numbers[1])
    other = folder / "other.html"
    assert secateur("report", folder, "--out", other).code == 0
    assert other.exists()
    assert {f.name for f in folder.iterdir()} == {"run.json", "report.html", "other.html"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "damaged or not the record"),
        (lambda text: text[: len(text) // 2], "damaged or not the record"),
        (lambda text: text.replace("12.3", "NaN"), "NaN is not JSON"),
        (lambda text: "[1, 2]", "is not the record of a run"),
        (lambda text: text.replace("secateur run", "other"), "is not the record of a run"),
        (lambda text: text.replace(f'"version": {report.VERSION}', '"version": 99'), "version 99"),
        (lambda text: text.replace('"rounds"', '"squares"'), "'rounds' is missing"),
        (lambda text: text.replace('"estimated"', '"guessed"'), "estimated"),
    ],
)
def test_a_bad_record_is_refused_and_nothing_is_written(folder, change, message):
    path = folder / "run.json"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    code, _, error = secateur("report", folder)
    assert code == 2
    assert error.startswith("secateur: ")
    assert message in error
    assert "Traceback" not in error
    assert [f.name for f in folder.iterdir()] == ["run.json"]


def test_a_folder_that_is_no_run_or_cannot_be_written_to(folder):
    (folder / "empty").mkdir()
    for arguments, message in [
        ([folder / "nowhere"], "is not a folder"),
        ([folder / "empty"], "no run.json"),
        ([folder, "--out", folder / "no" / "report.html"], "cannot be written"),
    ]:
        result = secateur("report", *arguments)
        assert result.code == 2
        assert message in result.err


def test_a_report_that_fails_leaves_the_old_one(folder, numbers, monkeypatch):
    path = folder / "report.html"
    path.write_text("old", encoding="utf-8")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("secateur.storage.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write_report(numbers[1], path)
    assert path.read_text(encoding="utf-8") == "old"
    assert {f.name for f in folder.iterdir()} == {"run.json", "report.html"}


def test_class_names_reach_the_charts(classes):
    assert json.loads(Parts(render_page(classes[1])).scripts[0])["targets"][0]["classes"] == CLASSES
