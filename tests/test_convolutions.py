"""Fast forms of convolutions and pooling: the oracle is XLA's own primitive, for values, gradients
and derivatives along a direction; for moments it is Monte Carlo over weights and signals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from secateur import Normal, propagate
from secateur.equations import convolutions, execution
from secateur.equations.convolutions import Geometry, convolve
from secateur.equations.execution import execute_jaxpr

ONE, TWO = ("NWC", "WIO", "NWC"), ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")
ODD = ("CNWH", "IWHO", "HNCW")  # nobody's order
# name: shape of the signal, shape of the kernel, options
CONVOLUTIONS = {
    "plain": ((5, 8, 9, 3), (3, 2, 3, 4), {"numbers": TWO}),
    "same padding": ((5, 8, 9, 3), (3, 3, 3, 4), {"numbers": TWO, "padding": "SAME"}),
    "strides": ((3, 11, 10, 2), (4, 3, 2, 5), {"numbers": TWO, "strides": (2, 3)}),
    "strides wider than the kernel": ((3, 11, 10, 2), (2, 1, 2, 5),
                                      {"numbers": TWO, "strides": (4, 3)}),
    "dilated kernel": ((3, 11, 10, 2), (3, 2, 2, 5), {"numbers": TWO, "rhs_dilation": (2, 3)}),
    "dilated kernel with strides": (
        (3, 13, 10, 2), (3, 2, 2, 5), {"numbers": TWO, "rhs_dilation": (3, 2), "strides": (2, 2)}),
    "transposed": ((3, 5, 4, 2), (3, 3, 2, 5),
                   {"numbers": TWO, "lhs_dilation": (2, 3), "padding": [(2, 1), (1, 2)]}),
    "cropped": ((3, 9, 8, 2), (3, 3, 2, 5), {"numbers": TWO, "padding": [(-1, 2), (1, -2)]}),
    "one place": ((3, 4, 5, 6), (1, 1, 6, 2), {"numbers": TWO}),
    "one place with strides": ((3, 4, 5, 6), (1, 1, 6, 2), {"numbers": TWO, "strides": (2, 2)}),
    "channels first": ((3, 4, 7, 6), (5, 4, 3, 3), {"numbers": NCHW, "padding": "SAME"}),
    "any order": ((2, 3, 7, 6), (2, 3, 4, 5), {"numbers": ODD}),
    "groups": ((3, 7, 6, 6), (3, 3, 2, 9), {"numbers": TWO, "groups": 3, "strides": (2, 1)}),
    "groups, channels first": ((3, 6, 7, 6), (4, 3, 3, 3), {"numbers": NCHW, "groups": 2}),
    "depthwise": ((3, 7, 6, 4), (3, 3, 1, 4), {"numbers": TWO, "groups": 4, "padding": "SAME"}),
    "depthwise with strides": ((3, 7, 6, 4), (3, 3, 1, 4),
                               {"numbers": TWO, "groups": 4, "strides": (2, 2)}),
    "depthwise, two for each": ((3, 7, 6, 4), (3, 2, 1, 8), {"numbers": TWO, "groups": 4}),
    "depthwise, long": ((2, 90, 3), (70, 1, 3), {"numbers": ONE, "groups": 3}),
    "causal": ((4, 20, 3), (3, 3, 5), {"numbers": ONE, "padding": [(4, 0)], "rhs_dilation": (2,)}),
    "causal depthwise": ((4, 20, 3), (3, 1, 3), {"numbers": ONE, "padding": [(2, 0)], "groups": 3}),
    "one window": ((4, 5, 3), (5, 3, 2), {"numbers": ONE, "strides": (7,)}),
    "three axes": ((2, 5, 4, 6, 2), (2, 3, 2, 2, 3), {
        "numbers": ("NDHWC", "DHWIO", "NDHWC"), "strides": (1, 1, 2)}),
    "one row": ((1, 30, 2), (4, 2, 3), {"numbers": ONE}),
}  # fmt: skip
# Bytes of patches at a time: all at once, some rows, parts of rows.
BYTES = {"whole": 2**30, "rows": 2**13, "bands": 2**7}


def make_convolution(numbers, strides=None, padding="VALID", groups=1, **options):
    def run(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, strides or (1,) * (x.ndim - 2), padding, dimension_numbers=numbers,
            feature_group_count=groups, **options,
        )  # fmt: skip

    return run


def draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


def run_fast(f):
    def run(*arrays):
        jaxpr = jax.make_jaxpr(f)(*arrays)
        return execute_jaxpr(jaxpr.jaxpr, jaxpr.consts, arrays)[0]

    return run


def assert_same(fast, plain, arrays, tolerance=1e-10):
    """Values, gradients, derivatives along a direction, and all that mapped over an axis."""
    expected = plain(*arrays)
    np.testing.assert_allclose(fast(*arrays), expected, rtol=tolerance, atol=tolerance)
    (cotangent,) = draw(1, expected.shape)
    tangents = draw(2, *(a.shape for a in arrays))
    numbers = tuple(range(len(arrays)))

    def slope(f):
        return jax.grad(lambda *a: jnp.sum(jnp.sin(f(*a)) * cotangent), numbers)

    pairs = [
        tuple(
            jax.jit(lambda *a, f=f: jax.jvp(f, a, tuple(tangents))[1])(*arrays)
            for f in (fast, plain)
        ),
    ]
    several = [jnp.stack([a, 2 * t]) for a, t in zip(arrays, tangents, strict=True)]
    mapped = jax.jit(jax.vmap(slope(fast)))(*several), jax.jit(jax.vmap(slope(plain)))(*several)
    pairs.append(mapped)
    for one, other in pairs:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
            one,
            other,
        )


def uses_convolution(f, *arrays):
    text = str(jax.make_jaxpr(f)(*arrays))
    return "conv_general_dilated" in text or "reduce_window" in text or "select_and" in text


@pytest.fixture(params=BYTES)
def patch_bytes(request, monkeypatch):
    monkeypatch.setattr(convolutions, "_PATCH_BYTES", BYTES[request.param])
    monkeypatch.setattr(convolutions.os, "cpu_count", lambda: 1)
    return request.param


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name):
    shape, kernel_shape, options = CONVOLUTIONS[name]
    plain = make_convolution(**options)
    arrays = draw(0, shape, kernel_shape)
    fast = run_fast(plain)
    assert not uses_convolution(fast, *arrays)
    assert_same(fast, plain, arrays)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_square_shares_the_patches(name, patch_bytes):
    shape, kernel_shape, options = CONVOLUTIONS[name]
    plain = make_convolution(**options)
    x, first, second = draw(3, shape, kernel_shape, kernel_shape)
    params = next(
        e.params for e in jax.make_jaxpr(plain)(x, first).eqns if "conv" in e.primitive.name
    )

    def fast(x, first, second):
        return jnp.stack(convolve(Geometry.of(params), x, [first], [second]))

    assert_same(fast, lambda x, a, b: jnp.stack([plain(x, a), plain(x * x, b)]), [x, first, second])


def test_memory_is_bounded():
    """Temporary memory of a gradient, by XLA's own account, against patches of all rows."""
    plain = make_convolution(TWO, padding="SAME")
    x, kernel = jnp.zeros((32, 64, 64, 8)), jnp.zeros((5, 5, 8, 8))

    def count_bytes(f):
        slope = jax.grad(lambda *a: jnp.sum(jnp.sin(f(*a))), (0, 1))
        return jax.jit(slope).lower(x, kernel).compile().memory_analysis().temp_size_in_bytes

    all_patches = 25 * x.nbytes
    assert count_bytes(run_fast(plain)) < count_bytes(plain) + all_patches / 2


