"""Propagation as a transformation: what it promises beside the rules themselves."""

from __future__ import annotations

import inspect
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

import secateur as sc
from secateur.propagation import uncertain_loops
from secateur.propagation.noise import DrawnNoise

KEY = jax.random.key(0)


def normals(tree, variance=0.01):
    return jax.tree.map(lambda m: sc.Normal(m, jnp.full_like(m, variance)), tree)


def mlp(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b[None])
    w, b = params[-1]
    return x @ w + b[None]


def mlp_params(*sizes, dtype=jnp.float64):
    keys = jax.random.split(KEY, len(sizes))
    return [
        (jax.random.normal(k, (a, b), dtype) / float(np.sqrt(a)), jnp.zeros(b, dtype))
        for k, a, b in zip(keys, sizes, sizes[1:], strict=False)
    ]


def gru(params, x):
    """x: (batch, time, features)."""

    def step(h, x_t):
        inputs = jnp.split(x_t @ params["wi"] + params["b"][None], 3, axis=-1)
        hidden = jnp.split(h @ params["wh"], 3, axis=-1)
        reset = jax.nn.sigmoid(inputs[0] + hidden[0])
        update = jax.nn.sigmoid(inputs[1] + hidden[1])
        new = jnp.tanh(inputs[2] + reset * hidden[2])
        return (1.0 - update) * new + update * h, None

    h = jnp.zeros((x.shape[0], params["wh"].shape[0]), x.dtype)
    return lax.scan(step, h, jnp.swapaxes(x, 0, 1))[0] @ params["wo"]


def gru_params(features=1, units=8, dtype=jnp.float64):
    keys = jax.random.split(KEY, 3)
    return {
        "wi": jax.random.normal(keys[0], (features, 3 * units), dtype),
        "wh": jax.random.normal(keys[1], (units, 3 * units), dtype) / float(np.sqrt(units)),
        "b": jnp.zeros(3 * units, dtype),
        "wo": jax.random.normal(keys[2], (units, 1), dtype),
    }


# --- the three silent errors ------------------------------------------------------------------


def test_a_scan_carry_that_starts_certain_becomes_uncertain():
    """Oracle: h_T = x_1 w + … + x_T w has variance (Σ x)² Var[w], all steps sharing one w."""
    xs = jnp.asarray([1.0, 2.0, 3.0])

    def f(w, xs):
        return lax.scan(lambda h, x: (h + w * x, None), 0.0, xs)[0]

    result = sc.propagate(f, "moments")(None, sc.Normal(jnp.asarray(0.5), jnp.asarray(0.04)), xs)
    np.testing.assert_allclose(result.mean, 3.0)
    np.testing.assert_allclose(result.variance, 36.0 * 0.04, rtol=1e-6)


def test_noise_in_a_scan_is_fresh_in_every_step():
    """Oracle: a sum of T independent draws has variance T·v, of one repeated draw T²·v."""

    def f(w, xs):
        return lax.scan(lambda h, x: (h + jnp.sign(x) * jnp.tanh(w * x), None), 0.0, xs)[0]

    belief = sc.Normal(jnp.asarray(0.0), jnp.asarray(1.0))
    xs = jnp.ones(5)
    forward = jax.jit(jax.vmap(sc.propagate(f, "local"), (0, None, None)))
    draws = forward(jax.random.split(KEY, 20_000), belief, xs)
    one = np.tanh(np.random.default_rng(0).normal(size=200_000)).var()
    np.testing.assert_allclose(draws.var(), 5 * one, rtol=0.05)


@pytest.mark.slow
def test_weights_shared_by_all_steps_keep_their_correlation():
    """Oracle: Monte Carlo with one draw of the weights for all steps."""
    params, x = gru_params(), jnp.sin(jnp.arange(8.0) * 0.4).reshape(1, 8, 1)
    beliefs = normals(params)
    result = jax.jit(sc.propagate(gru, "moments"))(None, beliefs, x)
    draws = jax.jit(jax.vmap(sc.propagate(gru, "global"), (0, None, None)))(
        jax.random.split(KEY, 20_000), beliefs, x
    )
    sd = float(draws.std())
    assert abs(float(result.mean[0, 0]) - float(draws.mean())) < 0.1 * sd
    assert abs(float(np.sqrt(result.variance[0, 0])) / sd - 1.0) < 0.1


