"""Layers as ONNX operators: dense, convolutions, pooling, gated cells."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from secateur.exports.graph import Constant, ExportError, Node
from secateur.exports.onnx.gated_cells import GatedCell, recognise_cell

if TYPE_CHECKING:
    from secateur.exports.onnx.operators import OperatorWriter

__all__ = ["write_conv", "write_linear", "write_pool", "write_recurrent"]


def write_linear(writer: OperatorWriter, node: Node, x: str) -> str:
    """Write x Wᵀ + b: Gemm for rows, MatMul for more axes."""
    weights, bias = node.attributes["weights"], node.attributes["bias"]
    if len(node.inputs[0].shape) == 2:
        operands = [x, writer.array(weights.T, "weights")]
        if bias is not None:
            operands.append(writer.array(bias, "bias"))
        return writer.op("Gemm", operands)
    y = writer.op("MatMul", [x, writer.array(weights.T, "weights")])
    return y if bias is None else writer.op("Add", [y, writer.array(bias, "bias")])


def write_conv(writer: OperatorWriter, node: Node, x: str) -> str:
    """Write a convolution or, if the input is dilated, a transposed convolution."""
    attributes, weights = node.attributes, node.attributes["weights"]
    if any(s != 1 for s in attributes["stretch"]):
        return _transposed_conv(writer, node, x)
    pads = attributes["padding"]
    if any(p < 0 for edge in pads for p in edge):
        raise ExportError(f"a convolution with negative padding cannot be exported ({node.where}).")
    operands = [x, writer.array(weights, "weights")]
    if attributes["bias"] is not None:
        operands.append(writer.array(attributes["bias"], "bias"))
    return writer.op(
        "Conv", operands, kernel_shape=weights.shape[2:], strides=attributes["strides"],
        dilations=attributes["dilation"], group=attributes["groups"],
        pads=[a for a, _ in pads] + [b for _, b in pads],
    )  # fmt: skip


def _transposed_conv(writer: OperatorWriter, node: Node, x: str) -> str:
    """Write a convolution of a dilated input.

    It is the transpose of the convolution whose stride equals the dilation; the kernel is reversed,
    and padding beyond the kernel's reach is cut off.
    """
    attributes, weights = node.attributes, node.attributes["weights"]
    if any(s != 1 for s in attributes["strides"]):
        raise ExportError(
            f"a convolution with both input dilation and stride cannot be exported ({node.where})."
        )
    reach = [(n - 1) * d for n, d in zip(weights.shape[2:], attributes["dilation"], strict=True)]
    cuts = [(r - a, r - b) for r, (a, b) in zip(reach, attributes["padding"], strict=True)]
    if any(a < 0 or b < -s for (a, b), s in zip(cuts, attributes["stretch"], strict=True)):
        raise ExportError(
            f"a transposed convolution padded beyond its kernel cannot be exported ({node.where})."
        )
    groups = attributes["groups"]
    fan_in, per_group = weights.shape[1], len(weights) // groups
    turned = np.flip(weights, tuple(range(2, weights.ndim)))
    turned = turned.reshape(groups, per_group, fan_in, *weights.shape[2:]).swapaxes(1, 2)
    turned = turned.reshape(groups * fan_in, per_group, *weights.shape[2:])
    operands = [x, writer.array(turned, "weights")]
    if attributes["bias"] is not None:
        operands.append(writer.array(attributes["bias"], "bias"))
    return writer.op(
        "ConvTranspose", operands, kernel_shape=weights.shape[2:], strides=attributes["stretch"],
        dilations=attributes["dilation"], group=groups,
        pads=[a for a, _ in cuts] + [max(b, 0) for _, b in cuts],
        output_padding=[max(-b, 0) for _, b in cuts],
    )  # fmt: skip


def write_pool(writer: OperatorWriter, node: Node, x: str) -> str:
    """Write a maximum, mean or sum in windows; padding counts as −∞ or 0."""
    attributes = node.attributes
    window, strides, padding = (attributes[n] for n in ("window", "strides", "padding"))
    rank, spatial = len(window), slice(2, None)
    unmoved = all(window[a] == strides[a] == 1 and not any(padding[a]) for a in (0, 1))
    if rank < 3 or not unmoved:
        raise ExportError(
            f"pooling over rows, or over all other axes, cannot be exported ({node.where}). "
            "Supported: windows in space, for each row and channel."
        )
    size = window[spatial]
    options = {
        "kernel_shape": size,
        "strides": strides[spatial],
        "pads": [a for a, _ in padding[spatial]] + [b for _, b in padding[spatial]],
    }
    if attributes["kind"] == "max":
        return writer.op("MaxPool", [x], **options)
    mean = writer.op("AveragePool", [x], count_include_pad=1, **options)
    if attributes["kind"] == "mean":
        return mean
    return writer.op("Mul", [mean, writer.number(prod(size))])


def write_recurrent(writer: OperatorWriter, node: Node) -> list[str]:
    """Write a loop over time as a GRU or LSTM operator; returns a name for each of its results."""
    cell = recognise_cell(node)
    body, carried = node.attributes["body"], node.attributes["carried"]
    for result in body.outputs[carried:]:
        if result is not body.outputs[cell.hidden]:
            raise ExportError(
                f"a loop with results that are not its state cannot be exported ({node.where}). "
                "Supported: loops that return the state of every frame; apply the readout to all "
                "frames after the loop."
            )
    frames = [writer.whole(node.inputs[i]) for i in cell.inputs]
    shapes = [writer.shape(node.inputs[i]) for i in cell.inputs]
    x = frames[0] if len(frames) == 1 else writer.op("Concat", frames, axis=-1)
    time, *lead, _ = shapes[0]
    weights, bias_x = cell.weights, cell.bias_x
    if "projection" in node.attributes:
        first, offset = node.attributes["projection"]
        bias_x = bias_x + weights @ offset
        weights = weights @ first
    if len(lead) != 1:
        x = writer.op(
            "Reshape", [x, writer.whole_numbers([0, -1 if lead else 1, weights.shape[1]])]
        )
    operands = [
        x,
        writer.array(weights[None], "weights"),
        writer.array(cell.recurrent[None], "recurrent"),
        writer.array(np.concatenate([bias_x, cell.bias_h])[None], "bias"),
    ]
    operands += _initial_states(writer, node, cell, lead)
    options: dict[str, object] = {
        "hidden_size": cell.units,
        "direction": "reverse" if node.attributes["reverse"] else "forward",
    }
    if cell.kind == "GRU":
        options["linear_before_reset"] = int(cell.linear_before_reset)
    states = 2 if cell.kind == "LSTM" else 1
    sequence, *last = writer.op_with(cell.kind, operands, 1 + states, **options)
    results = []
    for place, value in enumerate(node.outputs):
        if place < carried:
            raw = last[0 if place == cell.hidden else 1]
            axis, shape = 0, (*lead, cell.units)
        else:
            raw, axis, shape = sequence, 1, (time, *lead, cell.units)
        if value not in writer.needed:
            results.append("")
            continue
        flat = writer.op("Squeeze", [raw, writer.whole_numbers([axis])])
        results.append(flat if len(lead) == 1 else writer.reshape(flat, shape))
    return results


def _initial_states(writer: OperatorWriter, node: Node, cell: GatedCell, lead: list) -> list[str]:
    """Return the names of the initial states; empty for 0, which is the default in ONNX."""
    initial = node.attributes["initial"]
    if not any(np.any(a) for a in initial):
        return []
    order = [cell.hidden, *([1 - cell.hidden] if cell.kind == "LSTM" else [])]
    names = [""]  # lengths of the sequences: all frames
    for place in order:
        start = Constant.of(initial[place])
        if len(lead) != 1 or start.array.shape[0] != 1:
            raise ExportError(
                f"an initial state that differs between rows cannot be exported ({node.where})."
            )
        row = np.broadcast_to(start.array, (1, cell.units))[None]
        target = writer.lengths((1, lead[0], cell.units))
        names.append(writer.op("Expand", [writer.array(row, "initial"), target]))
    return names
