"""`compact`: smaller, and the same function.

Oracles: the original model itself on random inputs, and reachability in the graph of live weights.
"""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from model_zoo import FLAT, SIZED_MODELS, Sizes, sized_hand_mlp
from secateur.compaction.smaller_function import SmallerFunction
from secateur.networks import Dense, Gru
from secateur.pytrees import is_belief
from trained import believed, masked, pruned_by_force, standardised, trained

ROWS = 1000
RATES = (0, 0.5, 0.9, 0.99, 1)
# Models that are compacted at all rates: one of each kind and library. The others, at the ends.
ALL_RATES = ("sized_hand_mlp", "sized_nnx_gru", "sized_equinox_conv")


def means(beliefs):
    return jax.tree.map(lambda q: q.mean if is_belief(q) else q, beliefs, is_leaf=is_belief)


def cut_units(f, beliefs, x, rate, seed=0):
    """Cut whole units: all weights of a random share of them."""
    params = means(beliefs)
    units = sc.units(f, params, x)
    hidden = [u.kind == "hidden" for u in units.units]
    gone = (np.random.default_rng(seed).uniform(size=len(units)) < rate) & hidden
    padded = np.append(gone, False)

    def cut(leaf, axes):
        if not is_belief(leaf):
            return leaf
        alive = np.ones(leaf.mean.shape, bool)
        for axis, numbers in enumerate(axes):
            alive &= ~padded[numbers].reshape([-1 if a == axis else 1 for a in range(alive.ndim)])
        return masked(leaf, alive)

    leaves, treedef = jax.tree.flatten(beliefs, is_leaf=is_belief)
    axes = treedef.flatten_up_to(units.axes)
    return treedef.unflatten([cut(a, b) for a, b in zip(leaves, axes, strict=True)]), gone


def largest_gap(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    return np.max(np.abs(a - b)) / max(np.max(np.abs(a)), np.finfo(a.dtype).tiny)


def elements(tree):
    return sum(np.size(leaf) for leaf in jax.tree.leaves(means(tree)))


@pytest.mark.slow
@pytest.mark.parametrize("build", SIZED_MODELS, ids=lambda build: build.__name__)
def test_a_compacted_network_is_the_same_function(build):
    shape, _ = SIZED_MODELS[build]
    f, params = build(Sizes())
    full = believed(params)
    dtype = jax.tree.leaves(means(full))[0].dtype
    x = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, *shape[1:])), dtype)
    original = jax.jit(f)
    sizes = []
    rates = RATES if build.__name__ in ALL_RATES else (0, 1)
    cases = [pruned_by_force(full, rate) for rate in rates]
    half, gone = cut_units(f, full, x[:2], 0.5)
    for beliefs in [*cases, half]:
        small = sc.compact(trained(f, beliefs, inference="global"), inputs=x[:2])
        expected = original(means(beliefs), x)
        assert largest_gap(expected, jax.jit(small.model.f)(small.model.params, x)) < 1e-6
        assert small.compaction.parameters_after == elements(small.beliefs)
        sizes.append(small.compaction.parameters_after)
    assert sizes[0] == small.compaction.parameters_before == elements(full)
    assert sizes[-2] < 0.4 * sizes[0]  # all but one unit of every layer
    assert sorted(sizes[:-1], reverse=True) == sizes[:-1]
    # Units of which all weights were cut are gone, each and every one.
    assert sum(len(r.unread) + len(r.constant) for r in small.compaction.removed) >= min(
        gone.sum(), 1
    )
    left = sc.units(f, params, x[:2])
    assert len(left) - gone.sum() >= len(sc.units(small.model.f, small.model.params, x[:2]))


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "dtype"), [("relu", "float64"), ("sigmoid", "float32")])
def test_mean_and_variance_are_the_same_under_moments(activation, dtype):
    network = Dense(4, hidden=(12, 8), outputs=2, activation=activation)
    params = jax.tree.map(lambda a: a.astype(dtype), network.init(jax.random.key(0)))
    x = np.random.default_rng(3).normal(size=(ROWS, 4))
    for rate in (0.85, 1.0):
        beliefs = pruned_by_force(believed(params, variance=0.05), rate, seed=1)
        pruned = trained(network, beliefs, inference="moments", inputs=standardised(4))
        small = sc.compact(pruned)
        expected, actual = pruned.predict(x), small.predict(x)
        tolerance = 1e-6 if dtype == "float64" else 4e-6
        assert largest_gap(expected.mean, actual.mean) <= tolerance
        assert largest_gap(expected.weight_variance, actual.weight_variance) <= tolerance
        assert isinstance(small.model.f, Dense)
        assert small.model.f.hidden < network.hidden
        # The weights that had no effect cost no complexity any more; nothing else changed.
        assert small.free_energy == pytest.approx(float(small.parts.total), rel=1e-6)
        assert small.parts.accuracy == pruned.parts.accuracy
        complexity = sc.complexity(small.beliefs, small.priors)
        assert float(small.parts.complexity_weights) == pytest.approx(float(complexity), rel=1e-5)


