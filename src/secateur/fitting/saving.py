"""The state of a training as a checkpoint."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur import checkpoints
from secateur.fitting.devices import is_here
from secateur.fitting.program import Record, State
from secateur.fitting.timetable import Timetable
from secateur.model import BayesianModel

CHECKPOINT_SECONDS = 1.0


class Saver:
    """Writes checkpoints now and then, and reads the newest one that fits.

    Args:
        path: the file.
        fingerprint: of everything that decides how training goes; a checkpoint with another one
            belongs to another training.
        foreign: whether to "refuse" a checkpoint of another training, or "ignore" it.
    """

    def __init__(self, path: Any, fingerprint: str, *, foreign: str = "refuse") -> None:
        self.path, self._fingerprint, self._foreign = path, fingerprint, foreign
        self._next = 0.0

    def consider(
        self,
        gathered: Callable[[Any], Any],
        state: State,
        timetable: Timetable,
        records: Callable[[], Record],
    ) -> None:
        """Write if the last time is long enough ago, measured by what writing costs."""
        begun = time.monotonic()
        if begun < self._next and jax.process_count() == 1:
            return  # (several processes gather the state together, so no clock may decide)
        self.write(gathered, state, timetable, records())
        ended = time.monotonic()
        self._next = ended + max(CHECKPOINT_SECONDS, 20 * (ended - begun))

    def write(
        self, gathered: Callable[[Any], Any], state: State, timetable: Timetable, records: Record
    ) -> None:
        """Write a checkpoint; if that fails, say so and go on."""
        tensors = to_leaves("state", gathered(_raw_keys(state)))
        tensors |= {f"record.{name}": value for name, value in records._asdict().items()}
        facts = {"fingerprint": self._fingerprint, "timetable": asdict(timetable)}
        if jax.process_index() != 0:
            return
        checkpoints.save_or_warn(self.path, tensors, facts)

    def read(self, like: State) -> tuple[State, Timetable, Record] | None:
        """Return what the newest checkpoint holds, or None if there is none."""
        found = checkpoints.newest(self.path)
        if found is None:
            return None
        tensors, facts = found
        if facts["fingerprint"] != self._fingerprint:
            if self._foreign == "ignore":
                return None
            raise checkpoints.CheckpointError(
                f"{self.path} is the checkpoint of another training: its data, model, key or "
                "options are not these. Give another path, or delete it to start anew."
            )
        state = from_leaves("state", tensors, like)
        names = Record._fields
        records = Record(*(tensors[f"record.{name}"] for name in names))
        return state, Timetable(**facts["timetable"]), records


def _raw_keys(state: State) -> State:
    if not jnp.issubdtype(state.key.dtype, jax.dtypes.prng_key):
        return state
    return state._replace(key=jax.random.key_data(state.key))


def to_leaves(name: str, state: State) -> dict[str, np.ndarray]:
    """Return a state's arrays by name and number."""
    leaves = jax.tree.leaves(_raw_keys(state))
    return {f"{name}.{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


def from_leaves(name: str, tensors: dict[str, np.ndarray], like: State) -> State:
    """Return the state that `to_leaves` took apart."""
    structure: Any = jax.tree.structure(_raw_keys(like))
    raw = structure.unflatten([tensors[f"{name}.{i}"] for i in range(structure.num_leaves)])
    key = jax.random.wrap_key_data(jnp.asarray(raw.key), impl=jax.random.key_impl(like.key))
    return jax.tree.map(jnp.asarray, raw._replace(key=key))


def fingerprint(model: BayesianModel, trainer: Any, state: State, *more: Any) -> str:
    """Hash what decides the course of a training, as far as it can be seen."""
    digest = hashlib.sha256()
    source = trainer.source
    # The structure tells optimisers apart whose memories differ.
    digest.update(repr(jax.tree.structure(state)).encode())
    arrays = [_raw_keys(state), list(getattr(source, "sets", [source.sample()])), model.likelihood]
    for leaf in jax.tree.leaves(arrays):
        digest.update(repr((np.shape(leaf), str(jnp.result_type(leaf)))).encode())
        if is_here(leaf):
            digest.update(np.asarray(leaf).tobytes())
    settings = trainer.settings
    facts = (trainer.recipe, settings.inference, settings.empirical_bayes, source.size, *more)
    digest.update(repr(facts).encode())
    return digest.hexdigest()
