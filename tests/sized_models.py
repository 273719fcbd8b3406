"""Models of several libraries, built to given sizes."""

from __future__ import annotations

import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "jax"
HIDDEN, OTHER, INPUTS = 5, 4, 3


class Sizes(NamedTuple):
    inputs: int = INPUTS
    hidden: int = HIDDEN
    other: int = OTHER


def random_like(params, seed=0):
    rng = np.random.default_rng(seed)

    def draw(leaf):
        if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
            return leaf
        return jnp.asarray(0.5 * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(draw, params)


# --- models, by size ------------------------------------------------------------------------------


def hand_mlp(sizes):
    def f(params, x):
        for w, b in params[:-1]:
            x = jax.nn.silu(x @ w + b[None])
        w, b = params[-1]
        return x @ w + b[None]

    shapes = [(sizes.inputs, sizes.hidden), (sizes.hidden, sizes.other), (sizes.other, 2)]
    return f, [(jnp.zeros(s), jnp.zeros(s[1])) for s in shapes]


def hand_gru(sizes):
    def f(params, x):
        def cell(h, x):
            gates = x @ params["wx"] + params["b"][None]
            r, z, n = jnp.split(gates, 3, axis=1)
            rh, zh, nh = jnp.split(h @ params["wh"], 3, axis=1)
            z = jax.nn.sigmoid(z + zh)
            return (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + rh) * nh) + z * h, None

        start = jnp.zeros((x.shape[0], sizes.hidden))
        h, _ = jax.lax.scan(cell, start, x.swapaxes(0, 1))
        return h @ params["readout"]

    return f, {
        "wx": jnp.zeros((sizes.inputs, 3 * sizes.hidden)),
        "wh": jnp.zeros((sizes.hidden, 3 * sizes.hidden)),
        "b": jnp.zeros(3 * sizes.hidden),
        "readout": jnp.zeros((sizes.hidden, 2)),
    }


def hand_residual(sizes):
    """All writers to and readers of the stream go with one of its units."""

    def f(params, x):
        x = x @ params["into"]
        x = x + jnp.tanh(x @ params["w1"]) @ params["w2"]
        return x @ params["out"]

    return f, {
        "into": jnp.zeros((sizes.inputs, sizes.hidden)),
        "w1": jnp.zeros((sizes.hidden, sizes.other)),
        "w2": jnp.zeros((sizes.other, sizes.hidden)),
        "out": jnp.zeros((sizes.hidden, 2)),
    }


def of_nnx(module):
    nnx = pytest.importorskip("flax.nnx")
    definition, state = nnx.split(module)
    return (lambda params, x: nnx.merge(definition, params)(x)), state


def nnx_mlp(sizes):
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    return of_nnx(
        nnx.Sequential(
            nnx.Linear(sizes.inputs, sizes.hidden, rngs=rngs),
            nnx.gelu,
            nnx.Linear(sizes.hidden, sizes.other, rngs=rngs),
            nnx.relu,
            nnx.Linear(sizes.other, 2, rngs=rngs),
        )
    )


def nnx_gru(sizes):
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    cell = nnx.GRUCell(sizes.inputs, sizes.hidden, rngs=rngs)
    return of_nnx(
        nnx.Sequential(nnx.RNN(cell), lambda h: h[:, -1], nnx.Linear(sizes.hidden, 2, rngs=rngs))
    )


def nnx_conv(sizes):
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    return of_nnx(
        nnx.Sequential(
            nnx.Conv(sizes.inputs, sizes.hidden, (3, 3), rngs=rngs),
            nnx.relu,
            lambda x: nnx.max_pool(x, (2, 2), (2, 2)),
            nnx.Conv(sizes.hidden, sizes.other, (3, 3), rngs=rngs),
            nnx.relu,
            lambda x: x.reshape(x.shape[0], -1),
            nnx.Linear(9 * sizes.other, 2, rngs=rngs),
        )
    )


def of_equinox(module):
    eqx = pytest.importorskip("equinox")
    params, static = eqx.partition(module, eqx.is_inexact_array)
    return (lambda params, x: jax.vmap(eqx.combine(params, static))(x)), params


