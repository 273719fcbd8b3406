"""Moments of activation functions against adaptive quadrature."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from secateur.propagation import piecewise

SMOOTH = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu approximate": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "mish": jax.nn.mish,
    "exp": jnp.exp,
    "square": jnp.square,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "erf": jax.lax.erf,
}
# Places where the function or its slope jumps, for the oracle.
KINKED = {
    "relu": (jax.nn.relu, (0.0,)),
    "leaky_relu": (jax.nn.leaky_relu, (0.0,)),
    "relu6": (jax.nn.relu6, (0.0, 6.0)),
    "elu": (jax.nn.elu, (0.0,)),
    "selu": (jax.nn.selu, (0.0,)),
    "hard_swish": (jax.nn.hard_swish, (-3.0, 3.0)),
    "hard_tanh": (jax.nn.hard_tanh, (-1.0, 1.0)),
    "abs": (jnp.abs, (0.0,)),
}
FUNCTIONS = {**{k: (f, ()) for k, f in SMOOTH.items()}, **KINKED}
MEANS = (-10.0, -6.0, -3.0, -1.0, -0.2, 0.0, 0.5, 2.0, 6.0, 10.0)
VARIANCES = (1e-8, 1e-5, 1e-3, 0.03, 0.3, 1.0, 5.0, 20.0, 100.0)


def panel_moments(f, mean, variance, kinks, panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre in panels that end at the kinks and crowd around the origin and the mean."""
    sd = np.sqrt(variance)[:, None]
    base = np.linspace(-30.0, 30.0, panels)
    around = np.concatenate(
        [-np.geomspace(1e-3, 30.0, panels)[::-1], np.geomspace(1e-3, 30.0, panels)]
    )
    places = [(np.asarray([*kinks, 0.0]) - mean[:, None]) / sd, (around - mean[:, None]) / sd]
    edges = np.concatenate([np.broadcast_to(base, (len(mean), panels)), *places], axis=1)
    edges = np.sort(np.clip(edges, -30.0, 30.0), axis=1)
    u, w = np.polynomial.legendre.leggauss(12)
    left, width = edges[:, :-1, None], np.diff(edges, axis=1)[:, :, None]
    z = (left + width * 0.5 * (u + 1.0)).reshape(len(mean), -1)
    weight = (width * 0.5 * w).reshape(len(mean), -1) * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    difference = f(mean[:, None] + sd * z) - f(mean)[:, None]
    first = (weight * difference).sum(1)
    return f(mean) + first, (weight * difference**2).sum(1) - first**2


def adaptive_moments(f, mean, variance, kinks) -> tuple[np.ndarray, np.ndarray]:
    """Oracle: quadrature in float64, refined until two levels agree (or rounding is reached)."""
    panels = 60
    m, v = panel_moments(f, mean, variance, kinks, panels)
    while panels < 240:
        panels *= 2
        finer_m, finer_v = panel_moments(f, mean, variance, kinks, panels)
        sd = np.sqrt(np.maximum(finer_v, 0.0))
        rounding = 1e-15 * np.abs(finer_m) + 1e-300
        change = np.abs(finer_m - m) + np.abs(np.sqrt(np.maximum(v, 0.0)) - sd)
        m, v = finer_m, finer_v
        if np.all(change <= 1e-8 * sd + rounding):
            break
    return m, np.sqrt(np.maximum(v, 0.0))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in FUNCTIONS],
    ids=str,
)
def oracle(request):
    function, kinks = FUNCTIONS[request.param]
    compiled = jax.jit(function)
    m, v = np.array([(m, v) for m in MEANS for v in VARIANCES]).T
    mean, sd = adaptive_moments(lambda x: np.asarray(compiled(x)), m, v, kinks)
    return request.param, function, m, v, mean, sd


