"""Control flow: scan, while, cond, and recomputed (remat) parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from secateur import compat
from secateur.propagation import interpreter
from secateur.propagation.loads import Loads
from secateur.propagation.noise import Counter, Tape
from secateur.propagation.program import Node, flatten
from secateur.propagation.recurrence import Recurrence, correlation_with_previous
from secateur.propagation.values import Uncertain, as_uncertain, deviation

Packed = tuple  # (mean, variance) or (array,)
# Random numbers that are drawn before a loop begins, at most; beyond, its steps draw their own.
_DRAWN_BEFORE = 4_000_000


def _pack(value: Any) -> Packed:
    return (value.mean, value.variance) if isinstance(value, Uncertain) else (jnp.asarray(value),)


def _unpack(packed: Packed, ancestors: frozenset[int]) -> Any:
    if len(packed) == 1:
        return packed[0]
    mean, variance = packed
    return interpreter.entangle(Uncertain(mean, variance, ancestors=ancestors))


def _ancestors(operands: list[Any]) -> frozenset[int]:
    found = [o.ancestors for o in operands if isinstance(o, Uncertain)]
    return frozenset().union(*found)


def _flags(values: list[Any]) -> list[bool]:
    return [isinstance(v, Uncertain) for v in values]


def _promote(values: list[Any], flags: list[bool]) -> list[Any]:
    """Plain values as Uncertain of variance 0 where a loop makes them uncertain later."""
    return [as_uncertain(v) if f else v for v, f in zip(values, flags, strict=True)]


def scan(walk: Any, node: Node, operands: list[Any]) -> list[Any]:
    """A scan with means and variances in its carry, and fresh noise in every step."""
    params = node.eqn.params
    num_consts, num_carry = compat.scan_counts(node.eqn)
    consts = operands[:num_consts]
    init = operands[num_consts : num_consts + num_carry]
    xs = operands[num_consts + num_carry :]
    ancestors = _ancestors(operands)
    jaxpr, jaxpr_consts = compat.open_jaxpr(params["jaxpr"])
    local, remembers = walk.how == "local", walk.how == "moments"
    if local:
        init = [walk.sample(v) if isinstance(v, Uncertain) else v for v in init]
    fixed_consts = [
        replace(v, steady=True, loads=Loads.of({("weight", i): deviation(v.variance)}))
        if isinstance(v, Uncertain) and remembers
        else v
        for i, v in enumerate(consts)
    ]

    reverse = params["reverse"]
    nearby = [correlation_with_previous(x, reverse=reverse) if remembers else None for x in xs]

    def body(memory: Recurrence | None, carry: list, x: tuple, key: Any, ledger: Any):
        values = [_unpack(v, ancestors) for v in x[0]]
        if memory is not None:
            carry = memory.with_loads(carry)
            values = memory.with_input_noise(values, x[1])
        inputs = [*fixed_consts, *carry, *values]
        program = flatten(jaxpr, jaxpr_consts, _flags(inputs))
        inner = interpreter.Walk(program, walk.how, key, ledger=ledger, recurrence=memory)
        results = inner.run(inputs)
        carried, made = results[:num_carry], results[num_carry:]
        if local:
            carried = [inner.sample(v) if isinstance(v, Uncertain) else v for v in carried]
        return carried, made

    x_packed = ([_pack(x) for x in xs], nearby)
    slices = jax.eval_shape(lambda xs: jax.tree.map(lambda a: a[0], xs), x_packed)
    flags = _flags(init)
    shape = Recurrence.nothing(num_carry)
    # The carry's structure (what is uncertain, which shared sources it depends on, what a step
    # must remember) is whatever a step makes of itself: iterate to the fixed point.
    for attempt in range(8):
        found: dict[str, Any] = {}
        counter = Counter()

        def probe(carry, memory, x, flags=flags, shape=shape, found=found, counter=counter):
            recurrence = shape.opened(memory) if remembers else None
            values = [_unpack(c, ancestors) for c in carry]
            carried, _ = body(recurrence, values, x, counter if local else None, None)
            found["flags"] = [a or b for a, b in zip(flags, _flags(carried), strict=True)]
            if recurrence is not None:
                found["shape"] = recurrence.closed(carried)
            return ()

        carry_packed = [_pack(v) for v in _promote(init, flags)]
        memory = shape.zeros(_promote(init, flags))
        jax.eval_shape(probe, carry_packed, memory, slices)
        new_shape = shape.merged(found["shape"], grow=attempt < 4) if remembers else shape
        if found["flags"] == flags and new_shape.same(shape):
            break
        flags, shape = found["flags"], new_shape

    start = [_pack(v) for v in _promote(init, flags)]
    ledger = walk.ledger
    seen: list[bool] = []
    noise = _drawn_before(walk, params["length"], counter) if local else None

    def step(state, x_and_noise):
        carry, memory = state
        x, drawn = x_and_noise
        key = Tape(*drawn) if isinstance(drawn, tuple) else drawn
        recurrence = shape.opened(memory) if remembers else None
        values = [_unpack(c, ancestors) for c in carry]
        rows = ledger if not seen else None  # a step may be traced more than once
        seen.append(True)
        carried, made = body(recurrence, values, x, key, rows)
        carried = _promote(carried, flags)
        remembered = memory if recurrence is None else shape.collected(recurrence, carried)
        return ([_pack(v) for v in carried], remembered), [_pack(v) for v in made]

    # A step has a hundred intermediate arrays: for the backward pass they are made again rather
    # than kept for every step of the loop.
    (final, _), stacked = jax.lax.scan(
        jax.checkpoint(step, prevent_cse=False) if remembers else step,
        (start, shape.zeros(_promote(init, flags))),
        (x_packed, noise),
        length=params["length"],
        reverse=reverse,
        unroll=params["unroll"],
    )
    walk.record(node, "scan", "loop", *_LOOP_EXACTNESS[walk.how])
    return [_unpack(v, ancestors) for v in (*final, *stacked)]


def _drawn_before(walk: Any, length: int, counter: Counter) -> Any:
    """The noise of every step of a loop: numbers and a key, or a key if they are too many."""
    keys = jax.random.split(walk.next_key(), length)
    if not 0 < length * counter.count <= _DRAWN_BEFORE:
        return keys
    return walk.noise.normal((length, counter.count), counter.dtype), keys


_LOOP_EXACTNESS = {
    "local": ("independent", "the same weights are drawn anew in every step"),
    "moments": ("first-order", "weights shared by the steps: covariance kept unit by unit"),
    "independent": ("independent", "steps count as independent"),
}


def while_loop(walk: Any, node: Node, operands: list[Any]) -> list[Any]:
    """A while loop whose condition is certain."""
    params = node.eqn.params
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts = operands[:num_cond]
    body_consts = operands[num_cond : num_cond + num_body]
    init = operands[num_cond + num_body :]
    ancestors = _ancestors(operands)
    local = walk.how == "local"
    if local:
        init = [walk.sample(v) if isinstance(v, Uncertain) else v for v in init]
    loop_key = walk.next_key() if local else None

    def run(which: str, inputs: list[Any], key: Any, ledger: Any) -> list[Any]:
        jaxpr, consts = compat.open_jaxpr(params[which])
        program = flatten(jaxpr, consts, _flags(inputs))
        inner = interpreter.Walk(program, walk.how, key, ledger=ledger)
        results = inner.run(inputs)
        if local:
            results = [inner.sample(v) if isinstance(v, Uncertain) else v for v in results]
        return results

    flags = _flags(init)
    for _ in range(len(init) + 1):
        found: list[bool] = []

        def probe(packed, flags=flags, found=found):
            values = [_unpack(v, ancestors) for v in packed]
            after = run("body_jaxpr", [*body_consts, *values], loop_key, None)
            found.extend(a or b for a, b in zip(flags, _flags(after), strict=True))
            return ()

        jax.eval_shape(probe, [_pack(v) for v in _promote(init, flags)])
        if found == flags:
            break
        flags = list(found)

    seen: list[bool] = []

    def condition(state):
        values = [_unpack(v, ancestors) for v in state[1]]
        (result,) = run("cond_jaxpr", [*cond_consts, *values], None, None)
        if isinstance(result, Uncertain):
            walk.no_rule(node, "an uncertain condition")
        return result

    def step(state):
        count, packed = state
        key = None if loop_key is None else jax.random.fold_in(loop_key, count)
        rows = walk.ledger if not seen else None
        seen.append(True)
        values = [_unpack(v, ancestors) for v in packed]
        after = run("body_jaxpr", [*body_consts, *values], key, rows)
        return count + 1, [_pack(v) for v in _promote(after, flags)]

    start = (jnp.uint32(0), [_pack(v) for v in _promote(init, flags)])
    _, final = jax.lax.while_loop(condition, step, start)
    walk.record(node, "while", "loop", "independent", "steps count as independent")
    return [_unpack(v, ancestors) for v in final]


def cond(walk: Any, node: Node, operands: list[Any]) -> list[Any]:
    """A conditional or switch with a certain index: each branch is walked."""
    index, arguments = operands[0], operands[1:]
    if isinstance(index, Uncertain):
        walk.no_rule(node, "an uncertain condition")
    ancestors = _ancestors(arguments)
    key = walk.next_key() if walk.how == "local" else None
    packed = [_pack(v) for v in arguments]

    def walked(branch: Any, values: list[Any], ledger: Any) -> list[Any]:
        jaxpr, consts = compat.open_jaxpr(branch)
        program = flatten(jaxpr, consts, _flags(values))
        return interpreter.Walk(program, walk.how, key, ledger=ledger).run(values)

    branches = node.eqn.params["branches"]
    flags = [False] * len(node.outputs)
    for branch in branches:
        found: list[bool] = []

        def probe(packed, branch=branch, found=found):
            values = [_unpack(v, ancestors) for v in packed]
            found.extend(_flags(walked(branch, values, None)))
            return ()

        jax.eval_shape(probe, packed)
        flags = [a or b for a, b in zip(flags, found, strict=True)]

    def chosen(branch: Any) -> Callable:
        def run(packed):
            values = [_unpack(v, ancestors) for v in packed]
            return [_pack(v) for v in _promote(walked(branch, values, walk.ledger), flags)]

        return run

    results = jax.lax.switch(index, [chosen(b) for b in branches], packed)
    walk.record(node, "cond", "branches", "exact")
    return [_unpack(v, ancestors) for v in results]


def remat(walk: Any, node: Node, operands: list[Any]) -> list[Any]:
    """A part that the user wants recomputed in the backward pass stays one."""
    params = node.eqn.params
    jaxpr, consts = compat.open_jaxpr(params["jaxpr"])
    ancestors = _ancestors(operands)
    key = walk.next_key() if walk.how == "local" else None

    def run(packed, key):
        values = [_unpack(v, ancestors) for v in packed]
        program = flatten(jaxpr, consts, _flags(values))
        results = interpreter.Walk(program, walk.how, key, ledger=walk.ledger).run(values)
        return [_pack(v) for v in results]

    recomputed = jax.checkpoint(
        run, prevent_cse=params.get("prevent_cse", True), policy=params.get("policy")
    )
    results = recomputed([_pack(v) for v in operands], key)
    return [_unpack(v, ancestors) for v in results]


HANDLERS: dict[str, Callable[[Any, Node, list[Any]], list[Any]]] = {
    "scan": scan,
    "while": while_loop,
    "cond": cond,
    **dict.fromkeys(compat.REMAT_NAMES, remat),
}
