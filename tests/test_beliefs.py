"""Beliefs: which leaves are uncertain, what is pruned, and what it costs in nats."""

import math
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import oracles
from secateur import beliefs as sb
from secateur import pytrees
from secateur.distributions import Beta, Dirichlet, Gamma, Laplace, Normal

Pair = namedtuple("Pair", "weight bias")
complexity = jax.jit(sb.complexity)


def params():
    """One of everything that a model's pytree may hold."""
    return {
        "layers": [Pair(jnp.arange(6.0).reshape(2, 3), jnp.ones(3)), Pair(jnp.ones((3, 1)), None)],
        "steps": 7,
        "rate": 0.1,
        "activation": jnp.tanh,
        "name": "net",
        "table": jnp.arange(4),
        "mask": jnp.array([True, False]),
        "spectrum": jnp.ones(2, complex),
    }


def pruned():
    """Two leaves of which one is partly pruned, and a certain one."""
    return {
        "w": Normal(jnp.array([[2.0, 0.0], [0.0, -1.0]]), jnp.array([[0.5, 0.0], [0.0, 0.25]])),
        "b": Normal(jnp.array([0.3]), jnp.array([0.1])),
        "n": jnp.arange(3),
    }


def uncertain_paths(tree):
    pairs = jax.tree_util.tree_leaves_with_path(tree, is_leaf=pytrees.is_belief)
    return [jax.tree_util.keystr(path) for path, leaf in pairs if pytrees.is_belief(leaf)]


def test_all_floating_arrays_become_uncertain_and_nothing_else():
    """Oracle: the list of floating leaves, by hand."""
    given = params()
    believed = sb.believe(given, variance=0.2)
    assert uncertain_paths(believed) == [
        "['layers'][0].weight",
        "['layers'][0].bias",
        "['layers'][1].weight",
    ]
    weight = believed["layers"][0].weight
    np.testing.assert_array_equal(weight.mean, given["layers"][0].weight)
    np.testing.assert_array_equal(weight.variance, np.full((2, 3), 0.2))
    assert believed["layers"][1].bias is None
    for name in ("steps", "rate", "activation", "name", "table", "mask", "spectrum"):
        assert believed[name] is given[name]
    assert jax.tree.structure(sb.mean_weights(believed)) == jax.tree.structure(given)


def test_where_by_path_by_tree_and_by_prefix():
    tree = {"a": [jnp.ones(2), jnp.ones(3)], "b": jnp.ones(4), "n": jnp.arange(2)}
    by_path = sb.believe(tree, variance=1.0, where=lambda path, leaf: path == "['a'][1]")
    assert uncertain_paths(by_path) == ["['a'][1]"]
    by_size = sb.believe(tree, variance=1.0, where=lambda path, leaf: leaf.size == 4)
    assert uncertain_paths(by_size) == ["['b']"]
    by_prefix = sb.believe(tree, variance=1.0, where={"a": True, "b": False, "n": False})
    assert uncertain_paths(by_prefix) == ["['a'][0]", "['a'][1]"]
    everything = sb.believe(tree, variance=1.0, where=True)  # a subtree: what can be, is
    assert len(uncertain_paths(everything)) == 3


def test_variance_by_function_by_tree_and_in_two_calls():
    tree = {"a": jnp.ones((2, 3)), "b": jnp.ones(4)}
    by_function = sb.believe(tree, variance=lambda path, leaf: 1.0 / leaf.size)
    np.testing.assert_allclose(by_function["a"].variance, np.full((2, 3), 1 / 6))
    by_tree = sb.believe(tree, variance={"a": jnp.array([1.0, 2.0, 3.0]), "b": 0.5})
    np.testing.assert_allclose(by_tree["a"].variance, [[1, 2, 3]] * 2)
    first = sb.believe(tree, variance=0.5, where={"a": True, "b": False})
    both = sb.believe(first, variance=0.1)
    assert both["a"] is first["a"]
    assert float(both["b"].variance[0]) == 0.1


