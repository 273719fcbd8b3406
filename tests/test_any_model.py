"""What no model may fail on: masks, half precision, Fourier transforms, loops, "local"."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import secateur as sc

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(5, 6)))
W = jnp.asarray(0.4 * RNG.normal(size=(6, 6)))
SAMPLES = 6_000


def beliefs_of(params, variance=0.01):
    return jax.tree.map(lambda m: sc.Normal(m, jnp.full_like(m, variance)), params)


def compare(f, beliefs, x, *, how="moments"):
    """RMS error of the mean in deviations, and the median ratio of deviations, to Monte Carlo."""
    keys = jax.random.split(jax.random.key(1, impl="unsafe_rbg"), SAMPLES)

    @jax.jit
    def run(beliefs, x):
        drawn = jax.vmap(lambda k: sc.propagate(f, "global")(k, beliefs, x))(keys)
        if how == "moments":
            out = sc.propagate(f, how)(None, beliefs, x)
            return drawn, out.mean, jnp.sqrt(out.variance)
        mine = jax.vmap(lambda k: sc.propagate(f, how)(k, beliefs, x))(keys)
        return drawn, mine.mean(0), mine.std(0)

    drawn, mean, sd = (np.asarray(a, np.float64) for a in run(beliefs, x))
    spread = drawn.std(0)
    return np.sqrt(np.mean(((mean - drawn.mean(0)) / spread) ** 2)), np.median(sd / spread)


# --- masks ----------------------------------------------------------------------------------------

MASK = np.tril(np.ones((5, 5), bool))


def attend(w, x, mask, masked):
    scores = (x @ w) @ x.T / np.sqrt(6.0)
    return jax.nn.softmax(jnp.where(mask, scores, masked)) @ (x @ w)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [-jnp.inf, -1e9])
def test_gradients_of_masked_attention_are_finite(masked):
    """Also in float32, and where a whole row is masked; what is masked has no share at all."""
    empty = MASK & (np.arange(5) != 2)[:, None]
    w, x = W.astype(jnp.float32), X.astype(jnp.float32)

    def scalar(beliefs):
        ys = [sc.propagate(attend, "moments")(None, beliefs, x, m, masked) for m in (MASK, empty)]
        return sum(jnp.sum(y.mean**2) + jnp.sum(jnp.log(y.variance + 1e-6)) for y in ys)

    value, gradient = jax.jit(jax.value_and_grad(scalar))(beliefs_of(w))
    assert all(np.isfinite(leaf).all() for leaf in [value, *jax.tree.leaves(gradient)])


def test_a_softmax_ignores_what_is_masked_exactly():
    """Oracle: the softmax of the others."""

    def shares(w, x, mask):
        return jax.nn.softmax(jnp.where(mask, x @ w, -jnp.inf))

    forward = sc.propagate(shares, "moments")
    few = sc.propagate(lambda w, x: jax.nn.softmax((x @ w)[:, :3]), "moments")
    masked = forward(None, beliefs_of(W), X, np.arange(6)[None] < 3)
    alone = few(None, beliefs_of(W), X)
    for one, other in ((masked.mean, alone.mean), (masked.variance, alone.variance)):
        assert not one[:, 3:].any()
        np.testing.assert_allclose(one[:, :3], other, rtol=1e-10)


# --- precision ------------------------------------------------------------------------------------


def normalise(x):
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + jnp.asarray(1e-5, x.dtype))


def residual(w, x, half=jnp.bfloat16):
    h = x.astype(half) @ w["in"].astype(half)
    for layer in w["layers"]:
        h = h + jax.nn.relu(normalise(h) @ layer.astype(half))
    return normalise(h) @ w["out"].astype(half)


def test_half_precision_has_the_moments_of_the_precise_model():
    """Oracle: the same model in float64. What bfloat16 rounds are the means and the weights."""
    w = {"in": W, "layers": [W, W.T], "out": W[:, :2]}
    beliefs = beliefs_of(w, 0.0025)
    half = sc.propagate(residual, "moments")(None, beliefs, X)
    exact = sc.propagate(partial(residual, half=jnp.float64), "moments")(None, beliefs, X)
    spread = np.sqrt(exact.variance)
    np.testing.assert_allclose(half.mean, exact.mean, atol=0.05 * float(spread.max()))
    np.testing.assert_allclose(np.sqrt(half.variance), spread, rtol=0.02)
    rows = sc.coverage(residual, w, X)
    assert rows.rows[0].operation == "widening"
    assert "bfloat16 computed in float32" in rows.rows[0].remark


# --- complex numbers ------------------------------------------------------------------------------


def transforms(w, x):
    """All kinds of Fourier transforms and what is done with complex numbers."""
    a = jnp.fft.rfft(x * w["a"][None])
    b = jnp.fft.fft2((x * w["b"][None]).reshape(5, 2, 3)).reshape(5, 6)
    c = jnp.fft.irfft(a * (1.0 + 2.0j), n=6) + jnp.fft.ifft(b).real
    d = jnp.fft.irfftn(jnp.fft.rfftn(x * w["b"][None], axes=(1,)), axes=(1,))
    return c + d + jnp.conj(b).imag


def test_fourier_transforms_are_the_functions_themselves_and_linear():
    """Oracles: JAX's own transforms where beliefs are certain; the Jacobian for the variance."""
    w = {"a": W[0], "b": W[1]}
    certain = beliefs_of(w, 0.0)
    forward = sc.propagate(transforms, "moments")
    np.testing.assert_allclose(forward(None, certain, X).mean, transforms(w, X), atol=1e-12)
    variance = 0.09
    linear = lambda a, x: jnp.fft.irfft(jnp.fft.rfft(x * a[None])[:, :3], n=6)  # noqa: E731
    jacobian = jax.jacobian(linear)(W[0], X)
    y = sc.propagate(lambda a, x: jnp.fft.rfft(x * a[None]).real, "moments")
    truth = jax.jacobian(lambda a: jnp.fft.rfft(X * a[None]).real)(W[0])
    got = y(None, sc.Normal(W[0], jnp.full(6, variance)), X).variance
    np.testing.assert_allclose(got, variance * (truth**2).sum(-1), rtol=1e-10)
    assert jacobian.shape == (5, 6, 6)


