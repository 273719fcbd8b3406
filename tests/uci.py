"""The paper's data, where they are at hand (SECATEUR_DATA, or ../shared/data), and its network."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import secateur as sc

FOLDER = (
    Path(os.environ.get("SECATEUR_DATA", Path(__file__).parents[2] / "shared" / "data")) / "uci"
)
needs_data = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the UCI data are not here: set SECATEUR_DATA"),
]
SEEDS = [jax.random.key(seed) for seed in range(5)]
BATCH_SIZES = {"boston": 16, "concrete": 32, "wine": 32, "yacht": 16}  # the paper's


def load(name):
    data = sc.datasets.load(name, FOLDER.parent)
    return data.x, data.y


def network(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def model(inputs, units=50, **options):
    k1, k2 = jax.random.split(jax.random.key(0))
    params = {
        "w1": jax.random.normal(k1, (inputs, units), jnp.float32) * (2 / inputs) ** 0.5,
        "b1": jnp.zeros((1, units), jnp.float32),
        "w2": jax.random.normal(k2, (units, 1), jnp.float32) * units**-0.5,
        "b2": jnp.zeros((1, 1), jnp.float32),
    }
    return sc.BayesianModel(network, params, **options)
