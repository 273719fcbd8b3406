"""Placement of arrays: on this machine's devices, divided over a mesh, or partly elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def is_addressable(values: Any) -> bool:
    """Whether this process can see all values of an array."""
    return not isinstance(values, jax.Array) or values.is_fully_addressable


def find_mesh(tree: Any) -> Mesh | None:
    """Return the mesh that some array is divided over, or None."""
    for leaf in jax.tree.leaves(tree):
        sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
        if isinstance(sharding, NamedSharding) and not sharding.is_fully_replicated:
            assert isinstance(sharding.mesh, Mesh)  # that of an array, not of a trace
            return with_automatic_axes(sharding.mesh)
    return None


def with_automatic_axes(mesh: Mesh) -> Mesh:
    """Return a mesh whose work the compiler divides; `jax.make_mesh` leaves this to the user.

    With explicit axes, every operation would have to specify how its result is divided.
    """
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


@contextmanager
def automatic_context() -> Iterator[None]:
    """Temporarily give the mesh that the caller has set with `jax.set_mesh` automatic axes."""
    mesh = jax.sharding.get_mesh()
    if AxisType.Explicit not in mesh.axis_types:
        yield
        return
    with jax.set_mesh(with_automatic_axes(mesh)):
        yield


def on_automatic_axes(tree: Any) -> Any:
    """Return arrays on the same devices, but on meshes with automatic axes."""

    def move(leaf: Any) -> Any:
        sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
        if not isinstance(mesh, Mesh) or AxisType.Explicit not in mesh.axis_types:
            return leaf
        assert isinstance(sharding, NamedSharding)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = on_automatic_axes(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        placement = NamedSharding(with_automatic_axes(mesh), sharding.spec)
        shards = [shard.data for shard in leaf.addressable_shards]
        return jax.make_array_from_single_device_arrays(leaf.shape, placement, shards)

    return jax.tree.map(move, tree)


def put(array: Any, sharding: NamedSharding) -> Array:
    """Put an array that every process has onto devices, some of which are in other processes."""
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
