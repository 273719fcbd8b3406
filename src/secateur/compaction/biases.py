"""Products with weights whose result a bias is added to: constants can be moved to that bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from secateur.equations import Equation, Interpreter, Program, Slot, compat, primitives

_UNCHANGED = primitives.IDENTITIES | {primitives.CONVERSION}
# Of these, every element of the operand is in the result once.
_ONE_TO_ONE = primitives.RESHAPES | _UNCHANGED


@dataclass(frozen=True, eq=False)
class BiasedProduct:
    """One `dot_general` or convolution of values with weights, and the bias that is added.

    Elements of weights have numbers: those of the first array of the params, then the second's ….

    Attributes:
        equation: the equation.
        values: the operand that is not a weight.
        side: which operand that is.
        axes: of the values, that are summed over and may distinguish units.
        weights: the number of each element of the other operand.
        biases: for every element of the result, the number of the bias added to it.
    """

    equation: Equation
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

    def evaluate(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Follow weights through what only moves them; anything else uses them."""
        if len(operands) == 1 and operands[0] is not None:
            if equation.name in _UNCHANGED:
                return operands
            if equation.name in primitives.FIXED_MOVES:
                return _move(equation, operands[0])
        for origins in operands:
            self.count_use(origins)
        return [None] * len(equation.outputs)

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
    users: dict[Any, list[Equation | None]] = {}
    for equation in program.equations:
        for atom in equation.inputs:
            users.setdefault(atom, []).append(equation)
    for atom in program.outputs:
        users.setdefault(atom, []).append(None)
    products = []
    for equation in program.equations:
        if equation.name not in primitives.PRODUCTS:
            continue
        for side in (0, 1):
            values, weights = equation.inputs[side], search.value(equation.inputs[1 - side])
            if weights is None or not isinstance(values, Slot) or search.value(values) is not None:
                continue
            biases = _find_bias(equation.outputs[0], search, users)
            axes = _summed_axes(equation, side)
            once = biases is not None and all(map(search.are_used_once, (weights, biases)))
            if biases is not None and once and axes:
                products.append(BiasedProduct(equation, values, side, axes, weights, biases))
    return products


def _summed_axes(equation: Equation, side: int) -> tuple[int, ...]:
    numbers = equation.params["dimension_numbers"]
    if equation.name == "dot_general":
        return tuple(numbers[0][side])
    plain = equation.params["feature_group_count"] == equation.params["batch_group_count"] == 1
    return (numbers.lhs_spec[1],) if side == 0 and plain else ()


def _move(equation: Equation, places: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(r) for r in compat.bind(equation.eqn, jnp.asarray(places, jnp.int32))]


def _find_bias(
    slot: Slot, search: OriginSearch, users: dict[Any, list[Equation | None]]
) -> np.ndarray | None:
    """The number of the bias added to each element of a value, if it is only ever added to."""
    shape = slot.shape
    places = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    while len(users.get(slot, ())) == 1:
        equation = users[slot][0]
        if equation is None:
            return None
        if equation.name in _ONE_TO_ONE:
            places = places if equation.name in _UNCHANGED else _move(equation, places)[0]
        elif equation.name in ("add", "add_any"):
            other = equation.inputs[1] if equation.inputs[0] is slot else equation.inputs[0]
            origins = search.value(other)
            if origins is not None and other is not slot:
                biases = np.zeros(places.size, int)
                biases[places.ravel()] = np.broadcast_to(origins, places.shape).ravel()
                return biases.reshape(shape)
        else:
            return None
        slot = equation.outputs[0]
    return None
