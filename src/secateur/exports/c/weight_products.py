"""Products with weights in C: dense layers and convolutions, and the functions that follow them.

Weights are stored densely or sparsely, whichever is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from secateur.exports.c.expressions import (
    count_elements,
    format_number,
    row_major_strides,
)
from secateur.exports.c.step_fusion import FusedSteps
from secateur.exports.graph import Atom, Constant, ExportError, Node, Value

if TYPE_CHECKING:
    from secateur.exports.c.loop_code import LoopWriter, MemoryPlace

__all__ = ["StorageCosts", "Taps", "choose_storage", "compute_costs", "find_taps", "weight_bytes",
           "write_product"]  # fmt: skip

# Per product on a Cortex-M4F, from counting instructions (benchmarks/device.py).
_DENSE_INSTRUCTIONS, _SPARSE_INSTRUCTIONS, _SPARSE_ROW = 5.0, 8.0, 14.0
_LONGEST_GAP = 255


@dataclass(frozen=True, eq=False)
class Taps:
    """The elements that each output reads, relative to a base, and their weights.

    Attributes:
        offsets: Increasing offsets of all elements that a dense product reads, shape (taps,).
        weights: Weights of shape (outputs, taps).
        group: Number that is added to the offsets, by output.
    """

    offsets: np.ndarray
    weights: np.ndarray
    group: np.ndarray

    @property
    def contiguous(self) -> bool:
        """Whether the elements are contiguous."""
        offsets = self.offsets
        return bool(
            np.array_equal(offsets, np.arange(len(offsets)) + offsets[:1].sum())
            and offsets[:1].sum() == 0
            and not self.group.any()
        )

    def sparse(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return counts by output, gaps from one element to the next, and weights.

        A gap is the distance from the previous element, or from the base at the start of a row. A
        gap that is too long for a byte is split into several, with weight 0 in between.
        """
        counts, gaps, kept = [], [], []
        for row, shift in zip(self.weights, self.group, strict=True):
            before, number = 0, 0
            used = np.flatnonzero(row)
            places = self.offsets[used] + shift
            order = np.argsort(places, kind="stable")
            for place, weight in zip(places[order], row[used][order], strict=True):
                gap = int(place) - before
                while gap > _LONGEST_GAP:
                    gaps.append(_LONGEST_GAP)
                    kept.append(0)
                    gap -= _LONGEST_GAP
                    number += 1
                gaps.append(gap)
                kept.append(weight)
                number += 1
                before = int(place)
            counts.append(number)
        return np.array(counts, int), np.array(gaps, int), np.array(kept, self.weights.dtype)


@dataclass(frozen=True)
class StorageCosts:
    """The cost of a storage format.

    Attributes:
        bytes: Size of the constants.
        instructions: Approximate number of instructions per inference.
    """

    bytes: float
    instructions: float


def find_taps(node) -> Taps:
    """Return the elements that a `linear` or `conv` step reads, relative to a position's first."""
    weights = node.attributes["weights"]
    if node.op == "linear":
        return Taps(np.arange(weights.shape[1]), weights, np.zeros(len(weights), int))
    attributes = node.attributes
    channels, spatial = padded_shape(node)
    strides = np.array(row_major_strides(spatial))
    if attributes["channels_last"]:
        strides, channel_step = strides * channels, 1
    else:
        channel_step = count_elements(spatial)
    fan_in, window = weights.shape[1], weights.shape[2:]
    places = np.arange(fan_in).reshape(-1, *[1] * len(window)) * channel_step
    for axis, (n, gap) in enumerate(zip(window, attributes["dilation"], strict=True)):
        shape = [1] * (len(window) + 1)
        shape[axis + 1] = n
        places = places + np.arange(n).reshape(shape) * gap * int(strides[axis])
    per_group = len(weights) // attributes["groups"]
    group = np.arange(len(weights)) // per_group * fan_in * channel_step
    flat = places.ravel()
    order = np.argsort(flat, kind="stable")
    return Taps(flat[order], weights.reshape(len(weights), -1)[:, order], group)


