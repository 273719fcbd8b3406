"""Models taken as they are from their libraries, and a Monte Carlo oracle for them.

Each case builds ``(f, params, x)`` where ``f(params, x)`` is a pure JAX function with one array as
its output. No model is rewritten: the layers are the library's own, with its own initialisation
under a fixed seed. Only biases, scales and what else starts at a constant are nudged, so that no
term is invisible to a test.

The oracle knows nothing of secateur. It draws *all* uncertain weights jointly, the same weights at
every time step, position and row, and runs the model as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

SINGLE_SAMPLES = 20_000
DEEP_SAMPLES = 10_000
DEEP_SD = 0.1
CHUNK = 1_000
STEPS = 8


class Model(NamedTuple):
    """A function, the values of its uncertain weights, and its input.

    ``redrawn``, where a recurrent model has it, is the same function of weights with a leading
    axis for time, that takes new ones in every step.
    """

    f: Callable[[Any, Any], jax.Array]
    params: Any
    x: Any
    redrawn: Callable[[Any, Any], jax.Array] | None = None


@dataclass(frozen=True)
class Case:
    """One row of the zoo.

    ``kind`` says what the moments must achieve. A ``"single"`` layer agrees with Monte Carlo within
    its standard error; a ``"deep"`` model only within the tolerance of independence. A
    ``recurrent`` one uses the same weights in each of ``STEPS`` steps.
    """

    name: str
    framework: str | None
    builder: Callable[[], Model]
    kind: str
    sd: float
    recurrent: bool
    note: str

    @cache  # noqa: B019 - the cases live as long as the process
    def build(self) -> Model:
        """Build the model once, or skip the test where its framework is not installed."""
        if self.framework == "keras":
            os.environ["KERAS_BACKEND"] = "jax"
        if self.framework is not None:
            pytest.importorskip(self.framework)
        with jax.numpy_rank_promotion("allow"):  # Keras broadcasts in its initialisers
            return self.builder()

    def variances(self, params: Any) -> Any:
        """Variance of every uncertain leaf; ``None`` where a leaf is certain.

        Deep models have the same standard deviation everywhere. Single layers have a different one
        for each weight, so that a rule which mislays variances (a transposed kernel) is seen.
        """
        leaves, structure = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(7), len(leaves))

        def variance(key: jax.Array, leaf: Any) -> jax.Array | None:
            if not is_uncertain(leaf):
                return None
            low, high = (1.0, 1.0) if self.kind == "deep" else (0.5, 1.5)
            factor = jax.random.uniform(key, leaf.shape, leaf.dtype, low, high)
            return jnp.square(self.sd * factor)

        return jax.tree.unflatten(structure, map(variance, keys, leaves))

    @property
    def samples(self) -> int:
        return SINGLE_SAMPLES if self.kind == "single" else DEEP_SAMPLES


CASES: list[Case] = []


def case(
    name: str,
    framework: str | None = None,
    *,
    kind: str,
    sd: float | None = None,
    recurrent: bool = False,
    note: str = "",
):
    """Enter a builder in the table."""

    def enter(builder: Callable[[], Model]) -> Callable[[], Model]:
        spread = sd if sd is not None else (DEEP_SD if kind == "deep" else 0.3)
        CASES.append(Case(name, framework, builder, kind, spread, recurrent, note))
        return builder

    return enter


def is_uncertain(leaf: Any) -> bool:
    """Floating-point arrays are uncertain; functions and integer buffers are not."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def split_static(tree: Any) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Any]]:
    """The uncertain arrays of a pytree, and a function that puts them back among the rest."""
    leaves, structure = jax.tree.flatten(tree)
    where = [i for i, leaf in enumerate(leaves) if is_uncertain(leaf)]

    def put_back(arrays: list[jax.Array]) -> Any:
        filled = list(leaves)
        for i, array in zip(where, arrays, strict=True):
            filled[i] = array
        return jax.tree.unflatten(structure, filled)

    return [leaves[i] for i in where], put_back


