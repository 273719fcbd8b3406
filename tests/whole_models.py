"""Whole models of the zoo: written as their users write them, at sizes a test can afford.

Each builder returns a function, its weights and its inputs. Weights are float64. Inputs have rows
first, so that all can be trained. The oracle is that of `model_zoo`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Params = Any
Function = Callable[[Params, Any], jax.Array]
ROWS = 6


def weights(seed: int, *shape: int, scale: float | None = None) -> jax.Array:
    fan_in = int(np.prod(shape[:-1])) or 1
    factor = 1.0 / np.sqrt(fan_in) if scale is None else scale
    return factor * jax.random.normal(jax.random.key(seed), shape, jnp.float64)


def inputs(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(1000 + seed), (ROWS, *shape), jnp.float64)


def expand(b: jax.Array, x: jax.Array) -> jax.Array:
    return b.reshape((1,) * (x.ndim - b.ndim) + b.shape)


def layer_norm(x: jax.Array, gain: jax.Array | None = None) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    x = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x if gain is None else x * expand(gain, x)


WHOLE: dict[str, Callable[[], tuple[Function, Params, Any]]] = {}


def model(name: str) -> Callable:
    def enter(builder: Callable) -> Callable:
        WHOLE[name] = builder
        return builder

    return enter


# --- recurrences and state spaces -----------------------------------------------------------------


@model("delay line of 12 taps")
def _():
    def f(p, x):
        def step(taps, u):
            taps = (u @ p["in"], *taps[:-1])
            return taps, sum(t * k[None] for t, k in zip(taps, p["taps"], strict=True))

        start = tuple(jnp.zeros((x.shape[0], 3), x.dtype) for _ in range(12))
        _, y = lax.scan(step, start, x.swapaxes(0, 1))
        return y[-1] @ p["out"]

    p = {"in": weights(0, 2, 3), "taps": [weights(i, 3, scale=0.5) for i in range(12)],
         "out": weights(20, 3, 2)}  # fmt: skip
    return f, p, inputs(0, 14, 2)


@model("shift register with a window of weights")
def _():
    def f(p, x):
        def step(window, u):
            window = jnp.concatenate([u[:, None], window[:, :-1]], axis=1)
            return window, jnp.tanh(window @ p["fir"])

        _, y = lax.scan(step, jnp.zeros((x.shape[0], 9), x.dtype), x.swapaxes(0, 1))
        return y[-1] @ p["out"]

    return f, {"fir": weights(1, 9, 6), "out": weights(2, 6, 1)}, inputs(1, 12)


@model("S5 by associative scan")
def _():
    def f(p, x):
        decay = jnp.exp(-jnp.exp(p["log_rate"]))
        drive = x @ p["b"]

        def combine(one, other):
            return one[0] * other[0], other[0] * one[1] + other[1]

        rates = jnp.broadcast_to(decay[None, None], drive.shape)
        _, state = lax.associative_scan(combine, (rates, drive), axis=1)
        return jax.nn.gelu(state[:, -1]) @ p["c"]

    p = {"log_rate": weights(3, 6, scale=0.3), "b": weights(4, 2, 6), "c": weights(5, 6, 2)}
    return f, p, inputs(2, 8, 2)


@model("Mamba-like selective scan")
def _():
    def f(p, x):
        u = jax.nn.silu(x @ p["in"])
        delta = jax.nn.softplus(x @ p["delta"])
        rate = -jnp.exp(p["log_rate"])

        def step(h, inputs):
            u, d = inputs
            h = jnp.exp(d * rate[None]) * h + d * u
            return h, h

        _, h = lax.scan(step, jnp.zeros_like(u[:, 0]), (u.swapaxes(0, 1), delta.swapaxes(0, 1)))
        return (h[-1] * jax.nn.silu(x[:, -1] @ p["gate"])) @ p["out"]

    p = {"in": weights(6, 3, 8), "delta": weights(7, 3, 8), "log_rate": weights(8, 8, scale=0.3),
         "gate": weights(9, 3, 8), "out": weights(10, 8, 2)}  # fmt: skip
    return f, p, inputs(3, 6, 3)


@model("linear attention as a recurrence")
def _():
    def f(p, x):
        q, k, v = (x @ p[n] for n in "qkv")
        k = jax.nn.elu(k) + 1.0

        def step(state, t):
            q, k, v = t
            state = 0.9 * state + k[:, :, None] * v[:, None, :]
            return state, jnp.einsum("bi,bij->bj", q, state)

        start = jnp.zeros((x.shape[0], 4, 4), x.dtype)
        _, y = lax.scan(step, start, tuple(a.swapaxes(0, 1) for a in (q, k, v)))
        return y[-1] @ p["out"]

    return (
        f,
        {n: weights(11 + i, 3, 4) for i, n in enumerate("qkv")} | {"out": weights(14, 4, 1)},
        inputs(4, 5, 3),
    )


@model("echo state with a while loop")
def _():
    def f(p, x):
        def body(state):
            i, h = state
            return i + 1, jnp.tanh(x @ p["in"] + h @ p["state"])

        start = (0, jnp.zeros((x.shape[0], 6), x.dtype))
        return lax.while_loop(lambda s: s[0] < 4, body, start)[1] @ p["out"]

    p = {"in": weights(15, 3, 6), "state": weights(16, 6, 6, scale=0.2), "out": weights(17, 6, 2)}
    return f, p, inputs(5, 3)


@model("neural ODE by Runge-Kutta")
def _():
    def f(p, x):
        def slope(h):
            return jnp.tanh(h @ p["a"] + p["b"][None]) @ p["c"]

        def step(h, _):
            k1 = slope(h)
            k2 = slope(h + 0.1 * k1)
            return h + 0.2 * k2, None

        h, _ = lax.scan(step, x @ p["in"], None, length=4)
        return h @ p["out"]

    p = {
        "in": weights(18, 3, 4),
        "a": weights(19, 4, 6),
        "b": weights(20, 6),
        "c": weights(21, 6, 4),
        "out": weights(22, 4, 1),
    }
    return f, p, inputs(6, 3)


@model("ConvLSTM")
def _():
    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def f(p, x):
        def step(state, frame):
            h, c = state
            gates = convolve(frame, p["wx"]) + convolve(h, p["wh"]) + expand(p["b"], frame)
            i, j, k, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(k + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        start = jnp.zeros((x.shape[0], 4, 4, 2), x.dtype)
        (h, _), _ = lax.scan(step, (start, start), x.swapaxes(0, 1))
        return h.reshape(x.shape[0], -1) @ p["out"]

    p = {"wx": weights(23, 3, 3, 1, 8), "wh": weights(24, 3, 3, 2, 8), "b": weights(25, 8),
         "out": weights(26, 32, 1)}  # fmt: skip
    return f, p, inputs(7, 3, 4, 4, 1)


@model("bidirectional GRU")
def _():
    def cell(p, h, x):
        r, z, n = jnp.split(x @ p["x"], 3, axis=-1)
        rh, zh, nh = jnp.split(h @ p["h"], 3, axis=-1)
        z = jax.nn.sigmoid(z + zh)
        return (1.0 - z) * jnp.tanh(n + jax.nn.sigmoid(r + rh) * nh) + z * h

    def f(p, x):
        def run(q, reverse):
            start = jnp.zeros((x.shape[0], 5), x.dtype)
            body = lambda h, u: (cell(q, h, u), None)  # noqa: E731
            return lax.scan(body, start, x.swapaxes(0, 1), reverse=reverse)[0]

        both = jnp.concatenate([run(p["f"], False), run(p["b"], True)], axis=-1)
        return both @ p["out"]

    cells = {
        n: {"x": weights(27 + i, 3, 15), "h": weights(29 + i, 5, 15)} for i, n in enumerate("fb")
    }
    return f, cells | {"out": weights(31, 10, 2)}, inputs(8, 5, 3)


# --- graphs and sets ------------------------------------------------------------------------------

EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [1, 0], [2, 1], [0, 2], [3, 3], [4, 4]])


@model("GCN")
def _():
    source, target = EDGES.T

    def layer(h, w):
        messages = (h @ w)[source]
        return jax.ops.segment_sum(messages, target, 5) / 2.0

    def f(p, x):
        def one(nodes):
            return jnp.mean(layer(jax.nn.relu(layer(nodes, p["a"])), p["b"]), axis=0)

        return jax.vmap(one)(x)

    return f, {"a": weights(40, 3, 8), "b": weights(41, 8, 2)}, inputs(9, 5, 3)


@model("GAT")
def _():
    source, target = EDGES.T

    def attend(p, h):
        values = h @ p["w"]
        scores = jax.nn.leaky_relu((values @ p["s"])[source] + (values @ p["t"])[target], 0.2)
        terms = jnp.exp(scores - jax.ops.segment_max(scores, target, 5)[target])
        shares = terms / jax.ops.segment_sum(terms, target, 5)[target]
        return jax.ops.segment_sum(shares[:, None] * values[source], target, 5)

    def f(p, x):
        return jax.vmap(lambda h: attend(p["2"], jax.nn.elu(attend(p["1"], h)))[0])(x)

    def layer(seed, n, m):
        return {"w": weights(seed, n, m), "s": weights(seed + 1, m), "t": weights(seed + 2, m)}

    return f, {"1": layer(42, 3, 6), "2": layer(45, 6, 2)}, inputs(10, 5, 3)


@model("message passing with maxima")
def _():
    source, target = EDGES.T

    def f(p, x):
        def one(h):
            messages = jnp.tanh(jnp.concatenate([h[source], h[target]], axis=-1) @ p["m"])
            gathered = jax.ops.segment_max(messages, target, 5)
            return (gathered @ p["out"]).sum(0)

        return jax.vmap(one)(x)

    return f, {"m": weights(48, 6, 6), "out": weights(49, 6, 2)}, inputs(11, 5, 3)


@model("DeepSets")
def _():
    def f(p, x):
        h = jax.nn.relu(jax.nn.relu(x @ p["a"]) @ p["b"])
        return jax.nn.relu(h.sum(1) @ p["c"]) @ p["d"]

    p = {
        "a": weights(50, 2, 8),
        "b": weights(51, 8, 8),
        "c": weights(52, 8, 6),
        "d": weights(53, 6, 1),
    }
    return f, p, inputs(12, 5, 2)


@model("PointNet with max pooling")
def _():
    def f(p, x):
        h = jax.nn.relu(x @ p["a"]) @ p["b"]
        return jnp.tanh(h.max(1)) @ p["c"]

    return (
        f,
        {"a": weights(54, 3, 8), "b": weights(55, 8, 6), "c": weights(56, 6, 2)},
        inputs(13, 5, 3),
    )


@model("sorted pooling")
def _():
    def f(p, x):
        h = jnp.tanh(x @ p["a"])
        return jnp.einsum("bnf,nfo->bo", jnp.sort(h, axis=1), p["b"])

    return f, {"a": weights(57, 2, 4), "b": weights(58, 5, 4, 1)}, inputs(14, 5, 2)


# --- attention ------------------------------------------------------------------------------------


def attention(p, x, mask, heads=2):
    b, n, d = x.shape
    q, k, v = ((x @ p[m]).reshape(b, n, heads, d // heads) for m in "qkv")
    scores = jnp.einsum("bihc,bjhc->bhij", q, k) / np.sqrt(d // heads)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    y = jnp.einsum("bhij,bjhc->bihc", jax.nn.softmax(scores), v)
    return y.reshape(b, n, d) @ p["o"]


def block(p, x, mask):
    x = x + attention(p, layer_norm(x), mask)
    return x + jax.nn.gelu(layer_norm(x) @ p["up"]) @ p["down"]


def block_params(seed, d=8):
    p = {n: weights(seed + i, d, d) for i, n in enumerate("qkvo")}
    return p | {"up": weights(seed + 4, d, 12), "down": weights(seed + 5, 12, d)}


@model("causal transformer with a padding mask")
def _():
    lengths = np.array([5, 4, 3, 5, 2, 4])
    there = np.arange(5)[None] < lengths[:, None]
    mask = np.tril(np.ones((5, 5), bool))[None, None] & there[:, None, None]

    def f(p, x):
        x, padding = x[..., :3], x[..., 3:]
        visible = jnp.tril(jnp.ones((5, 5), bool))[None, None] & (padding[:, None, None, :, 0] > 0)
        h = x @ p["in"] + expand(p["place"], x)
        for layer in p["blocks"]:
            h = block(layer, h, visible)
        return layer_norm(h)[:, 0] @ p["out"]

    p = {"in": weights(60, 3, 8), "place": weights(61, 5, 8, scale=0.3),
         "blocks": [block_params(62), block_params(70)], "out": weights(78, 8, 2)}  # fmt: skip
    x = jnp.concatenate([inputs(15, 5, 3), jnp.asarray(there[..., None], jnp.float64)], axis=-1)
    assert mask.any(-1).all()
    return f, p, x


@model("vision transformer")
def _():
    def f(p, x):
        patches = x.reshape(x.shape[0], 2, 3, 2, 3, 1).transpose(0, 1, 3, 2, 4, 5)
        h = patches.reshape(x.shape[0], 4, 9) @ p["in"]
        first = jnp.broadcast_to(p["class"][None, None], (x.shape[0], 1, 8))
        h = jnp.concatenate([first, h], axis=1) + expand(p["place"], h)
        return layer_norm(block(p["block"], h, None))[:, 0] @ p["out"]

    p = {"in": weights(80, 9, 8), "class": weights(81, 8), "place": weights(82, 5, 8, scale=0.3),
         "block": block_params(83), "out": weights(90, 8, 2)}  # fmt: skip
    return f, p, inputs(16, 6, 6, 1)


@model("cross attention with rotary places")
def _():
    def turn(x):
        angle = jnp.arange(x.shape[1])[:, None] / jnp.array([1.0, 4.0])[None]
        a, b = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angle)[None], jnp.sin(angle)[None]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def f(p, x):
        q, k, v = turn(x[:, :2] @ p["q"]), turn(x[:, 2:] @ p["k"]), x[:, 2:] @ p["v"]
        shares = jax.nn.softmax(jnp.einsum("bic,bjc->bij", q, k) / 2.0)
        return jnp.einsum("bij,bjc->bic", shares, v).reshape(x.shape[0], -1) @ p["out"]

    p = {n: weights(91 + i, 3, 4) for i, n in enumerate("qkv")} | {"out": weights(94, 8, 1)}
    return f, p, inputs(17, 6, 3)


@model("Perceiver: learned queries")
def _():
    def f(p, x):
        scores = jnp.einsum("qc,bjc->bqj", p["queries"], x @ p["k"])
        h = jnp.einsum("bqj,bjc->bqc", jax.nn.softmax(scores), x @ p["v"])
        return jax.nn.gelu(h.reshape(x.shape[0], -1) @ p["a"]) @ p["b"]

    p = {"queries": weights(95, 2, 4), "k": weights(96, 3, 4), "v": weights(97, 3, 4),
         "a": weights(98, 8, 6), "b": weights(99, 6, 1)}  # fmt: skip
    return f, p, inputs(18, 5, 3)


@model("mixture of experts with top-k")
def _():
    def f(p, x):
        values, chosen = lax.top_k(x @ p["gate"], 2)
        shares = jax.nn.softmax(values)
        h = jnp.tanh(jnp.einsum("bi,eih->beh", x, p["up"]))
        y = jnp.einsum("beh,eho->beo", h, p["down"])
        picked = jnp.take_along_axis(y, chosen[..., None], axis=1)
        return (shares[..., None] * picked).sum(1)

    p = {"gate": 2.0 * weights(100, 4, 4), "up": weights(101, 4, 4, 6, scale=0.5),
         "down": weights(102, 4, 6, 2, scale=0.4)}  # fmt: skip
    return f, p, inputs(19, 4)


@model("soft mixture of experts")
def _():
    def f(p, x):
        shares = jax.nn.softmax(x @ p["gate"])
        y = jax.nn.relu(jnp.einsum("bi,eih->beh", x, p["up"]))
        return jnp.einsum("be,beh,eho->bo", shares, y, p["down"])

    p = {"gate": weights(103, 4, 3), "up": weights(104, 3, 4, 6, scale=0.5),
         "down": weights(105, 3, 6, 1, scale=0.4)}  # fmt: skip
    return f, p, inputs(20, 4)


# --- images and signals ---------------------------------------------------------------------------


def conv(x, w, stride=1, groups=1):
    return lax.conv_general_dilated(
        x, w, (stride,) * (x.ndim - 2), "SAME", feature_group_count=groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NWC", "WIO", "NWC"),
    )  # fmt: skip


def pool(x, kind=lax.max, start=-jnp.inf):
    return lax.reduce_window(x, start, kind, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@model("U-Net")
def _():
    def f(p, x):
        a = jax.nn.relu(conv(x, p["a"]))
        b = jax.nn.relu(conv(pool(a), p["b"]))
        up = jnp.repeat(jnp.repeat(b, 2, axis=1), 2, axis=2)
        y = conv(jnp.concatenate([a, up], axis=-1), p["c"])
        return y.mean((1, 2))

    p = {
        "a": weights(110, 3, 3, 1, 3),
        "b": weights(111, 3, 3, 3, 4),
        "c": weights(112, 3, 3, 7, 1),
    }
    return f, p, inputs(21, 6, 6, 1)


@model("ResNet block in bfloat16")
def _():
    half = jnp.bfloat16

    def f(p, x):
        h = conv(x.astype(half), p["in"].astype(half))
        for w, gain in zip(p["blocks"], p["gains"], strict=True):
            h = h + conv(jax.nn.relu(layer_norm(h, gain.astype(half))), w.astype(half))
        return h.mean((1, 2)).astype(jnp.float32) @ p["out"].astype(jnp.float32)

    p = {"in": weights(113, 3, 3, 1, 4), "blocks": [weights(114 + i, 3, 3, 4, 4) for i in range(2)],
         "gains": [jnp.ones(4), jnp.ones(4)], "out": weights(117, 4, 2)}  # fmt: skip
    return f, p, inputs(22, 5, 5, 1)


@model("MLP with normalisation in float16")
def _():
    def f(p, x):
        h = x.astype(jnp.float16) @ p["a"].astype(jnp.float16)
        for _ in range(2):
            h = h + jax.nn.silu(layer_norm(h) @ p["b"].astype(jnp.float16))
        return h.astype(jnp.float32) @ p["c"].astype(jnp.float32)

    return (
        f,
        {"a": weights(118, 4, 8), "b": weights(119, 8, 8), "c": weights(120, 8, 1)},
        inputs(23, 4),
    )


@model("STFT front end with a learned window")
def _():
    places = np.arange(5)[:, None] * 4 + np.arange(8)[None]

    def f(p, x):
        spectrum = jnp.fft.rfft(x[:, places] * p["window"][None, None])
        power = spectrum.real**2 + spectrum.imag**2
        mel = jnp.log(power @ jax.nn.softplus(p["mel"]) + 0.1)
        return mel.reshape(x.shape[0], -1) @ p["out"]

    p = {
        "window": 1.0 + weights(121, 8, scale=0.1),
        "mel": weights(122, 5, 3),
        "out": weights(123, 15, 1),
    }
    return f, p, inputs(24, 24)


@model("Fourier neural operator")
def _():
    def f(p, x):
        h = x[..., None] * p["in"][None, None]
        spectrum = jnp.fft.rfft(h, axis=1)[:, :3]
        mixed = jnp.einsum("bkc,kcd->bkd", spectrum, p["re"] + 1j * p["im"])
        h = jax.nn.gelu(jnp.fft.irfft(mixed, n=8, axis=1) + h @ p["w"])
        return h.mean(1) @ p["out"]

    p = {"in": weights(124, 4), "re": weights(125, 3, 4, 4), "im": weights(126, 3, 4, 4),
         "w": weights(127, 4, 4), "out": weights(128, 4, 1)}  # fmt: skip
    return f, p, inputs(25, 8)


@model("WaveNet: dilated causal convolutions")
def _():
    def f(p, x):
        h, total = x @ p["in"], 0.0
        for i, (w, o) in enumerate(zip(p["w"], p["o"], strict=True)):
            step = 2**i
            late = jnp.pad(h, ((0, 0), (step, 0), (0, 0)))[:, : h.shape[1]]
            a, b = jnp.split(jnp.concatenate([h, late], axis=-1) @ w, 2, axis=-1)
            y = (jnp.tanh(a) * jax.nn.sigmoid(b)) @ o
            h, total = h + y, total + y
        return jax.nn.relu(total[:, -1]) @ p["out"]

    p = {"in": weights(129, 1, 4), "w": [weights(130 + i, 8, 8) for i in range(3)],
         "o": [weights(133 + i, 4, 4) for i in range(3)], "out": weights(136, 4, 1)}  # fmt: skip
    return f, p, inputs(26, 8, 1)


@model("MobileNet block: depthwise, squeeze and excite")
def _():
    def f(p, x):
        h = jax.nn.hard_swish(conv(x, p["in"]))
        h = jnp.clip(conv(h, p["depth"], groups=4), 0.0, 6.0)
        gate = jax.nn.sigmoid(jax.nn.relu(h.mean((1, 2)) @ p["squeeze"]) @ p["excite"])
        return (h * gate[:, None, None]).mean((1, 2)) @ p["out"]

    p = {
        "in": weights(137, 1, 1, 2, 4),
        "depth": weights(138, 3, 3, 1, 4),
        "squeeze": weights(139, 4, 2),
        "excite": weights(140, 2, 4),
        "out": weights(141, 4, 2),
    }
    return f, p, inputs(27, 4, 4, 2)


@model("MLP-Mixer")
def _():
    def f(p, x):
        h = x @ p["in"]
        h = h + jnp.einsum("bnc,nm->bmc", jax.nn.gelu(layer_norm(h)), p["tokens"])
        h = h + jax.nn.gelu(layer_norm(h) @ p["up"]) @ p["down"]
        return h.mean(1) @ p["out"]

    p = {"in": weights(142, 3, 6), "tokens": weights(143, 4, 4), "up": weights(144, 6, 8),
         "down": weights(145, 8, 6), "out": weights(146, 6, 2)}  # fmt: skip
    return f, p, inputs(28, 4, 3)


@model("quantised layer, straight through")
def _():
    def quantise(x):
        return x + lax.stop_gradient(jnp.round(4.0 * x) / 4.0 - x)

    def f(p, x):
        return quantise(jnp.tanh(x @ quantise(p["a"]))) @ p["b"]

    return f, {"a": weights(147, 4, 8), "b": weights(148, 8, 1)}, inputs(29, 4)


# --- flows, physics, functions --------------------------------------------------------------------


@model("normalising flow: coupling layers")
def _():
    def f(p, x):
        a, b = jnp.split(x, 2, axis=-1)
        log_volume = 0.0
        for layer in p:
            s, t = jnp.split(jnp.tanh(a @ layer["in"]) @ layer["out"], 2, axis=-1)
            b = b * jnp.exp(0.5 * jnp.tanh(s)) + t
            log_volume = log_volume + 0.5 * jnp.tanh(s).sum(-1)
            a, b = b, a
        z = jnp.concatenate([a, b], axis=-1)
        return (log_volume - 0.5 * (z * z).sum(-1))[:, None]

    return (
        f,
        [{"in": weights(150 + i, 2, 6), "out": weights(153 + i, 6, 4)} for i in range(2)],
        inputs(30, 4),
    )


@model("Kolmogorov-Arnold layers")
def _():
    grid = np.linspace(-2.0, 2.0, 6)

    def basis(x):
        """Piecewise linear splines."""
        return jnp.maximum(
            1.0 - jnp.abs(x[..., None] - jnp.asarray(grid).reshape((1,) * x.ndim + (-1,))) / 0.8,
            0.0,
        )

    def f(p, x):
        for layer in p:
            x = (
                jnp.einsum("big,igo->bo", basis(x), layer["spline"])
                + jax.nn.silu(x) @ layer["base"]
            )
        return x

    def layer(seed, n, m):
        return {"spline": weights(seed, n, 6, m, scale=0.4), "base": weights(seed + 1, n, m)}

    return f, [layer(156, 2, 4), layer(158, 4, 1)], inputs(31, 2)


@model("physics-informed network")
def _():
    def f(p, x):
        def u(t):
            return (jnp.tanh(t * p["a"] + p["b"]) * p["c"]).sum()

        def residual(t):
            return jax.grad(jax.grad(u))(t) + 2.0 * jax.grad(u)(t) + u(t)

        return jax.vmap(residual)(x[:, 0])[:, None]

    return (
        f,
        {
            "a": weights(160, 8, scale=1.0),
            "b": weights(161, 8, scale=0.5),
            "c": weights(162, 8, scale=0.4),
        },
        inputs(32, 1),
    )


@model("Hamiltonian network: a gradient inside")
def _():
    def f(p, x):
        def energy(s):
            return (jnp.tanh(s @ p["a"]) @ p["b"]).sum()

        gradient = jax.vmap(jax.grad(energy))(x)
        return jnp.stack([gradient[:, 1], -gradient[:, 0]], axis=-1)

    return f, {"a": weights(163, 2, 8), "b": weights(164, 8)}, inputs(33, 2)


@model("SIREN")
def _():
    def f(p, x):
        h = jnp.sin(3.0 * (x @ p["a"]))
        return jnp.sin(h @ p["b"]) @ p["c"]

    return (
        f,
        {"a": weights(165, 2, 8), "b": weights(166, 8, 8), "c": weights(167, 8, 1)},
        inputs(34, 2),
    )


@model("Fourier features")
def _():
    def f(p, x):
        angles = x @ p["frequencies"]
        features = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        return jax.nn.relu(features @ p["a"]) @ p["b"]

    p = {"frequencies": weights(168, 2, 6), "a": weights(169, 12, 6), "b": weights(170, 6, 1)}
    return f, p, inputs(35, 2)


@model("radial basis functions")
def _():
    def f(p, x):
        distance = ((x[:, None] - p["centres"][None]) ** 2).sum(-1)
        return jnp.exp(-distance * jax.nn.softplus(p["width"])[None]) @ p["out"]

    p = {
        "centres": weights(171, 8, 2, scale=1.0),
        "width": weights(172, 8),
        "out": weights(173, 8, 2),
    }
    return f, p, inputs(36, 2)


@model("hypernetwork")
def _():
    def f(p, x):
        made = jnp.tanh(x[:, :2] @ p["a"]) @ p["b"]
        w = made.reshape(x.shape[0], 3, 2)
        return jnp.einsum("bi,bio->bo", x[:, 2:], w)

    return f, {"a": weights(174, 2, 6), "b": weights(175, 6, 6)}, inputs(37, 5)


@model("factorisation machine")
def _():
    def f(p, x):
        v = x @ p["v"]
        pairs = 0.5 * ((v * v) - (x * x) @ (p["v"] * p["v"])).sum(-1)
        return (x @ p["w"])[:, 0][:, None] + pairs[:, None]

    return f, {"v": weights(176, 5, 3), "w": weights(177, 5, 1)}, inputs(38, 5)


@model("deep and cross network")
def _():
    def f(p, x):
        h = x
        for w, b in zip(p["w"], p["b"], strict=True):
            h = x * (h @ w) + expand(b, x) + h
        deep = jax.nn.relu(x @ p["deep"])
        return jnp.concatenate([h, deep], axis=-1) @ p["out"]

    p = {
        "w": [weights(178 + i, 4, 1) for i in range(2)],
        "b": [weights(180 + i, 4, scale=0.2) for i in range(2)],
        "deep": weights(182, 4, 6),
        "out": weights(183, 10, 1),
    }
    return f, p, inputs(39, 4)


@model("mixture density network")
def _():
    def f(p, x):
        h = jnp.tanh(x @ p["a"])
        log_shares = jax.nn.log_softmax(h @ p["pi"])
        centres = h @ p["mu"]
        log_density = -0.5 * (x[:, :1] - centres) ** 2
        return jax.nn.logsumexp(log_shares + log_density, axis=-1)[:, None]

    p = {"a": weights(184, 3, 8), "pi": weights(185, 8, 3), "mu": weights(186, 8, 3)}
    return f, p, inputs(40, 3)


@model("highway network with dropout off")
def _():
    def f(p, x):
        h = x @ p["in"]
        for layer in p["layers"]:
            gate = jax.nn.sigmoid(h @ layer["g"] - 1.0)
            h = gate * jax.nn.relu(h @ layer["w"]) + (1.0 - gate) * h
        return h @ p["out"]

    layers = [{"g": weights(187 + i, 6, 6), "w": weights(189 + i, 6, 6)} for i in range(2)]
    return f, {"in": weights(191, 3, 6), "layers": layers, "out": weights(192, 6, 2)}, inputs(41, 3)


@model("Siamese network with a cosine")
def _():
    def f(p, x):
        a, b = (jnp.tanh(part @ p["w"]) for part in jnp.split(x, 2, axis=-1))
        size = jnp.sqrt((a * a).sum(-1) + 0.1) * jnp.sqrt((b * b).sum(-1) + 0.1)
        return ((a * b).sum(-1) / size)[:, None]

    return f, {"w": weights(193, 3, 8)}, inputs(42, 6)


@model("gated product over factors")
def _():
    def f(p, x):
        factors = jax.nn.sigmoid(x @ p["w"] + 1.0)
        return jnp.prod(factors.reshape(x.shape[0], 3, 4), axis=-1) @ p["out"]

    return f, {"w": weights(194, 3, 12), "out": weights(195, 3, 2)}, inputs(43, 3)


@model("survival curve by running products")
def _():
    def f(p, x):
        hazard = jax.nn.sigmoid(x @ p["a"] - 1.0)
        return jnp.cumprod(1.0 - hazard, axis=-1)

    return f, {"a": weights(196, 3, 6)}, inputs(44, 3)


@model("ordinal regression by running sums")
def _():
    def f(p, x):
        score = jnp.tanh(x @ p["a"]) @ p["b"]
        cuts = jnp.cumsum(jax.nn.softplus(p["cuts"])) - 2.0
        return jax.nn.sigmoid(expand(cuts, score) - score)

    return (
        f,
        {"a": weights(197, 3, 6), "b": weights(198, 6, 1), "cuts": weights(199, 4, scale=0.5)},
        inputs(45, 3),
    )


@model("variational autoencoder's means")
def _():
    def f(p, x):
        h = jax.nn.elu(x @ p["e1"])
        z = h @ p["e2"]
        return jax.nn.softplus(jax.nn.elu(z @ p["d1"]) @ p["d2"])

    p = {
        "e1": weights(200, 5, 8),
        "e2": weights(201, 8, 2),
        "d1": weights(202, 2, 8),
        "d2": weights(203, 8, 5),
    }
    return f, p, inputs(46, 5)


@model("recomputed layers under remat")
def _():
    def f(p, x):
        for w in p["w"]:
            x = jax.checkpoint(lambda h, w: h + jnp.tanh(h @ w))(x, w)
        return x @ p["out"]

    return (
        f,
        {"w": [weights(204 + i, 4, 4) for i in range(3)], "out": weights(207, 4, 1)},
        inputs(47, 4),
    )


@model("layers stacked in a scan")
def _():
    def f(p, x):
        h, _ = lax.scan(lambda h, w: (jax.nn.relu(h @ w) + h, None), x @ p["in"], p["w"])
        return h @ p["out"]

    return (
        f,
        {"in": weights(208, 3, 6), "w": 0.5 * weights(209, 3, 6, 6), "out": weights(210, 6, 1)},
        inputs(48, 3),
    )


@model("branches by a switch")
def _():
    def f(p, x):
        h = x @ p["a"]
        index = (x.sum() > 0).astype(jnp.int32)
        return lax.switch(index, [jnp.tanh, jax.nn.relu], h) @ p["b"]

    return f, {"a": weights(211, 3, 6), "b": weights(212, 6, 1)}, inputs(49, 3)


# --- what is chosen or masked by values, splines --------------------------------------------------


@model("attention pooling and maxima of padded sets")
def _():
    there = np.array([True, True, False, True, False])

    def f(p, x):
        h = jnp.tanh(x @ p["a"])
        shares = jax.nn.softmax(h @ p["score"], axis=1, where=there[None])
        largest = jnp.where(there[None, :, None], h, -jnp.inf).max(1)
        pooled = jnp.einsum("bn,bnc->bc", shares, h)
        return jnp.concatenate([pooled, largest], axis=-1) @ p["out"]

    p = {"a": weights(220, 3, 6), "score": weights(221, 6), "out": weights(222, 12, 1)}
    return f, p, inputs(50, 5, 3)


@model("mixture of experts with a threshold")
def _():
    def f(p, x):
        scores = x @ p["gate"]
        least = lax.top_k(scores, 2)[0][:, -1:]
        shares = jax.nn.softmax(jnp.where(scores < least, -jnp.inf, scores))
        h = jax.nn.gelu(jnp.einsum("bi,eih->beh", x, p["up"]))
        return jnp.einsum("be,beo->bo", shares, jnp.einsum("beh,eho->beo", h, p["down"]))

    p = {"gate": 2.0 * weights(223, 4, 4), "up": weights(224, 4, 4, 6, scale=0.5),
         "down": weights(225, 4, 6, 2, scale=0.4)}  # fmt: skip
    return f, p, inputs(51, 4)


@model("Kolmogorov-Arnold layers with cubic B-splines")
def _():
    grid = np.linspace(-2.0, 2.0, 6)
    step = grid[1] - grid[0]
    outside = step * np.arange(1, 4)
    knots = np.concatenate([grid[0] - outside[::-1], grid, grid[-1] + outside])

    def basis(x):
        """The recursion of Cox and de Boor."""
        x, t = x[..., None], jnp.asarray(knots)[None, None]
        b = ((x >= t[..., :-1]) & (x < t[..., 1:])).astype(x.dtype)
        for k in range(1, 4):
            rising = (x - t[..., : -k - 1]) / (t[..., k:-1] - t[..., : -k - 1])
            falling = (t[..., k + 1 :] - x) / (t[..., k + 1 :] - t[..., 1:-k])
            b = rising * b[..., :-1] + falling * b[..., 1:]
        return b

    def f(p, x):
        for layer in p:
            x = jnp.einsum("big,igo->bo", basis(x), layer["c"]) + jax.nn.silu(x) @ layer["base"]
        return x

    def layer(seed, n, m):
        return {"c": weights(seed, n, 8, m, scale=0.4), "base": weights(seed + 1, n, m)}

    return f, [layer(226, 2, 3), layer(228, 3, 1)], inputs(52, 2)


@model("learned activation by interpolation")
def _():
    places = np.linspace(-3.0, 3.0, 9)

    def f(p, x):
        return jnp.interp(x @ p["a"], places, p["values"]) @ p["b"]

    values = jnp.sin(places) + weights(230, 9, scale=0.2)
    return f, {"a": weights(231, 3, 6), "values": values, "b": weights(232, 6, 1)}, inputs(53, 3)


@model("Lagrangian network")
def _():
    def f(p, x):
        def lagrangian(q, v):
            h = jax.nn.softplus(jnp.concatenate([q, v]) @ p["a"])
            return h @ p["b"] + 0.5 * (v * v).sum()

        def acceleration(state):
            q, v = state[:1], state[1:]
            mass = jax.hessian(lagrangian, 1)(q, v)[0, 0]
            return jax.grad(lagrangian, 0)(q, v) / (mass + 0.5)

        return jax.vmap(acceleration)(x)

    return f, {"a": weights(233, 2, 6), "b": weights(234, 6)}, inputs(54, 2)


@model("spline flow with knots from a network")
def _():
    def f(p, x):
        z = 2.0 * jnp.tanh(x[:, 1])
        h = jnp.tanh(x[:, :1] * p["in"][None])
        widths, heights = (6.0 * jax.nn.softmax(h @ p[n]) for n in ("w", "h"))
        left, low = (jnp.pad(jnp.cumsum(a, -1), ((0, 0), (1, 0))) - 3.0 for a in (widths, heights))
        bin_ = jnp.clip((z[:, None] >= left).sum(-1) - 1, 0, 4)[:, None]
        start, width, base, height = (
            jnp.take_along_axis(a, bin_, 1) for a in (left, widths, low, heights)
        )
        return base + (z[:, None] - start) / width * height

    p = {"in": weights(235, 6, scale=1.0), "w": weights(236, 6, 5), "h": weights(237, 6, 5)}
    return f, p, inputs(55, 2)