def independent_gru(beliefs, x):
    """Mean and variance of `gru`'s result where every value counts as independent of the others."""
    nodes, shares = np.polynomial.hermite_e.hermegauss(64)

    def expected(f, m, v):
        values = f(m[..., None] + np.sqrt(v)[..., None] * nodes)
        first = values @ shares / shares.sum()
        return first, values**2 @ shares / shares.sum() - first**2

    def affine(m, v, w):
        mean, variance = np.asarray(w.mean), np.asarray(w.variance)
        return m @ mean, v @ (mean**2 + variance) + m**2 @ variance

    m = v = np.zeros((len(x), beliefs["wh"].mean.shape[0]))
    for x_t in np.swapaxes(np.asarray(x), 0, 1):
        a, a_v = affine(x_t, 0 * x_t, beliefs["wi"])
        a, a_v = a + np.asarray(beliefs["b"].mean), a_v + np.asarray(beliefs["b"].variance)
        i, i_v = (np.split(q, 3, axis=-1) for q in (a, a_v))
        u, u_v = (np.split(q, 3, axis=-1) for q in affine(m, v, beliefs["wh"]))
        r, r_v = expected(lambda t: 1 / (1 + np.exp(-t)), i[0] + u[0], i_v[0] + u_v[0])
        z, z_v = expected(lambda t: 1 / (1 + np.exp(-t)), i[1] + u[1], i_v[1] + u_v[1])
        gated = r_v * (u[2] ** 2 + u_v[2]) + r**2 * u_v[2]
        n, n_v = expected(np.tanh, i[2] + r * u[2], i_v[2] + gated)
        v = z_v * ((n - m) ** 2 + n_v + v) + (1 - z) ** 2 * n_v + z**2 * v
        m = (1 - z) * n + z * m
    return affine(m, v, beliefs["wo"])


def test_independent_moments_of_a_gru():
    """Oracle: the recursion written out by hand; only the gate mix keeps what it shares."""
    params, x = gru_params(units=4), jnp.sin(jnp.arange(10.0)).reshape(2, 5, 1)
    beliefs = normals(params)
    result = jax.jit(sc.propagate(gru, "independent"))(None, beliefs, x)
    mean, variance = independent_gru(beliefs, x)
    np.testing.assert_allclose(result.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(result.variance, variance, rtol=1e-6)


def test_without_loops_independent_moments_are_the_moments():
    params, x = mlp_params(3, 7, 2), jax.random.normal(KEY, (4, 3))
    a, b = (sc.propagate(mlp, how)(None, normals(params), x) for how in ("moments", "independent"))
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12)
    np.testing.assert_allclose(a.variance, b.variance, rtol=1e-12)


# --- exact where it can be ----------------------------------------------------------------------


def test_certain_parameters_give_the_plain_function():
    params, x = mlp_params(3, 7, 2), jax.random.normal(KEY, (4, 3))
    plain = mlp(params, x)
    np.testing.assert_array_equal(sc.propagate(mlp, "moments")(None, params, x), plain)
    for how in ("moments", "local", "global"):
        result = sc.propagate(mlp, how)(KEY, normals(params, 0.0), x)
        mean = result.mean if how == "moments" else result
        np.testing.assert_allclose(mean, plain, rtol=1e-10, atol=1e-12)