def trace(model: Model) -> Any:
    """The jaxpr of a model as a function of its uncertain weights and its input."""
    arrays, put_back = split_static(model.params)
    return jax.make_jaxpr(lambda arrays, x: model.f(put_back(arrays), x))(arrays, model.x)


# Oracle ---------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """Mean and variance of every output element, with their standard errors."""

    mean: np.ndarray
    variance: np.ndarray
    mean_error: np.ndarray
    variance_error: np.ndarray
    samples: int


def summarise(samples: np.ndarray) -> Estimate:
    """Moments over the leading axis of an array of independent samples.

    The standard error of the mean is ``sqrt(variance / n)``, that of the variance
    ``sqrt((m4 - variance²) / n)`` with ``m4`` the fourth central moment.
    """
    n = len(samples)
    mean = samples.mean(0)
    deviation = np.square(samples - mean)
    variance = deviation.sum(0) / (n - 1)
    fourth = np.square(deviation).mean(0)
    return Estimate(
        mean=mean,
        variance=variance,
        mean_error=np.sqrt(variance / n),
        variance_error=np.sqrt(np.maximum(fourth - variance**2, 0.0) / n),
        samples=n,
    )


def monte_carlo(model: Model, variances: Any, samples: int, *, seed: int = 0) -> Estimate:
    """Moments of the model's output over its weights: the truth every algorithm is held to.

    The noise is NumPy's: compiling JAX's generator for every leaf would cost more than the model.
    """
    arrays, put_back = split_static(model.params)
    spreads = [
        np.sqrt(v) for v in jax.tree.leaves(variances, is_leaf=lambda v: v is None) if v is not None
    ]
    generator = np.random.default_rng(seed)

    def evaluate(weights: list[jax.Array]) -> jax.Array:
        return model.f(put_back(weights), model.x)

    # Convolutions with a kernel per draw are very slow side by side on a CPU.
    one_by_one = "conv_general_dilated" in str(jax.make_jaxpr(evaluate)(arrays))
    run = jax.jit(partial(jax.lax.map, evaluate) if one_by_one else jax.vmap(evaluate))

    outputs = []
    for _ in range(samples // CHUNK):
        noise = [generator.standard_normal((CHUNK, *spread.shape)) for spread in spreads]
        drawn = [m[None] + s * e for m, s, e in zip(arrays, spreads, noise, strict=True)]
        outputs.append(np.asarray(run(drawn), np.float64))
    return summarise(np.concatenate(outputs))


# Building blocks ------------------------------------------------------------------------------


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float64)


def settle(params: Any, seed: int = 100) -> Any:
    """Cast to float64 and nudge biases, scales and whatever else starts at one constant."""
    leaves, structure = jax.tree.flatten(params)
    settled = []
    for i, leaf in enumerate(leaves):
        if is_uncertain(leaf):
            leaf = leaf.astype(jnp.float64)
            if leaf.ndim <= 1 or bool((leaf == leaf.ravel()[0]).all()):
                leaf = leaf + 0.2 * normal(seed + i, *leaf.shape)
        settled.append(leaf)
    return jax.tree.unflatten(structure, settled)


def foreign(f: Callable[[Any, Any], jax.Array]) -> Callable[[Any, Any], jax.Array]:
    """Let a library's own code, and only that, broadcast ranks implicitly."""

    def call(params: Any, x: Any) -> jax.Array:
        with jax.numpy_rank_promotion("allow"):
            return f(params, x)

    return call


def dense(seed: int, inputs: int, outputs: int) -> dict[str, jax.Array]:
    return {
        "w": normal(seed, inputs, outputs) / jnp.sqrt(inputs),
        "b": 0.2 * normal(seed + 1, outputs),
    }


