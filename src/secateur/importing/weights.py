"""Which arrays of a file are parameters, and in what form.

Everything here changes a graph in place and keeps what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from secateur.importing.imported_function import evaluate_node
from secateur.importing.onnx_graph import OnnxError, OnnxGraph, OnnxNode
from secateur.importing.operator_rules import OperatorCall
from secateur.importing.operator_rules.recurrent_operators import (
    GATES,
    list_directions,
    split_gates,
)

__all__ = ["Sources", "find_weights", "fold_constants", "fold_normalisation", "separate_gates"]

# Weights under one name that only change their form keep the name.
_SAME_WEIGHTS = {
    "Reshape", "Squeeze", "Unsqueeze", "Identity", "Cast", "DequantizeLinear", "Flatten",
}  # fmt: skip
_LARGEST_AHEAD = 2**26
_MASKING = 1e6  # what is added to scores that shall not count

Sources = dict[str, tuple[str, ...]]


def fold_constants(graph: OnnxGraph, sources: Sources | None = None) -> Sources:
    """Evaluate everything that depends on the file alone, such as weights stored in 8 bits.

    Args:
        graph: The graph.
        sources: Known sources of arrays.

    Returns:
        For every array of floating-point numbers the arrays of the file that it is made of.
    """
    known = sources or {}
    sources = {n: known.get(n, (n,)) for n, array in graph.arrays.items() if _is_data(array)}
    kept = []
    for node in graph.nodes:
        operands = [graph.arrays.get(name) if name else None for name in node.inputs]
        if not _is_ahead(node, operands):
            kept.append(node)
            continue
        while operands and operands[-1] is None:
            operands.pop()
        results = evaluate_node(OperatorCall(node, lambda graph, inputs: []), operands)
        origins = dict.fromkeys(s for name in node.inputs for s in sources.get(name, ()))
        for name, result in zip(node.outputs, results, strict=False):
            if name:
                graph.arrays[name] = np.asarray(result)
                sources[name] = tuple(origins)
        _keep_name(graph, node)
    graph.nodes = kept
    graph.drop_unread()
    return sources


def _is_data(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and array.size > 1


def _is_ahead(node: OnnxNode, operands: list[Any]) -> bool:
    """Whether a node is computed ahead of time.

    A transposed weight stays what it is in the file; the function transposes it.
    """
    is_known = all(o is not None for o, name in zip(operands, node.inputs, strict=True) if name)
    if not is_known or node.kind in GATES or node.kind in ("Loop", "If"):
        return False
    if not node.inputs:
        return node.kind == "Constant"
    if node.kind == "Transpose" and _is_data(operands[0]):
        return False
    return sum(o.size for o in operands if o is not None) <= _LARGEST_AHEAD


def _keep_name(graph: OnnxGraph, node: OnnxNode) -> None:
    """Give the result of a change of form the name of its operand, if nothing else reads that."""
    old, new = (node.inputs or ("",))[0], node.outputs[0]
    if node.kind not in _SAME_WEIGHTS or graph.arrays[new].dtype.kind != "f":
        return
    readers = graph.readers()
    others = [n for n in readers.get(old, []) if n is not node]
    if others or any(v is None for v in readers.get(new, [])):
        return
    if any(True for reader in readers.get(new, []) for _ in reader.graphs()):
        return
    graph.arrays[old] = graph.arrays.pop(new)
    for reader in readers.get(new, []):
        reader.inputs = tuple(old if name == new else name for name in reader.inputs)


# --- batch normalisation --------------------------------------------------------------------------

# The axis of the weights that counts output channels.
_CHANNELS = {"Conv": 0, "ConvTranspose": 1, "Gemm": None, "MatMul": 1}


def fold_normalisation(graph: OnnxGraph) -> dict[str, np.ndarray]:
    """Fold BatchNormalization into the layer before it, where nothing else reads that.

    Returns:
        For arrays that are folded into others, the values with which the original layers compute
        the same as before, given the new weights.
    """
    neutral: dict[str, np.ndarray] = {}
    for node in list(graph.nodes):
        if node.kind == "BatchNormalization":
            neutral |= _fold_one(graph, node)
    graph.drop_unread()
    return neutral


def _fold_one(graph: OnnxGraph, node: OnnxNode) -> dict[str, np.ndarray]:
    arrays, makers, readers = graph.arrays, graph.makers(), graph.readers()
    layer = makers.get(node.inputs[0])
    names = node.inputs[1:5]
    if layer is None or len(node.inputs) != 5 or any(n not in arrays for n in names):
        return {}
    if node.attributes.get("training_mode") or node.version < 7:
        return {}
    add = None
    if layer.kind == "Add" and any(n in makers for n in layer.inputs):  # MatMul, then its bias
        add, layer = layer, makers[next(n for n in layer.inputs if n in makers)]
        if layer.kind != "MatMul":
            return {}
    if layer.kind not in _CHANNELS or len(layer.inputs) < 2 or layer.inputs[1] not in arrays:
        return {}
    between = [layer.outputs[0], *([add.outputs[0]] if add else [])]
    weight = layer.inputs[1]
    if any(readers[n] != [m] for n, m in zip(between, [add or node, node], strict=False)):
        return {}
    if len(readers[weight]) > 1 or (layer.attributes.get("group", 1) != 1 and layer.kind != "Conv"):
        return {}
    scale, shift, mean, variance = (arrays[n].astype(np.float64) for n in names)
    epsilon = node.attributes.get("epsilon", 1e-5)
    factor = scale / np.sqrt(variance + epsilon)
    bias_name = _bias_of(graph, layer, add)
    if bias_name is None or (bias_name and len(readers[bias_name]) > 1):
        return {}
    if layer.attributes.get("alpha", 1.0) != 1 or layer.attributes.get("beta", 1.0) != 1:
        return {}
    axis = _CHANNELS[layer.kind]
    if axis is None:
        axis = 0 if layer.attributes.get("transB") else 1
    w = arrays[weight]
    if w.shape[axis] != len(factor):
        return {}
    arrays[weight] = (w * factor.reshape([-1 if a == axis else 1 for a in range(w.ndim)])).astype(
        w.dtype
    )
    old = arrays[bias_name].astype(np.float64).ravel() if bias_name else np.zeros(len(factor))
    new = ((old - mean) * factor + shift).astype(w.dtype)
    target = node.inputs[2]  # the bias of the normalisation takes the whole
    if len(readers[target]) > 1:
        return {}
    arrays[target] = new
    if add is not None:
        add.inputs = tuple(target if n == bias_name else n for n in add.inputs)
    else:
        layer.inputs = (*layer.inputs[:2], target)
    _bypass(graph, node, add or layer)
    values = {
        names[0]: np.full_like(scale, np.sqrt(1 + epsilon)),
        names[2]: np.zeros_like(mean),
        names[3]: np.ones_like(variance),
    }
    if bias_name:
        values[bias_name] = np.zeros(len(factor))
    return {name: v.astype(w.dtype) for name, v in values.items()}


def _bias_of(graph: OnnxGraph, layer: OnnxNode, add: OnnxNode | None) -> str | None:
    """Return the name of a layer's bias; "" for none; None if it is not known."""
    if add is not None:
        name = next((n for n in add.inputs if n in graph.arrays), None)
        return name if name and graph.arrays[name].ndim == 1 else None
    if len(layer.inputs) < 3 or not layer.inputs[2]:
        return "" if layer.kind != "MatMul" else None
    return layer.inputs[2] if layer.inputs[2] in graph.arrays else None


