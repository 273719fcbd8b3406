"""floor, ceil and round: functions of steps of one uncertain value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.equations import primitives
from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.uncertain_values import Uncertain

_STEPS = 4  # integers on either side of the mean, if the deviation is small
_WIDE = 0.6  # deviation beyond which the steps blur into a line


def floor_moments(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """Mean and variance of ⌊x⌋, and the slope of the mean, for x ~ N(mean, variance).

    Narrow: with P_j = P(x ≥ k + j) for the integers k + j around the mean,

        E = k − J − 1 + Σ_j P_j        Var = Σ_j P_j (1 − P_j) + 2 Σ_{j<l} P_l (1 − P_j)

    Wide: x − ⌊x⌋ is uniform, to e^{−2π²v}, so that E = m − ½ and Var = v + 1/12.
    """
    deviation = jnp.sqrt(jnp.clip(variance, 1e-20, _WIDE**2))
    nearest = jax.lax.stop_gradient(jnp.round(mean))
    value, spread = nearest - _STEPS - 1.0, jnp.zeros_like(mean)
    slope, below_so_far = jnp.zeros_like(mean), jnp.zeros_like(mean)
    for j in range(-_STEPS, _STEPS + 1):
        z = jnp.clip((nearest + j - mean) / deviation, -40.0, 40.0)
        above = 0.5 * jax.lax.erfc(z * float(np.sqrt(0.5)))
        below = 0.5 * jax.lax.erfc(-z * float(np.sqrt(0.5)))
        value = value + above
        spread = spread + above * (below + 2.0 * below_so_far)
        slope = slope + jnp.exp(-0.5 * z * z) / (deviation * float(np.sqrt(2.0 * np.pi)))
        below_so_far = below_so_far + below
    wide = variance > _WIDE**2
    return (
        jnp.where(wide, mean - 0.5, value),
        jnp.where(wide, variance + 1.0 / 12.0, spread),
        jnp.where(wide, 1.0, slope),
    )


@declare("steps", *primitives.STEPS)
def step_function(call: Call, x: Uncertain) -> Uncertain:
    """⌈x⌉ = −⌊−x⌋, and x is rounded by ⌊x + ½⌋."""
    call.note("exact", "its derivative is that of the expectation (a straight line if wide)")
    sign = -1.0 if call.name == "ceil" else 1.0
    shift = 0.5 if call.name == "round" else 0.0
    mean, variance, slope = floor_moments(sign * x.mean + shift, x.variance)
    return x.with_moments(sign * mean, variance, lambda: slope)