def affine(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"][None, :]


# Written by hand ------------------------------------------------------------------------------


def hand_mlp(activation: Callable[[jax.Array], jax.Array]) -> Model:
    params = [dense(0, 5, 20), dense(2, 20, 20), dense(4, 20, 2)]

    def f(params, x):
        *hidden, last = params
        for layer in hidden:
            x = activation(affine(layer, x))
        return affine(last, x)

    return Model(f, params, normal(50, 8, 5))


@case("hand linear", kind="single")
def _():
    return Model(affine, dense(0, 5, 3), normal(50, 8, 5))


@case("hand linear-relu", kind="single")
def _():
    return Model(lambda p, x: jax.nn.relu(affine(p, x)), dense(0, 5, 6), normal(50, 8, 5))


@case("hand linear-tanh", kind="single")
def _():
    return Model(lambda p, x: jnp.tanh(affine(p, x)), dense(0, 5, 6), normal(50, 8, 5))


case("hand MLP relu", kind="deep")(partial(hand_mlp, jax.nn.relu))
case("hand MLP tanh", kind="deep")(partial(hand_mlp, jnp.tanh))
case("hand MLP silu", kind="deep")(partial(hand_mlp, jax.nn.silu))


def hand_gru(*, readout: bool) -> Model:
    """GRU-16 over 8 steps of a batch; ``lax.scan`` over time."""
    gates = {
        name: {"x": dense(10 + 4 * i, 3, 16), "h": dense(12 + 4 * i, 16, 16)}
        for i, name in enumerate("rzn")
    }
    params = {"gates": gates, "out": dense(30, 16, 2)} if readout else {"gates": gates}

    def step(g, h, x):
        r = jax.nn.sigmoid(affine(g["r"]["x"], x) + affine(g["r"]["h"], h))
        z = jax.nn.sigmoid(affine(g["z"]["x"], x) + affine(g["z"]["h"], h))
        n = jnp.tanh(affine(g["n"]["x"], x) + r * affine(g["n"]["h"], h))
        return (1.0 - z) * n + z * h, None

    def start(x):
        return jnp.zeros((x.shape[0], 16), x.dtype)

    def f(params, x):
        h, _ = jax.lax.scan(partial(step, params["gates"]), start(x), jnp.swapaxes(x, 0, 1))
        return affine(params["out"], h) if readout else h

    def redrawn(params, x):
        inputs = params["gates"], jnp.swapaxes(x, 0, 1)
        return jax.lax.scan(lambda h, gx: step(gx[0], h, gx[1]), start(x), inputs)[0]

    return Model(f, params, normal(51, 4, STEPS, 3), None if readout else redrawn)


case("hand GRU-16 readout", kind="deep", recurrent=True, note="8 steps, dense readout")(
    partial(hand_gru, readout=True)
)
case("hand GRU-16 state", kind="deep", recurrent=True, note="8 steps, hidden state")(
    partial(hand_gru, readout=False)
)


# Flax NNX -------------------------------------------------------------------------------------


def nnx_model(model: Any, x: Any, call: Callable[[Any, Any], jax.Array] | None = None) -> Model:
    """An NNX module as a function of its ``Param`` state."""
    from flax import nnx

    graph, params, rest = nnx.split(model, nnx.Param, ...)

    # copy=True: nnx.RNN counts its random keys, and may not do so on state from outside the trace.
    def f(params, x):
        module = nnx.merge(graph, params, rest, copy=True)
        return module(x) if call is None else call(module, x)

    return Model(foreign(f), settle(params), x)


def nnx_rngs() -> Any:
    from flax import nnx

    return nnx.Rngs(0)


@case("nnx Linear", "flax", kind="single")
def _():
    from flax import nnx

    return nnx_model(nnx.Linear(5, 3, rngs=nnx_rngs()), normal(52, 8, 5))


@case("nnx Conv", "flax", kind="single", note="3×3, SAME")
def _():
    from flax import nnx

    return nnx_model(nnx.Conv(2, 4, (3, 3), rngs=nnx_rngs()), normal(53, 2, 6, 6, 2))


@case("nnx Conv strided dilated", "flax", kind="single", note="strides 2, dilation 2, VALID")
def _():
    from flax import nnx

    conv = nnx.Conv(
        2, 4, (3, 2), strides=(2, 1), kernel_dilation=(1, 2), padding="VALID", rngs=nnx_rngs()
    )
    return nnx_model(conv, normal(53, 2, 7, 6, 2))


@case("nnx Conv depthwise", "flax", kind="single", note="feature_group_count = channels")
def _():
    from flax import nnx

    conv = nnx.Conv(4, 4, (3, 3), feature_group_count=4, rngs=nnx_rngs())
    return nnx_model(conv, normal(54, 2, 5, 5, 4))


@case("nnx Conv grouped", "flax", kind="single", note="2 groups, channel multiplier")
def _():
    from flax import nnx

    conv = nnx.Conv(4, 6, (3,), feature_group_count=2, rngs=nnx_rngs())
    return nnx_model(conv, normal(54, 2, 7, 4))


@case("nnx ConvTranspose", "flax", kind="single")
def _():
    from flax import nnx

    conv = nnx.ConvTranspose(2, 3, (3, 3), strides=(2, 2), rngs=nnx_rngs())
    return nnx_model(conv, normal(54, 2, 4, 4, 2))


@case("nnx max_pool of input", "flax", kind="single", note="the input is uncertain")
def _():
    from flax import nnx

    def f(image, _):
        return nnx.max_pool(image, (2, 2), strides=(2, 2))

    return Model(foreign(f), 0.5 * normal(55, 2, 6, 6, 2), None)


@case("nnx avg_pool of input", "flax", kind="single", note="the input is uncertain")
def _():
    from flax import nnx

    def f(image, _):
        return nnx.avg_pool(image, (2, 2), strides=(2, 2))

    return Model(foreign(f), 0.5 * normal(55, 2, 6, 6, 2), None)


@case("nnx Conv max_pool", "flax", kind="deep", note="pooled positions share the kernel")
def _():
    from flax import nnx

    return nnx_model(
        nnx.Conv(2, 4, (3, 3), rngs=nnx_rngs()),
        normal(53, 2, 6, 6, 2),
        lambda conv, x: nnx.max_pool(conv(x), (2, 2), strides=(2, 2)),
    )


@case("nnx Conv avg_pool", "flax", kind="deep", note="pooled positions share the kernel")
def _():
    from flax import nnx

    return nnx_model(
        nnx.Conv(2, 4, (3, 3), rngs=nnx_rngs()),
        normal(53, 2, 6, 6, 2),
        lambda conv, x: nnx.avg_pool(conv(x), (2, 2), strides=(2, 2)),
    )


@case("nnx LayerNorm", "flax", kind="single", note="scale and bias uncertain")
def _():
    from flax import nnx

    return nnx_model(nnx.LayerNorm(6, rngs=nnx_rngs()), normal(56, 4, 6))


@case("nnx Linear LayerNorm", "flax", kind="deep", note="normalises uncertain values")
def _():
    from flax import nnx

    model = nnx.Sequential(
        nnx.Linear(5, 16, rngs=nnx_rngs()),
        nnx.LayerNorm(16, rngs=nnx_rngs()),
    )
    return nnx_model(model, normal(52, 8, 5))


@case("nnx BatchNorm eval", "flax", kind="single", note="running statistics")
def _():
    from flax import nnx

    norm = nnx.BatchNorm(5, use_running_average=True, rngs=nnx_rngs())
    norm.mean.set_value(0.3 * normal(57, 5))
    norm.var.set_value(0.5 + jnp.square(normal(58, 5)))
    return nnx_model(norm, normal(59, 4, 5))


@case("nnx Embed", "flax", kind="single")
def _():
    from flax import nnx

    return nnx_model(
        nnx.Embed(7, 4, dtype=jnp.float64, rngs=nnx_rngs()), jnp.array([[0, 3, 6], [3, 1, 2]])
    )


@case("nnx MultiHeadAttention", "flax", kind="deep", note="2 heads, self-attention")
def _():
    from flax import nnx

    attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx_rngs())
    return nnx_model(attention, normal(60, 2, 5, 8))


