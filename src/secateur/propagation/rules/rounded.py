"""Rounding to whole numbers, as in networks whose activations are quantised."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from secateur.propagation.rules.registry import Call, declare
from secateur.propagation.uncertain_values import Uncertain

# From this standard deviation on, the rounding error is uniform and independent to 1e-8.
_WIDE = 1.0
_STEPS = 8  # on either side, at which a value of a smaller deviation may be rounded


@declare("univariate", "round")
def round_value(call: Call, x: Uncertain) -> Uncertain:
    """Return the moments of the rounded value; in gradients rounding counts as the identity.

    A sum over the values k + ½ at which the result steps up by one:
    E[round x] = n + Σ_{k≥n} P(x > k + ½) − Σ_{k<n} P(x < k + ½), and E[(round x)²] likewise. A
    value that is spread over several steps has the variance σ² + 1/12.
    """
    mean, variance = round_moments(x.mean, x.variance)
    call.note("exact")
    straight = jax.lax.stop_gradient
    return x.with_moments(
        x.mean + straight(mean - x.mean),
        x.variance + straight(variance - x.variance),
        lambda: jnp.ones_like(x.mean),
    )


def round_moments(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return mean and variance of the rounded value of a Gaussian one.

    Args:
        mean: Mean.
        variance: Variance.
    """
    near = jnp.round(mean)
    offset = mean - near
    deviation = jnp.sqrt(jnp.clip(variance, 1e-30, _WIDE**2))
    first = jnp.zeros_like(mean)
    second = jnp.zeros_like(mean)
    for k in range(_STEPS):
        up = norm.sf((k + 0.5 - offset) / deviation)  # one more step up
        down = norm.cdf((-k - 0.5 - offset) / deviation)
        first = first + up - down
        second = second + (2 * k + 1) * (up + down)
    is_wide = variance >= _WIDE**2
    return (
        jnp.where(is_wide, mean, near + first),
        jnp.where(is_wide, variance + 1 / 12, second - first**2),
    )
