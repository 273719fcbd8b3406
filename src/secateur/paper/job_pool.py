"""Parallel experiments: each runs in its own process and stores its record when it is done."""

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

from secateur.paper.result_files import write_result
from secateur.paper.table1_jobs import Job, run_job

__all__ = ["run_jobs"]


def run_jobs(
    jobs: Sequence[Job], folder: Path, *, data_dir: str | None, workers: int, progress: bool
) -> list[dict[str, Any]]:
    """Run jobs, skipping those that already have a record; return all records, in order.

    Args:
        jobs: Jobs, the longest first, so that all cores finish at about the same time.
        folder: Folder for records and checkpoints.
        data_dir: Folder with the data; see `secateur.datasets.load`.
        workers: Number of processes at a time.
        progress: Whether to show the progress of the processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {job: folder / f"{job.name}.json" for job in jobs}
    waiting = [job for job in jobs if _read_record(job, paths[job]) is None]
    if waiting:
        display = _Display(len(jobs), len(waiting), progress)
        _run_processes(waiting, paths, data_dir, workers, display)
    return [_require_record(job, paths[job]) for job in jobs]


def _read_record(job: Job, path: Path) -> dict[str, Any] | None:
    """Return the record of a job, if there is one with exactly these settings."""
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return record if record.get("settings") == job.settings else None


def _require_record(job: Job, path: Path) -> dict[str, Any]:
    record = _read_record(job, path)
    assert record is not None, f"{path} was written a moment ago"
    return record


def _run_processes(
    jobs: list[Job], paths: dict[Job, Path], data_dir: str | None, workers: int, display: _Display
) -> None:
    context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
    with context.Manager() as manager:
        lines, core_sets = manager.Queue(), manager.Queue()
        workers = min(workers, len(jobs))
        for cores in divide_cores(_list_cores(), workers):
            core_sets.put(cores)
        pool = ProcessPoolExecutor(workers, context, _prepare_process, (lines, core_sets))
        try:
            futures = {pool.submit(_run_in_process, job, paths[job], data_dir): job for job in jobs}
            with display:
                _watch(futures, lines, display)
        finally:
            # After Ctrl-C, do not start waiting jobs; checkpoints preserve those that have begun.
            pool.shutdown(wait=False, cancel_futures=True)


def _watch(futures: dict[Future, Job], lines: Any, display: _Display) -> None:
    left = set(futures)
    while left:
        try:
            name, line = lines.get(timeout=0.5)
            display.update(name, line)
        except queue.Empty:
            pass
        for future in [f for f in left if f.done()]:
            left.remove(future)
            display.finish(futures[future].name, future.result())


def _list_cores() -> list[int]:
    """Return the cores that this process may use; empty if the system does not report them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def divide_cores(cores: Sequence[int], workers: int) -> list[list[int]]:
    """Divide cores between workers; no cores means that the system decides.

    Example:
        >>> divide_cores([0, 1, 2, 3, 4], 2)
        [[0, 2, 4], [1, 3]]
        >>> divide_cores([0, 1], 3)
        [[], [], []]
    """
    if len(cores) < workers:
        return [[] for _ in range(workers)]
    return [list(cores[first::workers]) for first in range(workers)]


_lines: Any = None


def _prepare_process(lines: Any, core_sets: Any) -> None:
    """Set up a process: its progress queue, its cores, and the shared compilation cache.

    Processes that share all cores would wait for each other, as XLA uses all cores it can see.
    """
    global _lines
    _lines = lines
    if cores := core_sets.get():
        os.sched_setaffinity(0, cores)
    import jax
    import platformdirs

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache = platformdirs.user_cache_path("secateur") / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(cache))


def _run_in_process(job: Job, path: Path, data_dir: str | None) -> float:
    last = 0.0

    def report_progress(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > 1:
            last = time.monotonic()
            _lines.put((job.name, line))

    record = run_job(job, data_dir=data_dir, folder=path.parent, report_progress=report_progress)
    write_result(path, json.dumps(record, indent=1))
    for checkpoint in path.parent.glob(f"{job.name}-*.*"):
        if not checkpoint.name.endswith(".json"):
            checkpoint.unlink()
    return record["seconds"]


class _Display:
    """Shows a line for each process on a terminal, otherwise a line for each finished job."""

    def __init__(self, all_jobs: int, waiting: int, show: bool) -> None:
        self.console = Console(stderr=True, quiet=not show)
        if show and waiting < all_jobs:
            self.console.print(f"{all_jobs - waiting} of {all_jobs} experiments are done already")
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self.bars = Progress(*columns, console=self.console, disable=not sys.stderr.isatty())
        self.tasks: dict[str, Any] = {}
        self.done, self.waiting = 0, waiting

    def __enter__(self) -> _Display:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def update(self, name: str, line: str) -> None:
        text = f"{name}  {line}"
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(text, total=None)
        self.bars.update(self.tasks[name], description=text)

    def finish(self, name: str, seconds: float) -> None:
        self.done += 1
        if name in self.tasks:
            self.bars.remove_task(self.tasks.pop(name))
        self.console.print(f"[{self.done}/{self.waiting}] {name}: {seconds:.0f} s", markup=False)
