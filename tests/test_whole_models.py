"""Whole models under "moments", against Monte Carlo: see tests/whole_models.py.

All of them are traced, and their units found. What has to be compiled (agreement, gradients, twenty
training steps, a unit taken out) is done for the models in `CHECKED`, for want of time; for all of
them with SECATEUR_WHOLE_ZOO=1, or with figures by `benchmarks/whole_models.py`.
"""

from __future__ import annotations

import os

import jax
import pytest

import secateur as sc
from whole_model_checks import agreement, believe, check_removal, train_a_little
from whole_models import WHOLE

pytestmark = pytest.mark.slow

EVERYTHING = bool(os.environ.get("SECATEUR_WHOLE_ZOO"))
# Of each new kind of operation, the cheapest to compile.
CHECKED = (
    "shift register with a window of weights",
    "GAT",
    "DeepSets",
    "STFT front end with a learned window",
    "MLP with normalisation in float16",
    "physics-informed network",
    "mixture of experts with top-k",
)
# Where the moments are further than that from Monte Carlo, and coverage says which operation.
APPROXIMATE: dict[str, str] = {}
# Models of which nothing can be taken out: all axes are summed over, or outputs.
HIDDEN_UNITS: dict[str, int] = {}


@pytest.mark.parametrize("name", WHOLE)
def test_moments_and_units_of_every_model(name):
    """Nothing is refused; nothing is unknown to the search for units."""
    f, params, x = WHOLE[name]()
    rows = []

    def run(beliefs, x):
        return sc.propagate(f, "moments")(None, beliefs, x)

    y = jax.eval_shape(run, believe(params), x)
    expected = jax.eval_shape(f, params, x)
    assert y.mean.shape == y.variance.shape == expected.shape
    found = sc.units(f, params, x)
    rows += [str(frozen) for frozen in found.frozen if not frozen.known]
    assert not rows
    assert sum(unit.kind == "hidden" for unit in found.units) == HIDDEN_UNITS[name]


@pytest.mark.parametrize("name", WHOLE if EVERYTHING else CHECKED)
def test_whole_model(name):
    """Oracle: Monte Carlo over jointly drawn weights; the model itself with units taken out."""
    f, params, x = WHOLE[name]()
    shift, ratio = agreement(f, params, x)
    if name in APPROXIMATE:
        rows = sc.coverage(f, params, x).approximations
        assert APPROXIMATE[name] in {row.operation for row in rows}
    else:
        assert shift < 0.15
        assert 0.75 < ratio < 1.3
    finite, before, after = train_a_little(f, params, x)
    assert finite
    assert after < before
    if EVERYTHING:
        assert check_removal(f, params, x) < 1e-5
