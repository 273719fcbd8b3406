"""`secateur fit` without its command line: from a file to a folder with a pruned model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import secateur as sc
from secateur import report
from secateur.runs.folders import Folder
from secateur.runs.settings import Settings
from secateur.runs.training import split, train_and_prune
from secateur.runs.watching import Watch
from secateur.tables import Prepared, prepare, read

__all__ = ["Run", "fit_table"]


class Run(NamedTuple):
    """A run that has finished.

    Attributes:
        folder: where its results are.
        record: everything that the report shows.
    """

    folder: Folder
    record: dict[str, Any]


def fit_table(
    path: str | os.PathLike,
    targets: Sequence[str],
    settings: Settings,
    folder: Folder,
    *,
    command: str = "",
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda sentence: None,
) -> Run:
    """Read a table, train and prune a network, and write model and report to a folder.

    Args:
        path: of the table; see `secateur.tables.read`.
        targets: columns to predict.
        settings: see `Settings`.
        folder: for the results. While the run goes on it holds a checkpoint only.
        command: what repeats the run, for the report.
        resume: go on from the checkpoint.
        force: replace a run that is there.
        progress: whether to show progress.
        say: called with sentences about what was decided.

    Raises:
        TableError, FolderError: what the user can put right.
        Interrupted: Ctrl-C; the folder holds a checkpoint.
        FitError, ValueError, CheckpointError: as `fit` and `prune` do.
    """
    folder.claim(resume=resume, force=force)
    if resume and not folder.interrupted:
        say(f"there is nothing in {folder.path} to go on from: the run begins")
    watch = Watch(settings.minutes, say)
    prepared = _table(path, targets, settings)
    for note in prepared.notes:
        say(note)
    data, held_out = split(prepared, settings)
    say(_sizes(prepared, len(data[1]), settings))
    with watch:
        try:
            outcome = train_and_prune(prepared, data, settings, folder, watch, progress=progress)
        except (sc.FitError, ValueError):
            if not resume:  # what there was before is not this run's to remove
                folder.forget_checkpoint()
            raise
    encoding = prepared.encoding
    record = report.make_record(
        fitted=outcome.fitted,
        pruned=outcome.pruned,
        inputs=encoding.inputs,
        targets=[{"name": t.name, "classes": t.classes} for t in encoding.targets],
        task=encoding.task,
        settings=settings.shown(),
        command=command,
        data={
            "name": Path(path).name,
            "rows": len(prepared.y),
            "train_rows": len(data[1]),
            "held_out_rows": 0 if held_out is None else len(held_out[1]),
        },
        held_out=held_out,
        seconds=watch.seconds,
        seed=settings.seed,
    )
    extra = {"table": encoding.to_json()}
    with folder.results() as results:
        sc.save(outcome.pruned, results.model, extra=extra)
        sc.save(outcome.fitted, results.unpruned, extra=extra)
        results.write_record(record)
        report.write(record, results.report)
    return Run(folder, record)


def _table(path: str | os.PathLike, targets: Sequence[str], settings: Settings) -> Prepared:
    return prepare(
        read(path, encoding=settings.encoding),
        targets,
        task=settings.task,
        missing=settings.missing,
        drop=settings.drop,
        most_categories=settings.most_categories,
    )


def _sizes(prepared: Prepared, training: int, settings: Settings) -> str:
    encoding = prepared.encoding
    layers = " → ".join(map(str, (prepared.x.shape[1], *settings.hidden, encoding.outputs)))
    held_out = len(prepared.y) - training
    return (
        f"{training:,} rows to learn from, {held_out:,} held out; {len(encoding.columns)} columns, "
        f"network {layers}"
    )
