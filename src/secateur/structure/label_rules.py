"""How labels pass through each primitive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from secateur.equations import Equation, Interpreter, RuleTable, primitives
from secateur.equations.primitives import Kind, Policy
from secateur.structure.labels import ANY, DATA, AxisLabels, Labels, Partition


class LabelRules(Interpreter):
    """The part of `UnitSearch` that passes labels through single equations.

    Attributes:
        partition: Partition of the labels, for the whole function.
    """

    partition: Partition
    rules = RuleTable()
    policies = primitives.policies(
        Kind.CONTROL_FLOW, Kind.COPY, Kind.CONVERSION, Kind.ARITHMETIC, Kind.SMOOTH, Kind.KINKED,
        Kind.STEP, Kind.COMPARISON, Kind.LOGIC, Kind.CHOICE, Kind.SPECIAL, Kind.MOVE, Kind.JOIN,
        Kind.LOOKUP, Kind.UPDATE, Kind.SEGMENT, Kind.CONTRACTION, Kind.ADDITION, Kind.REDUCTION,
        Kind.LOGICAL_REDUCTION, Kind.ARGUMENT, Kind.WINDOW, Kind.CUMULATIVE, Kind.ORDER,
        Kind.COMPLEX, Kind.GENERATOR, Kind.RANDOM, otherwise=Policy.FREEZE,
    )  # fmt: skip

    @classmethod
    def knows(cls, name: str) -> bool:
        """Whether a primitive freezes no more axes than necessary."""
        return cls.has_rule(name) or primitives.KINDS.get(name) is Kind.MIXTURE

    def apply_default(self, equation: Equation, operands: list[AxisLabels]) -> list[AxisLabels]:
        """Let an equation that has no rule mix everything, so that no unit is left."""
        for value in operands:
            for labels in value.labels:
                self.partition.freeze(labels)
        return [
            AxisLabels(tuple(np.full(n, DATA) for n in slot.shape), (False,) * len(slot.shape))
            for slot in equation.outputs
        ]


_declare = LabelRules.rules.declare


@_declare(*primitives.SIDE_BY_SIDE)
def _side_by_side(
    search: LabelRules, equation: Equation, values: list[AxisLabels]
) -> list[AxisLabels]:
    return values


@_declare(*(primitives.ELEMENTWISE - primitives.SIDE_BY_SIDE), "complex", "real", "imag", "conj")
def _elementwise(
    search: LabelRules, equation: Equation, values: list[AxisLabels]
) -> list[AxisLabels]:
    """Elements meet one by one."""
    wide = [v for v in values if v.labels]
    if not wide:
        return [AxisLabels((), ())]
    labels = list(wide[0].labels)
    for value in wide[1:]:
        labels = [search.partition.unify(a, b) for a, b in zip(labels, value.labels, strict=True)]
    vanishes = tuple(_zero(equation.name, values, i) for i in range(len(labels)))
    return [AxisLabels(tuple(labels), vanishes)]


def _zero(name: str, values: list[AxisLabels], axis: int) -> bool:
    """Whether the result is 0 along an axis where operands are."""
    zeros = [v.zero or bool(v.labels and v.vanishes[axis]) for v in values]
    if name == "mul":
        return any(zeros)
    if name == "div":
        return zeros[0]
    if name == "select_n":
        return all(zeros[1:])
    if name in primitives.ZERO_IF_ALL_ARE:
        return all(zeros)
    return name in primitives.KEEPS_ZERO and zeros[0]


@_declare("transpose")
def _transpose(
    search: LabelRules, equation: Equation, values: list[AxisLabels]
) -> list[AxisLabels]:
    (x,) = values
    order = equation.params["permutation"]
    return [AxisLabels(tuple(x.labels[i] for i in order), tuple(x.vanishes[i] for i in order))]


@_declare("squeeze")
def _squeeze(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    (x,) = values
    kept = [i for i in range(len(x.labels)) if i not in equation.params["dimensions"]]
    return [AxisLabels(tuple(x.labels[i] for i in kept), tuple(x.vanishes[i] for i in kept))]


@_declare("broadcast_in_dim")
def _broadcast(
    search: LabelRules, equation: Equation, values: list[AxisLabels]
) -> list[AxisLabels]:
    x, *_ = values
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    labels: list[Labels] = [np.full(n, ANY) for n in shape]
    vanishes = [x.zero] * len(shape)
    for axis, place in enumerate(places):
        if len(x.labels[axis]) == shape[place]:
            labels[place], vanishes[place] = x.labels[axis], x.vanishes[axis]
        elif x.labels[axis][0] == DATA:
            labels[place] = np.full(shape[place], DATA)
    return [AxisLabels(tuple(labels), tuple(vanishes), x.zero)]


@_declare("expand_dims")
def _expand(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    x, *_ = values
    labels, vanishes = list(x.labels), list(x.vanishes)
    for axis in sorted(equation.params["dimensions"]):
        labels.insert(axis, np.full(1, ANY))
        vanishes.insert(axis, x.zero)
    return [AxisLabels(tuple(labels), tuple(vanishes), x.zero)]


@_declare("reshape")
def _reshape(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    x, *_ = values
    after = equation.params["new_sizes"]
    labels: list[Labels] = [np.full(n, ANY) for n in after]
    vanishes = [x.zero] * len(after)
    if 0 in x.shape:
        return [AxisLabels(tuple(labels), tuple(vanishes), x.zero)]
    for old, new in _blocks(x.shape, after):
        if len(old) == len(new) == 1:
            labels[new[0]], vanishes[new[0]] = x.labels[old[0]], x.vanishes[old[0]]
        elif len(new) == 1:
            labels[new[0]], vanishes[new[0]] = _merged(search.partition, x, old)
        else:
            parts = [x.labels[a] for a in old]
            kind = ANY if all(np.all(p == ANY) for p in parts) else DATA
            for part in parts:
                search.partition.freeze(part)
            for axis in new:
                labels[axis] = np.full(after[axis], kind)
    return [AxisLabels(tuple(labels), tuple(vanishes), x.zero)]


def _merged(partition: Partition, x: AxisLabels, axes: list[int]) -> tuple[Labels, bool]:
    """Several axes as one: at most one of them may distinguish units."""
    distinguishing = [a for a in axes if not partition.is_free(x.labels[a])]
    shape = [len(x.labels[a]) for a in axes]
    if len(distinguishing) == 1:
        (axis,) = distinguishing
        column = [-1 if a == axis else 1 for a in axes]
        spread = np.broadcast_to(x.labels[axis].reshape(column), shape)
        return spread.ravel().copy(), x.vanishes[axis]
    roots = {partition.root(i) for a in distinguishing for i in x.labels[a].tolist() if i >= 0}
    if distinguishing and roots <= {partition.root(i) for i in partition.inputs}:
        # Axes of the data that nothing has used yet: every element is an input of its own.
        fresh = partition.fresh(int(np.prod(shape)))
        partition.inputs.update(int(i) for i in fresh if i >= 0)
        for a in distinguishing:
            partition.freeze(x.labels[a])
        return fresh, False
    for a in distinguishing:
        partition.freeze(x.labels[a])
    every = np.concatenate([x.labels[a] for a in axes]) if axes else np.full(1, ANY)
    kind = ANY if np.all(every == ANY) else DATA
    return np.full(int(np.prod(shape)), kind), False


def _blocks(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Runs of axes with equal products, without axes of length one."""
    old = [i for i, n in enumerate(before) if n != 1]
    new = [j for j, n in enumerate(after) if n != 1]
    blocks = []
    while old and new:
        some, others = [old.pop(0)], [new.pop(0)]
        size, other_size = before[some[0]], after[others[0]]
        while size != other_size:
            if size < other_size:
                some.append(old.pop(0))
                size *= before[some[-1]]
            else:
                others.append(new.pop(0))
                other_size *= after[others[-1]]
        blocks.append((some, others))
    return blocks