@case("nnx GRU last", "flax", kind="deep", recurrent=True, note="RNN(GRUCell), 16 units, 8 steps")
def _():
    from flax import nnx

    rnn = nnx.RNN(nnx.GRUCell(3, 16, param_dtype=jnp.float64, rngs=nnx_rngs()), rngs=nnx_rngs())
    return nnx_model(rnn, normal(61, 4, STEPS, 3), lambda rnn, x: rnn(x)[:, -1])


@case("nnx GRU sequence", "flax", kind="deep", recurrent=True, note="all 8 steps")
def _():
    from flax import nnx

    rnn = nnx.RNN(nnx.GRUCell(3, 16, param_dtype=jnp.float64, rngs=nnx_rngs()), rngs=nnx_rngs())
    return nnx_model(rnn, normal(61, 2, STEPS, 3))


@case("nnx LSTM last", "flax", kind="deep", recurrent=True, note="RNN(LSTMCell), 16 units, 8 steps")
def _():
    from flax import nnx

    rnn = nnx.RNN(nnx.LSTMCell(3, 16, param_dtype=jnp.float64, rngs=nnx_rngs()), rngs=nnx_rngs())
    return nnx_model(rnn, normal(61, 4, STEPS, 3), lambda rnn, x: rnn(x)[:, -1])


