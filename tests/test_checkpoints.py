"""Checkpoints: whole at every moment, refused when damaged, resumed to the bit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from secateur import storage
from secateur.storage import write_container
from secateur.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointWarning,
    fingerprint,
)

TREE = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(7, np.int32), "c": np.zeros((0, 2))}
FACTS = {"epoch": 3, "why": "ünïcode"}


def checkpoint_at(path, **options):
    return Checkpoint(path, "a fingerprint", **options)


def test_what_was_saved_comes_back(tmp_path):
    checkpoint = checkpoint_at(tmp_path / "deep" / "run")
    key = jax.random.key(5)
    tree = {**TREE, "t": TREE["a"].T, "key": key}
    checkpoint.write(tree, FACTS)
    saved = checkpoint.read(tree)
    assert saved.facts == FACTS
    np.testing.assert_array_equal(saved.tree["t"], TREE["a"].T)
    assert saved.tree["key"] == key
    for name, value in TREE.items():
        array = saved.tree[name]
        np.testing.assert_array_equal(array, value)
        assert (array.dtype, array.shape) == (value.dtype, value.shape)
    assert [p.name for p in checkpoint.path.parent.iterdir()] == ["run"]


def test_nothing_in_the_file_can_run_code(tmp_path):
    """The format is safetensors: a length, JSON, numbers."""
    checkpoint_at(tmp_path / "run").write(TREE, FACTS)
    content = (tmp_path / "run").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert set(header) == {"leaf.0", "leaf.1", "leaf.2", "__metadata__"}


def test_every_flipped_bit_and_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "run"
    checkpoint = checkpoint_at(path)
    checkpoint.write(TREE, FACTS)
    good = path.read_bytes()
    for place in random.Random(0).sample(range(8 * len(good)), 700):
        content = bytearray(good)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            checkpoint.read(TREE)
    for length in (0, 1, 7, 8, 9, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError, match=r"damaged.*Delete it to start again"):
            checkpoint.read(TREE)


def test_the_previous_one_is_used_where_the_newest_is_damaged(tmp_path):
    path = tmp_path / "run"
    checkpoint = checkpoint_at(path)
    assert checkpoint.read(TREE) is None
    for epoch in (1, 2):
        checkpoint.write(TREE, {"epoch": epoch})
    assert checkpoint.read(TREE).facts == {"epoch": 2}
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.warns(CheckpointWarning, match="does not match its checksum.*run.previous"):
        saved = checkpoint.read(TREE)
    assert saved.facts == {"epoch": 1}
    assert (tmp_path / "run.damaged").exists()
    # The next one does not push the good one out before it is itself complete.
    checkpoint.write(TREE, {"epoch": 3})
    assert checkpoint_at(tmp_path / "run.previous").read(TREE).facts == {"epoch": 1}
    path.write_bytes(b"")
    (tmp_path / "run.previous").write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.read(TREE)


def test_killed_between_the_two_renames(tmp_path, monkeypatch):
    checkpoint = checkpoint_at(tmp_path / "run")
    checkpoint.write(TREE, {"epoch": 1})
    rename = os.replace

    def die(source, target):
        rename(source, target)
        if str(source).endswith("run"):
            raise KeyboardInterrupt

    monkeypatch.setattr(storage.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(TREE, {"epoch": 2})
    assert checkpoint.read(TREE).facts == {"epoch": 1}


def test_other_work_and_other_versions_are_refused(tmp_path):
    path = tmp_path / "run"
    checkpoint_at(path).write(TREE, FACTS)
    other = Checkpoint(path, "another fingerprint", work="pruning")
    with pytest.raises(CheckpointError, match=r"of another pruning.*Give another path"):
        other.read(TREE)
    assert Checkpoint(path, "another", ignore_foreign=True).read(TREE) is None
    write_container(path, {"a": np.ones(3)}, {}, kind="secateur-checkpoint", version=1)
    message = (
        "'secateur-checkpoint-1' of another version of secateur; this version reads "
        "secateur-checkpoint-2. Delete it to start again, or resume with the version that wrote "
        "it"
    )
    with pytest.raises(CheckpointError, match=message):
        checkpoint_at(path).read(TREE)
    assert path.exists()  # it is not taken for a damaged one


def test_a_disk_that_cannot_be_written_is_only_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    checkpoint = checkpoint_at(tmp_path / "file" / "run")
    with pytest.warns(CheckpointWarning, match="The training continues without it"):
        checkpoint.write(TREE, FACTS)


def test_a_fingerprint_knows_values_structure_and_facts():
    same = fingerprint(TREE, "a fact")
    assert fingerprint({**TREE, "a": TREE["a"].copy()}, "a fact") == same
    changed = TREE["a"].copy()
    changed[0, 0] = 1e-300
    others = [
        fingerprint({**TREE, "a": changed}, "a fact"),
        fingerprint({**TREE, "a": TREE["a"].astype(np.float32)}, "a fact"),
        fingerprint(list(TREE.values()), "a fact"),
        fingerprint(TREE, "another fact"),
        fingerprint(jax.random.key(0)),
        fingerprint(jax.random.key(1)),
    ]
    assert len({same, *others}) == 7


@pytest.mark.slow
def test_killed_and_resumed_is_as_if_left_alone():
    """Oracle: `fit` and `prune` left alone, bit by bit. (The benchmark kills them 100 times.)"""
    benchmark = Path(__file__).parents[1] / "benchmarks" / "kill_and_resume.py"
    command = [sys.executable, benchmark, "--times", "3"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stdout + process.stderr[-3000:]
    assert process.stdout.count("killed 3 times") == 2