def _bypass(graph: OnnxGraph, node: OnnxNode, before: OnnxNode) -> None:
    """Remove a node: the one before it computes its result."""
    before.outputs = (node.outputs[0], *before.outputs[1:])
    graph.nodes.remove(node)


# --- recurrent layers -----------------------------------------------------------------------------


def separate_gates(graph: OnnxGraph, sources: Sources) -> None:
    """Split the stacked weights of recurrent layers into an array for each gate.

    Args:
        graph: The graph.
        sources: What each array is made of, for the names of its parts.

    Raises:
        OnnxError: The weights do not have the shapes of the layer.
    """
    for node in graph.nodes:
        if node.kind not in GATES:
            continue
        operands = [*node.inputs, *[""] * (8 - len(node.inputs))]
        x, w, r, bias, lengths, *states = operands
        if any(name and name not in graph.arrays for name in (w, r, bias)):
            continue
        before_reset = bool(node.attributes.get("linear_before_reset", 0))
        names = list_directions(node.attributes)
        try:
            gates = split_gates(
                node.kind, before_reset, graph.arrays[w], graph.arrays[r], graph.arrays.get(bias)
            )
        except (IndexError, ValueError) as error:
            raise OnnxError(f"{node}: {error}") from error
        if len(gates) != len(names):
            raise OnnxError(f"{node}: there are weights of {len(gates)} directions.")
        flat: list[str] = []
        stems = _name_parts((w, r, bias), sources, names)
        for own_stems, one in zip(stems, gates, strict=True):
            for gate, parts in one.items():
                flat += [
                    _keep(graph, f"{stem}/{gate}", part)
                    for stem, part in zip(own_stems, parts, strict=True)
                ]
        while states and not states[-1]:
            states.pop()
        node.inputs = (x, lengths, *states, *flat)
        node.attributes = {**node.attributes, "states": len(states)}
        node.kind = f"secateur.{node.kind}"
    graph.drop_unread()


