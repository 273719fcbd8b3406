"""Where constants can go: products with weights whose result a bias is added to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur import compat
from secateur.propagation.program import Node, Program, Slot
from secateur.structure.find import Walked

# They only move elements, so they can be asked where each element came from.
_MOVES = {
    "transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "split", "rev",
}  # fmt: skip
_SAME = {"copy", "copy_p", "convert_element_type", "optimization_barrier"}
# Of these, every element of the operand is in the result once.
_REARRANGES = {"transpose", "reshape", "squeeze", "expand_dims", *_SAME}


@dataclass(frozen=True, eq=False)
class Product:
    """One `dot_general` or convolution of values with weights, and the bias that is added.

    Elements of weights have numbers: those of the first array of the params, then the second's ….

    Attributes:
        node: the equation.
        values: the operand that is no weight.
        side: which operand that is.
        axes: of the values, that are summed over and may tell units apart.
        weights: the number of each element of the other operand.
        biases: for every element of the result, the number of the bias added to it.
    """

    node: Node
    values: Slot
    side: int
    axes: tuple[int, ...]
    weights: np.ndarray
    biases: np.ndarray


def products(walked: Walked, arrays: int) -> list[Product]:
    """Find the products whose weights and biases are used for nothing else.

    Args:
        walked: the function.
        arrays: how many of its inputs are weights.
    """
    program = walked.program
    origins, uses = _origins(program, arrays)
    users: dict[Any, list[Node | None]] = {}
    for node in program.nodes:
        for atom in node.inputs:
            users.setdefault(atom, []).append(node)
    for atom in program.outputs:
        users.setdefault(atom, []).append(None)
    found = []
    for node in program.nodes:
        if node.name not in ("dot_general", "conv_general_dilated"):
            continue
        for side in (0, 1):
            values, weights = node.inputs[side], origins.get(node.inputs[1 - side])
            if weights is None or values in origins or not isinstance(values, Slot):
                continue
            biases = _added_to(node.outputs[0], origins, users)
            if biases is not None and _used_once(uses, weights) and _used_once(uses, biases):
                axes = _summed_axes(node, side)
                if axes:
                    found.append(Product(node, values, side, axes, weights, biases))
    return found


def _summed_axes(node: Node, side: int) -> tuple[int, ...]:
    numbers = node.eqn.params["dimension_numbers"]
    if node.name == "dot_general":
        return tuple(numbers[0][side])
    plain = node.eqn.params["feature_group_count"] == node.eqn.params["batch_group_count"] == 1
    return (numbers.lhs_spec[1],) if side == 0 and plain else ()


def _origins(program: Program, arrays: int) -> tuple[dict[Any, np.ndarray], np.ndarray]:
    """Values that are nothing but weights moved about, and how often each weight is used."""
    origins: dict[Any, np.ndarray] = {}
    start = 0
    for slot in program.inputs[:arrays]:
        size = int(np.prod(slot.shape, dtype=int))
        origins[slot] = np.arange(start, start + size).reshape(slot.shape)
        start += size
    uses = np.zeros(start, int)
    for node in program.nodes:
        moved = origins.get(node.inputs[0]) if node.inputs else None
        if moved is not None and node.name in _MOVES | _SAME and len(node.inputs) == 1:
            results = [moved] if node.name in _SAME else _moved(node, moved)
            origins.update(zip(node.outputs, results, strict=True))
            continue
        for atom in node.inputs:
            if atom in origins:
                uses[np.unique(origins[atom])] += 1
    for atom in program.outputs:
        if atom in origins:
            uses[np.unique(origins[atom])] += 1
    return origins, uses


def _moved(node: Node, places: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(r) for r in compat.bind(node.eqn, jnp.asarray(places, jnp.int32))]


def _used_once(uses: np.ndarray, elements: np.ndarray) -> bool:
    return bool(np.all(uses[elements] == 1))


def _added_to(
    slot: Slot, origins: dict[Any, np.ndarray], users: dict[Any, list[Node | None]]
) -> np.ndarray | None:
    """The number of the bias added to each element of a value, if it is only ever added to."""
    shape = slot.shape
    places = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    while len(users.get(slot, ())) == 1:
        node = users[slot][0]
        if node is None:
            return None
        if node.name in _REARRANGES:
            places = places if node.name in _SAME else _moved(node, places)[0]
        elif node.name in ("add", "add_any"):
            other = node.inputs[1] if node.inputs[0] is slot else node.inputs[0]
            if other in origins and other is not slot:
                biases = np.zeros(places.size, int)
                biases[places.ravel()] = np.broadcast_to(origins[other], places.shape).ravel()
                return biases.reshape(shape)
        else:
            return None
        slot = node.outputs[0]
    return None
