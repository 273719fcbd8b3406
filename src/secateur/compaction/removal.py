"""The choice of units to remove, the remaining parts of each array, and the record of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.compaction.analysis import Analysis
from secateur.compaction.smaller_function import Kept

InputsLeft = tuple[int, np.ndarray, int]  # an axis of the inputs, the indices left, its old length


@dataclass(frozen=True)
class RemovedUnits:
    """Units of one kind that were removed.

    Attributes:
        where: A leaf of the params and the axis of it that distinguishes these units.
        kind: "hidden" or "input".
        units: Number of units before.
        unread: Indices, along that axis, of the removed units that were not read.
        constant: Indices of the removed units that did not depend on the data: they were 0, or
            were folded into a bias.
    """

    where: str
    kind: str
    units: int
    unread: tuple[int, ...]
    constant: tuple[int, ...]

    def __str__(self) -> str:
        left = self.units - len(self.unread) - len(self.constant)
        return (
            f"{self.where} ({self.kind}): {self.units} → {left} units, {len(self.unread)} unread, "
            f"{len(self.constant)} constant"
        )


@dataclass(frozen=True, eq=False)
class Removal:
    """The units to remove and the elements that remain.

    Attributes:
        removed: Mask of the units.
        kept: For every array of the params and each axis, the elements that remain.
        inputs: For every array of the inputs, the rest of its last axis; None for all.
    """

    removed: np.ndarray
    kept: list[Kept]
    inputs: list[InputsLeft | None]

    def shrink(self, number: int, values: Any) -> Any:
        """Return the remaining part of an array of the params, or of an array of the same shape."""
        kept = self.kept[number]
        shape = np.shape(values)[: len(kept)]  # of factors, there is an axis more
        if shape != tuple(map(len, kept)) or all(left.all() for left in kept):
            return values
        for axis, left in enumerate(kept):
            values = jnp.asarray(np.compress(left, np.asarray(values), axis))
        return values

    def shrink_inputs(self, x: Any) -> Any:
        """Return the remaining part of the inputs."""
        structure: Any
        leaves, structure = jax.tree.flatten(x)
        pairs = zip(leaves, self.inputs, strict=True)
        new = [a if at is None else jnp.take(a, at[1], at[0]) for a, at in pairs]
        return structure.unflatten(new)


def find_features(analysis: Analysis) -> list[np.ndarray]:
    """Return, for every array of the inputs, the units of its last axis, or −1."""
    return [
        analysis.unit_of(own.labels[-1]) if len(own.labels) > 1 else np.zeros(0, int)
        for own in analysis.labelled.data
    ]


def choose_units(analysis: Analysis, dead: np.ndarray, *, drop_inputs: bool) -> Removal:
    """Choose which of the dead units to remove.

    Input features are removed only on request, and only along the last axis of the inputs. An axis
    that would become empty keeps one unit, because no library supports layers without units.
    """
    is_input = np.array([unit.kind == "input" for unit in analysis.units.units], bool)
    features = find_features(analysis)
    removed = dead & ~is_input
    if drop_inputs:
        for units in features:
            removed[units[units >= 0]] = dead[units[units >= 0]]
    while True:
        padded = np.append(removed, False)
        kept = [tuple(~padded[units] for units in axes) for axes in analysis.axes]
        empty = [
            units
            for axes, lefts in zip(analysis.axes, kept, strict=True)
            for units, left in zip(axes, lefts, strict=True)
            if len(left) and not left.any()
        ]
        if not empty:
            break
        removed[empty[0][0]] = False
    inputs: list[InputsLeft | None] = []
    for units, own in zip(features, analysis.labelled.data, strict=True):
        left = ~padded[units]
        whole = bool(left.all())
        inputs.append(None if whole else (len(own.labels) - 1, np.flatnonzero(left), len(left)))
    return Removal(removed, kept, inputs)


def describe_removal(
    analysis: Analysis, removed: np.ndarray, constant: np.ndarray
) -> tuple[RemovedUnits, ...]:
    """Describe the removed units, by kind of unit."""
    groups: dict[Any, list[int]] = {}
    for number, unit in enumerate(analysis.units.units):
        key = (unit.kind, tuple((path, axis) for path, axis, _ in unit.members))
        groups.setdefault(key, []).append(number)
    records = []
    for (kind, places), numbers in groups.items():
        index = [analysis.units.units[n].members[0][2][0] for n in numbers]
        pairs: Sequence[tuple[int, int]] = [
            (n, i) for n, i in zip(numbers, index, strict=True) if removed[n]
        ]
        if pairs:
            path, axis = places[0]
            records.append(
                RemovedUnits(
                    f"{path} axis {axis}",
                    kind,
                    len(numbers),
                    tuple(i for n, i in pairs if not constant[n]),
                    tuple(i for n, i in pairs if constant[n]),
                )
            )
    return tuple(records)
