"""The well-conditioned functions against exact arithmetic and SciPy."""

import math
from decimal import Decimal, getcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as scipy_special
from scipy.stats import norm as scipy_norm

from secateur.distributions import special

getcontext().prec = 60


def exact_kl_div(x, y):
    """Oracle: x ln(x/y) − x + y in 60 decimal digits."""
    x, y = Decimal(float(x)), Decimal(float(y))
    return float(x * (x / y).ln() - x + y)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-14), (np.float32, 1e-5)])
@pytest.mark.parametrize("jit", [False, True])
def test_kl_div_keeps_its_relative_precision(dtype, tolerance, jit):
    """Oracle: 60-digit decimal arithmetic, from y/x − 1 = 1e-6 to ratios of 1e±20."""
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=400) * 3).astype(dtype)
    ratio = np.concatenate([1 + rng.choice([-1, 1], 300) * 10 ** rng.uniform(-6, -0.1, 300)])
    ratio = np.concatenate([ratio, 10 ** rng.uniform(-20, 20, 100)])
    y = (x * ratio).astype(dtype)
    f = jax.jit(special.kl_div) if jit else special.kl_div
    expected = [exact_kl_div(a, b) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(f(jnp.asarray(x), jnp.asarray(y)), expected, rtol=tolerance)


def test_kl_div_at_the_edges():
    """Oracle: the limits, 0 at x = y and +inf at y = 0; the derivative 1 − x/y."""
    one = jnp.ones(())
    assert special.kl_div(one, one) == 0
    assert special.kl_div(one, 0 * one) == jnp.inf
    y = jnp.array([1e-20, 0.5, 0.74, 0.76, 1.0, 1.24, 1.26, 1e20])
    by_x, by_y = jax.vmap(jax.grad(special.kl_div, (0, 1)))(jnp.ones(8), y)
    np.testing.assert_allclose(by_x, -np.log(y), rtol=1e-12)
    np.testing.assert_allclose(by_y, 1 - 1 / y, rtol=1e-12)
    assert jax.grad(special.kl_div, (0, 1))(one, 0 * one) == (0, 0)


@pytest.mark.parametrize("z", [1, 3, 9, 10, 11, 50, 5000, 10**7])
@pytest.mark.parametrize("step", [1, 2, 7, 40])
def test_gammaln_difference_over_whole_steps(z, step):
    """Oracle: ln Γ(z + n) − ln Γ(z) = Σ ln(z + j), summed without rounding."""
    expected = math.fsum(math.log(z + j) for j in range(step))
    for value in (
        special.gammaln_difference(jnp.float64(z + step), jnp.float64(z)),
        -special.gammaln_difference(jnp.float64(z), jnp.float64(z + step)),
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-14, atol=1e-15)


def test_gammaln_difference_in_float32():
    """Oracle: float64 SciPy; the plain float32 difference at 5000 is off by 1e-3."""
    y = np.array([1e-6, 0.1, 1.0, 5.0, 20.0, 5000.0], np.float32)
    x = np.array([2.0, 0.8, 4.5, 1.0, 20.25, 5000.5], np.float32)
    expected = scipy_special.gammaln(np.float64(x)) - scipy_special.gammaln(np.float64(y))
    value = special.gammaln_difference(jnp.asarray(x), jnp.asarray(y))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, expected, rtol=3e-6, atol=1e-6)


def test_gammaln_divergence():
    """Oracle: float64 SciPy where it does not cancel; ½ ψ'(y)(x − y)² where it does."""
    rng = np.random.default_rng(1)
    x, y = np.exp(rng.normal(size=(2, 300)) * 2)
    expected = scipy_special.gammaln(x) - scipy_special.gammaln(y)
    expected -= (x - y) * scipy_special.digamma(y)
    value = special.gammaln_divergence(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-11)

    y = np.array([20.0, 300.0, 5000.0])
    x = y + 1e-3
    second_order = 0.5 * scipy_special.polygamma(1, y) * (x - y) ** 2
    value = special.gammaln_divergence(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(value, second_order, rtol=1e-4)


def test_log_ratio():
    """Oracle: ln x − ln y in 60-digit decimal arithmetic."""
    x = np.array([1.0, 1 + 1e-9, 1.2, 1e30, 1e-30], np.float32)
    y = np.array([1.0, 1.0, 1.0, 1e-30, 1e30], np.float32)
    expected = [
        float(Decimal(float(a)).ln() - Decimal(float(b)).ln()) for a, b in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(
        special.log_ratio(jnp.asarray(x), jnp.asarray(y)), expected, rtol=1e-6
    )


def test_safe_sqrt_has_no_infinite_gradient():
    value, slope = jax.vmap(jax.value_and_grad(special.safe_sqrt))(jnp.array([0.0, 4.0]))
    assert value.tolist() == [0.0, 2.0]
    assert slope.tolist() == [0.0, 0.25]


def test_normal_tail_in_float32_is_as_precise_as_erfc():
    """Oracle: SciPy, in float64."""
    a = np.linspace(0.0, 12.0, 5001).astype(np.float32)  # beyond, float32 has no such small numbers
    density = jnp.exp(-0.5 * a.astype(np.float64) ** 2).astype(jnp.float32) / np.float32(
        np.sqrt(2 * np.pi)
    )
    tail = special.normal_tail(jnp.asarray(a), density)
    assert tail.dtype == jnp.float32
    np.testing.assert_allclose(tail, scipy_norm.sf(a.astype(np.float64)), rtol=4e-7)
    wide = jnp.asarray(a, jnp.float64)
    np.testing.assert_allclose(
        special.normal_tail(wide, wide), scipy_norm.sf(np.asarray(wide)), rtol=1e-12
    )