@_declare("slice")
def _slice(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    (x,) = values
    start, limit = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(start)
    cuts = zip(x.labels, start, limit, strides, strict=True)
    labels = tuple(_kept(search.partition, a, a[s:e:t]) for a, s, e, t in cuts)
    return [AxisLabels(labels, x.vanishes, x.zero)]


def _kept(partition: Partition, before: Labels, after: Labels) -> Labels:
    """Labels after a cut; one element picked out is a row of its own, not a unit."""
    if len(after) == 1 < len(before):
        partition.freeze(after)
        return np.full(1, ANY)
    return after


@_declare("split")
def _split(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    (x,) = values
    axis = equation.params["axis"]
    ends = np.cumsum(equation.params["sizes"])[:-1]
    parts = [_kept(search.partition, x.labels[axis], p) for p in np.split(x.labels[axis], ends)]
    return [replace(x, labels=(*x.labels[:axis], p, *x.labels[axis + 1 :])) for p in parts]


@_declare("rev")
def _rev(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    (x,) = values
    turned = equation.params["dimensions"]
    labels = tuple(a[::-1] if i in turned else a for i, a in enumerate(x.labels))
    return [replace(x, labels=labels)]


@_declare("concatenate")
def _concatenate(
    search: LabelRules, equation: Equation, values: list[AxisLabels]
) -> list[AxisLabels]:
    axis = equation.params["dimension"]
    labels = list(values[0].labels)
    for value in values[1:]:
        labels = [
            labels[i] if i == axis else search.partition.unify(labels[i], value.labels[i])
            for i in range(len(labels))
        ]
    labels[axis] = np.concatenate([v.labels[axis] for v in values])
    zero = tuple(all(v.vanishes[i] for v in values) for i in range(len(labels)))
    return [AxisLabels(tuple(labels), zero)]


@_declare("pad")
def _pad(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    x, _ = values
    labels = []
    for axis, (low, high, between) in zip(x.labels, equation.params["padding_config"], strict=True):
        if between or low < 0 or high < 0:
            size = len(axis) + max(0, len(axis) - 1) * between + low + high
            search.partition.freeze(axis)
            labels.append(np.full(size, DATA))
        else:
            labels.append(np.concatenate([np.full(low, ANY), axis, np.full(high, ANY)]))
    return [AxisLabels(tuple(labels), (False,) * len(labels))]


@_declare("dot_general")
def _dot(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    x, w = values
    (contract_x, contract_w), (batch_x, batch_w) = equation.params["dimension_numbers"]
    for a, b in zip(contract_x, contract_w, strict=True):
        both = search.partition.unify(x.labels[a], w.labels[b])
        if not (x.vanishes[a] or w.vanishes[b]):
            search.partition.freeze(both)  # neither factor is 0 once the unit's weights are
    labels, vanishes = [], []
    for a, b in zip(batch_x, batch_w, strict=True):
        labels.append(search.partition.unify(x.labels[a], w.labels[b]))
        vanishes.append(x.vanishes[a] or w.vanishes[b])
    for value, used in ((x, {*contract_x, *batch_x}), (w, {*contract_w, *batch_w})):
        for axis in range(len(value.labels)):
            if axis not in used:
                labels.append(value.labels[axis])
                vanishes.append(value.vanishes[axis])
    return [AxisLabels(tuple(labels), tuple(vanishes))]


@_declare("conv_general_dilated")
def _conv(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    x, w, *_ = values
    params = equation.params
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    out_shape = equation.outputs[0].shape
    x_feature, w_in, w_out = numbers.lhs_spec[1], numbers.rhs_spec[1], numbers.rhs_spec[0]
    for axis in numbers.lhs_spec[2:]:
        search.partition.freeze(x.labels[axis])
    for axis in numbers.rhs_spec[2:]:
        search.partition.freeze(w.labels[axis])
    out = w.labels[w_out]
    if groups == 1 and params["batch_group_count"] == 1:
        both = search.partition.unify(x.labels[x_feature], w.labels[w_in])
        if not (x.vanishes[x_feature] or w.vanishes[w_in]):
            search.partition.freeze(both)
    elif groups == len(x.labels[x_feature]):  # each channel has filters of its own
        repeated = np.repeat(x.labels[x_feature], len(out) // groups)
        out = search.partition.unify(out, repeated)
        search.partition.freeze(w.labels[w_in])
    else:
        for labels in (x.labels[x_feature], w.labels[w_in], out):
            search.partition.freeze(labels)
        out = np.full(len(out), DATA)
    labels = [np.full(n, DATA) for n in out_shape]
    labels[numbers.out_spec[0]] = x.labels[numbers.lhs_spec[0]]
    labels[numbers.out_spec[1]] = out
    vanishes = [False] * len(out_shape)
    vanishes[numbers.out_spec[1]] = w.vanishes[w_out]
    return [AxisLabels(tuple(labels), tuple(vanishes))]


@_declare(*primitives.REDUCTIONS, *primitives.ARGUMENTS)
def _reduce(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    """A summed axis cannot have units: a mean would depend on how many of them remain."""
    x, *_ = values
    gone = set(equation.params["axes"])
    for axis in gone:
        search.partition.freeze(x.labels[axis])
    kept = [a for a in range(len(x.labels)) if a not in gone]
    zero = equation.name in primitives.NUMERIC_REDUCTIONS
    return [
        AxisLabels(tuple(x.labels[a] for a in kept), tuple(zero and x.vanishes[a] for a in kept))
    ]


@_declare("reduce_window", *primitives.WINDOWS)
def _window(search: LabelRules, equation: Equation, values: list[AxisLabels]) -> list[AxisLabels]:
    x = values[0]
    shape = equation.outputs[0].shape
    labels = list(x.labels)
    for axis, size in enumerate(equation.params["window_dimensions"]):
        if size != 1 or shape[axis] != len(labels[axis]):
            search.partition.freeze(labels[axis])
            labels[axis] = np.full(shape[axis], DATA)
    return [AxisLabels(tuple(labels), x.vanishes)]


@_declare(*primitives.CUMULATIVE)
def _cumulative(
    search: LabelRules, equation: Equation, values: list[AxisLabels]
) -> list[AxisLabels]:
    (x,) = values
    labels = list(x.labels)
    axis = equation.params["axis"]
    labels[axis] = search.partition.freeze(labels[axis])
    return [replace(x, labels=tuple(labels), vanishes=(False,) * len(labels))]