def test_local_draws_once_before_a_fourier_transform():
    """Oracle: Parseval's theorem, which holds of every draw: both parts see the same one."""

    def excess(w, x):
        y = x @ w
        spectrum = jnp.fft.fft(y)
        return (spectrum.real**2 + spectrum.imag**2).sum(-1) / 6.0 - (y * y).sum(-1)

    draw = sc.propagate(excess, "local")(jax.random.key(0), beliefs_of(W), X)
    np.testing.assert_allclose(draw, 0.0, atol=1e-10)
    rows = sc.coverage(transforms, {"a": W[0], "b": W[1]}, X, how="local")
    assert [row for row in rows if row.rule == "sampled here"]


# --- functions that end, choices, layouts ---------------------------------------------------------


@pytest.mark.parametrize("sd", [1e-6, 0.01, 0.1, 1.0])
def test_moments_of_a_function_that_is_not_defined_everywhere(sd):
    """Oracle: quadrature over the part of the Gaussian where the function is defined."""

    def f(w, x):
        return jnp.sqrt(1.0 - jnp.sin(w) * w * x) + jnp.log(2.0 + jnp.sin(w) + w)

    mean = jnp.array([0.2, 0.7, -0.5])
    z = np.linspace(-8.0, 8.0, 20_001)
    nodes = mean[:, None] + sd * z[None]
    inside = np.asarray(1.0 - jnp.sin(nodes) * nodes > 0) & (
        np.asarray(jnp.sin(nodes)) + nodes > -2
    )
    density = np.exp(-0.5 * z * z)[None] * inside
    values = np.asarray(f(jnp.where(inside, nodes, 0.1), 1.0))
    weight = density / density.sum(1, keepdims=True)
    truth = (weight * values).sum(1)
    spread = np.sqrt((weight * (values - truth[:, None]) ** 2).sum(1))

    def moments(variance):
        return sc.propagate(f, "moments")(None, sc.Normal(mean, variance), jnp.ones(3))

    y = moments(jnp.full(3, sd**2))
    reaches_out = 0.0 if inside.all() else 0.35
    np.testing.assert_allclose(y.mean, truth, atol=(1e-3 + reaches_out) * spread.max())
    np.testing.assert_allclose(np.sqrt(y.variance), spread, rtol=1e-3 + reaches_out)
    gradient = jax.grad(lambda v: moments(v).mean.sum() + moments(v).variance.sum())
    assert np.isfinite(gradient(jnp.full(3, sd**2))).all()


