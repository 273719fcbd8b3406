"""The paper's data, cached and checked; nothing here needs JAX."""

from secateur.datasets.dataset import Dataset, DatasetError, standard_splits
from secateur.datasets.loading import load

__all__ = ["Dataset", "DatasetError", "load", "standard_splits"]