def test_the_gate_mix_of_independent_values_is_exact():
    """Oracle: Var[(1−z)n + zh] = ((1−z̄)²+v_z)v_n + (z̄²+v_z)v_h + v_z(n̄−h̄)²."""
    rng = np.random.default_rng(0)
    z, n, h = (sc.Normal(jnp.asarray(rng.normal(size=5)), jnp.asarray(rng.uniform(0.1, 1, 5)))
               for _ in range(3))  # fmt: skip
    result = sc.propagate(lambda b, _: (1.0 - b[0]) * b[1] + b[0] * b[2], "moments")(
        None, (z, n, h), None
    )
    expected = (
        ((1 - z.mean) ** 2 + z.variance) * n.variance
        + (z.mean**2 + z.variance) * h.variance
        + z.variance * (n.mean - h.mean) ** 2
    )
    np.testing.assert_allclose(result.variance, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "f", [lambda x: x + x, lambda x: x - x, lambda x: 3.0 * x - (x + 1.0), lambda x: x * x]
)
def test_a_value_that_meets_itself_is_not_independent_of_itself(f):
    """Oracle: the same function of one Gaussian, in closed form by its polynomial."""
    x = sc.Normal(jnp.asarray([0.7, -1.0]), jnp.asarray([0.3, 0.2]))
    result = sc.propagate(lambda x, _: f(x), "moments")(None, x, None)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    values = f(np.asarray(x.mean)[:, None] + np.sqrt(np.asarray(x.variance))[:, None] * nodes)
    mean = (values * weights).sum(1) / weights.sum()
    variance = ((values - mean[:, None]) ** 2 * weights).sum(1) / weights.sum()
    np.testing.assert_allclose(result.mean, mean, atol=1e-9)
    np.testing.assert_allclose(result.variance, variance, atol=1e-9)


@pytest.mark.slow
def test_a_residual_connection_keeps_the_covariance_of_its_branches():
    """Oracle: Monte Carlo. A diagonal layer's branch moves with the input it is added to."""
    x = sc.Normal(jnp.asarray([[1.0, -0.5]]), jnp.asarray([[0.3, 0.4]]))
    w = jnp.asarray([[0.9, 0.1], [-0.1, 0.8]])
    f = lambda x, _: x + jnp.tanh(x @ w)  # noqa: E731
    result = sc.propagate(f, "moments")(None, x, None)
    draws = jax.vmap(sc.propagate(f, "global"), (0, None, None))(
        jax.random.split(KEY, 50_000), x, None
    )
    np.testing.assert_allclose(np.sqrt(result.variance), draws.std(0), rtol=0.05)


# --- transformations around and inside ----------------------------------------------------------


@pytest.mark.slow
def test_jit_vmap_and_grad_outside():
    params, x = mlp_params(3, 6, 1), jax.random.normal(KEY, (5, 3))
    beliefs = normals(params)
    forward = sc.propagate(mlp, "moments")
    whole = forward(None, beliefs, x)
    one_by_one = jax.vmap(lambda row: forward(None, beliefs, row[None]))(x)
    np.testing.assert_allclose(whole.mean, one_by_one.mean[:, 0], rtol=1e-10)
    np.testing.assert_allclose(whole.variance, one_by_one.variance[:, 0], rtol=1e-10)

    def total(beliefs):
        result = forward(None, beliefs, x)
        return jnp.sum(result.mean**2 + result.variance)

    gradient = jax.jit(jax.grad(total))(beliefs)
    flat, unravel = ravel_pytree(beliefs)
    direction = jax.random.normal(KEY, flat.shape) * jnp.where(flat == 0.01, 0.001, 1.0)
    h = 1e-4
    numeric = (total(unravel(flat + h * direction)) - total(unravel(flat - h * direction))) / (
        2 * h
    )
    exact = jnp.vdot(ravel_pytree(gradient)[0], direction)
    np.testing.assert_allclose(exact, numeric, rtol=1e-5)


@jax.custom_vjp
def straight_through(x):
    return jnp.tanh(x)


straight_through.defvjp(lambda x: (jnp.tanh(x), None), lambda _, g: (g,))


@jax.custom_jvp
def my_relu(x):
    return jnp.maximum(x, 0.0)


