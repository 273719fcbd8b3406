"""Products with weights whose result a bias is added to: constants can be moved to that bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.equations import Interpreter, Node, Program, Slot, compat, primitives

_UNCHANGED = primitives.IDENTITIES | {primitives.CONVERSION}
# Of these, every element of the operand is in the result once.
_ONE_TO_ONE = primitives.RESHAPES | _UNCHANGED


@dataclass(frozen=True, eq=False)
class BiasedProduct:
    """One `dot_general` or convolution of values with weights, and the bias that is added.

    Elements of weights have numbers: those of the first array of the params, then the second's ….

    Attributes:
        node: the equation.
        values: the operand that is not a weight.
        side: which operand that is.
        axes: of the values, that are summed over and may distinguish units.
        weights: the number of each element of the other operand.
        biases: for every element of the result, the number of the bias added to it.
    """

    node: Node
    values: Slot
    side: int
    axes: tuple[int, ...]
    weights: np.ndarray
    biases: np.ndarray


class OriginSearch(Interpreter):
    """The walk that follows weights while they are only moved about.

    A value is the number of the weight in each of its elements, or None for anything else.

    Args:
        program: flat equations.
        arrays: how many of its inputs are weights.

    Attributes:
        uses: how often each weight is used for anything but being moved.
    """

    def __init__(self, program: Program, arrays: int) -> None:
        super().__init__(program)
        sizes = [int(np.prod(slot.shape, dtype=int)) for slot in program.inputs[:arrays]]
        starts = np.cumsum([0, *sizes])
        self.uses = np.zeros(int(starts[-1]), int)
        origins: list[np.ndarray | None] = [None] * len(program.inputs)
        for i, size in enumerate(sizes):
            origins[i] = np.arange(starts[i], starts[i] + size).reshape(program.inputs[i].shape)
        for output in self.run(origins):
            self.count_use(output)

    def constant(self, value: Any) -> None:
        """Return None: a constant is not a weight."""

    def count_use(self, origins: np.ndarray | None) -> None:
        """Note that these weights are used."""
        if origins is not None:
            self.uses[np.unique(origins)] += 1

    def evaluate(self, node: Node, operands: list[Any]) -> list[Any]:
        """Follow weights through what only moves them; anything else uses them."""
        if len(operands) == 1 and operands[0] is not None:
            if node.name in _UNCHANGED:
                return operands
            if node.name in primitives.FIXED_MOVES:
                return _move(node, operands[0])
        for origins in operands:
            self.count_use(origins)
        return [None] * len(node.outputs)

    def are_used_once(self, elements: np.ndarray) -> bool:
        """Whether each of these weights is used once."""
        return bool(np.all(self.uses[elements] == 1))


def find_products(program: Program, arrays: int) -> list[BiasedProduct]:
    """Find the products whose weights and biases are used for nothing else.

    Args:
        program: flat equations.
        arrays: how many of its inputs are weights.
    """
    search = OriginSearch(program, arrays)
    users: dict[Any, list[Node | None]] = {}
    for node in program.nodes:
        for atom in node.inputs:
            users.setdefault(atom, []).append(node)
    for atom in program.outputs:
        users.setdefault(atom, []).append(None)
    products = []
    for node in program.nodes:
        if node.name not in primitives.PRODUCTS:
            continue
        for side in (0, 1):
            values, weights = node.inputs[side], search.value(node.inputs[1 - side])
            if weights is None or not isinstance(values, Slot) or search.value(values) is not None:
                continue
            biases = _find_bias(node.outputs[0], search, users)
            axes = _summed_axes(node, side)
            once = biases is not None and all(map(search.are_used_once, (weights, biases)))
            if biases is not None and once and axes:
                products.append(BiasedProduct(node, values, side, axes, weights, biases))
    return products


def _summed_axes(node: Node, side: int) -> tuple[int, ...]:
    numbers = node.eqn.params["dimension_numbers"]
    if node.name == "dot_general":
        return tuple(numbers[0][side])
    plain = node.eqn.params["feature_group_count"] == node.eqn.params["batch_group_count"] == 1
    return (numbers.lhs_spec[1],) if side == 0 and plain else ()


def _move(node: Node, places: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(r) for r in compat.bind(node.eqn, jnp.asarray(places, jnp.int32))]


def _find_bias(
    slot: Slot, search: OriginSearch, users: dict[Any, list[Node | None]]
) -> np.ndarray | None:
    """The number of the bias added to each element of a value, if it is only ever added to."""
    shape = slot.shape
    places = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    while len(users.get(slot, ())) == 1:
        node = users[slot][0]
        if node is None:
            return None
        if node.name in _ONE_TO_ONE:
            places = places if node.name in _UNCHANGED else _move(node, places)[0]
        elif node.name in ("add", "add_any"):
            other = node.inputs[1] if node.inputs[0] is slot else node.inputs[0]
            origins = search.value(other)
            if origins is not None and other is not slot:
                biases = np.zeros(places.size, int)
                biases[places.ravel()] = np.broadcast_to(origins, places.shape).ravel()
                return biases.reshape(shape)
        else:
            return None
        slot = node.outputs[0]
    return None
