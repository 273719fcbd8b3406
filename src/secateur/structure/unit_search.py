"""Which weights make up a unit: axes are followed through a model function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from secateur.equations import Equation, Interpreter, Program, read_program, trace_function
from secateur.equations.control_flow import (
    Body,
    Scan,
    WhileLoop,
    branches,
    recomputed_part,
    settle,
)
from secateur.structure import place_rules
from secateur.structure.label_rules import LabelRules
from secateur.structure.labels import (
    ANY,
    DATA,
    AxisLabels,
    Labels,
    Partition,
    constant_labels,
)

__all__ = ["FrozenAxes", "Unit", "Units", "place_rules", "units"]


@dataclass(frozen=True)
class Unit:
    """Weights that can only be removed together.

    Attributes:
        kind: "input" for all that one input feature feeds; else "hidden".
        members: (path of the leaf, axis, indices along it), all weights there.
    """

    kind: str
    members: tuple[tuple[str, int, tuple[int, ...]], ...]

    def __str__(self) -> str:
        parts = []
        for path, axis, indices in self.members:
            shown = ", ".join(map(str, indices))
            parts.append(f"{path} axis {axis} [{shown}]")
        return f"{self.kind}: " + "; ".join(parts)


@dataclass(frozen=True)
class FrozenAxes:
    """Axes of weights in which no element can be a unit, and the operation that causes it.

    Attributes:
        operation: Name of the primitive; "output" for what the function returns.
        where: Line of user code behind it.
        known: Whether the search knows the operation. If not, there may be units that were not
            found.
        axes: (path of the leaf, axis) of the weights.
    """

    operation: str
    where: str
    known: bool
    axes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        axes = ", ".join(f"{path} axis {axis}" for path, axis in self.axes)
        return (
            f"{self.operation} ({self.where}): {axes}"
            if self.where
            else f"{self.operation}: {axes}"
        )


@dataclass(frozen=True, eq=False)
class Units:
    """All units of a model function.

    Attributes:
        units: Units, in no particular order.
        axes: With the structure of the params: for every array a tuple with, for each axis, the
            number of the unit of each element (−1 for none); None for other leaves.
        frozen: Axes without units, by the operation that is the reason.
    """

    units: tuple[Unit, ...]
    axes: Any
    frozen: tuple[FrozenAxes, ...] = ()

    def __len__(self) -> int:
        return len(self.units)

    def __repr__(self) -> str:
        shapes = Counter(
            (u.kind, tuple((path, axis, len(i)) for path, axis, i in u.members)) for u in self.units
        )
        lines = [f"{len(self.units)} units"]
        for (kind, members), count in shapes.items():
            where = ", ".join(
                f"{path} axis {axis}" + (f" ({n} each)" if n > 1 else "")
                for path, axis, n in members
            )
            lines.append(f"  {count:5d} {kind}: {where}")
        lines += [f"  not divided into units, because of an unknown operation: {f}"
                  for f in self.frozen if not f.known]  # fmt: skip
        return "\n".join(lines)


def units(f: Callable[[Any, Any], Any], params: Any, x: Any) -> Units:
    """Find the units of any model function: dense and GRU units, conv channels, heads, inputs.

    Elements of axes that meet (in a product, a sum, a concatenation …) are followed through the
    function's equations. A unit is a set of indices that are combined with others only in products
    with the unit's own weights: if all of these are 0, it has no influence and can be removed.

    Args:
        f: Any pure JAX function `f(params, x)`; the first axis of `x` counts rows.
        params: Its weights.
        x: Inputs of the right shapes; their values do not matter.

    Returns:
        The `Units`. Outputs are not units, nor is anything that is summed or normalised over,
        shuffled together by a reshape, or passed to an operation that is not known. `frozen` says
        which axes have no units, and why.

    Example:
        >>> import jax.numpy as jnp
        >>> def f(p, x):
        ...     return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"]
        >>> params = {"w": jnp.ones((3, 5)), "b": jnp.ones(5), "v": jnp.ones((5, 2))}
        >>> units(f, params, jnp.ones((8, 3)))
        8 units
              5 hidden: ['b'] axis 0, ['v'] axis 0, ['w'] axis 1
              3 input: ['w'] axis 0
    """
    return label_function(f, params, x).units()


class UnitSearch(LabelRules):
    """The walk that labels the axes of every value of a function.

    Args:
        program: Flat equations.
        partition: Partition of the labels, for the whole function.

    Attributes:
        bodies: By the number of an equation, the walks of its loop body, branches or recomputed
            part. A loop's is the last one, in which nothing changed any more.
        results: Labels of the program's outputs.
    """

    def __init__(self, program: Program, partition: Partition) -> None:
        super().__init__(program)
        self.partition = partition
        self.bodies: dict[int, list[UnitSearch]] = {}
        self.results: list[AxisLabels] = []

    def run(self, inputs: Sequence[AxisLabels]) -> list[AxisLabels]:
        """Label all values, and return the labels of the outputs."""
        self.results = super().run(inputs)
        return self.results

    def step(self, equation: Equation) -> None:
        """Label the results of one equation, which is the reason for what it freezes."""
        before, self.partition.reason = self.partition.reason, equation
        super().step(equation)
        self.partition.reason = before

    def constant(self, value: Any) -> AxisLabels:
        """Return the labels of a constant."""
        known = not isinstance(value, jax.core.Tracer)
        return constant_labels(np.shape(value), value if known else None)

    def nested(self, body: Body, inputs: Sequence[AxisLabels]) -> UnitSearch:
        """Walk the equations of a loop or branch with the same partition."""
        search = UnitSearch(read_program(*body, [True] * len(inputs)), self.partition)
        search.run(inputs)
        return search

    def scan(self, equation: Equation, operands: list[AxisLabels]) -> list[AxisLabels]:
        """Label a loop; elements of its state that meet from step to step belong together."""
        parts = Scan.of(equation)
        consts, carry, stacked = parts.split(operands)
        slices = []
        for value in stacked:
            self.partition.freeze(value.labels[0])
            slices.append(AxisLabels(value.labels[1:], value.vanishes[1:], value.zero))
        body: Any = None

        # If a value no longer vanishes after a step, label the body again with that knowledge.
        def step(carry: list[AxisLabels], attempt: int) -> list[AxisLabels]:
            nonlocal body
            body = self.nested(parts.body, [*consts, *carry, *slices])
            return self.joined(carry, parts.split_results(body.results)[0])

        carry = settle(step, [self.own_labels(value) for value in carry], _changed, len(carry))
        self.bodies[equation.index] = [body]
        after, results = parts.split_results(body.results)
        return [
            *self.joined(carry, after),
            *(
                AxisLabels((np.full(parts.length, DATA), *v.labels), (False, *v.vanishes))
                for v in results
            ),
        ]

    def while_loop(self, equation: Equation, operands: list[AxisLabels]) -> list[AxisLabels]:
        """Label a loop whose number of steps is computed; see `scan`."""
        loop = WhileLoop.of(equation)
        condition_consts, body_consts, carry = loop.split(operands)
        bodies: list[UnitSearch] = []

        def step(carry: list[AxisLabels], attempt: int) -> list[AxisLabels]:
            bodies[:] = [
                self.nested(loop.condition, [*condition_consts, *carry]),
                self.nested(loop.body, [*body_consts, *carry]),
            ]
            return self.joined(carry, bodies[1].results)

        carry = settle(step, [self.own_labels(value) for value in carry], _changed, len(carry))
        self.bodies[equation.index] = bodies
        return self.joined(carry, bodies[1].results)

    def cond(self, equation: Equation, operands: list[AxisLabels]) -> list[AxisLabels]:
        """Label every branch; their results belong together."""
        bodies = [self.nested(branch, operands[1:]) for branch in branches(equation)]
        self.bodies[equation.index] = bodies
        results = bodies[0].results
        for other in bodies[1:]:
            results = self.joined(results, other.results)
        return results

    def remat(self, equation: Equation, operands: list[AxisLabels]) -> list[AxisLabels]:
        """Label a recomputed part as if its equations were inlined."""
        body = self.nested(recomputed_part(equation), operands)
        self.bodies[equation.index] = [body]
        return body.results

    def own_labels(self, value: AxisLabels) -> AxisLabels:
        """Give a constant initial state of a loop new labels; the steps determine their classes."""
        labels = tuple(
            self.partition.fresh(len(a)) if np.all(a == ANY) else a for a in value.labels
        )
        return AxisLabels(labels, value.vanishes)

    def joined(
        self, values: Sequence[AxisLabels], others: Sequence[AxisLabels]
    ) -> list[AxisLabels]:
        """Return the labels of values that may be one or the other."""
        results = []
        for one, other in zip(values, others, strict=True):
            pairs = zip(one.labels, other.labels, strict=True)
            labels = tuple(self.partition.unify(a, b) for a, b in pairs)
            both = zip(one.vanishes, other.vanishes, strict=True)
            results.append(AxisLabels(labels, tuple(a and b for a, b in both)))
        return results


def _changed(one: list[AxisLabels], other: list[AxisLabels]) -> list[int]:
    """Which carried values vanish where they did not before, or the other way round."""
    pairs = zip(one, other, strict=True)
    return [i for i, (a, b) in enumerate(pairs) if a.vanishes != b.vanishes]


class LabelledInterpreter(Interpreter):
    """A walk that knows the labels of every value, and the bodies of all control flow.

    Args:
        search: The walk that labelled the program's values.
    """

    def __init__(self, search: UnitSearch) -> None:
        super().__init__(search.program)
        self.search = search

    def bodies(self, equation: Equation) -> list[UnitSearch]:
        """Return the labelled body of a loop or recomputed part, or all branches."""
        return self.search.bodies[equation.index]

    def operand_labels(self, equation: Equation) -> list[AxisLabels]:
        """Return the labels of an equation's operands."""
        return [self.search.value(atom) for atom in equation.inputs]

    def result_labels(self, equation: Equation) -> list[AxisLabels]:
        """Return the labels of an equation's results."""
        return [self.search.values[slot] for slot in equation.outputs]


