"""The weights before and after pruning, the inputs that they use, and the effect of each input."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from secateur.distributions import Normal
from secateur.pytrees import align_tree, flatten_beliefs, is_belief
from secateur.reduction import prune_scores
from secateur.report.record_file import WEIGHT_DIGITS, round_number, round_numbers, shorten_text
from secateur.trained import Trained

__all__ = [
    "DenseGraph",
    "WeightArray",
    "describe_inputs",
    "describe_weights",
    "find_dense_graph",
    "find_weight_arrays",
]

# Networks of up to this many weights are recorded in full. For larger ones, at most as many of the
# remaining weights are recorded, and as many weights before pruning as a picture can show.
MAX_WEIGHTS = 20_000
MAX_BEFORE = 2_000
# For the effects of inputs: maximum numbers of rows, shuffled columns, and shuffles per column.
MAX_ROWS, MAX_COLUMNS, SHUFFLES = 2_000, 300, 3


# --- weights --------------------------------------------------------------------------------------


class WeightArray(NamedTuple):
    """One array of weights.

    Attributes:
        path: Path in the model's parameters.
        mean: Means.
        variance: Variances, 0 where a weight was pruned.
        delta_f: Change of the free energy if a weight is removed, inf if it was already pruned.
    """

    path: str
    mean: np.ndarray
    variance: np.ndarray
    delta_f: np.ndarray

    @property
    def live(self) -> np.ndarray:
        """Return the mask of the remaining weights."""
        return self.variance > 0


def find_weight_arrays(trained: Trained) -> list[WeightArray]:
    """Return the uncertain arrays of a model, with the change from removing each weight."""
    leaves, paths, treedef = flatten_beliefs(trained.beliefs)
    leaf_priors = align_tree(trained.priors, treedef, "priors")
    uncertain = [k for k, leaf in enumerate(leaves) if is_belief(leaf)]
    beliefs, priors = [leaves[k] for k in uncertain], [leaf_priors[k] for k in uncertain]
    # In one program; otherwise every operation would be compiled for every shape.
    scores = jax.jit(prune_scores)(beliefs, priors)
    arrays = [
        WeightArray(paths[k], *np.broadcast_arrays(*map(np.asarray, (q.mean, q.variance, s))))
        for k, q, s in zip(uncertain, beliefs, scores, strict=True)
    ]
    # Within a layer, matrices come before biases.
    layers = [array.path.rpartition("[")[0] for array in arrays]
    order = sorted(
        range(len(arrays)), key=lambda k: (layers.index(layers[k]), -arrays[k].mean.ndim)
    )
    return [arrays[k] for k in order]


def describe_weights(before: list[WeightArray], after: list[WeightArray]) -> list[dict[str, Any]]:
    """Return every array in the form of the record; see `make_record`."""
    total = sum(array.mean.size for array in before)
    if total <= MAX_WEIGHTS:
        first: list = [None] * len(before)
        last = first
    else:
        first, last = _find_strongest(before, MAX_BEFORE), _find_strongest(after, MAX_WEIGHTS)
    return [
        {
            "path": old.path,
            "shape": list(old.mean.shape),
            "before": _describe_array(old, old_indices),
            "after": _describe_array(new, new_indices),
        }
        for old, new, old_indices, new_indices in zip(before, after, first, last, strict=True)
    ]


def _describe_array(array: WeightArray, indices: np.ndarray | None) -> dict[str, Any]:
    where = slice(None) if indices is None else indices
    columns = {
        "mean": array.mean,
        "deviation": np.sqrt(array.variance),
        "delta_f": array.delta_f,
    }
    return {
        "live": int(array.live.sum()),
        "index": None if indices is None else indices.tolist(),
        **{
            name: round_numbers(values.ravel()[where], WEIGHT_DIGITS)
            for name, values in columns.items()
        },
    }


def _find_strongest(arrays: list[WeightArray], limit: int) -> list[np.ndarray]:
    """Return, by array, the indices of the live weights that are costliest to remove."""
    ends = np.cumsum([array.mean.size for array in arrays])
    live = np.flatnonzero(np.concatenate([array.live.ravel() for array in arrays]))
    costs = np.concatenate([array.delta_f.ravel() for array in arrays])[live]
    strongest = np.sort(live[np.argsort(-costs, kind="stable")[:limit]])
    parts = np.split(strongest, np.searchsorted(strongest, ends[:-1]))
    starts = [0, *ends[:-1].tolist()]
    return [part - start for part, start in zip(parts, starts, strict=True)]


# --- units ----------------------------------------------------------------------------------------


class DenseGraph(NamedTuple):
    """A fully connected network as a graph.

    Attributes:
        sizes: Number of nodes of every layer, inputs first.
        leads: By layer, the nodes that still lead to an output.
        used: By layer, those among them that also receive a weight or a bias.
    """

    sizes: list[int]
    leads: list[np.ndarray]
    used: list[np.ndarray]

    @property
    def inputs_in_use(self) -> np.ndarray:
        """Return the inputs that still have an influence."""
        return self.leads[0]

    @property
    def hidden_used(self) -> int:
        """Return the number of hidden units that have an influence."""
        return int(sum(layer.sum() for layer in self.used[1:-1]))


def find_dense_graph(beliefs: Any) -> DenseGraph | None:
    """Return the graph of the remaining network, or None if it has layers other than dense.

    Args:
        beliefs: Beliefs about the parameters of a `secateur.networks.Dense`.
    """
    try:
        pairs = [(layer["weights"], layer["bias"]) for layer in beliefs["layers"]]
    except (TypeError, KeyError, IndexError, AttributeError):
        return None
    if not pairs or not all(isinstance(q, Normal) for pair in pairs for q in pair):
        return None
    weights = [np.asarray(w.variance) > 0 for w, _ in pairs]
    linear = beliefs.get("linear")
    biases = [np.asarray(b.variance) > 0 for _, b in pairs]
    if any(w.ndim != 2 or b.shape != w.shape[1:] for w, b in zip(weights, biases, strict=True)):
        return None
    sizes = [weights[0].shape[0], *(w.shape[1] for w in weights)]
    if [w.shape[0] for w in weights] != sizes[:-1]:
        return None
    leads: list[Any] = [np.ones(sizes[-1], bool)]
    for live in reversed(weights):
        leads.insert(0, (live & leads[0][None]).any(axis=1))
    if linear is not None:
        leads[0] = leads[0] | (np.asarray(linear.variance) > 0).any(axis=1)
    fed = [np.ones(sizes[0], bool)]
    for live, bias in zip(weights, biases, strict=True):
        fed.append((live & fed[-1][:, None]).any(axis=0) | bias)
    used = [a & b for a, b in zip(leads, fed, strict=True)]
    return DenseGraph(sizes, leads, used)


# --- inputs ---------------------------------------------------------------------------------------


def describe_inputs(
    inputs: list[dict[str, Any]],
    pruned: Trained,
    before: list[WeightArray],
    after: list[WeightArray],
    *,
    graph: DenseGraph | None,
    held_out: tuple[Any, Any] | None,
    seed: int,
) -> list[dict[str, Any]]:
    """Return every input with its remaining weights and its effect.

    `delta_f` is the sum over its live weights, the estimated cost in nats of removing the input;
    `effect` is the drop in log-likelihood on held-out rows when its column is shuffled, in nats
    per row, for inputs that still have an influence.

    Args:
        inputs: Name, column and kind of every input.
        pruned: The model after pruning.
        before: Its weights before pruning.
        after: Its weights after pruning.
        graph: Graph of the remaining network, or None.
        held_out: Inputs and targets of held-out rows, or None.
        seed: Seed of the shuffling.
    """
    described = [
        {"name": shorten_text(i["name"]), "column": shorten_text(i["column"]), "kind": i["kind"]}
        for i in inputs
    ]
    cut = [False] * len(inputs)
    if graph is not None:
        first, last = _find_input_arrays(before), _find_input_arrays(after)
        costs = sum(np.where(a.live, a.delta_f, 0).sum(axis=1) for a in last)
        cut = (~graph.inputs_in_use).tolist()
        for index, entry in enumerate(described):
            entry["before"] = int(sum(a.live[index].sum() for a in first))
            entry["after"] = int(sum(a.live[index].sum() for a in last))
            entry["delta_f"] = round_number(costs[index])
            entry["cut"] = cut[index]
    for index, effect in _find_effects(inputs, cut, pruned, held_out, seed).items():
        described[index]["effect"] = round_number(effect)
    return described


def _find_input_arrays(arrays: list[WeightArray]) -> list[WeightArray]:
    """Return the matrices that a dense network applies to inputs: the first, the linear path."""
    matrices = [array for array in arrays if array.mean.ndim == 2]
    return matrices[:1] + [array for array in matrices[1:] if array.path == "['linear']"]


def _find_effects(
    inputs: list[dict[str, Any]],
    cut: list[bool],
    pruned: Trained,
    held_out: tuple[Any, Any] | None,
    seed: int,
) -> dict[int, float]:
    """Return the effects of influential inputs; inputs from one column share theirs."""
    columns: dict[str, list[int]] = {}
    for index, entry in enumerate(inputs):
        columns.setdefault(entry["column"], []).append(index)
    alive = {name: own for name, own in columns.items() if not all(cut[i] for i in own)}
    if held_out is None or len(alive) > MAX_COLUMNS or np.ndim(held_out[0]) < 2:
        return {}
    rng = np.random.default_rng(seed)
    x, y = np.asarray(held_out[0]), np.asarray(held_out[1])
    if len(y) > MAX_ROWS:
        rows = np.sort(rng.choice(len(y), MAX_ROWS, replace=False))
        x, y = x[rows], y[rows]
    undisturbed = pruned.predict(x).log_density(y).mean()
    orders = [rng.permutation(len(y)) for _ in range(SHUFFLES)]
    effects = {}
    for own in alive.values():
        losses = []
        for order in orders:
            shuffled = x.copy()
            shuffled[..., own] = x[order][..., own]
            losses.append(undisturbed - pruned.predict(shuffled).log_density(y).mean())
        effects.update(dict.fromkeys(own, float(np.mean(losses))))
    return effects
