"""The folder of a run: its files, which are always complete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from secateur.remedies import Remedy, UsageError
from secateur.storage import write_file

__all__ = ["FILES", "FolderError", "RunFolder"]

FILES = ("model.safetensors", "unpruned.safetensors", "report.html", "run.json")
_CHECKPOINT = "checkpoint"
_RESTARTS = "restarts"
_UNFINISHED = ".unfinished"
_RESUME = Remedy("resume", True, "continues it", is_advised=True)
_FORCE = Remedy("force", True, "replaces it")


class FolderError(UsageError):
    """A folder cannot be used for a run, or does not hold one."""


class RunFolder:
    """Folder for the checkpoint of a run, and for its results at the end.

    Args:
        path: Path of the folder, which need not exist yet.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)

    @property
    def model(self) -> Path:
        """Return the file of the pruned model."""
        return self.path / "model.safetensors"

    @property
    def unpruned(self) -> Path:
        """Return the file of the model before pruning."""
        return self.path / "unpruned.safetensors"

    @property
    def report(self) -> Path:
        """Return the file of the report."""
        return self.path / "report.html"

    @property
    def restarts(self) -> Path:
        """Return the folder of the other pruned restarts, which `--average` keeps."""
        return self.path / _RESTARTS

    @property
    def record(self) -> Path:
        """Return the file that the report is made from."""
        return self.path / "run.json"

    def checkpoint(self, stage: str) -> Path:
        """Return the checkpoint of "fit" or "prune"."""
        return self.path / _CHECKPOINT / f"{stage}.safetensors"

    @property
    def is_interrupted(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return (self.path / _CHECKPOINT).is_dir()

    def claim(self, *, resume: bool, force: bool) -> None:
        """Check that a run may use the folder; nothing is written yet.

        Args:
            resume: Whether to continue from the checkpoint, if there is one.
            force: Whether to replace an existing run, once the new one has finished.

        Raises:
            FolderError: The message describes the content, and suggests what to do.
        """
        if resume and force:
            raise FolderError("a run cannot be both continued and replaced. Choose one.")
        nearest = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not nearest.is_dir():
            raise FolderError(f"{nearest} is a file. Give another folder for the results.")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise FolderError(
                f"{nearest} cannot be written to. Give another folder for the results."
            )
        if nearest != self.path:
            return
        names = {entry.name for entry in self.path.iterdir()}
        own_names = {*FILES, _CHECKPOINT, _RESTARTS, _UNFINISHED}
        if names - own_names and not names & own_names:
            raise FolderError(
                f"{self.path} contains other files ({', '.join(sorted(names)[:3])}, …). Give a new "
                "folder for the results."
            )
        if self.is_interrupted and not (resume or force):
            raise FolderError(
                f"{self.path} contains an interrupted run. Give another folder, or an option.",
                _RESUME,
                _FORCE,
            )
        if names & set(FILES) and not (force or self.is_interrupted):
            state = "has finished" if resume else "exists already"
            raise FolderError(f"the run in {self.path} {state}. Give another folder.", _FORCE)
        if force:
            self.remove_checkpoint()

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint, and the folder if nothing else is in it."""
        for name in (_CHECKPOINT, _UNFINISHED):
            shutil.rmtree(self.path / name, ignore_errors=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    @contextmanager
    def write_results(self) -> Iterator[RunFolder]:
        """Yield a folder for results, which are moved into place once all are complete."""
        unfinished = self.path / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            yield RunFolder(unfinished)
            shutil.rmtree(self.restarts, ignore_errors=True)
            if (unfinished / _RESTARTS).is_dir():
                os.replace(unfinished / _RESTARTS, self.restarts)
            for name in FILES:
                os.replace(unfinished / name, self.path / name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self.remove_checkpoint()

    def write_record(self, record: dict[str, Any]) -> None:
        """Write the record from which the report is made."""
        write_file(self.record, json.dumps(record, allow_nan=False))

    def find_model(self) -> Path:
        """Return the file of the pruned model.

        Raises:
            FolderError: There is none.
        """
        if self.model.is_file():
            return self.model
        if not self.path.exists():
            raise FolderError(f"there is no folder {self.path}.")
        if self.is_interrupted:
            raise FolderError(
                f"{self.path} holds no model yet: its run was interrupted. Finish the fit first, "
                "which can be resumed."
            )
        raise FolderError(f"{self.path} holds no model of a run.")