def padded_shape(node) -> tuple[int, list[int]]:
    """Return the channels and the padded spatial size of a convolution's input."""
    x = node.inputs[0].shape
    last = node.attributes["channels_last"]
    channels, spatial = (x[-1], x[1:-1]) if last else (x[1], x[2:])
    padding = node.attributes["padding"]
    return channels, [n + a + b for n, (a, b) in zip(spatial, padding, strict=True)]


def compute_costs(taps: Taps, weight_bytes: int) -> dict[str, StorageCosts]:
    """Return the cost of each storage format."""
    outputs, inputs = taps.weights.shape
    counts, gaps, _ = taps.sparse()
    row = 1 if counts.max(initial=0) <= 255 else 2
    dense_offsets = 0 if taps.contiguous else 2 * inputs
    return {
        "dense": StorageCosts(
            weight_bytes * outputs * inputs + dense_offsets,
            (_DENSE_INSTRUCTIONS + (not taps.contiguous)) * outputs * inputs,
        ),
        "sparse": StorageCosts(
            (weight_bytes + 1) * len(gaps) + row * outputs,
            _SPARSE_INSTRUCTIONS * len(gaps) + _SPARSE_ROW * outputs,
        ),
    }


def choose_storage(taps: Taps, weight_bytes: int, optimise: str) -> str:
    """Return "dense" or "sparse", whichever is smaller or faster."""
    costs = compute_costs(taps, weight_bytes)
    measure = (lambda c: c.bytes) if optimise == "size" else (lambda c: c.instructions)
    return min(costs, key=lambda kind: measure(costs[kind]))


_BELOW_ALL = -float(np.finfo(np.float32).max)


def write_product(loops: LoopWriter, group: FusedSteps, output: Atom) -> None:
    """Write a product with weights, and the functions of its group, for every output."""
    node = group.producer or group.root
    base, free = _base(loops, node)
    target = loops.reserve(group.root.output, output)
    taps = find_taps(node)
    kind = choose_storage(taps, weight_bytes(node), loops.optimise)
    shape = f"{taps.weights.shape[0]} × {taps.weights.shape[1]}"
    loops.kernels.append((f"{node.op} {shape}", kind))
    left = np.count_nonzero(taps.weights)
    loops.code.comment(f"{node.op} {shape}, {left} weights, stored {kind}")
    lowest = _lowest(group, node)
    fits = kind == "sparse" and taps.sparse()[0].max(initial=0) <= 255 and node.op == "linear"
    whole = node.output.dtype.kind == "i"
    if fits and lowest is not None and loops.optimise == "size" and not whole:
        _shared(loops, node, taps, base, target, lowest)
    else:
        _inline(loops, group, node, taps, kind, base, target)
    free()


def _rounded(taps: Taps) -> bool:
    return taps.weights.dtype.kind == "i"


def _lowest(group: FusedSteps, node: Node) -> float | None:
    """Return the lower bound of results: 0 if only a relu follows; else None."""
    if group.producer is None:
        return _BELOW_ALL
    if len(group.nodes) == 1 and group.root.op == "max":
        constants = [a.number for a in group.root.inputs if isinstance(a, Constant)]
        if len(constants) == 1 and constants[0] is not None:
            return constants[0]
    return None


def _shared(
    loops: LoopWriter, node: Node, taps: Taps, base: MemoryPlace, target: MemoryPlace, lowest: float
) -> None:
    """Write a call of the function that all such products share."""
    table, code = loops.writer.table, loops.code
    counts, gaps, weights = taps.sparse()
    outputs = len(counts)
    bias = node.attributes["bias"]
    bias = np.zeros(outputs) if bias is None else bias
    offsets = table("float", [format_number(v) for v in bias])
    if _rounded(taps):
        both = np.stack([gaps, weights.astype(int) % 256], 1).ravel()
        stream = table("uint8_t", _with_counts(counts, both, 2))
        arguments = [stream, offsets, format_number(node.attributes["step"])]
        name = "sparse8"
    elif node.attributes.get("half"):
        halves = halved(weights if len(weights) else np.zeros(1))
        stream = table("uint8_t", _with_counts(counts, gaps, 1))
        arguments = [stream, table("uint16_t", halves), offsets]
        name = "sparse16"
    else:
        if not len(gaps):
            gaps, weights = np.zeros(1, int), np.zeros(1)
        arguments = [table("uint8_t", counts), table("uint8_t", gaps),
                     table("float", [format_number(v) for v in weights]), offsets]  # fmt: skip
        name = "sparse"
    positions, read, write, _ = _positions(node)
    with code.loops(positions) as at:
        start, end = base.at(at, read), target.at(at, write)
        call = loops.writer.call(
            name, f"&{start}", f"&{end}", str(outputs), *arguments, format_number(lowest)
        )
        code.line(f"{call};")


