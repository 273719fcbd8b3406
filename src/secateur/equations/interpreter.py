"""The one walk over a function's equations; its subclasses define what a value is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from secateur.equations import compat
from secateur.equations.primitives import CONTROL_FLOW, Policies, Policy, policies
from secateur.equations.tracing import Atom, Equation, KnownValue, Program, Slot

# rule(interpreter, equation, operands) -> the values of the results
Rule = Callable[[Any, Equation, list[Any]], list[Any]]


class RuleTable(dict[str, Rule]):
    """Rules by the name of their primitive.

    Example:
        >>> rules = RuleTable()
        >>> @rules.declare("neg")
        ... def negate(interpreter, equation, operands):
        ...     return [-operands[0]]
        >>> sorted(rules)
        ['neg']
    """

    def declare(self, *names: str) -> Callable[[Rule], Rule]:
        """Declare one function, or method, as the rule of some primitives."""

        def decorate(rule: Rule) -> Rule:
            self.update(dict.fromkeys(names, rule))
            return rule

        return decorate


class Interpreter:
    """One pass over the equations of one program, on values of the subclass' own kind.

    A subclass declares `rules`, what it does with each kind of primitive (`policies`), and how
    equations without a rule are evaluated (`apply_default`). It overrides `constant` if its values
    are not arrays, the methods `scan`, `while_loop`, `cond` and `remat` if it looks into them, and
    `is_known` if equations of known operands are to be evaluated as they are.

    Args:
        program: Flat equations.
    """

    rules: ClassVar[RuleTable] = RuleTable()
    policies: ClassVar[Policies] = policies(otherwise=Policy.ERROR)

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: dict[Slot, Any] = {}

    @classmethod
    def has_rule(cls, name: str) -> bool:
        """Whether the walk has a rule for a primitive, beside what its policy says."""
        method = CONTROL_FLOW.get(name)
        looks_inside = method and getattr(cls, method) is not getattr(Interpreter, method)
        return name in cls.rules or bool(looks_inside)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Evaluate the program on these values of its inputs."""
        for slot, value in zip(self.program.inputs, inputs, strict=True):
            self.store_input(slot, value)
        for equation in self.program.equations:
            self.step(equation)
        return [self.value(atom) for atom in self.program.outputs]

    def value(self, atom: Atom) -> Any:
        """Return the value of an operand."""
        return self.constant(atom.value) if isinstance(atom, KnownValue) else self.values[atom]

    def constant(self, value: Any) -> Any:
        """Return what a constant of the function is to this walk."""
        return value

    def store_input(self, slot: Slot, value: Any) -> None:
        """Keep the value of an input."""
        self.store(slot, value)

    def store(self, slot: Slot, value: Any) -> None:
        """Keep the value of a result."""
        self.values[slot] = value

    def step(self, equation: Equation) -> None:
        """Evaluate one equation and keep its results."""
        operands = [self.value(atom) for atom in equation.inputs]
        if self.is_known(operands):
            results = self.evaluate_known(equation, operands)
        else:
            results = self.evaluate(equation, operands)
        for slot, result in zip(equation.outputs, results, strict=True):
            self.store(slot, result)

    def is_known(self, operands: list[Any]) -> bool:
        """Whether operands are plain numbers, so that the equation can be evaluated as it is."""
        return False

    def evaluate_known(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of an equation whose operands are known."""
        return compat.bind(equation.eqn, *operands)

    def evaluate(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of an equation by its rule."""
        method = CONTROL_FLOW.get(equation.name)
        if method is not None:
            return getattr(self, method)(equation, operands)
        return self.apply(equation, operands)

    def apply(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of an equation that is not control flow."""
        rule = self.rules.get(equation.name)
        return (
            self.apply_default(equation, operands)
            if rule is None
            else rule(self, equation, operands)
        )

    def apply_default(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of an equation that has no rule."""
        raise NotImplementedError(f"'{equation.name}' has no rule ({equation.where}).")

    def scan(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of a scan; its parts are in `control_flow.Scan`."""
        return self.apply_default(equation, operands)

    def while_loop(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of a while loop."""
        return self.apply_default(equation, operands)

    def cond(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of a conditional or a switch."""
        return self.apply_default(equation, operands)

    def remat(self, equation: Equation, operands: list[Any]) -> list[Any]:
        """Return the results of a part that is recomputed in the backward pass."""
        return self.apply_default(equation, operands)
