"""Data sets as arrays with column names, and the standard splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Dataset", "DatasetError", "ImageDataset", "SpokenDigits", "standard_splits"]


class DatasetError(ValueError):
    """Data are missing, cannot be downloaded, or are not the expected ones."""


def standard_splits(
    rows: int, *, splits: int = 20, train: float = 0.9
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the train/test splits on which published results for the UCI sets are compared.

    One generator with seed 1 draws a permutation for each split in turn; its first
    `round(train · rows)` rows are for training.

    Args:
        rows: Number of rows of the data set.
        splits: Number of splits. The first splits do not depend on it.
        train: Fraction of the rows in the training set.

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
    # The legacy generator, because the splits are defined by its stream.
    generator = np.random.RandomState(1)
    size = round(train * rows)
    orders = [generator.choice(rows, rows, replace=False) for _ in range(splits)]
    return [(order[:size], order[size:]) for order in orders]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A regression data set.

    Attributes:
        name: Name for `load`.
        x: Inputs, float64, (rows, inputs); for a signal (rows, time, 1).
        y: Targets, float64, (rows, targets), in their own units.
        input_names: Names of the columns of `x`, with units.
        target_names: Names of the columns of `y`, with units.
        description: Description in one sentence.
        source: Origin of the data.
        licence: Licence of the data.
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
        """Return the 20 standard train/test splits; see `standard_splits`."""
        return standard_splits(len(self.x))


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images with labels, with the official split into training and test sets.

    Attributes:
        name: Name for `load_images`.
        x_train: Grey values 0…255, uint8, (60000, 28, 28).
        y_train: Classes 0…9, uint8, (60000,).
        x_test: Like `x_train`, 10000 images.
        y_test: Like `y_train`.
        class_names: Names of the classes.
        description: Description in one sentence.
        source: Origin of the data.
        licence: Licence of the data.
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
        audio: An int16 array for each recording; lengths differ.
        digit: Digits 0…9, int8.
        speaker: Indices into `speaker_names`, int8.
        take: Numbers 0…49 of the takes, int8. The official test set is takes 0 to 4.
        speaker_names: Names of the speakers.
        sample_rate: Sample rate in hertz.
        description: Description in one sentence.
        source: Origin of the data.
        licence: Licence of the data.
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
        """Return which recordings are in the official test set, bool."""
        return self.take < 5
