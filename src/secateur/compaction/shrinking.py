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

from secateur import compat
from secateur.propagation import elementwise
from secateur.propagation.program import Constant, Node
from secateur.structure.find import Followed, Walked, follow, is_array
from secateur.structure.labels import Marked
from secateur.structure.rules import KEEPS_ZERO

Kept = tuple[np.ndarray, ...]  # by axis, which elements are still there


class Shrunk:
    """A function of weights, and inputs, of which some indices are gone.

    Args:
        f: the original function.
        params: weights of the original shapes; their values do not matter.
        kept: for every array of the params and each axis, which elements are left.
        kept_inputs: for every array of the inputs, the axis and the indices that are left, or None.
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
        followed = follow(self.f, self._structure.unflatten(full), input_structure.unflatten(wide))
        walk = _Smaller(followed, self.kept, self.kept_inputs)
        results = walk.run(followed.walked, [*(n for o, n in pairs if is_array(o)), *inputs])
        return followed.result_structure.unflatten(results)


def _widened(x: Any, at: Any) -> Any:
    shape = list(jnp.shape(x))
    if at is not None:
        shape[at[0]] = at[2]
    return jax.ShapeDtypeStruct(tuple(shape), jnp.result_type(x))


@dataclass(frozen=True, eq=False)
class _Spread:
    """A value to be copied along new axes; how often is known once it meets others."""

    value: Any
    shape: tuple[int, ...]
    places: tuple[int, ...]


def _real(value: Any) -> Any:
    if isinstance(value, _Spread):
        return jax.lax.broadcast_in_dim(value.value, value.shape, value.places)
    return value


class _Smaller:
    """Evaluates equations with removed labels left out."""

    def __init__(self, followed: Followed, kept: Sequence[Kept], kept_inputs: Sequence[Any]):
        self.book = followed.book
        self.gone: set[int] = set()
        for mark, axes in zip(followed.weights, kept, strict=True):
            for labels, left in zip(mark.labels, axes, strict=True):
                self.gone.update(self.book.root(i) for i in labels[~left].tolist())
        for mark, at in zip(followed.data, kept_inputs, strict=True):
            if at is not None:
                axis, left, size = at
                gone = np.setdiff1d(np.arange(size), left)
                self.gone.update(self.book.root(i) for i in mark.labels[axis][gone].tolist())

    def left(self, labels: np.ndarray) -> np.ndarray:
        """Which elements of an axis are still there."""
        there = [i < 0 or self.book.root(i) not in self.gone for i in labels.tolist()]
        return np.array(there, bool)

    def shape(self, mark: Marked) -> tuple[int, ...]:
        return tuple(int(self.left(a).sum()) for a in mark.labels)

    def fit(self, value: Any, labels: np.ndarray, axis: int, target: np.ndarray) -> Any:
        """Leave out of an axis what is not there any more in what it meets."""
        own = self.left(labels)
        if len(own) != len(target) or own[~target].sum() == 0:
            return value
        places = np.flatnonzero(target[own])
        if isinstance(value, _Spread) and axis not in value.places:
            shape = (*value.shape[:axis], len(places), *value.shape[axis + 1 :])
            return replace(value, shape=shape)
        if isinstance(value, np.ndarray):
            return np.take(value, places, axis)
        return _taken(_real(value), places, axis)

    def aligned(self, value: Any, own: Marked, target: Sequence[np.ndarray]) -> Any:
        for axis, (labels, left) in enumerate(zip(own.labels, target, strict=True)):
            value = self.fit(value, labels, axis, left)
        return value

    def run(self, walked: Walked, inputs: Sequence[Any]) -> list[Any]:
        program = walked.program
        values: dict[Any, Any] = dict(zip(program.inputs, inputs, strict=True))

        def read(atom: Any) -> Any:
            if isinstance(atom, Constant):
                known = isinstance(atom.value, jax.Array | np.ndarray)
                plain = known and not jnp.issubdtype(atom.value.dtype, jax.dtypes.extended)
                return np.asarray(atom.value) if plain else atom.value
            return values[atom]

        for node in program.nodes:
            operands = [read(a) for a in node.inputs]
            marks = [walked.mark(a) for a in node.inputs]
            results = [walked.marks[slot] for slot in node.outputs]
            inner = walked.inner[node.index]
            made = self.results(node, operands, marks, results, inner)
            values.update(zip(node.outputs, made, strict=True))
        return [_real(read(a)) for a in program.outputs]

    def results(
        self,
        node: Node,
        operands: list[Any],
        marks: list[Marked],
        results: list[Marked],
        inner: list[Walked],
    ) -> list[Any]:
        name, eqn = node.name, node.eqn
        if name == "scan":
            return self.scan(eqn, operands, marks, inner[0])
        if name in compat.REMAT_NAMES:
            return self.run(inner[0], [_real(v) for v in operands])
        if name == "cond":
            return self.cond(operands, results, inner)
        if name == "slice":
            return [self.slice(eqn, _real(operands[0]), marks[0])]
        if name == "broadcast_in_dim":
            shape = self.shape(results[0])
            places = eqn.params["broadcast_dimensions"]
            return [_Spread(_real(operands[0]), shape, tuple(places))]
        if name == "reshape":
            return [jax.lax.reshape(_real(operands[0]), self.shape(results[0]))]
        new = dict(eqn.params)
        if name == "split":
            axis = eqn.params["axis"]
            new["sizes"] = tuple(int(self.left(r.labels[axis]).sum()) for r in results)
        elif name in ("gather", "dynamic_slice"):
            pairs = zip(eqn.params["slice_sizes"], marks[0].labels, strict=True)
            new["slice_sizes"] = tuple(
                int(self.left(a).sum()) if n == len(a) else n for n, a in pairs
            )
        elif name == "dot_general":
            operands = self.met(operands, marks, _met_in_dot(eqn))
        elif name == "conv_general_dilated":
            numbers = eqn.params["dimension_numbers"]
            if eqn.params["feature_group_count"] == 1:
                operands = self.met(operands, marks, [(numbers.lhs_spec[1], numbers.rhs_spec[1])])
            else:
                new["feature_group_count"] = (
                    np.shape(_real(operands[0]))[numbers.lhs_spec[1]]
                    // (np.shape(_real(operands[1]))[numbers.rhs_spec[1]])
                )
        elif name == "concatenate":
            target = [self.left(a) for a in results[0].labels]
            along = eqn.params["dimension"]
            operands = [
                self.aligned(v, m, [_all(m, a) if a == along else t for a, t in enumerate(target)])
                for v, m in zip(operands, marks, strict=True)
            ]
        elif name in elementwise.NAMES or name in KEEPS_ZERO:
            target = [self.left(a) for a in results[0].labels]
            operands = [
                self.aligned(v, m, target) if m.labels else v
                for v, m in zip(operands, marks, strict=True)
            ]
        return compat.bind(eqn.replace(params=new), *map(_real, operands))

    def met(
        self, operands: list[Any], marks: list[Marked], pairs: Sequence[tuple[int, int]]
    ) -> list[Any]:
        """Let axes that meet have the same elements."""
        one, other = operands
        for a, b in pairs:
            labels, other_labels = marks[0].labels[a], marks[1].labels[b]
            both = self.left(labels) & self.left(other_labels)
            one = self.fit(one, labels, a, both)
            other = self.fit(other, other_labels, b, both)
        return [one, other]

    def slice(self, eqn: Any, value: Any, own: Marked) -> Any:
        starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
        strides = eqn.params["strides"] or (1,) * len(starts)
        for axis, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
            left = self.left(own.labels[axis])
            places = (np.cumsum(left) - 1)[start:limit:stride][left[start:limit:stride]]
            value = _taken(value, places, axis)
        return value

    def cond(self, operands: list[Any], results: list[Marked], inner: list[Walked]) -> list[Any]:
        def branch(walked: Walked) -> Callable[[list[Any]], list[Any]]:
            def call(given: list[Any]) -> list[Any]:
                made = zip(self.run(walked, given), walked.results, results, strict=True)
                return [self.aligned(v, m, [self.left(a) for a in r.labels]) for v, m, r in made]

            return call

        return jax.lax.switch(
            operands[0], [branch(w) for w in inner], [_real(v) for v in operands[1:]]
        )

    def scan(self, eqn: Any, operands: list[Any], marks: list[Marked], body: Walked) -> list[Any]:
        num_consts, num_carry = compat.scan_counts(eqn)
        end = num_consts + num_carry
        states = [body.marks[slot] for slot in body.program.inputs[num_consts:end]]
        target = [[self.left(a) for a in state.labels] for state in states]

        def fitted(values: Sequence[Any], own: Sequence[Marked]) -> list[Any]:
            every = zip(values, own, target, strict=True)
            return [jnp.asarray(_real(self.aligned(v, m, t))) for v, m, t in every]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            made = self.run(body, [*operands[:num_consts], *carry, *x])
            return fitted(made[:num_carry], body.results[:num_carry]), made[num_carry:]

        operands = [*map(_real, operands[:num_consts]), *operands[num_consts:]]
        start = fitted(operands[num_consts:end], marks[num_consts:end])
        last, made = jax.lax.scan(
            step, start, [_real(v) for v in operands[end:]], length=eqn.params["length"],
            reverse=eqn.params["reverse"], unroll=eqn.params.get("unroll", 1),
        )  # fmt: skip
        return [*last, *made]


def _met_in_dot(eqn: Any) -> list[tuple[int, int]]:
    (contract_x, contract_w), (batch_x, batch_w) = eqn.params["dimension_numbers"]
    return list(zip((*contract_x, *batch_x), (*contract_w, *batch_w), strict=True))


def _all(mark: Marked, axis: int) -> np.ndarray:
    return np.ones(len(mark.labels[axis]), bool)


def _taken(value: Any, places: np.ndarray, axis: int) -> Array:
    """Pick elements of an axis, by one slice where they are in a row."""
    if len(places) == jnp.shape(value)[axis]:
        return value
    if not len(places) or np.all(np.diff(places) == 1):
        start = int(places[0]) if len(places) else 0
        return jax.lax.slice_in_dim(value, start, start + len(places), axis=axis)
    return jnp.take(value, places, axis)