def test_half_precision_and_numpy_leaves():
    believed = sb.believe([np.ones(2, np.float32), jnp.ones(2, jnp.bfloat16)], variance=0.1)
    assert [q.variance.dtype for q in believed] == [jnp.float32, jnp.bfloat16]
    cost = complexity(believed, sb.priors(believed, Normal(0.0, 1.0)))
    assert bool(jnp.isfinite(cost))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (lambda path, leaf: path == "['table']", r"\['table'\].*array of int64"),
        (lambda path, leaf: False, "no leaf was made uncertain"),
        ({**jax.tree.map(lambda _: False, params()), "activation": True}, "cannot be uncertain"),
        ({"nonsense": True}, "does not fit the parameters' structure"),
    ],
    ids=["integers", "nothing", "function", "structure"],
)
def test_a_wrong_where_is_explained(where, message):
    with pytest.raises(ValueError, match=message):
        sb.believe(params(), variance=0.1, where=where)


@pytest.mark.parametrize("variance", [-1.0, jnp.inf, jnp.nan, jnp.ones(5)])
def test_a_wrong_variance_is_explained(variance):
    with pytest.raises(ValueError, match="variance given for"):
        sb.believe({"w": jnp.ones(3)}, variance=variance)


def test_priors_for_all_by_prefix_and_by_function():
    believed = sb.believe(params(), variance=0.1)
    one = sb.priors(believed, Normal(0.0, 2.0))
    assert one["layers"][0].weight.variance.shape == (2, 3)
    assert one["steps"] is None
    assert one["table"] is None
    names = dict.fromkeys(params()) | {"layers": [Normal(0.0, 1.0), Laplace(0.0, 1.0)]}
    mixed = sb.priors(believed, names)
    assert isinstance(mixed["layers"][0].bias, Normal)
    assert isinstance(mixed["layers"][1].weight, Laplace)
    fan_in = sb.priors(believed, lambda path, leaf: Normal(0.0, 1.0 / leaf.shape[0]))
    np.testing.assert_allclose(fan_in["layers"][0].weight.variance, np.full((2, 3), 0.5))


def test_priors_that_cannot_be_are_explained():
    believed = sb.believe({"w": jnp.ones(3)}, variance=0.1)
    for prior in (Gamma(1.0, 1.0), Beta(1.0, 1.0), Dirichlet(jnp.ones(3)), 3.0):
        with pytest.raises(TypeError, match="whole line"):
            sb.priors(believed, prior)
    with pytest.raises(ValueError, match="do not broadcast"):
        sb.priors(believed, Normal(jnp.zeros(2), 1.0))
    with pytest.raises(ValueError, match=r"\['w'\] has no prior"):
        sb.complexity(believed, {"w": None})


def test_live_count_and_cut():
    """Oracle: the zeros, by hand."""
    q = pruned()
    assert sb.live(q)["w"].tolist() == [[True, False], [False, True]]
    assert sb.live(q)["n"] is None
    assert sb.count(q) == (3, 5)
    keep = {"w": jnp.array([[True], [False]]), "b": None, "n": None}
    cut = sb.cut(q, keep)
    assert cut["w"].mean.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert cut["w"].variance.tolist() == [[0.5, 0.0], [0.0, 0.0]]
    assert cut["b"] is q["b"]
    assert cut["n"] is q["n"]
    same = sb.cut(q, sb.live(q))
    assert all(
        bool(jnp.all(a == b))
        for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(q), strict=True)
    )
    with pytest.raises(ValueError, match="which is certain"):
        sb.cut(q, {"w": None, "b": None, "n": jnp.ones(3, bool)})
    with pytest.raises(ValueError, match="True where a weight is kept"):
        sb.cut(q, {"w": jnp.ones((2, 2)), "b": None, "n": None})


