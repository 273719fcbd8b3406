"""Walks a model's equations with plain and uncertain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur import compat
from secateur.propagation import univariate
from secateur.propagation.loads import NO_LOADS, Loads, combined
from secateur.propagation.noise import source
from secateur.propagation.program import (
    Atom,
    Constant,
    Group,
    Node,
    Program,
    Slot,
    restrict,
    shared_slots,
    split_affine,
    uniform_value,
    univariate_group,
)
from secateur.propagation.rules import RULES
from secateur.propagation.rules.registry import Call
from secateur.propagation.values import Uncertain, deviation


class UnsupportedOperation(NotImplementedError):
    """An uncertain value met an operation that has no rule."""


@dataclass(frozen=True)
class Row:
    """One line of the coverage table."""

    operation: str
    rule: str
    exactness: str
    remark: str
    where: str
    shape: tuple[int, ...]


class Walk:
    """One pass over a program.

    Args:
        program: flat equations.
        how: "moments", "independent" or "local".
        key: noise for "local": a key, or a source of noise (see `secateur.propagation.noise`).
        ledger: collects coverage rows, or None.
        recurrence: inside a loop body under "moments", what the steps share.
    """

    def __init__(
        self,
        program: Program,
        how: str,
        key: Any,
        *,
        ledger: list[Row] | None = None,
        recurrence: Any = None,
    ):
        self.program = program
        self.how = how
        self.noise = source(key, "local")
        self.ledger = ledger
        self.recurrence = recurrence
        self.values: dict[Slot, Any] = {}
        self.groups: dict[Slot, Group] = {}
        self.shared = shared_slots(program, elementwise_only=how == "independent")
        self.producers = {s: n for n in program.nodes for s in n.outputs}

    # --- values -----------------------------------------------------------------------------

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Evaluate the program; each result is an array or Uncertain."""
        for slot, value in zip(self.program.inputs, inputs, strict=True):
            self.store(slot, value, is_input=True)
        for node in self.program.nodes:
            self.step(node)
        return [self.value(atom) for atom in self.program.outputs]

    def store(self, slot: Slot, value: Any, *, is_input: bool = False) -> None:
        if isinstance(value, Uncertain) and slot in self.shared:
            if self.how != "local":
                value = self.as_source(slot, value)
            elif not is_input:
                # Several users must see the same draw.
                value = self.sample(value)
        self.values[slot] = value

    def as_source(self, slot: Slot, value: Uncertain) -> Uncertain:
        """Give what is not yet explained by other sources a name of its own."""
        if value.steady:
            return value  # has its own persistent source already
        own = Loads.of({slot: deviation(value.variance - value.loads.explained())})
        return replace(value, loads=combined(value.loads, own, 1.0, 1.0))

    def next_key(self) -> Array:
        return self.noise.key()

    def sample(self, value: Uncertain) -> Array:
        noise = self.noise.normal(value.shape, value.mean.dtype)
        return value.mean + deviation(value.variance) * noise

    def is_uncertain(self, atom: Atom) -> bool:
        if not isinstance(atom, Slot):
            return False
        if atom in self.values:
            return isinstance(self.values[atom], Uncertain)
        return self.is_uncertain(self.groups[atom].root)

    def value(self, atom: Atom) -> Any:
        """The value of an operand; a pending group of elementwise equations is evaluated."""
        if isinstance(atom, Constant):
            return atom.value
        if atom not in self.values:
            self.values[atom] = self.evaluate_group(self.groups[atom])
        return self.values[atom]

    # --- univariate groups --------------------------------------------------------------------

    def evaluate_group(self, group: Group) -> Any:
        last = group.nodes[-1]
        if isinstance(self.values[group.root], Uncertain) and not _is_floating(last):
            culprit = next(n for n in group.nodes if not _is_floating(n))
            self.no_rule(culprit, "a comparison or integer made from an uncertain value")
        start, end = split_affine(group)
        if self.how == "local" and start is not end:
            root = self.values[group.root]
            if isinstance(root, Uncertain):
                self.values[group.root] = self.sample(root)
                self.record(last, _label(group), "sampled here", "exact")
        root = self.values[group.root]
        if not isinstance(root, Uncertain):
            return univariate.evaluate(group, root, self.value)
        if start not in self.values:
            self.values[start] = self.affine(restrict(group, group.root, start))
        if end not in self.values:
            core = restrict(group, start, end)
            value = self.values[start]
            result = univariate.moments(core, value.mean, value.variance, self.value)
            self.record(last, _label(core), "univariate", result.how, result.remark)
            made = value.with_moments(result.mean, result.variance, result.slope)
            self.store(end, replace(made, steady=value.steady and self.is_fixed(core)))
        if end is group.result:
            return self.values[end]
        return self.affine(restrict(group, end, group.result))

    def affine(self, group: Group) -> Uncertain:
        """a·x + b: exact. The scale is the function's derivative, whatever it is written with."""
        x = self.values[group.root]
        if not group.nodes:
            return x
        mean, scale = jax.jvp(
            lambda m: univariate.evaluate(group, m, self.value), (x.mean,), (jnp.ones_like(x.mean),)
        )
        self.record(group.nodes[-1], _label(group), "affine", "exact")
        made = x.with_moments(mean, scale * scale * x.variance.astype(mean.dtype), lambda: scale)
        return replace(made, steady=x.steady and self.is_fixed(group))

    def is_fixed(self, group: Group) -> bool:
        """Whether a group has no operand that may change from step to step of a loop."""
        inside = {group.root, *(n.outputs[0] for n in group.nodes)}
        operands = [a for n in group.nodes for a in n.inputs if a not in inside]
        return all(isinstance(a, Constant) or uniform_value(a) is not None for a in operands)

    # --- equations ------------------------------------------------------------------------------

    def step(self, node: Node) -> None:
        if not any(self.is_uncertain(a) for a in node.inputs):
            results = compat.bind(node.eqn, *(self.value(a) for a in node.inputs))
            self.values.update(zip(node.outputs, results, strict=True))
            return
        group = univariate_group(node, self.groups, self.is_uncertain)
        if group is not None:
            self.groups[node.outputs[0]] = group
            return
        operands = [self.value(a) for a in node.inputs]
        if not any(isinstance(o, Uncertain) for o in operands):  # "local" has just sampled them
            self.values.update(zip(node.outputs, compat.bind(node.eqn, *operands), strict=True))
            return
        handler = loops.HANDLERS.get(node.name)
        if handler is not None:
            results = handler(self, node, operands)
        else:
            results = self.apply_rule(node, operands)
        for slot, result in zip(node.outputs, results, strict=True):
            self.store(slot, result)

    def apply_rule(self, node: Node, operands: list[Any]) -> list[Any]:
        uncertain = [isinstance(o, Uncertain) for o in operands]
        rule = RULES.get(node.name)
        if rule is None:
            self.no_rule(node)
        if self.how == "local" and not rule.is_linear(uncertain):
            operands = self.collapse(node, operands, rule)
            if not any(isinstance(o, Uncertain) for o in operands):
                self.record(node, node.name, "sampled here", "exact")
                return compat.bind(node.eqn, *operands)
        call = Call(node, self)
        results = rule.apply(call, *operands)
        self.record(node, node.name, rule.kind, call.exactness, call.remark)
        return results if node.eqn.primitive.multiple_results else [results]

    def collapse(self, node: Node, operands: list[Any], rule: Any) -> list[Any]:
        """Sample operands, activations before weights, until the rest enters linearly."""
        operands = list(operands)
        uncertain = [i for i, o in enumerate(operands) if isinstance(o, Uncertain)]
        weights_last = sorted(uncertain, key=lambda i: not operands[i].entangled)
        for i in weights_last:
            operands[i] = self.sample(operands[i])
            atom = node.inputs[i]
            if isinstance(atom, Slot):
                self.values[atom] = operands[i]
            left = [isinstance(o, Uncertain) for o in operands]
            if not any(left) or rule.is_linear(left):
                break
        return operands

    def record(
        self, node: Node, operation: str, rule: str, exactness: str, remark: str = ""
    ) -> None:
        if self.ledger is not None:
            shape = node.outputs[0].shape
            self.ledger.append(Row(operation, rule, exactness, remark, node.where, shape))

    def no_rule(self, node: Node, what: str = "an uncertain operand") -> NoReturn:
        supported = ""
        if node.name in RULES:
            supported = " Supported: certain ones."
        raise UnsupportedOperation(
            f"'{node.name}' has no rule for {what} ({node.where}).{supported} "
            f'Ways out: register one with secateur.register_rule("{node.name}"); keep the leaves '
            'that lead here certain with where=…; or use propagate(f, "global"), which needs no '
            "rules."
        )

    # --- patterns ---------------------------------------------------------------------------------

    def is_softmax_shift(self, node: Node) -> bool:
        """Whether a maximum is only subtracted, gradient stopped, from its own operand."""
        origin = node.inputs[0]
        frontier = [node.outputs[0]]
        stopped: set[Slot] = set()
        found = False
        while frontier:
            slot = frontier.pop()
            if slot in self.program.outputs:
                return False
            for user in self.program.nodes:
                if slot not in user.inputs:
                    continue
                if user.name == "sub" and slot in stopped and user.inputs[0] is origin:
                    found = True
                elif user.name in _HARMLESS_TO_A_SHIFT:
                    out = user.outputs[0]
                    if user.name == "stop_gradient" or slot in stopped:
                        stopped.add(out)
                    frontier.append(out)
                else:
                    return False
        return found

    def normalised_axis(self, node: Node) -> int | None:
        """The axis of a division x/Σx, or None for any other division."""
        slot = node.inputs[1]
        while isinstance(slot, Slot):
            producer = self.producers.get(slot)
            if producer is None:
                return None
            if producer.name == "reduce_sum":
                axes = producer.eqn.params["axes"]
                same = producer.inputs[0] is node.inputs[0] and len(axes) == 1
                return int(axes[0]) if same else None
            if producer.name not in ("broadcast_in_dim", "reshape", "expand_dims", "copy"):
                return None
            slot = producer.inputs[0]
        return None

    def logarithm_of(self, atom: Slot) -> Uncertain:
        """ln y of a positive y; exactly its argument where y is an exponential."""
        producer = self.producers.get(atom)
        if producer is not None and producer.name == "exp":
            return self.value(producer.inputs[0])
        y = self.value(atom)
        size = jnp.maximum(y.mean, jnp.finfo(y.mean.dtype).tiny ** 0.25)
        spread = jnp.log1p(y.variance / (size * size))
        return replace(
            y, mean=jnp.log(size) - 0.5 * spread, variance=spread, loads=NO_LOADS, neighbours=None
        )


_HARMLESS_TO_A_SHIFT = {
    "stop_gradient",
    "broadcast_in_dim",
    "reshape",
    "max",
    "expand_dims",
    "copy",
}


def _is_floating(node: Node) -> bool:
    return bool(jnp.issubdtype(np.dtype(node.outputs[0].dtype), jnp.floating))


def _label(group: Group) -> str:
    names = [n.name for n in group.nodes if n.name not in ("copy", "convert_element_type")]
    shown = names if len(names) <= 4 else [*names[:3], "…"]
    return "·".join(shown) or "identity"


def entangle(value: Uncertain) -> Uncertain:
    """A value of which nothing is known but its moments."""
    every = frozenset(range(np.ndim(value.mean)))
    return replace(
        value, loads=NO_LOADS, entangled=every, steady=False, sums_to_one=None, neighbours=None
    )


from secateur.propagation import loops  # noqa: E402  (loops walk bodies with Walk)
