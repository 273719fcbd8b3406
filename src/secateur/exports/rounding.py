"""Rounding of weights, and the choice of functions to tabulate, when a network is quantised.

The posterior determines how many bits a weight needs. Rounding to a step s adds the variance s²/12
to the variance σ² that the posterior has anyway. With

    noise = mean of (s²/12)/σ² over the remaining weights

the free energy rises by about half the noise per weight; a step of √12·σ is a noise of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secateur.exports.graph import ELEMENTWISE, Constant, Graph, Node, Value
from secateur.exports.sheet import TensorBits

__all__ = ["Lookups", "choose_bits", "find_lookups", "has_zero", "measure_bfloat16",
           "round_to_bfloat16"]  # fmt: skip

_LEAST_BITS, _MOST_BITS = 2, 8


def round_to_bfloat16(weights: np.ndarray) -> np.ndarray:
    """Return the nearest numbers whose float32 representation ends in 16 zero bits."""
    bits = weights.astype(np.float32).view(np.uint32).astype(np.uint64)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)


def measure_bfloat16(weights: np.ndarray, deviations: np.ndarray) -> TensorBits:
    """Return the rounding noise of keeping only the first 16 bits of every float."""
    known = (weights != 0) & (deviations > 0)
    gap = (round_to_bfloat16(weights) - weights)[known] / deviations[known]
    noise = float(np.mean(gap**2)) if known.any() else 0.0
    return TensorBits(int(np.count_nonzero(weights)), 16, 2.0**-7, noise)


def choose_bits(weights: np.ndarray, deviations: np.ndarray, most_noise: float) -> TensorBits:
    """Return the smallest number of bits whose rounding is small compared with the posterior.

    Args:
        weights: Weights of one product.
        deviations: Standard deviations of the posterior, 0 where a weight is certain.
        most_noise: Largest noise of rounding, as in `TensorBits`.
    """
    live = weights != 0
    if not live.any():
        return TensorBits(0, _LEAST_BITS, 1.0, 0.0)
    largest = float(np.max(np.abs(weights)))
    sure = (deviations <= 0) & live  # give no measure of acceptable rounding
    precision = np.mean(1 / deviations[live & ~sure] ** 2) if (live & ~sure).any() else np.inf
    for bits in range(_LEAST_BITS, _MOST_BITS + 1):
        step = largest / (2 ** (bits - 1) - 1)
        noise = float(step**2 / 12 * precision)
        if noise <= most_noise:
            break
    return TensorBits(int(live.sum()), bits, step, noise if np.isfinite(noise) else 0.0)


# --- functions of one value without integer arithmetic --------------------------------------------


@dataclass(frozen=True, eq=False)
class Lookups:
    """Functions of one value that become lookup tables.

    Attributes:
        looked_up: By result, the value that it is a function of, and the steps.
        inner: Results of steps that occur only inside such functions.
    """

    looked_up: dict[Value, tuple[Value, list[Node]]]
    inner: set[Value]


_OWN = {"tanh", "logistic", "add", "sub", "mul", "neg"}


def find_lookups(graph: Graph) -> Lookups:
    """Find chains of elementwise steps that form one function of one value and need a table."""
    users = graph.users()
    results = set(graph.results())
    functions: dict[Value, tuple[Value, list[Node]]] = {}
    for node in graph.nodes:
        if node.op not in ELEMENTWISE:
            continue
        if any(isinstance(a, Constant) and a.number is None for a in node.inputs):
            continue
        values = [a for a in node.inputs if isinstance(a, Value)]
        parts = [functions.get(v, (v, [])) for v in values]
        roots = {root for root, _ in parts}
        if len(roots) != 1 or any(v.shape != node.output.shape for v in values):
            continue
        steps = [s for _, steps in parts for s in steps]
        functions[node.output] = (parts[0][0], [*dict.fromkeys(steps), node])
    looked_up, inner = {}, set()
    for value, (root, steps) in functions.items():
        readers = users.get(value, [])
        outside = value in results or any(
            r.output not in functions or functions[r.output][0] is not root for r in readers
        )
        simple = len(steps) == 1 and (steps[0].op in _OWN or _is_relu(steps[0]))
        if not outside or simple or root is graph.inputs[0] or root.dtype.kind != "f":
            continue
        last = steps[-1]
        affine = len(steps) > 1 and last.op in ("add", "sub", "neg")
        if affine and _read_outside(last, functions, users, root):
            continue  # 1 − z for a gate z that is computed anyway
        looked_up[value] = (root, steps)
        inner |= {s.output for s in steps[:-1]}
    needed = {v for v in inner if _needed_elsewhere(v, looked_up, inner, users, results)}
    return Lookups(looked_up, inner - needed - set(looked_up))


def _is_relu(node: Node) -> bool:
    return node.op == "max" and has_zero(node)


def _read_outside(node: Node, functions: dict, users: dict, root: Value) -> bool:
    """Whether the operand of an affine step is also read elsewhere, so computed anyway."""
    value = next(a for a in node.inputs if isinstance(a, Value))
    return any(
        r is not node and (r.output not in functions or functions[r.output][0] is not root)
        for r in users.get(value, [])
    )


def _needed_elsewhere(
    value: Value, looked_up: dict, inner: set[Value], users: dict, results: set
) -> bool:
    if value in results:
        return True
    return any(r.output not in inner and r.output not in looked_up for r in users.get(value, []))


def has_zero(node: Node) -> bool:
    """Whether an operand is 0: a relu, if it is a maximum."""
    return any(isinstance(a, Constant) and a.number == 0 for a in node.inputs)