def test_samples_have_the_beliefs_moments_and_are_independent():
    """Oracle: mean and variance, within 4.5 standard errors of 20 000 draws."""
    q = {"a": Normal(jnp.array([1.0, -2.0, 3.0]), jnp.array([0.5, 2.0, 0.0])), "n": 3}
    q["b"] = q["a"]
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws = jax.jit(
        jax.vmap(lambda key: {k: v for k, v in sb.sample_weights(key, q).items() if k != "n"})
    )(keys)
    for name in "ab":
        error = np.sqrt(np.asarray(q[name].variance) / 20_000)
        assert np.all(np.abs(draws[name].mean(0) - q[name].mean) <= 4.5 * error)
        ratio = np.asarray(
            draws[name].var(0) / jnp.where(q[name].variance > 0, q[name].variance, 1)
        )
        np.testing.assert_allclose(ratio, [1, 1, 0], atol=4.5 * math.sqrt(2 / 20_000))
        assert np.all(draws[name][:, 2] == 3.0)
    correlation = np.corrcoef(draws["a"][:, 0], draws["b"][:, 0])[0, 1]
    assert abs(correlation) < 4.5 / math.sqrt(20_000)
    assert sb.sample_weights(keys[0], q)["n"] == 3


def test_sampling_has_finite_gradients_at_variance_zero():
    def loss(q):
        return jnp.sum(jnp.square(sb.sample_weights(jax.random.key(0), q)["w"]))

    gradient = jax.grad(loss)({"w": Normal(jnp.ones(2), jnp.array([0.0, 1.0]))})
    assert np.all(np.isfinite(jax.tree.leaves(gradient)))
    assert gradient["w"].variance[0] == 0.0


def test_no_gradient_reaches_a_pruned_weight():
    q = pruned()
    gradient = jax.grad(
        lambda q: sum(jnp.sum(x) for x in jax.tree.leaves(sb.hold_pruned(q))), allow_int=True
    )(q)
    np.testing.assert_array_equal(gradient["w"].mean, [[1, 0], [0, 1]])
    np.testing.assert_array_equal(gradient["w"].variance, [[1, 0], [0, 1]])


def test_complexity_under_a_normal_prior():
    """Oracle: KL by quadrature of SciPy densities, over the live weights only."""
    q = pruned()
    prior = {"w": Normal(jnp.full((2, 2), 0.3), jnp.full((2, 2), 1.7)), "b": Normal(0.0, 1.0)}
    expected = (
        oracles.kl_1d(oracles.normal(2.0, 0.5), oracles.normal(0.3, 1.7))
        + oracles.kl_1d(oracles.normal(-1.0, 0.25), oracles.normal(0.3, 1.7))
        + oracles.kl_1d(oracles.normal(0.3, 0.1), oracles.normal(0.0, 1.0))
    )
    for function in (sb.complexity, complexity):
        value = function(q, prior | {"n": None})
        np.testing.assert_allclose(value, expected, rtol=1e-9)


@pytest.mark.parametrize("mean", [0.0, 0.4, -3.0, 60.0])
@pytest.mark.parametrize("variance", [1e-8, 0.3, 40.0])
def test_complexity_under_a_laplace_prior(mean, variance):
    """Oracle: quadrature split at the kink; the closed form holds at any scale."""
    q = {"w": Normal(jnp.array([mean]), jnp.array([variance]))}
    given = complexity(q, sb.priors(q, Laplace(0.1, 0.7)))
    deviation = math.sqrt(variance)
    expected, _ = integrate.quad(
        lambda z: stats.norm.pdf(z) * -stats.laplace.logpdf(mean + deviation * z, 0.1, 0.7),
        -12,
        12,
        points=[np.clip((0.1 - mean) / deviation, -12, 12)],
        limit=400,
        epsabs=1e-12,
    )
    expected -= 0.5 * math.log(2 * math.pi * math.e * variance)
    np.testing.assert_allclose(given, expected, rtol=1e-8)


