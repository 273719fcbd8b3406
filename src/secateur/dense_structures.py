"""Structures of dense networks, as parts of one network that has the weights of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from secateur.distributions import Normal
from secateur.networks import Dense
from secateur.trained import Trained
from secateur.training.recipe import Recipe

__all__ = [
    "STRUCTURES", "Structure", "divide_structures", "join_structures", "make_starts",
    "take_structure",
]  # fmt: skip

# Structures with at most this number of units per layer are narrow, and always trained.
_NARROW = 10


class Structure(NamedTuple):
    """A structure of a dense network.

    Attributes:
        hidden: Number of units of every hidden layer; empty for none.
        linear_path: Whether there are weights from the inputs to the outputs. Without them and
            without hidden units, the network is a constant.
    """

    hidden: tuple[int, ...]
    linear_path: bool

    def __str__(self) -> str:
        if not self.hidden:
            return "linear" if self.linear_path else "constant"
        units = ", ".join(map(str, self.hidden)) + " units"
        return units + (" and a linear path" if self.linear_path else "")

    @property
    def is_narrow(self) -> bool:
        """Whether there are hidden layers, all of few units."""
        return bool(self.hidden) and max(self.hidden) <= _NARROW

    def make_network(self, inputs: int, outputs: int, activation: str) -> Dense:
        """Return the network of this structure; a constant is a linear one with all weights cut."""
        path = self.linear_path and bool(self.hidden)
        return Dense(inputs, self.hidden, outputs, activation, linear_path=path)


# With few data, units at their prior add so much variance that nothing is learnt: a wide network
# must never be the only candidate.
STRUCTURES = (
    Structure((), False),
    Structure((), True),
    Structure((3,), True),
    Structure((10,), True),
    Structure((50,), True),
    Structure((50,), False),
)


def divide_structures(structures: Sequence[Structure]) -> list[list[Structure]]:
    """Return the structures of each stage.

    >>> [[str(s) for s in stage] for stage in divide_structures(STRUCTURES[1::2])]
    [['linear', '10 units and a linear path'], ['50 units']]
    """
    stages: list[list[Structure]] = [[], []]
    for structure in structures:
        is_wide = bool(structure.hidden) and not structure.is_narrow
        stages[is_wide].append(structure)
    is_judged = any(s.hidden for s in stages[0])
    return [stage for stage in stages if stage] if is_judged else [list(structures)]


def join_structures(
    structures: Sequence[Structure], inputs: int, outputs: int, activation: str
) -> Dense:
    """Return the smallest network that contains all structures."""
    depths = {len(s.hidden) for s in structures} - {0}
    if len(depths) > 1:
        raise ValueError(
            "structures of different depths cannot be compared in one program. Give structures "
            "with the same number of hidden layers, or with none."
        )
    hidden = tuple(map(max, zip(*(s.hidden for s in structures if s.hidden), strict=True)))
    path = any(s.linear_path or not s.hidden for s in structures)
    return Dense(inputs, hidden, outputs, activation, linear_path=path and bool(hidden))


def _find_indices(whole: Dense, structure: Structure) -> Any:
    """Return, for every array of the whole network, the part that belongs to a structure."""
    own = structure.hidden or (0,) * len(whole.hidden)
    sizes = [whole.inputs, *own, whole.outputs]
    path = (slice(0, whole.inputs if structure.linear_path else 0), slice(None))
    layers = [
        {"weights": (slice(0, before), slice(0, after)), "bias": (slice(0, after),)}
        for before, after in pairwise(sizes)
    ]
    if not whole.hidden:
        return {"layers": [layers[0] | {"weights": path}]}
    return {"layers": layers} | ({"linear": path} if whole.linear_path else {})


def make_starts(whole: Dense, runs: Sequence[Structure], recipe: Recipe, key: Array) -> list[Any]:
    """Return the beliefs that each run starts from."""
    return [
        make_start(whole, structure, recipe, jax.random.fold_in(key, number))
        for number, structure in enumerate(runs)
    ]


def make_start(whole: Dense, structure: Structure, recipe: Recipe, key: Array) -> Any:
    """Return the beliefs that a structure starts from, as part of the whole network."""
    deviation = 1.0 if recipe.initial_deviation is None else recipe.initial_deviation
    params = jax.tree.map(np.array, whole.init(key))
    # With the spread of a network that has only these units.
    for layer, all_units, own in zip(
        params["layers"][1:], whole.hidden, structure.hidden or whole.hidden, strict=True
    ):
        layer["weights"] *= math.sqrt(all_units / own)

    def hold(index: tuple[slice, ...], weights: np.ndarray) -> Normal:
        exists = np.zeros(weights.shape, bool)
        exists[index] = True
        mean = np.where(exists, weights, 0).astype(weights.dtype)
        return Normal(mean, np.where(exists, deviation**2, 0).astype(weights.dtype))

    return jax.tree.map(hold, _find_indices(whole, structure), params, is_leaf=_is_index)


def _is_index(node: Any) -> bool:
    return isinstance(node, tuple)


def take_structure(trained: Trained, structure: Structure) -> Trained:
    """Reduce a model of the whole network to a model of its structure."""
    model, training = trained.model, trained.training
    whole = model.f
    assert isinstance(whole, Dense)
    network = structure.make_network(whole.inputs, whole.outputs, whole.activation)
    if network == whole:
        return trained
    indices = _find_indices(whole, structure)

    def take(tree: Any) -> Any:
        if not structure.hidden:  # one layer remains
            return {"layers": [{"weights": tree["linear"], "bias": tree["layers"][-1]["bias"]}]}
        return tree if structure.linear_path else {"layers": tree["layers"]}

    def cut_leaf(index: tuple[slice, ...], leaf: Any) -> Any:
        return jax.tree.map(lambda array: np.asarray(array)[index], leaf)

    def cut(tree: Any) -> Any:
        if not structure.hidden:
            return take(tree)
        return take(jax.tree.map(cut_leaf, indices, tree, is_leaf=_is_index))

    groups = training.prior_groups
    if groups is not None:
        treedef: Any = jax.tree.structure(model.params)
        by_leaf = take(treedef.unflatten(groups))
        groups = tuple(jax.tree.leaves(by_leaf, is_leaf=lambda axis: axis is None))
    return replace(
        trained,
        model=replace(model, f=network, params=cut(model.params)),
        beliefs=cut(trained.beliefs),
        priors=cut(trained.priors),
        training=replace(training, prior_groups=groups),
    )