def test_a_log_softmax_by_logsumexp_is_one():
    """Oracle: JAX's own log-softmax, whose moments are compared with Monte Carlo elsewhere."""

    def by_hand(w, x):
        y = x @ w
        return y - jax.nn.logsumexp(y, axis=1, keepdims=True)

    def scaled(w, x):
        y = x @ w
        return y - 0.5 * jax.nn.logsumexp(y, axis=1, keepdims=True)

    one, other, half = (
        sc.propagate(f, "moments")(None, beliefs_of(W), X)
        for f in (by_hand, lambda w, x: jax.nn.log_softmax(x @ w), scaled)
    )
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-10)
    np.testing.assert_allclose(one.variance, other.variance, rtol=1e-10)
    assert not np.allclose(half.variance, other.variance, rtol=0.1)


def test_layouts_do_not_multiply():
    """A wavelet transform meets its values in 4ⁿ layouts. Oracle: Monte Carlo."""

    def wavelets(w, x):
        y = x @ w
        for _ in range(12):
            a, b = y[:, ::2], y[:, 1::2]
            y = jnp.concatenate([a + b, a - b], axis=1) / np.sqrt(2.0)
        return y

    y = sc.propagate(wavelets, "moments")(None, beliefs_of(W), X)
    jacobian = jax.jacobian(wavelets)(W, X)
    spread = np.sqrt(0.01 * (jacobian**2).sum((-2, -1)))
    np.testing.assert_allclose(np.median(np.sqrt(y.variance) / spread), 1.0, atol=0.3)


def test_a_filter_whose_state_returns_in_new_layouts_settles():
    """A Kalman filter's covariance is sliced, multiplied and put together again in every step."""

    def filtered(p, x):
        def step(state, y):
            mean, p_ = state
            mean, p_ = p["a"] @ mean, p["a"] @ p_ @ p["a"].T + 0.1 * jnp.eye(2)
            gain = p_[:, 0] / (p_[0, 0] + jnp.exp(p["r"]))
            mean = mean + gain * (y - mean[0])
            return (mean, p_ - gain[:, None] * p_[0][None]), mean[0]

        return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), x)[1]

    p = {"a": jnp.array([[0.9, 0.2], [-0.1, 0.8]]), "r": jnp.zeros(())}
    y = jax.eval_shape(
        lambda b, x: sc.propagate(filtered, "moments")(None, b, x), beliefs_of(p, 1e-4), X[0]
    )
    assert y.mean.shape == (6,)


# --- loops ----------------------------------------------------------------------------------------


