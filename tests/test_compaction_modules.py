"""`shrink_module`: smaller modules of the same kind.

Oracle: the original module's function at the pruned weights.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from model_zoo import of_nnx
from test_compaction import cut_units, largest_gap, means
from trained import believed, trained

os.environ["KERAS_BACKEND"] = "jax"
ROWS = 20


def compacted(f, params, shape):
    """Half of the units cut: the beliefs, the compacted model, and inputs."""
    full = believed(params)
    dtype = next(a.dtype for a in jax.tree.leaves(means(full)) if a.dtype.kind == "f")
    x = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, *shape)), dtype)
    beliefs, gone = cut_units(f, full, x[:2], 0.5)
    assert gone.sum() > 0
    small = sc.compact(trained(f, beliefs, inference="global"), inputs=x[:2])
    assert small.compaction.parameters_after < small.compaction.parameters_before
    return jax.jit(f)(means(beliefs), x), small, x


def nnx_parts(name):
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    last = nnx.Linear(6, 2, rngs=rngs)
    if name == "conv":
        conv = nnx.Conv(3, 6, (3,), padding="VALID", rngs=rngs)
        return nnx.Sequential(conv, nnx.relu, lambda h: h.mean(axis=1), last), (8, 3)
    cells = {"gru": nnx.GRUCell, "lstm": nnx.LSTMCell, "optimised": nnx.OptimizedLSTMCell}
    cell = cells[name](3, 6, rngs=rngs)
    return nnx.Sequential(nnx.RNN(cell), lambda h: h[:, -1], last), (4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv", "gru", "lstm", "optimised"])
def test_nnx(name):
    module, shape = nnx_parts(name)
    expected, small, x = compacted(*of_nnx(module), shape)
    smaller = sc.shrink_module(small, module)
    assert largest_gap(expected, smaller(x)) < 1e-5
    assert type(smaller) is type(module)
    layer = smaller.layers[-1]
    assert layer.in_features == layer.kernel.shape[0] < 6
    if name != "conv":
        assert smaller.layers[0].cell.hidden_features == layer.in_features
        assert module.layers[0].cell.hidden_features == 6  # the original is as it was
    else:
        assert smaller.layers[0].out_features == layer.in_features


def test_nnx_layers_of_ones_own_are_refused():
    nnx = pytest.importorskip("flax.nnx")

    class Own(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((3, 6)))
            self.v = nnx.Param(jnp.ones((6, 2)))

        def __call__(self, x):
            return jnp.tanh(x @ self.w[...]) @ self.v[...]

    _, small, _ = compacted(*of_nnx(Own()), (3,))
    with pytest.raises(TypeError, match="the module is a Own, whose size changed"):
        sc.shrink_module(small, Own())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell", "Conv1d", "MLP"])
def test_equinox(kind):
    eqx = pytest.importorskip("equinox")
    k1, k2 = jax.random.split(jax.random.key(0))
    readout = eqx.nn.Linear(6, 2, key=k2)
    if kind == "MLP":
        layer = eqx.nn.MLP(3, 6, 6, 1, final_activation=jnp.tanh, key=k1)
    else:
        sizes = (3, 6, 3) if kind == "Conv1d" else (3, 6)
        layer = getattr(eqx.nn, kind)(*sizes, key=k1)

    def one(modules, x):
        layer, readout = modules
        if kind == "MLP":
            return readout(layer(x[0]))
        if kind == "Conv1d":
            return readout(jnp.mean(jnp.tanh(layer(x.T)), axis=1))
        size = layer.hidden_size
        start = jnp.zeros(size) if kind == "GRUCell" else (jnp.zeros(size), jnp.zeros(size))
        state, _ = jax.lax.scan(lambda s, x: (layer(x, s), None), start, x)
        return readout(state if kind == "GRUCell" else state[0])

    params, static = eqx.partition((layer, readout), eqx.is_inexact_array)
    expected, small, x = compacted(
        lambda p, x: jax.vmap(lambda x: one(eqx.combine(p, static), x))(x), params, (5, 3)
    )
    smaller = sc.shrink_module(small, (layer, readout))
    assert largest_gap(expected, jax.vmap(lambda x: one(smaller, x))(x)) < 1e-5
    assert smaller[1].in_features == smaller[1].weight.shape[1] < 6
    assert readout.in_features == 6
    with pytest.raises(TypeError, match="not part of this module"):
        sc.shrink_module(small, readout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "functional"), [("Conv2D", True), ("GRU", False), ("LSTM", False)]
)
def test_keras(kind, functional):
    keras = pytest.importorskip("keras")
    layers = keras.layers
    shape = (5, 5, 3) if kind == "Conv2D" else (4, 3)
    if kind == "Conv2D":
        parts = [layers.Conv2D(6, 3, activation="relu"), layers.Flatten()]
    else:
        parts = [getattr(layers, kind)(6)]
    parts += [layers.Dense(5, "tanh"), layers.Dense(2)]
    with jax.numpy_rank_promotion("allow"):
        if functional:
            start = value = keras.Input(shape)
            for part in parts:
                value = part(value)
            model = keras.Model(start, value)
        else:
            model = keras.Sequential([keras.Input(shape), *parts])
    fixed = [jnp.asarray(v.value) for v in model.non_trainable_variables]

    def f(params, x):
        with jax.numpy_rank_promotion("allow"):
            return model.stateless_call(params, fixed, x)[0]

    params = [jnp.asarray(v.value) for v in model.trainable_variables]
    expected, small, x = compacted(f, params, shape)
    smaller = sc.shrink_module(small, model)
    with jax.numpy_rank_promotion("allow"):
        assert largest_gap(expected, smaller(x)) < 1e-5
    assert type(smaller) is type(model)
    assert smaller.count_params() < model.count_params()
    with pytest.raises(TypeError, match="is not a module"):
        sc.shrink_module(small, f)
