"""The paper's three signals: eight samples in, the next one out."""

from __future__ import annotations

import numpy as np

from secateur.datasets.dataset import Dataset

__all__ = ["SIGNALS", "make_signal"]

SAMPLES = 800
WINDOW = 8

# Frequency → amplitude of each sine; cut-off Fourier series, free of noise.
SIGNALS: dict[str, dict[int, float]] = {
    "sine": {1: 1.0},
    "sawtooth": {1: 1.0, 2: -1 / 2, 3: 1 / 3, 4: -1 / 4},
    "square": {1: 1.0, 3: 1 / 3, 5: 1 / 5, 7: 1 / 7},
}


def make_signal(name: str) -> Dataset:
    """Windows of the signal `name` and the samples that follow them."""
    time = np.pi * np.arange(SAMPLES) / 100
    waves = [amplitude * np.sin(k * time) for k, amplitude in SIGNALS[name].items()]
    signal = np.sum(waves, axis=0)
    windows = np.lib.stride_tricks.sliding_window_view(signal, WINDOW)[: SAMPLES - WINDOW]
    return Dataset(
        name=name,
        x=windows[:, :, None].copy(),
        y=signal[WINDOW:, None].copy(),
        input_names=("signal",),
        target_names=("next sample",),
        description=f"{WINDOW} samples of a {name} wave predict the next one; no noise.",
        source="made by secateur, as in the paper",
        licence="none needed",
    )
