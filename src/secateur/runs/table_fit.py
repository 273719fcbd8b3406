"""Training and pruning on a table; results are a folder with the model and a report.

The result is determined by the table, the settings and the seed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import secateur as sc
from secateur import report
from secateur.averaging import Average, choose_average
from secateur.caveats import find_caveats
from secateur.dense_structures import STRUCTURES, Structure
from secateur.distributions import Gamma
from secateur.pruning.budget import make_budget
from secateur.remedies import Remedy, UsageError
from secateur.runs.controls import RunClock, RunSettings
from secateur.runs.folder import RunFolder
from secateur.runs.table_model import save_model
from secateur.selection import Selection, select_structure
from secateur.tables import EncodedTable, encode_table, read_table

__all__ = ["FinishedRun", "Split", "fit_table", "split_rows"]

# Fractions of a limited time after which training cools and ends, and rounds become short and end.
_FIT_TIME = (0.35, 0.55)
_PRUNE_TIME = (0.75, 0.9)


class FinishedRun(NamedTuple):
    """A run that has finished.

    Attributes:
        folder: Folder of its results.
        record: Everything that the report shows.
    """

    folder: RunFolder
    record: dict[str, Any]


def fit_table(
    path: str | os.PathLike,
    targets: Sequence[str],
    settings: RunSettings,
    folder: RunFolder,
    *,
    command: str = "",
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda sentence: None,
) -> FinishedRun:
    """Read a table, train and prune a network, and write model and report to a folder.

    Args:
        path: Path of the table; see `secateur.tables.read_table`.
        targets: Columns to predict.
        settings: Settings of the run.
        folder: Folder for the results. During the run, it contains only a checkpoint.
        command: Command that repeats the run, for the report.
        resume: Whether to continue from the checkpoint.
        force: Whether to replace an existing run.
        progress: Whether to show progress.
        say: Function that is called with messages about the decisions made.

    Raises:
        TableError, FolderError: An error that the user can correct.
        RunInterrupted: Ctrl-C was pressed; the folder holds a checkpoint.
        FitError, ValueError, CheckpointError: As `fit` and `prune` raise them.
    """
    _check_average(settings)
    folder.claim(resume=resume, force=force)
    if resume and not folder.is_interrupted:
        say(f"{folder.path} holds no interrupted run: a new one begins")
    clock = RunClock(settings.minutes, say)
    table = _read_table(path, targets, settings)
    for note in table.notes:
        say(note)
    split = split_rows(table, settings)
    say(_describe_sizes(table, len(split.training[1]), settings))
    requirements = _make_requirements(table.encoding.task, split.held_out, settings)
    with clock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "prune: ")  # a caution already says this
        try:
            selection = _train(table, split, settings, requirements, folder, clock, progress)
        except (sc.FitError, ValueError):
            if not resume:  # a checkpoint of an earlier run stays
                folder.remove_checkpoint()
            raise
    encoding, best = table.encoding, selection.best
    fitted, pruned = best.fitted, best.pruned
    average = None
    if settings.average:
        average = choose_average(best.restarts, split.held_out)
        say(_describe_average(average, split))
    caveats = find_caveats(pruned, split.training)
    shortfall = make_budget(requirements).find_shortfall(pruned)
    if shortfall is not None:
        caveats.insert(0, shortfall)
    record = report.make_record(
        fitted=fitted,
        pruned=pruned,
        average=average,
        candidates=selection.table(),
        caveats=caveats,
        inputs=encoding.inputs,
        targets=[{"name": t.name, "classes": t.classes} for t in encoding.targets],
        task=encoding.task,
        settings=settings.describe(),
        command=command,
        data={
            "name": Path(path).name,
            "rows": len(table.y),
            "train_rows": len(split.training[1]),
            "held_out_rows": 0 if split.held_out is None else len(split.held_out[1]),
        },
        held_out=split.held_out,
        seconds=clock.seconds,
        seed=settings.seed,
    )
    extra = {"table": encoding.to_json()}
    with folder.write_results() as results:
        save_model(pruned if average is None else average, results, extra)
        sc.save(fitted, results.unpruned, extra=extra)
        results.write_record(record)
        report.write_report(record, results.report)
    return FinishedRun(folder, record)


def _check_average(settings: RunSettings) -> None:
    if settings.average and settings.restarts < 2:
        raise UsageError(
            "An average is one of several restarts, and there is only one.",
            Remedy("restarts", 5, "trains five", is_advised=True),
        )


def _describe_average(average: Average, split: Split) -> str:
    how = "equal weights" if average.weighting == "equal" else "weights by their evidence"
    reason = "" if split.held_out is None else ", which predicts the held-out rows better"
    shares = ", ".join(f"{weight:.0%}" for weight in average.weights)
    return f"average of {len(average.models)} pruned restarts: {how}{reason} ({shares})"


def _read_table(
    path: str | os.PathLike, targets: Sequence[str], settings: RunSettings
) -> EncodedTable:
    frame = read_table(path, encoding=settings.encoding)
    texts = None
    if all(name in frame for name in targets):
        texts = read_table(path, encoding=settings.encoding, columns=targets, text=targets)
    return encode_table(
        frame,
        targets,
        task=settings.task,
        missing=settings.missing,
        dates=settings.dates,
        drop=settings.drop,
        max_categories=settings.max_categories,
        texts=texts,
    )


def _describe_sizes(table: EncodedTable, training_rows: int, settings: RunSettings) -> str:
    encoding = table.encoding
    hidden = ("(chosen by free energy)",) if settings.hidden is None else settings.hidden
    layers = " → ".join(map(str, (table.x.shape[1], *hidden, encoding.outputs)))
    held_out = len(table.y) - training_rows
    return (
        f"{training_rows:,} training rows, {held_out:,} held out; {len(encoding.columns)} "
        f"columns, network {layers}"
    )


class Split(NamedTuple):
    """Training rows and held-out rows, as pairs of inputs and targets."""

    training: tuple[np.ndarray, np.ndarray]
    held_out: tuple[np.ndarray, np.ndarray] | None


def split_rows(table: EncodedTable, settings: RunSettings) -> Split:
    """Hold out rows at random; for classes, stratified as nearly as possible.

    Args:
        table: All rows.
        settings: `held_out` and `seed` are used.

    Example:
        >>> from secateur.tables import Encoding
        >>> y = np.repeat([0, 1], [90, 10])
        >>> table = EncodedTable(y[:, None] * 1.0, y, Encoding((), (), "classification"), y, [])
        >>> training, held_out = split_rows(table, RunSettings(held_out=0.2))
        >>> np.bincount(training[1]).tolist(), np.bincount(held_out[1]).tolist()
        ([72, 8], [18, 2])
    """
    rows = len(table.y)
    count = round(settings.held_out * rows)
    if not count:
        return Split((table.x, table.y), None)
    order = np.random.default_rng(settings.seed).permutation(rows)
    if table.encoding.task == "classification":
        order = order[np.argsort(table.y[order], kind="stable")]
        chosen = order[((np.arange(count) + 0.5) * rows / count).astype(int)]
    else:
        chosen = order[:count]
    is_held_out = np.zeros(rows, bool)
    is_held_out[chosen] = True
    training, held_out = ((table.x[mask], table.y[mask]) for mask in (~is_held_out, is_held_out))
    return Split(training, held_out)


def _make_requirements(
    task: str, held_out: tuple[np.ndarray, np.ndarray] | None, settings: RunSettings
) -> dict[str, Any]:
    """Return the options of `prune` that are requirements on its result.

    Raises:
        UsageError: They do not apply to these targets, or there are no held-out rows.
    """
    accuracy, rmse = settings.least_accuracy, settings.most_rmse
    requirements = {"most_weights": settings.most_weights}
    if accuracy is None and rmse is None:
        return requirements
    if accuracy is not None and (task != "classification" or rmse is not None):
        raise UsageError(
            "A required accuracy is for classification with a single target.",
            Remedy("most_rmse", "ERROR", "is for targets that are numbers"),
        )
    if rmse is not None and task == "classification":
        raise UsageError(
            "A largest root-mean-square error is for numeric targets.",
            Remedy("least_accuracy", "SHARE", "is for classes"),
        )
    if held_out is None:
        raise UsageError(
            "Accuracy and root-mean-square error are measured on held-out rows, but no rows are "
            "held out.",
            Remedy("held_out", 0.2, "holds out a fifth of the rows"),
        )
    return {
        **requirements,
        "held_out": held_out,
        "least_accuracy": accuracy,
        "most_rmse": rmse,
    }


def _train(
    table: EncodedTable,
    split: Split,
    settings: RunSettings,
    requirements: dict[str, Any],
    folder: RunFolder,
    clock: RunClock,
    progress: bool,
) -> Selection:
    """Return a dense network before and after pruning, and the candidates that it was chosen from.

    Checkpoints go to the folder.
    """
    encoding, data = table.encoding, split.training
    likelihood: Any = sc.CategoricalLikelihood()
    if encoding.task == "classification":
        if settings.noise_prior is not None:
            raise UsageError("A prior of the noise is for numeric targets. Leave it out.")
    else:
        prior = settings.noise_prior and Gamma(*settings.noise_prior)
        likelihood = sc.GaussianLikelihood(prior)
    structures: tuple[Structure, ...] = STRUCTURES
    if settings.hidden is not None:
        structures = (Structure(settings.hidden, linear_path=not settings.hidden),)
    selection = select_structure(
        data,
        outputs=encoding.outputs,
        likelihood=likelihood,
        key=jax.random.key(settings.seed),
        structures=structures,
        inference=settings.inference,
        posterior=settings.posterior,
        learn_priors=settings.learn_priors,
        restarts=settings.restarts,
        epochs=settings.epochs,
        batch_size=settings.choose_batch_size(len(data[1])),
        prune_options={
            "what": settings.what,
            "grow": settings.grow,
            "epochs": settings.epochs,
            **requirements,
        },
        checkpoint=folder.checkpoint,
        progress=progress,
        callbacks=(clock.make_callback(*_FIT_TIME), clock.make_callback(*_PRUNE_TIME)),
    )
    clock.check()
    return selection
