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
CHECKED = (
    "delay line of 12 taps",
    "shift register with a window of weights",
    "S5 by associative scan",
    "Mamba-like selective scan",
    "ConvLSTM",
    "GCN",
    "GAT",
    "DeepSets",
    "sorted pooling",
    "causal transformer with a padding mask",
    "mixture of experts with top-k",
    "U-Net",
    "ResNet block in bfloat16",
    "STFT front end with a learned window",
    "normalising flow: coupling layers",
    "Kolmogorov-Arnold layers",
    "physics-informed network",
    "attention pooling and maxima of padded sets",
    "mixture of experts with a threshold",
    "Kolmogorov-Arnold layers with cubic B-splines",
    "learned activation by interpolation",
    "Lagrangian network",
    "spline flow with knots from a network",
)
# Where the moments are further than that from Monte Carlo, and coverage says which operation.
APPROXIMATE = {
    "GCN": "reduce_sum",
    "message passing with maxima": "reduce_sum",
    "Perceiver: learned queries": "dot_general",
    "causal transformer with a padding mask": "dot_general",
    "mixture of experts with top-k": "reduce_sum",
    "U-Net": "reduce_sum",
    "ResNet block in bfloat16": "reduce_sum",
    "physics-informed network": "reduce_sum",
    "mixture density network": "reduce_sum",
}
# None where all axes are normalised over, summed over, or those of inputs and outputs.
HIDDEN_UNITS = {
    "delay line of 12 taps": 3,
    "shift register with a window of weights": 8,
    "S5 by associative scan": 6,
    "Mamba-like selective scan": 8,
    "linear attention as a recurrence": 8,
    "echo state with a while loop": 6,
    "neural ODE by Runge-Kutta": 10,
    "ConvLSTM": 2,
    "bidirectional GRU": 10,
    "GCN": 8,
    "GAT": 6,
    "message passing with maxima": 6,
    "DeepSets": 22,
    "PointNet with max pooling": 14,
    "sorted pooling": 4,
    "causal transformer with a padding mask": 24,
    "vision transformer": 12,
    "cross attention with rotary places": 2,
    "Perceiver: learned queries": 10,
    "mixture of experts with top-k": 6,
    "soft mixture of experts": 6,
    "U-Net": 7,
    "ResNet block in bfloat16": 0,
    "MLP with normalisation in float16": 0,
    "STFT front end with a learned window": 3,
    "Fourier neural operator": 8,
    "WaveNet: dilated causal convolutions": 16,
    "MobileNet block: depthwise, squeeze and excite": 6,
    "MLP-Mixer": 8,
    "quantised layer, straight through": 8,
    "normalising flow: coupling layers": 12,
    "Kolmogorov-Arnold layers": 16,
    "physics-informed network": 0,
    "Hamiltonian network: a gradient inside": 8,
    "SIREN": 16,
    "Fourier features": 12,
    "radial basis functions": 8,
    "hypernetwork": 6,
    "factorisation machine": 0,
    "deep and cross network": 6,
    "mixture density network": 8,
    "highway network with dropout off": 6,
    "Siamese network with a cosine": 0,
    "gated product over factors": 0,
    "survival curve by running products": 0,
    "ordinal regression by running sums": 6,
    "variational autoencoder's means": 18,
    "recomputed layers under remat": 0,
    "layers stacked in a scan": 6,
    "branches by a switch": 6,
    "attention pooling and maxima of padded sets": 6,
    "mixture of experts with a threshold": 6,
    "Kolmogorov-Arnold layers with cubic B-splines": 19,
    "learned activation by interpolation": 0,
    "Lagrangian network": 6,
    "spline flow with knots from a network": 6,
}


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
        assert shift < 0.3
        assert 0.2 < ratio < 2.0
    else:
        assert shift < 0.15
        assert 0.75 < ratio < 1.3
    finite, before, after = train_a_little(f, params, x)
    assert finite
    assert after < before
    assert check_removal(f, params, x) < 1e-5
