"""What loops, branches and recomputed parts are made of, and fixed points over what loops carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from secateur.equations import compat
from secateur.equations.tracing import Equation

State = TypeVar("State")
Body = tuple[Any, list]  # an open jaxpr and its constants


@dataclass(frozen=True, eq=False)
class Scan:
    """The parts of a scan.

    Attributes:
        body: The equations of one step.
        num_consts: Number of operands that are the same in every step.
        num_carry: Number of operands that one step hands to the next.
        length: Number of steps.
        reverse: Whether the last step comes first.
        unroll: Number of steps that are compiled as one.
    """

    body: Body
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: Any

    @classmethod
    def of(cls, equation: Equation) -> Scan:
        """Return the parts of a scan's equation."""
        params = equation.params
        return cls(
            compat.open_jaxpr(params["jaxpr"]), *compat.scan_counts(equation.eqn), params["length"],
            params["reverse"], params.get("unroll", 1),
        )  # fmt: skip

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the constants, what is carried, and what each step takes a slice of."""
        end = self.num_consts + self.num_carry
        consts, carry = operands[: self.num_consts], operands[self.num_consts : end]
        return list(consts), list(carry), list(operands[end:])

    def split_results(self, results: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return what is carried, and what the steps have stacked."""
        return list(results[: self.num_carry]), list(results[self.num_carry :])


@dataclass(frozen=True, eq=False)
class WhileLoop:
    """The parts of a while loop.

    Attributes:
        condition: The equations that decide whether there is another step.
        body: The equations of one step.
        num_condition_consts: Number of operands that only the condition takes.
        num_body_consts: Number of operands that every step takes.
    """

    condition: Body
    body: Body
    num_condition_consts: int
    num_body_consts: int

    @classmethod
    def of(cls, equation: Equation) -> WhileLoop:
        """Return the parts of a while loop's equation."""
        params = equation.params
        return cls(
            compat.open_jaxpr(params["cond_jaxpr"]), compat.open_jaxpr(params["body_jaxpr"]),
            params["cond_nconsts"], params["body_nconsts"],
        )  # fmt: skip

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the constants of the condition, those of the body, and what is carried."""
        end = self.num_condition_consts + self.num_body_consts
        first, second = operands[: self.num_condition_consts], operands[self.num_condition_consts :]
        return list(first), list(second[: self.num_body_consts]), list(operands[end:])


def branches(equation: Equation) -> list[Body]:
    """Return the branches of a conditional or a switch."""
    return [compat.open_jaxpr(branch) for branch in equation.params["branches"]]


def recomputed_part(equation: Equation) -> Body:
    """Return the equations of a part that is recomputed in the backward pass."""
    return compat.open_jaxpr(equation.params["jaxpr"])


def find_fixed_point(
    step: Callable[[State, int], State],
    start: State,
    same: Callable[[State, State], bool],
    *,
    attempts: int | None = None,
) -> State:
    """Apply a step until it changes nothing: what a loop carries is what a step makes of it.

    Args:
        step: The next state, from a state and the number of the attempt.
        start: The first state.
        same: Whether two states are equal.
        attempts: Maximum number of steps. Defaults to no maximum, for steps that only ever grow.

    Returns:
        The state before the step that changed nothing, or the last state.

    Example:
        >>> find_fixed_point(lambda n, attempt: min(n + 1, 3), 0, lambda a, b: a == b)
        3
    """
    state, attempt = start, 0
    while attempts is None or attempt < attempts:
        after = step(state, attempt)
        if same(after, state):
            return state
        state, attempt = after, attempt + 1
    return state
