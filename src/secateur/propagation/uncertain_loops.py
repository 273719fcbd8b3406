"""Control flow with uncertain values: scan, while, cond, and recomputed (remat) parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from secateur.equations import Equation, Interpreter, read_program
from secateur.equations.control_flow import (
    Body,
    Scan,
    WhileLoop,
    attempts_to_settle,
    branches,
    recomputed_part,
    settle,
)
from secateur.propagation.covariances import NO_LOADS, Loads
from secateur.propagation.noise import DrawnNoise, NoiseCounter
from secateur.propagation.recurrence import Recurrence, correlation_with_previous
from secateur.propagation.uncertain_values import Uncertain, as_uncertain, deviation, entangle
from secateur.propagation.unit_factors import DROPPED, factor_of, is_torn

Packed = tuple  # (mean, variance) or (array,)
# Largest number of random numbers that are drawn before a loop; beyond it, every step draws its
# own.
_DRAWN_BEFORE = 4_000_000

_LOOP_EXACTNESS = {
    "local": ("independent", "the same weights are redrawn in every step"),
    "moments": ("first-order", "weights shared by the steps: covariance kept unit by unit"),
    "independent": ("independent", "steps count as independent"),
}


def _pack(values: Sequence[Any]) -> list[Packed]:
    return [(v.mean, v.variance) if isinstance(v, Uncertain) else (jnp.asarray(v),) for v in values]


def _unpack(packed: Sequence[Packed], ancestors: frozenset[int]) -> list[Any]:
    return [
        arrays[0]
        if len(arrays) == 1
        else entangle(Uncertain(mean=arrays[0], variance=arrays[1], ancestors=ancestors))
        for arrays in packed
    ]


def _ancestors(operands: list[Any]) -> frozenset[int]:
    return frozenset().union(*(o.ancestors for o in operands if isinstance(o, Uncertain)))


def _flags(values: Sequence[Any]) -> list[bool]:
    return [isinstance(v, Uncertain) for v in values]


def _differing(one: list[bool], other: list[bool]) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]


def _either(one: list[bool], other: list[bool]) -> list[bool]:
    return [a or b for a, b in zip(one, other, strict=True)]


def _promote(values: list[Any], flags: list[bool]) -> list[Any]:
    """Convert plain values to Uncertain of variance 0 where a loop makes them uncertain later."""
    return [as_uncertain(v) if f else v for v, f in zip(values, flags, strict=True)]


class LoopPropagator(Interpreter):
    """The part of `Propagator` that looks into control flow; the rest is in that class."""

    how: str
    noise: Any
    ledger: list | None
    portable: bool
    record: Callable[..., None]
    no_rule: Callable[..., Any]
    sample: Callable[[Uncertain], Any]

    def nested(
        self, body: Body, inputs: list[Any], key: Any, *, ledger: Any = None, recurrence: Any = None
    ) -> Any:
        """Return a walk of the same kind over the equations of a loop or branch."""
        program = read_program(*body, _flags(inputs))
        walk: Any = type(self)
        return walk(
            program, self.how, key, ledger=ledger, recurrence=recurrence,
            portable=self.portable,
        )  # fmt: skip

    def branch_key(self) -> Any:
        """Return a separate key for a nested walk, if it draws."""
        return self.noise.key() if self.how == "local" else None

    def sampled(self, values: Sequence[Any]) -> list[Any]:
        """Return what a loop carries: samples under "local"."""
        if self.how != "local":
            return list(values)
        return [self.sample(v) if isinstance(v, Uncertain) else v for v in values]

    def scan(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """A scan with means and variances in its carry, and fresh noise in every step."""
        results = _ScanPropagation(self, Scan.of(equation), operands, equation.where).run()
        exactness, remark = _LOOP_EXACTNESS[self.how]
        constants, init, stacked = Scan.of(equation).split(operands)
        lowered = [f for f in map(factor_of, constants) if f is not None and f.lowers]
        if lowered or is_torn([*init, *stacked], []):
            exactness, remark = "independent", f"{remark}; {DROPPED}"
        self.record(equation, "scan", "loop", exactness, remark)
        return results

    def while_loop(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """A while loop whose condition is certain; as a scan, if its steps can be counted."""
        loop = WhileLoop.of(equation)
        counted = loop.as_scan(operands)
        if counted is not None:
            _, consts, carry = loop.split(operands)
            results = _ScanPropagation(self, counted, [*consts, *carry], equation.where).run()
            self.record(equation, "while", "loop", *_LOOP_EXACTNESS[self.how])
            return results
        condition_consts, body_consts, init = loop.split(operands)
        ancestors = _ancestors(operands)
        init, condition_consts = self.sampled(init), self.sampled(condition_consts)
        loop_key = self.branch_key()

        def run(body: Body, inputs: list[Any], key: Any, ledger: Any) -> list[Any]:
            inner = self.nested(body, inputs, key, ledger=ledger)
            return inner.sampled(inner.run(inputs))

        def flags_after(flags: list[bool], attempt: int) -> list[bool]:
            after: list[bool] = []

            def probe(packed):
                inputs = [*body_consts, *_unpack(packed, ancestors)]
                after.extend(_either(flags, _flags(run(loop.body, inputs, loop_key, None))))
                return ()

            jax.eval_shape(probe, _pack(_promote(init, flags)))
            return after

        flags = settle(flags_after, _flags(init), _differing, len(init), where=equation.where)
        traced: list[bool] = []

        def condition(state):
            inputs = [*condition_consts, *_unpack(state[1], ancestors)]
            (result,) = run(loop.condition, inputs, None, None)
            if isinstance(result, Uncertain):
                self.no_rule(equation, "an uncertain condition")
            return result

        def step(state):
            count, packed = state
            key = None if loop_key is None else jax.random.fold_in(loop_key, count)
            rows = self.ledger if not traced else None
            traced.append(True)
            after = run(loop.body, [*body_consts, *_unpack(packed, ancestors)], key, rows)
            return count + 1, _pack(_promote(after, flags))

        start = (jnp.uint32(0), _pack(_promote(init, flags)))
        _, final = jax.lax.while_loop(condition, step, start)
        rule = "sampled here" if self.how == "local" else "loop"
        self.record(equation, "while", rule, "independent", "steps count as independent")
        return _unpack(final, ancestors)

    def cond(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """A conditional or switch with a certain index: each branch is walked."""
        index, arguments = operands[0], operands[1:]
        if isinstance(index, Uncertain):
            self.no_rule(equation, "an uncertain condition")
        ancestors = _ancestors(arguments)
        key = self.branch_key()
        packed = _pack(arguments)

        def run(branch: Body, packed: list[Packed], ledger: Any) -> list[Any]:
            values = _unpack(packed, ancestors)
            return self.nested(branch, values, key, ledger=ledger).run(values)

        flags = [False] * len(equation.outputs)
        for branch in branches(equation):
            branch_flags: list[bool] = []

            def probe(packed, branch=branch, branch_flags=branch_flags):
                branch_flags.extend(_flags(run(branch, packed, None)))
                return ()

            jax.eval_shape(probe, packed)
            flags = _either(flags, branch_flags)

        def promoted(branch: Body) -> Callable:
            return lambda packed: _pack(_promote(run(branch, packed, self.ledger), flags))

        results = jax.lax.switch(index, [promoted(b) for b in branches(equation)], packed)
        self.record(equation, "cond", "branches", "exact")
        return _unpack(results, ancestors)

    def remat(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """A part that is recomputed in the backward pass remains one."""
        params = equation.params
        body, ancestors = recomputed_part(equation), _ancestors(operands)

        def run(packed, key):
            values = _unpack(packed, ancestors)
            return _pack(self.nested(body, values, key, ledger=self.ledger).run(values))

        recomputed = jax.checkpoint(
            run, prevent_cse=params.get("prevent_cse", True), policy=params.get("policy")
        )
        return _unpack(recomputed(_pack(operands), self.branch_key()), ancestors)


def _as_steady(number: int, weight: Uncertain) -> Uncertain:
    """Return a weight of a loop as one that is the same in all of its steps."""
    factor = factor_of(weight)
    if (
        factor is not None and factor.is_raw and not factor.lowers
    ):  # its units track what they share
        return replace(weight, steady=True, loads=NO_LOADS, factor=replace(factor, is_steady=True))
    loads = Loads.of({("weight", number): deviation(weight.variance)})
    return replace(weight, steady=True, loads=loads, factor=None)


class _ScanPropagation:
    """One scan with uncertain operands."""

    def __init__(self, walk: LoopPropagator, parts: Scan, operands: list[Any], where: str) -> None:
        self.walk, self.parts, self.where = walk, parts, where
        self.local, self.remembers = walk.how == "local", walk.how == "moments"
        consts, init, xs = self.parts.split(operands)
        self.ancestors = _ancestors(operands)
        self.init = walk.sampled(init)
        self.consts = [
            _as_steady(i, v) if isinstance(v, Uncertain) and self.remembers else v
            for i, v in enumerate(consts)
        ]
        nearby = [
            correlation_with_previous(x, reverse=self.parts.reverse) if self.remembers else None
            for x in xs
        ]
        self.x_packed = (_pack(xs), nearby)

    def step(self, memory: Recurrence | None, carry: list, x: tuple, key: Any, ledger: Any):
        """Walk the body once: what is carried, and what is stacked."""
        values = _unpack(x[0], self.ancestors)
        if memory is not None:
            carry = memory.with_loads(carry)
            values = memory.with_input_noise(values, x[1])
        inputs = [*self.consts, *carry, *values]
        inner = self.walk.nested(self.parts.body, inputs, key, ledger=ledger, recurrence=memory)
        carried, stacked = self.parts.split_results(inner.run(inputs))
        ended = [
            inner.end_unit(("carry", i), v) if isinstance(v, Uncertain) else v
            for i, v in enumerate(carried)
        ]
        return inner.sampled(ended), stacked

    def find_structure(self) -> tuple[list[bool], Recurrence, NoiseCounter]:
        """Return the carry's structure, and a count of the random numbers that a step draws.

        The structure (what is uncertain, on which shared sources it depends, what a step must
        store) is a fixed point of the step.
        """
        slices = jax.eval_shape(lambda xs: jax.tree.map(lambda a: a[0], xs), self.x_packed)
        counter, count = NoiseCounter(), self.parts.num_carry
        # A source may move on by one carried value per step. A layout that changes in every step
        # never settles, so no more sources are added after that.
        last_to_grow = attempts_to_settle(count) - count - 2

        def structure_after(structure: tuple, attempt: int) -> tuple:
            nonlocal counter
            flags, shape = structure
            counter = NoiseCounter()
            after: list[Any] = []

            def probe(carry, memory, x):
                recurrence = shape.opened(memory) if self.remembers else None
                key = counter if self.local else None
                carried, _ = self.step(recurrence, _unpack(carry, self.ancestors), x, key, None)
                after.append(_either(flags, _flags(carried)))
                after.append(None if recurrence is None else recurrence.closed(carried))
                return ()

            init = _promote(self.init, flags)
            jax.eval_shape(probe, _pack(init), shape.zeros(init), slices)
            if not self.remembers:
                return after[0], shape
            return after[0], shape.merged(after[1], grow=attempt < last_to_grow)

        flags, shape = settle(
            structure_after,
            (_flags(self.init), Recurrence.nothing(count)),
            lambda a, b: sorted({*_differing(a[0], b[0]), *a[1].differing(b[1])}),
            count,
            where=self.where,
        )
        return flags, shape, counter

    def run(self) -> list[Any]:
        """Return the results of the scan."""
        flags, shape, counter = self.find_structure()
        init = _promote(self.init, flags)
        traced: list[bool] = []

        def step(state, x_and_noise):
            carry, memory = state
            x, drawn = x_and_noise
            key = DrawnNoise(*drawn) if isinstance(drawn, tuple) else drawn
            recurrence = shape.opened(memory) if self.remembers else None
            rows = self.walk.ledger if not traced else None  # a step may be traced several times
            traced.append(True)
            carried, stacked = self.step(recurrence, _unpack(carry, self.ancestors), x, key, rows)
            carried = _promote(carried, flags)
            remembered = memory if recurrence is None else shape.collected(recurrence, carried)
            return (_pack(carried), remembered), _pack(stacked)

        # A step has a hundred intermediate arrays, which are recomputed in the backward pass rather
        # than stored for every step of the loop.
        (final, _), stacked = jax.lax.scan(
            jax.checkpoint(step, prevent_cse=False) if self.remembers else step,
            (_pack(init), shape.zeros(init)),
            (self.x_packed, self.draw_noise(counter) if self.local else None),
            length=self.parts.length,
            reverse=self.parts.reverse,
            unroll=self.parts.unroll,
        )
        return _unpack((*final, *stacked), self.ancestors)

    def draw_noise(self, counter: NoiseCounter) -> Any:
        """Draw the noise of every step: numbers and a key, or a key if they are too many."""
        noise, length = self.walk.noise, self.parts.length
        keys = jax.random.split(noise.key(), length)
        if not 0 < length * counter.count <= _DRAWN_BEFORE:
            return keys
        return noise.normal((length, counter.count), counter.dtype), keys
