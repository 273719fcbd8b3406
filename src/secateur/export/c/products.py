"""Products with weights in C: dense layers and convolutions, and the functions that follow them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from secateur.export.c.code import elements, row_major
from secateur.export.c.expressions import literal
from secateur.export.c.fusing import Group
from secateur.export.c.kernels import Taps, choose, padded_shape, taps_of
from secateur.export.graph import Atom, ExportError, Node, Value

if TYPE_CHECKING:
    from secateur.export.c.loops import Loops, Place

__all__ = ["write_product"]


def write_product(loops: Loops, group: Group, output: Atom) -> None:
    """Write a product with weights, and the functions of its group, for every output."""
    node = group.producer or group.root
    result = group.root.output
    whole = node.attributes["weights"].dtype.kind == "i"
    base, give_back = _base(loops, node)
    target = loops.reserve(result, output)
    taps = taps_of(node)
    kind = choose(taps, 1 if whole else 4, loops.optimise)
    outputs = len(taps.weights)
    shape = f"{outputs} × {taps.weights.shape[1]}"
    left = np.count_nonzero(taps.weights)
    loops.kernels.append((f"{node.op} {shape}", kind))
    loops.code.comment(f"{node.op} {shape}, {left} weights, stored {kind}")
    names = _tables(loops, taps, kind, node.attributes["bias"], whole)
    positions, read, write, channel = _positions(node)
    with loops.code.loops(positions) as at:
        start = base.at(at, read)
        pointer = _pointer_kind(node.inputs[0], whole)
        loops.code.line(f"const {pointer} *const from = &{start};")
        loops.code.line(f"const {names['weight_kind']} *weight = {names['weights']};")
        if kind == "sparse":
            loops.code.line(f"const uint8_t *gap = {names['gaps']};")
        with loops.code.block(f"for (int o = 0; o < {outputs}; ++o)"):
            accumulator = "int32_t" if whole else "float"
            loops.code.line(f"{accumulator} sum = {names['bias']};")
            _inner(loops, taps, kind, names, pointer, node)
            place = target.at([*at, "o"], [*write, channel])
            if group.producer is None:
                loops.store(place, "sum", result)
            else:
                _epilogue(loops, group, [*at, "o"], [*write, channel], place)
    give_back()


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
    from secateur.export.c.loops import KINDS

    place, give_back = loops.scratch(KINDS[x.dtype.name], size)
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


def _pointer_kind(atom: Atom, whole: bool) -> str:
    if not whole:
        return "float"
    return {"int8": "int8_t", "int16": "int16_t"}[atom.dtype.name]


def _tables(
    loops: Loops, taps: Taps, kind: str, bias: np.ndarray | None, whole: bool
) -> dict[str, str]:
    table = loops.writer.table
    weight_kind = "int8_t" if whole else "float"

    def numbers(values: np.ndarray) -> np.ndarray:
        return values if whole else np.array([literal(v) for v in values.ravel()])

    names = {"weight_kind": weight_kind}
    if bias is None or not np.any(bias):
        names["bias"] = "0" if whole else "0.0f"
    else:
        names["bias"] = f"{table('int32_t' if whole else 'float', numbers(bias))}[o]"
    if kind == "dense":
        names["weights"] = table(weight_kind, numbers(taps.weights.ravel()))
        if not taps.contiguous:
            names["offsets"] = table("uint16_t", taps.offsets)
            if taps.offsets.max(initial=0) + taps.group.max(initial=0) > 65535:
                raise ExportError("a convolution reads more than 65 536 elements.")
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
    names["weights"] = table(weight_kind, numbers(weights))
    return names


def _inner(
    loops: Loops, taps: Taps, kind: str, names: dict[str, str], pointer: str, node: Node
) -> None:
    code = loops.code
    code.line(f"const {pointer} *p = from{' + ' + names['group'] if 'group' in names else ''};")
    if kind == "sparse":
        with code.block(f"for (int k = {names['counts']}[o]; k != 0; --k)"):
            code.line("p += *gap++;")
            code.line("sum += *weight++ * *p;")
    elif taps.contiguous:
        with code.block(f"for (int k = 0; k < {taps.weights.shape[1]}; ++k)"):
            code.line("sum += *weight++ * *p++;")
    else:
        with code.block(f"for (int k = 0; k < {taps.weights.shape[1]}; ++k)"):
            code.line(f"sum += *weight++ * p[{names['offsets']}[k]];")
