"""Sources of rows: arrays that stay on the device, or a stream of batches that do not.

Both give *blocks* of rows. Arrays are one block, used again in every epoch. A stream is cut into
blocks of fixed size, used in turn; training sees no more than one of them at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from secateur.distributions import Normal
from secateur.training.blocks import RowBlock, check_same_kind, check_weights
from secateur.training.devices import is_addressable, on_automatic_axes
from secateur.training.scaling import Columns, Scaling
from secateur.training.table_columns import (
    ColumnNames,
    arrange_columns,
    check_rows_apart,
    is_table,
    make_array,
    read_names,
)

Pair = tuple[Any, Array]

# Rows of a stream that are on the device at a time.
_BLOCK_ROWS = 16_384
# Number of rows of a one-pass stream that are examined to determine its units.
_PREVIEW_ROWS = 16_384


class Arrays:
    """Data in memory: `(inputs, targets)`, or several such sets of equal shape.

    Args:
        sets: Tuples of inputs, targets and, where rows have them, weights.
        column_names: Names of the columns that tables among the inputs are to have, in order.
            Defaults to those of the first set.
    """

    repeatable = True

    def __init__(self, sets: list[Any], *, column_names: ColumnNames = ()) -> None:
        sets = [on_automatic_axes(one) for one in sets]
        for one in sets:
            check_data(one)
        self.column_names = column_names or (read_names(sets[0][0]) if sets else ())
        self.sets = [
            make_block(arrange_columns(inputs, self.column_names), *others)
            for inputs, *others in sets
        ]
        check_shapes(self.sets)
        self.size = len(self.sets[0].targets)
        self.total_weights = [one.total_weight for one in self.sets]
        if not all(self.total_weights):
            raise ValueError("all rows have weight 0. Give at least one row a positive weight.")
        self.blocks_per_pass = 1

    @cached_property
    def columns(self) -> list[tuple[Any, Columns]]:
        """Statistics of inputs and targets, one per set."""
        return [one.summarise() for one in self.sets]

    def blocks(self, *, start: int = 0) -> Iterator[RowBlock]:
        """Yield the (first) set again and again."""
        return itertools.repeat(self.sets[0])

    def sample(self) -> Pair:
        """Return a few rows, to try the model on; zeros if they are in other processes."""
        return _head(self.sets[0])


class Stream:
    """Data as batches, from a function that starts an iterator, or an iterable.

    Args:
        batches: Function or iterable that starts each pass. An iterator allows one pass only.
        size: Number of rows in all. By default they are counted in a pass of their own.
        batch_size: Number of rows in a step. Blocks are multiples of it.
        column_names: Names of the columns that tables among the inputs are to have, in order.
            Defaults to those of the first batch.
    """

    def __init__(
        self, batches: Any, *, size: int | None, batch_size: int, column_names: ColumnNames = ()
    ) -> None:
        open_batches, self.repeatable = _opener(batches)
        self.column_names = column_names
        self._open = lambda: self._arrange(open_batches())
        self._block_rows = batch_size * max(1, _BLOCK_ROWS // batch_size)
        if self.repeatable:
            statistics = _statistics(self._open())
        else:
            if size is None:
                raise ValueError(
                    "the data are an iterator that can be read only once, so the number of rows "
                    "must be given: size=…. Or give a function that returns a new iterator."
                )
            iterator = self._open()
            preview: list[RowBlock] = []
            rows = 0
            for batch in iterator:
                preview.append(make_block(*batch))
                rows += len(preview[-1].targets)
                if rows >= _PREVIEW_ROWS:
                    break
            rest = itertools.chain(preview, iterator)
            self._open = lambda: rest
            statistics = _statistics(iter(preview))
        columns, counted, weight, self._sample = statistics
        self.columns = [columns]  # statistics of inputs and targets, as if of one set
        if size is not None and self.repeatable and size != counted:
            raise ValueError(f"size={size}, but the stream has {counted} rows. Leave size out.")
        self.size = counted if size is None else size
        if not weight:
            raise ValueError("all rows have weight 0. Give at least one row a positive weight.")
        # (Of a stream that can be read only once, the preview's mean weight stands for all.)
        self.total_weights = [weight * (self.size / counted)]
        self.blocks_per_pass = -(-self.size // self._block_rows)

    def _arrange(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches with the columns of tables in the order of the first."""
        for batch in batches:
            check_batch(batch)
            inputs, *others = batch
            self.column_names = self.column_names or read_names(inputs)
            yield (arrange_columns(inputs, self.column_names), *others)

    def sample(self) -> Pair:
        """Return a few rows, to try the model on."""
        return self._sample

    def steps_per_pass(self, batch_size: int) -> int:
        """Return the number of steps in a pass."""
        whole, rest = divmod(self.size, self._block_rows)
        return whole * (self._block_rows // batch_size) + -(-rest // batch_size)

    def blocks(self, *, start: int = 0) -> Iterator[RowBlock]:
        """Yield blocks, pass after pass, from the given one on."""
        skip = start
        while True:
            count = 0
            for block in _regroup(self._open(), self._block_rows):
                count += 1
                if skip:
                    skip -= 1
                    continue
                yield block
            if not self.repeatable or not count:
                return


def make_scaling(
    columns: tuple[Any, Columns],
    *,
    inputs: bool,
    targets: bool,
    column_names: ColumnNames = (),
) -> Scaling:
    """Return the change of units that a recipe asks for."""
    x, y = columns
    return Scaling(
        inputs=jax.tree.map(
            lambda c: c.affine() if inputs and c is not None else None, x, is_leaf=_is_columns
        ),
        targets=y.affine() if targets else None,
        column_names=column_names,
    )


def _is_columns(node: Any) -> bool:
    return node is None or isinstance(node, Columns)


def _head(block: RowBlock) -> Pair:
    def head(values: Any) -> np.ndarray:
        if is_addressable(values):
            return np.asarray(values[:2])
        return np.zeros((min(2, len(values)), *values.shape[1:]), values.dtype)

    return jax.tree.map(head, (block.inputs, block.targets))


def _opener(batches: Any) -> tuple[Callable[[], Iterator[Any]], bool]:
    if callable(batches):
        return lambda: iter(batches()), True
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"the data are a {type(batches).__name__}. Supported: a pair of arrays (x, y), a "
            "function that returns an iterator of such pairs, or an iterable of them."
        )
    iterator = iter(batches)
    if iterator is batches:
        return lambda: iterator, False
    return lambda: iter(batches), True


