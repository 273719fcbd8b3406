"""What the steps of a scan share, because all of them use the same weights.

A loop's weights are one draw, used in every step, so a unit's error in one step is correlated with
its error in the next. Treating the steps as independent underestimates the spread of a recurrent
network by up to a factor of two. These correlations are tracked, to first order and unit by unit:

- inputs to the loop that were computed with shared weights are correlated in the same way;
- each product of a signal s_t with steady weights makes the noise η_t = s̄_t·δW, whose correlation
  with that of the step before is known:  Cov(η_t, η_{t−1}) = (s̄_t ∘ s̄_{t−1})·Var[W];
- the carry's dependence (load) on η_{t−1} is part of the loop's state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from secateur.propagation.covariances import (
    NO_LOADS,
    Key,
    Loads,
    combine_loads,
    merge_equal_sources,
    shift_array,
)
from secateur.propagation.uncertain_values import Uncertain, deviation
from secateur.propagation.unit_factors import UnitFactor


def base_of(key: Key) -> Key:
    """The source behind any rearranged view of it."""
    while isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], tuple):
        key = key[0]
    return key


def _with_base(key: Key, base: Key) -> Key:
    if base_of(key) is key or base_of(key) == key:
        return base
    return (_with_base(key[0], base), key[1])  # type: ignore[index]


def _is_weight(key: Key) -> bool:
    base = base_of(key)
    return isinstance(base, tuple) and base[0] == "weight"


def _as_previous(key: Key) -> Key:
    """The name that this step's noise has in the next step."""
    return _with_base(key, (*base_of(key)[:2], "before"))  # type: ignore[index]


