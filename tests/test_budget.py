"""`prune(…, most_weights=, held_out=)`: requirements choose among models, and force cuts."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import secateur as sc
from command_line import secateur
from recipes import PLAIN
from secateur.pruning.budget import Budget

KEY, OTHER_KEY = jax.random.split(jax.random.key(0))
PRECISION = 4.0
QUICK = replace(PLAIN, epochs=300, retrain_epochs=60)


def linear(w, x):
    return x @ w


def network(p, x):
    return jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def prune(fitted, data, **options):
    return sc.prune(fitted, data, key=OTHER_KEY, progress=False, **options)


def compute_log_evidence(x, y, kept):
    """Exact, of the linear model with weights N(0, 1) for the kept inputs and known noise."""
    covariance = np.eye(len(y)) / PRECISION + x[:, kept] @ x[:, kept].T
    _, log_determinant = np.linalg.slogdet(2 * np.pi * covariance)
    return -0.5 * (log_determinant + y @ np.linalg.solve(covariance, y))


@pytest.fixture(scope="module")
def orthogonal():
    """Ten orthogonal inputs, of which seven matter, the later the less; the posterior is exact."""
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.normal(size=(60, 10)))[0] * np.sqrt(60)
    y = x[:, :7] @ np.linspace(2.0, 0.6, 7) + rng.normal(size=60) / np.sqrt(PRECISION)
    data = (x, y[:, None])
    model = sc.BayesianModel(
        linear, jnp.zeros((10, 1)), likelihood=sc.GaussianLikelihood(precision=PRECISION)
    )
    return sc.fit(model, data, key=KEY, recipe=PLAIN, progress=False), data


@pytest.fixture(scope="module")
def bent():
    """A small network fitted to |x1| + x2, with two inputs that do not matter."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(200, 4))
    y = np.abs(x[:, :1]) + x[:, 1:2] + 0.1 * rng.normal(size=(200, 1))
    keys = jax.random.split(jax.random.key(3))
    params = {
        "w1": jax.random.normal(keys[0], (4, 6)) / 2,
        "b1": jnp.zeros((1, 6)),
        "w2": jax.random.normal(keys[1], (6, 1)) / 2,
        "b2": jnp.zeros((1, 1)),
    }
    model = sc.BayesianModel(network, params)
    return sc.fit(model, (x, y), key=KEY, recipe=QUICK, progress=False), (x, y)


def measure_rmse(trained, data):
    return float(np.sqrt(np.mean(np.square(trained.predict(data[0]).mean - data[1]))))


def compute_free_energy(trained, data):
    """From beliefs, priors and noise alone, by `secateur.free_energy`."""
    x, y = data
    assert trained.scaling.targets is None or trained.scaling.targets.scale is not None
    standard = trained.scaling.standardise((np.asarray(x), np.asarray(y)), jnp.float64)
    forward = sc.propagate(trained.model.f, trained.model.inference)
    parts = sc.free_energy(
        forward,
        trained.beliefs,
        trained.priors,
        trained.model.likelihood,
        trained.noise,
        jax.tree.map(jnp.asarray, standard),
        key=None,
    )
    jacobian = 0.0
    if trained.scaling.targets is not None:
        jacobian = len(y) * trained.scaling.targets.log_jacobian_per_row(y)
    return float(parts.total) + jacobian


# --- the number of weights ------------------------------------------------------------------------


def test_without_a_budget_nothing_is_forced(orthogonal):
    pruned = prune(*orthogonal)
    assert pruned.live_weights == 7
    assert not any(r.forced for r in pruned.rounds)
    assert pruned.stop_reason == "nothing was left to prune"


