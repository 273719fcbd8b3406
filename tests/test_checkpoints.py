"""Checkpoints: whole at every moment, refused when damaged, resumed to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import numpy as np
import pytest

from processes import output, start
from secateur import checkpoints
from secateur.checkpoints import CheckpointError, CheckpointWarning, load, newest, save

TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(7, np.int32), "c": np.zeros((0, 2))}
FACTS = {"epoch": 3, "why": "ünïcode"}


def test_what_was_saved_comes_back(tmp_path):
    path = tmp_path / "deep" / "run"
    save(path, TENSORS | {"t": TENSORS["a"].T}, FACTS)
    tensors, facts = load(path)
    assert facts == FACTS
    np.testing.assert_array_equal(tensors["t"], TENSORS["a"].T)
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], value)
        assert (tensors[name].dtype, tensors[name].shape) == (value.dtype, value.shape)
    assert [p.name for p in path.parent.iterdir()] == ["run"]


def test_nothing_in_the_file_can_run_code(tmp_path):
    """The format is safetensors: a length, JSON, numbers."""
    save(tmp_path / "run", TENSORS, FACTS)
    content = (tmp_path / "run").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert set(header) == {*TENSORS, "__metadata__"}


def test_every_flipped_bit_and_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "run"
    save(path, TENSORS, FACTS)
    good = path.read_bytes()
    rng = random.Random(0)
    places = range(8 * len(good)) if len(good) < 400 else rng.sample(range(8 * len(good)), 1500)
    for place in places:
        content = bytearray(good)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            load(path)
    for length in (0, 1, 7, 8, 9, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            load(path)


def test_the_previous_one_is_used_where_the_newest_is_damaged(tmp_path):
    path = tmp_path / "run"
    assert newest(path) is None
    for epoch in (1, 2):
        save(path, TENSORS, {"epoch": epoch})
    assert newest(path)[1] == {"epoch": 2}
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.warns(CheckpointWarning, match="does not match its checksum.*run.previous"):
        _, facts = newest(path)
    assert facts == {"epoch": 1}
    assert (tmp_path / "run.damaged").exists()
    # The next one does not push the good one out before it is itself complete.
    save(path, TENSORS, {"epoch": 3})
    assert load(tmp_path / "run.previous")[1] == {"epoch": 1}
    path.write_bytes(b"")
    (tmp_path / "run.previous").write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        newest(path)


def test_killed_between_the_two_renames(tmp_path, monkeypatch):
    path = tmp_path / "run"
    save(path, TENSORS, {"epoch": 1})
    real = os.replace

    def die(source, target):
        if str(source).endswith("run"):
            real(source, target)
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(checkpoints.os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        save(path, TENSORS, {"epoch": 2})
    assert newest(path)[1] == {"epoch": 1}


# --- fit ----------------------------------------------------------------------------------------

PROGRAM = """
import sys
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
import secateur as sc
from secateur.fitting import RECIPES, pacing, saving

saving.CHECKPOINT_SECONDS = 0.0  # as often as possible: a kill may fall into any of them
pacing.CALL_SECONDS = 0.02
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 2))
y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=(64, 1))
def net(p, x):
    return jax.nn.relu(x @ p[0]) @ p[1]
key = jax.random.key(0)
params = [jnp.asarray(rng.normal(size=s)) for s in ((2, 8), (8, 1))]
fitted = sc.fit(
    sc.BayesianModel(net, params, inference="local"), (x, y), key=key,
    recipe=replace(RECIPES["default"], stops=False), batch_size=16, epochs=6000,
    checkpoint=sys.argv[1] or None, progress=False,
    callback=lambda report: print(report.epoch, flush=True),
)
numbers = (np.asarray(a).tobytes().hex() for a in jax.tree.leaves((fitted.beliefs, fitted.noise)))
print("result", fitted.epochs, repr(fitted.free_energy), *numbers)
"""


def run(path, cache):
    settings = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0}
    return start(PROGRAM, path, **{name: str(value) for name, value in settings.items()})


def result_of(process):
    return output(process).splitlines()[-1]


@pytest.mark.slow
def test_killed_twenty_times_and_resumed_is_as_if_left_alone(tmp_path):
    """Oracle: the run that was left alone, bit by bit. Kills fall at random moments of training."""
    cache, path = tmp_path / "cache", tmp_path / "run"
    expected = result_of(run("", cache))
    assert expected.startswith("result 6000")
    rng = random.Random(0)
    reached = []
    for _ in range(20):
        process = run(path, cache)
        first = process.stdout.readline()
        assert first.strip().isdigit(), (first, reached)
        reached.append(int(first))
        time.sleep(rng.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert 20 < reached[-1] < 6000, reached  # it went on every time
    assert result_of(run(path, cache)) == expected
    # Finished: the result is there, and nothing is trained again.
    assert result_of(run(path, cache)) == expected