@dataclass
class Recurrence:
    """The state that one step passes to the next, and the records of the current step.

    Attributes:
        load_keys: For each carried value, the sources it may depend on.
        products: Index of a product's equation → shapes of what a step stores about it.
    """

    load_keys: list[tuple[Key, ...]]
    products: dict[int, tuple[Any, Any]]
    loads: list[Loads] = field(default_factory=list)
    before: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    after: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    # How much of a source (of this step, in some layout) is there in the next step's "previous".
    kept: dict[Key, Array] = field(default_factory=dict)

    # --- the loop's state ---------------------------------------------------------------------

    @staticmethod
    def nothing(num_carry: int) -> Recurrence:
        return Recurrence([() for _ in range(num_carry)], {})

    def zeros(self, carry: Sequence[Any]) -> tuple:
        """The state before the first step; ``carry`` gives the shapes of what is carried."""

        def zero(struct: Any) -> Array:
            return jnp.zeros(struct.shape, struct.dtype)

        loads = [
            NO_LOADS.rows(keys, value.mean) if keys else None
            for keys, value in zip(self.load_keys, carry, strict=True)
        ]
        return loads, [tuple(map(zero, shapes)) for shapes in self.products.values()]

    def opened(self, state: tuple) -> Recurrence:
        """This structure, filled with the arrays of a step."""
        loads, products = state
        return Recurrence(
            self.load_keys,
            self.products,
            loads=[Loads(k, a) for k, a in zip(self.load_keys, loads, strict=True)],
            before=dict(zip(self.products, products, strict=True)),
        )

    def with_loads(self, carry: Sequence[Any]) -> list[Any]:
        return [
            replace(v, loads=loads) if isinstance(v, Uncertain) else v
            for v, loads in zip(carry, self.loads, strict=True)
        ]

    def _next_loads(self, value: Any) -> Loads:
        """A carried value's dependence on what will be the previous step's noise."""
        if not isinstance(value, Uncertain):
            return NO_LOADS
        lasting = [key for key in value.loads.keys if _is_weight(key) or key in self.kept]
        if not lasting:
            return NO_LOADS
        everything = jnp.ones_like(value.mean)
        kept = jnp.stack([self.kept.get(key, everything) for key in lasting])
        loads, _ = merge_equal_sources(
            [key if _is_weight(key) else _as_previous(key) for key in lasting],
            value.loads.rows(lasting, value.mean) * kept,
        )
        return loads.nearest()

    def closed(self, carried: Sequence[Any]) -> Recurrence:
        """The structure after a step."""
        keys = [self._next_loads(v).keys for v in carried]
        return Recurrence(keys, {i: (_struct(s), _struct(d)) for i, (s, d) in self.after.items()})

    def merged(self, other: Recurrence, *, grow: bool) -> Recurrence:
        if not grow:  # a layout that changes in every step never settles: drop those sources
            return Recurrence(self.load_keys, {**self.products})
        keys = [
            tuple(dict.fromkeys((*a, *b)))
            for a, b in zip(self.load_keys, other.load_keys, strict=True)
        ]
        return Recurrence(keys, {**self.products, **other.products})

    def differing(self, other: Recurrence) -> list[int]:
        """Return the carried values that depend on other sources; all of them, if steps do."""
        if self.products.keys() != other.products.keys():
            return list(range(len(self.load_keys)))
        pairs = zip(self.load_keys, other.load_keys, strict=True)
        return [i for i, (a, b) in enumerate(pairs) if set(a) != set(b)]

    def collected(self, step: Recurrence, carried: Sequence[Any]) -> tuple:
        """The arrays of this structure at the end of a step."""
        loads = [
            step._next_loads(value).rows(keys, value.mean) if keys else None
            for keys, value in zip(self.load_keys, carried, strict=True)
        ]
        return loads, [step.after[i] for i in self.products]

    # --- within a step --------------------------------------------------------------------------

    def product_loads(self, call: Any, x: Any, w: Any, shape: tuple[int, ...]) -> Loads:
        """Noise of a product with steady weights: the part known from the step before, the rest."""
        steady_x = isinstance(x, Uncertain) and x.steady
        steady_w = isinstance(w, Uncertain) and w.steady
        if steady_x == steady_w:
            return NO_LOADS
        weights, other = (x, w) if steady_x else (w, x)
        signal = other.mean if isinstance(other, Uncertain) else jnp.asarray(other)

        def product(factor: Array) -> Array:
            pair = (weights.variance, factor) if steady_x else (factor, weights.variance)
            return call.bind(*pair)

        spread = deviation(product(signal * signal))
        index = call.equation.index
        if index in self.before:
            last_signal, last_spread = self.before[index]
            scale = jnp.maximum(spread * last_spread, 1e-15)
            correlation = jnp.clip(product(signal * last_signal) / scale, -1.0, 1.0)
        else:
            correlation = jnp.zeros_like(spread)
        self.after[index] = (signal, spread)
        return self.noise_loads(("product", index), correlation, spread)

    def with_unit_noise(self, name: Any, value: Uncertain, factor: UnitFactor) -> Uncertain:
        """Add what a unit's sum of this step shares with its sum of the step before."""
        spread = deviation(factor.variance)
        index: Any = ("unit", name)
        if index in self.before:
            last, last_spread = self.before[index]
            scale = jnp.maximum(spread * last_spread, 1e-15)
            correlation = jnp.clip(jnp.sum(factor.array * last, axis=-1) / scale, -1.0, 1.0)
        else:
            correlation = jnp.zeros_like(spread)
        self.after[index] = (factor.array, spread)
        loads = self.noise_loads(index, correlation, spread)
        return replace(value, loads=combine_loads(value.loads, loads, 1.0, 1.0))

    def noise_loads(self, name: tuple, correlation: Array, spread: Array) -> Loads:
        """This step's noise as a part known from the step before, and a fresh part."""
        fresh = jnp.sqrt(jnp.maximum(1.0 - correlation * correlation, 1e-6))
        before, new = (*name, "before"), (*name, "new")
        self.kept[before], self.kept[new] = correlation, fresh
        return Loads((before, new), jnp.stack([correlation, fresh]) * spread[None])

    def with_input_noise(self, inputs: Sequence[Any], correlations: Sequence[Any]) -> list[Any]:
        """Noise of scanned inputs that were computed with shared weights before the loop."""
        result = []
        for i, (value, correlation) in enumerate(zip(inputs, correlations, strict=True)):
            if correlation is not None:
                spread = deviation(value.variance)
                loads = self.noise_loads(("input", i), correlation, spread)
                value = replace(value, loads=loads)
            result.append(value)
        return result

    def follow(self, key: Key, move: Callable[[Array], list[Array]], names: Sequence[Key]) -> None:
        """Apply a rearrangement of a value to the records of the sources that it depends on."""
        if key in self.kept:
            for name, array in zip(names, move(self.kept[key]), strict=True):
                self.kept.setdefault(name, array)


def correlation_with_previous(x: Any, *, reverse: bool) -> Array | None:
    """Correlation of each slice of a scanned input with the slice of the step before."""
    if not isinstance(x, Uncertain) or x.neighbours is None:
        return None
    shift = {0: -1 if reverse else 1}
    spread = deviation(x.variance)
    scale = jnp.maximum(spread * shift_array(spread, shift), 1e-15)
    return jnp.clip(x.neighbours(shift) / scale, -1.0, 1.0)


def _struct(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)