@pytest.mark.parametrize("most", [6, 4, 1])
def test_the_best_model_of_a_number_of_weights(orthogonal, most):
    """Of orthogonal inputs the best are those with the largest effect, by the exact evidence."""
    fitted, (x, y) = orthogonal
    pruned = prune(fitted, (x, y), most_weights=most)
    kept = np.flatnonzero(pruned.beliefs.variance)
    assert kept.tolist() == np.sort(np.argsort(-np.abs(x.T @ y[:, 0]))[:most]).tolist()
    assert pruned.free_energy == pytest.approx(-compute_log_evidence(x, y[:, 0], kept), abs=0.05)
    forced = [r for r in pruned.rounds if r.forced]
    assert forced
    assert all(r.kept for r in forced)
    assert forced[-1].left == most
    # Against the free energy, and at most a quarter of the weights (or one) at a time.
    assert forced[-1].free_energy > min(r.free_energy for r in pruned.rounds if not r.forced)
    assert all(r.changed <= max(1, r.before // 4) for r in forced)
    assert f"limit of {most} weights was reached by {len(forced)} forced" in pruned.stop_reason
    assert "forced" in pruned.table()


def test_a_budget_that_is_met_anyway_changes_nothing(orthogonal):
    free, bound = prune(*orthogonal), prune(*orthogonal, most_weights=7)
    assert not any(r.forced for r in bound.rounds)
    assert np.array_equal(free.beliefs.mean, bound.beliefs.mean)
    assert bound.free_energy == free.free_energy
    assert bound.stop_reason == "nothing was left to prune; 7 weights are within the limit of 7"


@pytest.mark.parametrize("options", [{}, {"grow": True}, {"criterion": "snr"}, {"what": "both"}])
def test_a_network_within_a_budget(bent, options):
    fitted, data = bent
    pruned = prune(fitted, data, most_weights=5, **options)
    assert pruned.live_weights <= 5
    assert pruned.live_weights == sc.count(pruned.beliefs).live
    assert pruned.free_energy == pytest.approx(compute_free_energy(pruned, data), abs=1e-6)
    # Of all kept rounds within the budget, the one of least free energy.
    within = [r.free_energy for r in pruned.rounds if r.kept and r.left <= 5]
    assert pruned.free_energy == pytest.approx(min(within), abs=1e-9)
    assert "limit of 5 weights was reached" in pruned.stop_reason


def test_units_within_a_budget(bent):
    """Whole units go: every unit that is left has all its weights, or those it had."""
    fitted, data = bent
    free = prune(fitted, data, what="units")
    most = free.live_weights // 2
    pruned = prune(fitted, data, what="units", most_weights=most)
    assert pruned.live_weights <= most
    assert {r.move for r in pruned.rounds} == {"cut units"}
    live = {name: np.asarray(q.variance) > 0 for name, q in pruned.beliefs.items()}
    inputs, units = live["w1"].any(axis=1), live["w2"].any(axis=1)
    assert np.array_equal(live["w1"], inputs[:, None] & units[None])
    assert np.array_equal(live["b1"][0], units)


def test_what_cannot_be_reached_is_warned_of(bent):
    """The bias of the output belongs to no unit, and units alone are to be cut."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    model = sc.BayesianModel(
        lambda p, x: x @ p["w"] + p["b"], {"w": jnp.zeros((2, 3)), "b": jnp.zeros((1, 3))}
    )
    data = (x, x @ rng.normal(size=(2, 3)) + 5 + rng.normal(size=(50, 3)))
    fitted = sc.fit(model, data, key=KEY, recipe=QUICK, progress=False)
    with pytest.warns(UserWarning, match="limit of 1 weights was not reached: .* has 3"):
        pruned = prune(fitted, data, what="units", most_weights=1)
    assert "was not reached" in pruned.stop_reason
    assert pruned.free_energy == fitted.free_energy  # of models that are too large, the best


def test_several_runs_have_the_same_budget(bent):
    fitted, data = bent
    keys = jax.random.split(KEY, 2)
    options = {"recipe": QUICK, "progress": False}
    fits = sc.fit_many(fitted.model, [data], keys=keys, **options)
    pruned = sc.prune_many(fits, [data], key=OTHER_KEY, most_weights=6, epochs=60, progress=False)
    assert all(p.live_weights <= 6 for p in pruned)
    for p in pruned:
        assert p.free_energy == pytest.approx(compute_free_energy(p, data), abs=1e-6)
        assert "limit of 6" in p.stop_reason


def test_several_runs_have_the_same_requirement(bent, new_rows):
    """One run is at the constant from the start and cannot meet it; the other does."""
    fitted, data = bent
    nothing = sc.cut(
        fitted.beliefs, jax.tree.map(lambda _: jnp.zeros((), bool), fitted.model.params)
    )
    options = {"key": OTHER_KEY, "epochs": 20, "progress": False, "held_out": new_rows}
    good, constant = sc.prune_many(
        [fitted, replace(fitted, beliefs=nothing)], [data], most_rmse=0.5, **options
    )
    assert "is required" in good.stop_reason
    assert "no model meets" in constant.stop_reason
    assert Budget(None, new_rows, None, 0.5).is_met_by(good)
    assert not Budget(None, new_rows, None, 0.5).is_met_by(constant)
    with pytest.warns(UserWarning, match="no model meets"):
        sc.prune_many([fitted, fitted], [data], most_rmse=1e-6, **options)


def test_a_forced_round_is_in_the_file(orthogonal, tmp_path):
    pruned = prune(*orthogonal, most_weights=4)
    sc.save(pruned, tmp_path / "model")
    loaded = sc.load(tmp_path / "model", f=linear)
    assert [r.forced for r in loaded.rounds] == [r.forced for r in pruned.rounds]


class Interrupted(Exception):
    """Raised by a callback."""


@pytest.mark.parametrize("grow", [False, True])
def test_interrupted_and_resumed_is_as_if_left_alone(bent, tmp_path, grow):
    fitted, data = bent
    options = {"most_weights": 5, "grow": grow}
    whole = prune(fitted, data, **options)
    path = tmp_path / "pruning"
    calls = itertools.count(1)

    def interrupt(report):
        if next(calls) % 3 == 0:
            raise Interrupted

    interruptions = 0
    for _ in range(100):
        try:
            pieces = prune(fitted, data, checkpoint=path, callback=interrupt, **options)
            break
        except Interrupted:
            interruptions += 1
    assert interruptions > 2
    assert [r.forced for r in pieces.rounds] == [r.forced for r in whole.rounds]
    assert [r.changed for r in pieces.rounds] == [r.changed for r in whole.rounds]
    for a, b in zip(jax.tree.leaves(pieces.beliefs), jax.tree.leaves(whole.beliefs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert pieces.stop_reason == whole.stop_reason
    with pytest.raises(sc.CheckpointError, match="another pruning"):
        prune(fitted, data, checkpoint=path, most_weights=4, grow=grow)


def test_a_stopped_pruning_says_that_the_budget_was_not_reached(bent):
    fitted, data = bent
    with pytest.warns(UserWarning, match="limit of 2 weights was not reached"):
        stopped = prune(fitted, data, most_weights=2, callback=lambda report: "stop")
    assert stopped.stop_reason.startswith("pruning was stopped in round 1; the limit of 2 weights")


# --- held-out rows --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def new_rows():
    rng = np.random.default_rng(9)
    x = rng.normal(size=(100, 4))
    return x, np.abs(x[:, :1]) + x[:, 1:2] + 0.1 * rng.normal(size=(100, 1))


def test_a_requirement_that_is_met_changes_nothing(bent, new_rows):
    fitted, data = bent
    free = prune(fitted, data)
    rmse = measure_rmse(free, new_rows)
    bound = prune(fitted, data, held_out=new_rows, most_rmse=2 * rmse)
    assert bound.free_energy == free.free_energy
    assert [r.changed for r in bound.rounds] == [r.changed for r in free.rounds]
    assert f"root-mean-square error {rmse:.4g} on the held-out rows, where" in bound.stop_reason


def test_a_requirement_chooses_an_earlier_model(orthogonal):
    """The exact linear model: the full one predicts these rows best, the pruned one does not."""
    fitted, data = orthogonal
    free = prune(fitted, data)
    assert free.live_weights < fitted.live_weights
    rng = np.random.default_rng(5)
    x = rng.normal(size=(50, 10))
    rows = (x, x @ np.asarray(fitted.beliefs.mean))  # what the model before pruning says
    before, after = measure_rmse(fitted, rows), measure_rmse(free, rows)
    assert before < after
    bound = prune(fitted, data, held_out=rows, most_rmse=0.5 * (before + after))
    assert bound.live_weights == 10
    assert measure_rmse(bound, rows) < after
    assert "is required" in bound.stop_reason


def test_a_requirement_that_nothing_meets_is_warned_of(bent, new_rows):
    fitted, data = bent
    free = prune(fitted, data)
    with pytest.warns(UserWarning, match="no model meets the requirement .*at most 1e-06"):
        bound = prune(fitted, data, held_out=new_rows, most_rmse=1e-6)
    assert bound.free_energy == free.free_energy
    with pytest.warns(UserWarning, match="4 weights are left; no model meets"):
        both = prune(fitted, data, held_out=new_rows, most_rmse=1e-6, most_weights=4)
    assert both.live_weights == 4  # the number of weights counts more


@pytest.mark.parametrize("likelihood", [sc.CategoricalLikelihood(), sc.BernoulliLikelihood()])
def test_accuracy(likelihood, tmp_path):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(150, 3))
    labels = (x[:, 0] + 0.5 * rng.normal(size=150) > 0).astype(int)
    outputs = 2 if isinstance(likelihood, sc.CategoricalLikelihood) else 1
    targets = labels if outputs == 2 else labels[:, None]
    model = sc.BayesianModel(linear, jnp.zeros((3, outputs)), likelihood=likelihood)
    data, rows = (x[:100], targets[:100]), (x[100:], targets[100:])
    fitted = sc.fit(model, data, key=KEY, recipe=QUICK, progress=False)
    free = prune(fitted, data)
    chances = free.predict(rows[0]).probabilities
    answers = chances.argmax(axis=-1) if outputs == 2 else chances > 0.5
    accuracy = np.mean(answers == rows[1])
    assert accuracy > 0.7
    options = {"held_out": rows, "least_accuracy": accuracy, "checkpoint": tmp_path / "a"}
    bound = prune(fitted, data, **options)
    assert bound.free_energy == free.free_energy
    assert f"accuracy {accuracy:.4g} on the held-out rows, where" in bound.stop_reason
    other = {**options, "held_out": (rows[0], 1 - rows[1])}
    with pytest.raises(sc.CheckpointError, match="another pruning"):  # other rows, other work
        prune(fitted, data, **other)
    with pytest.raises(ValueError, match="most_rmse needs targets that are numbers"):
        prune(fitted, data, held_out=rows, most_rmse=1.0)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"most_weights": 0}, ValueError, "most_weights=0.*at least 1"),
        ({"most_weights": -3}, ValueError, "most_weights=-3"),
        ({"most_weights": 0.5}, ValueError, "most_weights=0.5.*whole number"),
        ({"most_weights": "10"}, TypeError, "most_weights='10'"),
        ({"most_weights": True}, TypeError, "most_weights=True"),
        ({"least_accuracy": 0.9}, ValueError, "held_out=.x, y."),
        ({"held_out": (1, 2)}, ValueError, "least_accuracy or most_rmse"),
        ({"held_out": (1, 2), "least_accuracy": 95}, ValueError, "least_accuracy=95.*up to 1"),
        ({"held_out": (1, 2), "most_rmse": -1}, ValueError, "most_rmse=-1.*positive"),
        (
            {"held_out": (1, 2), "most_rmse": 1.0, "least_accuracy": 0.5},
            ValueError,
            "Give one of them",
        ),
        ({"held_out": {"x": 1}, "most_rmse": 1.0}, TypeError, "are a dict"),
    ],
)
def test_budgets_that_make_no_sense(orthogonal, options, error, words):
    with pytest.raises(error, match=words):
        Budget(**options)
    with pytest.raises(error, match=words):
        prune(*orthogonal, **options)


def test_budgets_that_do_not_fit_the_model_or_the_plan(orthogonal):
    fitted, (x, y) = orthogonal
    with pytest.raises(ValueError, match="least_accuracy needs classes"):
        prune(fitted, (x, y), held_out=(x, y), least_accuracy=0.5)
    with pytest.raises(ValueError, match="cannot be combined with a budget"):
        prune(fitted, (x, y), criterion="snr", rate=0.5, most_weights=3)
    with pytest.raises(ValueError, match=r"held_out has targets of shape \(60,\)"):
        prune(fitted, (x, y), held_out=(x, y[:, 0]), most_rmse=1.0)
    with pytest.raises(ValueError, match=r"fails for inputs of the shapes \[\(60, 3\)\]"):
        prune(fitted, (x, y), held_out=(x[:, :3], y), most_rmse=1.0)


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 4)), columns=list("abcd"))
    frame["y"] = 3 * frame["a"] + 2 * frame["b"] + frame["c"] + 0.1 * rng.normal(size=80)
    frame["kind"] = np.where(frame["y"] > 0, "high", "low")
    path = tmp_path_factory.mktemp("data") / "table.csv"
    frame.to_csv(path, index=False)
    return path


def run_fit(table, target, folder, *options):
    drop = {"y": "kind", "kind": "y"}[target]
    common = ("--drop", drop, "--hidden", 0, "--epochs", 300, "-o", folder)
    return secateur("fit", table, "-t", target, *common, *options)


def test_the_command_line_has_a_budget(table, tmp_path):
    done = run_fit(table, "y", tmp_path / "run", "--most-weights", 2, "--most-rmse", 0.1)
    assert done.code == 0, done.err
    pruned = sc.load(tmp_path / "run" / "model.safetensors")
    assert pruned.live_weights == 2
    assert any(r.forced for r in pruned.rounds)
    assert "the limit of 2 weights was reached" in done.out
    assert "Caution: no model meets the requirement (at most 0.1): " in done.out
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["most_weights"] == 2


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("y", ("--least-accuracy", 0.9), "--most-rmse"),
        ("kind", ("--most-rmse", 0.9), "--least-accuracy"),
        ("y", ("--most-rmse", 0.9, "--held-out", 0), "--held-out 0.2"),
        ("y", ("--most-weights", 0), "most-weights"),
        ("kind", ("--least-accuracy", 90), "least-accuracy"),
        ("y", ("--noise-prior", 0, 1), "shape of the prior of the precision is 0"),
        ("kind", ("--noise-prior", 1, 1), "is for numeric targets"),
    ],
)
def test_wrong_budgets_end_in_a_line_and_leave_nothing(table, tmp_path, target, options, words):
    done = run_fit(table, target, tmp_path / "run", *options)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())