def live_units(layers, inputs=True):
    """By following edges one by one: which units an input reaches and which reach an output."""
    masks = [np.asarray(w.mean != 0) | np.asarray(w.variance != 0) for w, _ in layers]
    before, after = set(), set()
    frontier = [(0, i) for i in range(masks[0].shape[0])]
    while frontier:
        layer, unit = frontier.pop()
        if (layer, unit) in before or layer == len(masks):
            continue
        before.add((layer, unit))
        frontier += [(layer + 1, k) for k in np.flatnonzero(masks[layer][unit])]
    frontier = [(len(masks), k) for k in range(masks[-1].shape[1])]
    while frontier:
        layer, unit = frontier.pop()
        if (layer, unit) in after:
            continue
        after.add((layer, unit))
        if layer:
            frontier += [(layer - 1, j) for j in np.flatnonzero(masks[layer - 1][:, unit])]
    hidden = before & after if inputs else after
    return [sorted(u for layer, u in hidden if layer == i) for i in range(len(masks))]


@pytest.mark.slow
def test_what_goes_is_what_reachability_says():
    f, params = sized_hand_mlp(Sizes(inputs=3, hidden=6, other=5))
    for seed in range(24):
        beliefs = pruned_by_force(believed(params, seed=seed), 0.35 + 0.025 * seed, seed=seed)
        result = trained(f, beliefs, inference="global")
        small = sc.compact(result, inputs=np.zeros(FLAT), drop_inputs=True)
        inputs, first, second = live_units(beliefs)
        gone = {r.where: {*r.unread, *r.constant} for r in small.compaction.removed}
        for name, size, live in (("[0][0]", 6, first), ("[1][0]", 5, second)):
            expected = set(range(size)) - set(live)
            if not live:  # one stays, with nothing in it
                expected.discard(0)
            assert gone.get(f"{name} axis 1", set()) == expected
        read = live_units(beliefs, inputs=False)[0]
        assert small.compaction.kept_inputs.tolist() == (inputs or read or [0])
        shapes = [w.mean.shape for w, _ in small.beliefs]
        ends = [max(1, len(inputs)), max(1, len(first)), max(1, len(second)), 2]
        assert shapes == list(pairwise(ends))
        unread = {r.where: set(r.unread) for r in small.compaction.removed}
        for layer, name in ((1, "[0][0]"), (2, "[1][0]")):
            after = live_units(beliefs, inputs=False)[layer]
            folded = gone.get(f"{name} axis 1", set()) - unread.get(f"{name} axis 1", set())
            assert folded <= set(after)


