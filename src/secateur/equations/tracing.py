"""A function as one flat list of equations, without the wrappers around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from secateur.equations import compat
from secateur.equations.expansions import expand
from secateur.equations.primitives import CALLS, KEEPS_UNIFORM, SMOOTH_CALLS


class Slot:
    """A place for one intermediate value; compared by identity.

    Attributes:
        shape: Shape of the value.
        dtype: Data type of the value.
        tracked: Whether the walk may know more about it than a plain number.
        uniform: The number that all elements are equal to, if known while tracing.
    """

    __slots__ = ("dtype", "shape", "tracked", "uniform")

    def __init__(self, aval: Any, *, tracked: bool):
        self.shape: tuple[int, ...] = tuple(getattr(aval, "shape", ()))
        self.dtype = getattr(aval, "dtype", None)
        self.tracked = tracked
        self.uniform: float | None = None


@dataclass(frozen=True, eq=False)
class KnownValue:
    """A number or array that is known while tracing."""

    value: Any


Atom = Slot | KnownValue


@dataclass(frozen=True, eq=False)
class Equation:
    """One equation with its operands resolved.

    Attributes:
        index: Number in the program.
        eqn: Equation of the jaxpr.
        inputs: Operands.
        outputs: Results.
        smooth: Whether its kinks cancel in the function that it is part of.
        where: Line of user code behind it.
    """

    index: int
    eqn: Any
    inputs: tuple[Atom, ...]
    outputs: tuple[Slot, ...]
    smooth: bool
    where: str

    @property
    def name(self) -> str:
        """Return the name of its primitive."""
        return self.eqn.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """Return the parameters of its primitive."""
        return self.eqn.params


@dataclass
class Program:
    """The equations of a function in order, from its inputs to its outputs."""

    inputs: list[Slot] = field(default_factory=list)
    outputs: list[Atom] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)

    def leading_to(self, outputs: Sequence[int]) -> tuple[list[Equation], set[Atom]]:
        """Return the equations that some outputs are made by, and all that those read."""
        needed: set[Atom] = {self.outputs[i] for i in outputs}
        kept = []
        for equation in reversed(self.equations):
            if needed.intersection(equation.outputs):
                kept.append(equation)
                needed.update(equation.inputs)
        return kept[::-1], needed

    def needed_inputs(self, outputs: Sequence[int]) -> list[int]:
        """Return the numbers of the inputs that some outputs depend on."""
        _, needed = self.leading_to(outputs)
        return [i for i, slot in enumerate(self.inputs) if slot in needed]

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[int]) -> list[Any]:
        """Return some outputs, evaluated as they are; inputs that they do not need may be None."""
        values: dict[Atom, Any] = dict(zip(self.inputs, inputs, strict=True))

        def read(atom: Atom) -> Any:
            return atom.value if isinstance(atom, KnownValue) else values[atom]

        for equation in self.leading_to(outputs)[0]:
            results = compat.bind(equation.eqn, *map(read, equation.inputs))
            values.update(zip(equation.outputs, results, strict=True))
        return [read(self.outputs[i]) for i in outputs]


def uniform_value(atom: Atom) -> float | None:
    """The value of an operand known, while tracing, to be the same number everywhere."""
    if isinstance(atom, Slot):
        return atom.uniform
    if isinstance(atom.value, jax.core.Tracer) or np.size(atom.value) > 4096:
        return None
    array = np.asarray(atom.value)
    if not array.size or array.dtype.kind not in "fiub":
        return None
    return float(array.flat[0]) if np.all(array == array.flat[0]) else None


def read_program(jaxpr: Any, consts: Sequence[Any], tracked: Sequence[bool]) -> Program:
    """Inline every wrapper that a tracked value passes through; leave the others whole.

    Args:
        jaxpr: An open jaxpr.
        consts: Values of its constant variables.
        tracked: For each input variable, whether the walk may know more about it than a number.
    """
    program = Program()
    atoms: list[Atom] = []
    for variable, flag in zip(jaxpr.invars, tracked, strict=True):
        slot = Slot(variable.aval, tracked=flag)
        program.inputs.append(slot)
        atoms.append(slot)
    program.outputs = _inline(jaxpr, consts, atoms, program.equations, smooth=False, where="")
    return program


def _inline(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Atom],
    equations: list[Equation],
    *,
    smooth: bool,
    where: str,
) -> list[Atom]:
    places: dict[Any, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
    places.update((v, KnownValue(c)) for v, c in zip(jaxpr.constvars, consts, strict=True))

    def read(atom: Any) -> Atom:
        return KnownValue(atom.val) if isinstance(atom, compat.Literal) else places[atom]

    for eqn in jaxpr.eqns:
        operands = tuple(read(a) for a in eqn.invars)
        # Equations inside JAX's own functions have no line of user code; the call has.
        line = compat.source_line(eqn) or where
        tracked = any(isinstance(a, Slot) and a.tracked for a in operands)
        inner = (wrapped_jaxpr(eqn) or expand(eqn)) if tracked else None
        if inner is not None:
            inner_jaxpr, inner_consts = inner
            inner_smooth = smooth or call_name(eqn) in SMOOTH_CALLS
            results = _inline(
                inner_jaxpr, inner_consts, operands, equations, smooth=inner_smooth, where=line
            )
            places.update(zip(eqn.outvars, results, strict=True))
            continue
        outputs = tuple(Slot(v.aval, tracked=tracked) for v in eqn.outvars)
        if eqn.primitive.name in KEEPS_UNIFORM and not tracked:
            outputs[0].uniform = uniform_value(operands[0])
        equations.append(Equation(len(equations), eqn, operands, outputs, smooth, line))
        places.update(zip(eqn.outvars, outputs, strict=True))
    return [read(a) for a in jaxpr.outvars]


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, also those of functions that are called and of loops."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner, _ = compat.open_jaxpr(part)
                if hasattr(inner, "eqns"):
                    yield from all_equations(inner)


def wrapped_jaxpr(eqn: Any) -> tuple[Any, list] | None:
    """Return the jaxpr inside a call that only wraps, or None."""
    parameter = CALLS.get(eqn.primitive.name)
    return None if parameter is None else compat.open_jaxpr(eqn.params[parameter])


def call_name(eqn: Any) -> str:
    """Return the name of the function behind a call, such as ``relu``; empty if JAX keeps none."""
    if isinstance(eqn.params.get("name"), str):
        return eqn.params["name"]
    inner = wrapped_jaxpr(eqn)
    info = getattr(inner[0], "debug_info", None) if inner else None
    return getattr(info, "func_name", "") or ""


@dataclass(frozen=True, eq=False)
class Trace:
    """A function of pytrees as a jaxpr of arrays.

    Attributes:
        jaxpr: Its equations; the inputs are the arrays, in order.
        consts: Values of the jaxpr's constant variables.
        result_structure: The pytree structure of what the function returns.
    """

    jaxpr: Any
    consts: list[Any]
    result_structure: Any

    def program(self, tracked: Sequence[bool]) -> Program:
        """Return the flat equations; see `read_program`."""
        return read_program(self.jaxpr, self.consts, tracked)


def trace_function(
    f: Callable, leaves: Sequence[Any], structure: Any, places: Sequence[int], arrays: Sequence[Any]
) -> Trace:
    """Trace ``f(*arguments)`` as a function of some leaves of its arguments.

    Args:
        f: The function.
        leaves: The leaves of the tuple of its arguments.
        structure: The pytree structure of that tuple.
        places: Which leaves are arrays; the others stay what they are.
        arrays: Arrays, or shapes and dtypes, in the places of those leaves.
    """
    result_structure: Any = None

    def flat(*arrays: Any) -> list:
        nonlocal result_structure
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        results, result_structure = jax.tree.flatten(f(*jax.tree.unflatten(structure, filled)))
        return results

    jaxpr, consts = compat.trace(flat, *arrays)
    return Trace(jaxpr, consts, result_structure)
