"""Conversion of objects to JSON and arrays, and back, without any reference to code.

A file may hold numbers, strings, lists, tuples, dicts, arrays and the dataclasses listed here (or
passed explicitly by the user). Reading a file constructs these and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from secateur import distributions, likelihoods
from secateur.compaction.removal import RemovedUnits
from secateur.distributions import Normal, UnitNormal
from secateur.importing import ImportedFunction
from secateur.importing.onnx_graph import OnnxGraph, OnnxNode, OnnxValue
from secateur.networks import Dense, Gru
from secateur.trained import Compaction, Round
from secateur.training.objective import FreeEnergy
from secateur.training.recipe import Recipe
from secateur.training.scaling import Affine, Scaling


class FileError(ValueError):
    """A model file is damaged, of another kind or version, or needs further arguments."""


NETWORKS = (Dense, Gru, ImportedFunction)
CLASSES: dict[str, type] = {
    c.__name__: c
    for c in (
        *NETWORKS,
        OnnxGraph,
        OnnxNode,
        OnnxValue,
        Normal,
        distributions.Laplace,
        distributions.ScaleMixture,
        distributions.Gamma,
        distributions.Beta,
        distributions.Dirichlet,
        distributions.MultivariateNormal,
        likelihoods.GaussianLikelihood,
        likelihoods.BernoulliLikelihood,
        likelihoods.CategoricalLikelihood,
        likelihoods.PoissonLikelihood,
        Affine,
        Scaling,
        FreeEnergy,
        Recipe,
        Round,
        Compaction,
        RemovedUnits,
    )
}
# The dtypes that safetensors can write and read with NumPy. (It can write bfloat16 only.)
_KINDS = "?bBhHiIlLqQefdF"
_SEEN_AS = {"bfloat16": np.uint16}


class Encoder:
    """Converts objects to JSON; arrays are stored in `tensors` under readable names."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}

    def encode(self, node: Any, name: str) -> Any:
        """Describe an object; `name` is its location, for the names of arrays and for errors."""
        if node is None or isinstance(node, bool | str | int):
            return node
        if isinstance(node, float) and not isinstance(node, np.generic):
            return node if math.isfinite(node) else {"float": repr(node)}
        if isinstance(node, jax.Array | np.ndarray | np.generic):
            return self._array(node, name)
        if type(node) in (list, tuple):
            items = [self.encode(item, f"{name}.{i}") for i, item in enumerate(node)]
            return {type(node).__name__: items}
        if type(node) is dict and all(isinstance(key, str) for key in node):
            return {"dict": {key: self.encode(item, f"{name}.{key}") for key, item in node.items()}}
        if is_dataclass(type(node)):
            return self._object(node, name)
        raise TypeError(
            f"save: {name} is a {type(node).__name__}, which a file cannot hold. Supported: "
            "numbers, strings, arrays, lists, tuples, dicts with strings as keys, and dataclasses "
            "of these."
        )

    def _object(self, node: Any, name: str) -> Any:
        own: Any = type(node)
        if own is not CLASSES.get(own.__name__, own):
            raise TypeError(
                f"save: {name} is a {own.__name__} of your own, but secateur has a class of the "
                "same name. Rename yours."
            )
        names = [f.name for f in fields(own) if f.init]
        return {
            "class": own.__name__,
            "fields": {key: self.encode(vars(node)[key], f"{name}.{key}") for key in names},
        }

    def _array(self, node: Any, name: str) -> Any:
        on_device = isinstance(node, jax.Array)
        if on_device and jnp.issubdtype(node.dtype, jax.dtypes.prng_key):
            raise TypeError(f"save: {name} is an array of random keys, which a file cannot hold.")
        values = np.asarray(node)
        spec: dict[str, Any] = {"jax": on_device}
        if isinstance(node, np.generic):
            spec["scalar"] = True
        if values.dtype.name in _SEEN_AS:
            spec["dtype"] = values.dtype.name
            values = values.view(_SEEN_AS[values.dtype.name])
        elif values.dtype.char not in _KINDS:
            raise TypeError(
                f"save: {name} is an array of {values.dtype}, which a file cannot hold."
            )
        return {"array": self._keep(values, name)} | spec

    def _keep(self, values: np.ndarray, name: str) -> str:
        while name in self.tensors:  # dict keys may contain dots, too
            name += "'"
        self.tensors[name] = values
        return name

    def encode_belief(self, belief: Normal, name: str) -> Any:
        """Describe a belief; for pruned weights, only their positions are stored."""
        mean, variance = np.asarray(belief.mean), np.asarray(belief.variance)
        variance = np.broadcast_to(variance, mean.shape)
        alive = (variance != 0) | (mean != 0)
        spec: dict[str, Any] = {"shape": list(mean.shape), "mask": None}
        if not alive.all():
            spec["mask"] = self._keep(np.packbits(alive), f"{name}.alive")
        if isinstance(belief, UnitNormal):
            spec["unit"] = self._encode_unit(belief, name)
        return spec | {
            "mean": self._array(jnp.asarray(mean[alive]), f"{name}.mean"),
            "variance": self._array(jnp.asarray(variance[alive]), f"{name}.variance"),
        }

    def _encode_unit(self, belief: UnitNormal, name: str) -> Any:
        """Describe the factors of a belief with covariance; zeros take a bit each."""
        factor = np.asarray(belief.factor)
        used = factor != 0
        return {
            "group": belief.group,
            "axes": list(belief.unit_axes),
            "sources": factor.shape[-1],
            "lowers": belief.lowers,
            "used": self._keep(np.packbits(used), f"{name}.factor.used"),
            "factor": self._array(jnp.asarray(factor[used]), f"{name}.factor"),
        }

    def encode_prior(self, prior: Any, name: str) -> Any:
        """Describe a leaf's prior; a parameter that is constant over the leaf is stored once."""
        if isinstance(prior, UnitNormal):
            return {"posterior": self.encode_belief(prior, name)}
        return self.encode(jax.tree.map(_collapse, prior), name)