def equinox_mlp(sizes):
    eqx = pytest.importorskip("equinox")
    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    return of_equinox(
        eqx.nn.Sequential(
            [
                eqx.nn.Linear(sizes.inputs, sizes.hidden, key=k1),
                eqx.nn.Lambda(jax.nn.softplus),
                eqx.nn.Linear(sizes.hidden, sizes.other, key=k2),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Linear(sizes.other, 2, key=k3),
            ]
        )
    )


def equinox_gru(sizes):
    eqx = pytest.importorskip("equinox")
    k1, k2 = jax.random.split(jax.random.key(0))
    cell = eqx.nn.GRUCell(sizes.inputs, sizes.hidden, key=k1)
    readout = eqx.nn.Linear(sizes.hidden, 2, key=k2)
    params, static = eqx.partition((cell, readout), eqx.is_inexact_array)

    def one(params, x):
        cell, readout = eqx.combine(params, static)
        h, _ = jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(sizes.hidden), x)
        return readout(h)

    return (lambda params, x: jax.vmap(lambda x: one(params, x))(x)), params


def equinox_conv(sizes):
    eqx = pytest.importorskip("equinox")
    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    return of_equinox(
        eqx.nn.Sequential(
            [
                eqx.nn.Lambda(lambda x: jnp.moveaxis(x, -1, 0)),
                eqx.nn.Conv2d(sizes.inputs, sizes.hidden, 3, padding=1, key=k1),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.AvgPool2d(2, 2),
                eqx.nn.Conv2d(sizes.hidden, sizes.other, 3, padding=1, key=k2),
                eqx.nn.Lambda(jnp.ravel),
                eqx.nn.Linear(9 * sizes.other, 2, key=k3),
            ]
        )
    )


def of_keras(layers, shape):
    keras = pytest.importorskip("keras")
    with jax.numpy_rank_promotion("allow"):
        model = keras.Sequential([keras.Input(shape), *layers])

    fixed = [jnp.asarray(v.value) for v in model.non_trainable_variables]

    def f(params, x):
        with jax.numpy_rank_promotion("allow"):
            return model.stateless_call(params, fixed, x)[0]

    return f, [jnp.asarray(v.value) for v in model.trainable_variables]


def keras_mlp(sizes):
    layers = pytest.importorskip("keras").layers
    return of_keras(
        [
            layers.Dense(sizes.hidden, "tanh"),
            layers.Dense(sizes.other, "silu"),
            layers.Dense(2),
        ],
        (sizes.inputs,),
    )


def keras_gru(sizes):
    layers = pytest.importorskip("keras").layers
    return of_keras([layers.GRU(sizes.hidden), layers.Dense(2)], (4, sizes.inputs))


def keras_conv(sizes):
    layers = pytest.importorskip("keras").layers
    return of_keras(
        [
            layers.Conv2D(sizes.hidden, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(sizes.other, 3, padding="same", activation="tanh"),
            layers.Flatten(),
            layers.Dense(2),
        ],
        (6, 6, sizes.inputs),
    )


FLAT, SEQUENCE, IMAGE = (7, INPUTS), (7, 4, INPUTS), (2, 6, 6, INPUTS)
MLP_COUNTS = {"hidden": HIDDEN, "other": OTHER, "inputs": INPUTS}
GRU_COUNTS = {"hidden": HIDDEN, "inputs": INPUTS}
MODELS = {
    hand_mlp: (FLAT, MLP_COUNTS),
    hand_gru: (SEQUENCE, GRU_COUNTS),
    hand_residual: (FLAT, MLP_COUNTS),
    nnx_mlp: (FLAT, MLP_COUNTS),
    nnx_gru: (SEQUENCE, GRU_COUNTS),
    nnx_conv: (IMAGE, MLP_COUNTS),
    equinox_mlp: (FLAT, MLP_COUNTS),
    equinox_gru: (SEQUENCE, GRU_COUNTS),
    equinox_conv: (IMAGE, MLP_COUNTS),
    keras_mlp: (FLAT, MLP_COUNTS),
    keras_gru: (SEQUENCE, GRU_COUNTS),
    keras_conv: (IMAGE, MLP_COUNTS),
}
