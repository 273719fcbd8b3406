"""Every weight before and after, the layers they are in, and what still leads to an output."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from secateur.beliefs.trees import aligned, flatten, is_belief
from secateur.distributions import Normal
from secateur.fitting.result import Fitted
from secateur.reduction import prune_scores
from secateur.report.plain import numbers

__all__ = ["ALL_WEIGHTS", "Dense", "Leaf", "dense", "describe_leaves", "leaves_of"]

# Networks of up to so many weights are recorded in full. Of larger ones only the survivors are, at
# most as many, and of the weights before pruning as many as a picture can show.
ALL_WEIGHTS = 20_000
SHOWN_BEFORE = 2_000
_DIGITS = 5


class Leaf(NamedTuple):
    """One array of weights."""

    path: str
    mean: np.ndarray
    variance: np.ndarray
    delta_f: np.ndarray  # inf where a weight is gone

    @property
    def live(self) -> np.ndarray:
        """Which weights are left."""
        return self.variance > 0


def leaves_of(fitted: Fitted) -> list[Leaf]:
    """Return the uncertain arrays of a model, with what removing each weight would change."""
    every, all_paths, treedef = flatten(fitted.beliefs)
    every_prior = aligned(fitted.priors, treedef, "priors")
    found = [
        entry for entry in zip(all_paths, every, every_prior, strict=True) if is_belief(entry[1])
    ]
    paths, beliefs, priors = map(list, zip(*found, strict=True))
    # As one program: step by step, every operation would be compiled for every shape.
    scores = jax.jit(prune_scores)(beliefs, priors)
    leaves = [
        Leaf(path, *np.broadcast_arrays(*map(np.asarray, (q.mean, q.variance, s))))
        for q, path, s in zip(beliefs, paths, scores, strict=True)
    ]
    # Within a layer, matrices before biases: as one reads it.
    layers = [leaf.path.rpartition("[")[0] for leaf in leaves]
    order = sorted(
        range(len(leaves)), key=lambda k: (layers.index(layers[k]), -leaves[k].mean.ndim)
    )
    return [leaves[k] for k in order]


def describe_leaves(before: list[Leaf], after: list[Leaf]) -> list[dict[str, Any]]:
    """Return every array as the record holds it; see `make_record`."""
    total = sum(leaf.mean.size for leaf in before)
    if total <= ALL_WEIGHTS:
        first: list = [None] * len(before)
        last = first
    else:
        first, last = _strongest(before, SHOWN_BEFORE), _strongest(after, ALL_WEIGHTS)
    return [
        {
            "path": old.path,
            "shape": list(old.mean.shape),
            "before": _state(old, which),
            "after": _state(new, left),
        }
        for old, new, which, left in zip(before, after, first, last, strict=True)
    ]


def _state(leaf: Leaf, chosen: np.ndarray | None) -> dict[str, Any]:
    where = slice(None) if chosen is None else chosen
    columns = {
        "mean": leaf.mean,
        "deviation": np.sqrt(leaf.variance),
        "delta_f": leaf.delta_f,
    }
    return {
        "live": int(leaf.live.sum()),
        "index": None if chosen is None else chosen.tolist(),
        **{name: numbers(values.ravel()[where], _DIGITS) for name, values in columns.items()},
    }


def _strongest(leaves: list[Leaf], most: int) -> list[np.ndarray]:
    """By leaf, the indices of the live weights that it would cost most to remove."""
    ends = np.cumsum([leaf.mean.size for leaf in leaves])
    live = np.flatnonzero(np.concatenate([leaf.live.ravel() for leaf in leaves]))
    costs = np.concatenate([leaf.delta_f.ravel() for leaf in leaves])[live]
    kept = np.sort(live[np.argsort(-costs, kind="stable")[:most]])
    parts = np.split(kept, np.searchsorted(kept, ends[:-1]))
    starts = [0, *ends[:-1].tolist()]
    return [part - start for part, start in zip(parts, starts, strict=True)]


class Dense(NamedTuple):
    """A fully connected network as a graph.

    Attributes:
        sizes: nodes of every layer, inputs first.
        leads: by layer, which nodes still lead to an output.
        used: by layer, those that do and are themselves fed: by a weight or a bias.
    """

    sizes: list[int]
    leads: list[np.ndarray]
    used: list[np.ndarray]

    @property
    def hidden_used(self) -> int:
        """Return how many hidden units have any influence."""
        return int(sum(layer.sum() for layer in self.used[1:-1]))


def dense(fitted: Fitted) -> Dense | None:
    """Return the graph of what is left of a network; None if it is not one of dense layers."""
    try:
        layers = fitted.beliefs["layers"]
        pairs = [(layer["weights"], layer["bias"]) for layer in layers]
    except (TypeError, KeyError, IndexError, AttributeError):
        return None
    if not pairs or not all(isinstance(q, Normal) for pair in pairs for q in pair):
        return None
    weights = [np.asarray(w.variance) > 0 for w, _ in pairs]
    biases = [np.asarray(b.variance) > 0 for _, b in pairs]
    if any(w.ndim != 2 or b.shape != w.shape[1:] for w, b in zip(weights, biases, strict=True)):
        return None
    sizes = [weights[0].shape[0], *(w.shape[1] for w in weights)]
    if [w.shape[0] for w in weights] != sizes[:-1]:
        return None
    leads: list[Any] = [np.ones(sizes[-1], bool)]
    for live in reversed(weights):
        leads.insert(0, (live & leads[0][None]).any(axis=1))
    fed = [np.ones(sizes[0], bool)]
    for live, bias in zip(weights, biases, strict=True):
        fed.append((live & fed[-1][:, None]).any(axis=0) | bias)
    used = [a & b for a, b in zip(leads, fed, strict=True)]
    return Dense(sizes, leads, used)
