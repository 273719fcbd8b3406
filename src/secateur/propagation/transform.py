"""``propagate``: a model function becomes a function of beliefs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.distributions import Normal
from secateur.equations import trace_function
from secateur.propagation.noise import noise_source
from secateur.propagation.propagator import Propagator, Row
from secateur.propagation.values import Uncertain, deviation, to_normal

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
    - ``"independent"``: as "moments", but what the steps of a loop share through its weights, and a
      unit's own past, count as independent, as in the paper. For recurrent networks only: several
      times faster to compile and to run, with variances that are too small.

    Args:
        f: any pure JAX function ``f(params, *args)``, with arrays (or pytrees of them) as results.
        how: one of the names above.

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


def make_forward(f: Callable, how: str, *, closed_sigmoids: bool = True) -> Callable:
    """Return `propagate(f, how)`, with a choice of how σ and tanh are integrated.

    Args:
        f: as in `propagate`.
        how: as in `propagate`.
        closed_sigmoids: see `Propagator`.
    """
    if how not in ALGORITHMS:
        raise ValueError(f"how={how!r} is not an algorithm. Supported: {', '.join(ALGORITHMS)}.")
    if not callable(f):
        raise TypeError(f"propagate needs a function f(params, *args), got {type(f).__name__}.")

    def forward(key: Any, beliefs: Any, *args: Any) -> Any:
        if how == "global":
            return f(*_sample_leaves(key, (beliefs, *args)))
        return walk_function(f, how, key, (beliefs, *args), closed_sigmoids=closed_sigmoids)

    forward.__name__ = f"{how}_{getattr(f, '__name__', 'model')}"
    return forward


def _sample_leaves(key: Any, tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_normal)
    noise = noise_source(key, "global")
    sampled = []
    for leaf in leaves:
        if is_normal(leaf):
            mean, variance = jnp.broadcast_arrays(leaf.mean, leaf.variance)
            leaf = mean + deviation(variance) * noise.normal(mean.shape, mean.dtype)
        sampled.append(leaf)
    return jax.tree.unflatten(structure, sampled)


def walk_function(
    f: Callable,
    how: str,
    key: Any,
    arguments: tuple,
    ledger: list[Row] | None = None,
    *,
    closed_sigmoids: bool = True,
) -> Any:
    """Trace ``f`` and walk its equations with beliefs among its arguments."""
    leaves, structure = jax.tree.flatten(arguments, is_leaf=is_normal)
    places = [i for i, leaf in enumerate(leaves) if is_normal(leaf) or _is_array(leaf)]
    values = [_as_value(leaves[i], i) for i in places]
    arrays = [v.mean if isinstance(v, Uncertain) else v for v in values]
    trace = trace_function(f, leaves, structure, places, arrays)
    program = trace.program([isinstance(v, Uncertain) for v in values])
    walk = Propagator(program, how, key, ledger=ledger, closed_sigmoids=closed_sigmoids)
    results = walk.run(values)
    if how == "local":
        results = [walk.sample(r) if isinstance(r, Uncertain) else r for r in results]
    return jax.tree.unflatten(trace.result_structure, [to_normal(r) for r in results])


def _as_value(leaf: Any, number: int) -> Any:
    if not is_normal(leaf):
        return leaf
    mean, variance = jnp.asarray(leaf.mean), jnp.asarray(leaf.variance)
    if not jnp.issubdtype(mean.dtype, jnp.floating):
        raise TypeError(f"A Normal needs a floating mean, got {mean.dtype}.")
    variance = jnp.broadcast_to(variance.astype(mean.dtype), mean.shape)
    return Uncertain(mean, variance, ancestors=frozenset({number}))