@dataclass(eq=False)
class LabelledFunction:
    """A model function with labels on the axes of all its values.

    Attributes:
        partition: Partition of the labels.
        search: The walk over its equations; its inputs are the arrays of the params, then of x.
        leaves: Leaves of the params, with their paths.
        structure: Pytree structure of the params.
        is_array: Whether each leaf is an array.
        weights: The labels of each array of the params.
        data: The labels of each array of x.
        result_structure: The pytree structure of what the function returns.
    """

    partition: Partition
    search: UnitSearch
    leaves: list[tuple[Any, Any]]
    structure: Any
    is_array: list[bool]
    weights: list[AxisLabels]
    data: list[AxisLabels]
    result_structure: Any

    def units(self) -> Units:
        """Return the units, which can be removed."""
        partition = self.partition
        frozen = partition.frozen_roots()
        inputs = {partition.root(i) for i in partition.inputs}
        members: dict[int, dict[tuple[str, int], list[int]]] = {}
        weights = iter(self.weights)
        labels_of_leaves = [next(weights) if yes else None for yes in self.is_array]
        for (path, _), value in zip(self.leaves, labels_of_leaves, strict=True):
            for axis, labels in enumerate(value.labels if value else ()):
                for index, label in enumerate(labels.tolist()):
                    root = partition.root(label) if label >= 0 else -1
                    if root >= 0 and root not in frozen:
                        places = members.setdefault(root, {})
                        places.setdefault((jax.tree_util.keystr(path), axis), []).append(index)
        numbers = {root: number for number, root in enumerate(members)}
        all_units = tuple(
            Unit(
                "input" if root in inputs else "hidden",
                tuple((path, axis, tuple(indices)) for (path, axis), indices in places.items()),
            )
            for root, places in members.items()
        )

        def unit_numbers(labels: Labels) -> np.ndarray:
            roots = [partition.root(i) if i >= 0 else -1 for i in labels.tolist()]
            return np.array([numbers.get(r, -1) for r in roots], np.int32)

        axes = [None if v is None else tuple(map(unit_numbers, v.labels)) for v in labels_of_leaves]
        return Units(all_units, self.structure.unflatten(axes), self.frozen(labels_of_leaves))

    def frozen(self, labels_of_leaves: Sequence[AxisLabels | None]) -> tuple[FrozenAxes, ...]:
        """Return which axes of the weights have no units, by the operations that are the reason."""
        reasons = self.partition.reasons()
        places: dict[tuple[str, str, bool], dict[tuple[str, int], None]] = {}
        for (path, _), value in zip(self.leaves, labels_of_leaves, strict=True):
            for axis, labels in enumerate(value.labels if value else ()):
                roots = {self.partition.root(i) for i in labels.tolist() if i >= 0}
                for equation in {r for root in roots for r in reasons.get(root, ())}:
                    name, where = (equation.name, equation.where) if equation else ("output", "")
                    known = name == "output" or UnitSearch.knows(name)
                    where_frozen = places.setdefault((name, where, known), {})
                    where_frozen[jax.tree_util.keystr(path), axis] = None
        return tuple(FrozenAxes(*reason, axes=tuple(axes)) for reason, axes in places.items())


