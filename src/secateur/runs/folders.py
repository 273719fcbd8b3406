"""The folder of a run: what is in it, and that nothing in it is ever half-written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Folder", "FolderError"]

FILES = ("model.safetensors", "unpruned.safetensors", "report.html", "run.json")
_CHECKPOINT = "checkpoint"
_UNFINISHED = ".unfinished"


class FolderError(ValueError):
    """A folder cannot be used for a run, or holds none."""


class Folder:
    """Where a run keeps its checkpoint while it goes on, and its results at the end.

    Args:
        path: of the folder; it need not be there yet.
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
        """Return the report."""
        return self.path / "report.html"

    def checkpoint(self, stage: str) -> Path:
        """Return the checkpoint of "fit" or "prune"."""
        return self.path / _CHECKPOINT / f"{stage}.safetensors"

    @property
    def interrupted(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.path / _CHECKPOINT).is_dir()

    def claim(self, *, resume: bool, force: bool) -> None:
        """Make sure that a run may use the folder; nothing is written yet.

        Args:
            resume: go on from the checkpoint, if there is one.
            force: replace a run that is there, once the new one has finished.

        Raises:
            FolderError: with what is there, and the way out.
        """
        if resume and force:
            raise FolderError("--resume goes on, --force starts anew. Give one of them.")
        nearest = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not nearest.is_dir():
            raise FolderError(f"{nearest} is a file. Give another folder with --out.")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise FolderError(
                f"nothing can be written to {nearest}. Give another folder with --out."
            )
        if nearest != self.path:
            return
        there = {entry.name for entry in self.path.iterdir()}
        ours = {*FILES, _CHECKPOINT, _UNFINISHED}
        if there - ours and not there & ours:
            raise FolderError(
                f"{self.path} holds other things ({', '.join(sorted(there)[:3])}, …). Give a new "
                "folder with --out."
            )
        if self.interrupted and not (resume or force):
            raise FolderError(
                f"{self.path} holds a run that was interrupted. Go on with --resume, start anew "
                "with --force, or give another folder with --out."
            )
        if there & set(FILES) and not (force or self.interrupted):
            end = "is finished" if resume else "is there already"
            raise FolderError(
                f"the run in {self.path} {end}. Replace it with --force, or give another folder "
                "with --out."
            )
        if force:
            self.forget_checkpoint()

    def forget_checkpoint(self) -> None:
        """Remove the checkpoint, and the folder if nothing else is in it."""
        for name in (_CHECKPOINT, _UNFINISHED):
            shutil.rmtree(self.path / name, ignore_errors=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    @contextmanager
    def results(self) -> Iterator[Folder]:
        """Give a folder to write results to; they take their places when all of them are there."""
        unfinished = self.path / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            yield Folder(unfinished)
            for name in FILES:
                os.replace(unfinished / name, self.path / name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self.forget_checkpoint()

    def write_record(self, record: dict[str, Any]) -> None:
        """Write what the report is made from."""
        text = json.dumps(record, allow_nan=False)
        (self.path / "run.json").write_text(text, encoding="utf-8")

    def finished_model(self) -> Path:
        """Return the file of the pruned model.

        Raises:
            FolderError: there is none.
        """
        if self.model.is_file():
            return self.model
        if not self.path.exists():
            raise FolderError(f"there is no folder {self.path}.")
        unfinished = " Its run was interrupted: go on with secateur fit … --resume."
        raise FolderError(
            f"{self.path} holds no model of `secateur fit`.{unfinished if self.interrupted else ''}"
        )
