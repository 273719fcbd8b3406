"""Softmax and logsumexp of uncertain values, taken as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.equations import Atom, Equation, Slot
from secateur.propagation.covariances import NO_LOADS
from secateur.propagation.groups import UnivariateGroup, find_logarithm, restrict_group
from secateur.propagation.shares import MOST_IN_PAIRS, ShareSearch, logsumexp_moments
from secateur.propagation.uncertain_loops import LoopPropagator
from secateur.propagation.uncertain_values import Uncertain


class SharePropagator(LoopPropagator):
    """The part of `Propagator` that looks into softmax-like equations; the rest is in that class.

    Attributes:
        shares: Finds them.
        shared: Slots whose uncertainty reaches several places.
        shifted: Differences from a shift, and what was shifted.
    """

    shares: ShareSearch
    shared: set[Slot]
    shifted: dict[Atom, Atom]
    as_source: Callable[[Slot, Uncertain], Uncertain]

    def is_shift(self, equation: Equation) -> bool:
        """Whether a maximum is only the shift of a softmax, which may be evaluated at the mean."""
        differences = self.shares.differences_from(equation)
        self.shifted.update((n.outputs[0], n.inputs[0]) for n in differences)
        return bool(differences)

    def after_logsumexp(self, group: UnivariateGroup) -> UnivariateGroup:
        """Return what is left of a group that begins with ln Σ exp, which is taken as a whole."""
        logarithm = find_logarithm(group)
        sharing = None if logarithm is None else self.shares.sharing(group.root)
        if logarithm is None or sharing is None or sharing.axis is None:
            return group
        assert isinstance(sharing.exponentials, Slot)
        producer = self.shares.producers.get(sharing.exponentials)
        axis, result = sharing.axis, logarithm.outputs[0]
        if producer is None or producer.name != "exp":
            return group
        shape = producer.outputs[0].shape
        if shape[axis] > MOST_IN_PAIRS or np.prod(shape) != shape[axis] * np.prod(result.shape):
            return group
        if result not in self.values:
            x, exponent = self.logarithm_of(sharing.exponentials), producer.inputs[0]
            shift: Any = 0.0
            if exponent in self.shifted:
                shift = self.value(self.shares.producers[exponent].inputs[1])
                shift = jax.lax.slice_in_dim(jnp.broadcast_to(shift, x.shape), 0, 1, axis=axis)
                shift = shift.reshape(result.shape)
            mean = x.mean
            if sharing.chosen is not None:
                mean = jnp.where(self.value(sharing.chosen), mean, -jnp.inf)
            mean, variance = (
                a.reshape(result.shape) for a in logsumexp_moments(mean, x.variance, axis)
            )
            value = replace(self.values[group.root], mean=mean - shift, variance=variance,
                            loads=NO_LOADS, neighbours=None)  # fmt: skip
            self.record(logarithm, "log", "logsumexp", "moment-matched", "terms two by two")
            is_shared = group.root in self.shared
            self.values[result] = self.as_source(result, value) if is_shared else value
        return restrict_group(group, result, group.result)

    def logarithm_of(self, atom: Slot) -> Uncertain:
        """ln y of a positive y; exactly its argument where y is an exponential."""
        producer = self.shares.producers.get(atom)
        if producer is not None and producer.name == "exp":
            # Without the shift, which is nan where everything is masked.
            exponent = producer.inputs[0]
            return self.value(self.shifted.get(exponent, exponent))
        y = self.value(atom)
        size = jnp.maximum(y.mean, jnp.finfo(y.mean.dtype).tiny ** 0.25)
        spread = jnp.log1p(y.variance / (size * size))
        return replace(
            y, mean=jnp.log(size) - 0.5 * spread, variance=spread, loads=NO_LOADS, neighbours=None
        )