def _statistics(batches: Iterator[Any]) -> tuple[tuple[Any, Columns], int, float, Pair]:
    """Columns of inputs and targets, rows, their weight, and a sample: in constant memory."""
    total: tuple[Any, Columns] | None = None
    sample: Pair | None = None
    rows, weight = 0, 0.0
    for batch in batches:
        block = make_block(*batch)
        columns = block.summarise()
        rows, weight = rows + len(block.targets), weight + block.total_weight
        if total is None:
            total, sample, first = columns, _head(block), block._replace(inputs=None, targets=None)
            continue
        check_same_kind(first, block)
        jax.tree.map(_join, total, columns, is_leaf=_is_columns)
    if total is None or sample is None:
        raise ValueError("the stream of data is empty: it contains no batch.")
    return total, rows, weight, sample


def _join(a: Columns | None, b: Columns | None) -> None:
    if a is not None and b is not None:
        a.join(b)


def _regroup(batches: Iterator[Any], rows: int) -> Iterator[RowBlock]:
    """Cut a stream of batches of any size into blocks of the given number of rows."""
    waiting: list[RowBlock] = []
    count = 0
    for batch in batches:
        waiting.append(make_block(*batch))
        check_same_kind(waiting[0], waiting[-1])
        count += len(waiting[-1].targets)
        while count >= rows:
            joined = _concatenate(waiting)
            yield jax.tree.map(lambda a: a[:rows], joined)
            waiting = [jax.tree.map(lambda a: a[rows:], joined)]
            count -= rows
    if count:
        yield _concatenate(waiting)


def _concatenate(blocks: list[RowBlock]) -> RowBlock:
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(p) for p in parts]), *blocks)


def make_source(
    data: Any, *, size: int | None, batch_size: int, column_names: ColumnNames = ()
) -> Arrays | Stream:
    """Return the user's data as a source: arrays `(x, y)` or `(x, y, weights)`, or a stream."""
    check_data(data)
    if not _are_arrays(data):
        return Stream(data, size=size, batch_size=batch_size, column_names=column_names)
    if size is not None:
        raise ValueError(f"size={size} is for streams; arrays have a known number of rows.")
    return Arrays([data], column_names=column_names)


def _are_arrays(data: Any) -> bool:
    """Whether data are one set of arrays, not a sequence of batches, which are tuples."""
    if not (isinstance(data, tuple) and len(data) in (2, 3) and hasattr(data[1], "__len__")):
        return False
    return len(data) == 2 or not isinstance(data[2], tuple)


def make_block(inputs: Any, targets: Any, weights: Any = None) -> RowBlock:
    """Check rows of data, and convert them to arrays."""
    inputs, targets = check_arrays(inputs, targets)
    return RowBlock(inputs, targets, check_weights(weights, len(targets)))


# --- checks ---------------------------------------------------------------------------------------


_PAIR = "Give a pair of arrays (x, y), rows first"


def check_data(data: Any) -> None:
    """Refuse containers that are neither a pair of arrays nor a stream of such pairs."""
    kind = type(data).__name__
    if isinstance(data, Mapping):
        names = [repr(name) for name in data]
        raise TypeError(
            f"the data are a {kind} with {', '.join(names)}. {_PAIR}, such as (data['x'], "
            "data['y'])."
        )
    if is_table(data) or isinstance(data, np.ndarray | jax.Array):
        raise TypeError(
            f"the data are one {kind}. {_PAIR}: inputs and targets apart, such as "
            "(table.drop(columns='y'), table['y'])."
        )
    if isinstance(data, list) and data and not isinstance(data[0], tuple | list):
        raise TypeError(
            f"the data are a list of {type(data[0]).__name__}. {_PAIR}, as a tuple; a list stands "
            "for batches, each of them such a pair."
        )
    if isinstance(data, tuple) and len(data) < 2:
        raise TypeError(f"the data are a tuple of {len(data)}. {_PAIR}.")


