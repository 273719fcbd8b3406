"""Two ready-made networks: dense layers for tables, a GRU for sequences.

A network is a small frozen specification that *is* its model function: call it with weights and
inputs. Equal specifications are equal functions, so they share compiled programs, and a file can
name the network whose weights it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["ACTIVATIONS", "Dense", "Gru"]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
}
_GATES = ("reset", "update", "candidate")


@dataclass(frozen=True)
class Dense:
    """A fully connected network, with an activation after every layer but the last.

        h_0 = x        h_l = activation(h_{l−1} W_l + b_l)        f = h_L W + b  (+ x V)

    Args:
        inputs: Number of columns of `x`, which has the shape (rows, inputs).
        hidden: Number of units of every hidden layer; empty for a linear model.
        outputs: Number of columns of the result, which has the shape (rows, outputs).
        activation: Name of the activation, one of `networks.ACTIVATIONS`.
        linear_path: Whether to add weights V from the inputs directly to the outputs (a skip
            connection), so that hidden units only need to model the nonlinear part.

    Example:
        >>> network = Dense(3, hidden=(20, 10), outputs=2, activation="tanh")
        >>> params = network.init(jax.random.key(0))
        >>> [layer["weights"].shape for layer in params["layers"]]
        [(3, 20), (20, 10), (10, 2)]
        >>> network(params, jnp.ones((5, 3))).shape
        (5, 2)
    """

    inputs: int
    hidden: tuple[int, ...] = (50,)
    outputs: int = 1
    activation: str = "relu"
    linear_path: bool = False

    def __post_init__(self) -> None:
        hidden = self.hidden if isinstance(self.hidden, tuple | list) else (self.hidden,)
        object.__setattr__(self, "hidden", tuple(_size("hidden", n) for n in hidden))
        for name in ("inputs", "outputs"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation={self.activation!r}. Supported: {', '.join(ACTIVATIONS)}."
            )
        if self.linear_path and not self.hidden:
            raise ValueError(
                "linear_path=True needs a hidden layer; a network without one is already linear."
            )

    def init(self, key: Array) -> dict[str, Any]:
        """Draw weights of variance 2/fan-in (He); biases are 0.

        Weights of a linear path have variance 1/inputs.

        Args:
            key: A JAX random key.
        """
        sizes = (self.inputs, *self.hidden, self.outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
        layers = [{"weights": _drawn(k, 2.0, i, o), "bias": jnp.zeros(o)} for k, i, o in shapes]
        if not self.linear_path:
            return {"layers": layers}
        own_key = jax.random.fold_in(key, len(layers))
        return {"layers": layers, "linear": _drawn(own_key, 1.0, self.inputs, self.outputs)}

    def __call__(self, params: Any, x: Any) -> Array:
        """Return the outputs for the rows of x."""
        activation = ACTIVATIONS[self.activation]
        *hidden, last = params["layers"]
        h = x
        for layer in hidden:
            h = activation(_affine(layer["weights"], layer["bias"], h))
        outputs = _affine(last["weights"], last["bias"], h)
        return outputs + x @ params["linear"] if self.linear_path else outputs


@dataclass(frozen=True)
class Gru:
    """One layer of gated recurrent units; the output is a linear function of the last state.

        r = σ(x W_r + h U_r + b_r)        z = σ(x W_z + h U_z + b_z)
        n = tanh(x W_n + (r ∘ h) U_n + b_n)        h ← (1 − z) ∘ n + z ∘ h        f = h W + b

    Args:
        inputs: Size of the last axis of `x`, which has the shape (rows, time, inputs). The number
            of time steps is arbitrary.
        units: Size of the state.
        outputs: Number of columns of the result, which has the shape (rows, outputs).

    Example:
        >>> network = Gru(2, units=8)
        >>> network(network.init(jax.random.key(0)), jnp.ones((5, 12, 2))).shape
        (5, 1)

    Reference: Cho et al. (2014), Learning phrase representations using RNN encoder–decoder.
    """

    inputs: int
    units: int = 16
    outputs: int = 1

    def __post_init__(self) -> None:
        for name in ("inputs", "units", "outputs"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))

    def init(self, key: Array) -> dict[str, Any]:
        """Draw weights of variance 1/fan-in; biases are 0.

        Args:
            key: A JAX random key.
        """
        *keys, last = jax.random.split(key, 2 * len(_GATES) + 1)
        pairs = zip(_GATES, keys[::2], keys[1::2], strict=True)
        gates = {
            name: {
                "inputs": _drawn(k1, 1.0, self.inputs, self.units),
                "state": _drawn(k2, 1.0, self.units, self.units),
                "bias": jnp.zeros(self.units),
            }
            for name, k1, k2 in pairs
        }
        weights = _drawn(last, 1.0, self.units, self.outputs)
        return {"gates": gates, "readout": {"weights": weights, "bias": jnp.zeros(self.outputs)}}

    def __call__(self, params: Any, x: Any) -> Array:
        """Return the outputs for the rows of x."""
        gates, readout = params["gates"], params["readout"]

        def before(name: str, state: Array, x: Array) -> Array:
            gate = gates[name]
            return _affine(gate["inputs"], gate["bias"], x) + state @ gate["state"]

        def step(state: Array, x: Array) -> tuple[Array, None]:
            reset = jax.nn.sigmoid(before("reset", state, x))
            update = jax.nn.sigmoid(before("update", state, x))
            new = jnp.tanh(before("candidate", reset * state, x))
            return (1 - update) * new + update * state, None

        x = jnp.swapaxes(x, 0, 1)  # time first
        dtype = jnp.result_type(x, readout["weights"])
        start = jnp.zeros((x.shape[1], self.units), dtype)
        state, _ = jax.lax.scan(step, start, x)
        return _affine(readout["weights"], readout["bias"], state)


def _affine(weights: Any, bias: Any, x: Any) -> Array:
    return x @ weights + bias[None]


def _drawn(key: Array, scale: float, inputs: int, outputs: int) -> Array:
    return jnp.sqrt(scale / inputs) * jax.random.normal(key, (inputs, outputs))


def _size(name: str, value: Any) -> int:
    """Check a number of units and convert it to a Python int, which a file can hold."""
    try:
        size = index(value)
    except TypeError:
        size = 0
    if size < 1 or isinstance(value, bool):
        raise ValueError(f"{name}={value!r}. Give whole numbers of at least 1.")
    return size
