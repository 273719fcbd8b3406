"""One row for every primitive that has a rule; ``test_rules.py`` fails where one is missing.

A row names the primitives it exercises, a function of uncertain arrays, and how close its moments
must be to Monte Carlo over those arrays: "exact" within standard errors, or a relative tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from secateur.distributions import Normal


@dataclass(frozen=True)
class RuleCase:
    primitives: tuple[str, ...]
    f: Callable
    beliefs: tuple
    tolerance: float | None = None  # relative to the standard deviation; None: standard errors only

    @property
    def name(self) -> str:
        return "-".join(self.primitives)


CASES: list[RuleCase] = []


def row(*primitives: str, beliefs: tuple, tolerance: float | None = None):
    def enter(f: Callable) -> Callable:
        CASES.append(RuleCase(primitives, f, beliefs, tolerance))
        return f

    return enter


def belief(*shape: int, seed: int = 0, centre: float = 0.0, sd: float = 0.5) -> Normal:
    rng = np.random.default_rng(seed)
    mean = centre + rng.normal(size=shape) * (0.1 if centre else 1.0)
    variance = (sd * rng.uniform(0.5, 1.5, size=shape)) ** 2
    return Normal(jnp.asarray(mean), jnp.asarray(variance))


X = belief(3, 4, seed=1)
Y = belief(3, 4, seed=2)
W = belief(4, 5, seed=3)
POSITIVE = belief(3, 4, seed=4, centre=3.0, sd=0.2)
IMAGE = belief(2, 6, 6, 3, seed=5)
KERNEL = belief(3, 3, 3, 4, seed=6)
WELL_APART = Normal(jnp.tile(jnp.array([3.0, -1.0, 5.0, 1.0]), (3, 1)), jnp.full((3, 4), 0.01))
WIDE = belief(3, 4, seed=8, sd=3.0)
NEAR = Normal(jnp.array([0.4, 1.5, 2.6]), jnp.full(3, 0.0025))
VALUES = belief(4, seed=9)
CERTAIN = jnp.asarray(np.random.default_rng(7).normal(size=(3, 4)))


def segment_softmax(x):
    terms = jnp.exp(x - jax.ops.segment_max(x, EDGES, num_segments=2)[EDGES])
    return terms / jax.ops.segment_sum(terms, EDGES, num_segments=2)[EDGES]


def look_up(x):
    """Linear interpolation in a table."""
    place = jnp.floor(x).astype(jnp.int32)
    share = x - place
    return TABLE[place] * (1.0 - share) + TABLE[place + 1] * share


def softmax_by_hand(x):
    terms = jnp.exp(x - x.max(axis=1, keepdims=True))
    return terms / terms.sum(axis=1, keepdims=True)


# Rearrangements -----------------------------------------------------------------------------------
row("reshape", beliefs=(X,))(lambda x: lax.reshape(x, (4, 3)))
row("transpose", beliefs=(X,))(lambda x: x.T)
row("squeeze", "broadcast_in_dim", beliefs=(X,))(lambda x: lax.squeeze(x[:, None], (1,)))
row("slice", beliefs=(X,))(lambda x: lax.slice(x, (0, 1), (3, 4), (2, 1)))
row("rev", beliefs=(X,))(lambda x: lax.rev(x, (1,)))
row("concatenate", beliefs=(X, Y))(lambda x, y: lax.concatenate([x, CERTAIN, y], 0))
row("pad", beliefs=(X,))(lambda x: lax.pad(x, 1.5, [(1, 0, 1), (0, 2, 0)]))
row("split", beliefs=(X,))(lambda x: lax.split(x, [1, 3], axis=1)[1])
row("gather", beliefs=(X,))(lambda x: x[jnp.array([2, 0, 2])])
row("dynamic_slice", beliefs=(X,))(lambda x: lax.dynamic_slice(x, (1, 2), (2, 2)))
row("dynamic_update_slice", beliefs=(X, Y))(
    lambda x, y: lax.dynamic_update_slice(x, y[:2, :2], (1, 1))
)
row("scatter", beliefs=(X, Y))(lambda x, y: x.at[jnp.array([0, 2])].set(y[:2]))
row("scatter-add", beliefs=(X, Y))(lambda x, y: x.at[jnp.array([1, 1])].add(y[:2]))
row("select_n", beliefs=(X, Y))(lambda x, y: jnp.where(CERTAIN > 0, x, y))
row("copy", beliefs=(X,))(lambda x: lax.copy_p.bind(x) if hasattr(lax, "copy_p") else jnp.copy(x))
row("reduce_precision", beliefs=(X,))(lambda x: lax.reduce_precision(x, 11, 52))
row("convert_element_type", beliefs=(X,), tolerance=1e-3)(lambda x: x.astype(jnp.float32))
row("stop_gradient", beliefs=(X,))(lambda x: lax.stop_gradient(x) + 1.0)
row("optimization_barrier", beliefs=(X,))(lambda x: lax.optimization_barrier(x))
row("name", beliefs=(X,))(lambda x: checkpoint_name(x, "x"))
row("device_put", beliefs=(X,))(lambda x: jax.device_put(x))

# Sums and products --------------------------------------------------------------------------------
row("reduce_sum", beliefs=(X,))(lambda x: x.sum(0))
row("cumsum", beliefs=(X,))(lambda x: lax.cumsum(x, 1))
row("reduce_window_sum", beliefs=(X,))(
    lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID")
)
row("dot_general", beliefs=(X, W))(lambda x, w: x @ w)
row("dot_general", beliefs=(W,))(lambda w: CERTAIN @ w)
row("dot_general", beliefs=(X,))(lambda x: lax.dot_general(CERTAIN, x, (((0,), (0,)), ((), ()))))
row("conv_general_dilated", beliefs=(IMAGE, KERNEL))(
    lambda x, k: lax.conv_general_dilated(
        x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
)
row("add", beliefs=(X, Y))(lambda x, y: x + y)
row("sub", beliefs=(X, Y))(lambda x, y: x - y)
row("sub", beliefs=(X,))(lambda x: CERTAIN - x)
row("add_any", beliefs=(X,))(lambda x: jax.vjp(lambda y: (y, y), x)[1]((x, x))[0])
row("neg", beliefs=(X,))(lambda x: -x)
row("mul", beliefs=(X, Y))(lambda x, y: x * y)
row("mul", beliefs=(X,))(lambda x: x * CERTAIN)
row("mul", beliefs=(X,))(lambda x: x * x)
row("div", beliefs=(X,))(lambda x: x / CERTAIN)
row("div", beliefs=(X, POSITIVE), tolerance=0.03)(lambda x, y: x / y)
row("div", "exp", "reduce_max", beliefs=(X,), tolerance=0.1)(jax.nn.softmax)

row("sub", "reduce_sum", beliefs=(X,))(lambda x: x - x.mean(axis=1, keepdims=True))

# Maxima -------------------------------------------------------------------------------------------
row("max", beliefs=(X, Y))(jnp.maximum)
row("min", beliefs=(X, Y))(jnp.minimum)
row("max", beliefs=(X,))(lambda x: jnp.maximum(x, 0.2))
row("max", beliefs=(X,))(lambda x: jnp.maximum(x, CERTAIN))
row("min", beliefs=(X,))(lambda x: jnp.minimum(x, -0.2))
row("reduce_max", beliefs=(X,), tolerance=0.1)(lambda x: x.max(1))
row("reduce_min", beliefs=(X,), tolerance=0.1)(lambda x: x.min(0))
row("reduce_window_max", beliefs=(X,))(
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME")
)
row("reduce_window_min", beliefs=(X,))(
    lambda x: lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (1, 1), "VALID")
)

# Orderings, by segments, and element after element ------------------------------------------------
EDGES = jnp.array([1, 0, 1])
row("sort", beliefs=(X,), tolerance=0.01)(lambda x: jnp.sort(x, axis=0))
row("sort", beliefs=(WELL_APART, Y))(lambda x, y: lax.sort((x, y), dimension=1, num_keys=1)[1])
row("top_k", beliefs=(X,), tolerance=0.01)(lambda x: lax.top_k(x, 2)[0])
row("scatter-max", "scatter_max", beliefs=(X, Y), tolerance=0.01)(
    lambda x, y: x[:2].at[EDGES].max(y)
)
row("scatter-min", "scatter_min", beliefs=(X,), tolerance=0.01)(
    lambda x: jax.ops.segment_min(x, EDGES, num_segments=2)
)
row("scatter-add", "scatter-max", "div", beliefs=(X,), tolerance=0.1)(segment_softmax)
row("reduce_prod", beliefs=(POSITIVE,))(lambda x: jnp.prod(x, axis=0))
row("cumprod", beliefs=(POSITIVE,))(lambda x: lax.cumprod(x, 0))
row("cummax", beliefs=(X,), tolerance=0.1)(lambda x: lax.cummax(x, 1))
row("cummin", beliefs=(X,), tolerance=0.1)(lambda x: lax.cummin(x, 1, reverse=True))
row("cumlogsumexp", beliefs=(X,), tolerance=0.1)(lambda x: lax.cumlogsumexp(x, 0))
row("floor", beliefs=(X,))(jnp.floor)
row("ceil", beliefs=(X,))(lambda x: jnp.ceil(0.3 * x))
row("round", beliefs=(X,))(lambda x: jnp.round(3.0 * x))
row("round", "stop_gradient", beliefs=(X,))(lambda x: x + lax.stop_gradient(jnp.round(x) - x))

# Look-ups whose place is uncertain ----------------------------------------------------------------
TABLE = jnp.sin(jnp.arange(40.0))
row("gather", "floor", beliefs=(X,), tolerance=0.02)(
    lambda x: look_up(jnp.clip(4.0 * x + 20.0, 0.0, 38.0))
)

row("gather", "floor", beliefs=(NEAR, VALUES))(
    lambda x, values: x - jnp.floor(x) + values[jnp.floor(x).astype(jnp.int32)]
)
row("gather", "argmax", beliefs=(WELL_APART, Y))(
    lambda x, y: jnp.take_along_axis(y, jnp.argmax(x, axis=1)[:, None], axis=1)
)


@row("ge", "slice", "concatenate", "pad", "rev", beliefs=(X,), tolerance=0.01)
def _(x):
    """Quadratic B-splines by the recursion of Cox and de Boor."""
    knots = jnp.linspace(-3.0, 3.0, 9)
    t, x = knots[None, None], x[..., None]
    basis = ((x >= t[..., :-1]) & (x < t[..., 1:])).astype(x.dtype)
    for k in (1, 2):
        rising = (x - t[..., : -k - 1]) / (t[..., k:-1] - t[..., : -k - 1]) * basis[..., :-1]
        falling = (t[..., k + 1 :] - x) / (t[..., k + 1 :] - t[..., 1:-k]) * basis[..., 1:]
        basis = rising + falling
    left, right = lax.split(basis, [2, 4], axis=2)
    return lax.pad(
        lax.rev(lax.concatenate([right, left], 2), (2,)), 0.0, [(0, 0, 0)] * 2 + [(1, 0, 0)]
    )


# Softmax and its relatives ------------------------------------------------------------------------
MASK = jnp.tril(jnp.ones((3, 4), bool))
row("div", "reduce_max", beliefs=(X,), tolerance=0.1)(
    lambda x: jax.nn.softmax(jnp.where(MASK, x, -jnp.inf))
)
row("div", "reduce_max", "select_n", beliefs=(X,), tolerance=0.1)(
    lambda x: jax.nn.softmax(x, where=MASK)
)
row("lt", "top_k", beliefs=(WELL_APART,), tolerance=0.1)(
    lambda x: jax.nn.softmax(jnp.where(x < lax.top_k(x, 2)[0][:, 1:], -jnp.inf, x))
)
row("reduce_max", beliefs=(X,), tolerance=0.1)(lambda x: jnp.where(MASK, x, -jnp.inf).max(1))
row("reduce_min", beliefs=(X,), tolerance=0.1)(lambda x: jnp.where(MASK, x, jnp.inf).min(1))
row("sub", "log", beliefs=(X,), tolerance=0.1)(jax.nn.log_softmax)
row("log", "reduce_sum", beliefs=(WIDE,), tolerance=0.1)(lambda x: jax.nn.logsumexp(x, axis=1))
row("log", "reduce_sum", beliefs=(WIDE,), tolerance=0.1)(
    lambda x: jnp.log(jnp.sum(jnp.exp(x), axis=1, keepdims=True, where=MASK))
)
row("is_finite", "log", beliefs=(X,), tolerance=0.1)(lambda x: jax.nn.logsumexp(x, axis=1))
row("div", "reduce_max", beliefs=(X,), tolerance=0.1)(softmax_by_hand)

# Univariate functions -----------------------------------------------------------------------------
for primitive, function in {
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "square": jnp.square,
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "clamp": lambda x: lax.clamp(-0.3, x, 0.4),
    "gt": lambda x: jnp.where(x > 0.3, x, 0.1),
    "ge": lambda x: jnp.where(x >= 0.3, 2.0 * x, x),
    "lt": lambda x: jnp.where(x < 0.3, 1.0, 0.0),
    "le": lambda x: jnp.where(x <= -0.1, jnp.tanh(x), x),
    "bessel_i0e": lax.bessel_i0e,
    "bessel_i1e": lax.bessel_i1e,
    "eq": lambda x: jnp.where(x == 0.3, 0.0, x),
    "ne": lambda x: jnp.where(x != x, 0.0, x),
    "and": lambda x: jnp.where((x > -0.5) & (x < 0.5), x, 0.0),
    "or": lambda x: jnp.where((x < -0.5) | (x > 0.5), x, 0.0),
    "not": lambda x: jnp.where(~(x < 0.1), x, 0.0),
    "xor": lambda x: jnp.where((x < -0.1) ^ (x < 0.4), x, 0.0),
}.items():
    row(primitive, beliefs=(X,))(function)

for primitive, function in {
    "log": jnp.log,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "cbrt": jnp.cbrt,
    "lgamma": lax.lgamma,
    "digamma": lax.digamma,
    "pow": lambda x: lax.pow(x, 1.7),
    "integer_pow": lambda x: lax.integer_pow(x, -1),
}.items():
    row(primitive, beliefs=(POSITIVE,), tolerance=0.02)(function)

# Control flow -------------------------------------------------------------------------------------
row("scan", beliefs=(X, Y))(lambda x, y: lax.scan(lambda c, r: (c + r, 2.0 * c), x[0], y))
row("while", beliefs=(X,))(
    lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, 0.5 * s[1] + 1.0), (0, x))[1]
)
row("cond", beliefs=(X, Y))(
    lambda x, y: lax.cond(CERTAIN.sum() > 100.0, lambda: x, lambda: jax.nn.relu(y))
)
row("remat2", "checkpoint", "remat", beliefs=(X,))(lambda x: jax.checkpoint(jnp.tanh)(x))


# The product with the slope is no Gaussian: variances are up to 14 % too large.
@row("ge", "select_n", beliefs=(X, Y), tolerance=0.08)
def _(x, slope):
    """PReLU."""
    return jnp.where(x >= 0, x, slope * x)


@row("lt", "sub", "select_n", beliefs=(X, Y), tolerance=0.02)
def _(x, y):
    y = lax.rev(y, (1,))  # a value: "local" draws it once, and weights wherever they are used
    return jnp.where(x < 0.5 * y, 2.0 * x - 1.0, y)


# Truth values of uncertain numbers, as numbers ----------------------------------------------------
row("broadcast_in_dim", "gt", "select_n", beliefs=(X, Y))(
    lambda x, y: jnp.where((x[:, :1] > 0.2) & (CERTAIN[:, :1] > -9.0), y, 0.5 * y - 1.0)
)
row("and", "gt", beliefs=(X, Y))(lambda x, y: jnp.where((x > 0.2) & (y > 0.1), 1.0, 0.0))
row("or", "lt", beliefs=(X, Y))(lambda x, y: ((x < 0.2) | (y > 0.1)).astype(x.dtype))
row("xor", "not", beliefs=(X, Y))(lambda x, y: (~((x < 0.2) ^ (y > 0.1))).astype(x.dtype))
row("eq", beliefs=(X, Y))(lambda x, y: jnp.where((x == 0.0) | (x == jnp.inf), 7.0, y))
row("gt", "convert_element_type", beliefs=(X, Y))(lambda x, y: (x > y).astype(x.dtype))
