"""Checkpoints: a pytree of arrays, some facts and a fingerprint of the work they belong to.

Whenever the process dies, a complete checkpoint is on disk, because the previous file is kept
beside the newest one as `NAME.previous`.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from secateur.storage import OtherVersion, UnreadableFile, read_container, write_container
from secateur.training.devices import is_addressable

__all__ = ["Checkpoint", "CheckpointError", "CheckpointWarning", "fingerprint"]

_KIND, _VERSION = "secateur-checkpoint", 2
_SECONDS_BETWEEN = 1.0


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, or belongs to other work."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or a damaged one was replaced by the previous one."""


class SavedState(NamedTuple):
    """The content of a checkpoint: a pytree of arrays, and facts."""

    tree: Any
    facts: dict[str, Any]


class Checkpoint:
    """A file to which work in progress is saved, and from which it is resumed.

    Args:
        path: The file.
        fingerprint: Hash of everything that determines the course of the work. A file with a
            different fingerprint belongs to different work.
        work: Name of the work in messages.
        ignore_foreign: Whether a file of different work is ignored instead of an error.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoint = Checkpoint(f"{folder}/a", "settings 1")
        ...     checkpoint.write({"x": np.arange(3)}, {"epoch": 7})
        ...     tree, facts = checkpoint.read({"x": 0})
        >>> tree["x"].tolist(), facts
        ([0, 1, 2], {'epoch': 7})
    """

    def __init__(
        self,
        path: str | os.PathLike,
        fingerprint: str,
        *,
        work: str = "training",
        ignore_foreign: bool = False,
    ) -> None:
        self.path = Path(path)
        self._fingerprint, self._work, self._ignore_foreign = fingerprint, work, ignore_foreign
        self._next_time = 0.0

    def write(self, tree: Any, facts: dict[str, Any]) -> None:
        """Save a pytree whose arrays this process can see; a failure to write is only a warning."""
        if jax.process_index() != 0:
            return
        leaves = jax.tree.leaves(key_data(tree))
        tensors = {f"leaf.{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        facts = {"fingerprint": self._fingerprint, "facts": facts}
        try:
            write_container(
                self.path, tensors, facts, kind=_KIND, version=_VERSION, previous=self._previous
            )
        except OSError as error:
            warnings.warn(
                f"could not write the checkpoint {self.path} ({error}). The {self._work} continues "
                "without it.",
                CheckpointWarning,
                stacklevel=2,
            )

    def write_if_due(self, make_state: Callable[[], SavedState]) -> None:
        """Save if the last save is long enough ago, in proportion to its duration."""
        start = time.monotonic()
        if start < self._next_time and jax.process_count() == 1:
            return  # (several processes gather the state together, so no clock may decide)
        self.write(*make_state())
        end = time.monotonic()
        self._next_time = end + max(_SECONDS_BETWEEN, 20 * (end - start))

    def read(self, like: Any) -> SavedState | None:
        """Return the content of the newest intact file, or None if there is none.

        Args:
            like: A pytree of the same structure, which determines the kind of random keys.

        Raises:
            CheckpointError: All files are damaged, or the file belongs to different work.
        """
        content = self._read_newest()
        if content is None:
            return None
        tensors, facts = content
        if facts["fingerprint"] != self._fingerprint:
            if self._ignore_foreign:
                return None
            raise CheckpointError(
                f"{self.path} is the checkpoint of another {self._work}: its data, model, key or "
                "options are different. Give another path, or delete it to start again."
            )
        structure: Any = jax.tree.structure(like)
        arrays = [tensors[f"leaf.{i}"] for i in range(structure.num_leaves)]
        pairs = zip(arrays, jax.tree.leaves(like), strict=True)
        return SavedState(
            structure.unflatten([_wrap_key(array, leaf) for array, leaf in pairs]), facts["facts"]
        )

    @property
    def _previous(self) -> Path:
        return self.path.with_name(f"{self.path.name}.previous")

    def _read_newest(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Read the file, or the previous one if it is damaged.

        A damaged file is renamed to `NAME.damaged`, so that it never replaces an intact one.
        """
        errors: list[CheckpointError] = []
        for path in (self.path, self._previous):
            try:
                content = read_container(path, kind=_KIND, version=_VERSION)
            except FileNotFoundError:
                continue
            except OtherVersion as error:
                raise CheckpointError(
                    f"{error}. Delete it to start again, or resume with the version that wrote it."
                ) from error
            except UnreadableFile as error:
                advice = "Delete it to start again, or restore an intact copy."
                errors.append(CheckpointError(f"{error}. {advice}"))
                continue
            if errors:
                damaged = self.path.with_name(f"{self.path.name}.damaged")
                os.replace(self.path, damaged)
                warnings.warn(
                    f"{errors[0]} Resuming from {path.name}, the previous checkpoint; the damaged "
                    f"file is now {damaged.name}.",
                    CheckpointWarning,
                    stacklevel=4,
                )
            return content
        if errors:
            raise errors[0]
        return None


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def key_data(tree: Any) -> Any:
    """Replace random keys by the numbers they consist of."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)


def _wrap_key(array: np.ndarray, like: Any) -> Any:
    if not _is_key(like):
        return array
    return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))


def fingerprint(tree: Any, *facts: Any) -> str:
    """Hash the structure and the values of a pytree, and facts by their representation."""
    digest = hashlib.sha256(repr(jax.tree.structure(tree)).encode())
    for leaf in jax.tree.leaves(key_data(tree)):
        digest.update(repr((np.shape(leaf), str(jnp.result_type(leaf)))).encode())
        if is_addressable(leaf):
            digest.update(np.asarray(leaf).tobytes())
    digest.update(repr(facts).encode())
    return digest.hexdigest()
