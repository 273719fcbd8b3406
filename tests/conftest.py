"""How every test runs: float64, CPU, strict shapes, nothing kept from an earlier run."""

import os

# Read by the libraries when they are imported, so set before any of them is.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# The user's settings of JAX, and of a terminal that tests do not have. Tests of their effect set
# them. Locale and time zone stay as they are: nothing may depend on them.
for name in list(os.environ):
    if name.startswith(
        ("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "JAX_ENABLE", "JAX_NUMPY")
    ):
        del os.environ[name]
for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)

from compiling import compile_quickly  # imports nothing that reads them

compile_quickly()

# ruff: noqa: E402
import gc

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_enable_compilation_cache", False)


def pytest_addoption(parser):
    parser.addoption(
        "--fast",
        action="store_true",
        help="one case of every test in tests/, but for those marked slow",
    )


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--fast"):
        return
    kept = {}
    for item in items:
        is_doctest = isinstance(item, pytest.DoctestItem)
        if not is_doctest and item.get_closest_marker("slow") is None:
            kept.setdefault(item.nodeid.partition("[")[0], item)
    chosen = set(kept.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


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


@pytest.fixture(scope="session")
def compilation_cache(tmp_path_factory):
    """Environment of processes that keep compiled programs in one folder of this session."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the same for all workers
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, no pip, no SECATEUR_DATA, and an empty cache of data sets, which is returned."""

    def refuse(*args, **options):
        raise OSError("no network in tests")

    monkeypatch.delenv("SECATEUR_DATA", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("subprocess.run", refuse)
    return tmp_path / "cache" / "secateur" / "datasets"
