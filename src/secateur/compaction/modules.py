"""Smaller modules of Flax NNX, Equinox and Keras: their arrays and their size attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur.trained import Trained

__all__ = ["shrink_module"]

Sizes = dict[str, Any]


def shrink_module(compacted: Trained, original: Any) -> Any:
    """Return a smaller module of the same kind as the original, with the mean weights.

    Args:
        compacted: From `secateur.compact`.
        original: The Flax NNX, Equinox or Keras model whose weights the params are: the module's
            state (`nnx.split`) or its `nnx.Param` part; the Equinox module itself or its arrays
            (`equinox.partition`); the list of a Keras model's trainable variables. It is not
            changed.

    Returns:
        A new module. The size attributes of dense, convolutional, GRU and LSTM layers are updated,
        too.

    Raises:
        TypeError: The module is from another library, or a layer of a type that is not supported
            has changed its size.
    """
    if compacted.compaction is None:
        raise TypeError("shrink_module: the model was not compacted. Give the result of compact.")
    params = compacted.model.params
    nodes = jax.tree.leaves(original, is_leaf=lambda n: _library(n) is not None)
    libraries = {_library(node) for node in nodes} - {None}
    if libraries == {"flax"}:
        return _nnx(original, params)
    if libraries == {"equinox"}:
        return _equinox(original, params)
    if libraries == {"keras"}:
        return _keras(original, params, compacted.compaction.kept_inputs)
    raise TypeError(
        f"shrink_module: a {type(original).__name__} is not a module. Supported: modules of Flax "
        "NNX, of Equinox (or a tuple, list or dict of these) and of Keras. For a function of your "
        "own, use the smaller function and its params in compacted.model."
    )


def _library(node: Any) -> str | None:
    """The library of a module's class or of one of its base classes."""
    bases = {(c.__module__.split(".")[0], c.__name__) for c in type(node).__mro__}
    for name, base in (("flax", "Module"), ("equinox", "Module"), ("keras", "Model")):
        if (name, base) in bases:
            return name
    return None


def _unknown(layer: Any, where: str, known: Any) -> TypeError:
    return TypeError(
        f"shrink_module: {where} is a {type(layer).__name__}, whose size changed and which is not "
        f"supported. Supported: {', '.join(known)}. The smaller function and its params are in "
        "compacted.model."
    )


# --- Flax NNX -------------------------------------------------------------------------------------


def _of_kernel(layer: Any) -> Sizes:
    inputs, outputs = layer.kernel.shape
    return {"in_features": inputs, "out_features": outputs}


def _of_filters(layer: Any) -> Sizes:
    shape = layer.kernel.shape
    inputs = shape[-2] * layer.feature_group_count
    return {"in_features": inputs, "out_features": shape[-1], "kernel_shape": shape}


def _of_gates(inputs: str, state: str) -> Callable[[Any], Sizes]:
    def sizes(cell: Any) -> Sizes:
        own = {"in_features": getattr(cell, inputs).kernel.shape[0]}
        return own | {"hidden_features": getattr(cell, state).kernel.shape[0]}

    return sizes


def _of_statistics(layer: Any) -> Sizes:
    shapes = {v.shape for v in (layer.mean, layer.var, layer.scale, layer.bias) if v is not None}
    if len(shapes) > 1:
        raise TypeError(
            "shrink_module: the running statistics of a BatchNorm are not among the params, so "
            "they cannot be made smaller. Give the whole state as params, and choose the "
            "uncertain leaves with where=…."
        )
    return {"num_features": layer.mean.shape[0]}


_NNX: dict[str, Callable[[Any], Sizes]] = {
    "Linear": _of_kernel,
    "Conv": _of_filters,
    "GRUCell": _of_gates("dense_i", "dense_h"),
    "OptimizedLSTMCell": _of_gates("dense_i", "dense_h"),
    "LSTMCell": _of_gates("ii", "hi"),
    "SimpleCell": _of_gates("dense_i", "dense_h"),
    "BatchNorm": _of_statistics,
    "Embed": lambda layer: {"features": layer.embedding.shape[1]},
}


def _nnx(original: Any, params: Any) -> Any:
    nnx: Any = import_module("flax.nnx")
    module = nnx.merge(*nnx.split(original), copy=True)
    before = {path: _shapes(layer, nnx) for path, layer in nnx.iter_modules(module)}
    nnx.update(module, params)
    for path, layer in nnx.iter_modules(module):
        name, where = type(layer).__name__, ".".join(map(str, path)) or "the module"
        if name in _NNX and type(layer).__module__.startswith("flax."):
            for attribute, size in _NNX[name](layer).items():
                setattr(layer, attribute, size)
        elif _shapes(layer, nnx) != before[path]:
            raise _unknown(layer, where, _NNX)
    return module


def _shapes(layer: Any, nnx: Any) -> list[tuple[int, ...]]:
    return [np.shape(v[...]) for v in vars(layer).values() if isinstance(v, nnx.Param)]


# --- Equinox --------------------------------------------------------------------------------------


def _of_rows(layer: Any) -> Sizes:
    own: Sizes = {}
    outputs, inputs = layer.weight.shape
    if layer.in_features != "scalar":
        own["in_features"] = inputs
    if layer.out_features != "scalar":
        own["out_features"] = outputs
    return own


