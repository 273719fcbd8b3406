"""Products with weights: stored densely, or only what is left of them, whichever serves better."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secateur.exports.c.code import elements, row_major

__all__ = ["Costs", "Taps", "choose", "costs", "taps_of"]

# Per product on a Cortex-M4F, from counting instructions (benchmarks/device.py).
_DENSE_INSTRUCTIONS, _SPARSE_INSTRUCTIONS, _SPARSE_ROW = 5.0, 8.0, 14.0
_LONGEST_GAP = 255


@dataclass(frozen=True, eq=False)
class Taps:
    """For every output, which elements are read relative to a base, and their weights.

    Attributes:
        offsets: of shape (taps,), increasing: all elements that a dense product reads.
        weights: of shape (outputs, taps).
        group: by output, what is added to the offsets.
    """

    offsets: np.ndarray
    weights: np.ndarray
    group: np.ndarray

    @property
    def contiguous(self) -> bool:
        """Whether all elements are read one after the other."""
        offsets = self.offsets
        return bool(
            np.array_equal(offsets, np.arange(len(offsets)) + offsets[:1].sum())
            and offsets[:1].sum() == 0
            and not self.group.any()
        )

    def sparse(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return counts by output, gaps from one element to the next, and weights.

        A gap is from the element before, or from the base at the start of a row; one that is too
        long for a byte is crossed in several, with weight 0 in between.
        """
        counts, gaps, kept = [], [], []
        for row, shift in zip(self.weights, self.group, strict=True):
            before, number = 0, 0
            used = np.flatnonzero(row)
            places = self.offsets[used] + shift
            order = np.argsort(places, kind="stable")
            for place, weight in zip(places[order], row[used][order], strict=True):
                gap = int(place) - before
                while gap > _LONGEST_GAP:
                    gaps.append(_LONGEST_GAP)
                    kept.append(0)
                    gap -= _LONGEST_GAP
                    number += 1
                gaps.append(gap)
                kept.append(weight)
                number += 1
                before = int(place)
            counts.append(number)
        return np.array(counts, int), np.array(gaps, int), np.array(kept, self.weights.dtype)


@dataclass(frozen=True)
class Costs:
    """What a way to store weights costs.

    Attributes:
        bytes: of constants.
        instructions: per inference, about.
    """

    bytes: float
    instructions: float


def taps_of(node) -> Taps:
    """The elements that a `linear` or `conv` step reads, relative to the first one of a place."""
    weights = node.attributes["weights"]
    if node.op == "linear":
        return Taps(np.arange(weights.shape[1]), weights, np.zeros(len(weights), int))
    attributes = node.attributes
    channels, spatial = padded_shape(node)
    strides = np.array(row_major(spatial))
    if attributes["channels_last"]:
        strides, channel_step = strides * channels, 1
    else:
        channel_step = elements(spatial)
    fan_in, window = weights.shape[1], weights.shape[2:]
    places = np.arange(fan_in).reshape(-1, *[1] * len(window)) * channel_step
    for axis, (n, gap) in enumerate(zip(window, attributes["dilation"], strict=True)):
        shape = [1] * (len(window) + 1)
        shape[axis + 1] = n
        places = places + np.arange(n).reshape(shape) * gap * int(strides[axis])
    per_group = len(weights) // attributes["groups"]
    group = np.arange(len(weights)) // per_group * fan_in * channel_step
    flat = places.ravel()
    order = np.argsort(flat, kind="stable")
    return Taps(flat[order], weights.reshape(len(weights), -1)[:, order], group)


def padded_shape(node) -> tuple[int, list[int]]:
    """Channels, and size in space with the padding, of what a convolution reads."""
    x = node.inputs[0].shape
    last = node.attributes["channels_last"]
    channels, spatial = (x[-1], x[1:-1]) if last else (x[1], x[2:])
    padding = node.attributes["padding"]
    return channels, [n + a + b for n, (a, b) in zip(spatial, padding, strict=True)]


def costs(taps: Taps, weight_bytes: int) -> dict[str, Costs]:
    """Return what each way costs."""
    outputs, inputs = taps.weights.shape
    counts, gaps, _ = taps.sparse()
    row = 1 if counts.max(initial=0) <= 255 else 2
    dense_offsets = 0 if taps.contiguous else 2 * inputs
    return {
        "dense": Costs(
            weight_bytes * outputs * inputs + dense_offsets,
            (_DENSE_INSTRUCTIONS + (not taps.contiguous)) * outputs * inputs,
        ),
        "sparse": Costs(
            (weight_bytes + 1) * len(gaps) + row * outputs,
            _SPARSE_INSTRUCTIONS * len(gaps) + _SPARSE_ROW * outputs,
        ),
    }


def choose(taps: Taps, weight_bytes: int, optimise: str) -> str:
    """Return "dense" or "sparse": what is smaller, or faster."""
    found = costs(taps, weight_bytes)
    measure = (lambda c: c.bytes) if optimise == "size" else (lambda c: c.instructions)
    return min(found, key=lambda kind: measure(found[kind]))
