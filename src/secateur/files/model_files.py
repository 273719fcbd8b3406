"""Writing a trained model to a file, and reading it back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import secateur
from secateur.distributions import UnitNormal
from secateur.files.codec import NETWORKS, Decoder, Encoder, FileError
from secateur.importing import ImportedFunction
from secateur.model import BayesianModel
from secateur.options import name_kind
from secateur.pytrees import align_tree, flatten_beliefs, is_belief
from secateur.storage import OtherVersion, UnreadableFile, read_container, write_container
from secateur.trained import Trained
from secateur.training.hierarchy import PriorGroups
from secateur.training.recipe import BeforeUpdate, Training

__all__ = ["load", "save"]

_KIND, _VERSION = "secateur-model", 2
# Attributes that are written and read unchanged, by name.
_PLAIN = (
    "noise", "scaling", "parts", "free_energy", "standard_error", "epochs", "stop_reason",
    "restarts", "weights_before", "free_energy_before", "is_level", "compaction",
)  # fmt: skip


def save(trained: Trained, path: str | os.PathLike, *, extra: Any = None) -> None:
    """Write a trained model to a file, from which `load` restores it bit for bit.

    The format is safetensors, with one JSON string as metadata. A pruned weight takes one bit. The
    file is written atomically.

    Args:
        trained: From `fit`, `prune`, `update`, `compact` or `load`.
        path: The file, conventionally `NAME.safetensors`.
        extra: Any JSON value of your own, which `load` returns as `extra`. Defaults to the model's
            own `extra`.

    Raises:
        TypeError: A part of the model cannot be stored, or `extra` is not a JSON value.

    Example:
        >>> import tempfile
        >>> import secateur as sc
        >>> network, key = sc.networks.Dense(2, hidden=(3,)), jax.random.key(0)
        >>> x = np.random.default_rng(0).normal(size=(20, 2))
        >>> model = sc.BayesianModel(network, network.init(key))
        >>> fitted = sc.fit(model, (x, x[:, :1]), key=key, epochs=5, progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(fitted, f"{folder}/model.safetensors", extra={"columns": ["a", "b"]})
        ...     loaded = load(f"{folder}/model.safetensors")
        >>> loaded.extra, loaded.model.f.hidden
        ({'columns': ['a', 'b']}, (3,))
        >>> bool(np.all(loaded.predict(x).variance == fitted.predict(x).variance))
        True
    """
    if not isinstance(trained, Trained):
        raise TypeError(
            f"save: {name_kind(trained)} is not a trained model. Give the result of fit, "
            "prune, update, compact or load."
        )
    extra = trained.extra if extra is None else extra
    _check_json(extra)
    encoder, model = Encoder(), trained.model
    is_builtin = isinstance(model.f, NETWORKS)
    facts = {
        "version": secateur.__version__,
        "network": encoder.encode(model.f, "network") if is_builtin else None,
        "function": None if is_builtin else getattr(model.f, "__name__", type(model.f).__name__),
        "inference": model.inference,
        "posterior": model.posterior if isinstance(model.posterior, str) else None,
        "likelihood": encoder.encode(model.likelihood, "likelihood"),
        "weights": _encode_weights(encoder, trained.beliefs, trained.priors),
        "rounds": [
            encoder.encode(replace(r, history=None), f"rounds.{i}")
            for i, r in enumerate(trained.rounds)
        ],
        "recipe": encoder.encode(trained.recipe, "recipe"),
        "prior_groups": trained.training.prior_groups,
        "before_update": _encode_before(encoder, trained.training.before_update),
        "key": _encode_key(encoder, trained.key),
        "extra": extra,
    }
    facts |= {name: encoder.encode(getattr(trained, name), name) for name in _PLAIN}
    write_container(Path(path), encoder.tensors, facts, kind=_KIND, version=_VERSION)


def load(
    path: str | os.PathLike,
    *,
    f: Callable[[Any, Any], Any] | None = None,
    params: Any = None,
    classes: Iterable[type] = (),
) -> Trained:
    """Read a model that `save` wrote; nothing in a file can run code.

    Args:
        path: The file.
        f: The model's function, if it is not one of `secateur.networks`.
        params: Weights of the right structure, if it is not made of dicts, lists and tuples, as in
            Flax NNX or Equinox. Their values do not matter.
        classes: Your own likelihood or prior classes, if the model uses any.

    Returns:
        A `Trained` whose predictions are bit-identical to those of the saved model. Its history is
        empty.

    Raises:
        FileError: The file is damaged, is not a model of secateur, is from another version, or
            needs one of the arguments.
        FileNotFoundError: The file does not exist.
    """
    try:
        tensors, facts = read_container(Path(path), kind=_KIND, version=_VERSION)
    except OtherVersion as error:
        raise FileError(
            f"{error}. Train the model again, or read it with the version that wrote it."
        ) from error
    except UnreadableFile as error:
        raise FileError(f"{error}. Restore an intact copy, or train the model again.") from error
    try:
        return _rebuild(Decoder(tensors, classes), facts, f, params)
    except FileError as error:
        raise FileError(f"{path}: {error}.") from error
    except (
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
        MemoryError,
    ) as error:  # fmt: skip
        raise FileError(
            f"{path} does not describe a model ({type(error).__name__}: {error})."
        ) from error


def _rebuild(decoder: Decoder, facts: Any, f: Any, params: Any) -> Trained:
    f = _find_function(decoder, facts, f)
    treedef, leaves, leaf_priors = _decode_weights(decoder, facts["weights"], params)
    priors = treedef.unflatten(leaf_priors)
    means = treedef.unflatten([leaf.mean if is_belief(leaf) else leaf for leaf in leaves])
    if isinstance(f, NETWORKS):
        _check_weights(f, means)
    model = BayesianModel(
        f,
        means,
        likelihood=decoder.decode(facts["likelihood"]),
        prior=priors,
        inference=facts["inference"],
        posterior=_decode_posterior(facts.get("posterior"), leaves, flatten_beliefs(means)[1]),
        where=treedef.unflatten([is_belief(leaf) for leaf in leaves]),
    )
    return Trained(
        model=model,
        beliefs=treedef.unflatten(leaves),
        priors=priors,
        **{name: decoder.decode(facts[name]) for name in _PLAIN},
        training=Training(
            decoder.decode(facts["recipe"]),
            prior_groups=_decode_groups(facts["prior_groups"]),
            before_update=_decode_before(decoder, facts["before_update"], treedef, leaves),
        ),
        key=_decode_key(decoder, facts["key"]),
        rounds=tuple(decoder.decode(spec) for spec in facts["rounds"]),
        extra=facts["extra"],
        version=facts["version"],
    )


def _decode_posterior(name: Any, leaves: list[Any], paths: list[str]) -> Any:
    """Return the posterior of a model; one that was a function, as what it chose."""
    if name is not None:
        return str(name)
    own = [isinstance(leaf, UnitNormal) for leaf in leaves]
    chosen = {path for path, is_unit in zip(paths, own, strict=True) if is_unit}
    if not chosen:
        return "mean-field"
    return lambda path, leaf: "unit" if path in chosen else "mean-field"


def _decode_groups(axes: list[int | None] | None) -> PriorGroups | None:
    return None if axes is None else tuple(None if a is None else int(a) for a in axes)


def _find_function(decoder: Decoder, facts: Any, f: Any) -> Any:
    if facts["network"] is not None:
        own = decoder.decode(facts["network"])
        if not isinstance(own, NETWORKS):
            raise FileError(f"{own!r} is not a network")
        if f is not None and f != own:
            raise FileError(f"the file holds the weights of {own}, not of {f}")
        return own
    if f is None:
        raise FileError(
            f"the model is the function {facts['function']!r}, which a file cannot hold. Give it: "
            "load(path, f=…)"
        )
    return f


# --- the pytree of the weights --------------------------------------------------------------------


def _encode_weights(encoder: Encoder, beliefs: Any, priors: Any) -> Any:
    leaves, paths, treedef = flatten_beliefs(beliefs)
    entries = list(zip(leaves, paths, align_tree(priors, treedef, "priors"), strict=True))
    return {
        "structure": _describe_structure(treedef),
        "paths": paths,
        "leaves": [_encode_leaf(encoder, leaf, f"weights{where}") for leaf, where, _ in entries],
        "priors": [
            encoder.encode_prior(prior, f"prior{where}") if is_belief(leaf) else None
            for leaf, where, prior in entries
        ],
    }


def _decode_weights(decoder: Decoder, facts: Any, params: Any) -> tuple[Any, list[Any], list[Any]]:
    """Return the structure of the weights, the beliefs (and certain leaves), and their priors."""
    treedef, own_leaves = _find_treedef(facts, params)
    pairs = zip(facts["leaves"], own_leaves, strict=True)
    leaves = [_decode_leaf(decoder, spec, own) for spec, own in pairs]
    priors = [
        None if spec is None else decoder.decode_prior(spec, leaf)
        for spec, leaf in zip(facts["priors"], leaves, strict=True)
    ]
    return treedef, leaves, priors


def _encode_leaf(encoder: Encoder, leaf: Any, name: str) -> Any:
    if is_belief(leaf):
        return {"belief": encoder.encode_belief(leaf, name)}
    try:
        return {"certain": encoder.encode(leaf, name)}
    except TypeError:  # for example a function; it comes from the params given to `load`
        return {"object": type(leaf).__name__}


def _decode_leaf(decoder: Decoder, spec: Any, own: Any) -> Any:
    ((kind, content),) = spec.items()
    if kind == "object":
        return own
    return decoder.decode_belief(content) if kind == "belief" else decoder.decode(content)


def _describe_structure(treedef: Any) -> Any:
    """Describe a tree of dicts, lists and tuples with numbered leaves; None for other trees."""

    def describe(node: Any) -> Any:
        if node is None or isinstance(node, int):
            return node
        if type(node) in (list, tuple):
            return {type(node).__name__: [describe(item) for item in node]}
        if type(node) is dict and all(isinstance(key, str) for key in node):
            return {"dict": {key: describe(item) for key, item in node.items()}}
        raise TypeError

    try:
        return {"tree": describe(treedef.unflatten(range(treedef.num_leaves)))}
    except TypeError:
        return None


def _find_treedef(facts: Any, params: Any) -> tuple[Any, list[Any]]:
    """Return the structure of the weights, and the leaves that are not numeric."""
    needs = facts["structure"] is None or any("object" in spec for spec in facts["leaves"])
    if params is None and needs:
        raise FileError(
            "the weights are not just dicts, lists and tuples of arrays, so a file cannot hold "
            "their structure. Give weights of the same structure: load(path, f=…, params=…)"
        )
    tree = params if params is not None else Decoder({}).decode(facts["structure"]["tree"])
    leaves, paths, treedef = flatten_beliefs(tree)
    if paths != facts["paths"]:
        raise FileError(f"the file holds weights at {facts['paths']}, and the params have {paths}")
    return treedef, leaves


def _check_weights(network: Any, means: Any) -> None:
    """Check that the weights fit the network, which a checksum cannot tell."""
    if isinstance(network, ImportedFunction):
        if not isinstance(means, dict) or set(means) != set(network.weights):
            raise FileError("the weights do not fit the imported network")
        return
    expected: Any = jax.eval_shape(network.init, jax.random.key(0))

    if jax.tree.map(np.shape, means) != jax.tree.map(np.shape, expected):
        raise FileError(f"the weights do not fit {network}")


# --- the rest -------------------------------------------------------------------------------------


def _encode_before(encoder: Encoder, before: BeforeUpdate | None) -> Any:
    """Describe the model from which an updated model was made."""
    if before is None:
        return None
    leaf_priors = jax.tree.leaves(before.priors, is_leaf=lambda p: hasattr(p, "log_prob"))
    masks = [np.packbits(np.asarray(mask)) for mask in jax.tree.leaves(before.alive)]
    return {
        "priors": [encoder.encode_prior(p, f"before.{i}") for i, p in enumerate(leaf_priors)],
        "alive": encoder.encode(masks, "before.alive"),
    }


def _decode_before(decoder: Decoder, spec: Any, treedef: Any, leaves: Any) -> BeforeUpdate | None:
    if spec is None:
        return None
    uncertain = [leaf for leaf in leaves if is_belief(leaf)]
    priors = iter(map(decoder.decode_prior, spec["priors"], uncertain))
    masks = iter(decoder.decode(spec["alive"]))

    def decode_mask(leaf: Any) -> Any:
        bits = np.unpackbits(np.asarray(next(masks)), count=np.size(leaf.mean))
        return bits.astype(bool).reshape(np.shape(leaf.mean))

    return BeforeUpdate(
        treedef.unflatten([next(priors) if is_belief(leaf) else None for leaf in leaves]),
        treedef.unflatten([decode_mask(leaf) if is_belief(leaf) else None for leaf in leaves]),
    )


def _encode_key(encoder: Encoder, key: Any) -> Any:
    data = np.asarray(jax.random.key_data(key))
    return {"data": encoder.encode(data, "key"), "kind": str(jax.random.key_impl(key))}


def _decode_key(decoder: Decoder, spec: Any) -> Any:
    data = jnp.asarray(decoder.decode(spec["data"]))
    return jax.random.wrap_key_data(data, impl=spec["kind"])


def _check_json(extra: Any) -> None:
    try:
        same = json.loads(json.dumps(extra, allow_nan=False)) == extra
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"save: extra is not a JSON value ({error}).") from error
    if not same:
        raise TypeError(
            "save: extra would be changed by saving. Give JSON values: None, numbers, strings, "
            "lists and dicts with strings as keys (tuples become lists, so give lists)."
        )
