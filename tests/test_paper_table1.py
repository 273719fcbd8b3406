"""Table 1 of the paper: its experiments, how they are run, and what is made of them."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace

import numpy as np
import pytest

from command_line import secateur
from secateur import datasets
from secateur.paper import experiment, jobs, setup, table1
from secateur.paper.experiment import Job, Outcome
from secateur.paper.writing import write_atomically


def small_set(name, data_dir=None):
    """Rows of the shape of boston's, fewer of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    return datasets.Dataset(
        name,
        x,
        np.sin(x[:, :1]) + 0.1 * rng.normal(size=(40, 1)),
        ("a", "b", "c"),
        ("y",),
        "",
        "",
        "",
    )


def record(job, *ends):
    outcomes = [asdict(Outcome("paper", 10.0, 5.0, 0.5, end, 0.9)) for end in ends]
    found = dict.fromkeys(job.sets, outcomes)
    return {"job": asdict(job), "settings": job.settings, "outcomes": found, "seconds": 1.0}


def test_settings_cover_the_papers_table():
    assert len(setup.PAPER) == 33
    assert {name for name, _ in setup.PAPER} == set(setup.SETS)
    boston = setup.recipes("boston", "paper")["paper"]
    assert (boston.batch_size, boston.epochs, boston.retrain_epochs) == (16, 750, 150)
    sine = setup.recipes("sine", "paper")["paper"]
    assert (sine.rate, sine.epochs, sine.retrain_epochs) == (1e-3, 3000, 600)
    assert not sine.standardise_inputs
    assert setup.recipes("naval", "paper")["paper"].rate == 1e-3


def test_networks_are_the_papers():
    """Oracle: 13·50 + 50 + 50 + 1 weights; three gates of 16·(1 + 16 + 1) and a readout of 17."""
    x, y = np.zeros((5, 13)), np.zeros((5, 1))
    boston = replace(small_set("boston"), x=x, y=y)
    size = lambda model: sum(a.size for a in experiment.jax.tree.leaves(model.params))  # noqa: E731
    assert size(setup.model("boston", boston, "moments")) == 751
    sine = datasets.load("sine")
    assert size(setup.model("sine", sine, "local")) == 3 * (16 + 256 + 16) + 17
    assert setup.model("sine", sine, "moments").inference == "independent"
    assert setup.model("boston", boston, "moments").inference == "moments"


def test_signals_share_a_job_for_each_seed_and_the_longest_come_first():
    found = table1.jobs_for(setup.SETS, ["local", "moments"], "paper", 3)
    assert [(job.sets, job.inference) for job in found[:3]] == [(setup.SIGNALS, "moments")] * 3
    assert [job.seeds for job in found[:3]] == [(0,), (1,), (2,)]
    assert {job.seeds for job in found if job.sets != setup.SIGNALS} == {(0, 1, 2)}
    assert len(found) == 2 * (8 + 3)
    assert len({job.name for job in found}) == len(found)


def test_an_experiment_trains_cuts_and_prunes(monkeypatch):
    """Oracle: the record's own promises, on data that a few epochs can learn."""
    monkeypatch.setattr(datasets, "load", small_set)
    told = []
    found = experiment.run(Job(("boston",), "moments", "paper", (0, 1), 60), tell=told.append)
    (outcomes,) = found["outcomes"].values()
    assert len(outcomes) == 2
    assert told
    json.dumps(found)
    for o in outcomes:
        assert o["iterative"] <= o["start"]
        assert 0 <= o["one_pruned"] <= 1
        assert 0 < o["pruned"] <= 1
    assert outcomes[0]["iterative"] != outcomes[1]["iterative"]


def test_the_better_of_two_recipes_counts(monkeypatch):
    monkeypatch.setattr(datasets, "load", small_set)

    def prune(job, data, name, recipe, folder, tell):
        free_energies = {"standardised targets": (3.0, 7.0), "targets as they are": (5.0, 4.0)}
        return free_energies[name]

    monkeypatch.setattr(experiment, "_prune", prune)
    monkeypatch.setattr(
        Outcome, "of", classmethod(lambda cls, name, f: cls(name, 9.0, 8.0, 0.1, f, 0.2))
    )
    found = experiment.run(Job(("boston",), "moments", "default", (0, 1)))["outcomes"]["boston"]
    assert [o["iterative"] for o in found] == [3.0, 4.0]
    assert [o["recipe"] for o in found] == ["standardised targets", "targets as they are"]


