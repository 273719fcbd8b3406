"""The state of a pruning as a checkpoint: what has been decided, and the training under way."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import numpy as np

from secateur import checkpoints
from secateur.fitting.result import History
from secateur.fitting.saving import Saver, from_leaves, to_leaves
from secateur.pruning.rounds import Round

_COUNTERS = ("number", "phases", "attempts", "starts")
_ARRAYS = ("share", "active", "going")
_STATES = ("current", "best", "snapshot")


class Notebook:
    """Writes down where a `Process` is after every round, and reads it back.

    Args:
        path: the file. The training of a round has its own beside it, `path` + ".round".
        fingerprint: of everything that decides how pruning goes.
    """

    def __init__(self, path: Any, fingerprint: str) -> None:
        self.path, self._fingerprint = Path(path), fingerprint

    def saver(self, number: int) -> Saver:
        """Return what saves the training of a round; one left over from another is ignored."""
        beside = self.path.with_name(self.path.name + ".round")
        return Saver(beside, f"{self._fingerprint}, round {number}", foreign="ignore")

    def write(self, process: Any) -> None:
        """Save; if that fails, say so and go on."""
        if jax.process_index() != 0:
            return
        tensors: dict[str, np.ndarray] = {}
        for name in _STATES:
            tensors |= to_leaves(name, getattr(process, name))
        rounds = []
        for run, told in enumerate(process.rounds):
            for number, r in enumerate(told):
                if r.history is not None:
                    tensors[f"history.{run}.{number}"] = np.stack(
                        [r.history.complexity, r.history.accuracy]
                    )
            rounds.append([_plain(r) for r in told])
        facts = {name: getattr(process, name) for name in _COUNTERS}
        facts |= {name: getattr(process, name).tolist() for name in _ARRAYS}
        facts |= {"rounds": rounds, "fingerprint": self._fingerprint}
        checkpoints.save_or_warn(self.path, tensors, facts)

    def read(self, process: Any) -> bool:
        """Bring a process to where it was; False if there is no checkpoint."""
        found = checkpoints.newest(self.path)
        if found is None:
            return False
        tensors, facts = found
        if facts["fingerprint"] != self._fingerprint:
            raise checkpoints.CheckpointError(
                f"{self.path} is the checkpoint of another pruning: its data, model, key or "
                "options are not these. Give another path, or delete it to start anew."
            )
        for name in _STATES:
            setattr(process, name, from_leaves(name, tensors, process.current))
        for name in _COUNTERS:
            setattr(process, name, facts[name])
        for name in _ARRAYS:
            setattr(process, name, np.array(facts[name]))
        for run, told in enumerate(facts["rounds"]):
            process.rounds[run] = [
                Round(**r, history=_history(tensors.get(f"history.{run}.{number}")))
                for number, r in enumerate(told)
            ]
        return True


def _plain(told: Round) -> dict[str, Any]:
    return {f.name: getattr(told, f.name) for f in fields(Round) if f.name != "history"}


def _history(rows: np.ndarray | None) -> History | None:
    return None if rows is None else History(rows[0], rows[1])
