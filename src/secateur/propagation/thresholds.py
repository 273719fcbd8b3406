"""Comparisons of values with an order statistic of theirs: which elements are among the largest.

Gates of mixtures of experts compare their scores with the k-th largest of them. A score and the
threshold are the same number there, so they are anything but independent. Which elements are chosen
is decided at the means, like the places that `top_k` returns.
"""

from __future__ import annotations

from collections.abc import Mapping

from jax import Array

from secateur.equations import Atom, Equation, KnownValue, Slot, compat, primitives

_STATISTICS = primitives.ORDERINGS | {"reduce_max", "reduce_min"}
_CARRIERS = primitives.FIXED_MOVES | primitives.STAYS_IN_PLACE | {"max", "gather"}


def find_threshold(
    comparison: Equation, producers: Mapping[Atom, Equation]
) -> tuple[Atom, list[Equation]] | None:
    """Return what a comparison compares with an order statistic of itself, and how that is made.

    Args:
        comparison: An equation with two operands.
        producers: The equation that each slot comes from.

    Returns:
        The value, and the equations from it to the order statistic; None for other comparisons.
    """
    for value, threshold in (comparison.inputs, comparison.inputs[::-1]):
        path: list[Equation] = []
        while threshold in producers:
            producer = producers[threshold]
            path.append(producer)
            if producer.name in _STATISTICS and producer.inputs[0] is value:
                return value, path[::-1]
            place = -1 if producer.name == "max" else 0
            others = [a for a in producer.inputs if a is not producer.inputs[place]]
            if producer.name not in _CARRIERS | _STATISTICS or any(map(_is_tracked, others)):
                break
            threshold = producer.inputs[place]
    return None


def _is_tracked(atom: Atom) -> bool:
    return isinstance(atom, Slot) and atom.tracked


def compare_at(
    mean: Array, comparison: Equation, value: Atom, path: list[Equation], values: Mapping
) -> Array:
    """Return a comparison with a threshold for plain values."""
    known = {value: mean}

    def read(atom: Atom) -> Array:
        if isinstance(atom, KnownValue):
            return atom.value
        return known[atom] if atom in known else values[atom]

    for equation in (*path, comparison):
        results = compat.bind(equation.eqn, *map(read, equation.inputs))
        known.update(zip(equation.outputs, results, strict=True))
    return known[comparison.outputs[0]]
