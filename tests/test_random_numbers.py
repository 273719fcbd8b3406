"""Numbers drawn in one pass are those of `jax.random.normal`, which is the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from secateur.propagation import random_numbers
from secateur.propagation.random_numbers import draw_normal


@pytest.fixture
def keys():
    return jax.random.split(jax.random.key(3), 2)


@pytest.mark.parametrize("shape", [(2**17,), (3, 50_001), (7,)])
def test_same_numbers(shape, keys, monkeypatch):
    uses = []
    draw = random_numbers._draw
    monkeypatch.setattr(random_numbers, "_draw", lambda *a: uses.append(a) or draw(*a))
    numbers = draw_normal(keys[0], shape, jnp.float32)
    np.testing.assert_array_equal(numbers, jax.random.normal(keys[0], shape, jnp.float32))
    assert bool(uses) == (np.prod(shape) >= 2**17)
    several = jax.vmap(lambda key: draw_normal(key, shape, jnp.float32))(keys)
    np.testing.assert_array_equal(several[0], numbers)
    assert (several[1] != several[0]).mean() > 0.999


@pytest.mark.parametrize("make_key", [jax.random.PRNGKey, lambda s: jax.random.key(s, impl="rbg")])
def test_other_keys(make_key):
    key = make_key(0)
    expected = jax.random.normal(key, (2**17,), jnp.float32)
    np.testing.assert_array_equal(draw_normal(key, (2**17,), jnp.float32), expected)


def test_other_precision(keys):
    expected = jax.random.normal(keys[0], (2**17,), jnp.float64)
    np.testing.assert_array_equal(draw_normal(keys[0], (2**17,), jnp.float64), expected)


def test_other_devices(keys, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(random_numbers, "_draw", None)
    expected = jax.random.normal(keys[0], (2**17,), jnp.float32)
    np.testing.assert_array_equal(draw_normal(keys[0], (2**17,), jnp.float32), expected)
