"""All that compaction has to know of a model function, worked out once for its shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np

from secateur.compaction.biases import BiasedProduct, find_products
from secateur.compaction.influence import Influence
from secateur.propagation.propagator import Propagator
from secateur.propagation.values import Uncertain, as_uncertain
from secateur.pytrees import is_belief
from secateur.structure.unit_search import LabelledFunction, Units, is_array, label_function

Arrays = list[np.ndarray]


@dataclass(eq=False)
class Analysis:
    """What is known of a model function.

    Attributes:
        labelled: the function, with labels on all axes.
    """

    labelled: LabelledFunction

    @cached_property
    def units(self) -> Units:
        """Return the units."""
        return self.labelled.units()

    @cached_property
    def axes(self) -> list[tuple[np.ndarray, ...]]:
        """Return, for every array and each axis, the number of each element's unit."""
        leaves = self.labelled.structure.flatten_up_to(self.units.axes)
        return [a for a, yes in zip(leaves, self.labelled.is_array, strict=True) if yes]

    @cached_property
    def numbers(self) -> dict[int, int]:
        """Return the number of the unit for the label that stands for it."""
        partition = self.labelled.partition
        pairs: dict[int, int] = {}
        for own, axes in zip(self.labelled.weights, self.axes, strict=True):
            for labels, units in zip(own.labels, axes, strict=True):
                elements = zip(labels.tolist(), units.tolist(), strict=True)
                pairs.update((partition.root(label), unit) for label, unit in elements if unit >= 0)
        return pairs

    def unit_of(self, labels: np.ndarray) -> np.ndarray:
        """Return the number of the unit of each element of an axis; −1 for none."""
        partition = self.labelled.partition
        roots = [partition.root(i) if i >= 0 else -1 for i in labels.tolist()]
        return np.array([self.numbers.get(r, -1) for r in roots], int)

    @cached_property
    def products(self) -> list[BiasedProduct]:
        """Return the products with weights after which a bias is added."""
        return find_products(self.labelled.search.program, len(self.labelled.weights))

    @cached_property
    def influence(self) -> Influence:
        """Return what depends on what."""
        watched = [product.values for product in self.products]
        return Influence(self.labelled.search, len(self.labelled.weights), watched)

    def moments(
        self, how: str, beliefs: Sequence[Any], data: Sequence[Any]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return mean and variance of the values of all products, for some inputs."""
        means, variances = self._moments(how, list(beliefs), list(data))
        return [np.asarray(m) for m in means], [np.asarray(v) for v in variances]

    @cached_property
    def _moments(self) -> Any:
        slots = [product.values for product in self.products]

        def moments(how: str, beliefs: list[Any], data: list[Any]) -> tuple[list, list]:
            weights = [
                Uncertain(b.mean, b.variance, ancestors=frozenset({i})) if is_belief(b) else b
                for i, b in enumerate(beliefs)
            ]
            walk = Propagator(self.labelled.search.program, how, None)
            walk.run([*weights, *data])
            values = [as_uncertain(walk.value(slot)) for slot in slots]
            return [v.mean for v in values], [v.variance for v in values]

        return jax.jit(moments, static_argnums=0)

    def dead(self, alive: Sequence[np.ndarray]) -> np.ndarray:
        """Which units have no weight that the function depends on.

        Such a unit's weights may as well all be 0, and then it can be taken out.
        """
        return ~self._with_any(self.influence.influential(alive))

    def read(self, alive: Sequence[np.ndarray]) -> np.ndarray:
        """Which units something reads, also where all it reads is 0."""
        return self._with_any(self.influence.read(alive))

    def _with_any(self, masks: Sequence[np.ndarray]) -> np.ndarray:
        any_true = np.zeros(len(self.units) + 1, bool)  # the last one is for elements of no unit
        for mask, axes in zip(masks, self.axes, strict=True):
            for axis, units in enumerate(axes):
                others = tuple(a for a in range(mask.ndim) if a != axis)
                np.logical_or.at(any_true, units, mask.any(axis=others))
        return any_true[:-1]

    def members(self, chosen: np.ndarray) -> Arrays:
        """Which elements of the arrays belong to a chosen unit."""
        padded = np.append(chosen, False)
        masks = []
        for axes in self.axes:
            mask = np.zeros(tuple(map(len, axes)), bool)
            for axis, units in enumerate(axes):
                column = [-1 if a == axis else 1 for a in range(mask.ndim)]
                mask |= padded[units].reshape(column)
            masks.append(mask)
        return masks


def analyse(f: Callable[[Any, Any], Any], params: Any, x: Any) -> Analysis:
    """Follow a function's axes; the last few functions and shapes are remembered."""

    def shapes(tree: Any) -> tuple[Any, tuple[Any, ...]]:
        leaves, structure = jax.tree.flatten(tree)
        return structure, tuple(
            jax.ShapeDtypeStruct(a.shape, a.dtype) if is_array(a) else a for a in leaves
        )

    key = (f, *shapes(params), *shapes(x))
    try:
        return _analyse_shapes(*key)
    except TypeError:  # something of the user's is not hashable, or the function refuses
        return _analyse_shapes.__wrapped__(*key)


@lru_cache(maxsize=8)
def _analyse_shapes(
    f: Any, structure: Any, leaves: Any, input_structure: Any, inputs: Any
) -> Analysis:
    params, x = structure.unflatten(leaves), input_structure.unflatten(inputs)
    return Analysis(label_function(f, params, x))
