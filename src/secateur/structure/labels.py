"""Every element of every axis has a label; elements that can only be removed together share one.

Labels are numbers with a union-find over them. Two are special: an element of an axis that counts
data (rows, positions, time) cannot belong to a unit, and an element that was made by copying or is
constant belongs to whatever it is combined with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

ANY = -1  # constant or copied: belongs to whatever it is combined with
DATA = -2  # rows, positions, time steps: not units

Labels = np.ndarray  # of integers, one for each element of an axis


@dataclass(frozen=True, eq=False)
class AxisLabels:
    """The labels along each axis of a value, and where the value vanishes with them.

    Attributes:
        labels: One array for each axis.
        vanishes: By axis, whether the elements of a unit are exactly 0 once its weights are.
        zero: Whether it is a constant 0.
    """

    labels: tuple[Labels, ...]
    vanishes: tuple[bool, ...]
    zero: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the value's shape."""
        return tuple(len(axis) for axis in self.labels)


class Partition:
    """The classes of labels (a union-find), and which of them cannot be a unit."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._frozen: dict[int, Any] = {}
        self.inputs: set[int] = set()
        self.reason: Any = None  # reason for which labels are currently being frozen

    def fresh(self, size: int) -> Labels:
        """Return new labels; an axis of length one distinguishes no units."""
        if size == 1:
            return np.full(1, ANY)
        first = len(self._parent)
        self._parent.extend(range(first, first + size))
        return np.arange(first, first + size)

    def root(self, label: int) -> int:
        """Return the label that represents all labels of its class."""
        while self._parent[label] != label:
            self._parent[label] = self._parent[self._parent[label]]
            label = self._parent[label]
        return label

    def unify(self, one: Labels, other: Labels) -> Labels:
        """Merge the classes of elements that are combined one by one."""
        if len(one) != len(other):  # an axis of length one is spread over the other
            one, other = (one, other) if len(one) > len(other) else (other, one)
            other = np.full(len(one), DATA if other[0] == DATA else ANY)
        result = one.copy()
        for i, (a, b) in enumerate(zip(one.tolist(), other.tolist(), strict=True)):
            if a >= 0 and b >= 0:
                a, b = self.root(a), self.root(b)
                if a != b:
                    self._parent[b] = a
            elif b == DATA and a >= 0:
                self._frozen.setdefault(a, self.reason)
                result[i] = DATA
            elif a == DATA and b >= 0:
                self._frozen.setdefault(b, self.reason)
            elif a == ANY:
                result[i] = b
        return result

    def freeze(self, labels: Labels) -> Labels:
        """Record that these elements cannot be units; return labels that mark this."""
        for label in labels.tolist():
            if label >= 0:
                self._frozen.setdefault(label, self.reason)
        return np.full(len(labels), DATA)

    def frozen_roots(self) -> set[int]:
        """Return the classes that cannot be units."""
        return {self.root(a) for a in self._frozen}

    def reasons(self) -> dict[int, list[Any]]:
        """Return why each class cannot be a unit."""
        found: dict[int, list[Any]] = {}
        for label, reason in self._frozen.items():
            found.setdefault(self.root(label), []).append(reason)
        return found

    def is_free(self, labels: Labels) -> bool:
        """Whether an axis has nothing that could be a unit."""
        frozen = self.frozen_roots()
        return all(a < 0 or self.root(a) in frozen for a in labels.tolist())


def constant_labels(shape: tuple[int, ...], value: Any = None) -> AxisLabels:
    """The labels of a constant; it vanishes with anything if it is 0 already."""
    zero = value is not None and np.size(value) > 0 and not np.any(np.asarray(value))
    return AxisLabels(tuple(np.full(n, ANY) for n in shape), (zero,) * len(shape), zero)