def is_array(leaf: Any) -> bool:
    """Whether a leaf of the params has axes that can be followed."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def label_function(f: Callable[[Any, Any], Any], params: Any, x: Any) -> LabelledFunction:
    """Follow all axes through a model function; see `units`. Only shapes and dtypes matter."""
    structure: Any
    whole_structure: Any
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    leaves, whole_structure = jax.tree.flatten((params, x))
    arrays_at = [is_array(leaf) for _, leaf in paths]
    places = [i for i, yes in enumerate(arrays_at) if yes]
    inputs_at = list(range(len(paths), len(leaves)))
    arrays = [leaves[i] for i in (*places, *inputs_at)]
    trace = trace_function(f, leaves, whole_structure, [*places, *inputs_at], arrays)
    partition = Partition()
    weights = [
        AxisLabels(tuple(map(partition.fresh, np.shape(a))), (True,) * np.ndim(a))
        for a in arrays[: len(places)]
    ]
    data = [_label_data(partition, np.shape(a)) for a in arrays[len(places) :]]
    search = UnitSearch(trace.program([True] * len(arrays)), partition)
    for result in search.run([*weights, *data]):
        for labels in result.labels:
            partition.freeze(labels)
    return LabelledFunction(
        partition, search, paths, structure, arrays_at, weights, data, trace.result_structure
    )


def _label_data(partition: Partition, shape: tuple[int, ...]) -> AxisLabels:
    rows = [np.full(n, DATA) for n in shape[:1]]
    features = [partition.fresh(n) for n in shape[1:]]
    partition.inputs.update(int(i) for labels in features for i in labels if i >= 0)
    return AxisLabels((*rows, *features), (False,) * len(shape))
