"""A model function evaluated on smaller arrays, whatever sizes are written into it.

The original function is traced at its original sizes and its axes are followed; then its equations
are evaluated with every size that counts removed units made smaller. What was a constant of the
function (a start of a state, a width under a root) stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import Equation, RuleTable, compat, primitives
from secateur.equations.control_flow import Scan, WhileLoop
from secateur.equations.primitives import Kind, Policy
from secateur.structure.labels import AxisLabels, Partition
from secateur.structure.place_rules import update_axes
from secateur.structure.unit_search import (
    LabelledFunction,
    LabelledInterpreter,
    UnitSearch,
    is_array,
    label_function,
)

Kept = tuple[np.ndarray, ...]  # by axis, which elements are still there


class SmallerFunction:
    """A function of weights, and inputs, of which some indices are gone.

    Args:
        f: The original function.
        params: Weights of the original shapes; their values do not matter.
        kept: For every array of the params and each axis, which elements are left.
        kept_inputs: For every array of the inputs, the axis and the indices that are left, or None.
    """

    def __init__(
        self, f: Callable, params: Any, kept: Sequence[Kept], kept_inputs: Sequence[Any]
    ) -> None:
        self.f, self.kept, self.kept_inputs = f, tuple(kept), tuple(kept_inputs)
        structure: Any
        leaves, structure = jax.tree.flatten(params)
        self._structure = structure
        self._leaves = [
            jax.ShapeDtypeStruct(a.shape, a.dtype) if is_array(a) else a for a in leaves
        ]
        self.__name__ = getattr(f, "__name__", type(f).__name__)

    def __call__(self, params: Any, x: Any) -> Any:
        """Return what the original function would, with the units in place and cut."""
        leaves = self._structure.flatten_up_to(params)
        pairs = list(zip(self._leaves, leaves, strict=True))
        input_structure: Any
        inputs, input_structure = jax.tree.flatten(x)
        wide = [_widened(a, at) for a, at in zip(inputs, self.kept_inputs, strict=True)]
        full = [jax.ShapeDtypeStruct(o.shape, n.dtype) if is_array(o) else o for o, n in pairs]
        # The sizes of the data are those of this call, so the axes are followed anew.
        labelled = label_function(
            self.f, self._structure.unflatten(full), input_structure.unflatten(wide)
        )
        walk = SmallerEvaluation(labelled.search, self._remaining(labelled))
        results = walk.run([*(n for o, n in pairs if is_array(o)), *inputs])
        return labelled.result_structure.unflatten([_materialise(value) for value in results])

    def _remaining(self, labelled: LabelledFunction) -> Remaining:
        partition = labelled.partition
        removed: set[int] = set()
        for own, axes in zip(labelled.weights, self.kept, strict=True):
            for labels, left in zip(own.labels, axes, strict=True):
                removed.update(partition.root(i) for i in labels[~left].tolist())
        for own, at in zip(labelled.data, self.kept_inputs, strict=True):
            if at is not None:
                axis, left, size = at
                dropped = np.setdiff1d(np.arange(size), left)
                removed.update(partition.root(i) for i in own.labels[axis][dropped].tolist())
        return Remaining(partition, frozenset(removed))


def _widened(x: Any, at: Any) -> Any:
    shape = list(jnp.shape(x))
    if at is not None:
        shape[at[0]] = at[2]
    return jax.ShapeDtypeStruct(tuple(shape), jnp.result_type(x))


@dataclass(frozen=True, eq=False)
class _Spread:
    """A value to be copied along new axes; how many copies is known once it meets others."""

    value: Any
    shape: tuple[int, ...]
    places: tuple[int, ...]


def _materialise(value: Any) -> Any:
    if isinstance(value, _Spread):
        return jax.lax.broadcast_in_dim(value.value, value.shape, value.places)
    return value


@dataclass(frozen=True, eq=False)
class Remaining:
    """Which elements of labelled axes are still there.

    Attributes:
        partition: Partition of the labels.
        removed: The classes of labels that were removed.
    """

    partition: Partition
    removed: frozenset[int]

    def mask(self, labels: np.ndarray) -> np.ndarray:
        """Return which elements of an axis are still there."""
        there = [i < 0 or self.partition.root(i) not in self.removed for i in labels.tolist()]
        return np.array(there, bool)

    def masks(self, value: AxisLabels) -> list[np.ndarray]:
        """Return the mask of each axis."""
        return [self.mask(labels) for labels in value.labels]

    def shape(self, value: AxisLabels) -> tuple[int, ...]:
        """Return the smaller shape of a value."""
        return tuple(int(mask.sum()) for mask in self.masks(value))

    def fit(self, value: Any, labels: np.ndarray, axis: int, target: np.ndarray) -> Any:
        """Leave out of an axis what is not there any more in what it meets."""
        own = self.mask(labels)
        if len(own) != len(target) or own[~target].sum() == 0:
            return value
        places = np.flatnonzero(target[own])
        if isinstance(value, _Spread) and axis not in value.places:
            shape = (*value.shape[:axis], len(places), *value.shape[axis + 1 :])
            return replace(value, shape=shape)
        if isinstance(value, np.ndarray):
            return np.take(value, places, axis)
        return _take(_materialise(value), places, axis)

    def align(self, value: Any, own: AxisLabels, target: Sequence[np.ndarray]) -> Any:
        """Let all axes of a value have the elements of what it meets."""
        for axis, (labels, mask) in enumerate(zip(own.labels, target, strict=True)):
            value = self.fit(value, labels, axis, mask)
        return value


class SmallerEvaluation(LabelledInterpreter):
    """The walk that evaluates equations with removed elements left out.

    Args:
        search: The walk that labelled the function's axes.
        remaining: What is left of the axes.
    """

    rules = RuleTable()
    policies = primitives.policies(
        Kind.CONTROL_FLOW, Kind.LOOKUP, Kind.UPDATE, Kind.SEGMENT, Kind.CONTRACTION,
        otherwise=Policy.EVALUATE,
    )  # fmt: skip

    def __init__(self, search: UnitSearch, remaining: Remaining) -> None:
        super().__init__(search)
        self.remaining = remaining

    def run_nested(self, body: UnitSearch, inputs: Sequence[Any]) -> list[Any]:
        """Evaluate a loop body, branch or recomputed part."""
        walk = SmallerEvaluation(body, self.remaining)
        return [_materialise(value) for value in walk.run(inputs)]

    def constant(self, value: Any) -> Any:
        """Return a constant in NumPy, so that picking elements of it costs no equation."""
        known = isinstance(value, jax.Array | np.ndarray)
        plain = known and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
        return np.asarray(value) if plain else value

    def apply_default(
        self, equation: Equation, operands: list[Any], params: dict[str, Any] | None = None
    ) -> list[Any]:
        """Evaluate an equation on smaller operands, perhaps with other parameters."""
        eqn = (
            equation.eqn
            if params is None
            else equation.eqn.replace(params={**equation.params, **params})
        )
        return compat.bind(eqn, *map(_materialise, operands))

    @rules.declare("broadcast_in_dim")
    def spread(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Put off copying a value along new axes."""
        shape = self.remaining.shape(self.result_labels(equation)[0])
        places = tuple(equation.params["broadcast_dimensions"])
        return [_Spread(_materialise(operands[0]), shape, places)]

    @rules.declare("reshape")
    def reshape(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Reshape to the smaller shape."""
        shape = self.remaining.shape(self.result_labels(equation)[0])
        return [jax.lax.reshape(_materialise(operands[0]), shape)]

    @rules.declare("slice")
    def slice(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Take what is left of a slice."""
        value, (own,) = _materialise(operands[0]), self.operand_labels(equation)
        params = equation.params
        starts, limits = params["start_indices"], params["limit_indices"]
        strides = params["strides"] or (1,) * len(starts)
        for axis, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
            mask = self.remaining.mask(own.labels[axis])
            places = (np.cumsum(mask) - 1)[start:limit:stride][mask[start:limit:stride]]
            value = _take(value, places, axis)
        return [value]

    @rules.declare("split")
    def split(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Split into the smaller parts."""
        axis = equation.params["axis"]
        sizes = tuple(self.remaining.shape(part)[axis] for part in self.result_labels(equation))
        return self.apply_default(equation, operands, {"sizes": sizes})

    @rules.declare(*primitives.LOOKUPS)
    def look_up(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Look up smaller slices."""
        labels = self.operand_labels(equation)[0].labels
        pairs = zip(equation.params["slice_sizes"], labels, strict=True)
        sizes = tuple(int(self.remaining.mask(a).sum()) if n == len(a) else n for n, a in pairs)
        return self.apply_default(equation, operands, {"slice_sizes": sizes})

    @rules.declare("dot_general")
    def dot(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Let axes that are multiplied with each other have the same elements."""
        (contract_x, contract_w), (batch_x, batch_w) = equation.params["dimension_numbers"]
        pairs = zip((*contract_x, *batch_x), (*contract_w, *batch_w), strict=True)
        return self.apply_default(equation, self.matched(equation, operands, list(pairs)))

    @rules.declare("conv_general_dilated")
    def convolve(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Let the channels of signal and filters be the same."""
        numbers = equation.params["dimension_numbers"]
        channels = numbers.lhs_spec[1], numbers.rhs_spec[1]
        if equation.params["feature_group_count"] == 1:
            return self.apply_default(equation, self.matched(equation, operands, [channels]))
        sizes = [np.shape(_materialise(o))[a] for o, a in zip(operands, channels, strict=True)]
        return self.apply_default(equation, operands, {"feature_group_count": sizes[0] // sizes[1]})

    @rules.declare("concatenate")
    def concatenate(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Align the operands along all other axes."""
        masks = self.remaining.masks(self.result_labels(equation)[0])
        along = equation.params["dimension"]
        aligned = []
        for value, own in zip(operands, self.operand_labels(equation), strict=True):
            whole = np.ones(len(own.labels[along]), bool)
            target = [whole if axis == along else mask for axis, mask in enumerate(masks)]
            aligned.append(self.remaining.align(value, own, target))
        return self.apply_default(equation, aligned)

    @rules.declare(*primitives.UPDATES, *primitives.SEGMENT_EXTREMA)
    def update(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Align what is updated and the update, where it has a whole axis."""
        own, masks = (
            self.operand_labels(equation),
            self.remaining.masks(self.result_labels(equation)[0]),
        )
        place = 1 if equation.name == "dynamic_update_slice" else 2
        operands = [_materialise(v) for v in operands]
        for axis, other in update_axes(equation).items():
            operands[0] = self.remaining.fit(operands[0], own[0].labels[axis], axis, masks[axis])
            operands[place] = self.remaining.fit(
                operands[place], own[place].labels[other], other, masks[axis]
            )
        return self.apply_default(equation, operands)

    @rules.declare("sort")
    def sort(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Align what is sorted together."""
        masks = self.remaining.masks(self.result_labels(equation)[0])
        pairs = zip(operands, self.operand_labels(equation), strict=True)
        return self.apply_default(equation, [self.remaining.align(v, o, masks) for v, o in pairs])

    @rules.declare(
        *(primitives.ELEMENTWISE - primitives.SIDE_BY_SIDE), "complex", "real", "imag", "conj"
    )
    def combine(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Align the operands of an elementwise function."""
        masks = self.remaining.masks(self.result_labels(equation)[0])
        pairs = zip(operands, self.operand_labels(equation), strict=True)
        aligned = [self.remaining.align(v, own, masks) if own.labels else v for v, own in pairs]
        return self.apply_default(equation, aligned)

    def matched(
        self, equation: Equation, operands: list[Any], pairs: Sequence[tuple[int, int]]
    ) -> list[Any]:
        """Return two operands of which some axes have the same elements."""
        one, other = operands
        own, other_own = self.operand_labels(equation)
        for a, b in pairs:
            labels, other_labels = own.labels[a], other_own.labels[b]
            both = self.remaining.mask(labels) & self.remaining.mask(other_labels)
            one = self.remaining.fit(one, labels, a, both)
            other = self.remaining.fit(other, other_labels, b, both)
        return [one, other]

    def remat(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Evaluate a recomputed part as if its equations stood here."""
        return self.run_nested(self.bodies(equation)[0], [_materialise(v) for v in operands])

    def cond(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Evaluate the branch that is chosen; results of all branches have the same shapes."""
        targets = [self.remaining.masks(result) for result in self.result_labels(equation)]

        def branch(body: UnitSearch) -> Callable[[list[Any]], list[Any]]:
            def call(inputs: list[Any]) -> list[Any]:
                values = self.run_nested(body, inputs)
                every = zip(values, body.results, targets, strict=True)
                return [self.remaining.align(v, own, target) for v, own, target in every]

            return call

        arguments = [_materialise(v) for v in operands[1:]]
        return jax.lax.switch(operands[0], [branch(b) for b in self.bodies(equation)], arguments)

    def while_loop(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Evaluate a loop with a smaller state, whose number of steps is computed."""
        loop, (condition, body) = WhileLoop.of(equation), self.bodies(equation)
        condition_consts, consts, start = loop.split([_materialise(v) for v in operands])
        start_labels = loop.split(self.operand_labels(equation))[2]
        slots = body.program.inputs[len(consts) :]
        targets = [self.remaining.masks(body.values[slot]) for slot in slots]

        def fitted(values: Sequence[Any], own: Sequence[AxisLabels]) -> list[Any]:
            every = zip(values, own, targets, strict=True)
            return [jnp.asarray(_materialise(self.remaining.align(v, a, t))) for v, a, t in every]

        return jax.lax.while_loop(
            lambda carry: self.run_nested(condition, [*condition_consts, *carry])[0],
            lambda carry: fitted(self.run_nested(body, [*consts, *carry]), body.results),
            fitted(start, start_labels),
        )

    def scan(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Evaluate a loop with a smaller state."""
        parts, (body,) = Scan.of(equation), self.bodies(equation)
        consts, start, xs = parts.split(operands)
        _, start_labels, _ = parts.split(self.operand_labels(equation))
        _, slots, _ = parts.split(body.program.inputs)
        targets = [self.remaining.masks(body.values[slot]) for slot in slots]

        def fitted(values: Sequence[Any], own: Sequence[AxisLabels]) -> list[Any]:
            every = zip(values, own, targets, strict=True)
            return [jnp.asarray(_materialise(self.remaining.align(v, a, t))) for v, a, t in every]

        consts = [_materialise(v) for v in consts]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            after, stacked = parts.split_results(self.run_nested(body, [*consts, *carry, *x]))
            return fitted(after, parts.split_results(body.results)[0]), stacked

        last, stacked = jax.lax.scan(
            step, fitted(start, start_labels), [_materialise(v) for v in xs], length=parts.length,
            reverse=parts.reverse, unroll=parts.unroll,
        )  # fmt: skip
        return [*last, *stacked]


def _take(value: Any, places: np.ndarray, axis: int) -> Array:
    """Pick elements of an axis, by one slice where they are in a row."""
    if len(places) == jnp.shape(value)[axis]:
        return value
    if not len(places) or np.all(np.diff(places) == 1):
        start = int(places[0]) if len(places) else 0
        return jax.lax.slice_in_dim(value, start, start + len(places), axis=axis)
    return jnp.take(value, places, axis)
