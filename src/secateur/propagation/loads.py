"""First-order dependence of a value on sources of noise that it shares with other values.

All loads of one value lie in one array with an axis for the sources in front: a recurrent network
has dozens of them, and an equation on each would be a kernel each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import jax
import jax.numpy as jnp
from jax import Array

Key = Hashable


@dataclass(frozen=True)
class Loads:
    """The value is ``mean + Σ_k stack[k]·ξ_k + rest``, ξ_k the standard Normal called ``keys[k]``.

    Attributes:
        keys: names of the sources (static).
        stack: loads, the source's axis first; None where there are no sources.
    """

    keys: tuple[Key, ...] = ()
    stack: Array | None = None

    @staticmethod
    def of(arrays: Mapping[Key, Array]) -> Loads:
        if not arrays:
            return Loads()
        return Loads(tuple(arrays), jnp.stack(list(arrays.values())))

    def __bool__(self) -> bool:
        return bool(self.keys)

    def scaled(self, factor: Array | float) -> Loads:
        if jnp.ndim(factor):
            factor = jnp.asarray(factor)[None]
        return self.mapped(lambda stack: factor * stack)

    def mapped(
        self, change: Callable[[Array], Array], keys: tuple[Key, ...] | None = None
    ) -> Loads:
        """The same change to the array of all sources, which may have new names."""
        if self.stack is None:
            return self
        return Loads(self.keys if keys is None else keys, change(self.stack))

    def moved(self, name: Key, move: Callable[[Array], Array]) -> Loads:
        """After a rearrangement: the same on each source's loads, and noted in its name.

        Two values keep their covariance if both were rearranged in the same way.
        """
        return self.mapped(jax.vmap(move), tuple((key, name) for key in self.keys))

    def explained(self) -> Array | float:
        """The variance that comes from these sources."""
        return 0.0 if self.stack is None else jnp.sum(self.stack * self.stack, axis=0)

    def rows(self, keys: Sequence[Key], like: Array | None = None) -> Array:
        """The array of those sources, in that order; zeros ``like`` this for any it has not."""
        if tuple(keys) == self.keys and self.stack is not None:
            return self.stack
        place = {key: i for i, key in enumerate(self.keys)}
        pieces = []
        # Slices rather than a gather, whose derivative would be a scatter: runs of neighbours.
        offset = [place[key] - n if key in place else None for n, key in enumerate(keys)]
        end = 0
        for shift, run in groupby(offset):
            start, end = end, end + len(list(run))
            if shift is not None:
                pieces.append(self.stack[start + shift : end + shift])  # type: ignore[index]
            else:
                assert like is not None
                pieces.append(jnp.zeros((end - start, *like.shape), like.dtype))
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)


NO_LOADS = Loads()


def covariance(x: Loads, y: Loads) -> Array | None:
    """Σ_k x_k·y_k over the sources both have; None where they share none."""
    shared = [key for key in x.keys if key in set(y.keys)]
    if not shared:
        return None
    return jnp.sum(x.rows(shared) * y.rows(shared), axis=0)


def combined(x: Loads, y: Loads, x_scale: Array | float, y_scale: Array | float) -> Loads:
    """Loads of  x_scale·x + y_scale·y."""
    if x.stack is None:
        return y.scaled(y_scale)
    if y.stack is None:
        return x.scaled(x_scale)
    keys = tuple(dict.fromkeys((*x.keys, *y.keys)))
    like = x.stack[0]
    scaled_x = x.scaled(x_scale).rows(keys, like)
    return Loads(keys, scaled_x + y.scaled(y_scale).rows(keys, like))


def counted_together(keys: Sequence[Key], stack: Array) -> tuple[Loads, Array | None]:
    """Loads under names of which some may be equal, and what that adds to the variance."""
    if len(set(keys)) == len(keys):
        return Loads(tuple(keys), stack), None
    before = jnp.sum(stack * stack, axis=0)
    names = tuple(dict.fromkeys(keys))
    same = jnp.array([[key == name for key in keys] for name in names], stack.dtype)
    loads = Loads(names, jnp.tensordot(same, stack, 1))
    return loads, loads.explained() - before
