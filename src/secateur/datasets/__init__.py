"""The paper's data sets, cached and checked; this package does not need JAX."""

from secateur.datasets.collection import Status, fetch, load, names, status
from secateur.datasets.dataset import (
    Dataset,
    DatasetError,
    ImageDataset,
    SpokenDigits,
    standard_splits,
)
from secateur.datasets.images import load_images
from secateur.datasets.speech import load_spoken_digits

__all__ = [
    "Dataset",
    "DatasetError",
    "ImageDataset",
    "SpokenDigits",
    "Status",
    "fetch",
    "load",
    "load_images",
    "load_spoken_digits",
    "names",
    "standard_splits",
    "status",
]