my_relu.defjvp(lambda p, t: (my_relu(p[0]), jnp.where(p[0] > 0, t[0], 0.0)))


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        jax.checkpoint,
        jax.remat,
        lambda f: jax.jit(jax.checkpoint(jax.jit(f))),
        lambda f: lambda x: jax.vmap(f)(x),
        lambda f: lambda x: lax.map(f, x),
        lambda f: lambda x: lax.cond(x.shape[0] > 0, f, lambda y: y, x),
        lambda f: lambda x: lax.fori_loop(0, 1, lambda i, y: f(y), x),
    ],
    ids=["jit", "checkpoint", "remat", "nested", "vmap", "map", "cond", "fori_loop"],
)
@pytest.mark.parametrize("inner", [jnp.tanh, my_relu, straight_through, jax.nn.silu])
def test_wrappers_inside_change_nothing(wrap, inner):
    x = sc.Normal(jnp.asarray([[0.5, -1.0], [0.0, 2.0]]), jnp.asarray([[0.3, 0.2], [0.1, 1.0]]))

    @jax.jit
    def both(x):
        plain = sc.propagate(lambda x, _: inner(x), "moments")(None, x, None)
        return plain, sc.propagate(lambda x, _: wrap(inner)(x), "moments")(None, x, None)

    plain, wrapped = both(x)
    np.testing.assert_allclose(wrapped.mean, plain.mean, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(wrapped.variance, plain.variance, rtol=1e-10)


@pytest.mark.parametrize("how", ["moments", "local", "global"])
def test_all_algorithms_run_jitted_through_every_kind_of_control_flow(how):
    def f(w, x):
        h = jax.checkpoint(lambda h: jnp.tanh(h @ w))(x)
        h = lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, jnp.tanh(s[1] @ w)), (0, h))[1]
        h = lax.cond(x[0, 0] > 0, lambda h: jax.nn.relu(h), lambda h: h @ w, h)
        return lax.scan(lambda c, row: (jnp.tanh(c + row), c), h[0], h)

    w = sc.Normal(jnp.eye(3), 0.01 * jnp.ones((3, 3)))
    result = jax.jit(sc.propagate(f, how))(KEY, w, jnp.ones((2, 3)))
    for leaf in jax.tree.leaves(result):
        assert np.isfinite(leaf).all()


def test_constant_arrays_and_closed_over_tracers():
    c = np.arange(3.0)

    def outer(scale, w):
        return sc.propagate(lambda w, x: jnp.tanh(scale * w * x + c), "moments")(None, w, c)

    w = sc.Normal(jnp.ones(3), jnp.ones(3))
    result = jax.jit(outer)(2.0, w)
    slope = jax.grad(lambda s: outer(s, w).variance.sum())(2.0)
    assert np.isfinite(result.mean).all()
    assert float(slope) != 0.0


def test_non_array_leaves_pass_through():
    beliefs = {"w": sc.Normal(jnp.ones(2), jnp.ones(2)), "act": jnp.tanh, "n": 3,
               "ids": jnp.arange(2), "none": None, "name": "layer"}  # fmt: skip

    def f(p, x):
        assert p["n"] == 3
        return p["act"](p["w"] * x)[p["ids"]]

    for how in ("moments", "local", "global"):
        assert jax.tree.leaves(sc.propagate(f, how)(KEY, beliefs, jnp.ones(2)))[0].shape == (2,)


def test_results_may_be_any_pytree_and_certain():
    def f(w, x):
        return {"y": w * x, "certain": x, "number": 2}

    result = sc.propagate(f, "moments")(None, sc.Normal(jnp.ones(2), jnp.ones(2)), jnp.ones(2))
    assert isinstance(result["y"], sc.Normal)
    assert not isinstance(result["certain"], sc.Normal)


def test_same_key_same_draw_and_one_draw_for_all_uses():
    def f(w, x):
        h = x @ w
        return h - h  # one pre-activation, used twice

    w = sc.Normal(jnp.ones((2, 2)), jnp.ones((2, 2)))
    x = jnp.ones((1, 2))
    for how in ("local", "global"):
        np.testing.assert_allclose(sc.propagate(f, how)(KEY, w, x), 0.0, atol=1e-12)
        forward = sc.propagate(lambda w, x: jnp.tanh(x @ w), how)
        np.testing.assert_array_equal(forward(KEY, w, x), forward(KEY, w, x))
        assert not np.array_equal(forward(KEY, w, x), forward(jax.random.key(1), w, x))


# --- float32, edges -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", pytest.param("gru", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["moments", "local", "global"])
def test_values_and_gradients_are_finite_in_float32(model, how):
    """Zero weights, pruned weights, tiny and huge variances, inside a scan too."""
    if model == "mlp":
        f, params, x = mlp, mlp_params(3, 5, 5, 1, dtype=jnp.float32), jnp.ones((2, 3), "f4")
    else:
        f, params, x = gru, gru_params(units=4, dtype=jnp.float32), jnp.ones((2, 5, 1), "f4")

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def total(beliefs):
        result = sc.propagate(f, how)(KEY, beliefs, x)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(result)), result

    prune = lambda m: m.at[..., ::2].set(0.0)  # noqa: E731
    for variance in (0.0, 1e-12, 1e6):
        beliefs = jax.tree.map(
            lambda m, v=variance: sc.Normal(prune(m), prune(jnp.full_like(m, v))), params
        )
        (_, result), gradient = total(beliefs)
        for leaf in jax.tree.leaves((result, gradient)):
            assert leaf.dtype == jnp.float32
            assert np.isfinite(leaf).all()


