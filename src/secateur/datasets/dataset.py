"""What loading gives: arrays with the names of their columns, and the standard splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Dataset", "DatasetError", "ImageDataset", "SpokenDigits", "standard_splits"]


class DatasetError(ValueError):
    """Data that are not here, not reachable, or not what they should be."""


def standard_splits(
    rows: int, *, splits: int = 20, train: float = 0.9
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The train/test splits on which published results for the UCI sets are compared.

    One generator with seed 1 draws a permutation for each split in turn; its first
    `round(train · rows)` rows are for training.

    Args:
        rows: of the data set.
        splits: how many; the first ones do not depend on it.
        train: the fraction of the rows to train on.

    Returns:
        Pairs (indices to train on, indices to test on), in the order drawn.

    Example:
        >>> train, test = standard_splits(506)[0]
        >>> len(train), len(test)
        (455, 51)

    Reference:
        Hernández-Lobato and Adams, "Probabilistic Backpropagation for Scalable Learning of
        Bayesian Neural Networks", 2015.
    """
    # The old generator: these splits are defined by its stream.
    generator = np.random.RandomState(1)
    size = round(train * rows)
    orders = [generator.choice(rows, rows, replace=False) for _ in range(splits)]
    return [(order[:size], order[size:]) for order in orders]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A regression data set.

    Attributes:
        name: as `load` takes it.
        x: inputs, float64, (rows, inputs); for a signal (rows, time, 1).
        y: targets, float64, (rows, targets), in their own units.
        input_names: with units, one for each column of `x`.
        target_names: with units, one for each column of `y`.
        description: one sentence.
        source: where the data come from.
        licence: theirs.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    description: str
    source: str
    licence: str

    def splits(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The 20 standard train/test splits; see `standard_splits`."""
        return standard_splits(len(self.x))


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images with labels, split as their authors split them.

    Attributes:
        name: as `load_images` takes it.
        x_train: grey values 0…255, uint8, (60000, 28, 28).
        y_train: classes 0…9, uint8, (60000,).
        x_test: as `x_train`, 10000 of them.
        y_test: as `y_train`.
        class_names: what the classes are.
        description: one sentence.
        source: where the data come from.
        licence: theirs.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    class_names: tuple[str, ...]
    description: str
    source: str
    licence: str


@dataclass(frozen=True, eq=False)
class SpokenDigits:
    """Recordings of spoken digits, at 8 kHz.

    Attributes:
        audio: one int16 array for each recording; lengths differ.
        digit: 0…9, int8.
        speaker: an index into `speaker_names`, int8.
        take: 0…49, int8; the official test set is takes 0 to 4.
        speaker_names: who speaks.
        sample_rate: in hertz.
        description: one sentence.
        source: where the data come from.
        licence: theirs.
    """

    audio: list[np.ndarray]
    digit: np.ndarray
    speaker: np.ndarray
    take: np.ndarray
    speaker_names: tuple[str, ...]
    sample_rate: int
    description: str
    source: str
    licence: str

    @property
    def is_test(self) -> np.ndarray:
        """Which recordings are the official test set, bool."""
        return self.take < 5
