"""Where arrays are: on this machine's devices, divided over a mesh, or partly elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def is_addressable(values: Any) -> bool:
    """Whether this process can see all values of an array."""
    return not isinstance(values, jax.Array) or values.is_fully_addressable


def find_mesh(tree: Any) -> Mesh | None:
    """Return the mesh that some array is divided over, or None."""
    for leaf in jax.tree.leaves(tree):
        sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
        if isinstance(sharding, NamedSharding) and not sharding.is_fully_replicated:
            return Mesh(sharding.mesh.devices, sharding.mesh.axis_names)
    return None


def put(array: Any, sharding: NamedSharding) -> Array:
    """Put an array that every process has onto devices of which some are in other processes."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    if not is_addressable(array):
        return array
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = put(jax.random.key_data(array), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    values = np.asarray(array)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def put_rows(mesh: Mesh | None, array: Any, axis: int) -> Array:
    """Divide an array's rows, which lie along an axis, over the mesh where they divide evenly."""
    if mesh is None:
        return array if isinstance(array, jax.Array) else jax.device_put(np.asarray(array))
    if not is_addressable(array):
        return array
    spec: list[Any] = [None] * np.ndim(array)
    if np.shape(array)[axis] % mesh.devices.size == 0:
        spec[axis] = mesh.axis_names
    return put(array, NamedSharding(mesh, PartitionSpec(*spec)))


def gather(mesh: Mesh | None, tree: Any) -> Any:
    """Return arrays of which every process has all values."""
    if mesh is None:
        return tree
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda t: t, out_shardings=jax.tree.map(lambda _: whole, tree))(tree)
