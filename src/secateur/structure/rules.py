"""How labels pass through each primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from secateur.propagation import elementwise
from secateur.structure.labels import ANY, DATA, Book, Labels, Marked

Rule = Callable[[Book, Any, Sequence[Marked]], list[Marked]]
RULES: dict[str, Rule] = {}

# Elementwise functions of one value with f(0) = 0.
KEEPS_ZERO = {
    "neg", "abs", "sign", "tanh", "sin", "sinh", "asinh", "atan", "erf", "expm1", "log1p", "sqrt",
    "cbrt", "square", "integer_pow", "convert_element_type", "copy", "copy_p", "reduce_precision",
    "stop_gradient", "optimization_barrier", "tan", "floor", "ceil", "round", "erf_inv",
}  # fmt: skip


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Declare the rule of some primitives."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def apply(book: Book, eqn: Any, values: Sequence[Marked], shapes: list[tuple]) -> list[Marked]:
    """The results of one equation; an unknown one mixes everything, so that no unit is left."""
    name = eqn.primitive.name
    if name in RULES:
        return RULES[name](book, eqn, values)
    if name in elementwise.NAMES or name in KEEPS_ZERO:
        return [_elementwise(book, eqn, values)]
    for value in values:
        for labels in value.labels:
            book.freeze(labels)
    return [Marked(tuple(np.full(n, DATA) for n in s), (False,) * len(s)) for s in shapes]


def _elementwise(book: Book, eqn: Any, values: Sequence[Marked]) -> Marked:
    """Elements meet one by one."""
    name = eqn.primitive.name
    wide = [v for v in values if v.labels]
    if not wide:
        return Marked((), ())
    labels = list(wide[0].labels)
    for value in wide[1:]:
        labels = [book.unify(a, b) for a, b in zip(labels, value.labels, strict=True)]
    return Marked(tuple(labels), tuple(_zero(name, values, i) for i in range(len(labels))))


def _zero(name: str, values: Sequence[Marked], axis: int) -> bool:
    """Whether the result is 0 along an axis where operands are."""
    zeros = [v.zero or bool(v.labels and v.vanishes[axis]) for v in values]
    if name == "mul":
        return any(zeros)
    if name == "div":
        return zeros[0]
    if name in ("select_n", "clamp"):
        return all(zeros[1:] if name == "select_n" else zeros)
    if name in ("add", "sub", "max", "min", "add_any"):
        return all(zeros)
    return name in KEEPS_ZERO and zeros[0]


@rule("transpose")
def _transpose(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    (x,) = values
    order = eqn.params["permutation"]
    return [Marked(tuple(x.labels[i] for i in order), tuple(x.vanishes[i] for i in order))]


@rule("squeeze")
def _squeeze(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    (x,) = values
    kept = [i for i in range(len(x.labels)) if i not in eqn.params["dimensions"]]
    return [Marked(tuple(x.labels[i] for i in kept), tuple(x.vanishes[i] for i in kept))]


@rule("broadcast_in_dim")
def _broadcast(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    x, *_ = values
    shape, places = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    labels: list[Labels] = [np.full(n, ANY) for n in shape]
    vanishes = [x.zero] * len(shape)
    for axis, place in enumerate(places):
        if len(x.labels[axis]) == shape[place]:
            labels[place], vanishes[place] = x.labels[axis], x.vanishes[axis]
        elif x.labels[axis][0] == DATA:
            labels[place] = np.full(shape[place], DATA)
    return [Marked(tuple(labels), tuple(vanishes), x.zero)]


@rule("reshape")
def _reshape(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    x, *_ = values
    after = eqn.params["new_sizes"]
    labels: list[Labels] = [np.full(n, ANY) for n in after]
    vanishes = [x.zero] * len(after)
    if 0 in x.shape:
        return [Marked(tuple(labels), tuple(vanishes), x.zero)]
    for old, new in _blocks(x.shape, after):
        if len(old) == len(new) == 1:
            labels[new[0]], vanishes[new[0]] = x.labels[old[0]], x.vanishes[old[0]]
        elif len(new) == 1:
            labels[new[0]], vanishes[new[0]] = _merged(book, x, old)
        else:
            parts = [x.labels[a] for a in old]
            kind = ANY if all(np.all(p == ANY) for p in parts) else DATA
            for part in parts:
                book.freeze(part)
            for axis in new:
                labels[axis] = np.full(after[axis], kind)
    return [Marked(tuple(labels), tuple(vanishes), x.zero)]


def _merged(book: Book, x: Marked, axes: list[int]) -> tuple[Labels, bool]:
    """Several axes as one: at most one of them may tell units apart."""
    telling = [a for a in axes if not book.is_free(x.labels[a])]
    shape = [len(x.labels[a]) for a in axes]
    if len(telling) == 1:
        (axis,) = telling
        column = [-1 if a == axis else 1 for a in axes]
        spread = np.broadcast_to(x.labels[axis].reshape(column), shape)
        return spread.ravel().copy(), x.vanishes[axis]
    roots = {book.root(i) for a in telling for i in x.labels[a].tolist() if i >= 0}
    if telling and roots <= {book.root(i) for i in book.inputs}:
        # Axes of the data that nothing has used yet: every element is an input of its own.
        fresh = book.fresh(int(np.prod(shape)))
        book.inputs.update(int(i) for i in fresh if i >= 0)
        for a in telling:
            book.freeze(x.labels[a])
        return fresh, False
    for a in telling:
        book.freeze(x.labels[a])
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


@rule("slice")
def _slice(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    (x,) = values
    start, limit = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(start)
    cuts = zip(x.labels, start, limit, strides, strict=True)
    labels = tuple(_kept(book, a, a[s:e:t]) for a, s, e, t in cuts)
    return [Marked(labels, x.vanishes, x.zero)]


def _kept(book: Book, before: Labels, after: Labels) -> Labels:
    """Labels after a cut; one element picked out is a row of its own, and no unit."""
    if len(after) == 1 < len(before):
        book.freeze(after)
        return np.full(1, ANY)
    return after


@rule("split")
def _split(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    (x,) = values
    axis = eqn.params["axis"]
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    parts = [_kept(book, x.labels[axis], p) for p in np.split(x.labels[axis], ends)]
    return [replace(x, labels=(*x.labels[:axis], p, *x.labels[axis + 1 :])) for p in parts]


@rule("rev")
def _rev(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    (x,) = values
    turned = eqn.params["dimensions"]
    labels = tuple(a[::-1] if i in turned else a for i, a in enumerate(x.labels))
    return [replace(x, labels=labels)]


@rule("concatenate")
def _concatenate(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    axis = eqn.params["dimension"]
    labels = list(values[0].labels)
    for value in values[1:]:
        labels = [
            labels[i] if i == axis else book.unify(labels[i], value.labels[i])
            for i in range(len(labels))
        ]
    labels[axis] = np.concatenate([v.labels[axis] for v in values])
    zero = tuple(all(v.vanishes[i] for v in values) for i in range(len(labels)))
    return [Marked(tuple(labels), zero)]


@rule("pad")
def _pad(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    x, _ = values
    labels = []
    for axis, (low, high, between) in zip(x.labels, eqn.params["padding_config"], strict=True):
        if between or low < 0 or high < 0:
            size = len(axis) + max(0, len(axis) - 1) * between + low + high
            book.freeze(axis)
            labels.append(np.full(size, DATA))
        else:
            labels.append(np.concatenate([np.full(low, ANY), axis, np.full(high, ANY)]))
    return [Marked(tuple(labels), (False,) * len(labels))]


@rule("dot_general")
def _dot(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    x, w = values
    (contract_x, contract_w), (batch_x, batch_w) = eqn.params["dimension_numbers"]
    for a, b in zip(contract_x, contract_w, strict=True):
        both = book.unify(x.labels[a], w.labels[b])
        if not (x.vanishes[a] or w.vanishes[b]):
            book.freeze(both)  # neither factor is 0 once the unit's weights are
    labels, vanishes = [], []
    for a, b in zip(batch_x, batch_w, strict=True):
        labels.append(book.unify(x.labels[a], w.labels[b]))
        vanishes.append(x.vanishes[a] or w.vanishes[b])
    for value, used in ((x, {*contract_x, *batch_x}), (w, {*contract_w, *batch_w})):
        for axis in range(len(value.labels)):
            if axis not in used:
                labels.append(value.labels[axis])
                vanishes.append(value.vanishes[axis])
    return [Marked(tuple(labels), tuple(vanishes))]


@rule("conv_general_dilated")
def _conv(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    x, w = values
    params = eqn.params
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    out_shape = eqn.outvars[0].aval.shape
    x_feature, w_in, w_out = numbers.lhs_spec[1], numbers.rhs_spec[1], numbers.rhs_spec[0]
    for axis in numbers.lhs_spec[2:]:
        book.freeze(x.labels[axis])
    for axis in numbers.rhs_spec[2:]:
        book.freeze(w.labels[axis])
    out = w.labels[w_out]
    if groups == 1 and params["batch_group_count"] == 1:
        both = book.unify(x.labels[x_feature], w.labels[w_in])
        if not (x.vanishes[x_feature] or w.vanishes[w_in]):
            book.freeze(both)
    elif groups == len(x.labels[x_feature]):  # each channel has filters of its own
        repeated = np.repeat(x.labels[x_feature], len(out) // groups)
        out = book.unify(out, repeated)
        book.freeze(w.labels[w_in])
    else:
        for labels in (x.labels[x_feature], w.labels[w_in], out):
            book.freeze(labels)
        out = np.full(len(out), DATA)
    labels = [np.full(n, DATA) for n in out_shape]
    labels[numbers.out_spec[0]] = x.labels[numbers.lhs_spec[0]]
    labels[numbers.out_spec[1]] = out
    vanishes = [False] * len(out_shape)
    vanishes[numbers.out_spec[1]] = w.vanishes[w_out]
    return [Marked(tuple(labels), tuple(vanishes))]


@rule(
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
    "argmax", "argmin",
)  # fmt: skip
def _reduce(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    """What is summed over can be no unit: a mean would have to know how many are left."""
    x, *_ = values
    gone = set(eqn.params["axes"])
    for axis in gone:
        book.freeze(x.labels[axis])
    kept = [a for a in range(len(x.labels)) if a not in gone]
    zero = eqn.primitive.name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
    return [Marked(tuple(x.labels[a] for a in kept), tuple(zero and x.vanishes[a] for a in kept))]


@rule("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def _window(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    x = values[0]
    shape = eqn.outvars[0].aval.shape
    labels = list(x.labels)
    for axis, size in enumerate(eqn.params["window_dimensions"]):
        if size != 1 or shape[axis] != len(labels[axis]):
            book.freeze(labels[axis])
            labels[axis] = np.full(shape[axis], DATA)
    return [Marked(tuple(labels), x.vanishes)]


@rule("cumsum", "cumlogsumexp", "cummax", "cummin", "cumprod")
def _cumulative(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    (x,) = values
    labels = list(x.labels)
    axis = eqn.params["axis"]
    labels[axis] = book.freeze(labels[axis])
    return [replace(x, labels=tuple(labels), vanishes=(False,) * len(labels))]


@rule("gather")
def _gather(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    """Whole slices keep their labels: the features of an embedding, say."""
    x, _ = values
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape = eqn.outvars[0].aval.shape
    labels = [np.full(n, DATA) for n in shape]
    vanishes = [False] * len(shape)
    left_out = {*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ())}
    kept = [a for a in range(len(x.labels)) if a not in left_out]
    for place, axis in zip(numbers.offset_dims, kept, strict=True):
        if sizes[axis] == len(x.labels[axis]) and axis not in numbers.start_index_map:
            labels[place], vanishes[place] = x.labels[axis], x.vanishes[axis]
        else:
            book.freeze(x.labels[axis])
    for axis in left_out:
        book.freeze(x.labels[axis])
    return [Marked(tuple(labels), tuple(vanishes))]


@rule("dynamic_slice")
def _dynamic_slice(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    x, *_ = values
    labels = [
        a if len(a) == n else book.freeze(a)[:n]
        for a, n in zip(x.labels, eqn.params["slice_sizes"], strict=True)
    ]
    return [replace(x, labels=tuple(labels))]


@rule("iota", "rng_bit_generator", "random_bits")
def _constant(book: Book, eqn: Any, values: Sequence[Marked]) -> list[Marked]:
    return [
        Marked(tuple(np.full(n, ANY) for n in v.aval.shape), (False,) * len(v.aval.shape))
        for v in eqn.outvars
    ]
