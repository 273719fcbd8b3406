"""A property: whatever a program is made of, its moments are near those of Monte Carlo.

Programs run without compiling: JAX compiles each operation once, for all of them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from random_programs import ROWS, WIDTH, random_program

PROGRAMS, AT_A_TIME = 500, 100
SAMPLES, DRAWS = 2_000, 500
SD = 0.15
X = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, WIDTH)))
WEIGHTS = [jnp.asarray(np.random.default_rng(i).normal(size=(WIDTH, WIDTH)) / 2) for i in (1, 2, 3)]
NOISE = [np.random.default_rng(9 + i).normal(size=(SAMPLES, WIDTH, WIDTH)) for i in range(3)]
DRAWN = [w[None] + SD * e for w, e in zip(WEIGHTS, NOISE, strict=True)]


def distance(mean, sd, sample):
    """RMS error of the mean in deviations, and the median ratio of deviations."""
    truth, spread = sample.mean(0), sample.std(0)
    alive = spread > 1e-3 * max(spread.max(), 1e-9)
    if not alive.any():
        return 0.0, 1.0
    shift = ((mean - truth) / np.where(alive, spread, 1.0))[alive]
    ratio = (sd / np.where(alive, spread, 1.0))[alive]
    return float(np.sqrt(np.mean(shift**2))), float(np.median(ratio))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PROGRAMS, AT_A_TIME))
def test_random_programs_agree_with_monte_carlo(first):
    """Oracle: Monte Carlo over jointly drawn weights.

    Deviations within a factor of two for nine of ten, means within half a deviation: programs meet
    their own values again and again, where independence is an approximation.
    """
    beliefs = [sc.Normal(w, jnp.full_like(w, SD**2)) for w in WEIGHTS]
    keys = jax.random.split(jax.random.key(0, impl="unsafe_rbg"), DRAWS)
    far = {"moments": [], "local": []}
    for seed in range(first, first + AT_A_TIME):
        f, names = random_program(seed)
        sample = np.asarray(jax.vmap(f, (0, None))(DRAWN, X))
        y = sc.propagate(f, "moments")(None, beliefs, X)
        local = sc.propagate(f, "local")
        drawn = np.asarray(jax.vmap(lambda k, g=local: g(k, beliefs, X))(keys))
        assert np.isfinite(y.mean).all(), (seed, names)
        assert (np.asarray(y.variance) >= 0).all(), (seed, names)
        assert np.isfinite(drawn).all(), (seed, names)
        results = {
            "moments": distance(np.asarray(y.mean), np.sqrt(np.asarray(y.variance)), sample),
            "local": distance(drawn.mean(0), drawn.std(0), sample),
        }
        for how, (shift, ratio) in results.items():
            if shift > 0.5 or not 0.5 < ratio < 2.0:
                far[how].append((seed, round(shift, 2), round(ratio, 2), names))
    print({how: len(seeds) for how, seeds in far.items()}, "of", AT_A_TIME, "are far off")
    for how, programs in far.items():
        assert len(programs) <= 0.1 * AT_A_TIME, (how, programs)
