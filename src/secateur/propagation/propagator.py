"""The walk over a model's equations with plain and uncertain values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import (
    Atom,
    Equation,
    KnownValue,
    Program,
    Slot,
    compat,
    primitives,
    uniform_value,
)
from secateur.equations.execution import execute
from secateur.equations.primitives import Kind, Policy
from secateur.propagation import univariate
from secateur.propagation.covariances import Loads, combine_loads
from secateur.propagation.groups import (
    UnivariateGroup,
    as_number,
    extend_group,
    find_spread,
    restrict_group,
    shared_slots,
    split_affine,
)
from secateur.propagation.lookups import find_places, find_rounding
from secateur.propagation.noise import noise_source
from secateur.propagation.rules import RULES
from secateur.propagation.rules.choices import choose, is_positive, subtract
from secateur.propagation.rules.registry import Call
from secateur.propagation.shares import ShareSearch
from secateur.propagation.thresholds import compare_at, find_threshold
from secateur.propagation.uncertain_shares import SharePropagator
from secateur.propagation.uncertain_values import Uncertain, as_uncertain, deviation, spread_to
from secateur.propagation.unit_factors import (
    DROPPED,
    factor_of,
    is_torn,
    sample_units,
    scale_factor,
)


class UnsupportedOperation(NotImplementedError):
    """An uncertain value reached an operation that has no rule."""


@dataclass(frozen=True)
class CoverageRow:
    """One line of the coverage table."""

    operation: str
    rule: str
    exactness: str
    remark: str
    where: str
    shape: tuple[int, ...]


class Propagator(SharePropagator):
    """One pass over a program with plain and uncertain values.

    Args:
        program: Flat equations.
        how: "moments", "independent" or "local".
        key: Noise for "local": a key, or a source of noise (see `secateur.propagation.noise`).
        ledger: Collects coverage rows, or None.
        recurrence: Inside a loop body under "moments", what the steps share.
        portable: Whether the result will be exported, so that equations keep their form. Otherwise
            convolutions and pooling have the form that is fastest on this device, and σ and tanh
            have closed moments in float32, which are shaped for XLA (loops over long vectors of all
            rows) and not the few plain operations of quadrature.
    """

    policies = primitives.policies(
        Kind.CONTROL_FLOW, Kind.COPY, Kind.CONVERSION, Kind.ARITHMETIC, Kind.SMOOTH, Kind.KINKED,
        Kind.STEP, Kind.COMPARISON, Kind.LOGIC, Kind.CHOICE, Kind.MOVE, Kind.JOIN, Kind.LOOKUP,
        Kind.UPDATE, Kind.SEGMENT, Kind.CONTRACTION, Kind.ADDITION, Kind.REDUCTION, Kind.WINDOW,
        Kind.CUMULATIVE, Kind.ORDER, otherwise=Policy.ERROR,
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        how: str,
        key: Any,
        *,
        ledger: list[CoverageRow] | None = None,
        recurrence: Any = None,
        portable: bool = False,
    ):
        super().__init__(program)
        self.how = how
        self.noise = noise_source(key, "local")
        self.ledger = ledger
        self.recurrence = recurrence
        self.portable = portable
        self.groups: dict[Slot, UnivariateGroup] = {}
        self.rounding = find_rounding(program)
        self.places = find_places(program) if how != "local" else frozenset()
        self.spread = find_spread(program, self.rounding)
        self.shared = shared_slots(program, elementwise_only=how == "independent")
        self.shares = ShareSearch(program)
        self.shares.read = self.value
        self.shifted: dict[Atom, Atom] = {}  # differences from a shift, and what was shifted
        self.comparisons: dict[Slot, Equation] = {}  # of uncertain values, by their result

    # --- values -----------------------------------------------------------------------------

    def store_input(self, slot: Slot, value: Any) -> None:
        """Keep the value of an input; under "local", weights are sampled where they are used."""
        if self.how == "local":
            self.values[slot] = value
        else:
            self.store(slot, value)

    def store(self, slot: Slot, value: Any) -> None:
        """Keep a value; one that several equations use becomes a source they share."""
        if isinstance(value, Uncertain) and slot in self.shared:
            # Under "local", several users must see the same draw.
            is_local = self.how == "local"
            value = self.sample_shared(slot, value) if is_local else self.as_source(slot, value)
        self.values[slot] = value

    def sample_shared(self, slot: Slot, value: Uncertain) -> Array:
        """Sample a value that several equations use."""
        producer = self.shares.producers.get(slot)
        if producer is not None:
            self.record(producer, producer.name, "sampled here", "exact", "used several times")
        return self.sample(value)

    def as_source(self, slot: Slot, value: Uncertain) -> Uncertain:
        """Turn the variance that is not explained by other sources into a new source."""
        if value.steady:
            return value  # has its own persistent source already
        factor = factor_of(value)
        if factor is not None and not factor.is_raw:  # else it would count twice
            value = replace(self.end_unit(slot, value), factor=None)
        known = value.loads.nearest()
        own = Loads.of({slot: deviation(value.variance - known.explained())})
        return replace(value, loads=combine_loads(known, own, 1.0, 1.0))

    def end_unit(self, name: Any, value: Any) -> Any:
        """Record, within a loop, what a unit's sum shares with that of the next step.

        Args:
            name: The place of the sum, or another name for it that is the same in all steps.
            value: The sum.
        """
        if isinstance(name, Slot):
            producer = self.shares.producers.get(name)
            name = -1 if producer is None else producer.index
        factor = factor_of(value)
        if self.recurrence is None or factor is None or factor.is_raw or not factor.is_steady:
            return value
        return replace(self.recurrence.with_unit_noise(name, value, factor), factor=None)

    def sample(self, value: Uncertain) -> Array:
        factor = factor_of(value)
        if factor is not None and factor.is_raw:
            return sample_units(value, self.noise)
        noise = self.noise.normal(value.shape, value.mean.dtype)
        return value.mean + deviation(value.variance) * noise

    def is_uncertain(self, atom: Atom) -> bool:
        if not isinstance(atom, Slot):
            return False
        if atom in self.values:
            return isinstance(self.values[atom], Uncertain)
        return atom not in self.groups or self.is_uncertain(self.groups[atom].root)

    def value(self, atom: Atom) -> Any:
        """The value of an operand; a pending group of elementwise equations is evaluated."""
        if isinstance(atom, KnownValue):
            return atom.value
        if atom not in self.values:
            if atom not in self.groups:
                self.values[atom] = is_positive(self.difference(self.comparisons[atom]))
                return self.values[atom]
            self.values[atom] = self.evaluate_group(self.groups[atom])
        return self.values[atom]

    # --- univariate groups --------------------------------------------------------------------

    def evaluate_group(self, group: UnivariateGroup) -> Any:
        last = group.equations[-1]
        is_uncertain = isinstance(self.values[group.root], Uncertain)
        if self.how != "local" and is_uncertain and not _is_floating(last):
            if np.dtype(last.outputs[0].dtype) == bool:
                return self.evaluate_truth(group)
            culprit = next(n for n in group.equations if not _is_floating(n))
            self.no_rule(culprit, "a comparison or integer made from an uncertain value")
        if self.how != "local" and is_uncertain:
            group = self.after_logsumexp(group)
        start, end = split_affine(group)
        if self.how == "local" and start is not end:
            root = self.values[group.root]
            if isinstance(root, Uncertain):
                self.values[group.root] = self.sample(root)
                self.record(last, _label(group), "sampled here", "exact")
        root = self.values[group.root]
        if not isinstance(root, Uncertain):
            return univariate.evaluate_group(group, root, self.value)
        if start not in self.values:
            self.values[start] = self.affine(restrict_group(group, group.root, start))
        if end not in self.values:
            core = restrict_group(group, start, end)
            value = self.end_unit(start, self.values[start])
            result = univariate.moments(
                core, value.mean, value.variance, self.value, closed_sigmoids=not self.portable
            )
            torn = is_torn([value], [])
            exactness = ("independent", DROPPED) if torn else (result.how, result.remark)
            self.record(last, _label(core), "univariate", *exactness)
            value = spread_to(value, result.mean.shape)
            function = value.with_moments(result.mean, result.variance, result.slope)
            self.store(end, replace(function, steady=value.steady and self.is_fixed(core)))
        if end is group.result:
            return self.values[end]
        return self.affine(restrict_group(group, end, group.result))

    def evaluate_truth(self, group: UnivariateGroup) -> Any:
        """Return a truth value: the probability that it holds, or itself if there is no doubt."""
        root = self.values[group.root]
        known = univariate.compare_surely(group, root.mean, root.variance, self.value)
        if known is not None:
            return known
        return self.evaluate_group(as_number(group, root.mean.dtype))

    def affine(self, group: UnivariateGroup) -> Uncertain:
        """a·x + b: exact. The scale is the derivative of the function, however it is written."""
        x = self.values[group.root]
        if not group.equations:
            return x
        mean, scale = jax.jvp(
            lambda m: univariate.evaluate_group(group, m, self.value),
            (x.mean,),
            (jnp.ones_like(x.mean),),
        )
        self.record(group.equations[-1], _label(group), "affine", "exact")
        x = spread_to(x, mean.shape)
        variance = scale * scale * x.variance.astype(mean.dtype)
        result = x.with_moments(mean, variance, lambda: scale)
        result = replace(result, steady=x.steady and self.is_fixed(group))
        return scale_factor(x, result, scale)

    def is_fixed(self, group: UnivariateGroup) -> bool:
        """Whether no operand of a group may change between the steps of a loop."""
        inside = {group.root, *(s for n in group.equations for s in n.outputs)}
        operands = [a for n in group.equations for a in n.inputs if a not in inside]
        return all(isinstance(a, KnownValue) or uniform_value(a) is not None for a in operands)

    # --- equations ------------------------------------------------------------------------------

    def step(self, equation: Equation) -> None:
        """Evaluate one equation, unless it is part of a function of one uncertain value."""
        if any(self.is_uncertain(atom) for atom in equation.inputs):
            if equation.index in self.places:
                self.evaluate_place(equation)
                return
            if self.compare(equation):
                return
            group = extend_group(
                equation, self.groups, self.is_uncertain, self.rounding, self.spread
            )
            if group is not None:
                ends = ((slot, replace(group, result=slot)) for slot in equation.outputs)
                self.groups.update(ends)
                return
            if self.choose(equation):
                return
        super().step(equation)

    def evaluate_place(self, equation: Equation) -> None:
        """Evaluate an equation that makes places in a table of uncertain values, at the means."""
        operands = [self.value(atom) for atom in equation.inputs]
        results = self.bind(
            equation, *(o.mean if isinstance(o, Uncertain) else o for o in operands)
        )
        self.values.update(zip(equation.outputs, results, strict=True))
        remark = "places are those of the means"
        self.record(equation, equation.name, "place in a table", "independent", remark)

    def compare(self, equation: Equation) -> bool:
        """Record a comparison for later use; return whether it needs no evaluation now."""
        if equation.name not in primitives.OF_ITSELF:
            return False
        result, (x, y) = equation.outputs[0], equation.inputs
        if x is y:
            self.values[result] = jnp.full(result.shape, primitives.OF_ITSELF[equation.name])
            return True
        self.comparisons[result] = equation
        both = self.is_uncertain(x) and self.is_uncertain(y)
        if both and self.how != "local" and self.compare_with_threshold(equation):
            return True
        return both and self.how != "local" and equation.name in primitives.SIGNS

    def compare_with_threshold(self, equation: Equation) -> bool:
        """Evaluate a comparison of a value with an order statistic of its own, if it is one."""
        found = find_threshold(equation, self.shares.producers)
        if found is None:
            return False
        value, path = found
        at_means = compare_at(self.value(value).mean, equation, value, path, self.values)
        self.values[equation.outputs[0]] = at_means
        remark = "places are those of the means"
        self.record(equation, equation.name, "threshold", "independent", remark)
        return True

    def choose(self, equation: Equation) -> bool:
        """Evaluate the equation if it is a choice by an uncertain comparison."""
        comparison = self.comparisons.get(equation.inputs[0])  # type: ignore[arg-type]
        if equation.name != "select_n" or comparison is None or self.how == "local":
            return False
        result = equation.outputs[0]
        if comparison.name not in primitives.SIGNS or comparison.outputs[0].shape != result.shape:
            return False
        difference = self.difference(comparison)
        if_false, if_true = map(self.value, equation.inputs[1:])
        call = Call(equation, self)
        chosen = choose(call, difference, if_true, if_false)
        self.record(equation, "select_n", "choice by a sign", call.exactness, call.remark)
        self.store(result, chosen)
        return True

    def difference(self, comparison: Equation) -> Uncertain:
        """Return what is positive where a comparison holds."""
        shape = comparison.outputs[0].shape
        x, y = (spread_to(as_uncertain(self.value(a)), shape) for a in comparison.inputs)
        return subtract(x, y, primitives.SIGNS[comparison.name])

    def bind(self, equation: Equation, *operands: Any) -> list[Any]:
        """Return the results of an equation on plain arrays."""
        run = compat.bind if self.portable else execute
        return run(equation.eqn, *operands)

    def evaluate_known(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of an equation whose operands are certain."""
        return self.bind(equation, *operands)

    def is_known(self, operands: list[Any]) -> bool:
        """Whether no operand is uncertain; "local" may just have sampled them."""
        return not any(isinstance(o, Uncertain) for o in operands)

    @classmethod
    def has_rule(cls, name: str) -> bool:
        """Whether "moments" has a rule for a primitive."""
        return name in RULES or name in primitives.UNIVARIATE or super().has_rule(name)

    def apply(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of an equation for uncertain values; "local" needs no rule."""
        if self.how != "local":
            return self.apply_rule(equation, operands)
        try:
            return self.apply_rule(equation, operands)
        except UnsupportedOperation:
            return self.sample_before(equation)

    def sample_before(self, equation: Equation) -> list[Any]:
        """Return the results of an equation for samples of its operands."""
        for atom in equation.inputs:
            value = self.value(atom)
            if isinstance(value, Uncertain):
                assert isinstance(atom, Slot)
                self.values[atom] = self.sample(value)
        self.record(equation, equation.name, "sampled here", "exact")
        return self.bind(equation, *map(self.value, equation.inputs))

    def apply_rule(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of an equation by its rule for uncertain values."""
        uncertain = [isinstance(o, Uncertain) for o in operands]
        rule = RULES.get(equation.name)
        if rule is None:
            self.no_rule(equation)
        if self.how == "local" and not rule.is_linear(uncertain):
            operands = self.collapse(equation, operands, rule)
            if not any(isinstance(o, Uncertain) for o in operands):
                self.record(equation, equation.name, "sampled here", "exact")
                return self.bind(equation, *operands)
        call = Call(equation, self)
        results = rule.apply(call, *operands)
        results = list(results) if equation.eqn.primitive.multiple_results else [results]
        if is_torn(operands, results):
            call.note("independent", DROPPED)
        self.record(equation, equation.name, rule.kind, call.exactness, call.remark)
        return results

    def collapse(self, equation: Equation, operands: list[Any], rule: Any) -> list[Any]:
        """Sample operands, activations before weights, until the rest enters linearly."""
        operands = list(operands)
        uncertain = [i for i, o in enumerate(operands) if isinstance(o, Uncertain)]
        weights_last = sorted(uncertain, key=lambda i: not operands[i].entangled)
        for i in weights_last:
            operands[i] = self.sample(operands[i])
            atom = equation.inputs[i]
            if isinstance(atom, Slot):
                self.values[atom] = operands[i]
            left = [isinstance(o, Uncertain) for o in operands]
            if not any(left) or rule.is_linear(left):
                break
        return operands

    def record(
        self, equation: Equation, operation: str, rule: str, exactness: str, remark: str = ""
    ) -> None:
        if self.ledger is not None:
            shape = equation.outputs[0].shape
            self.ledger.append(
                CoverageRow(operation, rule, exactness, remark, equation.where, shape)
            )

    def no_rule(self, equation: Equation, what: str = "an uncertain operand") -> NoReturn:
        supported = ""
        if equation.name in RULES:
            supported = " Supported: certain ones."
        raise UnsupportedOperation(
            f"'{equation.name}' has no rule for {what} ({equation.where}).{supported} "
            f'Ways out: register one with secateur.register_rule("{equation.name}"); keep the '
            'leaves that lead here certain with where=…; or use "local" or "global", which draw '
            "samples and need no rules."
        )


def _is_floating(equation: Equation) -> bool:
    return bool(jnp.issubdtype(np.dtype(equation.outputs[0].dtype), jnp.floating))


def _label(group: UnivariateGroup) -> str:
    names = [n.name for n in group.equations if n.name not in ("copy", primitives.CONVERSION)]
    shown = names if len(names) <= 4 else [*names[:3], "…"]
    return "·".join(shown) or "identity"
