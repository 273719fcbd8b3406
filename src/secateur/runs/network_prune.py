"""Pruning of a trained network: from a file to a folder with a smaller one and a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import secateur as sc
from secateur import report
from secateur.beliefs import mean_weights
from secateur.compaction import compact
from secateur.exports import ExportError, export
from secateur.importing import ImportedFunction, OnnxError, from_onnx
from secateur.importing.costs import count_multiply_adds
from secateur.importing.starting import as_trained, compute_targets, make_model, with_hard_labels
from secateur.likelihoods import GaussianLikelihood
from secateur.propagation import UnsupportedOperation
from secateur.remedies import UsageError
from secateur.report.performance import score_prediction
from secateur.runs.controls import RunClock
from secateur.runs.folder import RunFolder
from secateur.runs.network_data import NetworkData, read_network_data
from secateur.structure import units
from secateur.training.recipe import RECIPES

__all__ = ["FinishedPruning", "NetworkSettings", "prune_network"]

STAGES = ("original", "fitted", "pruned")


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of a run that prunes a trained network.

    Attributes:
        task: "regression" or "classification", or None to infer it from the network and the
            targets.
        what: What to prune: "weights", "units" or "both".
        inference: "moments", "local" or "global".
        target: Column of a table that is the target.
        epochs: Maximum number of epochs of the fit.
        retrain_epochs: Maximum number of epochs of each training between rounds.
        batch_size: Number of rows in a step.
        rate: Highest learning rate.
        held_out: Fraction of the rows that are held out.
        seed: Seed of everything random.
        minutes: Maximum duration of the whole run, or None.
    """

    task: str | None = None
    what: str = "weights"
    inference: str = "local"
    target: str | None = None
    epochs: int | None = None
    retrain_epochs: int | None = None
    batch_size: int | None = None
    rate: float | None = None
    held_out: float = 0.2
    seed: int = 0
    minutes: float | None = None

    def describe(self) -> dict[str, Any]:
        """Return the settings in readable form, without those that were not set."""
        return {k: v for k, v in asdict(self).items() if v is not None}


class FinishedPruning(NamedTuple):
    """A run that has finished.

    Attributes:
        folder: Folder of its results.
        rows: The closing table: a name and a text for each of `STAGES`.
        notes: What a user should know, in sentences.
    """

    folder: RunFolder
    rows: list[tuple[str, ...]]
    notes: list[str]


def prune_network(
    path: str | os.PathLike,
    data: Sequence[str | os.PathLike],
    settings: NetworkSettings,
    folder: RunFolder,
    *,
    command: str = "",
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda sentence: None,
) -> FinishedPruning:
    """Prune a trained network, and write models, exports and a report to a folder.

    The posterior starts around the network's weights; prior variances are learnt; the network is
    fitted and pruned. Without targets, it is fitted to the network's own outputs.

    Args:
        path: The ONNX file.
        data: Files with rows; see `read_network_data`.
        settings: Settings of the run.
        folder: Folder for the results.
        command: Command that repeats the run, for the report.
        resume: Whether to continue from the checkpoint.
        force: Whether to replace an existing run.
        progress: Whether to show progress.
        say: Function that is called with messages about the decisions made.

    Raises:
        OnnxError, UsageError: An error that the user can correct.
        RunInterrupted: Ctrl-C was pressed; the folder holds a checkpoint.
    """
    folder.claim(resume=resume, force=force)
    f, params = from_onnx(path)
    if len(f.outputs) != 1:
        names = ", ".join(v.name for v in f.outputs)
        raise OnnxError(f"{path} has the outputs {names}. Only networks with a single output can "
            "be pruned; cut the others off (onnx.utils.extract_model).")  # fmt: skip
    if not params:
        raise UsageError(f"{path} has no weights to prune.")
    rows = read_network_data(data, f, target=settings.target)
    split = _split(rows, f, params, settings, say)
    model = make_model(f, params, split.training, task=settings.task, inference=settings.inference)
    came = as_trained(model, key=jax.random.key(settings.seed))
    clock = RunClock(settings.minutes, say)
    with clock:
        try:
            fitted, pruned = _train(model, split.training, settings, folder, clock, progress)
        except (sc.FitError, ValueError):
            if not resume:
                folder.remove_checkpoint()
            raise
    came, fitted, pruned = map(with_hard_labels, (came, fitted, pruned))
    table, notes = _compare((came, fitted, pruned), split, path)
    record = _make_record(fitted, pruned, split, settings, command, table, clock.seconds)
    with folder.write_results() as results:
        sc.save(pruned, results.model)
        sc.save(fitted, results.unpruned)
        results.write_record(record)
        report.write_report(record, results.report)
    notes += _export(pruned, folder, split.judged[0], table)
    return FinishedPruning(folder, table, notes)


