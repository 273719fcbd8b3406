"""A linear model in the place of the paper's networks: it compiles in a moment."""

from __future__ import annotations

import jax.numpy as jnp

import secateur as sc


def predict(params, x):
    return x @ params["weights"] + params["bias"]


def make_linear_model(name, data, inference):
    """As `secateur.paper.protocol.make_model`, which has a test of its own."""
    inputs, outputs = data.x.shape[-1], data.y.shape[-1]
    weights = jnp.zeros((inputs, outputs), jnp.float32)
    params = {"weights": weights, "bias": jnp.zeros((1, outputs), jnp.float32)}
    return sc.BayesianModel(predict, params, inference=inference)