def own_rounding(function, m, v, dtype) -> np.ndarray:
    """What the plain function itself gets wrong in this precision around the mean."""
    z = np.linspace(-6.0, 6.0, 25)[:, None]
    x = (m + np.sqrt(v) * z).astype(dtype)
    wide = function(jnp.asarray(x, jnp.float64))
    # float64 has no wider reference here: a few units in the last place of value and argument
    error = np.abs(np.asarray(function(jnp.asarray(x)), np.float64) - np.asarray(wide))
    eps = np.finfo(dtype).eps
    return error.max(0) + 4 * eps * np.max(np.abs(wide), 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_agree_with_adaptive_quadrature(oracle, dtype):
    name, function, m, v, mean, sd = oracle
    # 1 + tanh(…) cancels in the function itself, and compiled not as it does otherwise
    own = 2 * np.finfo(dtype).eps * (1 + np.abs(m)) if name == "gelu approximate" else 0.0
    belief = sc.Normal(jnp.asarray(m, dtype), jnp.asarray(v, dtype))
    forward = jax.jit(sc.propagate(lambda x, _: function(x), "moments"))
    result = forward(None, belief, None)
    assert result.mean.dtype == dtype
    got_mean = np.asarray(result.mean, np.float64)
    got_sd = np.sqrt(np.asarray(result.variance, np.float64))
    tolerance = 1e-3 if dtype is np.float32 or name in KINKED else 1e-6
    # Where the standard deviation (or its square) does not fit the type there is nothing to say.
    largest, smallest = np.sqrt(np.finfo(dtype).max) / 10, 1e-15
    fits = (sd < largest) & (np.abs(mean) < largest**1.5)
    rounding = own_rounding(function, m, v, dtype) + own + smallest
    allowed = tolerance * sd + rounding
    worst_mean = np.where(fits, np.abs(got_mean - mean) / allowed, 0.0)
    worst_sd = np.where(fits, np.abs(got_sd - sd) / allowed, 0.0)
    i, j = worst_mean.argmax(), worst_sd.argmax()
    assert worst_mean[i] <= 1, f"mean at N({m[i]}, {v[i]}): {got_mean[i]} for {mean[i]}, sd {sd[i]}"
    assert worst_sd[j] <= 1, f"sd at N({m[j]}, {v[j]}): {got_sd[j]} for {sd[j]}"
    assert fits.mean() > 0.8


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_agree_with_finite_differences(name):
    """Oracle: central differences of the float64 moments, at points away from rounding."""
    function, _ = FUNCTIONS[name]
    forward = sc.propagate(lambda x, _: function(x), "moments")

    def moments(m, v):
        result = forward(None, sc.Normal(m, v), None)
        return jnp.stack([result.mean, result.variance])

    m, v = np.array([-2.0, 0.0, 0.3, 1.5]), np.array([0.5, 1.0, 0.02, 4.0])
    exact = jax.jit(jax.vmap(jax.jacobian(moments, (0, 1))))(m, v)
    moments = jax.jit(moments)
    h = 1e-5
    by_mean = np.subtract(moments(m + h, v), moments(m - h, v)) / (2 * h)
    by_variance = np.subtract(moments(m, v + h * v), moments(m, v - h * v)) / (2 * h * v)
    np.testing.assert_allclose(exact[0], by_mean.T, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(exact[1], by_variance.T, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_closed_forms_in_float32_have_the_gradients_of_the_integrals(name):
    """Oracle: the gradients of quadrature in float64 (tested above), in all three regimes."""
    function = SMOOTH[name]
    forward = sc.propagate(lambda x, _: function(x), "moments")

    @jax.jit
    @jax.vmap
    @partial(jax.jacobian, argnums=(0, 1))
    def gradient(m, v):
        result = forward(None, sc.Normal(m, v), None)
        return jnp.stack([result.mean, jnp.sqrt(result.variance)])

    grid = [(m, v) for m in (-7.0, -3.0, -0.4, 0.0, 1.0, 5.0) for v in (1e-4, 0.01, 0.1, 1.0, 30.0)]
    m, v = np.array(grid, np.float32).T
    closed, exact = gradient(m, v), gradient(m.astype(np.float64), v.astype(np.float64))
    for got, wanted in zip(closed, exact, strict=True):
        scale = np.abs(wanted) + 1e-3 * np.abs(wanted).max(1, keepdims=True)
        assert np.max(np.abs(got - wanted) / scale) < 5e-3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_finite_in_float32_at_the_edges(name):
    function, _ = FUNCTIONS[name]
    means = jnp.asarray([0.0, 0.0, 0.0, 0.0, 1e-4, -3.0, 3.0, 10.0, -10.0, 40.0, -40.0, 1e4], "f4")
    forward = sc.propagate(lambda x, _: function(x), "moments")

    @jax.jit
    @partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def run(m, v):
        result = forward(None, sc.Normal(m, v), None)
        return jnp.sum(jnp.tanh(result.mean * 1e-10) + jnp.tanh(result.variance * 1e-20)), result

    for variance in (0.0, 1e-38, 1e-20, 1e-12, 1e-8, 1.0, 1e6, 1e10):
        variances = jnp.full_like(means, variance)
        (_, result), gradient = run(means, variances)
        for leaf in jax.tree.leaves((result, gradient)):
            assert np.isfinite(leaf).all(), (variance, leaf)
        if variance == 0.0:
            if name != "exp":  # saturates below the largest finite number
                own = 1e-6 if name == "gelu approximate" else 1e-30  # 1 + tanh(…) cancels
                np.testing.assert_allclose(result.mean, function(means), rtol=1e-5, atol=own)
            np.testing.assert_array_equal(result.variance, 0.0)


def test_one_function_written_with_several_primitives_is_integrated_once():
    """silu(x) = x·σ(x) at N(0, 1) has mean 0.2066; multiplying moments would give 0."""
    forward = sc.propagate(lambda x, _: x * jax.nn.sigmoid(x), "moments")
    result = forward(None, sc.Normal(jnp.zeros(()), jnp.ones(())), None)
    assert abs(float(result.mean) - 0.20662) < 1e-4


@pytest.mark.parametrize(
    ("place", "left", "right"),
    [(0.0, (0.0, 0.0), (1.0, 0.0)), (0.0, (0.1, 0.0), (1.0, 0.0)), (0.5, (-1.0, 1.0), (2.0, -0.5))],
    ids=["relu", "leaky", "shifted"],
)
def test_derivatives_of_bent_lines_are_closed(place, left, right):
    """Oracle: central differences of the moments, on either side of the bend and far from it."""
    mean, variance = (
        a.ravel() for a in np.meshgrid(np.linspace(-3, 3, 9) + 0.03, [0.01, 0.5, 4.0])
    )
    pieces = piecewise.Pieces((place,), (left, right))
    h = 1e-5

    def moments(mean, variance):
        return piecewise.moments(pieces, jnp.asarray(mean), jnp.asarray(variance))

    for number, direction in enumerate(((1.0, 0.0), (0.0, 1.0))):
        dm, dv = direction
        tangents = (jnp.full_like(mean, dm), jnp.full_like(mean, dv))
        _, ours = jax.jvp(moments, (jnp.asarray(mean), jnp.asarray(variance)), tangents)
        after, before = (
            moments(mean + h * dm, variance + h * dv),
            moments(mean - h * dm, variance - h * dv),
        )
        for closed, a, b in zip(ours, after, before, strict=True):
            np.testing.assert_allclose(
                closed, (a - b) / (2 * h), rtol=1e-5, atol=1e-6, err_msg=str(number)
            )
