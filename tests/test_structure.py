"""`units`: every unit that is reported can be taken out physically without any difference.

Oracle: the same library's model, built one unit smaller, with the weights that are left.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import secateur as sc
from model_zoo import (
    INPUTS,
    SEQUENCE,
    SIZED_MODELS,
    Sizes,
    of_nnx,
    random_like,
    sized_hand_gru,
)

RNG = np.random.default_rng(0)


def removed(params, units, unit, *, physically):
    """The params with one unit's weights set to 0, or taken out."""

    def change(leaf, axes):
        if not axes:  # no array, or a single number (or random key)
            return leaf
        values = np.array(leaf)
        for axis, labels in enumerate(axes):
            if physically:
                values = np.compress(labels != unit, values, axis=axis)
            else:
                values[(slice(None),) * axis + (labels == unit,)] = 0
        return jnp.asarray(values)

    leaves, treedef = jax.tree.flatten(params)
    axes = treedef.flatten_up_to(units.axes)
    return treedef.unflatten([change(a, b) for a, b in zip(leaves, axes, strict=True)])


@pytest.mark.parametrize("build", SIZED_MODELS, ids=lambda build: build.__name__)
def test_a_unit_whose_weights_are_zero_can_be_taken_out(build):
    shape, counts = SIZED_MODELS[build]
    f, start = build(Sizes())
    params = random_like(start)
    x = jnp.asarray(RNG.normal(size=shape), jax.tree.leaves(params)[0].dtype)
    units = sc.units(f, params, x)
    kinds = [unit.kind for unit in units.units]
    assert kinds.count("input") == INPUTS
    assert len(kinds) == sum(counts.values())
    seen = dict.fromkeys(counts, 0)
    compiled = jax.jit(f)
    smaller = {}
    for number, unit in enumerate(units.units):
        expected = compiled(removed(params, units, number, physically=False), x)
        size = "inputs" if unit.kind == "input" else _which(params, units, number, build, counts)
        seen[size] += 1
        if size not in smaller:
            g, like = build(Sizes()._replace(**{size: getattr(Sizes(), size) - 1}))
            smaller[size] = jax.jit(g), jax.tree.structure(like)
        inputs = jnp.delete(x, seen[size] - 1, axis=-1) if size == "inputs" else x
        g, structure = smaller[size]
        left = jax.tree.leaves(removed(params, units, number, physically=True))
        actual = g(structure.unflatten(left), inputs)
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=2e-6)
    assert seen == counts


def _which(params, units, unit, build, counts):
    """The size that falls by one: that of the smaller model whose weights have these shapes."""
    cut = [np.shape(a) for a in jax.tree.leaves(removed(params, units, unit, physically=True))]
    for name in counts:
        _, like = build(Sizes()._replace(**{name: getattr(Sizes(), name) - 1}))
        if [np.shape(a) for a in jax.tree.leaves(like)] == cut:
            return name
    raise AssertionError(f"no size of {build.__name__} falls by one with unit {units.units[unit]}")


def test_the_weights_of_a_gru_unit_are_those_of_all_its_gates():
    f, params = sized_hand_gru(Sizes())
    units = sc.units(f, params, jnp.zeros(SEQUENCE))
    unit = next(u for u in units.units if u.kind == "hidden")
    members = {(path, axis): len(indices) for path, axis, indices in unit.members}
    once = {("['readout']", 0): 1, ("['wh']", 0): 1}
    assert members == once | dict.fromkeys([("['b']", 0), ("['wh']", 1), ("['wx']", 1)], 3)
    assert "5 hidden" in repr(units)
    assert str(unit).startswith("hidden: ['b'] axis 0 [")


