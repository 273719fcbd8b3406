"""Experiments over the cores: each in a process of its own, its record kept once it is done."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from secateur.paper.experiment import Job, run
from secateur.paper.writing import write_atomically

__all__ = ["run_all"]


def run_all(
    jobs: Sequence[Job], folder: Path, *, data_dir: str | None, workers: int, progress: bool
) -> list[dict[str, Any]]:
    """Run jobs, skipping those whose record is there; return all records, in order.

    Args:
        jobs: the longest first, so that the cores end together.
        folder: for records and checkpoints.
        data_dir: where the data are.
        workers: processes at a time.
        progress: whether to show what the processes are at.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places = {job: folder / f"{job.name}.json" for job in jobs}
    waiting = [job for job in jobs if _record(job, places[job]) is None]
    if waiting:
        _work(waiting, places, data_dir, workers, _Board(len(jobs), len(waiting), progress))
    return [_known(job, places[job]) for job in jobs]


def _record(job: Job, place: Path) -> dict[str, Any] | None:
    """The record of a job, if there is one that was made with these very settings."""
    if not place.is_file():
        return None
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return found if found.get("settings") == job.settings else None


def _known(job: Job, place: Path) -> dict[str, Any]:
    found = _record(job, place)
    assert found is not None, f"{place} was written a moment ago"
    return found


def _work(
    jobs: list[Job], places: dict[Job, Path], data_dir: str | None, workers: int, board: _Board
) -> None:
    context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
    with context.Manager() as manager:
        lines, places_to_run = manager.Queue(), manager.Queue()
        workers = min(workers, len(jobs))
        for cores in shares(_cores(), workers):
            places_to_run.put(cores)
        pool = ProcessPoolExecutor(workers, context, _prepare, (lines, places_to_run))
        try:
            futures = {pool.submit(_in_process, job, places[job], data_dir): job for job in jobs}
            with board:
                _watch(futures, lines, board)
        finally:
            # After Ctrl-C, do not start what is still waiting; checkpoints keep what has begun.
            pool.shutdown(wait=False, cancel_futures=True)


def _watch(futures: dict[Future, Job], lines: Any, board: _Board) -> None:
    left = set(futures)
    while left:
        try:
            name, line = lines.get(timeout=0.5)
            board.say(name, line)
        except queue.Empty:
            pass
        for future in [f for f in left if f.done()]:
            left.remove(future)
            board.finish(futures[future].name, future.result())


def _cores() -> list[int]:
    """The cores that this process may use; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def shares(cores: Sequence[int], workers: int) -> list[list[int]]:
    """Divide cores between workers; an empty share is to leave the matter to the system.

    >>> shares([0, 1, 2, 3, 4], 2)
    [[0, 2, 4], [1, 3]]
    >>> shares([0, 1], 3)
    [[], [], []]
    """
    if len(cores) < workers:
        return [[] for _ in range(workers)]
    return [list(cores[first::workers]) for first in range(workers)]


_lines: Any = None


def _prepare(lines: Any, places_to_run: Any) -> None:
    """Begin a process: where to report, its cores, and a cache of programs that all share.

    Processes that share all cores wait for each other: XLA divides its work over all it can see.
    """
    global _lines
    _lines = lines
    if own := places_to_run.get():
        os.sched_setaffinity(0, own)
    import jax
    import platformdirs

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache = platformdirs.user_cache_path("secateur") / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(cache))


def _in_process(job: Job, place: Path, data_dir: str | None) -> float:
    last = 0.0

    def tell(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > 1:
            last = time.monotonic()
            _lines.put((job.name, line))

    record = run(job, data_dir=data_dir, folder=place.parent, tell=tell)
    write_atomically(place, json.dumps(record, indent=1))
    for checkpoint in place.parent.glob(f"{job.name}-*.*"):
        if not checkpoint.name.endswith(".json"):
            checkpoint.unlink()
    return record["seconds"]


class _Board:
    """What the processes are at: a line each on a terminal, else a line for each that is done."""

    def __init__(self, all_jobs: int, waiting: int, show: bool) -> None:
        self.console = Console(stderr=True, quiet=not show)
        if show and waiting < all_jobs:
            self.console.print(f"{all_jobs - waiting} of {all_jobs} experiments are done already")
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self.bars = Progress(*columns, console=self.console, disable=not sys.stderr.isatty())
        self.tasks: dict[str, Any] = {}
        self.done, self.waiting = 0, waiting

    def __enter__(self) -> _Board:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def say(self, name: str, line: str) -> None:
        text = f"{name}  {line}"
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(text, total=None)
        self.bars.update(self.tasks[name], description=text)

    def finish(self, name: str, seconds: float) -> None:
        self.done += 1
        if name in self.tasks:
            self.bars.remove_task(self.tasks.pop(name))
        self.console.print(f"[{self.done}/{self.waiting}] {name}: {seconds:.0f} s", markup=False)
