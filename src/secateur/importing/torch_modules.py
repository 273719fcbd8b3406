"""`from_torch`: PyTorch modules in, and the way back. PyTorch is imported here and nowhere else."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jax
import numpy as np

from secateur.distributions import Normal
from secateur.importing.imported_function import ImportedFunction
from secateur.importing.onnx_graph import OnnxError
from secateur.importing.onnx_import import from_onnx

__all__ = ["from_torch", "to_torch"]

# Rows of PyTorch's stacked gates, in its order.
_BLOCKS = {
    "GRU": ("reset", "update", "candidate"),
    "LSTM": ("input", "forget", "cell", "output"),
    "RNN": ("state",),
}


def from_torch(
    module: Any,
    example: Any,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> tuple[ImportedFunction, dict[str, np.ndarray]]:
    """Turn a trained PyTorch module into a pure JAX function and its parameters.

    The module is exported by `torch.onnx.export`, in evaluation mode and with a batch axis of any
    length, and read by `from_onnx`. Parameters have the names of the module's `state_dict`; the
    gates of GRU and LSTM are separate (`rnn.weight_ih_l0/update`), with the two biases of a gate
    added up.

    Args:
        module: A `torch.nn.Module`. It is not changed.
        example: Inputs that it can be called with: an array or tensor, or a tuple of these; the
            first axis counts rows.
        input_names: Names of the inputs. Defaults to "x", or "x0", "x1", ….
        output_names: Names of the outputs. Defaults to "y".

    Returns:
        The function and the parameters, as from `from_onnx`.

    Raises:
        ImportError: PyTorch is not installed.
        OnnxError: PyTorch cannot export the module, or an operator is not supported.
    """
    torch = _import_torch()
    examples = example if isinstance(example, tuple) else (example,)
    tensors = tuple(
        e if isinstance(e, torch.Tensor) else torch.as_tensor(np.asarray(e)) for e in examples
    )
    names = list(
        input_names or (["x"] if len(tensors) == 1 else [f"x{i}" for i in range(len(tensors))])
    )
    outputs = list(output_names or ["y"])
    content = io.BytesIO()
    evaluated = copy.deepcopy(module).eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                evaluated, tensors, content, dynamo=False, input_names=names, output_names=outputs,
                dynamic_axes={name: {0: "batch"} for name in (*names, *outputs)},
                # Layers stay as they are: BatchNorm is folded by from_onnx, which can undo it.
                do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE,
            )  # fmt: skip
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OnnxError(
            f"PyTorch cannot export the module to ONNX ({reason}). Export it yourself with "
            "torch.onnx.export, and give the file to from_onnx."
        ) from error
    return from_onnx(content.getvalue())


def _import_torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError(
            "PyTorch modules need the package torch, which is not installed. See pytorch.org for "
            "how to install it (the CPU build is the smallest)"
        ) from error


def to_torch(trained: Any, module: Any) -> Any:
    """Write the mean weights of a model back into a module like the one that it came from.

    Weights that were pruned are 0. For a model from `secateur.compact` the module's layers are
    first made smaller: Linear, Conv1d to Conv3d, BatchNorm, GRU, LSTM and RNN.

    Args:
        trained: A trained model whose function is from `from_torch`, or compacted from one.
        module: The module that `from_torch` was given. It is not changed.

    Returns:
        A copy of the module, in evaluation mode.

    Raises:
        ValueError: The model's weights are not those of the module.
    """
    torch = _import_torch()
    imported = trained.model.f
    while not isinstance(imported, ImportedFunction):
        imported = getattr(imported, "f", None)
        if imported is None:
            raise ValueError("to_torch: the model's function is not from from_torch.")
    means = jax.tree.map(
        lambda q: np.asarray(q.mean if isinstance(q, Normal) else q), trained.beliefs,
        is_leaf=lambda q: isinstance(q, Normal),
    )  # fmt: skip
    result = copy.deepcopy(module).eval()
    kept = _kept_of_neutral(imported, means)
    for path, layer in result.named_modules():
        prefix = f"{path}." if path else ""
        arrays = {
            name: _find_tensor(prefix + name, means, imported, kept, layer)
            for name in layer.state_dict()
            if "." not in name
        }
        _fill(torch, layer, arrays, path)
    used = {n.split("/")[0] for n in means}
    missing = used - set(result.state_dict())
    if missing:
        raise ValueError(
            f"to_torch: the module has no {sorted(missing)[0]}. Give the module that was imported."
        )
    return result


def _kept_of_neutral(imported: ImportedFunction, means: dict[str, Any]) -> dict[str, int]:
    """Return the current length of folded arrays of a normalisation, by prefix."""
    lengths = {}
    for name in imported.neutral:
        stem = name.rpartition(".")[0]
        bias = means.get(f"{stem}.bias")
        if bias is not None:
            lengths[stem] = len(bias)
    return lengths


def _find_tensor(
    name: str, means: dict[str, Any], imported: ImportedFunction, kept: dict[str, int], layer: Any
) -> np.ndarray | None:  # fmt: skip
    """Return the array that belongs into a tensor of a module; None for what stays."""
    if name in means:
        return means[name]
    if name in imported.neutral:
        value = imported.neutral[name]
        size = kept.get(name.rpartition(".")[0])
        return value if size is None or not value.ndim else np.resize(value[:1], size)
    gates = {n.rpartition("/")[2]: a for n, a in means.items() if n.startswith(f"{name}/")}
    kind = type(layer).__name__
    if kind not in _BLOCKS:
        return None
    if gates:
        like = next(iter(gates.values()))
        return np.concatenate([gates.get(g, np.zeros_like(like)) for g in _BLOCKS[kind]])
    stem = name.replace("bias_hh", "weight_hh").replace("bias_ih", "weight_hh")
    weights = [a for n, a in means.items() if n.startswith(f"{stem}/")]
    if "bias" in name and weights:  # its part was added to the other bias
        return np.zeros(len(_BLOCKS[kind]) * len(weights[0]), weights[0].dtype)
    return None


# The attributes of a layer that say its sizes, from the shape of its weight.
def _resize(layer: Any, arrays: dict[str, Any]) -> None:
    kind = type(layer).__name__
    weight = arrays.get("weight")
    if kind == "Linear" and weight is not None:
        layer.out_features, layer.in_features = weight.shape
    elif kind.startswith("Conv") and weight is not None:
        was = layer.groups
        if was > 1 and was == layer.in_channels:  # each channel has filters of its own
            layer.groups = weight.shape[0] * was // layer.out_channels
        layer.out_channels = weight.shape[0]
        layer.in_channels = weight.shape[1] * layer.groups
    elif kind.startswith("BatchNorm"):
        values = [a for a in arrays.values() if a is not None and a.ndim]
        if values:
            layer.num_features = len(values[0])
    elif kind in _BLOCKS and arrays.get("weight_hh_l0") is not None:
        layer.hidden_size = arrays["weight_hh_l0"].shape[1]
        layer.input_size = arrays["weight_ih_l0"].shape[1]


def _fill(torch: Any, layer: Any, arrays: dict[str, Any], path: str) -> None:
    given = {name: a for name, a in arrays.items() if a is not None}
    if not given:
        return
    before = {name: tuple(t.shape) for name, t in layer.state_dict().items() if "." not in name}
    given = {name: _drop_ones(a, before[name]) for name, a in given.items()}
    changed = any(tuple(a.shape) != before[name] for name, a in given.items())
    if changed:
        kind = type(layer).__name__
        known = (*_BLOCKS, "Linear", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Conv1d",
                 "Conv2d", "Conv3d")  # fmt: skip
        if kind not in known:
            raise ValueError(
                f"to_torch: {path or 'the module'} is a {kind}, whose size changed. Supported: "
                f"{', '.join(known)}."
            )
        _check_recurrent(kind, given, path)
        _resize(layer, given)
    for name, a in given.items():
        tensor = getattr(layer, name)
        new = torch.as_tensor(np.array(a)).to(tensor.dtype)
        if isinstance(tensor, torch.nn.Parameter):
            setattr(layer, name, torch.nn.Parameter(new))
        else:
            layer.register_buffer(name, new)
    if hasattr(layer, "flatten_parameters"):
        layer.flatten_parameters()


def _drop_ones(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array in the shape of a tensor, if they differ by axes of length 1 only."""
    lengths = [[n for n in s if n != 1] for s in (array.shape, shape)]
    return array.reshape(shape) if lengths[0] == lengths[1] else array


def _check_recurrent(kind: str, arrays: dict[str, Any], path: str) -> None:
    """Refuse layers and directions of different sizes, which one PyTorch layer cannot have."""
    if kind not in _BLOCKS:
        return
    sizes = {a.shape[1] for name, a in arrays.items() if name.startswith("weight_hh")}
    if len(sizes) > 1:
        raise ValueError(
            f"to_torch: the layers or directions of {path} have {sorted(sizes)} units left, and "
            "PyTorch needs as many in each. Export the model to ONNX or C, which do not."
        )
