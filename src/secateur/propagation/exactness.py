"""``coverage``: which rule each equation of a model takes, and how exact it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.distributions import Normal
from secateur.propagation.propagator import Row
from secateur.propagation.transform import is_normal, walk_function


@dataclass(frozen=True)
class Coverage:
    """The table that :func:`coverage` returns; print it, or iterate over its rows."""

    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def approximations(self) -> tuple[Row, ...]:
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
            lines.append("Independence is an approximation at:")
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
    """List every equation of a model that uncertainty passes through, and how exactly it does.

    Nothing is computed: the model is traced only. The kinds of exactness are

    - ``exact``: exact for the given Gaussian operands;
    - ``moment-matched``: mean and variance of a distribution that is close to the true one;
    - ``quadrature``: numerical integration (errors far below 1e-3 of the standard deviation);
    - ``first-order``: the operands' covariance is kept to first order;
    - ``independent``: the operands are correlated, and count as independent.

    Args:
        f: the model function.
        params: its parameters: plain arrays (every floating one counts as uncertain) or beliefs.
        *args: its other arguments.
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
    rows: list[Row] = []
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
