"""Adam, with a pace of its own for the means of wide layers."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import optax

from secateur.fitting.weights import Layout, Place

__all__ = ["adam"]


@cache  # the same optimiser for the same layout, so that compiled programs are found again
def adam(layout: Layout, full_rate_width: int | None) -> optax.GradientTransformation:
    """Return Adam of rate 1.

    Adam moves every weight by about the same distance in a step, and a unit sums over all its
    inputs: with many of them, the same rate throws it much further.

    Args:
        layout: of the weights.
        full_rate_width: see `Recipe`.
    """
    paces = [_pace(place, full_rate_width) for place in layout.places]
    steps = [optax.scale_by_adam(), optax.scale(-1.0)]
    if any(pace < 1 for pace in paces):
        vectors = layout.vectors([np.float32(pace) for pace in paces])
        slowly = [v[:1] if (v == v[0]).all() else v for v in vectors]
        steps.append(optax.stateless(lambda updates, _: _slower(slowly, updates)))
    return optax.chain(*steps)


def _pace(place: Place, width: int | None) -> float:
    """Which axes of a leaf are inputs is not known: the longer side decides."""
    if width is None or len(place.shape) < 2:
        return 1.0
    longer = max(math.prod(place.shape[:-1]), math.prod(place.shape[1:]))
    return min(1.0, width / longer)


def _slower(slowly: Any, updates: Any) -> Any:
    weights, noise = updates
    means = tuple(m * s.astype(m.dtype) for m, s in zip(weights.means, slowly, strict=True))
    return weights._replace(means=means), noise
