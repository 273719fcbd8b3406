"""How every test runs: float64, CPU, strict shapes, nothing kept from an earlier run."""

import os

# Read by the libraries when they are imported, so set before any of them is.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from compiling import compile_quickly  # imports nothing that reads them

compile_quickly()

# ruff: noqa: E402
import gc
from collections import Counter
from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_enable_compilation_cache", False)

# `make test-fast` leaves out the tests of this list, beside those marked slow. `make slow-tests`
# measures all tests and writes it: all but the quickest, which together take a minute on two cores.
SLOW_TESTS = Path(__file__).parent / "slow_tests.txt"
FAST_SECONDS = 120
durations = Counter()


def name_of(nodeid):
    """A test's name, without what xdist adds to it."""
    return nodeid.split("@")[0]


def pytest_addoption(parser):
    parser.addoption("--find-slow-tests", action="store_true", help=f"write {SLOW_TESTS.name}")


def pytest_collection_modifyitems(items):
    listed = set(SLOW_TESTS.read_text().splitlines()) if SLOW_TESTS.exists() else set()
    for item in items:
        if name_of(item.nodeid) in listed:
            item.add_marker(pytest.mark.slow)


def pytest_runtest_logreport(report):
    durations[name_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session):
    if not session.config.option.find_slow_tests or hasattr(session.config, "workerinput"):
        return
    left, slow = FAST_SECONDS, []
    for name, seconds in sorted(durations.items(), key=lambda pair: pair[1]):
        left -= seconds
        if left < 0:
            slow.append(name)
    SLOW_TESTS.write_text("\n".join(sorted(slow)) + "\n")


# Every compiled program takes about five memory maps of the 65 530 that Linux gives a process;
# beyond them the compiler crashes.
MOST_MAPS, TESTS_BETWEEN_LOOKS = 30_000, 20
tests_run = 0


def pytest_runtest_teardown():
    global tests_run
    tests_run += 1
    if tests_run % TESTS_BETWEEN_LOOKS == 0 and memory_maps() > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


def memory_maps():
    try:
        with open("/proc/self/maps") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, no pip, no SECATEUR_DATA, and an empty cache of data sets, which is returned."""

    def refuse(*args, **options):
        raise OSError("no network in tests")

    monkeypatch.delenv("SECATEUR_DATA", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("secateur.datasets.downloading.subprocess.run", refuse)
    return tmp_path / "cache" / "secateur" / "datasets"