@case(
    "nnx OptimizedLSTM last",
    "flax",
    kind="deep",
    recurrent=True,
    note="RNN(OptimizedLSTMCell), 16 units",
)
def _():
    from flax import nnx

    rnn = nnx.RNN(
        nnx.OptimizedLSTMCell(3, 16, param_dtype=jnp.float64, rngs=nnx_rngs()), rngs=nnx_rngs()
    )
    return nnx_model(rnn, normal(61, 4, STEPS, 3), lambda rnn, x: rnn(x)[:, -1])


@case("nnx MLP", "flax", kind="deep", note="two hidden layers")
def _():
    from flax import nnx

    rngs = nnx_rngs()
    model = nnx.Sequential(
        nnx.Linear(5, 20, rngs=rngs),
        nnx.relu,
        nnx.Linear(20, 20, rngs=rngs),
        nnx.relu,
        nnx.Linear(20, 2, rngs=rngs),
    )
    return nnx_model(model, normal(62, 8, 5))


@case("nnx CNN", "flax", kind="deep", note="conv, relu, max_pool, dense")
def _():
    from flax import nnx

    rngs = nnx_rngs()
    model = nnx.Sequential(
        nnx.Conv(1, 4, (3, 3), rngs=rngs),
        nnx.relu,
        partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2)),
        lambda x: x.reshape(x.shape[0], -1),
        nnx.Linear(64, 3, rngs=rngs),
    )
    return nnx_model(model, normal(63, 4, 8, 8, 1))


# Equinox --------------------------------------------------------------------------------------


def equinox_model(
    module: Any, x: Any, call: Callable[[Any, Any], jax.Array] | None = None
) -> Model:
    """An Equinox module is its own parameter pytree, functions and all."""
    return Model(
        foreign(lambda module, x: module(x) if call is None else call(module, x)),
        settle(module),
        x,
    )


@case("equinox Linear", "equinox", kind="single")
def _():
    import equinox as eqx

    return equinox_model(eqx.nn.Linear(5, 3, key=jax.random.key(0)), normal(64, 5))


@case("equinox MLP", "equinox", kind="deep", note="one row")
def _():
    import equinox as eqx

    return equinox_model(eqx.nn.MLP(5, 2, 20, 2, key=jax.random.key(0)), normal(64, 5))


@case("equinox MLP batch", "equinox", kind="deep", note="vmapped over rows")
def _():
    import equinox as eqx

    mlp = eqx.nn.MLP(5, 2, 20, 2, activation=jnp.tanh, key=jax.random.key(0))
    return equinox_model(mlp, normal(65, 8, 5), lambda mlp, x: jax.vmap(mlp)(x))


@case("equinox Conv1d", "equinox", kind="single")
def _():
    import equinox as eqx

    return equinox_model(eqx.nn.Conv1d(2, 3, 3, key=jax.random.key(0)), normal(66, 2, 9))