class _DividedRows(NamedTuple):
    training: tuple[Any, np.ndarray]
    judged: tuple[Any, np.ndarray]
    has_targets: bool
    name: str


def _take(x: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(lambda a: a[rows], x)


def _split(
    data: NetworkData, f: Any, params: Any, settings: NetworkSettings, say: Callable[[str], None]
) -> _DividedRows:
    """Return training rows and held-out rows; without targets, the network's outputs are used."""
    count = len(jax.tree.leaves(data.x)[0])
    order = np.random.default_rng(settings.seed).permutation(count)
    held = round(settings.held_out * count)
    training, judged = np.sort(order[held:]), np.sort(order[:held] if held else order)
    y = data.y
    if y is None:
        say("there are no targets: the network's own outputs are used, and the accuracy below is "
            "the agreement with the original network")  # fmt: skip
        y = compute_targets(f, params, data.x)
    else:
        y = _shape_targets(y, f, params, data.x)
    own = y[judged]
    if (
        data.y is None
        and f.without_last_step().last_step is not None
        and settings.task != "regression"
    ):
        own = own.argmax(-1) if own.shape[-1] > 1 else (own > 0.5).astype(int)
    return _DividedRows((_take(data.x, training), y[training]), (_take(data.x, judged), own),
                  data.y is not None, data.name)  # fmt: skip


def _shape_targets(y: np.ndarray, f: Any, params: Any, x: Any) -> np.ndarray:
    """Return labels as integers, and numbers in the shape of the network's outputs."""
    y = np.asarray(y)
    if y.dtype.kind not in "fiub":
        raise UsageError("the targets are text. Give classes as integers starting at 0.")
    shape = jax.eval_shape(f, params, _take(x, np.arange(2))).shape[1:]
    if y.dtype.kind in "iub":
        y = y.astype(np.int32)
        one_hot = y.ndim == 2 and y.shape[1:] == shape and y.shape[1] > 1
        if one_hot and np.all(y.sum(1) == 1) and y.max() == 1:
            return y.argmax(1).astype(np.int32)
        return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 and shape != (1,) else y
    if y.shape[1:] == shape:
        return y
    is_whole = np.all(y == np.rint(y))
    if y.ndim == 1 and shape and shape[-1] > 1 and is_whole:
        return y.astype(np.int32)
    if int(np.prod(y.shape[1:])) == int(np.prod(shape)):
        return y.reshape(len(y), *shape)
    raise UsageError(
        f"the targets have rows of shape {y.shape[1:]}, the network's outputs {shape}."
    )


def _train(
    model: sc.BayesianModel, data: tuple[Any, Any], settings: NetworkSettings, folder: RunFolder,
    clock: RunClock, progress: bool,
) -> tuple[sc.Trained, sc.Trained]:  # fmt: skip
    recipe = RECIPES["trained"]
    if settings.retrain_epochs is not None:
        recipe = replace(recipe, retrain_epochs=settings.retrain_epochs)
    key = jax.random.key(settings.seed)
    first, second = jax.random.split(key)
    fitted = sc.fit(
        model, data, key=first, recipe=recipe, epochs=settings.epochs, rate=settings.rate,
        batch_size=settings.batch_size, learn_priors="leaves", checkpoint=folder.checkpoint("fit"),
        progress=progress, callback=clock.make_callback(0.4, 0.55),
    )  # fmt: skip
    clock.check()
    pruned = sc.prune(
        fitted, data, key=second, what=settings.what, checkpoint=folder.checkpoint("prune"),
        progress=progress, callback=clock.make_callback(0.8, 0.9),
    )  # fmt: skip
    clock.check()
    return fitted, pruned


# --- results -----------------------------------------------------------------------------------


def _compare(
    models: tuple[sc.Trained, ...], split: _DividedRows, path: str | os.PathLike
) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the closing table, and notes."""
    x, y = split.judged
    came, _, pruned = models
    example = _take(x, np.arange(2))
    notes = []
    small = pruned
    try:
        small = compact(pruned, drop_inputs=False, inputs=_take(x, np.arange(min(8, len(y)))))
    except (UnsupportedOperation, RuntimeError) as error:
        notes.append(f"dead units were not removed: {error}")
    found = units(came.model.f, came.model.params, example)
    before = sum(unit.kind == "hidden" for unit in found.units)
    gone = 0
    if small.compaction is not None:
        gone = sum(
            len(r.unread) + len(r.constant) for r in small.compaction.removed if r.kind == "hidden"
        )
    costs = [
        count_multiply_adds(
            m.model.f, m.model.params if m is came else mean_weights(m.beliefs), example
        )
        for m in (came, small)
    ]
    rows: list[tuple[str, ...]] = [
        ("weights", *(f"{m.live_weights:,}" for m in models)),
        ("hidden units", f"{before:,}", f"{before:,}", f"{before - gone:,}"),
        ("bytes on disk (ONNX)", f"{Path(path).stat().st_size:,}", "", ""),
        ("multiply-adds of a row", f"{costs[0]:,}", f"{costs[0]:,}", f"{costs[1]:,}"),
    ]
    scores = [
        score_prediction(m.predict(x, at_means=True), y, likelihood=m.model.likelihood)
        for m in models
    ]
    headings = (
        ("accuracy", "accuracy" if split.has_targets else "agreement with the network", ".2%"),
        ("rmse", "root-mean-square error", ".4g"),
        ("log_likelihood", "log-likelihood (nats per row)", ".4f"),
    )
    for name, heading, form in headings:
        if name == "rmse" and not isinstance(came.model.likelihood, GaussianLikelihood):
            continue
        if name in scores[0]:
            values = (score[name] for score in scores)
            rows.append((heading, *("–" if v is None else format(v, form) for v in values)))
    return rows, notes


def _make_record(
    fitted: sc.Trained,
    pruned: sc.Trained,
    split: _DividedRows,
    settings: NetworkSettings,
    command: str,
    table: list[tuple[str, ...]],
    seconds: float,
) -> dict[str, Any]:
    x, y = split.judged
    f = fitted.model.f
    assert isinstance(f, ImportedFunction)
    outputs = f.outputs[0]
    is_numbers = isinstance(fitted.model.likelihood, GaussianLikelihood)
    width = 1 if y.ndim == 1 else int(np.prod(y.shape[1:]))
    if is_numbers:
        targets: list[dict[str, Any]] = [
            {"name": outputs.name if width == 1 else f"{outputs.name} {i}", "classes": None}
            for i in range(width)
        ]
    else:
        logits = jax.eval_shape(fitted.model.f, fitted.model.params, _take(x, np.arange(2)))
        count = max(2, logits.shape[-1])
        targets = [{"name": outputs.name, "classes": [str(i) for i in range(count)]}]
    shown = {f"{name}: {stage}": text for name, *texts in table
             for stage, text in zip(STAGES, texts, strict=True) if text}  # fmt: skip
    kind = "targets" if split.has_targets else "the network's own outputs, as there were no targets"
    is_table = isinstance(x, np.ndarray) and x.ndim == 2 and x.shape[1] <= 100
    inputs = [{"name": f"{i}", "column": f"{i}", "kind": "number"}
              for i in range(x.shape[1] if is_table else 0)]  # fmt: skip
    return report.make_record(
        fitted=fitted,
        pruned=pruned,
        inputs=inputs,
        targets=targets,
        task="regression" if is_numbers else "classification",
        settings=settings.describe() | {"fitted to": kind} | shown,
        command=command,
        data={"name": split.name, "rows": len(split.training[1]) + len(y),
              "train_rows": len(split.training[1]), "held_out_rows": len(y)},
        held_out=(x, y),
        seconds=seconds,
        seed=settings.seed,
    )  # fmt: skip


def _export(
    pruned: sc.Trained, folder: RunFolder, x: Any, table: list[tuple[str, ...]]
) -> list[str]:
    """Write ONNX and C beside the results, and their size into the table; return notes."""
    notes = []
    for name in ("model.onnx", "model.c"):
        try:
            sheet = export(pruned, folder.path / name, inputs=x[:64], measured=False)
        except (ExportError, UnsupportedOperation, TypeError, ValueError) as error:
            notes.append(f"{name} was not written: {error}")
            continue
        if name == "model.onnx" and sheet.size.file_bytes is not None:
            place = next(i for i, row in enumerate(table) if row[0].startswith("bytes"))
            table[place] = (*table[place][:3], f"{sheet.size.file_bytes:,}")
    return notes
