"""Networks to be written as C, and what the compiled C makes of rows and frames."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import c_host as host
from secateur.exports.c.source_writer import write_c
from secateur.exports.lowering import lower_function
from secateur.exports.simplification import simplify_graph, spread_products

# Straight-line code, and loops with their two ways to store weights.
STYLES = {
    "straight": {"optimise": "speed"},
    "loops for size": {"optimise": "size", "straight": False},
    "loops for speed": {"optimise": "speed", "straight": False},
}


def steps(f, shape, **options):
    """The graph of a function of one row."""
    graph = lower_function(f, jax.ShapeDtypeStruct((1, *shape), jnp.float64), **options)
    spread_products(graph)
    return simplify_graph(graph)


def written(folder, graph, name, **options):
    """A graph as C, in files."""
    source = write_c(graph, name, **options)
    (folder / f"{name}.h").write_text(source.header, encoding="utf-8")
    (folder / f"{name}.c").write_text(source.source, encoding="utf-8")
    return source


def compiled(folder, sources, **options):
    """Some of these as one library."""
    return host.build_library([folder / f"{s.name}.c" for s in sources], folder, **options)


def run(library, source, rows, *, by_frame=False):
    """The output for each row; of a recurrent network, for each frame of each row."""
    if not by_frame:
        return np.array([_call(library, source, row) for row in rows])
    outputs = []
    for row in rows:
        state = []
        if source.state_elements:  # a state that was pruned away is not there
            state = [np.zeros(source.state_bytes // 2, np.int16)]
            library.call(f"{source.name}_init", *state)
        outputs.append([_call(library, source, frame, *state) for frame in row])
    return np.array(outputs)


def _call(library, source, x, *state):
    y = np.full(source.outputs, np.nan, np.float32)
    library.call(f"{source.name}_predict", *state, np.ascontiguousarray(x, np.float32), y)
    return y


def masked(params, rate, seed=0):
    """Parameters of which a share is 0."""
    random = np.random.default_rng(seed)

    def cut(p):
        return jnp.asarray(np.asarray(p) * (random.uniform(size=p.shape) >= rate))

    return jax.tree.map(cut, params)


def parameters(*shapes, seed=0, dtype=jnp.float64):
    """Random weights, the larger the fewer meet in a unit; vectors are biases."""
    random = np.random.default_rng(seed)
    sizes = [np.prod(s[:-1]) if len(s) > 1 else 10 for s in shapes]
    return [
        jnp.asarray(random.normal(size=s) / np.sqrt(n), dtype)
        for s, n in zip(shapes, sizes, strict=True)
    ]


# --- networks -------------------------------------------------------------------------------------


def mlp(activation):
    """Two hidden layers."""

    def f(params, x):
        w1, b1, w2, b2, w3, b3 = params
        h = activation(x @ w1 + b1[None])
        return activation(h @ w2 + b2[None]) @ w3 + b3[None]

    return f


MLP = ((6, 8), (8,), (8, 7), (7,), (7, 2), (2,))


def convolutions(layout):
    """Two convolutions, the second strided and in groups, two ways to pool, and a dense layer."""
    last = layout == "NHWC"
    numbers = (layout, "HWIO" if last else "OIHW", layout)

    def spread(size):
        return (1, *size, 1) if last else (1, 1, *size)

    def bias(b):
        return b.reshape((1, 1, 1, -1) if last else (1, -1, 1, 1))

    def f(params, x):
        k1, b1, k2, b2, w, b = params
        if not last:
            k1, k2 = (jnp.transpose(k, (3, 2, 0, 1)) for k in (k1, k2))
        h = lax.conv_general_dilated(x, k1, (1, 1), "SAME", dimension_numbers=numbers)
        h = jax.nn.relu(h + bias(b1))
        h = lax.reduce_window(h, -jnp.inf, lax.max, spread((2, 2)), spread((1, 2)), "SAME")
        h = lax.conv_general_dilated(
            h, k2, (2, 1), ((1, 0), (0, 1)), rhs_dilation=(1, 2), dimension_numbers=numbers,
            feature_group_count=2,
        )  # fmt: skip
        h = jnp.tanh(h + bias(b2))
        h = lax.reduce_window(h, 0.0, lax.add, spread((2, 1)), spread((1, 1)), "VALID") / 2
        return h.reshape(len(h), -1) @ w + b[None]

    return f


CONVOLUTIONS = ((3, 3, 2, 4), (4,), (2, 2, 2, 6), (6,), (24, 3), (3,))


def normalised(params, x):
    """A dense layer, layer normalisation, and a softmax."""
    w1, scale, w2, b2 = params
    h = x @ w1
    h = (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-6)
    return jax.nn.softmax(jax.nn.relu(h * (1 + scale[None])) @ w2 + b2[None])


NORMALISED = ((6, 8), (8,), (8, 3), (3,))


def gru(params, x):
    """Gates by one product each for input and state; the output is read off the last state."""
    wx, wh, b, wo, bo = params

    def step(h, frame):
        gx, gh = frame @ wx + b[None], h @ wh
        r, z, n = (slice(i * 5, i * 5 + 5) for i in range(3))
        gate = jax.nn.sigmoid(gx[:, z] + gh[:, z])
        new = jnp.tanh(gx[:, n] + jax.nn.sigmoid(gx[:, r] + gh[:, r]) * gh[:, n])
        h = (1 - gate) * new + gate * h
        return h, h @ wo + bo[None]

    start = jnp.zeros((len(x), 5), x.dtype)
    return jnp.swapaxes(lax.scan(step, start, jnp.swapaxes(x, 0, 1))[1], 0, 1)


GRU = ((3, 15), (5, 15), (15,), (5, 2), (2,))


def lstm(params, x):
    """The output is read off every state."""
    wx, wh, b, wo, bo = params

    def step(state, frame):
        h, c = state
        i, f, g, o = jnp.split(frame @ wx + h @ wh + b[None], 4, axis=1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h @ wo + bo[None]

    start = jnp.zeros((len(x), 4), x.dtype)
    return jnp.swapaxes(lax.scan(step, (start, start), jnp.swapaxes(x, 0, 1))[1], 0, 1)


LSTM = ((3, 16), (4, 16), (16,), (4, 2), (2,))


def attention(params, x):
    """Two heads of self-attention, and a normalisation."""
    projections, wo, bo = params[:3], params[3], params[4]
    q, k, v = ((x @ w).reshape(*x.shape[:-1], 2, 3) for w in projections)
    shares = jax.nn.softmax(jnp.einsum("nihd,njhd->nhij", q, k) / 1.7)
    y = jnp.einsum("nhij,njhd->nihd", shares, v).reshape(*x.shape[:-1], 6)
    y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y**2).mean(-1, keepdims=True) + 1e-5)
    return y.mean(1) @ wo + bo[None]


ATTENTION = ((6, 6), (6, 6), (6, 6), (6, 2), (2,))

# name: function, shapes of its weights, shape of a row, whether by frames
NETWORKS = {
    "dense": (mlp(jax.nn.relu), MLP, (6,), False),
    "gelu": (mlp(jax.nn.gelu), MLP, (6,), False),
    "NHWC": (convolutions("NHWC"), CONVOLUTIONS, (5, 6, 2), False),
    "NCHW": (convolutions("NCHW"), CONVOLUTIONS, (2, 5, 6), False),
    "normalised": (normalised, NORMALISED, (6,), False),
    "attention": (attention, ATTENTION, (5, 6), False),
    "gru": (gru, GRU, (8, 3), True),
    "lstm": (lstm, LSTM, (8, 3), True),
}


def examples(name, calls=300, seed=1):
    """Rows, as many as make this number of calls."""
    shape, by_frame = NETWORKS[name][2:]
    rows = calls // shape[0] if by_frame else calls
    return np.random.default_rng(seed).normal(size=(rows, *shape)).astype(np.float32)


def graph_of(name, params):
    """The steps of one row, or one frame."""
    f, _, shape, by_frame = NETWORKS[name]
    return steps(lambda x: f(params, x), (1, *shape[1:]) if by_frame else shape, by_frame=by_frame)
