"""A run: split, train, prune. Everything is decided by the table, the settings and the seed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

import secateur as sc
from secateur.runs.folders import Folder
from secateur.runs.settings import Settings
from secateur.runs.watching import Watch
from secateur.tables import Prepared

__all__ = ["Outcome", "Split", "split", "train_and_prune"]

# Shares of a limited time: when training cools and must end; when rounds get short and must end.
_FIT_TIME = (0.35, 0.55)
_PRUNE_TIME = (0.75, 0.9)


class Split(NamedTuple):
    """Rows to learn from and rows to judge by, as pairs of inputs and targets."""

    training: tuple[np.ndarray, np.ndarray]
    held_out: tuple[np.ndarray, np.ndarray] | None


class Outcome(NamedTuple):
    """What a run found."""

    fitted: sc.Fitted
    pruned: sc.Pruned


def split(prepared: Prepared, settings: Settings) -> Split:
    """Hold rows out at random; of classes, the same share of each as nearly as can be.

    Example:
        >>> from secateur.tables import Encoding
        >>> y = np.repeat([0, 1], [90, 10])
        >>> table = Prepared(y[:, None] * 1.0, y, Encoding((), (), "classification"), y, [])
        >>> training, held_out = split(table, Settings(held_out=0.2))
        >>> np.bincount(training[1]).tolist(), np.bincount(held_out[1]).tolist()
        ([72, 8], [18, 2])
    """
    rows = len(prepared.y)
    count = round(settings.held_out * rows)
    if not count:
        return Split((prepared.x, prepared.y), None)
    order = np.random.default_rng(settings.seed).permutation(rows)
    if prepared.encoding.task == "classification":
        order = order[np.argsort(prepared.y[order], kind="stable")]
        chosen = order[((np.arange(count) + 0.5) * rows / count).astype(int)]
    else:
        chosen = order[:count]
    out = np.zeros(rows, bool)
    out[chosen] = True
    return Split((prepared.x[~out], prepared.y[~out]), (prepared.x[out], prepared.y[out]))


def train_and_prune(
    prepared: Prepared,
    data: tuple[np.ndarray, np.ndarray],
    settings: Settings,
    folder: Folder,
    watch: Watch,
    *,
    progress: bool,
) -> Outcome:
    """Train a dense network and prune it, with checkpoints in the folder.

    Raises:
        Interrupted: Ctrl-C; the checkpoint holds what was reached.
        FitError, ValueError, CheckpointError: as `fit` and `prune` do.
    """
    encoding = prepared.encoding
    network = sc.networks.Dense(
        inputs=prepared.x.shape[1], hidden=settings.hidden, outputs=encoding.outputs
    )
    of_classes = encoding.task == "classification"
    start, training, pruning = jax.random.split(jax.random.key(settings.seed), 3)
    model = sc.BayesianModel(
        network,
        network.init(start),
        likelihood=sc.CategoricalLikelihood() if of_classes else sc.GaussianLikelihood(),
        inference=settings.inference,
    )
    fitted = sc.fit(
        model,
        data,
        key=training,
        epochs=settings.epochs,
        batch_size=settings.batch_for(len(data[1])),
        restarts=settings.restarts,
        checkpoint=folder.checkpoint("fit"),
        progress=progress,
        callback=watch.until(*_FIT_TIME),
    )
    watch.check()
    pruned = sc.prune(
        fitted,
        data,
        key=pruning,
        what=settings.what,
        grow=settings.grow,
        epochs=settings.epochs,
        checkpoint=folder.checkpoint("prune"),
        progress=progress,
        callback=watch.until(*_PRUNE_TIME),
    )
    return Outcome(fitted, pruned)
