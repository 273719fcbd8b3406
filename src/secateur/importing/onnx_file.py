"""Conversion of an ONNX file to a graph; the file is not trusted, and nothing in it is executed."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from secateur.importing.onnx_graph import OnnxError, OnnxGraph, OnnxNode, OnnxValue

__all__ = ["read_onnx"]

_LARGEST_FILE = 2**31 - 1  # of protocol buffers
_MOST_NODES = 200_000  # after functions are written out
_DEEPEST = 32  # graphs within graphs, and functions within functions
_OWN_DOMAINS = ("", "ai.onnx")


def read_onnx(source: Any) -> OnnxGraph:
    """Read an ONNX model.

    Args:
        source: Path of a file; its bytes; or an `onnx.ModelProto`.

    Raises:
        OnnxError: The file is damaged, or not an ONNX model that can be read.
        ImportError: The package onnx is not installed.
    """
    onnx = _import_onnx()
    folder = None
    if isinstance(source, onnx.ModelProto):
        model = source
    else:
        content = source if isinstance(source, bytes) else _read_bytes(Path(source))
        folder = None if isinstance(source, bytes) else Path(source).resolve().parent
        model = onnx.ModelProto()
        try:
            model.ParseFromString(content)
        except Exception as error:  # protobuf's own class, and RecursionError
            raise OnnxError(
                f"{_describe(source)} is not an ONNX model: it is damaged, cut short, or another "
                "kind of file."
            ) from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise OnnxError(f"{_describe(source)} is not an ONNX model: it has no graph.")
    try:
        return _Reader(model, folder).read()
    except OnnxError as error:
        raise OnnxError(f"{_describe(source)}: {error}") from error
    except RecursionError as error:
        raise OnnxError(f"{_describe(source)}: graphs are nested too deeply.") from error
    except (ValueError, TypeError, KeyError, UnicodeError, OverflowError, MemoryError) as error:
        raise OnnxError(f"{_describe(source)} is damaged: {error}.") from error


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "reading ONNX needs the package onnx, which is not installed: pip install onnx"
        ) from error
    return onnx


def _describe(source: Any) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "the model"


def _read_bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise OnnxError(f"there is no file {path}.")
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise OnnxError(
                f"{path} has {size:,} bytes. ONNX files are at most 2 GB; larger models keep their "
                "weights in files beside them (external data)."
            )
        if not size:
            raise OnnxError(f"{path} is empty.")
        return path.read_bytes()
    except OSError as error:
        raise OnnxError(f"{path} cannot be read: {error.strerror or error}.") from error


class _Reader:
    """Translates one model.

    Args:
        model: The `ModelProto`.
        folder: The folder whose files may hold weights, or None.
    """

    def __init__(self, model: Any, folder: Path | None) -> None:
        self.model, self.folder = model, folder
        self.versions = {_own(o.domain): o.version for o in model.opset_import}
        self.functions = {(_own(f.domain), f.name): f for f in model.functions}
        self.count = 0
        if len(model.graph.node) and not self.versions:
            raise OnnxError("the file names no operator set; it is damaged.")

    def read(self) -> OnnxGraph:
        graph = self.graph(self.model.graph, 0)
        known = set(graph.arrays)
        graph.inputs = [value for value in graph.inputs if value.name not in known]
        return graph

    def graph(self, proto: Any, depth: int) -> OnnxGraph:
        if depth > _DEEPEST:
            raise OnnxError(f"graphs are nested more than {_DEEPEST} deep.")
        if proto.sparse_initializer:
            raise OnnxError("sparse initialisers are not supported.")
        arrays = {t.name: self.array(t) for t in proto.initializer}
        nodes: list[OnnxNode] = []
        for node in proto.node:
            nodes += self.nodes(node, {}, self.versions, "", depth)
        return OnnxGraph(
            nodes, arrays, [*map(_read_value, proto.input)], [*map(_read_value, proto.output)]
        )

    def nodes(
        self, proto: Any, given: dict[str, Any], versions: dict[str, int], prefix: str, depth: int
    ) -> list[OnnxNode]:
        """Read one node, or the nodes of the model's own function that it calls."""
        self.count += 1
        if self.count > _MOST_NODES:
            raise OnnxError(f"it has more than {_MOST_NODES:,} nodes.")
        domain = _own(proto.domain)
        attributes = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in given:
                    attributes[attribute.name] = given[attribute.ref_attr_name]
            else:
                attributes[attribute.name] = self.attribute(attribute, depth)
        function = self.functions.get((domain, proto.op_type))
        if function is not None:
            return self.call(function, proto, attributes, prefix, depth)
        if domain not in versions:
            raise OnnxError(f"{proto.op_type}: the file does not import the domain {domain!r}.")
        kind = f"{domain}.{proto.op_type}" if domain else proto.op_type
        name = prefix + proto.name
        return [
            OnnxNode(
                kind, (*proto.input,), (*proto.output,), attributes, versions[domain], name
            )
        ]  # fmt: skip

    def call(
        self, function: Any, proto: Any, attributes: dict[str, Any], prefix: str, depth: int
    ) -> list[OnnxNode]:
        """Write out a function of the model."""
        if depth > _DEEPEST:
            raise OnnxError(f"function {function.name!r} calls itself, or others too deeply.")
        defaults = {a.name: self.attribute(a, depth) for a in function.attribute_proto}
        versions = {_own(o.domain): o.version for o in function.opset_import}
        inside = f"{prefix}{proto.name or proto.output[0]}/"
        names = {"": ""}
        names.update(zip(function.input, [*proto.input] + [""] * len(function.input), strict=False))
        names.update(zip(function.output, proto.output, strict=False))
        nodes = []
        for inner in function.node:
            for node in self.nodes(inner, defaults | attributes, versions, inside, depth + 1):
                node.inputs = tuple(names.setdefault(n, inside + n) for n in node.inputs)
                node.outputs = tuple(names.setdefault(n, inside + n) for n in node.outputs)
                if any(True for _ in node.graphs()):
                    raise OnnxError(f"{node}: a branch or loop within a function is not supported.")
                nodes.append(node)
        return nodes

    def attribute(self, proto: Any, depth: int) -> Any:
        """Return the value of an attribute."""
        kinds = _import_onnx().AttributeProto
        if proto.type == kinds.GRAPH:
            return self.graph(proto.g, depth + 1)
        if proto.type == kinds.TENSOR:
            return self.array(proto.t)
        if proto.type == kinds.STRING:
            return proto.s.decode("utf-8", "replace")
        if proto.type == kinds.STRINGS:
            return [s.decode("utf-8", "replace") for s in proto.strings]
        simple = {kinds.FLOAT: "f", kinds.INT: "i", kinds.FLOATS: "floats", kinds.INTS: "ints"}
        if proto.type not in simple:
            raise OnnxError(f"attribute {proto.name!r} is of a kind that is not supported.")
        value = getattr(proto, simple[proto.type])
        return list(value) if proto.type in (kinds.FLOATS, kinds.INTS) else value

    # --- arrays -------------------------------------------------------------------------------

    def array(self, tensor: Any) -> np.ndarray:
        """Return the array of a tensor, from the file itself or from one in its folder."""
        onnx = _import_onnx()
        if any(n < 0 for n in tensor.dims):
            raise OnnxError(f"the array {tensor.name!r} has a negative length.")
        size = math.prod(tensor.dims)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return self.external(tensor, size)
        stored = max(
            len(tensor.raw_data), len(tensor.float_data), len(tensor.int32_data),
            len(tensor.int64_data), len(tensor.double_data), len(tensor.uint64_data),
            len(tensor.string_data),
        )  # fmt: skip
        if size > 16 * max(stored, 1):  # elements of half a byte, and room to spare
            raise OnnxError(f"the array {tensor.name!r} is cut short.")
        if tensor.data_type == onnx.TensorProto.STRING:
            texts = [s.decode("utf-8", "replace") for s in tensor.string_data]
            return np.array(texts, dtype=object).reshape(tensor.dims)
        try:
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        except Exception as error:
            raise OnnxError(f"the array {tensor.name!r} is damaged ({error}).") from error

    def external(self, tensor: Any, size: int) -> np.ndarray:
        """Return an array whose bytes are in another file of the same folder."""
        onnx = _import_onnx()
        facts = {entry.key: entry.value for entry in tensor.external_data}
        location = facts.get("location", "")
        if self.folder is None:
            raise OnnxError(
                f"the array {tensor.name!r} is in another file. Give the path of the model."
            )
        path = (self.folder / location).resolve()
        if not location or os.path.isabs(location) or self.folder not in path.parents:
            raise OnnxError(
                f"the array {tensor.name!r} is in {location!r}, outside the model's folder, and is "
                "not read."
            )
        if not path.is_file():
            raise OnnxError(f"the array {tensor.name!r} is in {location!r}, which is not there.")
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        offset, length = int(facts.get("offset", 0)), size * dtype.itemsize
        if offset < 0 or offset + length > path.stat().st_size:
            raise OnnxError(f"{location!r} is too short for the array {tensor.name!r}.")
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(length)
        return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(tensor.dims)


def _own(domain: str) -> str:
    return "" if domain in _OWN_DOMAINS else domain


def _read_value(proto: Any) -> OnnxValue:
    onnx = _import_onnx()
    if not proto.type.HasField("tensor_type"):
        return OnnxValue(proto.name)
    tensor = proto.type.tensor_type
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    except (KeyError, TypeError):
        dtype = ""
    if not tensor.HasField("shape"):
        return OnnxValue(proto.name, dtype)
    lengths = [
        d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim
    ]
    if any(isinstance(n, int) and not 0 <= n < 2**31 for n in lengths):
        raise OnnxError(f"{proto.name!r} has an impossible shape.")
    return OnnxValue(proto.name, dtype, tuple(lengths))