def _with_counts(counts: np.ndarray, codes: np.ndarray, each: int) -> list[int]:
    """Return, for every output, its number of weights followed by their codes."""
    stream: list[int] = []
    position = 0
    for count in counts.tolist():
        stream += [count, *codes[position : position + each * count].tolist()]
        position += each * count
    return stream


def halved(weights: np.ndarray) -> np.ndarray:
    """Return the upper 16 bits of floats whose lower bits are 0."""
    return weights.astype(np.float32).view(np.uint32) >> 16


def weight_bytes(node: Node) -> int:
    """Return the size of a stored weight."""
    if node.attributes["weights"].dtype.kind == "i":
        return 1
    return 2 if node.attributes.get("half") else 4


def _inline(
    loops: LoopWriter,
    group: FusedSteps,
    node: Node,
    taps: Taps,
    kind: str,
    base: MemoryPlace,
    target: MemoryPlace,
) -> None:
    """Write the product as inline loops."""
    code = loops.code
    whole = node.output.dtype.kind == "i"
    outputs = len(taps.weights)
    bias, step = node.attributes["bias"], node.attributes.get("step")
    half = bool(node.attributes.get("half"))
    names = _tables(loops, taps, kind, half)
    number = "*weight++"
    if half:
        number = loops.writer.call("from_bits", "(uint32_t)*weight++ << 16")
    elif step is not None:
        number = "(float)*weight++"
    zero = "0" if whole else "0.0f"
    offset = zero
    if bias is not None and np.any(bias):
        values = [str(int(v)) if whole else format_number(v) for v in bias]
        offset = f"{loops.writer.table('int32_t' if whole else 'float', values)}[o]"
    positions, read, write, channel = _positions(node)
    pointer = {"int8": "int8_t", "int16": "int16_t"}.get(node.inputs[0].dtype.name, "float")
    with code.loops(positions) as at:
        code.line(f"const {pointer} *const from = &{base.at(at, read)};")
        code.line(f"const {names['kind']} *weight = {names['weights']};")
        if kind == "sparse":
            code.line(f"const uint8_t *gap = {names['gaps']};")
        with code.block(f"for (int o = 0; o < {outputs}; ++o)"):
            start = offset if step is None else zero
            code.line(f"{'int32_t' if whole else 'float'} sum = {start};")
            _inner(code, taps, kind, names, pointer, number)
            if step is not None:
                code.line(f"sum = sum * {format_number(step)} + {offset};")
            place = target.at([*at, "o"], [*write, channel])
            if group.producer is None:
                loops.store(place, "sum", group.root.output)
            else:
                _epilogue(loops, group, [*at, "o"], [*write, channel], place)


def _epilogue(
    loops: LoopWriter, group: FusedSteps, names: list[str], strides: list[int], place: str
) -> None:
    assert group.producer is not None
    operands: dict[Atom, str] = {group.producer.output: "sum"}
    read = {a for node in group.nodes for a in node.inputs if isinstance(a, Value)}
    for leaf in read.intersection(group.leaves):
        operands[leaf] = loops.places[leaf].at(names, strides)
    loops.assign(group, operands, place, group.root.output)


