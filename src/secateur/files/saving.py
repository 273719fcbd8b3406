"""Writing a trained model to a file, and making a model of the file again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import secateur
from secateur import containers
from secateur.beliefs.trees import aligned, flatten, is_belief
from secateur.files.codec import NETWORKS, Decoder, Encoder, FileError
from secateur.files.loaded import Loaded, continuation_of
from secateur.fitting.result import Fitted, Past, Trained
from secateur.model import BayesianModel

__all__ = ["load", "save"]

_KIND, _VERSION = "secateur-model", 1
# What both sides treat alike, by name.
_PLAIN = ("noise", "scaling", "parts", "recipe", "free_energy", "standard_error", "epochs",
          "stop_reason")  # fmt: skip


def save(result: Fitted | Loaded, path: str | os.PathLike, *, extra: Any = None) -> None:
    """Write a trained model to a file that `load` reads back to the bit.

    One safetensors file; its metadata are one JSON string. Weights that were pruned take a bit each
    and nothing else. The file is complete or not there at all.

    Args:
        result: from `fit`, `prune`, `update` or `load`.
        path: the file, by custom `NAME.safetensors`.
        extra: any JSON value of your own, which comes back as `Loaded.extra`.

    Raises:
        TypeError: something of the model cannot be stored, or `extra` is no JSON value.

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
        >>> loaded.extra, loaded.model.f
        ({'columns': ['a', 'b']}, Dense(inputs=2, hidden=(3,), outputs=1, activation='relu'))
        >>> bool(np.all(loaded.predict(x).variance == fitted.predict(x).variance))
        True
    """
    if not isinstance(result, Trained):
        raise TypeError(
            f"save: a {type(result).__name__} is no trained model. Give what fit, prune, update or "
            "load returned."
        )
    _check_json(extra)
    encoder, model = Encoder(), result.model
    builtin = isinstance(model.f, NETWORKS)
    facts = {
        "version": secateur.__version__,
        "network": encoder.encode(model.f, "network") if builtin else None,
        "function": None if builtin else getattr(model.f, "__name__", type(model.f).__name__),
        "inference": model.inference,
        "likelihood": encoder.encode(model.likelihood, "likelihood"),
        "weights": _encode_weights(encoder, result.beliefs, result.priors),
        "rounds": [
            encoder.encode(replace(r, history=None), f"rounds.{i}")
            for i, r in enumerate(getattr(result, "rounds", ()))
        ],
        "weights_before": getattr(result, "weights_before", result.live_weights),
        "free_energy_before": encoder.encode(
            getattr(result, "free_energy_before", result.free_energy), "free_energy_before"
        ),
        "empirical_bayes": result.continuation.empirical_bayes,
        "past": _encode_past(encoder, result),
        "extra": extra,
    }
    facts |= {name: encoder.encode(getattr(result, name), name) for name in _PLAIN}
    containers.write(Path(path), encoder.tensors, facts, kind=_KIND, version=_VERSION)


def load(
    path: str | os.PathLike,
    *,
    f: Callable[[Any, Any], Any] | None = None,
    params: Any = None,
    classes: Iterable[type] = (),
) -> Loaded:
    """Read a model that `save` wrote; nothing in a file can run code.

    Args:
        path: the file.
        f: the model's function, if it is none of `secateur.networks`.
        params: weights of the right structure, if that is not made of dicts, lists and tuples:
            those of Flax NNX or Equinox. Their values do not matter.
        classes: of likelihoods or priors of your own, if the model has such.

    Returns:
        A `Loaded`, which predicts to the bit what the saved model did.

    Raises:
        FileError: the file is damaged, no model of secateur, from a later version, or asks for one
            of the arguments.
        FileNotFoundError: there is none.
    """
    try:
        tensors, facts = containers.read(Path(path), kind=_KIND, version=_VERSION)
    except containers.Unreadable as error:
        raise FileError(f"{error}. Put a good copy in its place.") from error
    try:
        return _rebuilt(Decoder(tensors, classes), facts, f, params)
    except FileError as error:
        raise FileError(f"{path}: {error}.") from error
    except (
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
        MemoryError,
    ) as error:  # fmt: skip
        raise FileError(
            f"{path} does not describe a model ({type(error).__name__}: {error})."
        ) from error


def _rebuilt(decoder: Decoder, facts: Any, f: Any, params: Any) -> Loaded:
    f = _function(decoder, facts, f)
    treedef, leaves, found = _decode_weights(decoder, facts["weights"], params)
    priors = treedef.unflatten(found)
    means = treedef.unflatten([leaf.mean if is_belief(leaf) else leaf for leaf in leaves])
    if isinstance(f, NETWORKS):
        _check_weights(f, means)
    model = BayesianModel(
        f,
        means,
        likelihood=decoder.decode(facts["likelihood"]),
        prior=priors,
        inference=facts["inference"],
        where=treedef.unflatten([is_belief(leaf) for leaf in leaves]),
    )
    beliefs = treedef.unflatten(leaves)
    plain = {name: decoder.decode(facts[name]) for name in _PLAIN}
    past = None if facts["past"] is None else Past(*map(decoder.decode, facts["past"]))
    return Loaded(
        model=model,
        beliefs=beliefs,
        priors=priors,
        **plain,
        rounds=tuple(decoder.decode(told) for told in facts["rounds"]),
        weights_before=facts["weights_before"],
        free_energy_before=decoder.decode(facts["free_energy_before"]),
        extra=facts["extra"],
        version=facts["version"],
        continuation=continuation_of(
            beliefs, priors, plain["noise"], plain["recipe"], facts["empirical_bayes"], past
        ),
    )


def _function(decoder: Decoder, facts: Any, f: Any) -> Any:
    if facts["network"] is not None:
        own = decoder.decode(facts["network"])
        if not isinstance(own, NETWORKS):
            raise FileError(f"{own!r} is no network")
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
    leaves, paths, treedef = flatten(beliefs)
    each = list(zip(leaves, paths, aligned(priors, treedef, "priors"), strict=True))
    return {
        "structure": _structure_of(treedef),
        "paths": paths,
        "leaves": [_encode_leaf(encoder, leaf, f"weights{where}") for leaf, where, _ in each],
        "priors": [
            encoder.prior(prior, f"prior{where}") if is_belief(leaf) else None
            for leaf, where, prior in each
        ],
    }


def _decode_weights(decoder: Decoder, facts: Any, params: Any) -> tuple[Any, list[Any], list[Any]]:
    """Return the structure of the weights, the beliefs (and certain leaves), and their priors."""
    treedef, given = _treedef(facts, params)
    pairs = zip(facts["leaves"], given, strict=True)
    leaves = [_decode_leaf(decoder, spec, own) for spec, own in pairs]
    priors = [
        None if spec is None else decoder.prior(spec, leaf)
        for spec, leaf in zip(facts["priors"], leaves, strict=True)
    ]
    return treedef, leaves, priors


def _encode_leaf(encoder: Encoder, leaf: Any, name: str) -> Any:
    if is_belief(leaf):
        return {"belief": encoder.belief(leaf, name)}
    try:
        return {"certain": encoder.encode(leaf, name)}
    except TypeError:  # a function, say: it comes from the params that are given to `load`
        return {"object": type(leaf).__name__}


def _decode_leaf(decoder: Decoder, spec: Any, own: Any) -> Any:
    ((kind, content),) = spec.items()
    if kind == "object":
        return own
    return decoder.belief(content) if kind == "belief" else decoder.decode(content)


def _structure_of(treedef: Any) -> Any:
    """Describe a tree of dicts, lists and tuples, with numbers for leaves; None for any other."""

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


def _treedef(facts: Any, params: Any) -> tuple[Any, list[Any]]:
    """Return the structure of the weights, and what leaves that are no numbers are."""
    needs = facts["structure"] is None or any("object" in spec for spec in facts["leaves"])
    if params is None and needs:
        raise FileError(
            "the weights are not in dicts, lists and tuples of arrays alone, so a file cannot hold "
            "their structure. Give weights of the same structure: load(path, f=…, params=…)"
        )
    tree = params if params is not None else Decoder({}).decode(facts["structure"]["tree"])
    leaves, paths, treedef = flatten(tree)
    if paths != facts["paths"]:
        raise FileError(f"the file holds weights at {facts['paths']}, and the params have {paths}")
    return treedef, leaves


def _check_weights(network: Any, means: Any) -> None:
    """Compare the weights with what the network expects; a checksum does not say that they fit."""
    expected: Any = jax.eval_shape(network.init, jax.random.key(0))

    if jax.tree.map(np.shape, means) != jax.tree.map(np.shape, expected):
        raise FileError(f"the weights do not fit {network}")


# --- the rest -------------------------------------------------------------------------------------


def _encode_past(encoder: Encoder, result: Any) -> Any:
    """Describe what an updated model was updated from, by vector and without padding."""
    going_on = result.continuation
    if going_on.past is None:
        return None
    ends = [0] * len(going_on.layout.sizes)
    for place in going_on.layout.places:
        ends[place.vector] = max(ends[place.vector], place.start + place.size)

    def cut(parts: Any) -> tuple[Any, ...]:
        return tuple(
            jax.tree.map(lambda a, end=end: a[:end] if np.ndim(a) else a, part)
            for part, end in zip(parts, ends, strict=True)
        )

    past = going_on.past
    return [encoder.encode(cut(past.prior), "past"), encoder.encode(cut(past.alive), "past.alive")]


def _check_json(extra: Any) -> None:
    try:
        same = json.loads(json.dumps(extra, allow_nan=False)) == extra
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"save: extra is no JSON value ({error}).") from error
    if not same:
        raise TypeError(
            "save: extra would come back changed. Give JSON values: None, numbers, texts, lists "
            "and dicts with texts as keys (tuples become lists, so give lists)."
        )
