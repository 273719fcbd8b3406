"""`fit` on the paper's data, where they are at hand: SECATEUR_DATA, or ../shared/data."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc

FOLDER = (
    Path(os.environ.get("SECATEUR_DATA", Path(__file__).parents[2] / "shared" / "data")) / "uci"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the UCI data are not here: set SECATEUR_DATA"),
]
SEEDS = [jax.random.key(seed) for seed in range(5)]


def load(name):
    delimiter = None if name in ("boston", "yacht") else ","
    values = np.genfromtxt(FOLDER / f"{name}.csv", delimiter=delimiter)
    return values[:, :-1], values[:, -1:]


def network(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def model(inputs, units=50):
    k1, k2 = jax.random.split(jax.random.key(0))
    return sc.BayesianModel(
        network,
        {
            "w1": jax.random.normal(k1, (inputs, units), jnp.float32) * (2 / inputs) ** 0.5,
            "b1": jnp.zeros((1, units), jnp.float32),
            "w2": jax.random.normal(k2, (units, 1), jnp.float32) * units**-0.5,
            "b2": jnp.zeros((1, 1), jnp.float32),
        },
    )


@pytest.mark.parametrize(
    ("name", "batch_size", "at_most"),
    [("boston", 16, 1600), ("wine", 32, 1905), ("yacht", 16, 880)],
)
def test_the_papers_recipe_reaches_the_papers_free_energy(name, batch_size, at_most):
    """Oracle: the paper's Table 1, column "start". Median of five seeds, which differ by 1 %."""
    x, y = load(name)
    fits = sc.fit_many(
        model(x.shape[1]),
        [(x, y)],
        keys=SEEDS,
        recipe="paper",
        batch_size=batch_size,
        progress=False,
    )
    free_energies = [f.free_energy for f in fits]
    print(name, np.round(free_energies, 1))
    assert np.median(free_energies) <= at_most


def test_the_default_recipe_finds_much_the_same_from_any_start():
    x, y = load("boston")
    fits = sc.fit_many(model(x.shape[1]), [(x, y)], keys=SEEDS, progress=False)
    free_energies = np.array([f.free_energy for f in fits])
    print(np.round(free_energies, 1), fits[0].stop_reason)
    assert np.ptp(free_energies) < 0.02 * np.abs(np.mean(free_energies))
