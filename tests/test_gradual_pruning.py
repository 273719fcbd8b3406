"""Cutting while the weight of the complexity still rises (`Recipe.gradual_rounds`)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from recipes import PLAIN
from secateur.training import program
from secateur.training.planning import Planner
from secateur.training.recipe import RECIPES

RECIPE = replace(
    PLAIN, epochs=40, retrain_epochs=60, gradual_rounds=3, gradual_steps=40, fewest_epochs=20
)
KEY, OTHER_KEY = jax.random.split(jax.random.key(0))


def network(w, x):
    return jnp.tanh(x @ w["a"]) @ w["b"]


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    data = (x, np.tanh(2 * x[:, :1]) + 0.1 * rng.normal(size=(120, 1)))
    start = {"a": jnp.asarray(rng.normal(size=(4, 6))), "b": jnp.asarray(rng.normal(size=(6, 1)))}
    model = sc.BayesianModel(network, start)
    return sc.fit(model, data, key=KEY, recipe=RECIPE, batch_size=60, progress=False), data


def prune(fitted, **options):
    trained, data = fitted
    return sc.prune(trained, data, key=OTHER_KEY, progress=False, **options)


def test_the_weight_rises_evenly_over_fit_and_rounds():
    """Oracle: a straight line from 0 to 1 over 5 + 4 · 3 epochs; the rate stays."""
    recipe = replace(RECIPES["trained"], gradual_rounds=4, gradual_steps=60, epochs=5)
    planner = Planner(recipe, steps=20, blocks=1, repeatable=True)
    timetables = [planner.plan_training()]
    timetables += [planner.plan_gradual_round(number, fit_epochs=5) for number in range(4)]
    assert [t.budget for t in timetables] == [5, 3, 3, 3, 3]
    weights = []
    for t in timetables:
        schedule = program.Schedule(
            1e-3, t.epochs_before, t.warm_epochs, t.cool_start, t.cool_epochs, 1.0, 20
        )
        epochs = jnp.arange(t.budget + 1.0)
        weights.append(np.asarray(program.warmth_at(schedule, epochs))[1:])
        np.testing.assert_allclose(program.rate_at(schedule, epochs), 1e-3)
    np.testing.assert_allclose(np.concatenate(weights), np.arange(1, 18) / 17, rtol=1e-6)
    assert planner.plan_retraining(None).warm_epochs == 0


def test_rounds_come_first_and_once(fitted):
    trained, _ = fitted
    assert trained.epochs == 40  # nothing was added to the fit
    pruned = prune(fitted)
    gradual = [r for r in pruned.rounds if np.isnan(r.at_once)]
    assert gradual == list(pruned.rounds[:3])
    assert [len(r.history) for r in gradual] == [20] * 3
    assert pruned.epochs == 40 + 60 + sum(len(r.history) for r in pruned.rounds[3:])
    # The free energies add up: each round begins where the last one ended.
    ends = [trained.free_energy, *(r.free_energy for r in gradual)]
    np.testing.assert_allclose([r.trained for r in gradual], np.diff(ends), rtol=1e-9)
    assert pruned.free_energy < trained.free_energy
    assert pruned.live_weights < trained.live_weights
    assert "–" in pruned.table()
    again = prune((pruned, fitted[1]))
    assert not any(np.isnan(r.at_once) for r in again.rounds[len(pruned.rounds) :])


class Interrupted(Exception):
    """Raised by a callback."""


@pytest.mark.parametrize("stages", [(1, 2, 4, 7), (3, 5, 6)])
def test_interrupted_and_resumed_is_as_if_left_alone(fitted, tmp_path, stages):
    whole = prune(fitted, what="both")
    calls = itertools.count(1)

    def interrupt(report):
        if next(calls) in stages:
            raise Interrupted

    pieces = None
    for _ in range(len(stages) + 1):
        try:
            pieces = prune(fitted, what="both", checkpoint=tmp_path / "a", callback=interrupt)
            break
        except Interrupted:
            pass
    assert [r.changed for r in pieces.rounds] == [r.changed for r in whole.rounds]
    for a, b in zip(jax.tree.leaves(pieces.beliefs), jax.tree.leaves(whole.beliefs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_stopped_in_a_gradual_round(fitted, tmp_path):
    whole, path = prune(fitted), tmp_path / "a"
    stopped = prune(fitted, checkpoint=path, callback=lambda report: "stop")
    assert len(stopped.rounds) == 1
    assert stopped.free_energy <= fitted[0].free_energy
    again = prune(fitted, checkpoint=path)
    assert sum(np.isnan(r.at_once) for r in again.rounds) == 3
    assert again.rounds[0].changed == whole.rounds[0].changed


def test_every_run_of_several_is_cut_gradually(fitted):
    trained, (x, y) = fitted
    keys = jax.random.split(KEY, 2)
    runs = sc.fit_many(
        trained.model, [(x, y), (x, -y)], keys=keys, recipe=RECIPE, batch_size=60, progress=False
    )
    pruned = sc.prune_many(runs, [(x, y), (x, -y)], key=OTHER_KEY, progress=False)
    for p in pruned:
        judged = [not np.isnan(r.at_once) for r in p.rounds]
        assert judged[:3] == [False] * 3
        assert all(judged[3:])
        assert p.free_energy < p.free_energy_before


def test_files_and_reports_take_rounds_that_are_not_judged(fitted, tmp_path):
    pruned = prune(fitted)
    sc.save(pruned, tmp_path / "a.safetensors")
    again = sc.load(tmp_path / "a.safetensors", f=network)
    assert again.table() == pruned.table()
    assert again.training.recipe == pruned.training.recipe
