"""`propagate`, which makes a function of beliefs from a model function, and `coverage` of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.correlations import find_groups, join_low_rank, split_leaves
from secateur.distributions import Normal, UnitNormal
from secateur.equations import compat, trace_function
from secateur.equations.execution import execute_jaxpr, has_fast_form, prefers_fast_forms
from secateur.equations.rewriting import needs_rewriting, rewrite, widened
from secateur.propagation.noise import noise_source
from secateur.propagation.propagator import CoverageRow, Propagator
from secateur.propagation.uncertain_values import Uncertain, deviation, to_normal
from secateur.propagation.unit_factors import UnitFactor, UnitNumbering

ALGORITHMS = ("global", "local", "moments", "independent")


def draws(how: str) -> bool:
    """Whether an algorithm samples, so that it needs noise and its results are samples."""
    return how in ("global", "local")


def is_normal(leaf: Any) -> bool:
    return isinstance(leaf, Normal)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def propagate(f: Callable, how: str) -> Callable:
    """Turn a model function into one that takes beliefs instead of weights.

    The algorithms differ only in where uncertainty collapses into a sample:

    - ``"global"``: at the weights; then ``f`` runs as it is.
    - ``"local"``: a Gaussian is carried through linear operations and sampled just before the
      first nonlinear one.
    - ``"moments"``: never; mean and variance travel through everything.
    - ``"independent"``: like "moments", but the steps of a loop are treated as independent,
    although they share its weights and a unit's own past, as in the paper. For recurrent networks
    only: several times faster to compile and to run, with variances that are too small.

    Args:
        f: Any pure JAX function ``f(params, *args)``, with arrays (or pytrees of them) as results.
        how: One of the names above.

    Returns:
        ``forward(key, beliefs, *args)``. ``beliefs`` is the params pytree with ``Normal`` leaves
        where uncertain; ``args`` may hold ``Normal`` leaves too. For ``"moments"`` and
        ``"independent"`` the results are ``Normal`` where uncertain and the key may be None; else
        they are samples.

    Example:
        >>> import jax, jax.numpy as jnp, secateur as sc
        >>> f = lambda w, x: jax.nn.relu(x @ w)
        >>> w = sc.Normal(jnp.zeros((3, 2)), jnp.ones((3, 2)))
        >>> y = sc.propagate(f, "moments")(None, w, jnp.array([[1.0, 0.0, 0.0]]))
        >>> print(y.mean.round(4), y.variance.round(4))
        [[0.3989 0.3989]] [[0.3408 0.3408]]

    Reference: Beckers et al., sections 3.2 and 3.3.
    """
    return make_forward(f, how)


def make_forward(f: Callable, how: str, *, portable: bool = False) -> Callable:
    """Return `propagate(f, how)`, for this device or for an export.

    Args:
        f: See `propagate`.
        how: See `propagate`.
        portable: See `Propagator`.
    """
    if how not in ALGORITHMS:
        raise ValueError(f"how={how!r} is not an algorithm. Supported: {', '.join(ALGORITHMS)}.")
    if not callable(f):
        raise TypeError(f"propagate needs a function f(params, *args), got {type(f).__name__}.")

    def forward(key: Any, beliefs: Any, *args: Any) -> Any:
        if how == "global":
            samples = _sample_leaves(key, (beliefs, *args))
            return f(*samples) if portable else _run_fast(f, samples)
        return walk_function(f, how, key, (beliefs, *args), portable=portable)

    forward.__name__ = f"{how}_{getattr(f, '__name__', 'model')}"
    return forward


def _run_fast(f: Callable, arguments: tuple) -> Any:
    """Call a function; within a compiled program, with the fastest form of its equations."""
    leaves, structure = jax.tree.flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if compat.is_abstract(leaf)]
    if not places or not prefers_fast_forms():
        return f(*arguments)
    trace = trace_function(f, leaves, structure, places, [leaves[i] for i in places])
    if not has_fast_form(trace.jaxpr):
        return f(*arguments)
    results = execute_jaxpr(trace.jaxpr, trace.consts, [leaves[i] for i in places])
    return jax.tree.unflatten(trace.result_structure, results)


def _sample_leaves(key: Any, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_normal)
    noise = noise_source(key, "global")
    sampled = []
    shared: dict[str, Any] = {}  # by group, the noise that its leaves share
    for leaf in _sample_low_rank(leaves, noise):
        if isinstance(leaf, UnitNormal):
            leaf = _sample_units(leaf, noise, shared)
        elif is_normal(leaf):
            mean, variance = jnp.broadcast_arrays(leaf.mean, leaf.variance)
            leaf = mean + deviation(variance) * noise.normal(mean.shape, mean.dtype)
        sampled.append(leaf)
    return jax.tree.unflatten(structure, sampled)


def _sample_low_rank(leaves: list[Any], noise: Any) -> list[Any]:
    """Return leaves with draws in the places of units whose precision is of low rank."""
    new = list(leaves)
    for members in find_groups(leaves):
        own = [leaves[i] for i in members]
        if own[0].lowers:
            mean, shape = join_low_rank(own)
            drawn = mean + shape.draw(noise.normal(mean.shape, mean.dtype))
            for i, part in zip(members, split_leaves(own, drawn), strict=True):
                new[i] = part
    return new


def _sample_units(leaf: UnitNormal, noise: Any, shared: dict[str, Any]) -> Any:
    dtype = jnp.result_type(leaf.mean)
    if leaf.group not in shared:
        shared[leaf.group] = noise.normal(leaf.noise_shape, dtype)
    own = None if leaf.is_whole else noise.normal(jnp.shape(leaf.mean), dtype)
    return leaf.at_noise(shared[leaf.group], own)


def walk_function(
    f: Callable,
    how: str,
    key: Any,
    arguments: tuple,
    ledger: list[CoverageRow] | None = None,
    *,
    portable: bool = False,
) -> Any:
    """Trace ``f`` and walk its equations with beliefs among its arguments."""
    leaves, structure = jax.tree.flatten(arguments, is_leaf=is_normal)
    places = [i for i, leaf in enumerate(leaves) if is_normal(leaf) or _is_array(leaf)]
    numbering = UnitNumbering()
    values = [_as_value(leaves[i], i, numbering) for i in places]
    arrays = [leaves[i].mean if is_normal(leaves[i]) else leaves[i] for i in places]
    trace = trace_function(f, leaves, structure, places, arrays)
    tracked = [isinstance(v, Uncertain) for v in values]
    if needs_rewriting(trace.jaxpr):
        trace, counts = rewrite(trace, tracked)
        if ledger is not None and counts:
            ledger.append(_describe_widening(counts))
    program = trace.program(tracked)
    walk = Propagator(program, how, key, ledger=ledger, portable=portable)
    results = walk.run(values)
    if how == "local":
        results = [walk.sample(r) if isinstance(r, Uncertain) else r for r in results]
    return jax.tree.unflatten(trace.result_structure, [to_normal(r) for r in results])


def _describe_widening(counts: Counter) -> CoverageRow:
    """Return the row that says what is computed in float32."""
    dtypes = ", ".join(sorted({dtype for dtype, _ in counts}))
    names: Counter = Counter()
    for (_, name), count in counts.items():
        names[name] += count
    listed = ", ".join(f"{name} {n}" for name, n in names.most_common(6))
    more = ", …" if len(names) > 6 else ""
    remark = f"{dtypes} computed in float32: {listed}{more}"
    return CoverageRow("widening", "widening", "exact", remark, "", ())


def _as_value(leaf: Any, number: int, numbering: UnitNumbering) -> Any:
    if not is_normal(leaf):
        return leaf
    mean, variance = jnp.asarray(leaf.mean), jnp.asarray(leaf.variance)
    if not jnp.issubdtype(mean.dtype, jnp.floating):
        raise TypeError(f"The mean of a Normal must be a floating-point array, not {mean.dtype}.")
    mean = mean.astype(widened(mean.dtype))
    variance = jnp.broadcast_to(variance.astype(mean.dtype), mean.shape)
    factor = None
    if isinstance(leaf, UnitNormal):
        array = jnp.asarray(leaf.factor).astype(mean.dtype)
        # (No bound at 0, which would halve the derivative by what is independent.)
        squares = jnp.sum(jnp.square(array), axis=-1)
        if leaf.lowers:
            rest: Any = variance + squares
        else:
            rest = None if leaf.is_whole else variance - squares
        factor = UnitFactor(array, numbering.label(leaf), mean, True, rest, lowers=leaf.lowers)
    return Uncertain(mean, variance, ancestors=frozenset({number}), factor=factor)


@dataclass(frozen=True)
class Coverage:
    """The table that :func:`coverage` returns; print it, or iterate over its rows."""

    rows: tuple[CoverageRow, ...]

    def __iter__(self) -> Iterator[CoverageRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def approximations(self) -> tuple[CoverageRow, ...]:
        """The rows where correlation is dropped or kept only to first order."""
        return tuple(r for r in self.rows if r.exactness in ("independent", "first-order"))

    def __str__(self) -> str:
        header = ("", "operation", "shape", "rule", "exactness", "where", "remark")
        table = [header]
        for number, row in enumerate(self.rows):
            shape = "×".join(map(str, row.shape)) or "scalar"
            cells = (row.operation, shape, row.rule, row.exactness, _short(row.where), row.remark)
            table.append((str(number), *cells))
        widths = [max(len(line[i]) for line in table) for i in range(len(header) - 1)]
        lines = [
            "  ".join(
                [*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]
            ).rstrip()
            for line in table
        ]
        lines.insert(1, "─" * max(map(len, lines)))
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.exactness] = counts.get(row.exactness, 0) + 1
        summary = ", ".join(f"{n} {kind}" for kind, n in counts.items())
        lines.append(f"{len(self.rows)} equations carry uncertainty: {summary or 'none'}.")
        if self.approximations:
            lines.append("Correlations are approximated or neglected at:")
            lines += [
                f"  {_short(r.where)}: {r.operation} — {r.remark or r.exactness} ({r.exactness})"
                for r in self.approximations
            ]
        return "\n".join(lines)

    __repr__ = __str__


def _short(where: str) -> str:
    """``net.py:31 (layer)`` of a full path with a column."""
    place, _, function = where.partition(" ")
    name = place.replace("\\", "/").rsplit("/", 1)[-1]
    pieces = name.split(":")
    return " ".join(filter(None, (":".join(pieces[:2]), function)))


def coverage(f: Callable, params: Any, *args: Any, how: str = "moments") -> Coverage:
    """List every equation of a model that carries uncertainty, and how exact its rule is.

    Nothing is computed: the model is only traced. The kinds of exactness are

    - ``exact``: exact for the given Gaussian operands;
    - ``moment-matched``: mean and variance of a distribution that is close to the true one;
    - ``quadrature``: numerical integration (errors far below 1e-3 of the standard deviation);
    - ``first-order``: the operands' covariance is kept to first order;
    - ``independent``: the operands are correlated, but treated as independent.

    Args:
        f: The model function.
        params: Its parameters: plain arrays (all floating-point ones are treated as uncertain) or
            beliefs.
        *args: Its other arguments.
        how: "moments", "independent" or "local".

    Returns:
        A table to print.

    Example:
        >>> import jax, jax.numpy as jnp, secateur as sc
        >>> table = sc.coverage(lambda w, x: jax.nn.silu(x @ w), jnp.ones((3, 2)), jnp.ones((1, 3)))
        >>> [(row.operation, row.exactness) for row in table]
        [('dot_general', 'exact'), ('logistic·mul', 'quadrature')]
    """
    if how not in ("moments", "independent", "local"):
        raise ValueError(f'coverage needs how="moments", "independent" or "local", got {how!r}.')
    beliefs = params
    if not any(is_normal(leaf) for leaf in jax.tree.leaves(params, is_leaf=is_normal)):
        beliefs = jax.tree.map(_believe, params)
    rows: list[CoverageRow] = []
    leaves, structure = jax.tree.flatten((beliefs, *args))
    dynamic = [isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in leaves]

    def run(arrays: list) -> Any:
        rest = iter(arrays)
        filled = [next(rest) if d else leaf for d, leaf in zip(dynamic, leaves, strict=True)]
        arguments = jax.tree.unflatten(structure, filled)
        key = jax.random.key(0) if how == "local" else None
        rows.clear()
        return walk_function(f, how, key, tuple(arguments), rows)

    jax.eval_shape(run, [leaf for d, leaf in zip(dynamic, leaves, strict=True) if d])
    return Coverage(tuple(rows))


def _believe(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating):
        return Normal(leaf, jnp.ones_like(leaf))
    return leaf