@jax.tree_util.register_dataclass
@dataclass
class StudentT:
    """A prior of the user's own: a pytree with a log_prob, and no closed complexity."""

    scale: Any

    def log_prob(self, value):
        return jax.scipy.stats.t.logpdf(value / self.scale, 4.0) - jnp.log(self.scale)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (3.0, 0.01), (-8.0, 30.0)])
def test_complexity_under_any_other_prior(mean, variance):
    """Oracle: quadrature with SciPy's Student-t."""
    q = {"w": Normal(jnp.full(3, mean), jnp.full(3, variance))}
    given = complexity(q, sb.priors(q, StudentT(1.5)))
    expected = oracles.kl_1d(
        oracles.normal(mean, variance), lambda u: stats.t.logpdf(u, 4.0, 0.0, 1.5)
    )
    np.testing.assert_allclose(given, 3 * expected, rtol=1e-6)


@pytest.mark.parametrize("prior", [Normal(0.1, 0.9), Laplace(0.1, 0.9), StudentT(1.1)])
def test_gradient_of_complexity(prior):
    """Oracle: central differences."""
    q = Normal(jnp.array([0.5, -2.0]), jnp.array([0.3, 1.4]))
    p = sb.priors(q, prior)
    gradient = jax.jit(jax.grad(sb.complexity))(q, p)
    by_mean = oracles.central_difference(lambda m: complexity(Normal(m, q.variance), p), q.mean)
    by_variance = oracles.central_difference(lambda v: complexity(Normal(q.mean, v), p), q.variance)
    np.testing.assert_allclose(gradient.mean, by_mean, rtol=1e-6)
    np.testing.assert_allclose(gradient.variance, by_variance, rtol=1e-6)


@pytest.mark.parametrize("prior", [Normal(0.0, 1.0), Laplace(0.0, 1.0), StudentT(1.0)])
def test_complexity_is_finite_in_float32(prior):
    """Variance exactly 0, tiny and huge; mean 0, tiny and large; all at once."""
    variance = jnp.array([0.0, 1e-37, 1e-30, 1e-12, 1.0, 1e12, 1e30], jnp.float32)
    mean = jnp.array([0.0, 1e-30, 1.0, -1e3], jnp.float32)
    grid = [x.ravel() for x in jnp.meshgrid(mean, variance)]
    q = Normal(*grid)
    value, gradient = jax.jit(jax.value_and_grad(sb.complexity))(q, sb.priors(q, prior))
    assert value.dtype == jnp.float32
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    dead = np.asarray(q.variance == 0)
    assert np.all(np.asarray(gradient.mean)[dead] == 0)
    assert np.all(np.asarray(gradient.variance)[dead] == 0)


def test_an_equinox_module_is_beliefs():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    believed = sb.believe(
        model, variance=0.1, where=lambda path, leaf: path.startswith("layers[0]")
    )
    assert sb.count(believed) == (12, 12)
    assert believed.activation is model.activation
    cost = sb.complexity(believed, sb.priors(believed, Normal(0.0, 1.0)))
    assert np.isfinite(cost)
    draw = sb.sample_weights(jax.random.key(1), believed)
    assert draw(jnp.ones(2)).shape == (1,)
    whole = sb.cut(believed, sb.live(believed))
    np.testing.assert_allclose(sb.mean_weights(whole)(jnp.ones(2)), model(jnp.ones(2)), rtol=1e-12)


def test_an_nnx_state_is_beliefs():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    graph, state = nnx.split(model)
    believed = sb.believe(state, variance=0.1, where=lambda path, leaf: "kernel" in path)
    assert sb.count(believed) == (6, 6)
    cost = complexity(believed, sb.priors(believed, Normal(0.0, 1.0)))
    assert np.isfinite(cost)
    draw = nnx.merge(graph, sb.sample_weights(jax.random.key(1), believed))
    assert draw(jnp.ones((1, 2))).shape == (1, 3)
    back = nnx.merge(graph, sb.mean_weights(believed))
    np.testing.assert_allclose(back(jnp.ones((1, 2))), model(jnp.ones((1, 2))), rtol=1e-6)
