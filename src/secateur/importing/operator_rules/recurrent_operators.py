"""GRU, LSTM and simple recurrent layers, and loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.importing.onnx_graph import OnnxError
from secateur.importing.operator_rules.directions import Directions
from secateur.importing.operator_rules.operator_table import (
    OperatorCall,
    is_known,
    operator,
    whole_numbers,
)

__all__ = ["GATES", "Gate", "list_directions", "split_gates"]

# The gates in the order in which ONNX stacks them.
GATES = {
    "GRU": ("update", "reset", "candidate"),
    "LSTM": ("input", "output", "forget", "cell"),
    "RNN": ("state",),
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu": lambda x: jnp.maximum(x, 0),
}
_DEFAULTS = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "RNN": ["Tanh"]}
_MOST_STEPS = 1000  # of a loop that is written out

# Weights of the input, of the state, bias, and (of a GRU's candidate) the bias inside the reset.
Gate = tuple[Any, Any, Any, Any]


def list_directions(attributes: dict[str, Any]) -> list[str]:
    """Return the directions of a recurrent layer.

    Raises:
        OnnxError: The attribute has a value that does not exist.
    """
    direction = attributes.get("direction", "forward")
    known = {
        "forward": ["forward"], "reverse": ["reverse"], "bidirectional": ["forward", "reverse"],
    }  # fmt: skip
    if direction not in known:
        raise OnnxError(f"direction={direction!r}. Supported: {', '.join(known)}.")
    return known[direction]


def split_gates(kind: str, before_reset: bool, w: Any, r: Any, bias: Any) -> list[dict[str, Gate]]:
    """Take stacked weights apart: for each direction the weights of each gate.

    The two biases of a gate act as their sum, which is kept; except for the candidate of a GRU that
    resets after the product with the state.

    Args:
        kind: "GRU", "LSTM" or "RNN".
        before_reset: Whether a GRU multiplies with the state before the reset.
        w: Weights of the inputs, of shape (directions, gates · units, inputs).
        r: Weights of the state, of shape (directions, gates · units, units).
        bias: Biases, of shape (directions, 2 · gates · units), or None.
    """
    units, gates = r.shape[2], GATES[kind]
    if w.shape[1] != units * len(gates) or r.shape[1] != w.shape[1]:
        raise OnnxError("its weights do not have the shapes of this layer.")
    directions = []
    for number in range(w.shape[0]):
        one = {}
        for place, gate in enumerate(gates):
            rows = slice(place * units, (place + 1) * units)
            bias_x = bias_h = None
            if bias is not None:
                both = bias[number]
                bias_x, bias_h = both[: len(gates) * units][rows], both[len(gates) * units :][rows]
                if not (kind == "GRU" and gate == "candidate" and before_reset):
                    bias_x, bias_h = bias_x + bias_h, None
            one[gate] = (w[number, rows], r[number, rows], bias_x, bias_h)
        directions.append(one)
    return directions


@operator("GRU", "LSTM", "RNN")
def _stacked(
    call: OperatorCall, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None,
    *states: Any,
) -> Any:  # fmt: skip
    """Evaluate a layer whose weights are not known from the file."""
    before_reset = bool(call.attribute("linear_before_reset", 0))
    gates = split_gates(call.node.kind, before_reset, w, r, bias)
    return _layer(call, call.node.kind, gates, x, lengths, states)


@operator("secateur.GRU", "secateur.LSTM", "secateur.RNN")
def _separate(call: OperatorCall, x: Any, lengths: Any, *operands: Any) -> Any:
    """Evaluate a layer whose gates are separate parameters; see `secateur.importing.weights`."""
    kind = call.node.kind.removeprefix("secateur.")
    count = call.attribute("states")
    states, flat = operands[:count], list(operands[count:])
    flat += [None] * (-len(flat) % (4 * len(GATES[kind])))
    gates: list[dict[str, Gate]] = []
    while flat:
        gates.append({gate: tuple(flat[4 * i : 4 * i + 4]) for i, gate in enumerate(GATES[kind])})
        del flat[: 4 * len(GATES[kind])]
    return _layer(call, kind, gates, x, lengths, states)


def _layer(
    call: OperatorCall, kind: str, gates: list[dict[str, Gate]], x: Any, lengths: Any,
    states: Sequence[Any],
) -> Any:  # fmt: skip
    if call.attribute("clip"):
        raise OnnxError("the attribute 'clip' is not supported.")
    by_row = call.attribute("layout", 0)
    x = jnp.asarray(x.stack() if isinstance(x, Directions) else x)
    x = x.swapaxes(0, 1) if by_row else x
    if lengths is not None and not (is_known(lengths) and np.all(lengths == x.shape[0])):
        raise OnnxError("sequences of different lengths are not supported.")
    names = list_directions(call.node.attributes)
    if len(names) != len(gates):
        raise OnnxError(f"there are weights of {len(gates)} directions, not {len(names)}.")
    functions = _find_functions(call, kind, len(names))
    states = [*states, None, None, None]
    peepholes = states[2] if kind == "LSTM" else None
    outputs, ends = [], []
    for number, name in enumerate(names):
        starts = []
        for state in states[: 2 if kind == "LSTM" else 1]:
            if state is not None:
                state = state.stack() if isinstance(state, Directions) else state
                state = state.swapaxes(0, 1) if by_row else state
                state = state[number]
            starts.append(state)
        step = _STEPS[kind](
            gates[number],
            functions[number],
            bool(call.attribute("linear_before_reset", 0)),
            None if peepholes is None else peepholes[number],
        )
        end, frames = _run(step, kind, gates[number], x, starts, name == "reverse")
        outputs.append(frames)
        ends.append(end)
    results = [Directions(outputs, 1)]
    results += [Directions([end[i] for end in ends], 0) for i in range(len(ends[0]))]
    if by_row:  # (rows, time, directions, units) and (rows, directions, units)
        return tuple(r.transpose((2, 0, 1, 3) if r.ndim == 4 else (1, 0, 2)) for r in results)
    return tuple(results)


def _find_functions(call: OperatorCall, kind: str, directions: int) -> list[list[Any]]:
    names = call.attribute("activations") or _DEFAULTS[kind] * directions
    each = len(_DEFAULTS[kind])
    if len(names) != each * directions or any(n.lower() not in _FUNCTIONS for n in names):
        raise OnnxError(f"activations={names}. Supported: Sigmoid, Tanh and Relu.")
    functions = [_FUNCTIONS[name.lower()] for name in names]
    return [functions[i * each : (i + 1) * each] for i in range(directions)]


def _run(
    step: Any, kind: str, gates: dict[str, Gate], x: Any, starts: Sequence[Any], reverse: bool
) -> tuple[tuple[Any, ...], Any]:
    """Return the last states and the outputs of all frames of one direction."""
    recurrent = next(iter(gates.values()))[1]
    dtype = jnp.result_type(x, recurrent)
    shape = (x.shape[1], recurrent.shape[1])
    carry = tuple(
        jnp.zeros(shape, dtype) if s is None or (is_known(s) and not np.any(s))
        else jnp.broadcast_to(jnp.asarray(s, dtype), shape)
        for s in starts
    )  # fmt: skip
    return jax.lax.scan(step, carry, x, reverse=reverse)


def _before(gate: Gate, x: Any, h: Any) -> Any:
    w, r, bias, _ = gate
    y = x @ w.T
    return (y if bias is None else y + bias[None]) + h @ r.T


def _gru_step(gates: dict[str, Gate], functions: Any, before_reset: bool, _: Any) -> Any:
    sigmoid, tanh = functions

    def step(carry: Any, x: Any) -> Any:
        (h,) = carry
        z = sigmoid(_before(gates["update"], x, h))
        r = sigmoid(_before(gates["reset"], x, h))
        w, recurrent, bias, inner = gates["candidate"]
        from_x = x @ w.T if bias is None else x @ w.T + bias[None]
        if before_reset:
            from_h = h @ recurrent.T
            from_h = r * (from_h if inner is None else from_h + inner[None])
        else:
            from_h = (r * h) @ recurrent.T
        h = (1 - z) * tanh(from_x + from_h) + z * h
        return (h,), h

    return step


def _lstm_step(gates: dict[str, Gate], functions: Any, _: bool, peepholes: Any) -> Any:
    sigmoid, tanh, last = functions
    peep_i = peep_o = peep_f = None
    if peepholes is not None:
        peep_i, peep_o, peep_f = jnp.split(jnp.asarray(peepholes), 3)

    def look(y: Any, peephole: Any, c: Any) -> Any:
        return y if peephole is None else y + peephole[None] * c

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        i = sigmoid(look(_before(gates["input"], x, h), peep_i, c))
        f = sigmoid(look(_before(gates["forget"], x, h), peep_f, c))
        c = f * c + i * tanh(_before(gates["cell"], x, h))
        o = sigmoid(look(_before(gates["output"], x, h), peep_o, c))
        h = o * last(c)
        return (h, c), h

    return step


def _rnn_step(gates: dict[str, Gate], functions: Any, _: bool, __: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        h = functions[0](_before(gates["state"], x, carry[0]))
        return (h,), h

    return step


_STEPS = {"GRU": _gru_step, "LSTM": _lstm_step, "RNN": _rnn_step}


# --- control flow ---------------------------------------------------------------------------------


@operator("If")
def _if(call: OperatorCall, condition: Any) -> Any:
    if not is_known(condition):
        raise OnnxError("which branch is taken depends on the values of the data.")
    branch = call.attribute("then_branch" if np.all(condition) else "else_branch")
    return tuple(call.run(branch, []))


@operator("Loop")
def _loop(call: OperatorCall, steps: Any, condition: Any, *carried: Any) -> Any:
    body = call.attribute("body")
    most = None if steps is None else whole_numbers(steps, "a number of steps")[0]
    going: Any = True if condition is None else condition
    state, rows, count = list(carried), [], 0
    while (most is None or count < most) and _is_going(going):
        if count >= _MOST_STEPS:
            raise OnnxError(f"a loop of more than {_MOST_STEPS} steps, or without an end.")
        going, *results = call.run(body, [np.asarray(count), np.asarray(True), *state])
        state, count = results[: len(state)], count + 1
        rows.append(results[len(state) :])
    stacked = [jnp.stack([jnp.asarray(r) for r in column]) for column in zip(*rows, strict=True)]
    if not rows and len(call.node.outputs) > len(state):
        raise OnnxError("a loop without steps whose results are stacked.")
    return (*state, *stacked)


def _is_going(condition: Any) -> bool:
    if not is_known(condition) and condition is not True:
        raise OnnxError("whether a loop goes on depends on the values of the data.")
    return bool(np.all(condition))