# --- pooling --------------------------------------------------------------------------------------

# name: shape, sizes, strides, options
POOLS = {
    "pairs": ((3, 8, 6, 2), (1, 2, 2, 1), (1, 2, 2, 1), {}),
    "rest is left out": ((3, 9, 7, 2), (1, 2, 2, 1), (1, 2, 2, 1), {}),
    "overlapping": ((3, 9, 8, 2), (1, 3, 3, 1), (1, 2, 2, 1), {"padding": "SAME"}),
    "every place": ((3, 7, 2), (1, 3, 1), (1, 1, 1), {"padding": "SAME"}),
    "wide strides": ((3, 11, 2), (1, 2, 1), (1, 4, 1), {}),
    "dilated": ((3, 11, 2), (1, 3, 1), (1, 2, 1), {"window_dilation": (1, 2, 1)}),
    "spread": ((3, 5, 2), (1, 3, 1), (1, 2, 1),
               {"base_dilation": (1, 2, 1), "padding": ((0, 0), (1, 1), (0, 0))}),
    "channels first": ((3, 2, 8, 6), (1, 1, 2, 3), (1, 1, 2, 3), {}),
    "whole axis": ((3, 5, 5, 2), (1, 5, 5, 1), (1, 5, 5, 1), {}),
}  # fmt: skip
REDUCTIONS = {"max": (lax.max, -jnp.inf), "min": (lax.min, jnp.inf), "sum": (lax.add, 0.0)}