def test_a_delay_line_settles():
    """Oracle: a convolution, whose moments are exact."""

    def line(w, x):
        def step(taps, u):
            taps = (u * w[0], *taps[:-1])
            return taps, sum(taps)

        start = tuple(jnp.zeros(()) for _ in range(12))
        return lax.scan(step, start, x)[1][-1]

    x = jnp.asarray(RNG.normal(size=30))
    y = jax.jit(lambda b: sc.propagate(line, "moments")(None, b, x))(beliefs_of(jnp.ones(1), 0.04))
    np.testing.assert_allclose(y.mean, x[-12:].sum(), rtol=1e-10)
    # One weight in all steps: its deviation times the sum, to first order in the correlation.
    np.testing.assert_allclose(y.variance, 0.04 * x[-12:].sum() ** 2, rtol=0.5)


def test_a_while_loop_whose_steps_can_be_counted_is_a_scan():
    """Oracle: the same loop as a scan; and it has a gradient."""

    def looped(w, x):
        start = (0, jnp.zeros_like(x), 3.0)
        body = lambda s: (s[0] + 1, jnp.tanh(x + s[1] @ w), s[2] * 0.5)  # noqa: E731
        return lax.while_loop(lambda s: (s[0] < 9) & (s[2] > 0.5), body, start)[1]

    def scanned(w, x):
        step = lambda h, _: (jnp.tanh(x + h @ w), None)  # noqa: E731
        return lax.scan(step, jnp.zeros_like(x), None, length=3)[0]

    def scalar(f):
        return lambda b: sc.propagate(f, "moments")(None, b, X).variance.sum()

    values = [jax.jit(jax.value_and_grad(scalar(f)))(beliefs_of(W)) for f in (looped, scanned)]
    for mine, truth in zip(*map(jax.tree.leaves, values), strict=True):
        np.testing.assert_allclose(mine, truth, rtol=1e-10)


def test_a_while_loop_of_unknown_length_stays_one():
    def looped(w, x, n):
        return lax.fori_loop(0, n, lambda _, h: jnp.tanh(x + h @ w), jnp.zeros_like(x))

    y = jax.jit(lambda b, n: sc.propagate(looped, "moments")(None, b, X, n))(beliefs_of(W), 2)
    assert (y.variance > 0).all()


# --- "local" --------------------------------------------------------------------------------------

REFUSED = {
    "svd": lambda w, x: jnp.linalg.svd(x @ w, compute_uv=False),
    "eigh": lambda w, x: jnp.linalg.eigh((x @ w).T @ (x @ w))[0],
    "argmax": lambda w, x: jax.nn.one_hot(jnp.argmax(x @ w, axis=-1), 6),
    "acosh": lambda w, x: jnp.arccosh(2.0 + (x @ w) ** 2),
    "rem": lambda w, x: jnp.mod(x @ w, 0.7),
    "integers": lambda w, x: (4.0 * (x @ w)).astype(jnp.int32).astype(x.dtype),
    "uncertain index": lambda w, x: x[0][jnp.clip(jnp.abs(x @ w).astype(jnp.int32), 0, 5)],
    "uncertain branch": lambda w, x: lax.cond((x @ w).sum() > 0, jnp.sin, jnp.cos, x @ w),
    "uncertain length": lambda w, x: lax.while_loop(
        lambda h: (h @ w).sum() > 1e9, lambda h: 2.0 * h, x @ w
    ),
    "triangular_solve": lambda w, x: jnp.linalg.solve(jnp.eye(5) + 0.1 * (x @ w)[:, :5], x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_local_never_refuses(name):
    f = REFUSED[name]
    y = sc.propagate(f, "local")(jax.random.key(0), beliefs_of(W), X)
    assert y.shape == jax.eval_shape(f, W, X).shape
    assert np.isfinite(y).all()
    assert [r for r in sc.coverage(f, W, X, how="local") if r.rule == "sampled here"]


@pytest.mark.parametrize("name", ["svd", "argmax", "rem", "uncertain branch"])
def test_moments_say_what_to_do(name):
    with pytest.raises(sc.UnsupportedOperation, match=r"Ways out: .*register_rule.*where=.*local"):
        sc.propagate(REFUSED[name], "moments")(None, beliefs_of(W), X)