def test_heads_are_units():
    nnx = pytest.importorskip("flax.nnx")
    f, params = of_nnx(
        nnx.Sequential(
            nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0)),
            nnx.Linear(8, 2, rngs=nnx.Rngs(0)),
        )
    )
    x = jnp.asarray(RNG.normal(size=(2, 5, 8)), jnp.float32)
    params = random_like(params)
    units = sc.units(f, params, x)
    heads = [u for u in units.units if len(u.members) == 7]
    assert len(heads) == 2
    # With a head's values and readout at 0, its queries and keys may as well be anything.
    zeroed = removed(params, units, units.units.index(heads[0]), physically=False)

    def stirred(path, leaf):
        name = jax.tree_util.keystr(path)
        return 2 * leaf + 1 if "query" in name or "key" in name else leaf

    index = {unit.members[0][2] for unit in heads[:1]}
    mixed = jax.tree_util.tree_map_with_path(stirred, zeroed)
    assert index == {(0,)}
    first_only = jax.tree.map(
        lambda a, b: a if np.shape(a) not in ((2, 4), (8, 2, 4)) else _in_head_0(a, b),
        zeroed,
        mixed,
    )
    np.testing.assert_allclose(f(first_only, x), f(zeroed, x), rtol=1e-6, atol=1e-6)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(f(mixed, x), f(zeroed, x), rtol=1e-6, atol=1e-6)


def _in_head_0(leaf, other):
    """A kernel (inputs, heads, features) or bias (heads, features) with head 0 from the other."""
    axis = np.ndim(leaf) - 2
    return jnp.where((jnp.arange(2) == 0).reshape((1,) * axis + (2, 1)), other, leaf)


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (lambda w, x: jax.nn.relu(x @ w), "outputs"),
        (lambda w, x: jnp.sum(jax.nn.relu(x @ w), axis=1), "what is summed over"),
        (lambda w, x: jax.nn.softmax(x @ w) @ jnp.ones((5, 2)), "what is normalised over"),
        (lambda w, x: jnp.sort(x @ w) @ jnp.ones((5, 2)), "what is sorted"),
        (lambda w, x: (x @ w).reshape(-1, 1) @ jnp.ones((1, 2)), "what becomes rows"),
        (lambda w, x: jnp.exp(x @ w) @ jnp.exp(x @ w).T @ x[:, :2], "what meets itself, never 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_be_no_unit(f, what):
    units = sc.units(f, jnp.ones((3, 5)), jnp.ones((4, 3)))
    assert {u.kind for u in units.units} <= {"input"}


def test_other_ways_to_write_it():
    """Transposes, concatenation, slices, a loop over layers under remat, and cond."""

    def f(p, x):
        h = jnp.concatenate([jnp.tanh(x @ p["a"]), jnp.tanh(p["b"].T @ x.T).T], axis=1)
        h = jax.lax.cond(jnp.sum(x) > 0, lambda h: h, lambda h: -h, h)
        h = jax.checkpoint(lambda h: jnp.flip(h, axis=1))(h)
        return h[:, :2] @ p["v"][:2] + h[:, 2:] @ p["v"][2:]

    p = {"a": jnp.ones((3, 2)), "b": jnp.ones((3, 4)), "v": jnp.ones((6, 1))}
    units = sc.units(f, p, jnp.ones((4, 3)))
    members = [u.members for u in units.units if u.kind == "hidden"]
    hidden = [{(path, axis): i for path, axis, i in parts} for parts in members]
    assert len(hidden) == 6
    for unit in hidden:
        (place,) = unit[("['v']", 0)]
        where, axis = ("['b']", 3 - place) if place < 4 else ("['a']", 5 - place)
        assert unit[(where, 1)] == (axis,)


def test_params_that_are_no_arrays_and_inputs_in_a_pytree():
    def f(p, x):
        return jax.nn.relu(x["a"] @ p["w"] + x["b"] @ p["u"]) @ p["v"]

    p = {"w": jnp.ones((3, 5)), "u": jnp.ones((2, 5)), "v": jnp.ones((5, 1)), "name": "net"}
    units = sc.units(f, p, {"a": jnp.ones((4, 3)), "b": jnp.ones((4, 2))})
    assert [u.kind for u in units.units].count("input") == 5
    assert [u.kind for u in units.units].count("hidden") == 5
    assert units.axes["name"] is None
