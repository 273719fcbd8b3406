"""What loops, branches and recomputed parts are made of, and fixed points over what loops carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from secateur.equations import compat
from secateur.equations.tracing import read_program

State = TypeVar("State")
Body = tuple[Any, list]  # an open jaxpr and its constants
# The number of steps of a while loop is counted up to here.
_LONGEST_COUNTED = 4096


def is_number(value: Any) -> bool:
    """Whether a value is known while tracing."""
    known = isinstance(value, jax.Array | np.ndarray | np.generic | int | float)
    return known and not isinstance(value, jax.core.Tracer)


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
    def of(cls, equation: Any) -> Scan:
        """Return the parts of a scan's equation, of a program or of a jaxpr."""
        params = equation.params
        return cls(
            compat.open_jaxpr(params["jaxpr"]), *compat.scan_counts(params), params["length"],
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
    def of(cls, equation: Any) -> WhileLoop:
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

    def as_scan(self, operands: Sequence[Any]) -> Scan | None:
        """Return the loop as a scan, if its number of steps follows from numbers that are known.

        Args:
            operands: Its operands; all that are not plain numbers count as not known.
        """
        condition_consts, body_consts, carry = self.split(operands)
        condition = read_program(*self.condition, [False] * (len(condition_consts) + len(carry)))
        body = read_program(*self.body, [False] * (len(body_consts) + len(carry)))
        # What the condition reads of the state, and what that is made of in a step.
        fixed, counted = _parted(condition.needed_inputs([0]), len(condition_consts))
        steady: list[int] = []
        while True:
            steady, more = _parted(body.needed_inputs(counted), len(body_consts))
            if set(more) <= set(counted):
                break
            counted = sorted({*counted, *more})
        read = [*(condition_consts[i] for i in fixed), *(body_consts[i] for i in steady),
                *(carry[i] for i in counted)]  # fmt: skip
        if not all(map(is_number, read)):
            return None
        state = dict(enumerate(carry))
        with jax.ensure_compile_time_eval():
            for length in range(_LONGEST_COUNTED):
                (goes_on,) = condition.evaluate([*condition_consts, *state.values()], [0])
                if not goes_on:
                    return Scan(self.body, len(body_consts), len(carry), length, False, 1)
                after = body.evaluate([*body_consts, *state.values()], counted)
                state.update(zip(counted, after, strict=True))
        return None


def _parted(numbers: Sequence[int], consts: int) -> tuple[list[int], list[int]]:
    """Divide the numbers of a loop's inputs into those of constants and of carried values."""
    return [i for i in numbers if i < consts], [i - consts for i in numbers if i >= consts]


def branches(equation: Any) -> list[Body]:
    """Return the branches of a conditional or a switch."""
    return [compat.open_jaxpr(branch) for branch in equation.params["branches"]]


def recomputed_part(equation: Any) -> Body:
    """Return the equations of a part that is recomputed in the backward pass."""
    return compat.open_jaxpr(equation.params["jaxpr"])


class UnsettledLoop(RuntimeError):
    """The kind of a value that a loop carries changes with every step."""


def settle(
    step: Callable[[State, int], State],
    start: State,
    changed: Callable[[State, State], Sequence[int]],
    num_carry: int,
    *,
    where: str = "",
) -> State:
    """Apply a step until it no longer changes the state that a loop carries.

    Properties of a carried value may move on by one value per step (a delay line), so there are as
    many steps as values, and a few more.

    Args:
        step: The next state, from a state and the number of the attempt.
        start: The first state.
        changed: Function that returns the numbers of the carried values that differ between states.
        num_carry: Number of values that the loop carries.
        where: Line of user code behind the loop, for the message.

    Returns:
        The state that a step does not change.

    Raises:
        UnsettledLoop: The kind of some carried value still changes.

    Example:
        >>> settle(lambda n, attempt: min(n + 1, 3), 0, lambda a, b: [] if a == b else [0], 1)
        3
    """
    state, numbers = start, list[int]()
    for attempt in range(attempts_to_settle(num_carry) + 1):
        after = step(state, attempt)
        numbers = list(changed(after, state))
        if not numbers:
            return state
        state = after
    names = ", ".join(map(str, numbers))
    raise UnsettledLoop(
        f"the kind of carried value {names} of a loop ({where or 'no line known'}) still changes "
        f"after {attempts_to_settle(num_carry)} steps. A loop has to carry "
        "the same kind of value from step to step: a rule of yours may return a Normal in one "
        "step and an array in the next."
    )


def attempts_to_settle(num_carry: int) -> int:
    """Return the number of steps after which the values that a loop carries have settled."""
    return 2 * num_carry + 6
