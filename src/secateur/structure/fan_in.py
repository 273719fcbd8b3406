"""What each unit sums over: axes of the weights, and leaves that belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from secateur.equations import (
    Equation,
    Interpreter,
    Program,
    RuleTable,
    Slot,
    primitives,
    read_program,
    trace_function,
)
from secateur.equations.control_flow import Body, Scan, recomputed_part

__all__ = ["FanIn", "find_fan_in"]


class FanIn(NamedTuple):
    """The weights that the units of a layer sum over.

    Attributes:
        leaves: Numbers of the leaves of the params.
        unit_axes: For each of them, the axes that count units, in the same order for all.
    """

    leaves: tuple[int, ...]
    unit_axes: tuple[tuple[int, ...], ...]


def find_fan_in(f: Callable[[Any, Any], Any], params: Any, x: Any) -> list[FanIn]:
    """Find what each unit of a model function sums over, from its equations.

    A matrix is summed over the axes that its product contracts; its other axes count units. A bias
    (or another matrix' product) that is added to that product, unit by unit, belongs to them. Only
    leaves all of whose uses agree are found, and none that is never multiplied.

    Args:
        f: Any pure JAX function `f(params, x)`.
        params: Its weights.
        x: Inputs of the right shapes; their values do not matter.

    Example:
        >>> import jax.numpy as jnp
        >>> def f(p, x):
        ...     return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"]
        >>> params = {"b": jnp.ones(5), "v": jnp.ones((5, 2)), "w": jnp.ones((3, 5))}
        >>> for fan_in in find_fan_in(f, params, jnp.ones((8, 3))):
        ...     print(fan_in.leaves, fan_in.unit_axes)
        (0, 2) ((0,), (1,))
        (1,) ((1,),)
    """
    leaves, structure = jax.tree.flatten((params, x))
    number_of_params = len(jax.tree.leaves(params))
    places = [i for i, a in enumerate(leaves) if hasattr(a, "shape") and hasattr(a, "dtype")]
    arrays = [leaves[i] for i in places]
    trace = trace_function(f, leaves, structure, places, arrays)
    uses = LeafUses({i: tuple(np.shape(leaves[i])) for i in places if i < number_of_params})
    program = trace.program([True] * len(arrays))
    FanInSearch(program, uses).run(
        [_leaf_terms(i, np.shape(leaves[i])) if i < number_of_params else {} for i in places]
    )
    return uses.collect()


class _Term(NamedTuple):
    """How a leaf enters a value: the leaf's axis and first index there of each axis, and if raw."""

    axes: tuple[tuple[int, int] | None, ...]
    is_raw: bool


Terms = dict[int, _Term]


def _leaf_terms(leaf: int, shape: tuple[int, ...]) -> Terms:
    return {leaf: _Term(tuple((a, 0) if n > 1 else None for a, n in enumerate(shape)), True)}


@dataclass
class LeafUses:
    """What has been found about the leaves, for the whole function.

    Attributes:
        shapes: Shapes of the leaves.
    """

    shapes: dict[int, tuple[int, ...]]

    def __post_init__(self) -> None:
        self.summed: dict[int, set[frozenset[int]]] = {}
        self.torn: set[int] = set()
        self.joins: list[tuple[int, int, dict[int, int]]] = []  # axis of the one → of the other

    def sum_over(self, leaf: int, axes: frozenset[int]) -> None:
        """Note the axes of a leaf that a product contracts."""
        self.summed.setdefault(leaf, set()).add(axes)

    def unit_axes(self, leaf: int) -> tuple[int, ...]:
        """Return the axes of a leaf that count units."""
        (summed,) = self.summed.get(leaf, {frozenset()})
        shape = self.shapes[leaf]
        return tuple(a for a in range(len(shape)) if a not in summed and shape[a] > 1)

    def collect(self) -> list[FanIn]:
        """Return the leaves of each layer."""
        is_clear = {
            leaf: leaf not in self.torn and len(self.summed.get(leaf, [()])) == 1
            for leaf in self.shapes
        }
        groups: dict[int, dict[int, tuple[int, ...]]] = {
            leaf: {leaf: self.unit_axes(leaf)} for leaf, clear in is_clear.items() if clear
        }
        home = {leaf: leaf for leaf in groups}
        for one, other, axes in self.joins:
            if one not in home or other not in home or home[one] == home[other]:
                continue
            ours, theirs = groups[home[one]], groups[home[other]]
            if set(axes) != set(ours[one]) or set(axes.values()) != set(theirs[other]):
                continue
            order = [theirs[other].index(axes[a]) for a in ours[one]]
            gone = home[other]
            for leaf, own in groups.pop(gone).items():
                ours[leaf], home[leaf] = tuple(own[i] for i in order), home[one]
        found = [dict(sorted(g.items())) for g in groups.values() if g.keys() & self.summed.keys()]
        return sorted(FanIn(tuple(g), tuple(g.values())) for g in found)


class FanInSearch(Interpreter):
    """The walk that follows leaves through sums.

    Args:
        program: Flat equations.
        uses: Collects what is found, for the whole function.
    """

    rules = RuleTable()

    def __init__(self, program: Program, uses: LeafUses) -> None:
        super().__init__(program)
        self.uses = uses
        operands = [a for n in program.equations for a in n.inputs if isinstance(a, Slot)]
        results = [a for a in program.outputs if isinstance(a, Slot)]
        self.users = Counter([*operands, *results])

    def constant(self, value: Any) -> Terms:
        """Return the terms of a constant."""
        return {}

    def store(self, slot: Slot, value: Terms) -> None:
        """Keep a value; a sum that several equations read is not part of another sum."""
        if self.users[slot] > 1:
            value = {leaf: term for leaf, term in value.items() if term.is_raw}
        self.values[slot] = value

    def apply_default(self, equation: Equation, operands: list[Terms]) -> list[Terms]:
        """Discard leaves that enter operations other than sums."""
        return [{} for _ in equation.outputs]

    def scan(self, equation: Equation, operands: list[Terms]) -> list[Terms]:
        """Walk the body of a loop with its weights."""
        parts = Scan.of(equation)
        consts, carry, stacked = parts.split(operands)
        self.walk(parts.body, [*consts, *({} for _ in (*carry, *stacked))])
        return [{} for _ in equation.outputs]

    def remat(self, equation: Equation, operands: list[Terms]) -> list[Terms]:
        """Walk a recomputed part."""
        return self.walk(recomputed_part(equation), operands)

    def walk(self, body: Body, operands: Sequence[Terms]) -> list[Terms]:
        """Walk nested equations."""
        program = read_program(*body, [True] * len(operands))
        return FanInSearch(program, self.uses).run(list(operands))


_declare = FanInSearch.rules.declare
_KEEPS = primitives.IDENTITIES | {primitives.CONVERSION, "neg", "sharding_constraint"}


@_declare(*_KEEPS)
def _keep(search: FanInSearch, equation: Equation, values: list[Terms]) -> list[Terms]:
    return values[:1]


@_declare(*primitives.SUMS)
def _add(search: FanInSearch, equation: Equation, values: list[Terms]) -> list[Terms]:
    """Leaves that meet unit by unit in a sum belong together."""
    x, y = values
    for one, term in x.items():
        for other, another in y.items():
            if one == other:
                continue
            pairs = list(zip(term.axes, another.axes, strict=True))
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            # An axis that only one of them has (a bias for every position) distinguishes elements,
            # not units.
            fits = len(known) == sum(a is not None or b is not None for a, b in pairs)
            shapes = search.uses.shapes[one], search.uses.shapes[other]
            same = all(a[1] == b[1] and shapes[0][a[0]] == shapes[1][b[0]] for a, b in known)
            if fits and same:
                search.uses.joins.append((one, other, {a[0]: b[0] for a, b in known}))
    total = dict(x)
    total.update({leaf: term for leaf, term in y.items() if leaf not in x})
    return [{leaf: replace_raw(term) for leaf, term in total.items()}]


def replace_raw(term: _Term) -> _Term:
    """Return a term that has been summed."""
    return term._replace(is_raw=False)


@_declare(*primitives.PRODUCTS)
def _product(search: FanInSearch, equation: Equation, values: list[Terms]) -> list[Terms]:
    """A product with one leaf sums over the axes of it that are contracted."""
    raw = [[(leaf, t) for leaf, t in v.items() if t.is_raw] for v in values]
    if all(raw):
        search.uses.torn.update(leaf for side in raw for leaf, _ in side)
        return [{}]
    if not any(raw):
        return [{}]
    on_left = bool(raw[0])
    ((leaf, term),) = raw[0] or raw[1]
    contracted, places = _contraction(equation, on_left)
    if contracted is None or any(not _is_whole(search, leaf, term, a) for a in contracted):
        search.uses.torn.add(leaf)
        return [{}]
    own = [term.axes[a] for a in contracted]
    search.uses.sum_over(leaf, frozenset(entry[0] for entry in own if entry is not None))
    axes: list[tuple[int, int] | None] = [None] * len(equation.outputs[0].shape)
    for axis, place in places.items():
        axes[place] = term.axes[axis]
    return [{leaf: _Term(tuple(axes), False)}]


def _is_whole(search: FanInSearch, leaf: int, term: _Term, axis: int) -> bool:
    entry = term.axes[axis]
    return entry is None or entry[1] == 0


def _contraction(equation: Equation, on_left: bool) -> tuple[list[int] | None, dict[int, int]]:
    """Return which axes of an operand are contracted, and where the others go."""
    params = equation.params
    if equation.name == "conv_general_dilated":
        numbers = params["dimension_numbers"]
        if on_left or params["batch_group_count"] != 1:
            return None, {}
        out, *others = numbers.rhs_spec
        return others, {out: numbers.out_spec[1]}
    (contract_x, contract_w), (batch_x, batch_w) = params["dimension_numbers"]
    contract, batch = (contract_x, batch_x) if on_left else (contract_w, batch_w)
    rank = len(equation.inputs[0 if on_left else 1].shape)  # type: ignore[union-attr]
    free = [a for a in range(rank) if a not in {*contract, *batch}]
    first = len(batch) if on_left else len(equation.outputs[0].shape) - len(free)
    places = {a: i for i, a in enumerate(batch)} | {a: first + i for i, a in enumerate(free)}
    return list(contract), places


def _rearrange(
    values: list[Terms], change: Callable[[tuple[tuple[int, int] | None, ...]], Any]
) -> Terms:
    moved = {leaf: (change(term.axes), term.is_raw) for leaf, term in values[0].items()}
    return {leaf: _Term(tuple(axes), raw) for leaf, (axes, raw) in moved.items() if axes}


@_declare("transpose")
def _transpose(search: FanInSearch, equation: Equation, values: list[Terms]) -> list[Terms]:
    order = equation.params["permutation"]
    return [_rearrange(values, lambda axes: [axes[a] for a in order])]


@_declare("squeeze")
def _squeeze(search: FanInSearch, equation: Equation, values: list[Terms]) -> list[Terms]:
    gone = equation.params["dimensions"]
    return [_rearrange(values, lambda axes: [e for a, e in enumerate(axes) if a not in gone])]


@_declare("broadcast_in_dim")
def _broadcast(search: FanInSearch, equation: Equation, values: list[Terms]) -> list[Terms]:
    places, rank = equation.params["broadcast_dimensions"], len(equation.params["shape"])

    def spread(axes: Any) -> list[Any]:
        wide: list[Any] = [None] * rank
        for axis, place in enumerate(places):
            wide[place] = axes[axis]
        return wide

    return [_rearrange(values, spread)]


@_declare("reshape")
def _reshape(search: FanInSearch, equation: Equation, values: list[Terms]) -> list[Terms]:
    """Axes of length one may be inserted and dropped; for any other reshape, nothing is known."""
    before = [n for n in equation.inputs[0].shape if n != 1]  # type: ignore[union-attr]
    after = equation.params["new_sizes"]
    if before != [n for n in after if n != 1]:
        return [{}]
    shape = equation.inputs[0].shape  # type: ignore[union-attr]

    def reshape(axes: Any) -> list[Any]:
        wide = iter([entry for entry, n in zip(axes, shape, strict=True) if n != 1])
        return [None if n == 1 else next(wide) for n in after]

    return [_rearrange(values, reshape)]


@_declare("split")
def _split(search: FanInSearch, equation: Equation, values: list[Terms]) -> list[Terms]:
    """Gates in one matrix: the parts of a sum."""
    axis, starts = equation.params["axis"], np.cumsum((0, *equation.params["sizes"]))

    def part(start: int) -> Terms:
        def shift(axes: Any) -> list[Any]:
            entry = axes[axis]
            moved = None if entry is None else (entry[0], entry[1] + start)
            return [moved if a == axis else e for a, e in enumerate(axes)]

        return _rearrange(values, shift)

    if any(term.is_raw for term in values[0].values()):
        return [{} for _ in equation.outputs]
    return [part(int(start)) for start in starts[:-1]]