# --- errors and coverage --------------------------------------------------------------------------


def test_an_operation_without_a_rule_says_what_and_where_and_the_ways_out():
    def model(w, x):
        return lax.erf_inv(w * x)

    line = inspect.getsourcelines(model)[1] + 1
    with pytest.raises(sc.UnsupportedOperation) as caught:
        sc.propagate(model, "moments")(None, sc.Normal(jnp.ones(3), jnp.ones(3)), jnp.ones(3))
    message = str(caught.value)
    assert "'erf_inv'" in message
    assert f"test_propagation.py:{line}" in message
    assert "register_rule" in message
    assert "where=" in message
    sc.propagate(model, "global")(KEY, sc.Normal(jnp.ones(3), jnp.ones(3)), jnp.ones(3))


@pytest.mark.parametrize(
    ("f", "word"),
    [
        (lambda w, x: jnp.argmax(w * x), "argmax"),
        (lambda w, x: x[jnp.int32(w[0])], "convert_element_type"),
        (lambda w, x: lax.cond(w[0] > 0, lambda: x, lambda: -x), "gt"),
        (lambda w, x: (w > x).astype(int), "gt"),
    ],
)
def test_uncertain_decisions_are_errors(f, word):
    with pytest.raises(sc.UnsupportedOperation, match=word):
        sc.propagate(f, "moments")(None, sc.Normal(jnp.ones(3), jnp.ones(3)), jnp.ones(3))


def test_a_registered_rule_is_used_and_can_be_taken_back():
    f = lambda w, x: lax.erf_inv(w * x)  # noqa: E731
    belief = sc.Normal(jnp.asarray([2.0, 1.0]), jnp.ones(2))

    @sc.register_rule("erf_inv", exactness="independent")
    def inverse(bind, x, **params):
        assert params == {}
        return sc.Normal(bind(0.0 * x.mean) + x.mean, x.variance)

    try:
        result = sc.propagate(f, "moments")(None, belief, jnp.ones(2))
        np.testing.assert_array_equal(result.mean, [2.0, 1.0])
        assert sc.coverage(f, belief, jnp.ones(2)).rows[-1].exactness == "independent"
    finally:
        sc.unregister_rule("erf_inv")
    with pytest.raises(sc.UnsupportedOperation):
        sc.propagate(f, "moments")(None, belief, jnp.ones(2))


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"moments"):
        sc.propagate(mlp, "moment")
    with pytest.raises(TypeError, match="function"):
        sc.propagate(3, "moments")
    with pytest.raises(ValueError, match="key"):
        sc.propagate(mlp, "local")(None, normals(mlp_params(2, 3, 1)), jnp.ones((1, 2)))
    with pytest.raises(ValueError, match="key"):
        sc.propagate(mlp, "global")(None, normals(mlp_params(2, 1)), jnp.ones((1, 2)))
    with pytest.raises(TypeError, match="floating"):
        sc.propagate(lambda w, x: w, "moments")(None, sc.Normal(jnp.arange(2), jnp.ones(2)), 0)


def test_coverage_of_a_gru_lists_where_independence_is_an_approximation(capsys):
    table = sc.coverage(gru, gru_params(), jnp.ones((2, 8, 1)))
    text = str(table)
    print(text)
    assert "Correlations are approximated or neglected at:" in text
    for word in ("dot_general", "logistic", "tanh", "scan", "quadrature", "test_propagation.py"):
        assert word in text
    assert any(row.operation == "scan" for row in table.approximations)
    assert all(len(line) < 200 for line in text.splitlines())


