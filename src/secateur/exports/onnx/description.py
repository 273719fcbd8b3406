"""What an exported model says of itself: where it is from, what goes in and what comes out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from secateur import __version__
from secateur.exports.graph import ExportError
from secateur.tables import Encoding

__all__ = ["describe"]


def describe(
    trained: Any,
    *,
    width: int,
    meanings: dict[str, str],
    inputs: Any = None,
    names: Sequence[str] | None = None,
) -> dict[str, str]:
    """Return the model's metadata: texts by name; lists and numbers in JSON.

    Args:
        trained: the model.
        width: length of the last axis of its input.
        meanings: of the outputs, by name.
        inputs: example rows, for the inputs' ranges.
        names: of the inputs; by default those of the model's table.

    Raises:
        ExportError: there are not as many names as inputs.
    """
    encoding = _encoding(trained)
    if names is None and encoding is not None:
        names = [column["name"] for column in encoding.inputs]
    if names is not None and len(names) != width:
        raise ExportError(f"there are {len(names)} names for {width} inputs. Give one for each.")
    facts: dict[str, Any] = {
        "secateur_version": __version__,
        "free_energy_nats": float(trained.free_energy),
        "live_weights": int(trained.live_weights),
        "weights_sha256": fingerprint(trained.beliefs),
    }
    pruned = getattr(trained, "pruned_fraction", None)
    if pruned is not None:
        facts["pruned_fraction"] = float(pruned)
    if names is not None:
        facts["input_names"] = list(map(str, names))
    ranges = _ranges(encoding, inputs, width)
    if ranges is not None:
        facts["input_ranges"] = ranges
    if encoding is not None:
        facts["targets"] = [target.name for target in encoding.targets]
        if encoding.targets[0].classes is not None:
            facts["classes"] = list(encoding.targets[0].classes)
    facts |= {f"output_{name}": meaning for name, meaning in meanings.items()}
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}


def fingerprint(beliefs: Any) -> str:
    """Return the SHA-256 of all that is believed of the weights, in the order of the leaves."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(beliefs):
        if not isinstance(leaf, jax.Array | np.ndarray):
            continue
        array = np.asarray(leaf)
        array = array.astype(array.dtype.newbyteorder("<"))
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _encoding(trained: Any) -> Encoding | None:
    extra = getattr(trained, "extra", None)
    if isinstance(extra, dict) and "table" in extra:
        return Encoding.from_json(extra["table"])
    return None


def _ranges(encoding: Encoding | None, inputs: Any, width: int) -> list[list[float] | None] | None:
    """Return the least and the largest value of every input, None where they are not known."""
    if inputs is not None and np.size(inputs):
        rows = np.asarray(inputs, np.float64).reshape(-1, width)
        return np.stack([rows.min(0), rows.max(0)], axis=1).tolist()
    if encoding is None:
        return None
    return [None if c["kind"] == "number" else [0.0, 1.0] for c in encoding.inputs]
