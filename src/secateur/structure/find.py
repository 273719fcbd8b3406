"""Which weights make up a unit: found by following axes through a model function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from secateur import compat
from secateur.propagation.program import Constant, Program, Slot, flatten
from secateur.structure.labels import ANY, DATA, Book, Labels, Marked, unmarked
from secateur.structure.rules import apply

__all__ = ["Unit", "Units", "units"]


@dataclass(frozen=True)
class Unit:
    """Weights that live or die together.

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


@dataclass(frozen=True, eq=False)
class Units:
    """All units of a model function.

    Attributes:
        units: in no particular order of importance.
        axes: with the structure of the params: for every array a tuple with, for each axis, the
            number of the unit of each element (−1 for none); None for other leaves.
    """

    units: tuple[Unit, ...]
    axes: Any

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
        return "\n".join(lines)


def units(f: Callable[[Any, Any], Any], params: Any, x: Any) -> Units:
    """Find the units of any model function: dense and GRU units, conv channels, heads, inputs.

    Elements of axes that meet (in a product, a sum, a concatenation …) are followed through the
    function's equations. A unit is a set of indices that nothing mixes with others but products
    with weights of its own: with all its weights 0 it has no influence, and can be taken out.

    Args:
        f: any pure JAX function `f(params, x)`; the first axis of `x` counts rows.
        params: its weights.
        x: inputs of the right shapes; their values do not matter.

    Returns:
        The `Units`. Outputs are none, nor is anything that is summed or normalised over, shuffled
        together by a reshape, or passed to an operation that is not known.

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
    return follow(f, params, x).units()


@dataclass(eq=False)
class Walked:
    """A function's equations, with the labels of every value.

    Attributes:
        program: the equations.
        marks: of every slot.
        inner: by node, the bodies of loops, branches and checkpointed calls.
        results: of the whole.
    """

    program: Program
    marks: dict[Slot, Marked] = field(default_factory=dict)
    inner: dict[int, list[Walked]] = field(default_factory=dict)
    results: list[Marked] = field(default_factory=list)

    def mark(self, atom: Any) -> Marked:
        """Return the labels of an operand."""
        if isinstance(atom, Constant):
            known = not isinstance(atom.value, jax.core.Tracer)
            return unmarked(np.shape(atom.value), atom.value if known else None)
        return self.marks[atom]


@dataclass(eq=False)
class Followed:
    """A model function whose axes have been followed.

    Attributes:
        book: of the labels.
        walked: the equations; their inputs are the arrays of the params, then those of x.
        leaves: of the params, with their paths.
        structure: of the params.
        is_array: for each leaf.
        weights: the labels of each array of the params.
        data: of each array of x.
        result_structure: of what the function returns.
    """

    book: Book
    walked: Walked
    leaves: list[tuple[Any, Any]]
    structure: Any
    is_array: list[bool]
    weights: list[Marked]
    data: list[Marked]
    result_structure: Any

    def units(self) -> Units:
        """Return what can be taken out."""
        return _collect(self.book, self.leaves, self.structure, self.is_array, self.weights)


def is_array(leaf: Any) -> bool:
    """Whether a leaf of the params has axes that can be followed."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def follow(f: Callable[[Any, Any], Any], params: Any, x: Any) -> Followed:
    """Follow all axes through a model function; see `units`. Only shapes and dtypes matter."""
    structure: Any
    input_structure: Any
    result_structure: Any = None
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    arrays_at = [is_array(leaf) for _, leaf in leaves]
    arrays = [leaf for (_, leaf), yes in zip(leaves, arrays_at, strict=True) if yes]
    inputs, input_structure = jax.tree.flatten(x)

    def flat(*given: Any) -> list:
        nonlocal result_structure
        weights = iter(given[: len(arrays)])
        filled = [
            next(weights) if yes else leaf for (_, leaf), yes in zip(leaves, arrays_at, strict=True)
        ]
        result = f(structure.unflatten(filled), input_structure.unflatten(given[len(arrays) :]))
        results, result_structure = jax.tree.flatten(result)
        return results

    jaxpr, consts = compat.trace(flat, *arrays, *inputs)
    book = Book()
    weights = [
        Marked(tuple(book.fresh(n) for n in np.shape(a)), (True,) * np.ndim(a)) for a in arrays
    ]
    data = [_of_data(book, np.shape(a)) for a in inputs]
    walked = _walk(book, jaxpr, consts, [*weights, *data])
    for result in walked.results:
        for labels in result.labels:
            book.freeze(labels)
    return Followed(book, walked, leaves, structure, arrays_at, weights, data, result_structure)


def _of_data(book: Book, shape: tuple[int, ...]) -> Marked:
    rows = [np.full(n, DATA) for n in shape[:1]]
    features = [book.fresh(n) for n in shape[1:]]
    book.inputs.update(int(i) for labels in features for i in labels if i >= 0)
    return Marked((*rows, *features), (False,) * len(shape))


