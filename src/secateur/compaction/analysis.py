"""The analysis of a model function that compaction needs, done once for its shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.compaction.influence import Influence
from secateur.equations import Equation, Interpreter, Program, Slot, compat, primitives
from secateur.equations.primitives import Policy
from secateur.propagation.propagator import Propagator
from secateur.propagation.uncertain_values import Uncertain, as_uncertain
from secateur.pytrees import is_belief
from secateur.structure.unit_search import LabelledFunction, Units, is_array, label_function

_UNCHANGED = primitives.IDENTITIES | {primitives.CONVERSION}
# Primitives whose result contains every element of the operand exactly once.
_ONE_TO_ONE = primitives.RESHAPES | _UNCHANGED


@dataclass(frozen=True, eq=False)
class BiasedProduct:
    """One `dot_general` or convolution of values with weights, and the bias that is added.

    Elements of weights are numbered through all arrays of the params, in order.

    Attributes:
        equation: The equation.
        values: The operand that is not a weight.
        side: Index of that operand.
        axes: Axes of the values that are summed over and may distinguish units.
        weights: Number of each element of the other operand.
        biases: For every element of the result, the number of the bias added to it.
    """

    equation: Equation
    values: Slot
    side: int
    axes: tuple[int, ...]
    weights: np.ndarray
    biases: np.ndarray


class OriginSearch(Interpreter):
    """The walk that follows weights as long as they are only moved.

    A value holds the number of the weight in each of its elements; other values are None.

    Args:
        program: Flat equations.
        arrays: Number of inputs that are weights.

    Attributes:
        uses: Number of times that each weight is used other than by moving it.
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

    policies = primitives.policies(otherwise=Policy.USE)

    def constant(self, value: Any) -> None:
        """Return None: a constant is not a weight."""

    def count_use(self, origins: np.ndarray | None) -> None:
        """Record that these weights are used."""
        if origins is not None:
            self.uses[np.unique(origins)] += 1

    def evaluate(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Follow weights through operations that only move them; all other operations use them."""
        if len(operands) == 1 and operands[0] is not None:
            if equation.name in _UNCHANGED:
                return operands
            if equation.name in primitives.FIXED_MOVES:
                return _move(equation, operands[0])
        for origins in operands:
            self.count_use(origins)
        return [None] * len(equation.outputs)

    def are_used_once(self, elements: np.ndarray) -> bool:
        """Whether each of these weights is used exactly once."""
        return bool(np.all(self.uses[elements] == 1))


def find_products(program: Program, arrays: int) -> list[BiasedProduct]:
    """Find the products whose weights and biases are not used anywhere else.

    Args:
        program: Flat equations.
        arrays: Number of inputs that are weights.
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
    """Number of the bias added to each element of a value, if that is its only use."""
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


Arrays = list[np.ndarray]


@dataclass(eq=False)
class Analysis:
    """The structure of a model function.

    Attributes:
        labelled: The function, with labels on all axes.
    """

    labelled: LabelledFunction

    @cached_property
    def units(self) -> Units:
        """Return the units."""
        return self.labelled.units()

    @cached_property
    def axes(self) -> list[tuple[np.ndarray, ...]]:
        """Return, for every array and axis, the number of each element's unit."""
        leaves = self.labelled.structure.flatten_up_to(self.units.axes)
        return [a for a, yes in zip(leaves, self.labelled.is_array, strict=True) if yes]

    @cached_property
    def numbers(self) -> dict[int, int]:
        """Return the unit's number for each label."""
        partition = self.labelled.partition
        pairs: dict[int, int] = {}
        for own, axes in zip(self.labelled.weights, self.axes, strict=True):
            for labels, units in zip(own.labels, axes, strict=True):
                elements = zip(labels.tolist(), units.tolist(), strict=True)
                pairs.update((partition.root(label), unit) for label, unit in elements if unit >= 0)
        return pairs

    def unit_of(self, labels: np.ndarray) -> np.ndarray:
        """Return the number of the unit of each element of an axis; −1 for none."""
        partition = self.labelled.partition
        roots = [partition.root(i) if i >= 0 else -1 for i in labels.tolist()]
        return np.array([self.numbers.get(r, -1) for r in roots], int)

    @cached_property
    def products(self) -> list[BiasedProduct]:
        """Return the products with weights to which a bias is added."""
        return find_products(self.labelled.search.program, len(self.labelled.weights))

    @cached_property
    def influence(self) -> Influence:
        """Return the dependencies between weights, data and outputs."""
        watched = [product.values for product in self.products]
        return Influence(self.labelled.search, len(self.labelled.weights), watched)

    def moments(
        self, how: str, beliefs: Sequence[Any], data: Sequence[Any]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return mean and variance of the values of all products, for given inputs."""
        means, variances = self._moments(how, list(beliefs), list(data))
        return [np.asarray(m) for m in means], [np.asarray(v) for v in variances]

    @cached_property
    def _moments(self) -> Any:
        slots = [product.values for product in self.products]

        def moments(how: str, beliefs: list[Any], data: list[Any]) -> tuple[list, list]:
            weights = [
                Uncertain(b.mean, b.variance, ancestors=frozenset({i})) if is_belief(b) else b
                for i, b in enumerate(beliefs)
            ]
            walk = Propagator(self.labelled.search.program, how, None)
            walk.run([*weights, *data])
            values = [as_uncertain(walk.value(slot)) for slot in slots]
            return [v.mean for v in values], [v.variance for v in values]

        return jax.jit(moments, static_argnums=0)

    def dead(self, alive: Sequence[np.ndarray]) -> np.ndarray:
        """Mask of the units of whose weights the function is independent.

        The weights of such a unit may all be set to 0, and then it can be removed.
        """
        return ~self._with_any(self.influence.influential(alive))

    def read(self, alive: Sequence[np.ndarray]) -> np.ndarray:
        """Mask of the units that are read, even if their value is always 0."""
        return self._with_any(self.influence.read(alive))

    def _with_any(self, masks: Sequence[np.ndarray]) -> np.ndarray:
        any_true = np.zeros(len(self.units) + 1, bool)  # last: elements of no unit
        for mask, axes in zip(masks, self.axes, strict=True):
            for axis, units in enumerate(axes):
                others = tuple(a for a in range(mask.ndim) if a != axis)
                np.logical_or.at(any_true, units, mask.any(axis=others))
        return any_true[:-1]

    def members(self, chosen: np.ndarray) -> Arrays:
        """Mask of the elements of the arrays that belong to a chosen unit."""
        padded = np.append(chosen, False)
        masks = []
        for axes in self.axes:
            mask = np.zeros(tuple(map(len, axes)), bool)
            for axis, units in enumerate(axes):
                column = [-1 if a == axis else 1 for a in range(mask.ndim)]
                mask |= padded[units].reshape(column)
            masks.append(mask)
        return masks


def analyse(f: Callable[[Any, Any], Any], params: Any, x: Any) -> Analysis:
    """Follow a function's axes; results for the last few functions and shapes are cached."""

    def shapes(tree: Any) -> tuple[Any, tuple[Any, ...]]:
        leaves, structure = jax.tree.flatten(tree)
        return structure, tuple(
            jax.ShapeDtypeStruct(a.shape, a.dtype) if is_array(a) else a for a in leaves
        )

    key = (f, *shapes(params), *shapes(x))
    try:
        return _analyse_shapes(*key)
    except TypeError:  # something is not hashable, or the function cannot be traced
        return _analyse_shapes.__wrapped__(*key)


@lru_cache(maxsize=8)
def _analyse_shapes(
    f: Any, structure: Any, leaves: Any, input_structure: Any, inputs: Any
) -> Analysis:
    params, x = structure.unflatten(leaves), input_structure.unflatten(inputs)
    return Analysis(label_function(f, params, x))
