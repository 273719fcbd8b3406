"""Random programs of a few primitives, for a property test: what they compute is up to a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ROWS, WIDTH = 3, 4

# All take and return arrays of shape (ROWS, WIDTH), so that JAX compiles each of them once.
UNARY: dict[str, Callable] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "exp": lambda x: jnp.exp(0.3 * x),
    "abs": jnp.abs,
    "square": lambda x: 0.3 * x * x,
    "log": lambda x: jnp.log(1.5 + jnp.abs(x)),
    "rsqrt": lambda x: lax.rsqrt(2.0 + x * x),
    "clamp": lambda x: jnp.clip(x, -0.5, 0.7),
    "round": lambda x: jnp.round(2.0 * x) / 2.0,
    "scale": lambda x: 0.7 * x - 0.2,
    "reverse": lambda x: x[:, ::-1],
    "roll": lambda x: jnp.roll(x, 1, axis=0),
    "reshape": lambda x: x.reshape(WIDTH, ROWS).T,
    "mask": lambda x: jnp.where(jnp.arange(WIDTH)[None] < 2, x, 0.1),
    "cumsum": lambda x: 0.5 * jnp.cumsum(x, axis=1),
    "cummax": lambda x: lax.cummax(x, 1),
    "sort": lambda x: jnp.sort(x, axis=1),
    "top": lambda x: jnp.broadcast_to(x.max(1, keepdims=True), x.shape),
    "mean": lambda x: x - x.mean(1, keepdims=True),
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": lambda x: x + jax.nn.logsumexp(x, axis=0)[None],
    "segments": lambda x: jax.ops.segment_sum(x, jnp.array([0, 2, 0]), ROWS),
    "fourier": lambda x: jnp.fft.irfft(jnp.fft.rfft(x)[:, :2], n=WIDTH),
    "scan": lambda x: lax.scan(lambda h, u: (0.5 * h + u, 0.5 * h + u), jnp.zeros(WIDTH), x)[1],
    "power": lambda x: lax.integer_pow(0.5 * x, 3),
}  # fmt: skip
BINARY: dict[str, Callable] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: 0.7 * (x - y),
    "mul": lambda x, y: x * y,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "join": lambda x, y: jnp.concatenate([x[:, :2], y[:, 2:]], axis=1),
    "gate": lambda x, y: jax.nn.sigmoid(x) * y,
    "choose": lambda x, y: jnp.where(x > 0.2, x, 0.5 * y),
}


def random_program(seed: int) -> tuple[Callable[[Any, Any], jax.Array], list[str]]:
    """A function of weights and an input, of 3 to 12 operations, and their names."""
    rng = np.random.default_rng(seed)
    steps: list[tuple[str, int, int]] = []
    for number in range(int(rng.integers(3, 13))):
        names = ["dot", *rng.choice(list(UNARY), 4), *rng.choice(list(BINARY), 2)]
        name = "dot" if number == 0 else str(rng.choice(names))
        # Mostly the last value, now and then an earlier one, but not the input: that is certain.
        one = max(min(number, 1), number - int(rng.integers(0, 2)))
        steps.append((name, one, int(rng.integers(0, number + 1))))

    def f(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        values = [x]
        for number, (name, one, other) in enumerate(steps):
            if name == "dot":
                value = values[one] @ weights[number % len(weights)]
            elif name in UNARY:
                value = UNARY[name](values[one])
            else:
                value = BINARY[name](values[one], values[other])
            values.append(value)
        return values[-1]

    return f, [name for name, _, _ in steps]