def test_coverage_of_a_residual_mlp():
    def residual(params, x):
        w1, w2, w3 = params
        h = x @ w1
        return (h + jax.nn.relu(h @ w2)) @ w3

    params = [jnp.ones((3, 4)), jnp.ones((4, 4)), jnp.ones((4, 1))]
    table = sc.coverage(residual, params, jnp.ones((2, 3)))
    operations = [(row.operation, row.exactness) for row in table]
    assert operations[0] == ("dot_general", "exact")
    assert operations[-1] == ("dot_general", "independent")
    assert any(op == "add" and kind != "exact" for op, kind in operations)
    assert "Correlations are approximated or neglected at:" in str(table)


def test_coverage_of_a_plain_mlp_is_exact_up_to_its_third_layer():
    table = sc.coverage(mlp, mlp_params(3, 5, 5, 1), jnp.ones((2, 3)))
    dots = [row.exactness for row in table if row.operation == "dot_general"]
    assert dots == ["exact", "exact", "independent"]


@pytest.mark.parametrize("how", ["local", "global"])
def test_noise_from_a_tape_is_noise_from_a_key(how):
    """Oracle: samples with keys; the same numbers on a tape give the same output every time."""
    params, x = mlp_params(3, 6, 1), jax.random.normal(KEY, (5, 3))
    beliefs, forward = normals(params, 0.1), sc.propagate(mlp, how)
    length = DrawnNoise.length(forward, beliefs, x)
    assert length == (sum(w.size + b.size for w, b in params) if how == "global" else 5 * 6 + 5)
    keys = jax.random.split(KEY, 4000)
    by_key = jax.jit(jax.vmap(lambda k: forward(k, beliefs, x)))(keys)
    numbers = jax.random.normal(KEY, (4000, length))
    by_tape = jax.jit(jax.vmap(lambda n, k: forward(DrawnNoise(n, k), beliefs, x)))(numbers, keys)
    error = np.asarray(by_key).std(0) / np.sqrt(4000)
    np.testing.assert_array_less(np.abs(by_tape.mean(0) - by_key.mean(0)), 6 * error)
    np.testing.assert_allclose(by_tape.std(0), by_key.std(0), rtol=0.1)
    again = forward(DrawnNoise(numbers[0], keys[1]), beliefs, x)
    np.testing.assert_allclose(again, by_tape[0], rtol=1e-9)


def recurrent(params, x):
    def step(state, x):
        return jnp.tanh(state @ params["state"] + x @ params["inputs"]), None

    return jax.lax.scan(step, jnp.zeros((x.shape[1], 4)), x)[0]


@pytest.mark.slow
def test_a_loop_draws_its_noise_beforehand_or_in_its_steps(monkeypatch):
    """Oracle: the recursion by hand, with independent draws of every step's sums."""
    k1, k2, k3 = jax.random.split(KEY, 3)
    params = {"state": jax.random.normal(k1, (4, 4)), "inputs": jax.random.normal(k2, (2, 4))}
    beliefs, x = normals(params, 0.1), jax.random.normal(k3, (5, 3, 2))
    forward = sc.propagate(recurrent, "local")
    assert DrawnNoise.length(forward, beliefs, x) == 5 * 3 * 4
    state, keys = jnp.zeros((20_000, 3, 4)), jax.random.split(k3, 5)
    for key, now in zip(keys, x, strict=True):
        mean = state @ params["state"] + (now @ params["inputs"])[None]
        spread = jnp.sqrt(0.1 * (jnp.sum(state**2, -1) + jnp.sum(now**2, -1)[None]))
        state = jnp.tanh(mean + spread[..., None] * jax.random.normal(key, mean.shape))
    draw = jax.vmap(lambda k: forward(k, beliefs, x))
    drawn = [jax.jit(draw)(jax.random.split(k1, 20_000))]
    monkeypatch.setattr(uncertain_loops, "_DRAWN_BEFORE", 0)
    drawn.append(jax.jit(lambda keys: draw(keys))(jax.random.split(k2, 20_000)))
    assert np.abs(drawn[0][0] - drawn[1][0]).max() > 0
    for sample, power in itertools.product(drawn, (1, 2)):
        got, wanted = np.asarray(sample) ** power, np.asarray(state) ** power
        error = np.sqrt((got.var(0) + wanted.var(0)) / 20_000)
        np.testing.assert_array_less(np.abs(got.mean(0) - wanted.mean(0)), 5 * error)
