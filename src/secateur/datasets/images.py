"""MNIST and Fashion-MNIST, from their idx files."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from secateur.datasets.dataset import DatasetError, ImageDataset
from secateur.datasets.downloads import Downloader
from secateur.datasets.resources import DataDir, Resource, obtain_values
from secateur.datasets.table_formats import hash_values

__all__ = ["IMAGE_SETS", "ImageFiles", "load_images", "read_idx"]

GZIP = b"\x1f\x8b"
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
IDX_TYPES: dict[int, np.dtype] = {
    0x08: np.dtype("u1"),
    0x09: np.dtype("i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """The four idx files of an image data set.

    Attributes:
        name: Name for `load_images`.
        bases: Base URLs of the files, in the order to try.
        sha256: Hashes of the values of each file, from `hash_values`, in the order of `FILES`.
        class_names: Names of the classes.
        description: Description in one sentence.
        source: Publisher.
        licence: Licence of the data.
    """

    name: str
    bases: tuple[str, ...]
    sha256: tuple[str, ...]
    class_names: tuple[str, ...]
    description: str
    source: str
    licence: str

    def make_resources(self) -> list[Resource[np.ndarray]]:
        """Return the resources of images and labels, first for training, then for testing."""
        return [
            Resource(
                name=f"{self.name} {file}",
                stored=f"{self.name}/{file}.gz",
                # Also uncompressed, and in torchvision's layout.
                patterns=(f"{self.name}/{file}", f"{self.name}/raw/{file}*"),
                urls=tuple(f"{base}{file}.gz" for base in self.bases),
                wheel=None,
                parse=partial(_parse_idx, expected),
                encode=lambda _, contents: contents[0],
            )
            for file, expected in zip(FILES, self.sha256, strict=True)
        ]


def load_images(name: str, data_dir: DataDir = None) -> ImageDataset:
    """Load MNIST or Fashion-MNIST; the search, download and checks are those of `load`.

    Args:
        name: "mnist" or "fashion_mnist".
        data_dir: Folder to search first, for `mnist/train-images-idx3-ubyte.gz` and so on.

    Returns:
        60000 images for training and 10000 for testing, with their labels.

    Raises:
        DatasetError: The data cannot be obtained, or are not the expected ones.
    """
    if name not in IMAGE_SETS:
        raise DatasetError(f"no image data set {name!r}; there are {', '.join(IMAGE_SETS)}")
    files = IMAGE_SETS[name]
    downloader = Downloader()
    x_train, y_train, x_test, y_test = (
        obtain_values(resource, data_dir, downloader)[0] for resource in files.make_resources()
    )
    return ImageDataset(
        name=name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        class_names=files.class_names,
        description=files.description,
        source=files.source,
        licence=files.licence,
    )


def read_idx(content: bytes) -> np.ndarray:
    """Return the array in an idx file, gzipped or not.

    The header contains type and shape: two zero bytes, a byte for the type, a byte for the number
    of dimensions, then each dimension as a big-endian 32-bit integer.
    """
    if content.startswith(GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DatasetError(f"it is a gzip file that is damaged or cut off: {error}") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        raise DatasetError("it is not an idx file")
    dtype, dimensions = IDX_TYPES[content[2]], content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DatasetError("the header of this idx file is cut off")
    shape = tuple(np.frombuffer(content, ">u4", dimensions, 4).tolist())
    expected = int(np.prod(shape)) * dtype.itemsize
    if len(content) - start != expected:
        raise DatasetError(f"{len(content) - start} bytes of values, not {expected}: cut off?")
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def _parse_idx(expected: str, contents: Sequence[bytes]) -> np.ndarray:
    values = read_idx(contents[0])
    sha256 = hash_values(values)
    if sha256 != expected:
        raise DatasetError(f"other values: their SHA-256 is {sha256[:12]}…, not {expected[:12]}…")
    return values


IMAGE_SETS: dict[str, ImageFiles] = {
    "mnist": ImageFiles(
        name="mnist",
        bases=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        sha256=(
            "157fe16da1dbced4a1376f4be5df2d665d51d11177dcaf7aa4848b1ff033343f",
            "e6a049a9876d2010dddfc2322bb8cad03f5934de9a0b5012c7251eca5b5a7201",
            "fbf9701b11f5659e6366884b0bbf01ea129fb049e3239251eddb226ada72239e",
            "6a90c4ebf8538b9b76438e5dddb0f5afc42d636e8e259d894485f9314cdad47d",
        ),
        class_names=tuple("0123456789"),
        description="Handwritten digits.",
        source="LeCun, Cortes and Burges 1998",
        licence="CC BY-SA 3.0",
    ),
    "fashion_mnist": ImageFiles(
        name="fashion_mnist",
        bases=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        sha256=(
            "cbe6416bec66fcd6e18cd79f48adfb704f76af0a870bfe2c25ac8a96a8ff046e",
            "a0853126d597b674e01d0418b8d599287242510379fbe4b99c6826e12e3d2278",
            "a9703089c071d4fdd831c845477e814d4a8f137df1f1b963746f40afb12d5bb8",
            "416413b9db64db5c5f0cf8d447e0c628562b09dc65b57940a084a17aa3b07443",
        ),
        class_names=(
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        description="Pictures of clothes.",
        source="Xiao, Rasul and Vollgraf 2017 (Zalando)",
        licence="MIT",
    ),
}
