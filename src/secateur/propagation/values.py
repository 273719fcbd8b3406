"""What travels through the walk: plain arrays, or uncertain values with what is known of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal
from secateur.propagation import neighbours
from secateur.propagation.loads import NO_LOADS, Loads
from secateur.propagation.neighbours import Neighbours


@dataclass(frozen=True)
class Uncertain:
    """A Gaussian belief about an intermediate array, and how it hangs together with others.

    Attributes:
        mean: means.
        variance: variances, same shape.
        loads: first-order dependence on sources it shares with other values, element by element.
        entangled: axes along which elements may be correlated (static).
        ancestors: the uncertain inputs this value depends on (static).
        steady: inside a loop body, True for what does not change from step to step.
        sums_to_one: axis along which the elements sum to one (a softmax), if any.
        neighbours: covariance with the element some places before, where known.
    """

    mean: Array
    variance: Array
    loads: Loads = NO_LOADS
    entangled: frozenset[int] = frozenset()
    ancestors: frozenset[int] = frozenset()
    steady: bool = False
    sums_to_one: int | None = None
    neighbours: Neighbours | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mean.shape

    def with_moments(self, mean: Array, variance: Array, slope: Callable[[], Array]) -> Uncertain:
        """An elementwise function of this value; ``slope()`` is E[f'], called only if needed."""
        return replace(
            self,
            mean=mean,
            variance=variance,
            loads=self.loads.scaled(slope()) if self.loads else self.loads,
            neighbours=neighbours.scaled(self.neighbours, slope),
            sums_to_one=None,
        )


def deviation(variance: Array) -> Array:
    """Standard deviation with a finite derivative at variance 0."""
    return jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).tiny))


def to_normal(value: Uncertain | Array) -> Normal | Array:
    return Normal(value.mean, value.variance) if isinstance(value, Uncertain) else value


def as_uncertain(value: Uncertain | Array) -> Uncertain:
    """A plain array as a value of variance 0."""
    if isinstance(value, Uncertain):
        return value
    value = jnp.asarray(value)
    return Uncertain(value, jnp.zeros_like(value))


def entangle(value: Uncertain) -> Uncertain:
    """The same value, with nothing known of it but its moments."""
    every = frozenset(range(np.ndim(value.mean)))
    return replace(
        value, loads=NO_LOADS, entangled=every, steady=False, sums_to_one=None, neighbours=None
    )


def spread_to(value: Uncertain, shape: tuple[int, ...]) -> Uncertain:
    """Broadcast as lax's elementwise operations do: scalars, and axes of length one."""
    if value.shape == shape:
        return value
    grown = frozenset(
        axis
        for axis, size in enumerate(shape)
        if size > 1 and (not value.shape or value.shape[axis] != size)
    )
    # The elements of the wide value are copies: their loads sit on another layout of the source.
    return replace(
        value,
        mean=jnp.broadcast_to(value.mean, shape),
        variance=jnp.broadcast_to(value.variance, shape),
        loads=value.loads.moved(
            ("spread", value.shape, shape), lambda a: jnp.broadcast_to(a, shape)
        ),
        entangled=value.entangled | grown,
        sums_to_one=None,
        neighbours=neighbours.spread(value.neighbours, value.variance, value.shape, shape),
    )