def test_rows_are_medians_in_the_papers_order():
    made = [record(Job(("yacht",), "local", "paper", (0, 1, 2)), 3.0, 1.0, 8.0),
            record(Job(("boston",), "global", "paper", (0,)), 2.0)]  # fmt: skip
    boston, yacht = table1.lines(made)
    assert (boston.dataset, yacht.dataset) == ("boston", "yacht")
    assert (yacht.lowest, yacht.iterative, yacht.highest, yacht.seeds) == (1.0, 3.0, 8.0, 3)
    assert yacht.paper == setup.PAPER["yacht", "local"]
    assert (yacht.one_pruned, yacht.pruned) == (50.0, 90.0)


def test_seeds_of_several_records_are_one_row():
    made = [record(Job(("sine",), "local", "paper", (seed,)), float(seed)) for seed in range(5)]
    (row,) = table1.lines(made)
    assert (row.lowest, row.iterative, row.highest, row.seeds) == (0.0, 2.0, 4.0, 5)


def test_the_table_is_written_three_ways():
    made = [record(Job(("energy",), "moments", "paper", (0,)), -3.25)]
    rows = table1.lines(made)
    text = table1.markdown(rows, "how it was made")
    assert "| energy | moments | 10 | 5 | 50 | -3 |" in text
    assert "4026*" in text
    assert "Not comparable" in text
    assert "how it was made" in text
    (read,) = csv.DictReader(table1.csv(rows, "by hand").splitlines()[1:])
    assert float(read["iterative"]) == -3.25
    assert float(read["paper_iterative"]) == 4026
    tex = table1.latex(rows, "how it was made")
    body = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {12}
    assert r"4026$^\ast$" in tex
    assert "†" not in text + tex


def test_the_papers_recurrent_rows_are_marked_where_they_are_no_free_energies():
    made = [record(Job(("sine",), how, "paper", (0,)), 1.0) for how in setup.ALGORITHMS]
    rows = table1.lines(made)
    text, tex = table1.markdown(rows, "by hand"), table1.latex(rows, "by hand")
    for how, mark in (("moments", "†"), ("local", "†"), ("global", "")):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| sine | {how} |")]
        assert f"| {setup.PAPER['sine', how].iterative:.0f}{mark} |" in row
    assert "† Not comparable: in recurrent networks" in text
    assert r"39579$^\dagger$" in tex


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no say about cores here")
def test_processes_keep_to_their_cores():
    context = multiprocessing.get_context("spawn")
    core = min(os.sched_getaffinity(0))
    with context.Manager() as manager:
        places = manager.Queue()
        places.put([core])
        with ProcessPoolExecutor(1, context, jobs._prepare, (None, places)) as pool:
            assert pool.submit(os.sched_getaffinity, 0).result() == {core}


def test_what_is_done_is_not_run_again(tmp_path, monkeypatch):
    one, other = (
        Job(("boston",), "moments", "paper", (0,)),
        Job(("wine",), "moments", "paper", (0,)),
    )
    place = tmp_path / f"{one.name}.json"
    write_atomically(place, json.dumps(record(one, 1.0)))
    ran = []

    def work(waiting, places, *_):
        ran.extend(waiting)
        for job in waiting:
            write_atomically(places[job], json.dumps(record(job, 2.0)))

    monkeypatch.setattr(jobs, "_work", work)
    options = {"data_dir": None, "workers": 1, "progress": False}
    first, second = jobs.run_all([one, other], tmp_path, **options)
    assert ran == [other]
    assert first["outcomes"]["boston"][0]["iterative"] == 1.0
    assert second["outcomes"]["wine"][0]["iterative"] == 2.0
    # A record that is damaged, or was made with another recipe, counts for nothing.
    place.write_text("{")
    jobs.run_all([one], tmp_path, **options)
    other_recipe = record(one, 1.0)
    other_recipe["settings"]["recipes"]["paper"]["rate"] = 0.5
    write_atomically(place, json.dumps(other_recipe))
    jobs.run_all([one], tmp_path, **options)
    assert ran == [other, one, one]


@pytest.mark.slow
def test_the_command_runs_processes_and_writes_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    arguments = ["reproduce", "table1", "--quick", "--sets", "sine", "--algorithms", "global"]
    result = secateur(*arguments, "--out", tmp_path)
    assert result.code == 0
    assert "sine" in result.out
    assert {p.name for p in tmp_path.glob("table1-paper.*")} == {
        "table1-paper.csv", "table1-paper.md", "table1-paper.tex",
    }  # fmt: skip
    left = [p.name for p in (tmp_path / "table1").iterdir()]
    assert left == ["sine-global-paper-seed-0-40-epochs.json"]


def test_unknown_names_are_told():
    for option, name in (("--sets", "bostom"), ("--algorithms", "mcmc")):
        result = secateur("reproduce", "table1", option, name)
        assert result.code == 2
        assert repr(name) in result.err
