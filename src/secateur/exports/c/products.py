"""Products with weights in C: dense layers and convolutions, and the functions that follow them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from secateur.exports.c.code import elements, row_major
from secateur.exports.c.expressions import literal
from secateur.exports.c.fusing import Group
from secateur.exports.c.kernels import Taps, choose, padded_shape, taps_of
from secateur.exports.graph import Atom, Constant, ExportError, Node, Value

if TYPE_CHECKING:
    from secateur.exports.c.loops import Loops, Place

__all__ = ["write_product"]

_BELOW_ALL = -float(np.finfo(np.float32).max)


def write_product(loops: Loops, group: Group, output: Atom) -> None:
    """Write a product with weights, and the functions of its group, for every output."""
    node = group.producer or group.root
    base, give_back = _base(loops, node)
    target = loops.reserve(group.root.output, output)
    taps = taps_of(node)
    kind = choose(taps, weight_bytes(node), loops.optimise)
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
    give_back()


def _rounded(taps: Taps) -> bool:
    return taps.weights.dtype.kind == "i"


def _lowest(group: Group, node: Node) -> float | None:
    """What results are not below: 0 if the only function that follows is a relu; else None."""
    if group.producer is None:
        return _BELOW_ALL
    if len(group.nodes) == 1 and group.root.op == "max":
        constants = [a.number for a in group.root.inputs if isinstance(a, Constant)]
        if len(constants) == 1 and constants[0] is not None:
            return constants[0]
    return None


def _shared(
    loops: Loops, node: Node, taps: Taps, base: Place, target: Place, lowest: float
) -> None:
    """By a function that all such products share."""
    table, code = loops.writer.table, loops.code
    counts, gaps, weights = taps.sparse()
    outputs = len(counts)
    bias = node.attributes["bias"]
    bias = np.zeros(outputs) if bias is None else bias
    offsets = table("float", [literal(v) for v in bias])
    if _rounded(taps):
        both = np.stack([gaps, weights.astype(int) % 256], 1).ravel()
        stream = table("uint8_t", _with_counts(counts, both, 2))
        arguments = [stream, offsets, literal(node.attributes["step"])]
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
                     table("float", [literal(v) for v in weights]), offsets]  # fmt: skip
        name = "sparse"
    positions, read, write, _ = _positions(node)
    with code.loops(positions) as at:
        start, end = base.at(at, read), target.at(at, write)
        call = loops.writer.call(
            name, f"&{start}", f"&{end}", str(outputs), *arguments, literal(lowest)
        )
        code.line(f"{call};")


def _with_counts(counts: np.ndarray, codes: np.ndarray, each: int) -> list[int]:
    """For every output how many weights it has, and then their codes."""
    stream: list[int] = []
    position = 0
    for count in counts.tolist():
        stream += [count, *codes[position : position + each * count].tolist()]
        position += each * count
    return stream


def halved(weights: np.ndarray) -> np.ndarray:
    """The upper 16 bits of floats whose lower ones are 0."""
    return weights.astype(np.float32).view(np.uint32) >> 16


def weight_bytes(node: Node) -> int:
    """How large a stored weight is."""
    if node.attributes["weights"].dtype.kind == "i":
        return 1
    return 2 if node.attributes.get("half") else 4


def _inline(
    loops: Loops, group: Group, node: Node, taps: Taps, kind: str, base: Place, target: Place
) -> None:
    """With loops of its own."""
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
        values = [str(int(v)) if whole else literal(v) for v in bias]
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
                code.line(f"sum = sum * {literal(step)} + {offset};")
            place = target.at([*at, "o"], [*write, channel])
            if group.producer is None:
                loops.store(place, "sum", group.root.output)
            else:
                _epilogue(loops, group, [*at, "o"], [*write, channel], place)


def _epilogue(loops: Loops, group: Group, names: list[str], strides: list[int], place: str) -> None:
    assert group.producer is not None
    operands: dict[Atom, str] = {group.producer.output: "sum"}
    read = {a for node in group.nodes for a in node.inputs if isinstance(a, Value)}
    for leaf in read.intersection(group.leaves):
        operands[leaf] = loops.places[leaf].at(names, strides)
    loops.assign(group, operands, place, group.root.output)


def _base(loops: Loops, node: Node) -> tuple[Place, Callable[[], None]]:
    """What the product reads: its operand, with the padding around it."""
    (x,) = node.inputs
    if node.op == "linear" or not any(any(p) for p in node.attributes["padding"]):
        return loops.locate(x)[0], lambda: None
    if any(s != 1 for s in node.attributes["stretch"]):
        raise ExportError(f"a transposed convolution cannot be written in C ({node.where}).")
    padding = [(0, 0), *node.attributes["padding"]]
    padding.insert(len(padding) if node.attributes["channels_last"] else 1, (0, 0))
    if any(a < 0 or b < 0 for a, b in padding):
        raise ExportError(f"negative padding cannot be written in C ({node.where}).")
    size = elements([n + a + b for n, (a, b) in zip(x.shape, padding, strict=True)])
    place, give_back = loops.scratch(x.dtype, size)
    loops.padded(x, padding, 0.0, place)
    return place, give_back


def _positions(node: Node) -> tuple[list[int], list[int], list[int], int]:
    """Where the product is taken: sizes, strides to read and to write, stride of the outputs."""
    out = node.output.shape
    if node.op == "linear":
        rows, inputs = elements(out[:-1]), node.attributes["weights"].shape[1]
        return [rows], [inputs], [out[-1]], 1
    if any(s != 1 for s in node.attributes["stretch"]):
        raise ExportError(f"a transposed convolution cannot be written in C ({node.where}).")
    if out[0] != 1:
        raise ExportError(f"a convolution of several rows at once ({node.where}).")
    channels, spatial = padded_shape(node)
    last = node.attributes["channels_last"]
    strides = row_major(spatial)
    unit = channels if last else 1
    read = [s * k * unit for s, k in zip(strides, node.attributes["strides"], strict=True)]
    places = out[1:-1] if last else out[2:]
    channel = 1 if last else elements(places)
    write = [s * (out[-1] if last else 1) for s in row_major(places)]
    return list(places), read, write, channel


def _tables(loops: Loops, taps: Taps, kind: str, half: bool) -> dict[str, str]:
    """Declare the weights, and where their inputs are."""
    table = loops.writer.table
    weight_kind = "int8_t" if _rounded(taps) else "uint16_t" if half else "float"

    def declared(values: np.ndarray) -> str:
        if half:
            return table(weight_kind, halved(values))
        return table(weight_kind, values if _rounded(taps) else [literal(v) for v in values])

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
    # An empty table is no C; one that is never read costs nothing but itself.
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