def check_batch(batch: Any) -> None:
    """Refuse a batch of a stream that is not a pair, with or without weights."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise TypeError(
            f"a batch of the stream is a {type(batch).__name__}{size}. Every batch must be a pair "
            "of arrays (x, y), rows first, or such a pair and the weights of its rows."
        )


def check_arrays(inputs: Any, targets: Any) -> Pair:
    """Check a pair of inputs and targets, and convert them to arrays."""
    targets = make_array(targets, "targets")
    check_rows_apart(inputs, len(targets) if np.ndim(targets) else None)
    inputs = jax.tree.map(lambda x: make_array(x, "inputs"), inputs, is_leaf=is_table)
    if not jax.tree.leaves(inputs):
        raise ValueError("the inputs contain no array.")
    for name, x in (("targets", targets), *(("inputs", x) for x in jax.tree.leaves(inputs))):
        if np.ndim(x) == 0:
            raise ValueError(f"the {name} are a single number. Their first axis must count rows.")
        if len(x) == 0:
            raise ValueError(f"the {name} are empty: shape {np.shape(x)}. Give at least one row.")
        if len(x) != len(targets):
            raise ValueError(
                f"the inputs have {len(x)} rows (shape {np.shape(x)}) and the targets "
                f"{len(targets)} (shape {np.shape(targets)}). Give one target row per input row."
            )
        _all_finite(x, name)
    return inputs, targets


def check_shapes(sets: list[RowBlock]) -> None:
    """Check that several data sets can share one program."""
    shapes = [jax.tree.map(np.shape, one) for one in sets]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"data set {number} has shapes {shape} and data set 0 has {shapes[0]}. Only data "
                "sets of equal shapes can be fitted together; fit these one by one."
            )


def check_targets(columns: Columns) -> None:
    """Raise an error for targets with nothing to learn: a constant, or a single class."""
    if columns.rows > 1 and np.any(columns.constant):
        which = np.flatnonzero(columns.constant)
        column = "the targets are" if columns.vector else f"target column(s) {which.tolist()} are"
        raise ValueError(
            f"{column} constant (value {columns.mean[which[0]]:.6g} in all {columns.rows} rows): "
            "there is nothing to learn. Leave them out, or check how the data were read."
        )


def check_model(forward: Callable[[Any], Any], likelihood: Any, sample: Pair, targets: Any) -> None:
    """Check that model, data and likelihood fit together: shapes by tracing, labels by value.

    Args:
        forward: Function from inputs to a prediction.
        likelihood: The model's likelihood.
        sample: A few rows.
        targets: All targets. The values of labels and counts matter, so the smallest and the
            largest are tried, against a prediction of zeros.
    """
    inputs, some = sample
    shape = jax.eval_shape(forward, inputs)
    if not isinstance(shape, Normal | jax.ShapeDtypeStruct):
        raise TypeError(
            f"the model returns {jax.tree.structure(shape)}. Supported: one array, rows first. "
            "Choose one output, or join them."
        )
    example = shape.mean if isinstance(shape, Normal) else shape
    if example.shape[:1] != (len(some),):
        raise ValueError(
            f"for {len(some)} rows of inputs the model returns shape {example.shape}. Its first "
            "axis must count rows."
        )
    whole = jax.ShapeDtypeStruct((len(targets), *example.shape[1:]), example.dtype)
    likelihood_of = partial(_likelihood_of, likelihood)
    dtype = jax.dtypes.canonicalize_dtype(targets.dtype)
    jax.eval_shape(likelihood_of, whole, jax.ShapeDtypeStruct(targets.shape, dtype))
    if hasattr(likelihood, "check_targets"):
        likelihood.check_targets(whole.shape, np.asarray(targets))
    elif jnp.issubdtype(targets.dtype, jnp.integer) and likelihood.initial_noise(targets) is None:
        values = np.asarray(targets).reshape(len(targets), -1)
        extremes = np.array([values.min(axis=1).argmin(), values.max(axis=1).argmax()])
        zeros = jnp.zeros((2, *example.shape[1:]), example.dtype)
        likelihood_of(zeros, np.asarray(targets)[extremes])


def _likelihood_of(likelihood: Any, prediction: Any, targets: Any) -> Any:
    noise = likelihood.initial_noise(prediction)
    return likelihood.expected_log_likelihood(noise, prediction, targets)


def _all_finite(values: Any, name: str) -> None:
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return
    if not is_addressable(values):
        if not bool(jnp.all(jnp.isfinite(values))):
            raise ValueError(f"the {name} hold values that are not finite (nan or inf).")
        return
    bad = ~np.isfinite(np.asarray(values))
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"the {name} hold {int(bad.sum())} values that are not finite, the first "
            f"({np.asarray(values)[first]}) at index {first}. Remove those rows, or fill in values."
        )