def _collapse(parameter: Any) -> Any:
    values = np.asarray(parameter)
    alike = values.size > 0 and np.all(values == values.flat[0])
    return jnp.asarray(parameter).reshape(-1)[0] if alike else parameter


class Decoder:
    """Reconstructs the objects that an `Encoder` described.

    Args:
        tensors: Arrays by name.
        classes: User-defined dataclasses that the file may hold.
    """

    def __init__(self, tensors: dict[str, np.ndarray], classes: Iterable[type] = ()) -> None:
        self._tensors = tensors
        self._classes = {c.__name__: c for c in classes} | CLASSES

    def decode(self, spec: Any) -> Any:
        """Return the object that was described."""
        if spec is None or isinstance(spec, bool | str | int | float):
            return spec
        if "array" in spec:
            return self._array(spec)
        if "class" in spec:
            return self._object(spec)
        ((kind, content),) = spec.items()
        if kind == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
        if kind == "dict":
            return {key: self.decode(item) for key, item in content.items()}
        if kind in ("list", "tuple"):
            items = [self.decode(item) for item in content]
            return items if kind == "list" else tuple(items)
        raise FileError(f"the file describes a {kind!r}, which this version does not know")

    def _object(self, spec: Any) -> Any:
        name, values = spec["class"], spec["fields"]
        kind: Any = self._classes.get(name)
        if kind is None:
            raise FileError(
                f"the file holds a {name}, which is not one of secateur's own classes. Give the "
                f"class: load(path, classes=[{name}])"
            )
        known = {f.name for f in fields(kind) if f.init}
        if unknown := set(values) - known:
            raise FileError(f"{name} has no {sorted(unknown)}")
        return kind(**{key: self.decode(item) for key, item in values.items()})

    def _array(self, spec: Any) -> Any:
        values = self._tensors[spec["array"]]
        if "dtype" in spec:
            if spec["dtype"] not in _SEEN_AS:
                raise FileError(f"arrays of {spec['dtype']!r} are not known to this version")
            values = values.view(jnp.dtype(spec["dtype"]))
        if not spec["jax"]:
            return values[()] if "scalar" in spec else values
        if jax.dtypes.canonicalize_dtype(values.dtype) != values.dtype:
            raise FileError(
                "the model was made in double precision, which is disabled in JAX. Enable it "
                'first: jax.config.update("jax_enable_x64", True)'
            )
        return jnp.asarray(values)

    def decode_belief(self, spec: Any) -> Normal:
        """Return a belief with exact zeros at the pruned weights."""
        shape, mask = _shape(spec["shape"]), spec["mask"]
        size = math.prod(shape)
        bits = None if mask is None else self._tensors[mask]
        if bits is not None and (bits.dtype != np.uint8 or bits.shape != (-(-size // 8),)):
            raise FileError(f"a mask does not fit its weights of shape {shape}")
        alive = np.ones(0) if bits is None else np.unpackbits(bits, count=size)
        live = size if bits is None else int(alive.sum())

        def whole(part: Any) -> jax.Array:
            values = np.asarray(self._array(part))
            if values.shape != (live,):
                raise FileError(f"{part['array']} holds {values.size} weights, not {live}")
            full = values
            if bits is not None:
                full = np.zeros(size, values.dtype)
                full[alive.astype(bool)] = values
            return jnp.asarray(full.reshape(shape))

        mean, variance = whole(spec["mean"]), whole(spec["variance"])
        if spec.get("unit") is None:
            return Normal(mean, variance)
        return self._decode_unit(spec["unit"], mean, variance)

    def _decode_unit(self, spec: Any, mean: jax.Array, variance: jax.Array) -> UnitNormal:
        shape = (*mean.shape, *_shape([spec["sources"]]))
        used = np.unpackbits(self._tensors[spec["used"]], count=math.prod(shape)).astype(bool)
        values = np.asarray(self._array(spec["factor"]))
        axes = tuple(int(a) for a in spec["axes"])
        if values.shape != (int(used.sum()),) or not set(axes) <= set(range(mean.ndim)):
            raise FileError(f"{spec['factor']['array']} does not fit its weights")
        factor = np.zeros(used.size, values.dtype)
        factor[used] = values
        rows = jnp.asarray(factor.reshape(shape))
        lowers = bool(spec["lowers"])
        return UnitNormal(mean, variance, rows, str(spec["group"]), axes, lowers=lowers)

    def decode_prior(self, spec: Any, belief: Any) -> Any:
        """Return the prior of a belief."""
        if "posterior" in spec:
            return self.decode_belief(spec["posterior"])
        shape = np.shape(belief.mean)
        return jax.tree.map(lambda p: jnp.broadcast_to(p, shape), self.decode(spec))


def _shape(shape: Any) -> tuple[int, ...]:
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise FileError(f"{shape!r} is not a shape")
    return tuple(shape)
