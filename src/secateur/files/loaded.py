"""What `load` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.fitting.optimiser import adam
from secateur.fitting.program import State, free_noise
from secateur.fitting.recipes import Recipe
from secateur.fitting.result import Continuation, History, Past, Trained
from secateur.fitting.weights import Weights, flat_priors, lay_out, of_one_kind
from secateur.pruning.rounds import Round, table

__all__ = ["Loaded"]

# Steps after which the estimate of the noise no longer averages over all of them.
_SETTLED = 10_000


@dataclass(frozen=True, eq=False)
class Loaded(Trained):
    """A model from a file: it predicts what the original did, and can be pruned or updated.

    Beside what every trained model has (`model`, `beliefs`, `priors`, `noise`, `scaling`,
    `free_energy`, `parts`, `recipe`, `predict`, `log_density`, …):

    Attributes:
        rounds: of pruning, without their histories; none if it was not pruned.
        weights_before: how many weights there were before pruning.
        free_energy_before: nats.
        extra: what was given to `save`.
        version: of secateur, that wrote the file.
        continuation: what training goes on from; internal.
    """

    rounds: tuple[Round, ...]
    weights_before: int
    free_energy_before: float
    extra: Any
    version: str
    continuation: Continuation = field(repr=False)

    @property
    def pruned_fraction(self) -> float:
        """Return the share of the weights that are gone."""
        return 1 - self.live_weights / max(1, self.weights_before)

    def table(self) -> str:
        """Return the rounds of pruning as a table."""
        return table(self.rounds)

    @property
    def history(self) -> History:
        """Return an empty history: files do not hold it."""
        return History(np.zeros(0), np.zeros(0))

    def __repr__(self) -> str:
        pruned = f", {self.weights_before} → {self.live_weights} weights" if self.rounds else ""
        return f"<Loaded: free energy {self.free_energy:.1f} nats{pruned}; from {self.version}>"


def continuation_of(
    beliefs: Any, priors: Any, noise: Any, recipe: Recipe, empirical_bayes: bool, past: Past | None
) -> Continuation:
    """Return what training goes on from: the same beliefs, with nothing remembered by Adam."""
    layout, flat, certain = lay_out(beliefs, apart=not of_one_kind(beliefs, priors))
    weights = jax.tree.map(jnp.asarray, Weights.of(flat))
    learnt = None if recipe.conjugate_noise else free_noise(noise)
    state = State(
        weights,
        tuple(jnp.asarray(q.variance > 0) for q in flat),
        adam(layout, recipe.full_rate_width).init((weights, learnt)),
        noise,
        jnp.asarray(_SETTLED, jnp.int32),
        flat_priors(layout, priors),
        jax.random.key(0),
        jnp.zeros((), jnp.int32),
    )
    return Continuation(state, layout, certain, recipe, None, empirical_bayes, None, False, past)
