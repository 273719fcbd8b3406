"""Pytrees with uncertain leaves: finding them, and aligning other pytrees with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from secateur.distributions import Normal

PyTree = Any


def is_belief(leaf: Any) -> bool:
    """Whether a leaf is uncertain, i.e. a `Normal`; meant for `is_leaf` in `jax.tree` functions.

    >>> jax.tree.leaves({"n": 3, "w": Normal(0.0, 1.0)}, is_leaf=is_belief)
    [3, Normal(mean=0.0, variance=1.0)]
    """
    return isinstance(leaf, Normal)


def flatten_beliefs(tree: PyTree) -> tuple[list[Any], list[str], Any]:
    """Return the leaves (a Normal is one), their readable paths, and the tree definition."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_belief)
    paths = [jax.tree_util.keystr(path).removeprefix(".") for path, _ in pairs]
    return [leaf for _, leaf in pairs], paths, treedef


def uncertain_leaves(tree: PyTree) -> Iterator[Normal]:
    """Iterate over the uncertain leaves."""
    return filter(is_belief, jax.tree.leaves(tree, is_leaf=is_belief))


def map_beliefs(
    function: Callable[[Normal], Any],
    tree: PyTree,
    *,
    otherwise: Callable[[Any], Any] = lambda leaf: leaf,
) -> PyTree:
    """Apply one function to the uncertain leaves and another to the others."""
    return jax.tree.map(
        lambda leaf: function(leaf) if is_belief(leaf) else otherwise(leaf), tree, is_leaf=is_belief
    )


def broadcast_prefix(prefix: PyTree, treedef: Any, what: str) -> list[tuple[Any, bool]]:
    """Return the prefix's value for each leaf, and whether it was given for exactly that leaf."""
    numbered = treedef.unflatten(range(treedef.num_leaves))
    values: list[tuple[Any, bool]] = [(None, False)] * treedef.num_leaves

    def spread(value: Any, subtree: Any) -> None:
        for index in jax.tree.leaves(subtree):
            values[index] = (value, subtree is index)

    def is_value(node: Any) -> bool:
        return node is None or hasattr(node, "log_prob")

    try:
        jax.tree.map(spread, prefix, numbered, is_leaf=is_value)
    except ValueError as error:
        raise structure_error(what, error) from error
    return values


def align_tree(tree: PyTree, treedef: Any, what: str) -> list[Any]:
    """Return the entries of `tree` that correspond to the leaves of another tree."""
    try:
        return treedef.flatten_up_to(tree)
    except ValueError as error:
        raise structure_error(what, error) from error


def structure_error(what: str, error: ValueError) -> ValueError:
    """Explain that two pytrees do not match."""
    return ValueError(
        f"`{what}` does not fit the parameters' structure ({error}). Supported: one value for all, "
        "a pytree of the same structure, or (where documented) a prefix of it or a function of "
        "(path, leaf)."
    )