def test_nothing_dead_nothing_changed():
    network = Dense(3, hidden=(4,), outputs=2)
    result = trained(network, believed(network.init(jax.random.key(0))))
    small = sc.compact(result)
    assert small.model.f == network
    assert small.compaction.removed == ()
    assert small.compaction.table() == ""
    assert small.free_energy == result.free_energy
    for a, b in zip(jax.tree.leaves(small.beliefs), jax.tree.leaves(result.beliefs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_dead_inputs_go_on_request_and_scaling_with_them():
    network = Dense(4, hidden=(5,), outputs=2)
    beliefs = believed(network.init(jax.random.key(0)))
    first = beliefs["layers"][0]["weights"]
    keep = np.array([True, False, True, False])[:, None]
    beliefs["layers"][0]["weights"] = masked(first, keep)
    scaling = {"inputs": standardised(4), "targets": standardised(2, seed=5)}
    result = trained(network, beliefs, inference="moments", **scaling)
    x = np.random.default_rng(0).normal(size=(50, 4))
    same, small = sc.compact(result), sc.compact(result, drop_inputs=True)
    assert same.compaction.kept_inputs.tolist() == [0, 1, 2, 3]
    assert small.compaction.kept_inputs.tolist() == [0, 2]
    assert small.model.f == Dense(2, hidden=(5,), outputs=2)
    expected, actual = result.predict(x), small.predict(x[:, small.compaction.kept_inputs])
    assert largest_gap(expected.mean, actual.mean) < 1e-6
    assert largest_gap(expected.weight_variance, actual.weight_variance) < 1e-6
    y = x[:, :2]
    densities = expected.log_density(y), actual.log_density(y)
    np.testing.assert_allclose(*densities, rtol=1e-6)
    assert [(r.kind, r.unread) for r in small.compaction.removed] == [("input", (1, 3))]


@pytest.mark.slow
def test_a_gru_unit_goes_when_unread_and_when_always_zero():
    network = Gru(2, units=5, outputs=2)
    beliefs = believed(network.init(jax.random.key(0)))

    def cut(leaf, index):
        alive = np.ones(leaf.mean.shape, bool)
        alive[index] = False
        return masked(leaf, alive)

    # Unit 1 feeds only itself. Unit 3 starts at 0 and nothing moves it.
    for gate in beliefs["gates"].values():
        gate["state"] = cut(gate["state"], (1, [0, 2, 3, 4]))
    beliefs["readout"]["weights"] = cut(beliefs["readout"]["weights"], 1)
    candidate = beliefs["gates"]["candidate"]
    candidate["inputs"] = cut(candidate["inputs"], (slice(None), 3))
    candidate["state"] = cut(candidate["state"], (slice(None), 3))
    candidate["bias"] = cut(candidate["bias"], 3)
    result = trained(network, beliefs, inference="local")
    small = sc.compact(result)
    assert small.model.f == Gru(2, units=3, outputs=2)
    assert [(r.unread, r.constant) for r in small.compaction.removed] == [((1,), (3,))]
    for steps in (1, 7):
        x = np.random.default_rng(0).normal(size=(ROWS, steps, 2))
        expected = network(means(beliefs), x)
        assert largest_gap(expected, jax.jit(small.model.f)(small.model.params, x)) < 1e-6


@pytest.mark.slow
def test_sizes_written_into_a_function_stay_in_it():
    """A width under a root, and a constant of the function's own along the units."""
    slopes = np.linspace(0.5, 1.5, 6)

    def f(p, x):
        h = jnp.tanh(x @ p["w"] / np.sqrt(p["w"].shape[1])) * slopes[None]
        return h.reshape(-1, 6) @ p["v"]

    beliefs = believed({"w": jnp.ones((3, 6)), "v": jnp.ones((6, 2))})
    v = beliefs["v"]
    alive = (np.arange(6) % 2 == 0)[:, None]
    beliefs["v"] = masked(v, alive)
    for inference in ("global", "moments"):
        result = trained(f, beliefs, inference=inference)
        small = sc.compact(result, inputs=np.zeros((2, 3)))
        assert isinstance(small.model.f, SmallerFunction)
        assert small.beliefs["w"].mean.shape == (3, 3)
        x = np.random.default_rng(0).normal(size=(ROWS, 3))
        gap = largest_gap(f(means(beliefs), x), jax.jit(small.model.f)(small.model.params, x))
        assert gap < 1e-6
    assert largest_gap(*(m.predict(x).weight_variance for m in (result, small))) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("network", [Dense(3, hidden=(6, 5), outputs=2), Gru(3, 5, 2)], ids=repr)
def test_the_networks_of_secateur_stay_what_they_are(network):
    shape = (ROWS, 3) if isinstance(network, Dense) else (ROWS, 4, 3)
    x = np.random.default_rng(1).normal(size=shape)
    full = believed(network.init(jax.random.key(0)))
    original, sizes = jax.jit(network), []
    for rate in RATES:
        beliefs = pruned_by_force(full, rate, seed=2)
        small = sc.compact(trained(network, beliefs, inference="global"))
        assert type(small.model.f) is type(network)
        actual = jax.jit(small.model.f)(small.model.params, x)
        assert largest_gap(original(means(beliefs), x), actual) < 1e-6
        sizes.append(small.compaction.parameters_after)
    assert sizes[0] == elements(full)
    assert small.live_weights == 0
    expected = {Dense: {"hidden": (1, 1)}, Gru: {"units": 1}}[type(network)]
    assert {name: getattr(small.model.f, name) for name in expected} == expected