def _of_cell(cell: Any) -> Sizes:
    return {"input_size": cell.weight_ih.shape[1], "hidden_size": cell.weight_hh.shape[1]}


_EQUINOX: dict[str, Callable[[Any], Sizes]] = {
    "Linear": _of_rows,
    "Conv": lambda layer: {
        "in_channels": layer.weight.shape[1] * layer.groups,
        "out_channels": layer.weight.shape[0],
    },
    "GRUCell": _of_cell,
    "LSTMCell": _of_cell,
    "Embedding": lambda layer: {"embedding_size": layer.weight.shape[1]},
}


def _equinox(original: Any, params: Any) -> Any:
    equinox: Any = import_module("equinox")
    new = dict(jax.tree_util.tree_flatten_with_path(params)[0])
    known = {jax.tree_util.keystr(path): leaf for path, leaf in new.items()}
    structure: Any
    pairs, structure = jax.tree_util.tree_flatten_with_path(original)
    paths = [jax.tree_util.keystr(path) for path, _ in pairs]
    if not set(known) <= set(paths):
        missing = sorted(set(known) - set(paths))[0]
        raise TypeError(
            f"shrink_module: the params are not part of this module: it has no {missing}. "
            "Give the module that the params were taken from."
        )
    leaves = [known.get(path, leaf) for path, (_, leaf) in zip(paths, pairs, strict=True)]
    return _resized(original, structure.unflatten(leaves), equinox, "the module")


def _resized(old: Any, new: Any, equinox: Any, where: str) -> Any:
    """Copy a pytree of modules, with size attributes that match their arrays."""
    if isinstance(new, list | tuple) and not hasattr(new, "_fields"):
        pairs = enumerate(zip(old, new, strict=True))
        return type(new)(_resized(o, n, equinox, f"{where}[{i}]") for i, (o, n) in pairs)
    if isinstance(new, dict):
        return {k: _resized(old[k], n, equinox, f"{where}[{k!r}]") for k, n in new.items()}
    if not isinstance(new, equinox.Module):
        return new
    result = copy.copy(new)
    changed = False
    for name, value in vars(new).items():
        before = getattr(old, name)
        changed |= equinox.is_array(value) and value.shape != before.shape
        object.__setattr__(result, name, _resized(before, value, equinox, f"{where}.{name}"))
    kinds = [c.__name__ for c in type(new).__mro__ if c.__module__.startswith("equinox.nn")]
    kind = next((name for name in kinds if name in _EQUINOX), None)
    if changed and kind is None:
        raise _unknown(new, where, _EQUINOX)
    for name, size in (_EQUINOX[kind](result) if changed and kind else {}).items():
        object.__setattr__(result, name, size)
    return result


# --- Keras ----------------------------------------------------------------------------------------


_KERAS: dict[str, Callable[[Any], Sizes]] = {
    "Dense": lambda shape: {"units": shape[-1]},
    "Conv1D": lambda shape: {"filters": shape[-1]},
    "Conv2D": lambda shape: {"filters": shape[-1]},
    "Conv3D": lambda shape: {"filters": shape[-1]},
    "SimpleRNN": lambda shape: {"units": shape[-1]},
    "GRU": lambda shape: {"units": shape[-1] // 3},
    "LSTM": lambda shape: {"units": shape[-1] // 4},
    "Embedding": lambda shape: {"output_dim": shape[-1]},
}


def _keras(original: Any, params: Any, kept_inputs: Any) -> Any:
    keras: Any = import_module("keras")
    arrays = jax.tree.leaves(params)
    variables = original.trainable_variables
    if len(arrays) != len(variables):
        raise TypeError(
            f"shrink_module: the model has {len(variables)} trainable variables, and the params "
            f"are {len(arrays)} arrays. Give the model whose trainable_variables the params were."
        )
    new = {id(v): a for v, a in zip(variables, arrays, strict=True)}

    def clone(layer: Any) -> Any:
        config, name = layer.get_config(), type(layer).__name__
        own = [(v.shape, new[id(v)].shape) for v in layer.trainable_variables]
        if any(tuple(before) != tuple(after) for before, after in own):
            if name not in _KERAS:
                raise _unknown(layer, layer.name, _KERAS)
            config |= _KERAS[name](own[0][1])
        return type(layer).from_config(config)

    if len(original.inputs) != 1:
        raise TypeError("shrink_module: a Keras model with several inputs is not supported.")
    (old_input,) = original.inputs
    shape = (*old_input.shape[1:-1], len(kept_inputs))
    start = keras.Input(shape, dtype=old_input.dtype, name=old_input.name)
    with jax.numpy_rank_promotion("allow"):  # Keras broadcasts in its initialisers
        if isinstance(original, keras.Sequential):
            model = keras.Sequential([start, *map(clone, original.layers)])
        else:
            model = keras.models.clone_model(original, start, clone_function=clone)
    for variable, array in zip(model.trainable_variables, arrays, strict=True):
        variable.assign(jnp.asarray(array))
    pairs = zip(model.non_trainable_variables, original.non_trainable_variables, strict=True)
    for variable, old in pairs:
        if tuple(variable.shape) != tuple(old.shape):
            raise _unknown(variable, variable.path, _KERAS)
        variable.assign(old.value)
    return model