@case("equinox Conv2d batch", "equinox", kind="single", note="vmapped, strides 2")
def _():
    import equinox as eqx

    conv = eqx.nn.Conv2d(2, 3, 3, stride=2, padding=1, key=jax.random.key(0))
    return equinox_model(conv, normal(67, 2, 2, 6, 6), lambda conv, x: jax.vmap(conv)(x))


@case("equinox GRUCell", "equinox", kind="single", sd=0.1, note="one step from a given state")
def _():
    import equinox as eqx

    cell = eqx.nn.GRUCell(3, 16, key=jax.random.key(0))
    state = 0.5 * normal(69, 16)
    return equinox_model(cell, normal(68, 3), lambda cell, x: cell(x, state))


@case("equinox GRUCell scan", "equinox", kind="deep", recurrent=True, note="16 units, batch")
def _():
    import equinox as eqx

    def last(cell, x):
        def one(x):
            return jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(16), x)[0]

        return jax.vmap(one)(x)

    def redrawn(cells, x):
        def one(x):
            def step(h, inputs):
                cell, x = inputs
                return cell(x, h), None

            return jax.lax.scan(step, jnp.zeros(16), (cells, x))[0]

        return jax.vmap(one)(x)

    cell = eqx.nn.GRUCell(3, 16, key=jax.random.key(0))
    return equinox_model(cell, normal(70, 4, STEPS, 3), last)._replace(redrawn=redrawn)


# Deep, not single: tanh acts on a sum of products, which no Gaussian describes exactly.
@case("equinox LSTMCell", "equinox", kind="deep", note="one step from a given state")
def _():
    import equinox as eqx

    cell = eqx.nn.LSTMCell(3, 16, key=jax.random.key(0))
    state = 0.5 * normal(71, 16), 0.5 * normal(72, 16)
    return equinox_model(cell, normal(68, 3), lambda cell, x: cell(x, state)[0])


@case("equinox LSTMCell scan", "equinox", kind="deep", recurrent=True, note="16 units, one row")
def _():
    import equinox as eqx

    def start():
        return jnp.zeros(16), jnp.zeros(16)

    def last(cell, x):
        return jax.lax.scan(lambda state, x: (cell(x, state), None), start(), x)[0][0]

    def redrawn(cells, x):
        def step(state, inputs):
            cell, x = inputs
            return cell(x, state), None

        return jax.lax.scan(step, start(), (cells, x))[0][0]

    cell = eqx.nn.LSTMCell(3, 16, key=jax.random.key(0))
    return equinox_model(cell, normal(70, STEPS, 3), last)._replace(redrawn=redrawn)


@case("equinox LayerNorm", "equinox", kind="single", note="weight and bias uncertain")
def _():
    import equinox as eqx

    return equinox_model(eqx.nn.LayerNorm(6), normal(73, 6))


@case("equinox MultiheadAttention", "equinox", kind="deep", note="2 heads, self-attention")
def _():
    import equinox as eqx

    attention = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
    return equinox_model(attention, normal(74, 5, 8), lambda attention, x: attention(x, x, x))


@case("equinox Embedding", "equinox", kind="single", note="vmapped over indices")
def _():
    import equinox as eqx

    table = eqx.nn.Embedding(7, 4, key=jax.random.key(0))
    return equinox_model(table, jnp.array([0, 3, 6, 3]), lambda table, i: jax.vmap(table)(i))


# Keras ----------------------------------------------------------------------------------------


def keras_model(layers: Callable[[Any], list[Any]], x: jax.Array) -> Model:
    """A Keras model as a function of its trainable variables."""
    import keras

    if keras.backend.backend() != "jax":
        pytest.skip("keras was imported before with another backend")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(x.shape[1:], dtype="float64"), *layers(keras.layers)])
    trainable = [v.value for v in model.trainable_variables]
    fixed = [v.value for v in model.non_trainable_variables]

    def f(params, x):
        return model.stateless_call(params, fixed, x, training=False)[0]

    return Model(foreign(f), settle(trainable), x)


@case("keras Dense", "keras", kind="single")
def _():
    return keras_model(lambda k: [k.Dense(3, dtype="float64")], normal(75, 8, 5))


