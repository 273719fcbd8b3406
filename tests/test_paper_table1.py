"""Table 1 of the paper: its experiments, how they are run, and what is made of them."""

from __future__ import annotations

import csv
import json
import os
import queue
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest

from command_line import secateur
from linear_model import make_linear_model
from secateur import datasets
from secateur.paper import job_pool, protocol, table1, table1_jobs
from secateur.paper.protocol import PAPER_RESULTS, PAPER_SETTINGS, SIGNALS, make_model
from secateur.paper.result_files import write_result
from secateur.paper.table1_jobs import Job, SeedResult


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
    results = [asdict(SeedResult("paper", 10.0, 5.0, 0.5, end, 0.9)) for end in ends]
    outcomes = dict.fromkeys(job.sets, results)
    return {"job": asdict(job), "settings": job.settings, "outcomes": outcomes, "seconds": 1.0}


def test_settings_cover_the_papers_table():
    assert len(PAPER_RESULTS) == 33
    assert {name for name, _ in PAPER_RESULTS} == set(PAPER_SETTINGS)
    boston = protocol.make_recipes("boston", "paper")["paper"]
    assert (boston.batch_size, boston.epochs, boston.retrain_epochs) == (16, 750, 150)
    sine = protocol.make_recipes("sine", "paper")["paper"]
    assert (sine.rate, sine.epochs, sine.retrain_epochs) == (1e-3, 3000, 600)
    assert not sine.standardise_inputs
    assert protocol.make_recipes("naval", "paper")["paper"].rate == 1e-3


def test_networks_are_the_papers():
    """Oracle: 13·50 + 50 + 50 + 1 weights; three gates of 16·(1 + 16 + 1) and a readout of 17."""
    x, y = np.zeros((5, 13)), np.zeros((5, 1))
    boston = replace(small_set("boston"), x=x, y=y)
    size = lambda model: sum(a.size for a in jax.tree.leaves(model.params))  # noqa: E731
    assert size(make_model("boston", boston, "moments")) == 751
    sine = datasets.load("sine")
    assert size(make_model("sine", sine, "local")) == 3 * (16 + 256 + 16) + 17
    assert make_model("sine", sine, "moments").inference == "independent"
    assert make_model("boston", boston, "moments").inference == "moments"


def test_signals_share_a_job_for_each_seed_and_the_longest_come_first():
    jobs = table1.make_jobs(PAPER_SETTINGS, ["local", "moments"], "paper", 3)
    assert [(job.sets, job.inference) for job in jobs[:3]] == [(SIGNALS, "moments")] * 3
    assert [job.seeds for job in jobs[:3]] == [(0,), (1,), (2,)]
    assert {job.seeds for job in jobs if job.sets != SIGNALS} == {(0, 1, 2)}
    assert len(jobs) == 2 * (8 + 3)
    assert len({job.name for job in jobs}) == len(jobs)


@pytest.mark.slow
def test_an_experiment_trains_cuts_and_prunes(monkeypatch):
    """Oracle: the record's own promises, on data that a few epochs can learn."""
    monkeypatch.setattr(datasets, "load", small_set)
    monkeypatch.setattr(table1_jobs, "make_model", make_linear_model)
    lines = []
    job = Job(("boston",), "moments", "paper", (0, 1), 60)
    finished = table1_jobs.run_job(job, report_progress=lines.append)
    (results,) = finished["outcomes"].values()
    assert len(results) == 2
    assert {line.split(":")[0] for line in lines} == {"fit", "prune"}
    json.dumps(finished)
    for result in results:
        assert result["iterative"] <= result["start"]
        assert 0 <= result["one_pruned"] <= 1
        assert 0 < result["pruned"] <= 1
    assert results[0]["iterative"] != results[1]["iterative"]


def test_the_better_of_two_recipes_counts(monkeypatch):
    monkeypatch.setattr(datasets, "load", small_set)

    def prune(job, data, name, recipe, folder, report_progress):
        free_energies = {"standardised targets": (3.0, 7.0), "targets as they are": (5.0, 4.0)}
        return free_energies[name]

    monkeypatch.setattr(table1_jobs, "_prune_runs", prune)
    make = classmethod(lambda cls, name, f: cls(name, 9.0, 8.0, 0.1, f, 0.2))
    monkeypatch.setattr(SeedResult, "from_pruned", make)
    finished = table1_jobs.run_job(Job(("boston",), "moments", "default", (0, 1)))
    results = finished["outcomes"]["boston"]
    assert [r["iterative"] for r in results] == [3.0, 4.0]
    assert [r["recipe"] for r in results] == ["standardised targets", "targets as they are"]


