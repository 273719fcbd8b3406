"""What travels through the walk: plain arrays, or uncertain values with what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import jax.numpy as jnp
from jax import Array

from secateur.distributions import Normal
from secateur.propagation import neighbours
from secateur.propagation.neighbours import Neighbours

Loads = dict[Hashable, Array]


@dataclass(frozen=True)
class Uncertain:
    """A Gaussian belief about an intermediate array, and how it hangs together with others.

    Attributes:
        mean: means.
        variance: variances, same shape.
        loads: first-order dependence on shared sources, element by element: the value is
            ``mean + Σ_k loads[k]·ξ_k + rest`` with ξ_k independent standard Normals that several
            values share, so that Cov(x, y) = Σ_k x.loads[k]·y.loads[k].
        entangled: axes along which elements may be correlated (static).
        ancestors: the uncertain inputs this value depends on (static).
        steady: inside a loop body, True for what does not change from step to step.
        sums_to_one: axis along which the elements sum to one (a softmax), if any.
        neighbours: covariance with the element some places before, where known.
    """

    mean: Array
    variance: Array
    loads: Loads = field(default_factory=dict)
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
        loads: Loads = {}
        if self.loads:
            factor = slope()
            loads = {k: factor * load for k, load in self.loads.items()}
        return replace(
            self,
            mean=mean,
            variance=variance,
            loads=loads,
            neighbours=neighbours.scaled(self.neighbours, slope),
            sums_to_one=None,
        )


def deviation(variance: Array) -> Array:
    """Standard deviation with a finite derivative at variance 0."""
    return jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).tiny))


def covariance(x: Uncertain, y: Uncertain) -> Array | None:
    """Cov(x, y) to first order through the sources both share; None where they share none."""
    shared = [k for k in x.loads if k in y.loads]
    if not shared:
        return None
    total = x.loads[shared[0]] * y.loads[shared[0]]
    for key in shared[1:]:
        total = total + x.loads[key] * y.loads[key]
    return total


def add_loads(x: Loads, y: Loads, x_scale: Array | float, y_scale: Array | float) -> Loads:
    """Loads of  x_scale·x + y_scale·y."""
    loads = {k: x_scale * load for k, load in x.items()}
    for k, load in y.items():
        scaled = y_scale * load
        loads[k] = loads[k] + scaled if k in loads else scaled
    return loads


def to_normal(value: Uncertain | Array) -> Normal | Array:
    return Normal(value.mean, value.variance) if isinstance(value, Uncertain) else value


def as_uncertain(value: Uncertain | Array) -> Uncertain:
    """A plain array as a value of variance 0."""
    if isinstance(value, Uncertain):
        return value
    value = jnp.asarray(value)
    return Uncertain(value, jnp.zeros_like(value))


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
        loads=move_loads(
            value.loads, ("spread", value.shape, shape), lambda a: jnp.broadcast_to(a, shape)
        ),
        entangled=value.entangled | grown,
        sums_to_one=None,
        neighbours=neighbours.spread(value.neighbours, value.variance, value.shape, shape),
    )


def move_loads(loads: Loads, name: Hashable, move: Callable[[Array], Array]) -> Loads:
    """Loads after a rearrangement: the same on the arrays, and noted in the sources' names.

    Two values keep their covariance if both were rearranged in the same way.
    """
    return {(key, name): move(load) for key, load in loads.items()}