@case("keras Conv2D", "keras", kind="single")
def _():
    return keras_model(
        lambda k: [k.Conv2D(4, 3, padding="same", dtype="float64")], normal(76, 2, 6, 6, 2)
    )


@case("keras Conv1D causal", "keras", kind="single", note="dilation 2")
def _():
    return keras_model(
        lambda k: [k.Conv1D(4, 3, padding="causal", dilation_rate=2, dtype="float64")],
        normal(77, 2, 9, 2),
    )


@case("keras GRU", "keras", kind="deep", recurrent=True, note="16 units, 8 steps, last state")
def _():
    return keras_model(lambda k: [k.GRU(16, dtype="float64")], normal(78, 4, STEPS, 3))


@case("keras LSTM", "keras", kind="deep", recurrent=True, note="16 units, 8 steps, last state")
def _():
    return keras_model(lambda k: [k.LSTM(16, dtype="float64")], normal(78, 4, STEPS, 3))


@case("keras MLP", "keras", kind="deep", note="two hidden layers")
def _():
    return keras_model(
        lambda k: [
            k.Dense(20, activation="relu", dtype="float64"),
            k.Dense(20, activation="relu", dtype="float64"),
            k.Dense(2, dtype="float64"),
        ],
        normal(79, 8, 5),
    )


# Built to given sizes -------------------------------------------------------------------------
#
# `build(sizes)` returns a function and its params, so that a test can compare a model of which a
# unit was removed with the same library's model built one unit smaller.

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


@cache
def sized_hand_mlp(sizes):
    def f(params, x):
        for w, b in params[:-1]:
            x = jax.nn.silu(x @ w + b[None])
        w, b = params[-1]
        return x @ w + b[None]

    shapes = [(sizes.inputs, sizes.hidden), (sizes.hidden, sizes.other), (sizes.other, 2)]
    return f, [(jnp.zeros(s), jnp.zeros(s[1])) for s in shapes]


@cache
def sized_hand_gru(sizes):
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


@cache
def sized_hand_residual(sizes):
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


@cache
def sized_nnx_mlp(sizes):
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


@cache
def sized_nnx_gru(sizes):
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    cell = nnx.GRUCell(sizes.inputs, sizes.hidden, rngs=rngs)
    return of_nnx(
        nnx.Sequential(nnx.RNN(cell), lambda h: h[:, -1], nnx.Linear(sizes.hidden, 2, rngs=rngs))
    )


@cache
def sized_nnx_conv(sizes):
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


@cache
def sized_equinox_mlp(sizes):
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


@cache
def sized_equinox_gru(sizes):
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


@cache
def sized_equinox_conv(sizes):
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


@cache
def sized_keras_mlp(sizes):
    layers = pytest.importorskip("keras").layers
    return of_keras(
        [
            layers.Dense(sizes.hidden, "tanh"),
            layers.Dense(sizes.other, "silu"),
            layers.Dense(2),
        ],
        (sizes.inputs,),
    )


@cache
def sized_keras_gru(sizes):
    layers = pytest.importorskip("keras").layers
    return of_keras([layers.GRU(sizes.hidden), layers.Dense(2)], (4, sizes.inputs))


@cache
def sized_keras_conv(sizes):
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
SIZED_MODELS = {
    sized_hand_mlp: (FLAT, MLP_COUNTS),
    sized_hand_gru: (SEQUENCE, GRU_COUNTS),
    sized_hand_residual: (FLAT, MLP_COUNTS),
    sized_nnx_mlp: (FLAT, MLP_COUNTS),
    sized_nnx_gru: (SEQUENCE, GRU_COUNTS),
    sized_nnx_conv: (IMAGE, MLP_COUNTS),
    sized_equinox_mlp: (FLAT, MLP_COUNTS),
    sized_equinox_gru: (SEQUENCE, GRU_COUNTS),
    sized_equinox_conv: (IMAGE, MLP_COUNTS),
    sized_keras_mlp: (FLAT, MLP_COUNTS),
    sized_keras_gru: (SEQUENCE, GRU_COUNTS),
    sized_keras_conv: (IMAGE, MLP_COUNTS),
}
