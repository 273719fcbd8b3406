"""How many bits a weight needs, which the posterior knows.

Rounding to a step s adds the variance s²/12, and the posterior says how much variance σ² there is
anyway. With

    noise = mean of (s²/12)/σ² over the weights that are left

the free energy rises by about half the noise per weight; a step of √12·σ is a noise of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["TensorBits", "bits_for", "first_half", "sixteen_bits"]

_LEAST_BITS, _MOST_BITS = 2, 8


@dataclass(frozen=True)
class TensorBits:
    """How one product's weights were rounded.

    Attributes:
        weights: how many are left.
        bits: of each.
        step: between neighbours, in the graph's units; of 16 bits, relative to the weight.
        noise: mean of (step²/12)/σ².
    """

    weights: int
    bits: int
    step: float
    noise: float

    @property
    def steps_of_posterior(self) -> float:
        """Return √12·σ in steps: above 1, rounding is finer than what the posterior knows."""
        return float(1 / np.sqrt(self.noise)) if self.noise else float("inf")


def first_half(weights: np.ndarray) -> np.ndarray:
    """The nearest numbers whose float32 ends in 16 zeros (bfloat16)."""
    bits = weights.astype(np.float32).view(np.uint32).astype(np.uint64)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)


def sixteen_bits(weights: np.ndarray, deviations: np.ndarray) -> TensorBits:
    """What is lost with the second half of every float."""
    known = (weights != 0) & (deviations > 0)
    gap = (first_half(weights) - weights)[known] / deviations[known]
    noise = float(np.mean(gap**2)) if known.any() else 0.0
    return TensorBits(int(np.count_nonzero(weights)), 16, 2.0**-7, noise)


def bits_for(weights: np.ndarray, deviations: np.ndarray, most_noise: float) -> TensorBits:
    """The fewest bits whose rounding adds little to what the posterior leaves open."""
    live = weights != 0
    if not live.any():
        return TensorBits(0, _LEAST_BITS, 1.0, 0.0)
    largest = float(np.max(np.abs(weights)))
    sure = (deviations <= 0) & live  # certain weights: nothing is known of what they allow
    precision = np.mean(1 / deviations[live & ~sure] ** 2) if (live & ~sure).any() else np.inf
    for bits in range(_LEAST_BITS, _MOST_BITS + 1):
        step = largest / (2 ** (bits - 1) - 1)
        noise = float(step**2 / 12 * precision)
        if noise <= most_noise:
            break
    return TensorBits(int(live.sum()), bits, step, noise if np.isfinite(noise) else 0.0)