def test_rows_are_medians_in_the_papers_order():
    records = [record(Job(("yacht",), "local", "paper", (0, 1, 2)), 3.0, 1.0, 8.0),
               record(Job(("boston",), "global", "paper", (0,)), 2.0)]  # fmt: skip
    boston, yacht = table1.make_rows(records)
    assert (boston.dataset, yacht.dataset) == ("boston", "yacht")
    assert (yacht.lowest, yacht.iterative, yacht.highest, yacht.seeds) == (1.0, 3.0, 8.0, 3)
    assert yacht.paper == PAPER_RESULTS["yacht", "local"]
    assert (yacht.one_pruned, yacht.pruned) == (50.0, 90.0)


def test_seeds_of_several_records_are_one_row():
    records = [record(Job(("sine",), "local", "paper", (seed,)), float(seed)) for seed in range(5)]
    (row,) = table1.make_rows(records)
    assert (row.lowest, row.iterative, row.highest, row.seeds) == (0.0, 2.0, 4.0, 5)


def test_the_table_is_written_three_ways():
    records = [record(Job(("energy",), "moments", "paper", (0,)), -3.25)]
    rows = table1.make_rows(records)
    text = table1.to_markdown(rows, "how it was made")
    assert "| energy | moments | 10 | 5 | 50 | -3 |" in text
    assert "4026*" in text
    assert "Not comparable" in text
    assert "how it was made" in text
    (read,) = csv.DictReader(table1.to_csv(rows, "by hand").splitlines()[1:])
    assert float(read["iterative"]) == -3.25
    assert float(read["paper_iterative"]) == 4026
    tex = table1.to_latex(rows, "how it was made")
    body = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {12}
    assert r"4026$^\ast$" in tex
    assert "†" not in text + tex


def test_the_papers_recurrent_rows_are_marked_where_they_are_no_free_energies():
    records = [record(Job(("sine",), how, "paper", (0,)), 1.0) for how in protocol.ALGORITHMS]
    rows = table1.make_rows(records)
    text, tex = table1.to_markdown(rows, "by hand"), table1.to_latex(rows, "by hand")
    for how, mark in (("moments", "†"), ("local", "†"), ("global", "")):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| sine | {how} |")]
        assert f"| {PAPER_RESULTS['sine', how].iterative:.0f}{mark} |" in row
    assert "† Not comparable: in recurrent networks" in text
    assert r"39579$^\dagger$" in tex


def test_processes_keep_to_their_cores(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "left alone")
    monkeypatch.setattr(job_pool, "_lines", None)
    calls, core_sets = [], queue.Queue()
    monkeypatch.setattr(os, "sched_setaffinity", lambda *call: calls.append(call), raising=False)
    for cores in ([0, 2], []):  # none: the system decides
        core_sets.put(cores)
        job_pool._prepare_process(None, core_sets)
    assert calls == [(0, [0, 2])]


def test_what_is_done_is_not_run_again(tmp_path, monkeypatch):
    one, other = (
        Job(("boston",), "moments", "paper", (0,)),
        Job(("wine",), "moments", "paper", (0,)),
    )
    place = tmp_path / f"{one.name}.json"
    write_result(place, json.dumps(record(one, 1.0)))
    started = []

    def run_processes(waiting, paths, *_):
        started.extend(waiting)
        for job in waiting:
            write_result(paths[job], json.dumps(record(job, 2.0)))

    monkeypatch.setattr(job_pool, "_run_processes", run_processes)
    options = {"data_dir": None, "workers": 1, "progress": False}
    first, second = job_pool.run_jobs([one, other], tmp_path, **options)
    assert started == [other]
    assert first["outcomes"]["boston"][0]["iterative"] == 1.0
    assert second["outcomes"]["wine"][0]["iterative"] == 2.0
    # A record that is damaged, or was made with another recipe, counts for nothing.
    place.write_text("{")
    job_pool.run_jobs([one], tmp_path, **options)
    other_recipe = record(one, 1.0)
    other_recipe["settings"]["recipes"]["paper"]["rate"] = 0.5
    write_result(place, json.dumps(other_recipe))
    job_pool.run_jobs([one], tmp_path, **options)
    assert started == [other, one, one]


@pytest.mark.slow
def test_the_command_runs_processes_and_writes_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(table1, "QUICK_EPOCHS", 1)
    arguments = ["reproduce", "table1", "--quick", "--sets", "sine", "--algorithms", "global"]
    result = secateur(*arguments, "--out", tmp_path)
    assert result.code == 0
    assert "sine" in result.out
    assert {p.name for p in tmp_path.glob("table1-paper.*")} == {
        "table1-paper.csv", "table1-paper.md", "table1-paper.tex",
    }  # fmt: skip
    left = [p.name for p in (tmp_path / "table1").iterdir()]
    assert left == ["sine-global-paper-seed-0-1-epochs.json"]


def test_unknown_names_are_refused():
    for option, name in (("--sets", "bostom"), ("--algorithms", "mcmc")):
        result = secateur("reproduce", "table1", option, name)
        assert result.code == 2
        assert repr(name) in result.err