def _base(loops: LoopWriter, node: Node) -> tuple[MemoryPlace, Callable[[], None]]:
    """Return the array that the product reads: its operand, padded if necessary."""
    (x,) = node.inputs
    if node.op == "linear" or not any(any(p) for p in node.attributes["padding"]):
        return loops.locate(x)[0], lambda: None
    if any(s != 1 for s in node.attributes["stretch"]):
        raise ExportError(f"a transposed convolution cannot be written in C ({node.where}).")
    padding = [(0, 0), *node.attributes["padding"]]
    padding.insert(len(padding) if node.attributes["channels_last"] else 1, (0, 0))
    if any(a < 0 or b < 0 for a, b in padding):
        raise ExportError(f"negative padding cannot be written in C ({node.where}).")
    size = count_elements([n + a + b for n, (a, b) in zip(x.shape, padding, strict=True)])
    place, free = loops.scratch(x.dtype, size)
    loops.padded(x, padding, 0.0, place)
    return place, free


def _positions(node: Node) -> tuple[list[int], list[int], list[int], int]:
    """Return the product's positions: sizes, strides for reading and writing, output stride."""
    out = node.output.shape
    if node.op == "linear":
        rows, inputs = count_elements(out[:-1]), node.attributes["weights"].shape[1]
        return [rows], [inputs], [out[-1]], 1
    if any(s != 1 for s in node.attributes["stretch"]):
        raise ExportError(f"a transposed convolution cannot be written in C ({node.where}).")
    if out[0] != 1:
        raise ExportError(f"a convolution of several rows at once ({node.where}).")
    channels, spatial = padded_shape(node)
    last = node.attributes["channels_last"]
    strides = row_major_strides(spatial)
    unit = channels if last else 1
    read = [s * k * unit for s, k in zip(strides, node.attributes["strides"], strict=True)]
    places = out[1:-1] if last else out[2:]
    channel = 1 if last else count_elements(places)
    write = [s * (out[-1] if last else 1) for s in row_major_strides(places)]
    return list(places), read, write, channel


def _tables(loops: LoopWriter, taps: Taps, kind: str, half: bool) -> dict[str, str]:
    """Declare the weights and the offsets of their inputs."""
    table = loops.writer.table
    weight_kind = "int8_t" if _rounded(taps) else "uint16_t" if half else "float"

    def declared(values: np.ndarray) -> str:
        if half:
            return table(weight_kind, halved(values))
        return table(weight_kind, values if _rounded(taps) else [format_number(v) for v in values])

    names = {"kind": weight_kind}
    if kind == "dense":
        names["weights"] = declared(taps.weights.ravel())
        if not taps.contiguous:
            if taps.offsets.max(initial=0) + taps.group.max(initial=0) > 65535:
                raise ExportError("a convolution reads more than 65 536 elements.")
            names["offsets"] = table("uint16_t", taps.offsets)
            if taps.group.any():
                names["group"] = f"{table('uint16_t', taps.group)}[o]"
        return names
    counts, gaps, weights = taps.sparse()
    small = counts.max(initial=0) <= 255
    names["counts"] = table("uint8_t" if small else "uint16_t", counts)
    # An empty array is not valid C; an unread element costs only its own size.
    if not len(gaps):
        gaps, weights = np.zeros(1, int), np.zeros(1, weights.dtype)
    names["gaps"] = table("uint8_t", gaps)
    names["weights"] = declared(weights)
    return names


def _inner(code, taps: Taps, kind: str, names: dict[str, str], pointer: str, number: str) -> None:
    code.line(f"const {pointer} *p = from{' + ' + names['group'] if 'group' in names else ''};")
    if kind == "sparse":
        with code.block(f"for (int k = {names['counts']}[o]; k != 0; --k)"):
            code.line("p += *gap++;")
            code.line(f"sum += {number} * *p;")
    elif taps.contiguous:
        with code.block(f"for (int k = 0; k < {taps.weights.shape[1]}; ++k)"):
            code.line(f"sum += {number} * *p++;")
    else:
        with code.block(f"for (int k = 0; k < {taps.weights.shape[1]}; ++k)"):
            code.line(f"sum += {number} * p[{names['offsets']}[k]];")