def _walk(book: Book, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Marked]) -> Walked:
    walked = Walked(flatten(jaxpr, consts, [True] * len(inputs)))
    walked.marks.update(zip(walked.program.inputs, inputs, strict=True))
    for node in walked.program.nodes:
        operands = [walked.mark(a) for a in node.inputs]
        if node.name == "scan":
            results, inner = _scan(book, node.eqn, operands)
        elif node.name in compat.REMAT_NAMES:
            inner = [_walk(book, *compat.open_jaxpr(node.eqn.params["jaxpr"]), operands)]
            results = inner[0].results
        elif node.name == "cond":
            results, inner = _cond(book, node.eqn, operands)
        else:
            shapes = [slot.shape for slot in node.outputs]
            results, inner = apply(book, node.eqn, operands, shapes), []
        walked.inner[node.index] = inner
        walked.marks.update(zip(node.outputs, results, strict=True))
    walked.results = [walked.mark(a) for a in walked.program.outputs]
    return walked


def _scan(book: Book, eqn: Any, operands: Sequence[Marked]) -> tuple[list[Marked], list[Walked]]:
    num_consts, num_carry = compat.scan_counts(eqn)
    consts, rest = operands[:num_consts], operands[num_consts:]
    carry, stacked = rest[:num_carry], rest[num_carry:]
    steps = []
    for value in stacked:
        book.freeze(value.labels[0])
        steps.append(Marked(value.labels[1:], value.vanishes[1:], value.zero))
    carry = [_open(book, value) for value in carry]
    jaxpr, jaxpr_consts = compat.open_jaxpr(eqn.params["jaxpr"])
    while True:
        walked = _walk(book, jaxpr, jaxpr_consts, [*consts, *carry, *steps])
        results = walked.results
        joined = [_joined(book, a, b) for a, b in zip(carry, results[:num_carry], strict=True)]
        if all(a.vanishes == b.vanishes for a, b in zip(carry, joined, strict=True)):
            break
        carry = joined  # something does not vanish after a step: look again with that known
    length = eqn.params["length"]
    made = [
        Marked((np.full(length, DATA), *v.labels), (False, *v.vanishes))
        for v in results[num_carry:]
    ]
    return [*joined, *made], [walked]


def _cond(book: Book, eqn: Any, operands: Sequence[Marked]) -> tuple[list[Marked], list[Walked]]:
    inner = [
        _walk(book, *compat.open_jaxpr(branch), operands[1:]) for branch in eqn.params["branches"]
    ]
    joined = inner[0].results
    for other in inner[1:]:
        joined = [_joined(book, a, b) for a, b in zip(joined, other.results, strict=True)]
    return joined, inner


def _open(book: Book, value: Marked) -> Marked:
    """Give a constant start of a loop's state labels of its own: the steps say what they are."""
    labels = tuple(book.fresh(len(a)) if np.all(a == ANY) else a for a in value.labels)
    return Marked(labels, value.vanishes)


def _joined(book: Book, one: Marked, other: Marked) -> Marked:
    labels = tuple(book.unify(a, b) for a, b in zip(one.labels, other.labels, strict=True))
    pairs = zip(one.vanishes, other.vanishes, strict=True)
    return Marked(labels, tuple(a and b for a, b in pairs))


def _collect(
    book: Book, leaves: list, structure: Any, is_array: list[bool], weights: list[Marked]
) -> Units:
    frozen = book.frozen_roots()
    inputs = {book.root(i) for i in book.inputs}
    members: dict[int, dict[tuple[str, int], list[int]]] = {}
    given = iter(weights)
    marked = [next(given) if yes else None for yes in is_array]
    for (path, _), value in zip(leaves, marked, strict=True):
        for axis, labels in enumerate(value.labels if value else ()):
            for index, label in enumerate(labels.tolist()):
                root = book.root(label) if label >= 0 else -1
                if root >= 0 and root not in frozen:
                    places = members.setdefault(root, {})
                    places.setdefault((jax.tree_util.keystr(path), axis), []).append(index)
    numbers = {root: number for number, root in enumerate(members)}
    found = tuple(
        Unit(
            "input" if root in inputs else "hidden",
            tuple((path, axis, tuple(indices)) for (path, axis), indices in places.items()),
        )
        for root, places in members.items()
    )

    def numbered(labels: Labels) -> np.ndarray:
        roots = [book.root(i) if i >= 0 else -1 for i in labels.tolist()]
        return np.array([numbers.get(r, -1) for r in roots], np.int32)

    axes = [None if v is None else tuple(map(numbered, v.labels)) for v in marked]
    return Units(found, structure.unflatten(axes))
