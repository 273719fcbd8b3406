"""Networks as C: compiled here with all warnings as errors, and equal to Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from c_networks import (
    MLP,
    NETWORKS,
    STYLES,
    compiled,
    examples,
    graph_of,
    masked,
    mlp,
    parameters,
    run,
    steps,
    written,
)

RATES = (0.0, 0.5, 0.9, 0.99, 1.0)
ACTIVATIONS = {
    "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "gelu_tanh": jax.nn.gelu,
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False), "silu": jax.nn.silu,
    "softplus": jax.nn.softplus, "elu": jax.nn.elu, "selu": jax.nn.selu, "celu": jax.nn.celu,
    "mish": jax.nn.mish, "leaky_relu": jax.nn.leaky_relu, "relu6": jax.nn.relu6,
    "hard_swish": jax.nn.hard_swish, "soft_sign": jax.nn.soft_sign,
    "squareplus": jax.nn.squareplus, "log_sigmoid": jax.nn.log_sigmoid,
    "log_softmax": jax.nn.log_softmax, "sine": jnp.sin, "gaussian": lambda x: jnp.exp(-x**2),
    "cube": lambda x: x**3, "sqrt": lambda x: jnp.sqrt(jnp.abs(x)), "sign": jnp.sign,
    "clip": lambda x: jnp.clip(x, -0.5, 1), "floor": jnp.floor,
    "logsumexp": lambda x: x - jax.nn.logsumexp(x, -1, keepdims=True),
}  # fmt: skip


def close(found, truth):
    """To 1e-5 of the output's scale."""
    assert found.shape == truth.shape
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-5 * np.abs(truth).max())


def in_all_styles(folder, graph, name):
    return [
        written(folder, graph, f"{name}_{number}", **options)
        for number, options in enumerate(STYLES.values())
    ]


def test_activations(tmp_path):
    """Held against JAX in float64 on 1000 rows, all of them in one library."""
    params = parameters(*MLP)
    rows = examples("dense")
    sources = {}
    for name, activation in ACTIVATIONS.items():
        f = mlp(activation)
        graph = steps(lambda x, f=f: f(params, x), (6,))
        sources[name] = in_all_styles(tmp_path, graph, name)
    library = compiled(tmp_path, [s for made in sources.values() for s in made], optimise="-O1")
    jumps = ("sign", "floor")
    for name, made in sources.items():
        truth = np.asarray(mlp(ACTIVATIONS[name])(params, jnp.asarray(rows, jnp.float64)))
        assert [s.style for s in made] == ["straight", "loops", "loops"]
        for source in made:
            found = run(library, source, rows)
            gap = np.abs(found - truth).max(1) / np.abs(truth).max()
            # Where a function jumps, a number can be on its other side in float32.
            assert np.mean(gap > 1e-5) <= (0.002 if name in jumps else 0), (name, source.style)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_pruning_rate_in_every_style(name, tmp_path):
    f, shapes, _, by_frame = NETWORKS[name]
    rows = examples(name)
    made = {}
    for number, rate in enumerate(RATES):
        params = masked(parameters(*shapes), rate)
        made[rate] = params, in_all_styles(tmp_path, graph_of(name, params), f"net{number}")
    library = compiled(
        tmp_path, [s for _, sources in made.values() for s in sources], optimise="-O1"
    )
    for params, sources in made.values():
        truth = np.asarray(f(params, jnp.asarray(rows, jnp.float64)))
        for source in sources:
            close(run(library, source, rows, by_frame=by_frame), truth)
    sizes = [len(sources[0].source) for _, sources in made.values()]
    assert sizes == sorted(sizes, reverse=True)