def _name_parts(
    stacked: Sequence[str], sources: Sources, directions: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return, for each direction, names for what its W, R, B and inner bias are made of.

    Exporters stack the arrays of a framework; the parts have these arrays' names.
    """
    w, r, bias = stacked
    count = len(directions)
    own = [sources.get(name, ()) for name in stacked]
    names = []
    for number, direction in enumerate(directions):
        suffix = f"/{direction}" if count > 1 else ""
        one = [f"{name}{suffix}" for name in (w, r, bias)]
        one.append(f"{bias}/inner{suffix}")
        for place in (0, 1):
            if len(own[place]) == count:
                one[place] = own[place][number]
        if len(own[2]) == 2 * count:
            one[2:] = own[2][2 * number : 2 * number + 2]
        if count > 1 and any(n in stacked for n in one):  # one array of the file for both
            one = [f"{n}{suffix}" if n in stacked else n for n in one]
        names.append(tuple(one))
    return names


def _keep(graph: OnnxGraph, name: str, array: Any) -> str:
    if array is None:
        return ""
    graph.arrays[name] = np.ascontiguousarray(array)
    return name


# --- what is a weight -----------------------------------------------------------------------------

# The operands that are weights, by operator.
_PLACES = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (0, 1, 2), "MatMul": (0, 1), "PRelu": (1,),
    "LayerNormalization": (1, 2), "InstanceNormalization": (1, 2), "GroupNormalization": (1, 2),
    "RMSNormalization": (1,), "BatchNormalization": (1, 2), "Einsum": (0, 1), "Gather": (0,),
}  # fmt: skip


def find_weights(graph: OnnxGraph) -> tuple[str, ...]:
    """Return the names of the arrays that are parameters.

    These are arrays of floating-point numbers that a layer reads as its weights, its bias or its
    scale, or that are added to what was computed with weights, or multiply it. All others are
    certain: shapes, tables, masks, means and deviations of inputs.
    """
    weights: dict[str, None] = {}
    after: set[str] = set()  # what depends on the data and on weights
    forms: dict[str, str] = {}  # weights that are transposed first
    for node in graph.nodes:
        if node.kind == "Transpose" and node.inputs[0] in graph.arrays:
            forms[node.outputs[0]] = node.inputs[0]
            continue
        if node.kind.startswith("secateur."):
            names = list(node.inputs[2 + node.attributes["states"] :])
        else:
            names = [node.inputs[i] for i in _PLACES.get(node.kind, ()) if i < len(node.inputs)]
            if node.kind == "InstanceNormalization" and _is_neutral(graph, names):
                names = []  # PyTorch's GroupNorm, whose own scale and bias follow
        if node.kind in ("Add", "Sub", "Mul") and any(n in after for n in node.inputs):
            names = list(node.inputs)
        if node.kind == "Mul":
            names = [n for n in names if n in graph.arrays and not _is_mask(graph.arrays[n])]
        names = [forms.get(n, n) for n in names]
        own = [n for n in names if n in graph.arrays and _may_be_weight(graph.arrays[n])]
        weights.update(dict.fromkeys(own))
        if own or any(n in after for n in node.inputs):
            after.update(node.outputs)
    return tuple(weights)


def _may_be_weight(array: np.ndarray) -> bool:
    if array.dtype.kind != "f" or array.size <= 1:
        return False
    return bool(np.all(np.abs(array.astype(np.float32)) < _MASKING))  # too large for float16


def _is_neutral(graph: OnnxGraph, names: Sequence[str]) -> bool:
    """Whether a scale and a bias change nothing."""
    pairs = zip(names, (1, 0), strict=False)
    return all(n in graph.arrays and bool(np.all(graph.arrays[n] == v)) for n, v in pairs)


def _is_mask(array: np.ndarray) -> bool:
    return bool(np.all((array == 0) | (array == 1)))