def make_pool(reduction, sizes, strides, padding="VALID", **options):
    function, start = REDUCTIONS[reduction]
    return lambda x: lax.reduce_window(x, start, function, sizes, strides, padding, **options)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_pool(name, reduction):
    shape, *geometry, options = POOLS[name]
    plain = make_pool(reduction, *geometry, **options)
    (x,) = draw(4, shape)
    fast = run_fast(plain)
    assert uses_convolution(fast, x) == (math.prod(geometry[0]) > 32)
    expected = plain(x)
    np.testing.assert_allclose(fast(x), expected, rtol=1e-12)
    if name == "dilated" and reduction != "sum":
        return  # of these, the primitive has no gradient
    (cotangent,) = draw(5, expected.shape)

    def slope(f):
        return jax.grad(lambda x: jnp.sum(jnp.sin(f(x)) * cotangent))(x)

    np.testing.assert_allclose(slope(fast), slope(plain), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_equal_elements_and_nan(reduction):
    """Of equal elements, the first has the gradient; where one is not a number, the result is."""
    plain = make_pool(reduction, (1, 3, 3, 1), (1, 2, 2, 1))
    fast = run_fast(plain)
    x = jnp.asarray(np.random.default_rng(6).integers(0, 3, size=(4, 9, 9, 2)), float)
    (cotangent,) = draw(7, plain(x).shape)
    one, other = (jax.vjp(f, x)[1](cotangent)[0] for f in (fast, plain))
    np.testing.assert_allclose(one, other)
    x = x.at[0, 3, 4, 1].set(jnp.nan)
    np.testing.assert_array_equal(fast(x), plain(x))


# --- networks -------------------------------------------------------------------------------------


def network(weights, x):
    first, depthwise, last = weights
    x = lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=TWO)
    x = lax.reduce_window(jnp.tanh(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = lax.conv_general_dilated(
        x, depthwise, (1, 1), "VALID", dimension_numbers=TWO, feature_group_count=4
    )
    return x.reshape(x.shape[0], -1) @ last


@pytest.fixture
def beliefs():
    means = draw(8, (3, 3, 2, 4), (2, 2, 1, 4), (16, 3))
    return [Normal(0.5 * m, jnp.full_like(m, 0.02)) for m in means]


@pytest.mark.parametrize("how", ["global", "local", "moments"])
def test_whole_network(how, beliefs, monkeypatch):
    """The same with the primitives; and no primitive is left within a loop or a call."""
    (x,) = draw(9, (5, 6, 6, 2))
    key = jax.random.key(0)

    def f(weights, x):
        repeated = lax.scan(lambda carry, _: (carry, jax.jit(network)(weights, x)), 0, None, 2)[1]
        return jax.checkpoint(network)(weights, x) + repeated[1]

    run = jax.jit(lambda q, x: propagate(f if how == "global" else network, how)(key, q, x))
    result = run(beliefs, x)
    assert not uses_convolution(run, beliefs, x)
    monkeypatch.setattr(execution, "prefers_fast_forms", lambda: False)
    jax.clear_caches()
    plain = jax.jit(lambda q, x: propagate(f if how == "global" else network, how)(key, q, x))
    assert uses_convolution(plain, beliefs, x) or how == "moments"
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
        result,
        plain(beliefs, x),
    )


@pytest.mark.parametrize(
    "name", ["plain", "strides", "groups", "depthwise", "causal", "transposed"]
)
@pytest.mark.parametrize("uncertain_signal", [False, True])
def test_moments_against_samples(name, uncertain_signal):
    shape, kernel_shape, options = CONVOLUTIONS[name]
    f = make_convolution(**options)
    x, kernel = draw(10, shape, kernel_shape)
    signal = Normal(x, jnp.full_like(x, 0.1)) if uncertain_signal else x
    belief = Normal(kernel, jnp.full_like(kernel, 0.2))
    moments = propagate(lambda k, x: f(x, k), "moments")(None, belief, signal)
    count = 4_000
    keys = jax.random.split(jax.random.key(1), 2)
    kernels = kernel[None] + math.sqrt(0.2) * jax.random.normal(keys[0], (count, *kernel_shape))
    signals = x[None] + math.sqrt(0.1) * uncertain_signal * jax.random.normal(
        keys[1], (count, *shape)
    )
    draws = lax.map(lambda pair: f(*pair), (signals, kernels))
    error = jnp.std(draws, axis=0) / math.sqrt(count)
    assert jnp.max(jnp.abs(draws.mean(0) - moments.mean) / error) < 6
    assert jnp.max(jnp.abs(draws.var(0) / moments.variance - 1)) < 8 * math.sqrt(2 / count) * 2


def test_other_devices_keep_the_primitive(monkeypatch, beliefs):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    (x,) = draw(11, (5, 6, 6, 2))
    assert uses_convolution(
        lambda q, x: propagate(network, "local")(jax.random.key(0), q, x), beliefs, x
    )
