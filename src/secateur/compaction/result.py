"""What `compact` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from secateur.compaction.removing import Removed
from secateur.fitting.result import Continuation, History, Trained
from secateur.pruning.rounds import Round

__all__ = ["Compacted", "Parameters"]


class Parameters(NamedTuple):
    """Elements of all arrays of the params.

    Attributes:
        before: of the original model.
        after: of the compacted one.
    """

    before: int
    after: int


@dataclass(frozen=True, eq=False)
class Compacted(Trained):
    """A model without dead units, that predicts what the original did.

    Beside what every trained model has (`model`, `beliefs`, `priors`, `noise`, `scaling`,
    `free_energy`, `parts`, `recipe`, `predict`, `log_density`, …):

    Attributes:
        kept_inputs: indices of the input features that are left (last axis of the inputs); where
            the inputs are a pytree, one such array for each of its arrays.
        removed: which units went and why; see `Compacted.table`.
        parameters: number of elements of all arrays, before and after.
        rounds: of pruning, as in the original; none if it was not pruned.
        weights_before: how many weights there were before pruning.
        free_energy_before: nats.
        continuation: what training goes on from; internal.
    """

    kept_inputs: Any
    removed: tuple[Removed, ...]
    parameters: Parameters
    rounds: tuple[Round, ...]
    weights_before: int
    free_energy_before: float
    continuation: Continuation = field(repr=False)

    @property
    def pruned_fraction(self) -> float:
        """Return the share of the weights that are gone."""
        return 1 - self.live_weights / max(1, self.weights_before)

    @property
    def history(self) -> History:
        """Return an empty history: it was the larger model's."""
        return History(np.zeros(0), np.zeros(0))

    def table(self) -> str:
        """Return which units went and why, a line for each kind of unit."""
        return "\n".join(map(str, self.removed))

    def module(self, original: Any) -> Any:
        """Return a smaller module of the same kind, with the mean weights.

        Args:
            original: the Flax NNX, Equinox or Keras model whose weights the params are: the
                module's state (`nnx.split`) or its `nnx.Param` part; the Equinox module itself or
                its arrays (`equinox.partition`); the list of a Keras model's trainable variables.
                It is not changed.

        Returns:
            A new module. Dense, convolutional, GRU and LSTM layers have the smaller sizes in their
            own attributes as well.

        Raises:
            TypeError: the module is of another library, or a layer whose size changed is none of
                those that are known.
        """
        from secateur.compaction.modules import smaller

        return smaller(original, self.model.params, self.kept_inputs)

    def __repr__(self) -> str:
        gone = sum(len(r.unread) + len(r.constant) for r in self.removed)
        return (
            f"<Compacted: {self.parameters.before} → {self.parameters.after} parameters, "
            f"{self.live_weights} of them live; {gone} units removed; free energy "
            f"{self.free_energy:.1f} nats>"
        )
